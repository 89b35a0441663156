"""The package: public names, the cost of its import, and its version."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import longtail
import longtail.losses
import longtail.metrics

LOSSES = {
    "BalancedSoftmaxLoss",
    "ClassBalancedSoftmaxLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "LossOptions",
    "PriorShiftedSoftmaxLoss",
    "class_balanced_softmax",
    "class_shift",
    "effective_number_weights",
    "focal_loss",
    "ldam_loss",
    "ldam_margins",
    "prior_shift",
    "shifted_linear",
}
MORE_LOSSES = {  # in longtail.losses only: they take more than logits
    "BalancedContrastiveLoss",
    "Loss",
    "ProCoLoss",
    "ResLTLoss",
    "ResLTTerms",
    "VonMisesFisherStatistics",
    "balanced_contrastive_loss",
    "branches_from_counts",
    "branches_from_groups",
    "proco_logits",
    "reslt_terms",
}
METRICS = {
    "CalibrationError",
    "ClassStatistics",
    "GradientBalance",
    "Preference",
    "ProbabilityShift",
    "Recall",
    "TargetProbability",
    "class_statistics",
    "expected_calibration_error",
    "gradient_balance",
    "mean_target_probability",
    "preference_scores",
    "probability_shift",
    "recall",
    "summary",
    "wilson_interval",
}
TOP = LOSSES | {
    "GroupValues",
    "Groups",
    "adjust_logits",
    "class_counts",
    "imbalance_factor",
    "metrics",
    "tau_normalize",
    "tau_normalize_logits",
}
EXTRAS = {"torchmetrics", "scipy", "sklearn", "matplotlib", "rich", "torchvision", "timm", "pandas", "PIL", "jinja2"}

IMPORT = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import longtail
longtail.Groups, longtail.class_balanced_softmax, longtail.metrics, longtail.adjust_logits  # imported on use
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted({name.split(".")[0] for name in set(sys.modules) - before})]))
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [(longtail, TOP), (longtail.losses, LOSSES | MORE_LOSSES), (longtail.metrics, METRICS)],
    ids=["longtail", "longtail.losses", "longtail.metrics"],
)
def test_public_names(module: ModuleType, names: set[str]) -> None:
    """A change of the API is also made here and in the changelog."""
    assert set(module.__all__) == names
    assert len(module.__all__) == len(names)
    for name in names:
        assert getattr(module, name) is not None


def test_package_reexports_the_losses() -> None:
    """The package exports the objects of ``longtail.losses``."""
    for name in LOSSES:
        assert getattr(longtail, name) is getattr(longtail.losses, name)


def test_everything_public_is_documented() -> None:
    """Functions and classes have a docstring."""
    for module, names in ((longtail, TOP), (longtail.losses, LOSSES | MORE_LOSSES), (longtail.metrics, METRICS)):
        for name in sorted(names):
            assert (getattr(module, name).__doc__ or "").strip(), name


def test_unknown_name_raises() -> None:
    """The lazy imports of ``longtail.metrics`` report unknown names."""
    with pytest.raises(AttributeError, match="no_such_name"):
        longtail.metrics.no_such_name  # noqa: B018
    with pytest.raises(ImportError):
        from longtail.metrics import no_such_name  # noqa: F401


def test_names_are_imported_on_use() -> None:
    """``dir`` lists all names before they are imported, also those that need an extra."""
    assert set(dir(longtail)) >= TOP | {"load"}
    assert set(dir(longtail.metrics)) >= METRICS | {"ClassStatisticsMetric", "GroupRecallMetric"}
    with pytest.raises(AttributeError, match="no_such_name"):
        longtail.no_such_name  # noqa: B018


BASE_INSTALL = """
import sys

class OnlyTheCore:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTheCore())
from longtail import *
from longtail.losses import *
from longtail.metrics import *
print(ClassBalancedSoftmaxLoss([5, 1], beta=1.0), Groups.from_counts([500, 5]).sizes, summary.__name__)
import longtail
longtail.load, longtail.Study, longtail.evaluate, longtail.diagnose
"""


def test_import_star_on_a_base_install() -> None:
    """torch and numpy are enough to import every public name."""
    script = f"EXTRAS = {EXTRAS | {'safetensors', 'tomli_w', 'hypothesis'}!r}\n{BASE_INSTALL}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "ClassBalancedSoftmaxLoss(2 classes, beta=1)" in result.stdout


def test_importing_is_cheap_and_pulls_in_no_extra() -> None:
    """The import takes at most 0.3 s after torch's (the best of three), and imports no extra."""
    seconds = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        took, modules = json.loads(result.stdout)
        assert not EXTRAS & set(modules)
        seconds.append(took)
        if took <= 0.3:
            return
    pytest.fail(f"import longtail took {seconds} s on top of import torch")


def test_version() -> None:
    """The package and pyproject.toml have the same version."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert longtail.__version__ == project["version"]


def test_core_needs_torch_and_numpy_only() -> None:
    """All other dependencies are extras."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {dependency.split(">")[0].split("=")[0].strip() for dependency in project["dependencies"]}
    assert names == {"torch", "numpy"}


def test_typed() -> None:
    """The package has the marker of typed packages."""
    assert longtail.__file__ is not None
    assert (Path(longtail.__file__).parent / "py.typed").exists()

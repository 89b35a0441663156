"""longtail: classifiers that work for rare classes.

>>> from longtail import ClassBalancedSoftmaxLoss, class_counts
>>> train_labels = [0] * 500 + [1] * 50 + [2] * 5
>>> loss = ClassBalancedSoftmaxLoss(class_counts(train_labels, num_classes=3), beta=1.5)

Train on ``loss(logits, target)``, predict with ``logits.argmax(1)``. Measures are in :mod:`longtail.metrics`.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from longtail import estimators as estimators
    from longtail import metrics
    from longtail.beta import AutoBeta, ShiftFit, fit_shift
    from longtail.classes import Groups, GroupValues, class_counts, imbalance_factor
    from longtail.diagnosis import diagnose as diagnose
    from longtail.inference import load as load
    from longtail.integrations.export import export as export
    from longtail.losses import (
        BalancedSoftmaxLoss,
        ClassBalancedSoftmaxLoss,
        FocalLoss,
        LDAMLoss,
        LogitAdjustedLoss,
        LossOptions,
        PriorShiftedSoftmaxLoss,
        class_balanced_softmax,
        class_shift,
        effective_number_weights,
        focal_loss,
        ldam_loss,
        ldam_margins,
        prior_shift,
        shift_in_training,
        shifted_linear,
    )
    from longtail.posthoc import adjust_logits, tau_normalize, tau_normalize_logits
    from longtail.study import Results as Results
    from longtail.study import Study as Study
    from longtail.train import evaluate as evaluate

__version__ = "0.1.0"

__all__ = [
    "AutoBeta",
    "BalancedSoftmaxLoss",
    "ClassBalancedSoftmaxLoss",
    "FocalLoss",
    "GroupValues",
    "Groups",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "LossOptions",
    "PriorShiftedSoftmaxLoss",
    "ShiftFit",
    "adjust_logits",
    "class_balanced_softmax",
    "class_counts",
    "class_shift",
    "effective_number_weights",
    "fit_shift",
    "focal_loss",
    "imbalance_factor",
    "ldam_loss",
    "ldam_margins",
    "metrics",
    "prior_shift",
    "shift_in_training",
    "shifted_linear",
    "tau_normalize",
    "tau_normalize_logits",
]


_MODULES = ("beta", "classes", "losses", "metrics", "posthoc")

_WITH_EXTRAS = {
    "diagnose": "longtail.diagnosis",
    "estimators": "longtail.estimators",
    "evaluate": "longtail.train",
    "export": "longtail.integrations.export",
    "load": "longtail.inference",
    "Results": "longtail.study",
    "Study": "longtail.study",
}
"""Not in ``__all__``: `from longtail import *` takes 0.1 s and would take 0.5 s with them. Import them by name."""


def __getattr__(name: str) -> _typing.Any:
    """Import public names on use, so that the command line answers before torch is imported."""
    if name in _MODULES:
        return _importlib.import_module(f"longtail.{name}")
    if name in _WITH_EXTRAS:
        module = _importlib.import_module(_WITH_EXTRAS[name])
        return module if name == "estimators" else getattr(module, name)
    if name in __all__:
        modules = (_importlib.import_module(f"longtail.{module}") for module in _MODULES)
        globals()[name] = next(getattr(module, name) for module in modules if name in module.__all__)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *_WITH_EXTRAS, *(name for name in globals() if name.startswith("__"))})

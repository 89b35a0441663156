"""The Python API of studies: run, read, tables, tests, data frame, report."""

import math
import shutil
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from tests.study.conftest import SHORT

from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.methods import METHODS, param, register_loss
from longtail.study import Results, Study, run_studies
from longtail.study.execute import execute
from longtail.study.record import Choice, StudyRecord, read_studies, write_study

PLAN = {"data": "digits-lt", "methods": ["softmax", "balanced-softmax", "cbs:beta=1.5"], "seeds": 2, "recipe": SHORT}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def results(study):
    return Results.read(study)


def test_a_study_runs_and_returns_its_results(tmp_path, study):
    shutil.copytree(study, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "digits-lt-50-cbs-beta1.5-seed1")
    seen = []

    def on_progress(progress):
        seen.append(
            (len(progress.finished), len(progress.runs), progress.epochs(), [r.path.name for r in progress.news])
        )

    made = Study({**PLAN, "out": str(tmp_path / "out")}, command="longtail study x")
    found = made.run(on_progress=on_progress)
    assert seen[0][:2] == (5, 6)
    assert seen[-1][:3] == (6, 6, (12, 12))
    assert [name for *_, news in seen for name in news] == ["digits-lt-50-cbs-beta1.5-seed1"]
    assert len(found) == 6
    assert found.outcome.failed == {}
    assert {path.name for path in (tmp_path / "out" / "tables").iterdir()} == {
        f"{name}.{suffix}" for name in ("recall", "measures") for suffix in ("md", "csv")
    }
    (record,) = read_studies(tmp_path / "out")
    assert (record.command, record.reference) == ("longtail study x", "balanced-softmax")
    assert len(record.planned) == 6
    again = Results.read(tmp_path / "out")
    assert again.table().rows == found.table().rows
    assert again.table().full_caption == found.table().full_caption
    assert "Command: longtail study x" in again.table().full_caption


@dataclass(frozen=True)
class PowerParams:
    strength: float = param(0.7, "exponent of the class counts", at_least=0)


@pytest.fixture
def power():
    """A method from outside, whose beta has another name."""

    def factory(task):
        return ClassBalancedSoftmaxLoss(task.counts, beta=task.params.strength, zero_counts="mask", **task.options)

    yield register_loss("power", factory, title="Power", params=PowerParams, beta="strength")
    METHODS.unregister("power")


def test_a_registered_method_has_its_beta_searched_by_any_training_function(tmp_path, power):
    given, rounds = [], []

    def train(runs, more):  # such as a cluster, which fills the folders
        given.extend(run.path.name for run in runs)
        return execute(runs, more=more)

    plan = {
        **PLAN,
        "methods": ["power", "power:strength=0.2"],
        "betas": ["search", "recipe"],
        "seeds": 1,
        "out": str(tmp_path),
        "recipe": {**SHORT, "epochs": 1},
        "search": {"folds": 2, "start": [1.0, 1.1], "bounds": [1.0, 1.1]},
    }
    found = Study(plan).run(train=train, on_round=lambda key, betas: rounds.append((key, betas)))
    key = ("digits-lt", None, "power")
    assert rounds == [(key, [1.0, 1.1])]
    assert [name[-8:] for name in given[:4]] == ["fold0of2", "fold1of2"] * 2
    betas = [run.recipe.params.strength for run in found]
    assert betas == [0.7, 0.2, found.searches[key].beta]
    assert {cell.title for cell in found.cells} == {f"Power (β = {beta:g})" for beta in betas}
    assert (tmp_path / "search" / "digits-lt-power" / "trace.md").exists()
    (record,) = read_studies(tmp_path)
    assert record.selected["digits-lt-50-power-strength0.7-seed0"] == [Choice("recipe")]
    assert record.selected["digits-lt-50-power-strength0.2-seed0"] == [Choice("given")]


def test_several_studies_are_trained_together_and_recorded_separately(tmp_path):
    calls = []

    def train(runs, more):
        calls.append(len(runs))
        return execute(runs, more=more)

    studies = [
        Study(
            {**PLAN, "methods": [method], "seeds": 1, "out": str(tmp_path / method), "recipe": {**SHORT, "epochs": 1}}
        )
        for method in ("softmax", "balanced-softmax")
    ]
    one, other = run_studies(studies, train=train)
    assert calls == [2]
    assert [cell.method for cell in one.cells + other.cells] == ["softmax", "balanced-softmax"]
    assert [len(read_studies(tmp_path / method)[0].planned) for method in ("softmax", "balanced-softmax")] == [1, 1]


def test_a_study_from_a_file(tmp_path):
    (tmp_path / "my plan.toml").write_text('data = "digits-lt"\nmethods = ["softmax"]\nseeds = 2\n', "utf-8")
    study = Study.from_toml(tmp_path / "my plan.toml")
    assert len(study.plan.runs()) == 2
    assert study.command == f"longtail study '{tmp_path / 'my plan.toml'}'"


def test_comparisons_are_those_of_scipy(results):
    tested = results.compare("softmax", group="tail")
    assert [one.title for one in tested] == ["Balanced Softmax", "CBS (β = 1.5)"]
    values = {cell.method: cell.values(lambda run: run.recall("tail")) for cell in results.cells}
    expected = stats.ttest_rel(values["cbs"], values["softmax"])
    contrast = list(tested)[1]
    assert contrast.difference == pytest.approx(sum(values["cbs"]) / 2 - sum(values["softmax"]) / 2)
    if contrast.found is not None:
        assert contrast.found.p_value == pytest.approx(expected.pvalue)
    assert str(tested).count("\n") == 1
    with pytest.raises(ValueError, match="`reference`"):
        results.compare("focal")
    with pytest.raises(ValueError, match="`group`"):
        results.compare(group="heads")


def test_tables_say_what_is_missing(study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    planned = [path.name for path in study.iterdir() if path.is_dir()]
    write_study(tmp_path / "s", StudyRecord("longtail study y", "softmax", planned=["a", *planned]))
    found = Results.read(tmp_path / "s")
    assert found.table().caption.startswith("1 of 7 planned runs are missing. ")
    assert "against Softmax" in found.table().caption  # as the study recorded
    assert "against CBS" in replace(found, reference="cbs").table().caption
    with pytest.raises(ValueError, match="`what` to be recall or measures"):
        found.table("levle")


def test_a_data_frame_has_a_row_per_run(results):
    pytest.importorskip("pandas")
    frame = results.to_pandas()
    assert len(frame) == 6
    assert list(frame.columns[:5]) == ["data", "imbalance", "method", "beta", "seed"]
    by_method = frame.groupby("method")["recall_all"].mean()
    for cell in results.cells:
        assert by_method[cell.method] == pytest.approx(cell.summary(lambda run: run.recall()).mean)
    assert math.isnan(frame[frame["method"] == "softmax"]["beta"].iloc[0])


def test_a_notebook_shows_the_table_escaped(results):
    shown = results._repr_html_()
    assert "<th>CBS (β = 1.5)</th>" in shown
    assert "p &lt; 0.05" in shown or "No tests" in shown
    assert repr(results).startswith("Results(6 runs, 2 seeds; data sets: digits-lt 50, methods: ")


def test_a_report_is_one_call(results, tmp_path):
    pytest.importorskip("matplotlib")
    runs = tuple(run for run in results if run.method != "balanced-softmax")
    text = replace(results, runs=runs, reference="cbs").report(tmp_path / "page.html").read_text("utf-8")
    assert "against CBS (β = 1.5) (paired t-test" in text
    assert "Balanced Softmax" not in text


def test_what_does_not_exist_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected a folder of runs"):
        Results.read(tmp_path / "nothing")
    with pytest.raises(ValueError, match="finished runs in"):
        Results.read(tmp_path)
    with pytest.raises(ValueError, match="`folders`"):
        Results.read()


def test_the_names_of_the_package_are_imported_on_use():
    import longtail
    from longtail import Results as results_class
    from longtail import Study as study_class
    from longtail import diagnose, evaluate
    from longtail.train import evaluate as evaluate_function

    assert (study_class, results_class, evaluate) == (Study, Results, evaluate_function)
    assert longtail.diagnose is diagnose

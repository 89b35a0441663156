"""Which method to use: one sentence for each way in which a comparison can end."""

import re

import pytest
import scipy

from longtail.losses import FocalLoss
from longtail.methods import METHODS, register_loss
from longtail.study.decision import decide
from longtail.study.runs import group_runs

LOW, HIGH = (70.0, 70.5, 71.2), (78.1, 78.3, 79.2)
NEAR = (78.4, 78.0, 79.3)  # not clearly different from HIGH
REFERENCE = "balanced-softmax"


@pytest.fixture
def cells(made):
    """Return cells of methods with these recalls over all classes, one per seed."""

    def make(recalls, *, underfitted=(), split="test"):
        runs = []
        for method, values in recalls.items():
            for seed, value in enumerate(values):
                run = made(method, seed, (90.0, 80.0, 70.0, value))
                splits = run.result["splits"]
                if (method, seed) in underfitted or method in underfitted:
                    splits["test"]["unpredicted_classes"] = list(range(6))
                    splits[run.trained]["recall"]["all"] = 0.25
                else:
                    splits["test"]["unpredicted_classes"] = []
                if split != "test":
                    splits["val"] = splits.pop("test")
                    run.result["preference_val"] = run.result.pop("preference_test")
                runs.append(run)
        return group_runs(runs)

    return make


def decided(cells):
    found = decide(cells, REFERENCE)
    return found.cell and found.cell.method, str(found)


def test_a_clear_winner_has_its_difference_and_interval(cells):
    method, text = decided(cells({"softmax": LOW, "balanced-softmax": LOW[::-1], "cbs": HIGH}))
    assert method == "cbs"
    assert text.startswith("Use CBS (β = 1.8): recall over all classes 78.5 % on test data, 8.0 points above Softmax (")
    assert "points above Balanced Softmax (95 % interval " in text  # both others are clearly below
    assert "No clear difference" not in text
    assert "seeds" not in text


def test_of_two_without_a_difference_the_simpler_is_used(cells):
    method, text = decided(cells({"softmax": LOW, "balanced-softmax": HIGH, "cbs": NEAR}))
    assert method == "balanced-softmax"
    assert text.startswith("Keep Balanced Softmax for now: ")
    assert "points above Softmax (95 % interval" in text
    assert "No clear difference from CBS (β = 1.8) (+0.0 points, 95 % interval " in text
    assert text.endswith("Balanced Softmax is simpler than CBS (β = 1.8). 3 seeds: run at least 5 to separate them.")
    five = {"balanced-softmax": (*HIGH, 78.0, 78.9), "cbs": (*NEAR, 78.4, 78.7)}
    _, text = decided(cells(five))
    assert text.startswith("Use Balanced Softmax: ")
    assert text.endswith("Balanced Softmax is simpler than CBS (β = 1.8).")


def test_the_simplest_method_wins_if_it_is_not_lower(cells):
    assert decided(cells({"softmax": HIGH, "balanced-softmax": LOW, "cbs": LOW[::-1]}))[0] == "softmax"
    assert decided(cells({"softmax": NEAR, "balanced-softmax": HIGH}))[0] == "softmax"
    lower = tuple(value - 0.1 for value in NEAR)
    assert decided(cells({"softmax": lower, "balanced-softmax": HIGH}))[0] == "balanced-softmax"


def test_a_large_difference_that_is_not_significant_does_not_recommend_the_lower(cells):
    method, text = decided(cells({"softmax": (57.0, 61.0, 70.0), "balanced-softmax": (79.0, 73.0, 72.0)}))
    assert method == "balanced-softmax"
    assert "No clear difference from Softmax (-12.0 points, 95 % interval " in text


def test_the_interval_is_that_of_scipy(cells):
    from scipy.stats import ttest_rel

    low, high = ttest_rel(HIGH, LOW).confidence_interval(0.95)
    _, text = decided(cells({"balanced-softmax": LOW, "cbs": HIGH}))
    assert f"above Balanced Softmax (95 % interval {low:.1f} to {high:.1f})." in text


def test_one_seed_is_no_test(cells):
    method, text = decided(cells({"balanced-softmax": LOW[:1], "cbs": HIGH[:1]}))
    assert method is None
    assert text == (
        "CBS (β = 1.8) has the highest recall over all classes, 78.1 % on test data, 8.1 points above Balanced "
        "Softmax, but there is no test: fewer than two seeds. Run at least 5 seeds before choosing."
    )


def test_one_method_has_nothing_to_compare_with(cells):
    _, text = decided(cells({"cbs": HIGH}))
    assert text.startswith("Only CBS (β = 1.8) was run: recall over all classes 78.5 % on test data.")


def test_a_plugin_is_not_simpler_than_a_built_in_method(cells):
    """It has no parameters, as Balanced Softmax, and its loss is unknown."""
    register_loss("mine", lambda task: FocalLoss(2.0, **task.options), title="Mine")
    try:
        method, text = decided(cells({"balanced-softmax": HIGH, "mine": tuple(value + 0.1 for value in NEAR)}))
    finally:
        METHODS.unregister("mine")
    assert method == "balanced-softmax"
    assert "No clear difference from Mine (+0." in text


def test_underfitted_models_are_never_recommended(cells):
    recalls = {"softmax": LOW, "balanced-softmax": LOW[::-1], "cbs": HIGH}
    method, text = decided(cells(recalls, underfitted=["cbs"]))
    assert method == "softmax"  # as good as Balanced Softmax here, and simpler
    said = "CBS (β = 1.8) predicts 4 of 10 classes and has 25.0 % recall on training data"
    assert f"Left out, because most runs are underfitted: {said}: underfitted (seed 0; 3 of 3 runs are" in text
    method, text = decided(cells(recalls, underfitted=["cbs", "softmax"]))
    assert method == "balanced-softmax"
    assert text.startswith("Use Balanced Softmax: it is the only method that is not underfitted; recall over all")
    _, text = decided(cells({"softmax": LOW[:1], "cbs": HIGH[:1]}, underfitted=["cbs"]))
    assert " 1 seed: run at least 5 before choosing." in text
    method, text = decided(cells(recalls, underfitted=recalls))
    assert method is None
    assert text.startswith("No method is recommended: all 3 are underfitted: ")
    assert text.endswith("Train for more epochs.")


@pytest.mark.parametrize(("seeds", "left_out"), [([0], False), ([0, 1], True)])
def test_more_than_half_of_the_runs_decide_whether_a_method_is_left_out(cells, seeds, left_out):
    recalls = {"balanced-softmax": LOW, "cbs": HIGH}
    method, text = decided(cells(recalls, underfitted=[("cbs", seed) for seed in seeds]))
    assert method == ("balanced-softmax" if left_out else "cbs")
    assert ("1 of its 3 runs is underfitted; the mean includes all runs." in text) != left_out
    assert ("Left out, because most runs are underfitted: CBS (β = 1.8) predicts 4" in text) == left_out


def test_without_test_data_it_is_measured_on_validation_data(cells):
    _, text = decided(cells({"balanced-softmax": LOW, "cbs": HIGH}, split="val"))
    assert "78.5 % on validation data (there is no test data), 8.0 points" in text
    only = cells({"cbs": HIGH})
    for run in only[0].runs:
        run.result["splits"].pop("test")
    assert decided(only) == (None, "No method is recommended: there is neither test nor validation data.")


def test_an_interval_without_zero_that_is_not_significant_has_its_p_value(cells):
    recalls = {"softmax": (70.0, 71.0, 74.0), "balanced-softmax": (75.0, 78.5, 78.0)}
    recalls |= {"cbs": (75.1, 78.4, 78.1), "focal": (75.0, 78.6, 78.0), "crt": (75.1, 78.6, 78.1)}
    _, text = decided(cells(recalls))
    found = re.search(r"Softmax \(-5.5 points, 95 % interval (-[\d.]+) to (-[\d.]+), but p = 0\.\d+ after Holm\)", text)
    assert found, text
    assert float(found[2]) < 0


def test_a_better_tail_is_said_although_another_method_is_recommended(cells):
    found = cells({"softmax": NEAR, "cbs": HIGH})
    for cell, tails in zip(found, ((0.40, 0.41, 0.43), (0.50, 0.53, 0.52)), strict=True):
        for run, tail in zip(cell.runs, tails if cell.method == "cbs" else (0.40, 0.41, 0.43), strict=True):
            run.result["splits"]["test"]["recall"]["tail"] = tail
    method, text = decided(found)
    low, high = scipy.stats.ttest_rel((50, 53, 52), (40, 41, 43)).confidence_interval()
    assert method == "softmax"
    assert f"In the tail, CBS (β = 1.8) is better by 10.3 points (95 % interval {low:.1f} to {high:.1f})." in text
    for run in found[1].runs:
        run.result["splits"]["test"]["recall"]["tail"] = 0.41
    assert "In the tail" not in decided(found)[1]


def test_the_accuracy_that_it_costs_is_said(cells):
    found = cells({"softmax": LOW, "balanced-softmax": HIGH})
    for cell, accuracy in zip(found, (0.95, 0.80), strict=True):
        for run in cell.runs:
            run.result["splits"]["test"]["accuracy"] = accuracy if cell.method == "softmax" else 0.80
    _, text = decided(found)
    assert text.endswith("Its accuracy is 80.0 %, that of Softmax 95.0 %.")
    for run in found[0].runs:
        run.result["splits"]["test"]["accuracy"] = 0.805
    assert "accuracy is" not in decided(found)[1]

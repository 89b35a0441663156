"""Finished runs and cells: only runs that differ in nothing but their seed are averaged."""

import json
import math
import shutil
from dataclasses import replace

import pytest
from scipy import stats
from tests.study.conftest import compare_cells

from longtail._io import write_json
from longtail.study.comparisons import check_reference, contrasts_of, how_tested, stars
from longtail.study.runs import (
    Run,
    distinct_titles,
    group_runs,
    one_cell,
    ordered,
    read_run,
    read_runs,
    same_settings,
)
from longtail.train import RunFolder
from longtail.train.recipe import differing_settings, settings_of


def test_folders_are_read(study):
    runs = read_runs(study)
    assert len(runs) == 6
    one = next(run for run in runs if run.recipe.method == "cbs" and run.recipe.seed == 1)
    kept = RunFolder(one.path).result()
    assert one.recall() == 100 * kept["splits"]["test"]["recall"]["all"]
    assert one.recall("tail", "train") == 100 * kept["splits"]["train"]["recall"]["tail"]
    assert one.shift("tail") == kept["splits"]["train"]["probability_shift"]["tail"]
    assert one.gradient_balance("head") == kept["splits"]["train"]["gradient_balance"]["weight"]["head"]
    assert math.isnan(one.recall("all", "val"))  # there is none
    assert [line["epoch"] for line in one.log()] == [0, 1]
    assert (one.method, one.data) == ("cbs", "digits-lt 50")


def test_runs_of_an_unknown_method_are_read(study, tmp_path):
    shutil.copytree(study, tmp_path / "runs")
    _rename_softmax(tmp_path / "runs")
    cells = ordered(group_runs(read_runs(tmp_path / "runs")))
    assert distinct_titles(cells) == ["Balanced Softmax", "CBS (β = 1.5)", "Mine (β = 0.5)"]  # the unknown last
    assert cells[2].beta == 0.5
    result = cells[2].runs[0].result
    del result["label"], result["beta"]  # as in a run of an earlier version
    assert (cells[2].title, cells[2].beta) == ("mine", None)
    assert same_settings(cells) == [cells]
    assert cells[2].recipe.params.gamma == 0.5
    known = cells[0].runs[0].path / "recipe.toml"
    known.write_text(
        known.read_text("utf-8").replace('method = "balanced-softmax"', 'method = "cbs"\nbeta = -1'), "utf-8"
    )
    with pytest.raises(ValueError, match="Expected `beta` to be"):
        read_runs(tmp_path / "runs")  # those of a known method are checked


def _rename_softmax(folder):
    """Make the runs of softmax runs of a method that is not registered."""
    for file in folder.glob("*-softmax-seed*/recipe.toml"):
        if "balanced" not in file.parent.name:
            text = file.read_text("utf-8")
            file.write_text(text.replace('method = "softmax"', 'method = "mine"\ngamma = 0.5'), "utf-8")
            result = file.with_name("result.json")
            recorded = json.loads(result.read_text("utf-8")) | {"label": "Mine (β = 0.5)", "beta": 0.5}
            result.write_text(json.dumps(recorded), "utf-8")


def test_the_same_folder_twice_is_one_run(study):
    assert len(read_runs(study, study / "digits-lt-50-softmax-seed0")) == 6


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^Expected a folder of runs, but .* does not exist\.$"):
        read_runs(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"recipe\.toml"):
        read_run(tmp_path)
    assert read_runs(tmp_path) == []


def test_a_log_or_a_result_of_another_shape_is_refused(study, tmp_path):
    shutil.copytree(study / "digits-lt-50-softmax-seed0", tmp_path / "run")
    log, result = tmp_path / "run" / "log.jsonl", tmp_path / "run" / "result.json"
    run = read_run(tmp_path / "run")
    for line in ('{"recall": {"test": {"head": "x"}}}', "[1]", '{"auto_beta": 3}'):
        log.write_text(line + "\n")
        with pytest.raises(ValueError, match=r"log\.jsonl: Expected"):
            run.log()
    content = json.loads(result.read_text())
    del content["splits"]["test"]["recall"]["all"]
    result.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"result\.json: Expected `recall` to have `all`"):
        read_run(tmp_path / "run")


def test_runs_are_grouped_by_everything_except_their_seed(study, made):
    cells = ordered(group_runs(read_runs(study)))
    assert [(cell.method, cell.seeds) for cell in cells] == [
        ("softmax", (0, 1)),
        ("balanced-softmax", (0, 1)),
        ("cbs", (0, 1)),
    ]
    assert cells[2].title == "CBS (β = 1.5)"
    assert cells[2].groups == ("head", "medium", "tail")
    several = group_runs(
        [made(seed=1), made(seed=0), made(beta=1.2), made(seed=0, imbalance=10), made(seed=0, lr=0.05)]
    )
    assert [(cell.recipe.beta, cell.data, cell.seeds) for cell in several] == [
        (1.8, "C10-LT100", (0, 1)),
        (1.2, "C10-LT100", (0,)),
        (1.6, "C10-LT10", (0,)),
        (1.8, "C10-LT100", (0,)),
    ]


def test_runs_that_differ_are_never_averaged(made):
    with pytest.raises(
        ValueError, match=r"^Expected runs of the same settings to average, but .* differ in .*\.$"
    ) as e:
        one_cell([made(seed=0), made(seed=1, weight_decay=2e-4, epochs=90)])
    assert "`epochs` ((200,) and (90,))" in str(e.value)
    assert "`weight_decay` (0.0005 and 0.0002)" in str(e.value)
    with pytest.raises(ValueError, match="`train_stats`"):
        one_cell([made(seed=0), made(seed=1, train_stats="eval")])
    with pytest.raises(ValueError, match="`subset_seed`"):
        one_cell([made(seed=0, subset_seed="run"), made(seed=1, subset_seed=0)])
    with pytest.raises(ValueError, match="both have seed 3"):
        one_cell([made(seed=3), made(seed=3)])
    with pytest.raises(ValueError, match="but got none"):
        one_cell([])


def test_subsets_drawn_with_the_runs_seed_are_one_setting(made):
    cell = one_cell(made(seed=seed, subset_seed="run") for seed in (2, 0, 1))
    assert cell.seeds == (0, 1, 2)


def test_milestones_in_epochs_and_as_shares_are_the_same_setting(made):
    runs = [made("softmax", 0, milestones=(160, 180)), made("softmax", 1, milestones=(0.8, 0.9))]
    assert [cell.seeds for cell in group_runs(runs)] == [(0, 1)]
    assert differing_settings(settings_of(runs[0].recipe), settings_of(replace(runs[1].recipe, seed=0))) == []
    assert len(group_runs([*runs, made("softmax", 2, milestones=(0.5, 0.9))])) == 2


def test_cells_with_the_same_title_show_the_settings_in_which_they_differ(made):
    cells = group_runs([made(), made(lr=0.05), made("softmax"), made(lr=0.05, epochs=90)])
    assert distinct_titles(cells) == [
        "CBS (β = 1.8), epochs 200, lr 0.1",
        "CBS (β = 1.8), epochs 200, lr 0.05",
        "Softmax, epochs 200, lr 0.1",
        "CBS (β = 1.8), epochs 90, lr 0.05",
    ]
    cells = group_runs([made("focal", gamma=1.0), made("focal", gamma=2.0), made("softmax"), made("tau-norm", tau=0.5)])
    assert distinct_titles(cells) == ["Focal loss, gamma 1", "Focal loss, gamma 2", "Softmax", "τ-norm"]
    cells = group_runs([made("softmax"), made("softmax", validation=0.1, nesterov=True)])
    assert distinct_titles(cells) == ["Softmax", "Softmax, validation 0.1, nesterov"]
    cells = group_runs([made("focal", 0, gamma=0.0), made("focal", 0, gamma=2.0)])
    assert distinct_titles(cells) == ["Focal loss, gamma 0", "Focal loss, gamma 2"]


def test_methods_are_compared_within_their_settings(made):
    """Special settings of a method in the recipe do not matter; other epochs do."""
    cells = group_runs([made("softmax"), made("bcl"), made("ldam-drw"), made("crt"), made("cbs", epochs=90)])
    assert cells[1].recipe.batch_size != cells[0].recipe.batch_size
    assert [[cell.method for cell in group] for group in same_settings(cells)] == [
        ["softmax", "bcl", "ldam-drw", "crt"],
        ["cbs"],
    ]
    other = group_runs([made("softmax"), made("bcl", batch_size=64), made("ldam-drw", weight_decay=1e-3)])
    assert len(same_settings(other)) == 3


def test_device_and_workers_are_not_settings_of_a_cell(made):
    assert len(one_cell([made(seed=0, device="cpu"), made(seed=1, device="cuda:1", workers=9, root="/x")]).runs) == 2


def test_folds_are_averaged_only_on_request(made):
    runs = [made(seed=0, folds=3, fold=fold) for fold in range(3)]
    with pytest.raises(ValueError, match="`fold`"):
        one_cell(runs)
    assert one_cell(runs, over_folds=True).places == ((0, 0), (0, 1), (0, 2))


def cell_of(made, method, values, **more):
    return one_cell(made(method, seed, (value, value, value, value), **more) for seed, value in enumerate(values))


def test_methods_of_one_study_are_paired_by_seed(made):
    reference = cell_of(made, "balanced-softmax", (78.0, 80.0, 82.0))
    cbs = cell_of(made, "cbs", (80.0, 82.1, 83.9))
    (found,) = compare_cells([reference, cbs], reference)
    assert found.found.paired
    assert found.corrected is None
    assert str(found) == (
        "CBS (β = 1.8) is better than Balanced Softmax by 2.0 points, 95 % interval 1.8 to 2.2, p = 0.0008 "
        "(paired t-test), n = 3."
    )
    assert stars(found.p_value) == "***"
    other = one_cell(made("cbs", seed + 5, (80.0,) * 4) for seed in range(3))
    (unpaired,) = compare_cells([other], reference)
    assert not unpaired.found.paired
    assert "Welch" in how_tested([unpaired])
    assert str(unpaired).endswith("n = 3 (fewer than three seeds in common).")


def test_shared_seeds_are_paired_and_the_others_left_out(made):
    theirs, ours = {0: 78.0, 1: 80.0, 2: 82.5, 3: 70.0}, {1: 81.0, 2: 84.4, 3: 71.7, 7: 99.0, 8: 98.0}
    reference = one_cell(made("balanced-softmax", seed, (value,) * 4) for seed, value in theirs.items())
    cell = one_cell(made("cbs", seed, (value,) * 4) for seed, value in ours.items())
    (found,) = compare_cells([cell], reference)
    expected = stats.ttest_rel([81.0, 84.4, 71.7], [80.0, 82.5, 70.0])
    assert found.found.p_value == pytest.approx(expected.pvalue)
    assert found.found.difference == pytest.approx((1.0 + 1.9 + 1.7) / 3)
    assert (found.found.low, found.found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.found.runs == (3, 3)
    assert str(found).endswith("(paired t-test), n = 3 (paired on seeds 1…3; 3 runs not paired).")
    assert how_tested([found, found]).endswith("; CBS (β = 1.8): paired on seeds 1…3; 3 runs not paired.")
    one_shared = one_cell(made("cbs", seed, (value,) * 4) for seed, value in {3: 71.7, 7: 99.0, 8: 98.0}.items())
    (welch,) = compare_cells([one_shared], reference)
    expected = stats.ttest_ind([71.7, 99.0, 98.0], list(theirs.values()), equal_var=False)
    assert welch.found.p_value == pytest.approx(expected.pvalue)
    assert str(welch).endswith("n = 3 and 4 (fewer than three seeds in common).")
    two_shared = one_cell(made("cbs", seed, (value,) * 4) for seed, value in {2: 84.4, 3: 71.7}.items())
    (welch,) = compare_cells([two_shared], reference)
    expected = stats.ttest_ind([84.4, 71.7], list(theirs.values()), equal_var=False)
    assert welch.found.p_value == pytest.approx(expected.pvalue)


def test_each_setting_has_its_own_reference_and_correction(made):
    """Two folders with other epochs: never one family, never one reference."""

    def runs(method, epochs, values):
        return [made(method, seed, (value,) * 4, epochs=epochs) for seed, value in enumerate(values)]

    rows = {
        ("balanced-softmax", 8): (70.0, 72.0, 71.0),
        ("softmax", 8): (66.0, 67.5, 68.0),
        ("cbs", 8): (71.0, 73.5, 72.4),
        ("balanced-softmax", 20): (80.0, 82.0, 81.0),
        ("softmax", 20): (75.0, 76.0, 77.9),
        ("cbs", 90): (99.0, 98.0, 97.0),
    }
    found = contrasts_of(
        group_runs(run for (method, epochs), values in rows.items() for run in runs(method, epochs, values)),
        "balanced-softmax",
    )
    by_title = {one.title: one for one in found.contrasts}
    p = {}
    for (method, epochs), values in rows.items():
        if (method, epochs) in {("softmax", 8), ("cbs", 8), ("softmax", 20)}:
            p[method, epochs] = stats.ttest_rel(values, rows["balanced-softmax", epochs]).pvalue
    lower, higher = sorted((p["softmax", 8], p["cbs", 8]))
    of_eight = {by_title["Softmax, epochs 8"].corrected, by_title["CBS (β = 1.8), epochs 8"].corrected}
    assert sorted(of_eight) == pytest.approx(sorted({2 * lower, max(2 * lower, higher)}))
    alone = by_title["Softmax, epochs 20"]
    assert (alone.corrected, alone.found.p_value) == (None, pytest.approx(p["softmax", 20]))
    assert alone.against == "Balanced Softmax, epochs 20"
    assert str(alone).startswith("Softmax, epochs 20 is worse than Balanced Softmax, epochs 20 by 4.7 points")
    assert found.without == (
        "CBS (β = 1.8), epochs 90 on C10-LT100: not tested, Balanced Softmax was not run with these settings.",
    )


def test_a_reference_that_was_not_run_is_named_or_refused(made):
    cells = group_runs([made("softmax"), made("cbs")])
    found = contrasts_of(cells, "balanced-softmax")
    assert (found.contrasts, found.without) == ((), ("C10-LT100: not tested, Balanced Softmax was not run.",))
    assert contrasts_of(cells[:1], "balanced-softmax").without == ()  # nothing to compare
    with pytest.raises(
        ValueError, match=r"^Expected `reference` to be a method that was run \(softmax, cbs\), but got 'bs'\.$"
    ):
        check_reference("bs", cells)


def test_a_reference_can_have_parameters(made):
    cells = group_runs([made("focal", gamma=gamma, seed=seed) for gamma in (1.0, 2.0) for seed in (0, 1)])
    (found,) = contrasts_of(cells, "focal:gamma=2")
    assert found.against == "Focal loss, gamma 2"
    with pytest.raises(ValueError, match="`reference`"):
        check_reference("focal:gamma=3", cells)


def test_several_comparisons_are_corrected(made):
    reference = cell_of(made, "balanced-softmax", (78.0, 80.0, 82.0))
    cells = [cell_of(made, "cbs", (80.0, 82.1, 83.9)), cell_of(made, "softmax", (70.0, 75.0, 71.0))]
    found = compare_cells(cells, reference)
    assert found[0].corrected == pytest.approx(2 * found[0].found.p_value)
    assert "Holm" in how_tested(found)


def test_fewer_than_two_seeds_are_not_tested(made):
    (found,) = compare_cells([cell_of(made, "cbs", (82.0,))], cell_of(made, "balanced-softmax", (80.0,)))
    assert found.found is None
    assert str(found) == "CBS (β = 1.8) is 2.0 points above Balanced Softmax: fewer than two seeds, so no test."
    assert stars(found.p_value) == ""
    assert how_tested([found]) == "No tests: fewer than two seeds."


def test_an_undefined_level_is_not_tested(made):
    reference = cell_of(made, "balanced-softmax", (80.0, 81.0))
    (found,) = compare_cells([one_cell([made(seed=0, level=None), made(seed=1)])], reference, Run.level)
    assert str(found) == "CBS (β = 1.8) is not compared with Balanced Softmax: a value is undefined, so no test."


def test_methods_on_different_data_are_not_compared(made):
    cells = [cell_of(made, "cbs", (1.0, 2.0), imbalance=10), cell_of(made, "balanced-softmax", (1.0, 2.0))]
    found = contrasts_of(cells, "balanced-softmax")
    assert (len(found), len(found.without)) == (0, 1)


def test_a_result_that_does_not_fit_together_is_refused(a_result, tmp_path):
    wrong = [
        {"classes": a_result["classes"][:-2]},
        {"counts": a_result["counts"][:-1]},
        {"groups": a_result["groups"] | {"tail": [10**12]}},
        {"train_stats": "x"},
        {"splits": {"test": a_result["splits"]["test"] | {"recall_per_class": [0.5]}}},
        {"splits": {"test": a_result["splits"]["test"] | {"recall": {"all": "x"}}}},
    ]
    folder = RunFolder(tmp_path)
    for changes in ({}, *wrong):
        write_json(folder.result_file, a_result | changes)
        if not changes:
            assert folder.result() == a_result
        else:
            with pytest.raises(ValueError, match=r"result\.json: Expected"):
                folder.result()

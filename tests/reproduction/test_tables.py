"""Our tables beside the paper's numbers."""

import math

import pytest
from scipy import stats

from longtail.study.rendering import to_markdown
from longtail.study.runs import group_runs, one_cell
from longtail.study.stats import Summary
from reproduction.lvis import register
from reproduction.paper import gradient_balance
from reproduction.tables import (
    balanced_shift_table,
    gradient_table,
    level_table_beside_authors,
    paper_table,
    shift_table,
)

BS = [(92.0, 75.0, 71.0, 78.5), (92.5, 76.0, 72.0, 79.2), (92.3, 75.5, 71.5, 78.8)]
CBS = [(87.0, 74.0, 81.0, 80.9), (87.9, 75.2, 82.1, 81.7), (87.5, 74.6, 81.5, 81.2)]


@pytest.fixture
def cells(made):
    runs = [made("balanced-softmax", seed, row, level=21.0 + seed) for seed, row in enumerate(BS)]
    return group_runs([*runs, *(made("cbs", seed, row, level=12.0 + seed) for seed, row in enumerate(CBS))])


def test_recall_beside_the_paper_has_differences_and_tests(cells, made):
    row = next(row for row in paper_table(cells).rows if row.labels == ("C10-LT100", "CBS (β = 1.8)", "all"))
    here, paper, difference, sds, p_value = row.values
    assert (paper.summary.mean, paper.summary.sd, paper.summary.runs) == (81.43, 0.24, 5)
    assert difference.summary.mean == pytest.approx(here.summary.mean - 81.43)
    assert sds.summary.mean == pytest.approx((here.summary.mean - 81.43) / 0.24)
    ours = [row[3] for row in CBS]
    sd = (sum((v - sum(ours) / 3) ** 2 for v in ours) / 2) ** 0.5
    expected = stats.ttest_ind_from_stats(sum(ours) / 3, sd, 3, 81.43, 0.24, 5, equal_var=False).pvalue
    assert p_value.summary.mean == pytest.approx(expected)
    with pytest.raises(ValueError, match="that the paper has"):
        paper_table([one_cell([made(data="digits-lt")])])


def test_more_than_two_of_the_papers_sds_are_marked(made):
    cell = one_cell(made("cbs", seed, (87.0, 74.0, 81.0, 70.0 + seed)) for seed in range(2))
    assert paper_table([cell]).rows[-1].values[3].mark == "!"


def test_on_lvis_a_class_without_test_boxes_counts_as_zero(made):
    register()
    said = "LVIS: a class without a test sample counts as 0 here, as in the paper."
    for data, expected in (("lvis-crops", [40, 20, 10, 24]), ("imagenet-lt", [40, 30, 20, 28])):
        run = made("cbs", 0, (40.0, 30.0, 20.0, 28.0), data=data, imbalance=None)
        zero = {"head": 0.4, "medium": 0.2, "tail": 0.1, "all": 0.24}
        run.result["splits"]["test"]["recall_absent_as_zero"] = zero
        table = paper_table([one_cell([run])])
        assert [row.values[0].summary.mean for row in table.rows] == pytest.approx(expected)
        assert (said in table.caption) == (data == "lvis-crops")


def test_the_papers_ldam_on_large_data_is_ldam_drw(made):
    cells = {name: one_cell([made(name, data="imagenet-lt", imbalance=None)]) for name in ("ldam", "ldam-drw")}
    assert len(paper_table([cells["ldam-drw"]]).rows) == 4
    assert {row.labels[1] for row in paper_table(list(cells.values())).rows} == {"LDAM-DRW"}
    with pytest.raises(ValueError, match="that the paper has"):
        paper_table([cells["ldam"]])


def test_levels_are_beside_the_authors(cells, made):
    table = level_table_beside_authors(cells)
    assert [row.values[0].summary.mean for row in table.rows] == [22.0, 13.0]
    assert [row.values[1].summary.mean for row in table.rows] == [20.96, 12.62]
    assert level_table_beside_authors([one_cell([made(data="digits-lt")])]).columns == ("I",)


def test_gradients_and_shifts_are_above_the_papers(made):
    cells = group_runs([made("softmax"), made("cbs")])
    table = gradient_table(cells)
    assert ["‡" in row.labels[1] for row in table.rows] == [False, True, False, True]
    expected = gradient_balance("C10-LT100")["softmax"]
    assert [value.summary.mean for value in table.rows[1].values] == list(expected.values())
    shifts = shift_table(cells)
    assert ["‡" in row.labels[1] for row in shifts.rows] == [False, True, False]  # the paper has softmax only
    assert [value.summary.mean for value in shifts.rows[1].values] == [0.84, -2.5, -20.1]


def test_a_balanced_model_is_beside_the_paper(made):
    cell = one_cell([made("softmax", data="cifar10", imbalance=None)])
    values = zip(("head", "medium", "tail"), (-10.0, 20.0, 300.0), strict=True)
    shift = {group: Summary(value, math.nan, 1) for group, value in values}
    table = balanced_shift_table({"digits-lt 50": shift, "C10-LT100": shift}, [cell])
    assert ["‡" in row.labels[1] for row in table.rows] == [False, False, True]
    assert [value.summary.mean for value in table.rows[2].values] == [-17.21, 39.93, 501.08]


def test_a_row_without_a_gradient_is_explained(made):
    known, unknown = made("cbs"), made("focal")
    for split in unknown.result["splits"].values():
        split.pop("gradient_balance", None)
    assert "A row without values:" in gradient_table(group_runs([known, unknown])).caption
    assert "A row without values:" not in gradient_table(group_runs([known])).caption


def test_a_balance_with_almost_no_reward_is_short_and_explained(cells):
    for run, balance in zip(cells[0].runs, (-1.1e32, 100.0, 100.0), strict=True):
        run.result["splits"]["train_paper"]["gradient_balance"]["weight"] |= {"head": balance, "tail": -205910.5}
    table = gradient_table(cells[:1])
    ours = to_markdown(table).splitlines()[4].split(" | ")
    assert (ours[2], ours[4]) == ("-3.7e31 ± 6.4e31", "-205910.50 ± 0.00 |")
    assert "million per cent" in table.caption
    assert "million per cent" not in gradient_table(cells[1:]).caption


def test_training_recall_without_the_last_batch_is_noted(made):
    runs = [made("cbs", seed) for seed in (0, 1)]
    assert "incomplete batch" not in level_table_beside_authors(group_runs(runs)).caption
    runs[1].result["splits"]["train_paper"]["samples"] = 12288
    note = "without the last, incomplete batch: CBS (β = 1.8), seed 1 (12,288 of 12,406 images)."
    assert note in level_table_beside_authors(group_runs(runs)).caption

"""Tables: what is in them, what is bold and starred, and every way to write them."""

import csv
import io
import math
from dataclasses import replace

import pytest
from rich.console import Console
from scipy import stats

from longtail.study.rendering import Row, Table, Value, print_table, to_csv, to_html, to_markdown
from longtail.study.runs import group_runs
from longtail.study.stats import Summary
from longtail.study.tables import measures_table, sensitivity_table
from longtail.study.tables import recall_table as plain_recall_table

BS = [(92.0, 75.0, 71.0, 78.5), (92.5, 76.0, 72.0, 79.2), (92.3, 75.5, 71.5, 78.8)]
CBS = [(87.0, 74.0, 81.0, 80.9), (87.9, 75.2, 82.1, 81.7), (87.5, 74.6, 81.5, 81.2)]


def recall_table(cells, **options):
    """The table with tests against Balanced Softmax."""
    return plain_recall_table(cells, **{"reference": "balanced-softmax", **options})


@pytest.fixture
def cells(made):
    runs = [made("balanced-softmax", seed, row, subset_seed="run", level=21.0 + seed) for seed, row in enumerate(BS)]
    runs += [made("cbs", seed, row, subset_seed="run", level=12.0 + seed) for seed, row in enumerate(CBS)]
    return group_runs(runs)


def test_recall_has_means_bold_and_stars(cells):
    table = recall_table(cells, selected="β as in the paper", command="longtail study x.toml")
    assert table.columns == ("Head", "Medium", "Tail", "All")
    theirs, ours = table.rows
    assert (theirs.labels, ours.labels) == (("C10-LT100", "Balanced Softmax"), ("C10-LT100", "CBS (β = 1.8)"))
    assert ours.values[3].summary.mean == pytest.approx((80.9 + 81.7 + 81.2) / 3)
    assert [value.best for value in ours.values] == [False, False, True, True]
    p_value = stats.ttest_rel([row[3] for row in CBS], [row[3] for row in BS]).pvalue
    assert ours.values[3].mark == "*" * sum(p_value < bound for bound in (0.05, 0.01, 0.001)) != ""
    assert theirs.values[3].mark == ""
    for part in (
        "seeds 0…2",
        "6 runs",
        "200 epochs",
        "last epoch",
        "head/medium/tail of 3/3/4 classes",
        "in training mode with augmentation",
        "drawn with the seed of each run",
        "β as in the paper",
        "paired t-test, two-sided",
        "Command: longtail study x.toml",
    ):
        assert part in table.full_caption, part


def test_one_seed_has_no_spread_and_no_test(made):
    table = recall_table(group_runs([made("balanced-softmax"), made("cbs")]))
    assert "No tests: fewer than two seeds." in table.full_caption
    assert "One run each, seed 0" in table.full_caption
    assert "±" not in to_markdown(table).split("Mean")[0].split("One run")[0]


def test_a_method_alone_with_one_seed_says_that_nothing_is_tested(made):
    assert "No tests: fewer than two seeds." in recall_table(group_runs([made("cbs")])).full_caption
    assert "No tests" not in recall_table(group_runs([made("cbs")]), reference=None).full_caption


def test_a_data_set_without_the_reference_is_named(made, cells):
    """One data set has it, the other has not: its rows have no stars, and the caption says why."""
    other = [
        made(name, seed, (70.0 + seed * len(name),) * 4, imbalance=10) for name in ("softmax", "cbs") for seed in (0, 1)
    ]
    table = recall_table([*cells, *group_runs(other)])
    assert "C10-LT10: not tested, Balanced Softmax was not run." in table.full_caption
    assert "against Balanced Softmax (paired" in table.full_caption
    of = {"C10-LT100": "balanced-softmax", "C10-LT10": "softmax"}
    table = recall_table([*cells, *group_runs(other)], reference=lambda shown: of[shown[0].data])
    assert "not tested," not in table.full_caption
    assert "against Softmax or Balanced Softmax (paired" in table.full_caption


def without_test(runs, *, val=True):
    """Runs of data without a test split; their validation recall is eleven points lower than it was."""
    for run in runs:
        found = run.result["splits"].pop("test")
        level = run.result.pop("preference_test")
        if val:
            lower = {name: value - 0.11 for name, value in found["recall"].items()}
            run.result["splits"]["val"] = found | {"recall": lower}
            run.result["preference_val"] = level
    return runs


def test_without_test_data_the_table_shows_validation_data(made):
    runs = without_test([made("balanced-softmax", seed, row, level=20.0) for seed, row in enumerate(BS)])
    runs += without_test([made("cbs", seed, row, level=10.0) for seed, row in enumerate(CBS)])
    table = recall_table(group_runs(runs))
    assert table.title == "Recall on validation data (there is no test data), per cent"
    ours = table.rows[1].values[3]
    assert ours.summary.mean == pytest.approx((80.9 + 81.7 + 81.2) / 3 - 11)
    assert ours.p_value == pytest.approx(stats.ttest_rel([row[3] for row in CBS], [row[3] for row in BS]).pvalue)
    levels = measures_table(group_runs(runs))
    assert levels.title == "Other measures on validation data (there is no test data), per cent"
    assert [row.values[-1].summary.mean for row in levels.rows] == [20.0, 10.0]
    assert "No I" not in levels.caption
    both = recall_table(group_runs([*runs, made("softmax", imbalance=10)]))
    assert both.title == "Recall on test data, per cent"
    assert "C10-LT100: on validation data (there is no test data)." in both.caption
    assert both.rows[-1].values[3].summary.mean == pytest.approx((80.9 + 81.7 + 81.2) / 3 - 11)


def test_without_held_out_data_the_caption_says_so(made):
    cells = group_runs(without_test([made("balanced-softmax"), made("cbs")], val=False))
    assert "C10-LT100: there is neither test nor validation data." in recall_table(cells).caption
    levels = measures_table(cells)
    assert "there is neither test nor validation data" in levels.caption
    assert "zero training recall" not in levels.caption
    assert "nan" not in to_markdown(levels) + to_markdown(recall_table(cells)) + to_csv(recall_table(cells))


def test_the_lowest_level_is_in_bold(cells):
    table = measures_table(cells)
    assert [(row.values[-1].summary.mean, row.values[-1].best) for row in table.rows] == [(22.0, False), (13.0, True)]


def test_other_measures_are_those_of_the_runs_and_unknown_ones_are_explained(made):
    runs = [made("balanced-softmax", seed, level=20.0) for seed in (0, 1)] + [made("cbs", level=10.0)]
    for place, run in enumerate(runs):
        run.result["splits"]["test"] |= {"accuracy": 0.5 + place / 10, "macro_f1": 0.4}
        run.result["splits"][run.trained]["recall"] = {"all": 0.9 + place / 100}
    table = measures_table(group_runs(runs))
    assert table.columns == ("Accuracy", "Macro F1", "Training recall", "I")
    means = [[value.summary.mean for value in row.values] for row in table.rows]
    assert means == [pytest.approx([55.0, 40.0, 90.5, 20.0]), pytest.approx([70.0, 40.0, 92.0, 10.0])]
    assert "unknown" not in table.caption
    assert "Mean ± SD" in table.caption
    assert "Mean ± SD" not in measures_table(group_runs(runs), about=False).caption
    del runs[0].result["splits"]["test"]["macro_f1"]  # of an older version
    table = measures_table(group_runs(runs))
    assert table.text(table.rows[0].values[1]) == "-"
    assert "-: Macro F1 unknown, because runs did not record it." in table.caption


def test_an_undefined_level_is_a_dash(made):
    table = measures_table(group_runs([made("cbs", level=None), made("softmax", level=40.0)]))
    assert math.isnan(table.rows[1].values[-1].summary.mean)
    assert table.text(table.rows[1].values[-1]) == "-"
    assert table.rows[0].values[-1].best


def test_sensitivity_has_a_row_per_beta_and_split_with_the_best_in_bold(made):
    runs = [made("cbs", 0, (90 - 10 * b, 75.0, 60 + 10 * b, 75.0), beta=b, level=30 - b) for b in (1.2, 1.0, 1.1)]
    table = sensitivity_table(group_runs(runs))
    assert [row.labels for row in table.rows] == [
        (b, split) for b in ("1", "1.1", "1.2") for split in ("train", "test")
    ]
    assert table.columns == ("Head", "Medium", "Tail", "All", "I")
    of_test = [row for row in table.rows if row.labels[1] == "test"]
    assert [row.values[2].best for row in of_test] == [False, False, True]
    assert [row.values[-1].best for row in of_test] == [False, False, True]
    for run in runs:
        run.result["splits"]["val"] = run.result["splits"]["test"]
        run.result["preference_val"] = {"model_imbalance_level": 40 + run.recipe.beta}
    rows = sensitivity_table(group_runs(runs)).rows[:3]
    assert [row.labels for row in rows] == [("1", "train"), ("1", "val"), ("1", "test")]
    assert [row.values[-1] and row.values[-1].summary.mean for row in rows] == [None, 41.0, 29.0]


# --- Ways to write them

TABLE = Table(
    "Recall, 100 %",
    ("Data", "Method"),
    ("All",),
    (
        Row(("A_1", "CBS (β = 1.5)"), (Value(Summary(81.428, 0.2406, 5), best=True, mark="**"),)),
        Row(("A_1", "a|b & c"), (Value(Summary(70.0, math.nan, 1)),)),
        Row(("B", "none"), (None,)),
    ),
    "* p < 0.05; 5 seeds.",
)


def test_markdown():
    assert to_markdown(TABLE).splitlines() == [
        "**Recall, 100 %**",
        "",
        "| Data | Method | All |",
        "| --- | --- | ---: |",
        r"| A_1 | CBS (β = 1.5) | **81.43 ± 0.24**\*\* |",
        r"| A_1 | a\|b & c | 70.00 |",
        "| B | none | - |",
        "",
        r"\* p < 0.05; 5 seeds.",
    ]


def test_csv_is_unrounded():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert float(rows[0]["All mean"]) == 81.428
    assert (rows[0]["All sd"], rows[0]["All runs"], rows[0]["All mark"]) == ("0.2406", "5", "**")
    assert rows[1]["All sd"] == ""
    assert rows[2]["All mean"] == ""


def test_csv_has_p_and_how_beta_was_chosen(cells):
    said = {"cbs": "β chosen on TEST data"}
    table = recall_table(cells, selected=lambda shown: said.get(shown[0].method, ""))
    theirs, ours = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(ours["All p"]) == pytest.approx(
        stats.ttest_rel([row[3] for row in CBS], [row[3] for row in BS]).pvalue
    )
    assert (ours["selected"], theirs["selected"], theirs["All p"]) == ("β chosen on TEST data", "", "")


def test_the_command_is_in_the_caption(cells):
    command = "longtail study --data 'my data' --out runs/a_b"
    assert to_markdown(recall_table(cells, command=command)).endswith(f" Command: `{command}`\n")


def test_captions_repeat_nothing(made):
    """The same method on two data sets, both with images held out."""
    runs = [made("tau-norm", imbalance=factor, validation=0.1) for factor in (10, 100)]
    caption = recall_table(group_runs([*runs, made("softmax")])).full_caption
    assert caption.count("10 % of training samples held out in some rows") == 1
    assert "10 % of training samples held out." in recall_table(group_runs(runs)).full_caption


def test_terminal():
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    print_table(TABLE, console)
    shown = console.file.getvalue()
    assert shown.startswith(TABLE.title)
    assert "81.4±0.2**" in shown
    assert "a|b & c" in shown


def test_a_narrow_terminal_cuts_nothing_off():
    console = Console(width=20, file=io.StringIO(), force_terminal=False)
    print_table(TABLE, console)
    shown = console.file.getvalue()
    assert "81.4±0.2**" in shown
    assert "…" not in shown


def test_a_table_needs_runs():
    with pytest.raises(ValueError, match="runs for a table"):
        recall_table([])


def test_numbers_from_a_million_on_have_a_power_of_ten():
    table = Table("T", ("Data",), ("A",), (), "")
    assert table.text(Value(Summary(999_999.0, 0.5, 2))) == "999999.00 ± 0.50"
    assert table.text(Value(Summary(1e6, 2.5e6, 2))) == "1.0e6 ± 2.5e6"


def test_a_table_in_a_shell_is_short_and_its_html_is_escaped(cells):
    table = replace(recall_table(cells), columns=("<i>", *recall_table(cells).columns[1:]))
    assert str(table) == to_markdown(table)
    assert len(repr(table)) < 120
    assert "<th>&lt;i&gt;</th>" in table._repr_html_()


def test_names_with_bars_are_escaped_in_markdown(cells):
    table = replace(recall_table(cells), columns=("a|b", *recall_table(cells).columns[1:]))
    head, line = to_markdown(table).splitlines()[2:4]
    assert r"| a\|b |" in head
    assert head.replace(r"\|", "").count("|") == line.count("|")


def test_names_cannot_be_formulas_or_control_a_terminal():
    nothing = Value(Summary(-1.5, 0.5, 3))
    table = Table("t", ("Data",), ("a",), (Row(("=cmd\x1b[2J",), (nothing,)),), "c")
    assert list(csv.reader(to_csv(table).splitlines()))[1][:3] == ["'=cmd\\x1b[2J", "", "-1.5"]
    for write in (to_markdown, to_html):
        assert "=cmd\\x1b[2J" in write(table)
        assert "\x1b" not in write(table)

"""What is in the tables of a study: recall, imbalance level, sensitivity to beta."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, nan

from longtail.study.captions import NO_DATA, caption_of, measured_on
from longtail.study.comparisons import Contrast, Reference, contrasts_of, how_tested, marks
from longtail.study.rendering import TESTED, Row, Table, Value
from longtail.study.runs import (
    HELD_WORDS,
    Cell,
    Measure,
    Run,
    by_data,
    distinct_titles,
    groups_of,
    held_out,
)
from longtail.study.stats import Alternative


def recall_table(
    cells: Sequence[Cell],
    *,
    reference: Reference | None = "balanced-softmax",
    alternative: Alternative = "two-sided",
    selected: str | Callable[[Sequence[Cell]], str] = "",
    command: str = "",
) -> Table:
    """Return recall of each group and over all classes, for each data set and method.

    Recall is measured on test data, or on validation data if a data set has no test data.

    Args:
        cells: of any number of data sets.
        reference: the method that others are tested against, if it was run on the same data with the same settings, or
            a function that returns it for cells; ``None``: no tests.
        alternative: of the tests.
        selected: how beta was chosen, or a function that returns it for cells.
        command: the command that repeats the table.

    Returns:
        a table in per cent, the best in bold, with stars of significance.
    """
    groups = groups_of(cells)
    rows: list[Row] = []
    all_tested: list[Contrast] = []
    without: dict[str, None] = {}
    for data, of_data in by_data(cells).items():
        part = held_out(of_data) or "test"
        of_rows: list[list[Contrast]] = [[] for _ in of_data]
        columns = []
        for group in (*groups, "all"):
            measure: Measure = partial(Run.recall, group=group, part=part)
            tested: dict[Cell, Contrast] = {}
            if reference is not None:
                found = contrasts_of(of_data, reference, measure, alternative=alternative)
                tested = {one.cell: one for one in found.contrasts}
                without |= dict.fromkeys(found.without)
            for place, cell in enumerate(of_data):
                of_rows[place] += [tested[cell]] if cell in tested else []
            columns.append(_column(of_data, measure, max, tested))
        for place, (cell, title) in enumerate(zip(of_data, distinct_titles(of_data), strict=True)):
            row = Row((data, title), tuple(column[place] for column in columns), selected=_chosen(selected, [cell]))
            rows.append(_with_test(row, of_rows[place]))
        all_tested += [one for of_row in of_rows for one in of_row]
    tests = [how_tested(all_tested)] if all_tested else []
    if reference is not None and not all_tested and all(len(cell.runs) < 2 for cell in cells):
        tests = ["No tests: fewer than two seeds."]
    title, note = _measured_on(cells)
    caption = caption_of(cells, selected=_chosen(selected, cells))
    return Table(
        f"Recall on {title}, per cent",
        ("Data", "Method"),
        (*(name.capitalize() for name in groups), "All"),
        tuple(rows),
        " ".join([*tests, *without, *note, caption]),
        command=command,
        tests=True,
    )


def _chosen(selected: str | Callable[[Sequence[Cell]], str], cells: Sequence[Cell]) -> str:
    """How the betas of cells were chosen; empty for cells without a beta."""
    if all(cell.recipe.beta is None for cell in cells):
        return ""
    return selected if isinstance(selected, str) else selected(cells)


def _with_test(row: Row, tested: Sequence[Contrast]) -> Row:
    """A row with its reference and its test, or why there is none."""
    if not tested:
        return row
    found = next((one for one in tested if one.found is not None), None)
    if found is None or found.found is None:
        return replace(row, reference=tested[0].against, test=f"none: {tested[0].why_not}")
    return replace(row, reference=found.against, test="; ".join(filter(None, [found.found.test, found.note])))


def _measured_on(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """What a table's results are measured on, for its title; and one sentence per data set that differs."""
    words = {data: measured_on(of_data) for data, of_data in by_data(cells).items()}
    notes = [f"{data}: {NO_DATA}." for data, of_data in by_data(cells).items() if held_out(of_data) is None]
    if len(set(words.values())) == 1:
        return next(iter(words.values())), notes
    return "test data", [*notes, *(f"{data}: on {on}." for data, on in words.items() if on != "test data")]


def _column(
    cells: Sequence[Cell],
    measure: Measure,
    best: Callable[..., float],
    tested: Mapping[Cell, Contrast],
) -> list[Value]:
    summaries = [cell.summary(measure) for cell in cells]
    top = best((round(one.mean, 2) for one in summaries if not isnan(one.mean)), default=nan)
    values = []
    for cell, one in zip(cells, summaries, strict=True):
        value, test = Value(one, best=len(cells) > 1 and round(one.mean, 2) == top), tested.get(cell)
        if test is not None:
            value = replace(value, mark=marks(test), tested=_numbers(test))
        values.append(value)
    return values


def _numbers(test: Contrast) -> dict[str, float]:
    """A test as numbers; without a test, only the difference."""
    found = test.found
    if found is None:
        return {"difference": test.difference}
    values = (found.p_value, test.p_value, found.difference, found.low, found.high)
    return dict(zip(TESTED, values, strict=True))


def level_table(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> Table:
    """Return the model imbalance level I of each data set and method, the lowest of each data set in bold."""
    rows, undefined, unmeasured = [], False, False
    for data, of_data in by_data(cells).items():
        part = held_out(of_data) or "test"
        values = _column(of_data, partial(Run.level, part=part), min, {})
        rows += [Row((data, title), (value,)) for title, value in zip(distinct_titles(of_data), values, strict=True)]
        missing = [run for cell in of_data for run in cell.runs if isnan(run.level(part))]
        known = [bool(run.result.get(f"preference_{part}")) for run in missing]
        undefined, unmeasured = undefined or any(known), unmeasured or not all(known)
    title, notes = _measured_on(cells)
    if undefined:
        notes.append("No I: in one of the runs a group has zero training recall, so I is undefined.")
    if unmeasured:
        notes.append("No I: a run was not measured on training data or on the data of this table.")
    caption = " ".join([*notes, "Lower is fairer.", caption_of(cells, selected=selected)])
    return Table(f"Model imbalance level on {title}", ("Data", "Method"), ("I",), tuple(rows), caption, command=command)


def sensitivity_table(cells: Sequence[Cell], *, wide: bool = True, selected: str = "", command: str = "") -> Table:
    """Return train, validation and test recall of each group for each beta.

    It has one row per beta, or (not ``wide``) one per beta and split, for a terminal.

    Returns:
        a table in per cent, the best beta of each split and group in bold; I on validation and test data.
    """
    groups = (*groups_of(cells), "all")
    given = sorted(cells, key=lambda cell: (cell.data, cell.recipe.beta or 0.0))
    splits = [name for name in ("train", "val", "test") if name in given[0].runs[0].result["splits"]]
    columns = {
        (split, group): _column(given, partial(_recall, name=split, group=group), max, {})
        for split in splits
        for group in groups
    }
    levels = {split: _column(given, partial(Run.level, part=split), min, {}) for split in splits if split in HELD_WORDS}
    rows = []
    for place, cell in enumerate(given):
        beta = f"{cell.recipe.beta:g}"
        if wide:
            rows.append(Row((beta,), tuple(column[place] for column in (*columns.values(), *levels.values()))))
            continue
        for split in splits:
            values = tuple(columns[split, group][place] for group in groups)
            rows.append(Row((beta, split), (*values, levels[split][place] if split in levels else None)))
    names = (
        tuple(f"{split} {group}" for split, group in columns) if wide else tuple(name.capitalize() for name in groups)
    )
    names += tuple(f"{split} I" for split in levels) if wide else ("I",)
    caption = caption_of(given, selected=selected)
    title = f"Sensitivity to β on {given[0].data}: recall, per cent"
    return Table(title, ("β",) if wide else ("β", "split"), names, tuple(rows), caption, command=command)


def _recall(run: Run, name: str, group: str) -> float:
    return run.recall(group, run.trained if name == "train" else name)  # type: ignore[arg-type]

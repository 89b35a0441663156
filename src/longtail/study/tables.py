"""The tables of a study, recall and imbalance level, from cells of runs; the paper's numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, nan
from typing import Literal

from longtail.study import paper
from longtail.study.captions import NO_DATA, caption_of, measured_on
from longtail.study.comparisons import Contrast, Reference, contrasts_of, how_tested, marks
from longtail.study.runs import (
    HELD_WORDS,
    Cell,
    Measure,
    Run,
    by_data,
    distinct_titles,
    groups_of,
    held_out,
    method_title,
    ordered,
)
from longtail.study.stats import Alternative, Summary, compare_summaries, format_p
from longtail.study.table import Compared, Row, Source, Table, Value

__all__ = [
    "level_table",
    "paper_table",
    "published_recalls",
    "recall_table",
    "sensitivity_table",
]


def recall_table(
    cells: Sequence[Cell],
    *,
    reference: Reference | None = "balanced-softmax",
    beside: Literal["nothing", "quoted", "paper"] = "quoted",
    alternative: Alternative = "two-sided",
    selected: str | Callable[[Sequence[Cell]], str] = "",
    command: str = "",
) -> Table:
    """Recall of each group and over all classes, for each data set and method: on test data, or where a data set has
    none, on validation data.

    Args:
        cells: of any number of data sets.
        reference: the method that others are tested against, where it was run on the same data with the same settings;
            of all, or of any cells; ``None``: no tests.
        beside: rows from elsewhere: those that the paper quotes (CAL, DisA), or all rows of the paper.
        alternative: of the tests.
        selected: how beta was chosen; of all, or of any cells.
        command: what repeats it.

    Returns:
        a table in per cent, the best that was run here in bold, with stars of significance.
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
            if beside == "paper" and part == "test":
                measure = partial(Run.recall_as_published, group=group)
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
        rows += _elsewhere(data, groups, beside)
    if beside == "paper":
        without |= dict.fromkeys(_absent_as_zero(cells))
    told = [how_tested(all_tested)] if all_tested else []
    if reference is not None and not all_tested and all(len(cell.runs) < 2 for cell in cells):
        told = ["No tests: fewer than two seeds."]
    title, note = _on_what(cells)
    caption = caption_of(cells, selected=_chosen(selected, cells))
    return Table(
        f"Recall on {title}, per cent",
        ("Data", "Method"),
        (*(name.capitalize() for name in groups), "All"),
        tuple(rows),
        " ".join([*told, *without, *note, caption]),
        command=command,
        tests=True,
    )


def _chosen(selected: str | Callable[[Sequence[Cell]], str], cells: Sequence[Cell]) -> str:
    """How the betas of cells were chosen; of those without a beta there is nothing to say."""
    if all(cell.recipe.beta is None for cell in cells):
        return ""
    return selected if isinstance(selected, str) else selected(cells)


def _with_test(row: Row, tested: Sequence[Contrast]) -> Row:
    """A row with what it was tested against, and how, or why not."""
    if not tested:
        return row
    found = next((one for one in tested if one.found is not None), None)
    if found is None or found.found is None:
        return replace(row, reference=tested[0].against, test=f"none: {tested[0].why_not}")
    return replace(row, reference=found.against, test="; ".join(filter(None, [found.found.test, found.note])))


def _on_what(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """What a table's results are told of, for its title; and in sentences where data sets differ in it."""
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


def _numbers(test: Contrast) -> Compared:
    """A test as numbers; without one, the difference."""
    if test.found is None:
        return Compared(nan, nan, test.difference, nan, nan)
    return Compared(test.found.p_value, test.p_value, test.found.difference, test.found.low, test.found.high)


def _elsewhere(data: str, groups: Sequence[str], beside: str) -> list[Row]:
    rows = []
    for method, row in paper.recalls(data).items():
        quoted = method in paper.QUOTED
        if beside == "nothing" or (beside == "quoted" and not quoted):
            continue
        values = tuple(Value(found) if (found := row.get(group)) else None for group in (*groups, "all"))
        source: Source = "quoted" if quoted else "paper"
        rows.append(Row((data, method_title(method)), values, source))
    return rows


def paper_table(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> Table:
    """Our recall over all classes and of each group beside the paper's, with the difference in the paper's SDs.

    A difference of more than two of the paper's SDs has an exclamation mark; p is Welch's, two-sided, from both means
    and SDs.
    """
    rows = []
    for cell in ordered(cells):
        theirs = published_recalls(cell)
        for group in (*cell.groups, "all"):
            published = theirs.get(group)
            if published is None:
                continue
            ours = cell.summary(partial(Run.recall_as_published, group=group))
            off = (ours.mean - published.mean) / published.sd if published.sd > 0 else nan
            tested = compare_summaries(ours, published).p_value if min(ours.runs, published.runs) > 1 else nan
            values = (
                Value(ours),
                Value(published),
                Value(Summary(ours.mean - published.mean, nan, 1)),
                Value(Summary(off, nan, 1), mark="!" if abs(off) > 2 else ""),
                Value(Summary(tested, nan, 1), shown="" if isnan(tested) else format_p(tested).removeprefix("= ")),
            )
            rows.append(Row((cell.data, cell.title, group), values))
    if not rows:
        raise ValueError("Expected runs of data sets and methods that the paper has, but got none.")
    caption = " ".join([*_absent_as_zero(cells), caption_of(cells, selected=selected)])
    return Table(
        "Recall on test data beside the paper's, per cent",
        ("Data", "Method", "Group"),
        ("Here", "Paper", "Δ", "in SDs", "p"),
        tuple(rows),
        "Δ: here less paper, in points and in the paper's SDs; ! more than two of them. p: Welch's t-test, two-sided, "
        f"not corrected. {caption}",
        command=command,
    )


def published_recalls(cell: Cell) -> Mapping[str, Summary | None]:
    """The paper's row of a cell's data set and method; on two data sets its LDAM is LDAM-DRW, and it has no other."""
    name = cell.method
    if cell.data in {"ImageNet-LT", "iNaturalist2018"}:
        name = {"ldam-drw": "ldam", "ldam": ""}.get(name, name)
    return paper.recalls(cell.data).get(name, {})


def _absent_as_zero(cells: Sequence[Cell]) -> list[str]:
    """What is to be said of classes without a test sample, where recalls are set beside the paper's."""
    said = "a class without a test sample counts as 0 here, as in the paper"
    return [f"{data}: {said}." for data in by_data(cells) if data in paper.ABSENT_AS_ZERO]


def level_table(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> Table:
    """Model imbalance level I, beside the authors' where they have one; the lowest of each data set in bold.

    On test data, or where a data set has none, on validation data.
    """
    rows, undefined, unmeasured = [], False, False
    beside = any(paper.imbalance_level(data) for data in by_data(cells))
    for data, of_data in by_data(cells).items():
        part = held_out(of_data) or "test"
        theirs = paper.imbalance_level(data) if part == "test" else {}
        values = _column(of_data, partial(Run.level, part=part), min, {})
        for cell, title, value in zip(of_data, distinct_titles(of_data), values, strict=True):
            rows.append(Row((data, title), (value, *((_plain(theirs.get(cell.method)),) if beside else ()))))
        lacking = [run for cell in of_data for run in cell.runs if isnan(run.level(part))]
        known = [bool(run.result.get(f"preference_{part}")) for run in lacking]
        undefined, unmeasured = undefined or any(known), unmeasured or not all(known)
    title, notes = _on_what(cells)
    if undefined:
        notes.append("No I: a group has no training recall at all in one of the runs, which leaves it undefined.")
    if unmeasured:
        notes.append("No I: a run was not measured on both training data and the data of this table.")
    columns = ("I", "I, the authors’") if beside else ("I",)
    caption = " ".join([*notes, "Lower is fairer.", caption_of(cells, selected=selected)])
    return Table(
        f"Model imbalance level on {title}", ("Data", "Method"), columns, tuple(rows), caption, command=command
    )


def _plain(number: float | None) -> Value | None:
    return None if number is None else Value(Summary(number, nan, 1))


def _titles(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.capitalize() for name in groups)


def sensitivity_table(cells: Sequence[Cell], *, wide: bool = True, selected: str = "", command: str = "") -> Table:
    """Train, validation and test recall of each group for each beta, as the paper's for Places-LT.

    Args:
        cells: one a beta.
        wide: one row a beta; otherwise one row a beta and split, for a terminal.
        selected: how beta was chosen, for the caption.
        command: what repeats it, for the caption.

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
    names = tuple(f"{split} {group}" for split, group in columns) if wide else _titles(groups)
    names += tuple(f"{split} I" for split in levels) if wide else ("I",)
    caption = caption_of(given, selected=selected)
    title = f"Sensitivity to β on {given[0].data}: recall, per cent"
    return Table(title, ("β",) if wide else ("β", "split"), names, tuple(rows), caption, command=command)


def _recall(run: Run, name: str, group: str) -> float:
    """Training recall as the run's ``train_stats`` says."""
    return run.recall(group, run.trained if name == "train" else name)  # type: ignore[arg-type]

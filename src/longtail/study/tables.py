"""What is in the tables of a study: recall, imbalance level, sensitivity to beta."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan, nan

from longtail.study.captions import NO_DATA, caption_of, measured_on
from longtail.study.comparisons import Contrast, Reference, contrasts_of, how_tested, stars
from longtail.study.rendering import Row, Table, Value
from longtail.study.runs import HELD_WORDS, Cell, Held, Measure, Run, by_data, distinct_titles, groups_of, held_out

Selected = str | Callable[[Sequence[Cell]], str]
"""How beta was chosen, or a function that returns it for cells."""


def recall_table(
    cells: Sequence[Cell],
    *,
    reference: Reference | None = None,
    selected: Selected = "",
    command: str = "",
) -> Table:
    """Return recall of each group and over all classes in per cent, for each data set and method, the best in bold.

    Recall is measured on test data, or on validation data if a data set has no test data. Methods are tested against
    the reference if it was run on the same data with the same settings.
    """
    groups = groups_of(cells)
    rows: list[Row] = []
    tested: list[Contrast] = []
    without: dict[str, None] = {}
    for data, of_data in by_data(cells).items():
        part = held_out(of_data) or "test"
        columns = []
        for group in (*groups, "all"):
            measure: Measure = partial(Run.recall, group=group, part=part)
            contrasts: dict[Cell, Contrast] = {}
            if reference is not None:
                found = contrasts_of(of_data, reference, measure)
                contrasts = {one.cell: one for one in found}
                without |= dict.fromkeys(found.without)
            tested += contrasts.values()
            columns.append(_column(of_data, measure, max, contrasts))
        for cell, title, *values in zip(of_data, distinct_titles(of_data), *columns, strict=True):
            rows.append(Row((data, title), tuple(values), _selected(selected, [cell])))
    tests = [how_tested(tested)] if tested else []
    if reference is not None and not tested and all(len(cell.runs) < 2 for cell in cells):
        tests = ["No tests: fewer than two seeds."]
    title, notes = _measured_on(cells)
    if not notes and any(isnan(value.summary.mean) for row in rows for value in row.values if value is not None):
        notes = ["-: there are no samples of this group in some runs."]
    caption = caption_of(cells, selected=_selected(selected, cells))
    names = (*(name.capitalize() for name in groups), "All")
    text = " ".join([*tests, *without, *notes, caption])
    return Table(f"Recall on {title}, per cent", ("Data", "Method"), names, tuple(rows), text, command=command)


def measures_table(cells: Sequence[Cell], *, selected: str = "", command: str = "", about: bool = True) -> Table:
    """Return accuracy, macro F1, training recall and imbalance level I of each data set and method.

    With ``about``, the caption says how the runs were made.
    """
    rows: list[Row] = []
    for data, of_data in by_data(cells).items():
        part = held_out(of_data) or "test"
        columns = [_column(of_data, partial(Run.share, name=name, part=part), max) for name in ("accuracy", "macro_f1")]
        columns.append(_column(of_data, partial(_recall, split="train", group="all"), max, leave_out=of_data))
        underfitted = [cell for cell in of_data if cell.underfitted]
        columns.append(_column(of_data, partial(Run.level, part=part), min, leave_out=underfitted))
        titled = zip(distinct_titles(of_data), *columns, strict=True)
        rows += [Row((data, title), tuple(values)) for title, *values in titled]
    names = ("Accuracy", "Macro F1", "Training recall", "I")
    means = ([value.summary.mean for value in row.values if value is not None] for row in rows)
    unknown = [
        name for name, column in zip(names[:3], zip(*means, strict=True), strict=False) if any(map(isnan, column))
    ]
    text = ["Accuracy weighs samples equally, macro F1 (the mean F1 of the classes) and recall weigh classes equally."]
    text += ["I is the model imbalance level; lower is better."]
    text += [f"-: {' and '.join(unknown)} unknown, because runs did not record it."] if unknown else []
    where, notes = measured_and_levels(cells)
    text += [*notes, *([caption_of(cells, selected=selected)] if about else [])]
    title = f"Other measures on {where}, per cent"
    return Table(title, ("Data", "Method"), names, tuple(rows), " ".join(text), command=command)


def measured_and_levels(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """Return what levels are measured on, and notes on data sets that differ and levels that are undefined."""
    where, notes = _measured_on(cells)
    for of_data in by_data(cells).values():
        notes += [why for why in _undefined(of_data, held_out(of_data) or "test") if why not in notes]
    return where, notes


def sensitivity_table(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> Table:
    """Return recall of each group and imbalance level for each beta and split, the best beta in bold."""
    groups = (*groups_of(cells), "all")
    given = sorted(cells, key=lambda cell: (cell.data, cell.beta or 0.0))
    rows: list[list[Row]] = [[] for _ in given]
    notes: dict[str, None] = {}
    for split in ("train", "val", "test"):
        if split not in given[0].runs[0].result["splits"]:
            continue
        columns = [_column(given, partial(_recall, split=split, group=group), max) for group in groups]
        levels: Sequence[Value | None] = [None for _ in given]
        if split in HELD_WORDS:
            levels = _column(given, partial(Run.level, part=split), min)
            notes |= dict.fromkeys(_undefined(given, split))
        for place, (cell, *values) in enumerate(zip(given, *columns, levels, strict=True)):
            rows[place].append(Row((f"{cell.beta:g}", split), tuple(values)))
    title = f"Sensitivity to β on {given[0].data}: recall, per cent"
    names = (*(name.capitalize() for name in groups), "I")
    found = tuple(row for of_beta in rows for row in of_beta)
    caption = " ".join([*notes, caption_of(given, selected=selected)])
    return Table(title, ("β", "Split"), names, found, caption, command=command)


def _undefined(cells: Sequence[Cell], part: Held) -> list[str]:
    """Why runs have no imbalance level, each reason once."""
    found = [why for cell in cells for run in cell.runs if (why := run.why_no_level(part))]
    return [
        f"No I in {found.count(why)} of {sum(len(c.runs) for c in cells)} runs: {why}." for why in dict.fromkeys(found)
    ]


def _recall(run: Run, split: str, group: str) -> float:
    return run.recall(group, run.trained if split == "train" else split)  # type: ignore[arg-type]


def _column(
    cells: Sequence[Cell],
    measure: Measure,
    best: Callable[..., float],
    tested: Mapping[Cell, Contrast] | None = None,
    leave_out: Sequence[Cell] = (),
) -> list[Value]:
    """The values of a column, the best in bold; ``leave_out`` has cells that cannot be the best."""
    summaries = [cell.summary(measure) for cell in cells]
    ranked = [one.mean for cell, one in zip(cells, summaries, strict=True) if cell not in leave_out]
    top = best((round(mean, 2) for mean in ranked if not isnan(mean)), default=nan)
    values = []
    for cell, one in zip(cells, summaries, strict=True):
        test = (tested or {}).get(cell)
        marked = ("", nan) if test is None else (stars(test.p_value), test.p_value)
        is_best = len(cells) > 1 and cell not in leave_out and round(one.mean, 2) == top
        values.append(Value(one, is_best, *marked))
    return values


def _selected(selected: Selected, cells: Sequence[Cell]) -> str:
    """How the betas of cells were chosen; empty for cells without a beta."""
    if all(cell.beta is None for cell in cells):
        return ""
    return selected if isinstance(selected, str) else selected(cells)


def _measured_on(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """What a table's results are measured on, for its title; and one sentence per data set that differs."""
    words = {data: measured_on(of_data) for data, of_data in by_data(cells).items()}
    notes = [f"{data}: {NO_DATA}." for data, of_data in by_data(cells).items() if held_out(of_data) is None]
    if len(set(words.values())) == 1:
        return next(iter(words.values())), notes
    return "test data", [*notes, *(f"{data}: on {on}." for data, on in words.items() if on != "test data")]

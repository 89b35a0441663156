"""Tables of recall and imbalance level beside the paper's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan

from longtail.study.captions import caption_of
from longtail.study.rendering import Row, Table, Value
from longtail.study.runs import Cell, Run, by_data, ordered
from longtail.study.stats import Summary, compare_summaries, format_p
from longtail.study.tables import level_table
from reproduction import paper

__all__ = ["level_table_beside_authors", "paper_table", "published_recalls", "recall_as_published"]


def recall_as_published(run: Run, group: str = "all") -> float:
    """Test recall in per cent, with classes without test samples counted as the paper counts them."""
    name = "recall_absent_as_zero" if run.data in paper.ABSENT_AS_ZERO else "recall"
    return 100 * float(run.result["splits"]["test"].get(name, {}).get(group, nan))


def published_recalls(cell: Cell) -> Mapping[str, Summary | None]:
    """The paper's row for the data set and method of a cell."""
    name = cell.method
    if cell.data in {"ImageNet-LT", "iNaturalist2018"}:  # the LDAM of these tables is LDAM-DRW
        name = {"ldam-drw": "ldam", "ldam": ""}.get(name, name)
    return paper.recalls(cell.data).get(name, {})


def paper_table(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """Our recall beside the paper's, for each group and over all classes.

    A difference of more than two of the paper's SDs is marked with an exclamation mark. p comes from Welch's two-sided
    t-test on both means and SDs.
    """
    rows = []
    for cell in ordered(cells):
        theirs = published_recalls(cell)
        for group in (*cell.groups, "all"):
            published = theirs.get(group)
            if published is None:
                continue
            ours = cell.summary(partial(recall_as_published, group=group))
            off = (ours.mean - published.mean) / published.sd if published.sd > 0 else nan
            p_value = compare_summaries(ours, published).p_value if min(ours.runs, published.runs) > 1 else None
            values = (
                Value(ours),
                Value(published),
                Value(Summary(ours.mean - published.mean, nan, 1)),
                Value(Summary(off, nan, 1), mark="!" if abs(off) > 2 else ""),
                Value(Summary(nan, nan, 1), shown="")
                if p_value is None
                else Value(Summary(p_value, nan, 1), shown=format_p(p_value).removeprefix("= ")),
            )
            rows.append(Row((cell.data, cell.title, group), values))
    if not rows:
        raise ValueError("Expected runs of data sets and methods that the paper has, but got none.")
    notes = [
        f"{data}: a class without a test sample counts as 0 here, as in the paper."
        for data in by_data(cells)
        if data in paper.ABSENT_AS_ZERO
    ]
    caption = " ".join([*notes, caption_of(cells, selected=selected)])
    return Table(
        "Recall on test data beside the paper's, per cent",
        ("Data", "Method", "Group"),
        ("Here", "Paper", "Δ", "in SDs", "p"),
        tuple(rows),
        "Δ: here less paper, in points and in the paper's SDs; ! more than two of them. p: Welch's t-test, two-sided, "
        f"not corrected. {caption}",
    )


def level_table_beside_authors(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """The study's table of the model imbalance level, with a column for the authors' values where they have any."""
    table = level_table(cells, selected=selected)
    in_rows = [cell for of_data in by_data(cells).values() for cell in of_data]
    authors = [paper.imbalance_level(cell.data).get(cell.method) for cell in in_rows]
    if not any(paper.imbalance_level(cell.data) for cell in cells):
        return table
    rows = tuple(
        replace(row, values=(*row.values, None if value is None else Value(Summary(value, nan, 1))))
        for row, value in zip(table.rows, authors, strict=True)
    )
    return replace(table, columns=(*table.columns, "I, the authors’"), rows=rows)

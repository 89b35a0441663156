"""A table as data, and the ways to write it: terminal, Markdown, CSV, HTML."""

import csv
import html
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from longtail._io import safe_cell, write_text
from longtail._program import printable
from longtail.study.stats import Summary

if TYPE_CHECKING:
    import rich.console


@dataclass(frozen=True)
class Value:
    """A number of a table."""

    summary: Summary
    best: bool = False
    mark: str = ""
    """Stars of significance."""
    p_value: float = math.nan
    """The p-value of the test against the reference, after correction; NaN without a test."""
    shown: str = ""
    """Shown instead of the rounded number."""


@dataclass(frozen=True)
class Row:
    """A row: its labels and its values."""

    labels: tuple[str, ...]
    values: tuple[Value | None, ...]
    selected: str = ""
    """How beta was chosen."""


@dataclass(frozen=True)
class Table:
    """Rows and columns, with a caption that says where they come from."""

    title: str
    labels: tuple[str, ...]
    """Names of the label columns."""
    columns: tuple[str, ...]
    """Names of the value columns."""
    rows: tuple[Row, ...]
    caption: str
    digits: int = 2
    command: str = ""
    """The command that repeats it."""

    @property
    def full_caption(self) -> str:
        """The caption and the command."""
        return self.caption + (f" Command: {self.command}" if self.command else "")

    def text(self, value: Value | None, pm: str = " ± ") -> str:
        """Return the text of a value, without its mark."""
        if value is None or math.isnan(value.summary.mean):
            return "-"
        mean, sd = value.summary.mean, value.summary.sd
        return value.shown or self._rounded(mean) + ("" if math.isnan(sd) else pm + self._rounded(sd))

    def _rounded(self, number: float) -> str:
        if abs(number) < 1e6:
            return f"{number:z.{self.digits}f}"
        return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")

    def texts(
        self, row: Row, best: str = "{}", mark: Callable[[str], str] = lambda stars: stars, pm: str = " ± "
    ) -> list[str]:
        """Return the texts of a row's values: the best in a format such as ``**{}**``, then the marks."""
        found = []
        for value in row.values:
            text = self.text(value, pm)
            if value is not None:
                text = (best.format(text) if value.best else text) + (mark(value.mark) if value.mark else "")
            found.append(text)
        return found

    def __str__(self) -> str:
        return to_markdown(self)

    def __repr__(self) -> str:
        return f"Table({self.title!r}, {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        return to_html(self)


def to_markdown(table: Table) -> str:
    """Return a table as Markdown: the best in bold, stars escaped."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join(name.replace("|", r"\|") for name in (*table.labels, *table.columns)) + " |")
    lines.append("|" + " --- |" * len(table.labels) + " ---: |" * len(table.columns))
    for row in table.rows:
        labels = [label.replace("|", r"\|") for label in row.labels]
        values = table.texts(row, "**{}**", lambda stars: stars.replace("*", r"\*"))
        lines.append("| " + " | ".join([*labels, *values]) + " |")
    command = f" Command: `{table.command}`" if table.command else ""
    return printable("\n".join([*lines, "", table.caption.replace("*", r"\*") + command, ""]))


def to_csv(table: Table) -> str:
    """Return a table as CSV, unrounded and without its caption: mean, SD, runs, mark and p of each column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "sd", "runs", "mark", "p")
    writer.writerow([*table.labels, "selected", *(f"{name} {part}" for name in table.columns for part in parts)])
    for row in table.rows:
        cells: list[object] = [*map(safe_cell, row.labels), safe_cell(row.selected)]
        for value in row.values:
            if value is None or math.isnan(value.summary.mean):
                cells += [""] * len(parts)
                continue
            one = value.summary
            numbers = ["" if math.isnan(number) else repr(number) for number in (one.mean, one.sd, value.p_value)]
            cells += [*numbers[:2], one.runs, value.mark, numbers[2]]
        writer.writerow(cells)
    return out.getvalue()


def to_html(table: Table) -> str:
    """Return a table as HTML, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (*table.labels, *table.columns))
    lines = ["<table>", f"<caption>{html.escape(table.title)}</caption>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for row in table.rows:
        cells = "".join(f"<th>{html.escape(label)}</th>" for label in row.labels)
        for text, value in zip(map(html.escape, table.texts(row)), row.values, strict=True):
            cells += f"<td><b>{text}</b></td>" if value is not None and value.best else f"<td>{text}</td>"
        lines.append(f"<tr>{cells}</tr>")
    return printable("\n".join([*lines, "</tbody>", "</table>", f"<p>{html.escape(table.full_caption)}</p>", ""]))


def print_table(table: Table, console: "rich.console.Console") -> None:
    """Print a table in a terminal, with one decimal (files have two) and in its full width."""
    from rich import box  # noqa: PLC0415 - an extra
    from rich.measure import Measurement  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = RichTable(box=box.SIMPLE_HEAD, header_style="bold", collapse_padding=True, pad_edge=False)
    for name in table.labels:
        shown.add_column(Text(name), no_wrap=True)
    for name in table.columns:
        shown.add_column(Text(name), justify="right", no_wrap=True)
    rounded, before = replace(table, digits=1), ""
    for row in table.rows:
        values = [
            Text(text, style="bold" if value is not None and value.best else "")
            for text, value in zip(rounded.texts(row, pm="±"), row.values, strict=True)
        ]
        first = "" if len(row.labels) > 1 and row.labels[0] == before else row.labels[0]
        before = row.labels[0]
        shown.add_row(*map(Text, (first, *row.labels[1:])), *values)
    shown.width = Measurement.get(console, console.options.update(max_width=10_000), shown).maximum
    console.print(table.title, style="bold", highlight=False, markup=False)
    console.print(shown, soft_wrap=True)
    console.print(table.full_caption, style="italic", highlight=False, markup=False)
    console.print()


FORMATS = {"markdown": to_markdown, "csv": to_csv, "html": to_html}
"""The ways to write a table as text, by name."""


def save(table: Table, folder: Path, name: str) -> None:
    """Write a table to a folder as Markdown and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.md", to_markdown(table))
    write_text(folder / f"{name}.csv", to_csv(table))

"""A table as data, and the ways to write it: terminal, Markdown, LaTeX, CSV, HTML."""

import csv
import html
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longtail._io import write_text
from longtail.study.stats import Summary

if TYPE_CHECKING:
    import rich.console
    import rich.table

Source = Literal["here", "paper"]

SOURCES: dict[Source, str] = {
    "here": "",
    "paper": "‡ from the paper, not run here",
}
"""The notes below a table with rows that were not run here."""


def is_huge(number: float) -> bool:
    """Whether a number is written with a power of ten, as in figures: one million or more.

    Example:
        >>> is_huge(-5.5e31), is_huge(205910.5), is_huge(math.nan)
        (True, False, False)
    """
    return abs(number) >= 1e6


TESTED = ("p", "p_holm", "difference", "low", "high")
"""The numbers of a test in CSV: p, p after Holm's correction, the difference from the reference and its interval."""


@dataclass(frozen=True)
class Value:
    """A cell of a table."""

    summary: Summary
    best: bool = False
    mark: str = ""
    """Stars of significance."""
    shown: str = ""
    """Shown instead of the rounded number."""
    tested: Mapping[str, float] = field(default_factory=dict)
    """The test against the reference, by the names in ``TESTED``."""


@dataclass(frozen=True)
class Row:
    """A row: its labels and its values."""

    labels: tuple[str, ...]
    values: tuple[Value | None, ...]
    source: Source = "here"
    reference: str = ""
    """The method that it was tested against."""
    test: str = ""
    """The test, or why there was none."""
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
    tests: bool = False
    """Whether CSV has columns for tests."""

    @property
    def sentences(self) -> str:
        """The caption and the notes on marked rows, without the command."""
        used = {row.source for row in self.rows}
        return " ".join([self.caption, *(f"{text}." for source, text in SOURCES.items() if text and source in used)])

    @property
    def full_caption(self) -> str:
        """The whole caption, as plain text."""
        return self.sentences + (f" Command: {self.command}" if self.command else "")

    def text(self, value: Value | None, pm: str = " ± ") -> str:
        """Return the text of a cell, without its mark."""
        if value is None or math.isnan(value.summary.mean):
            return "-"
        if value.shown:
            return value.shown
        mean, sd = value.summary.mean, value.summary.sd
        return self._rounded(mean) + ("" if math.isnan(sd) else f"{pm}{self._rounded(sd)}")

    def _rounded(self, number: float) -> str:
        """With its decimals; a huge number with two digits and a power of ten."""
        return (
            f"{number:.1e}".replace("e+0", "e").replace("e+", "e") if is_huge(number) else f"{number:z.{self.digits}f}"
        )

    def label(self, row: Row) -> tuple[str, ...]:
        """Return a row's labels; the last has the sign of the row's source."""
        sign = SOURCES[row.source][:1]
        return (*row.labels[:-1], row.labels[-1] + (f" {sign}" if sign else ""))

    def _repr_html_(self) -> str:
        return to_html(self)


def to_markdown(table: Table) -> str:
    """Return a table as Markdown: the best in bold, stars escaped."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join([*table.labels, *table.columns]) + " |")
    lines.append("|" + " --- |" * len(table.labels) + " ---: |" * len(table.columns))
    for row in table.rows:
        cells = _cells(table, row, "**{}**", lambda stars: stars.replace("*", r"\*"))
        labels = [label.replace("|", r"\|") for label in table.label(row)]
        lines.append("| " + " | ".join([*labels, *cells]) + " |")
    command = f" Command: `{table.command}`" if table.command else ""
    return "\n".join([*lines, "", table.sentences.replace("*", r"\*") + command, ""])


def _cells(table: Table, row: Row, best: str, mark: Callable[[str], str], pm: str = " ± ") -> list[str]:
    """The texts of a row: the best value as ``best`` formats it, then its stars."""
    found = []
    for value in row.values:
        text = table.text(value, pm)
        if value is not None:
            text = (best.format(text) if value.best else text) + (mark(value.mark) if value.mark else "")
        found.append(text)
    return found


_LATEX = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "β": r"$\beta$", "τ": r"$\tau$", "±": r"$\pm$"},
    **{"Δ": r"$\Delta$", "†": r"$\dagger$", "‡": r"$\ddagger$", "<": "$<$", ">": "$>$", "−": "$-$", "…": r"\dots{}"},
    **{"’": "'", "p̂": r"$\hat{p}$"},
}


def _escape(text: str) -> str:
    text = text.replace("p̂", "\0")
    return "".join(_LATEX.get(sign, sign) for sign in text).replace("\0", r"$\hat{p}$")


def _typed(command: str) -> str:
    """A command in LaTeX that can be copied: double dashes and straight quotes are kept."""
    text = _escape(command).replace("'", r"\textquotesingle{}")
    while "--" in text:
        text = text.replace("--", "-{}-")
    return rf"\texttt{{{text}}}"


def to_latex(table: Table) -> str:
    """Return a table as LaTeX; needs booktabs."""
    caption = _escape(f"{table.title}. {table.sentences}")
    caption += f" Command: {_typed(table.command)}" if table.command else ""
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}[t]\centering\small", rf"\caption{{{caption}}}"]
    lines.append(rf"\begin{{tabular}}{{{'l' * len(table.labels)}{'r' * len(table.columns)}}}\toprule")
    lines.append(" & ".join(_escape(name) for name in (*table.labels, *table.columns)) + r" \\\midrule")
    for place, row in enumerate(table.rows):
        cells = _cells(table, row, r"\textbf{{{}}}", lambda stars: f"$^{{{stars}}}$", r"$\pm$")
        last = place == len(table.rows) - 1 or (
            len(table.labels) > 1 and row.labels[0] != table.rows[place + 1].labels[0]
        )
        rule = (r"\bottomrule" if place == len(table.rows) - 1 else r"\midrule") if last else ""
        lines.append(" & ".join([*(_escape(label) for label in table.label(row)), *cells]) + rf" \\{rule}")
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}", ""])


def to_csv(table: Table) -> str:
    """Return a table as CSV, unrounded and without its caption.

    Each column has the mean, the SD, the runs and the mark; in a table with tests also p, p after Holm's correction,
    and the difference from the reference with its interval.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    tested = TESTED if table.tests else ()
    parts = ["mean", "sd", "runs", "best", "mark", *tested]
    names = [f"{name} {part}" for name in table.columns for part in parts]
    of_row = ["reference", "test", "selected"] if table.tests else ["selected"]
    writer.writerow([*table.labels, "source", *of_row, *names])
    for row in table.rows:
        cells: list[object] = []
        for value in row.values:
            if value is None or math.isnan(value.summary.mean):
                cells += [""] * len(parts)
                continue
            one = value.summary
            cells += [repr(one.mean), _number(one.sd), one.runs, int(value.best), value.mark]
            cells += [_number(value.tested.get(name, math.nan)) for name in tested]
        writer.writerow([*row.labels, row.source, *(getattr(row, name) for name in of_row), *cells])
    return out.getvalue()


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def to_html(table: Table) -> str:
    """Return a table as HTML, for notebooks."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in (*table.labels, *table.columns))
    lines = ["<table>", f"<caption>{html.escape(table.title)}</caption>", f"<thead><tr>{cells}</tr></thead>", "<tbody>"]
    for row in table.rows:
        cells = "".join(f"<th>{html.escape(label)}</th>" for label in table.label(row))
        for value in row.values:
            text = html.escape(table.text(value) + (value.mark if value else ""))
            cells += f"<td><b>{text}</b></td>" if value is not None and value.best else f"<td>{text}</td>"
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", f"<p>{html.escape(table.full_caption)}</p>", ""])


def show(table: Table, console: "rich.console.Console", digits: int = 1) -> None:
    """Print a table in a terminal, with one decimal (files have two).

    Nothing is cut off: a table that is wider than the terminal is printed in its full width.
    """
    from rich.measure import Measurement  # noqa: PLC0415 - an extra

    console.print(table.title, style="bold", highlight=False, markup=False)
    made = to_rich(table, digits)
    width = Measurement.get(console, console.options.update(max_width=10_000), made).maximum
    before = console.width
    console.width = max(width, before)
    console.print(made)
    console.width = before
    console.print(table.full_caption, style="italic", highlight=False, markup=False)
    console.print()


def to_rich(table: Table, digits: int = 1) -> "rich.table.Table":
    """Return the rows for a terminal."""
    from rich import box  # noqa: PLC0415 - an extra
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = RichTable(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        collapse_padding=True,
        pad_edge=False,
    )
    table = replace(table, digits=digits)
    for name in table.labels:
        shown.add_column(name, no_wrap=True)
    for name in table.columns:
        shown.add_column(name, justify="right", no_wrap=True)
    before = ""
    for row in table.rows:
        cells = [
            Text(
                table.text(value, pm="±") + (value.mark if value else ""), style="bold" if value and value.best else ""
            )
            for value in row.values
        ]
        labels = table.label(row)
        first = "" if len(labels) > 1 and row.labels[0] == before else labels[0]
        before = row.labels[0]
        shown.add_row(*map(Text, (first, *labels[1:])), *cells)
    return shown


FORMATS = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv, "html": to_html}
"""The ways to write a table as text, by name."""


def write(table: Table, form: str) -> str:
    """Return a table as text."""
    if form not in FORMATS:
        raise ValueError(f"Expected `form` to be one of {', '.join(FORMATS)}, but got {form!r}.")
    return FORMATS[form](table)


def save(table: Table, folder: Path, name: str) -> None:
    """Write a table to a folder as Markdown, LaTeX and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    for form, suffix in {"markdown": "md", "latex": "tex", "csv": "csv"}.items():
        write_text(folder / f"{name}.{suffix}", write(table, form))

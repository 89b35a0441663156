"""A page as data, and as one HTML file that needs nothing else. Needs jinja2 (``longtail[report]``)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal

from longtail._io import write_text
from longtail.study.figures import Drawing, inline_svg, save_figure
from longtail.study.rendering import Table


@dataclass(frozen=True)
class Prose:
    """Sentences as paragraphs, as a list, or as a box of notes that the reader should not miss."""

    lines: Sequence[str]
    style: Literal["text", "list", "notes"] = "text"
    title: str = ""


@dataclass(frozen=True)
class Card:
    """An important number with its name and a note."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Cards:
    """Cards in a row."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Column:
    """A column of a table; ``title`` is its tooltip."""

    name: str
    numeric: bool = True
    title: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: the text, the value to sort by, and how it is highlighted."""

    text: str
    value: float | str = ""
    best: bool = False
    bar: float | None = None
    """Length of a bar in per cent."""


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted, and searched if ``search`` labels a search field."""

    name: str
    """Unique in the page; letters, digits and hyphens."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    search: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as an ``<svg>`` element."""

    svg: str
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Gallery:
    """Figures side by side."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Example:
    """A small image as a data URI."""

    uri: str
    description: str
    caption: str = ""


@dataclass(frozen=True)
class ClassCard:
    """One class: its recall in per cent, the classes it is mistaken for, and images."""

    name: str
    group: str
    facts: str
    recall: float
    mistaken_for: Sequence[tuple[str, float]] = ()
    """Other classes with the share of its samples, in per cent."""
    examples: Sequence[Example] = ()
    examples_title: str = ""


@dataclass(frozen=True)
class ClassCards:
    """Classes side by side."""

    cards: Sequence[ClassCard]


@dataclass(frozen=True)
class Commands:
    """Lines for a terminal."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks that the reader can open."""

    title: str
    blocks: "Sequence[Block]"


Block = Prose | Cards | Grid | Gallery | ClassCards | Commands | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Unique in the page; letters, digits and hyphens."""
    title: str
    blocks: Sequence[Block]
    short: str = ""
    """Its name in the navigation (default: the title)."""
    listed: bool = True
    """Whether the navigation has it."""


@dataclass(frozen=True)
class Page:
    """The content of a report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str = ""


@dataclass(frozen=True, eq=False)
class Report:
    """A page and its figures by file name. In a notebook it shows itself."""

    page: Page
    drawings: dict[str, Drawing] = field(default_factory=dict)

    def write(self, path: Path | str, figures: Path | str | None = None) -> Path:
        """Write one HTML file; with ``figures``, also write the figures into that folder as SVG, PDF and PNG."""
        path = Path(path)
        if path.suffix != ".html":
            raise ValueError(f"Expected `out` to end in .html, but got {path}.")
        if not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"Expected `out` to be in an existing folder, but got {path}.")
        if figures is not None:
            for name, drawing in self.drawings.items():
                save_figure(drawing.figure, Path(figures) / name)
        write_text(path, render(self.page))
        return path

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(render(self.page))}" width="100%" height="800" style="border: 0"></iframe>'


def slug(text: str) -> str:
    """Return text as letters, digits and hyphens.

    Example:
        >>> slug("CBS (β = 1.5)")
        'cbs-1-5'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def number(value: float, digits: int = 1, *, bar: bool = False, best: bool = False) -> Cell:
    """Return the cell of a number; NaN is a dash, which sorts last."""
    if math.isnan(value):
        return Cell("–")
    return Cell(f"{value:,.{digits}f}", float(value), best, min(max(value, 0.0), 100.0) if bar else None)


def from_table(table: Table, name: str) -> Grid:
    """Return a table of a study as a table of the page."""
    columns = [Column(label, numeric=False) for label in table.labels] + [Column(label) for label in table.columns]
    rows = []
    for row in table.rows:
        cells = [Cell(label, label) for label in row.labels]
        for value in row.values:
            if value is None or math.isnan(value.summary.mean):
                cells.append(Cell("–"))
            else:
                cells.append(Cell(table.text(value) + value.mark, value.summary.mean, value.best))
        rows.append(cells)
    return Grid(name, table.title, columns, rows, table.full_caption)


def picture(drawing: Drawing, name: str, title: str | None = None) -> Picture:
    """Return a figure for the page, with ids that begin with ``name``."""
    svg = inline_svg(drawing.figure, name, f"{drawing.title}. {drawing.caption}")
    return Picture(svg, drawing.caption, drawing.title if title is None else title)


def render(page: Page) -> str:
    """Return the page as HTML. It loads nothing from elsewhere, and all text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - an extra

    loader = PackageLoader("longtail.report", "")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["tied"] = lambda text: text.replace(" %", "\u00a0%")  # no line begins with a %
    return environment.get_template("page.html").render(page=page) + "\n"

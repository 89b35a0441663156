"""A page as data, and as one HTML file that needs nothing else. Needs jinja2 (``longtail[report]``)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from longtail.study.rendering import Table

__all__ = [
    "Block",
    "Card",
    "Cell",
    "ClassCard",
    "Column",
    "Commands",
    "Example",
    "Folded",
    "Gallery",
    "Grid",
    "Notes",
    "Page",
    "Picture",
    "Prose",
    "Section",
    "Stats",
    "from_table",
    "many",
    "number",
    "render",
    "slug",
]


@dataclass(frozen=True)
class Prose:
    """Paragraphs; with ``points``, a list."""

    lines: Sequence[str]
    points: bool = False
    title: str = ""
    kind: Literal["prose"] = "prose"


@dataclass(frozen=True)
class Notes:
    """What a reader must know before trusting the rest."""

    lines: Sequence[str]
    kind: Literal["notes"] = "notes"


@dataclass(frozen=True)
class Card:
    """A number that stands out, what it is, and whose."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Stats:
    """Cards in a row."""

    cards: Sequence[Card]
    kind: Literal["stats"] = "stats"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = True
    title: str = ""
    """What it means, where the name does not say it."""


@dataclass(frozen=True)
class Cell:
    """A cell: what is shown, what it is sorted by, and how it stands out."""

    text: str
    value: float | str = ""
    best: bool = False
    bar: float | None = None
    """Per cent of the cell that a bar fills."""


@dataclass(frozen=True)
class Grid:
    """A table that sorts, and can be searched."""

    name: str
    """Unique in the page, of letters, digits and hyphens."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    search: str = ""
    """What the search field asks for; without it there is none."""
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True)
class Picture:
    """A figure, drawn already."""

    svg: str
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Gallery:
    """Figures side by side."""

    pictures: Sequence[Picture]
    kind: Literal["gallery"] = "gallery"


@dataclass(frozen=True)
class Example:
    """A small image, as a data URI."""

    uri: str
    description: str
    caption: str = ""


@dataclass(frozen=True)
class ClassCard:
    """A class: how it fares, what it is taken for, and images of it."""

    name: str
    group: str
    facts: str
    recall: float
    """Per cent, for its bar."""
    taken_for: Sequence[tuple[str, float]] = ()
    """Other classes, and the per cent of its samples that were taken for them."""
    examples: Sequence[Example] = ()
    examples_title: str = ""


@dataclass(frozen=True)
class ClassCards:
    """Classes side by side."""

    cards: Sequence[ClassCard]
    kind: Literal["classes"] = "classes"


@dataclass(frozen=True)
class Commands:
    """Lines for a terminal."""

    lines: Sequence[str]
    kind: Literal["commands"] = "commands"


@dataclass(frozen=True)
class Folded:
    """Blocks that open on demand."""

    title: str
    blocks: "Sequence[Block]"
    kind: Literal["folded"] = "folded"


Block = Prose | Notes | Stats | Grid | Gallery | ClassCards | Commands | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Unique in the page, of letters, digits and hyphens."""
    title: str
    blocks: Sequence[Block]
    short: str = ""
    """What the navigation calls it (default: the title)."""
    listed: bool = True
    """Whether the navigation has it."""


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: Sequence[str] = field(default_factory=tuple)


def slug(text: str) -> str:
    """Text as a name of letters, digits and hyphens.

    Example:
        >>> slug("CBS (β = 1.5)")
        'cbs-1-5'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def many(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> many(1, "class"), many(2000, "class"), many(3, "run")
        ('1 class', '2,000 classes', '3 runs')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def number(value: float, digits: int = 1, *, bar: bool = False, best: bool = False, unit: str = "") -> Cell:
    """A number's cell; a dash where there is none, which sorts last."""
    if math.isnan(value):
        return Cell("–", "")
    return Cell(f"{value:,.{digits}f}{unit}", float(value), best, min(max(value, 0.0), 100.0) if bar else None)


def from_table(table: Table, name: str) -> Grid:
    """A study's table as one that sorts."""
    columns = [Column(label, numeric=False) for label in table.labels] + [Column(label) for label in table.columns]
    rows = []
    for row in table.rows:
        cells = [Cell(label, label) for label in table.label(row)]
        for value in row.values:
            missing = value is None or math.isnan(value.summary.mean)
            text = "–" if value is None or missing else table.text(value) + value.mark
            cells.append(
                Cell(
                    text, "" if value is None or missing else value.summary.mean, bool(value is not None and value.best)
                )
            )
        rows.append(cells)
    return Grid(name, table.title, columns, rows, table.full_caption)


def render(page: Page) -> str:
    """The page as HTML; nothing in it is loaded from elsewhere, and all text is escaped."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - an extra

    files = resources.files("longtail.report")
    style, script, template = (
        files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js", "page.html")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tied"] = lambda text: text.replace(" %", "\u00a0%")  # no line begins with a %
    return environment.from_string(template).render(page=page, style=style, script=script) + "\n"

"""A page as one HTML file that needs no network; all text is escaped. Needs jinja2 (``longtail[report]``)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail._io import write_text
from longtail._program import count, printable
from longtail.study.figures.style import Drawing, inline_svg, save_figure
from longtail.study.rendering import Table

if TYPE_CHECKING:
    from jinja2 import Environment

GridCell = str | float | tuple[str, float, bool]
"""A text, a number (NaN is shown as a dash), or the text of a number, the number, and whether it is the best."""


@dataclass(frozen=True)
class Column:
    """A column of a grid."""

    name: str
    digits: int | None = None
    """Digits after the point; ``None`` for a column of text."""
    bar: bool = False
    """Whether its numbers, in per cent, have a bar."""
    title: str = ""
    """Its tooltip."""


@dataclass(frozen=True)
class Grid:
    """A table that readers can sort, and search if ``search`` labels a search field."""

    name: str
    """Unique in the page; letters, digits and hyphens."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[GridCell]]
    caption: str = ""
    search: str = ""


@dataclass(frozen=True, eq=False)
class Report:
    """A page and its figures. In a notebook it shows itself."""

    template: str
    """The file in ``templates`` that lays out the page."""
    content: Mapping[str, Any]
    """The values that the template uses."""
    drawings: Mapping[str, Drawing]
    """Figures by file name, which is also the prefix of their ids in the page."""

    @cached_property
    def html(self) -> str:
        """The page, which loads nothing from elsewhere."""
        pictures = {
            name: inline_svg(one.figure, name, f"{one.title}. {one.caption}") for name, one in self.drawings.items()
        }
        template = templates().get_template(self.template)
        return printable(template.render(self.content, drawings=self.drawings, pictures=pictures) + "\n")

    def write(self, path: Path | str, figures: Path | str | None = None) -> Path:
        """Write the page as one HTML file and, if ``figures`` is a folder, its figures there as SVG, PDF and PNG."""
        path = Path(path)
        if path.suffix != ".html":
            raise ValueError(f"Expected `out` to end in .html, but got {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        if figures is not None:
            for name, drawing in self.drawings.items():
                save_figure(drawing.figure, Path(figures) / name)
        write_text(path, self.html)
        return path

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="800" style="border: 0"></iframe>'


def templates() -> "Environment":
    """Return the templates of pages, which escape all text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - an extra

    loader = PackageLoader("longtail.report")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.globals["count"] = count
    found.filters["per_cent"] = lambda text: text.replace(" %", "\u00a0%")  # no line starts with "%"
    return found


def slug(text: str) -> str:
    """Return text as letters, digits and hyphens.

    Example:
        >>> slug("CBS (β = 1.5)")
        'cbs-1-5'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def grid_from_table(table: Table, name: str) -> Grid:
    """Return a table of a study as a grid, without its first column, which names the data set."""
    rows: list[list[GridCell]] = []
    for row in table.rows:
        cells: list[GridCell] = [*row.labels[1:]]
        for value in row.values:
            if value is None or math.isnan(value.summary.mean):
                cells.append(math.nan)
            else:
                cells.append((table.text(value) + value.mark, value.summary.mean, value.best))
        rows.append(cells)
    columns = [*map(Column, table.labels[1:]), *(Column(label, 2) for label in table.columns)]
    return Grid(name, table.title, columns, rows, table.full_caption)

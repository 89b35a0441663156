"""Figures as files, and as SVG inside a page that is light or dark."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from longtail._io import new_file
from longtail.study.figures.style import WIDTH, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")

_VARIABLES = {
    "#1b1d22": "ink",
    "#d9dce3": "grid",
    "#0072b2": "blue",
    "#e69f00": "orange",
    "#009e73": "green",
    "#d55e00": "red",
    "#56b4e9": "sky",
    "#cc79a7": "pink",
    "#ffffff": "paper",
}
"""CSS variables of the page by the colour that they replace."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its file name, title and caption."""

    name: str
    """Letters, digits and hyphens."""
    title: str
    figure: "Figure"
    caption: str


def save_figure(figure: "Figure", stem: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as ``stem.svg``, ``stem.pdf`` and ``stem.png`` and return the paths; the bytes are reproducible.

    A character that the font (DejaVu Sans) lacks is drawn as a box, with a warning. In a page, text stays text.

    Args:
        figure: the figure.
        stem: path without a suffix; its folder is created.
        formats: some of svg, pdf and png.
    """
    wrong = [form for form in formats if form not in FORMATS]
    if wrong:
        raise ValueError(f"Expected `formats` to be some of {', '.join(FORMATS)}, but got {wrong[0]!r}.")
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    dpi = 200 if figure.get_figwidth() < 2 * WIDTH else 140
    paths = [stem.with_name(f"{stem.name}.{form}") for form in formats]
    with style(quiet=False):
        for form, path in zip(formats, paths, strict=True):
            with new_file(path) as temporary:
                figure.savefig(temporary, format=form, dpi=dpi, facecolor="white", metadata=metadata[form])
    return paths


def inline_svg(figure: "Figure", name: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element whose text stays text and whose colours are those of the page.

    Args:
        figure: the figure.
        name: prefix of all ids, unique in the page; letters, digits and hyphens.
        description: what the figure shows, for screen readers.
    """
    out = io.StringIO()
    with style(svg_text="none"):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for pattern, replacement in (
        (r"(?s)<metadata>.*?</metadata>\s*|<!--.*?-->\s*", ""),
        (r'\bid="([^"]*)"', rf'id="{name}-\1"'),
        (r'href="#([^"]*)"', rf'href="#{name}-\1"'),
        (r"url\(#([^)]*)\)", rf"url(#{name}-\1)"),
        (r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1"),
        (r"font: (?:bold|700) ([0-9.]+px) [^;\"]*", r"font-weight: 700; font-size: \1"),
        (r"font-family: [^;\"]*;? ?", ""),
    ):
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: _colour(found[0]), text)
    tag, rest = text.split(">", 1)
    tag = re.sub(r" (?:width|height)=\"[^\"]*pt\"", "", tag)
    tag = tag.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"')
    return f"{tag}>{rest}".strip()


def _colour(colour: str) -> str:
    name = _VARIABLES.get(colour.lower())
    return colour if name is None else f"var(--fig-{name})"

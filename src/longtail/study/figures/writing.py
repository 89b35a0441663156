"""Figures as files, and as SVG inside a page that is light or dark."""

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from longtail._io import new_file
from longtail.study.figures.style import WIDTH, families, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "Drawing", "inline_svg", "missing_glyphs", "save_figure"]

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
    with style():
        for form, path in zip(formats, paths, strict=True):
            with new_file(path) as temporary:
                figure.savefig(temporary, format=form, dpi=dpi, facecolor="white", metadata=metadata[form])
    return paths


def missing_glyphs(figures: "Iterable[Figure]") -> str:
    """Return the characters that saved figures show as boxes because no installed font has them.

    Only files are affected: in a page, text stays text, and the browser finds a font.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font  # noqa: PLC0415 - an extra
    from matplotlib.text import Text  # noqa: PLC0415

    used = {letter for figure in figures for text in figure.findobj(Text) for letter in text.get_text()}
    with style():
        for family in families():
            used -= set(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
    return "".join(sorted(letter for letter in used if unicodedata.category(letter)[0] not in "CZ"))


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

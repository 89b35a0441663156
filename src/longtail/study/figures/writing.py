"""Figures as files, and as SVG inside a page that is light or dark."""

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from longtail._io import new_file
from longtail.study.figures.style import WIDTH, families, our_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "inline_svg", "save_figure", "undrawn_in"]

FORMATS = ("svg", "pdf", "png")

_DPI, _DPI_OF_PANELS = 200, 140
"""Pixels an inch of a figure of one panel, and of one with panels side by side, which is large enough without."""

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
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
"""Colours that a page may change, by the names of its CSS variables."""


def save_figure(figure: "Figure", stem: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as ``stem.svg``, ``stem.pdf`` and ``stem.png``; the same figure gives the same bytes.

    Args:
        figure: what was drawn.
        stem: path without a suffix; its folder is made where it is missing.
        formats: which of svg, pdf and png.
    """
    wrong = [form for form in formats if form not in FORMATS]
    if wrong:
        raise ValueError(f"Expected `formats` to be some of {', '.join(FORMATS)}, but got {wrong[0]!r}.")
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    dpi = _DPI if figure.get_figwidth() < 2 * WIDTH else _DPI_OF_PANELS
    written = []
    with our_settings():
        for form in formats:
            path = stem.with_name(f"{stem.name}.{form}")
            with new_file(path) as temporary:
                figure.savefig(temporary, format=form, dpi=dpi, facecolor="white", metadata=dates[form])
            written.append(path)
    return written


def undrawn_in(figures: "Iterable[Figure]") -> str:
    """What files of figures lack, in a sentence: characters that no font has which is here; empty where all are drawn.

    A page has no such lack: text stays text in it, and browsers look for fonts themselves.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font  # noqa: PLC0415 - an extra
    from matplotlib.text import Text  # noqa: PLC0415

    used = {letter for figure in figures for text in figure.findobj(Text) for letter in text.get_text()}
    with our_settings():
        for family in families():
            used -= set(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
    lacking = sorted(letter for letter in used if unicodedata.category(letter)[0] not in "CZ")
    if not lacking:
        return ""
    some = "".join(lacking[:8]) + ("…" if len(lacking) > 8 else "")
    return f"Files of figures show boxes in place of {some}: no font is installed that has them; the page shows them."


def inline_svg(figure: "Figure", name: str, description: str) -> str:
    """A figure as an ``<svg>`` element: text stays text, colours follow the page, names of parts do not collide.

    Args:
        figure: what was drawn.
        name: unique in the page, of letters, digits and hyphens.
        description: what the figure shows, for those who do not see it.
    """
    out = io.StringIO()
    with our_settings(svg_text="none"):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]*)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"font: (?:bold|700) ([0-9.]+px) [^;\"]*", r"font-weight: 700; font-size: \1", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = _COLOUR.sub(lambda found: _variable(found.group(0)), text)
    text = re.sub(r"(<svg[^>]*?) (?:width|height)=\"[^\"]*pt\"", r"\1", text)
    text = re.sub(r"(<svg[^>]*?) (?:width|height)=\"[^\"]*pt\"", r"\1", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"', 1).strip()


def _variable(colour: str) -> str:
    name = _VARIABLES.get(colour.lower())
    return colour if name is None else f"var(--fig-{name})"

"""The look of the figures, and figures as files or as SVG inside a page that is light or dark.

Colours are those of Okabe and Ito for colour-blind readers; markers and line styles distinguish series in grey print.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longtail._io import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1d22"
"""Text and axes; light on a dark page."""
WIDTH, HEIGHT = 4.4, 3.3
"""Size of one panel in inches: on a phone, 10 points are then 10 pixels."""


@dataclass(frozen=True)
class Mark:
    """How one series is drawn in all figures."""

    color: str
    marker: str
    line: Any

    @property
    def options(self) -> dict[str, Any]:
        """The mark as options of ``Axes.plot``."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.line}


_COLORS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", INK)  # neighbours differ in lightness
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*", "d", "8")
_LINES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1)), (0, (1, 2.5)))

GROUPS = {
    "head": Mark("#0072B2", "o", "-"),
    "medium": Mark("#E69F00", "s", (0, (5, 2))),
    "tail": Mark("#D55E00", "^", (0, (1, 1.2))),
    "all": Mark(INK, "D", (0, (5, 1.5, 1, 1.5))),
}
SPLITS: dict[str, Any] = {"training": "-", "validation": (0, (1, 1.2)), "test": (0, (4, 2))}
"""Line styles of the splits."""


def marks_of(names: Sequence[str]) -> dict[str, Mark]:
    """Return a mark for each series by its position; groups always have the same mark."""
    colors = [_COLORS[(place + place // len(_MARKERS)) % len(_COLORS)] for place in range(len(names))]
    return {
        name: GROUPS.get(name, Mark(color, _MARKERS[place % len(_MARKERS)], _LINES[place % len(_LINES)]))
        for place, (name, color) in enumerate(zip(names, colors, strict=True))
    }


def letters_in(points: float) -> int:
    """Return how many letters of average width fit into a width in points."""
    return max(1, int(points / (0.6 * 9.5)))


def wrapped(text: str, letters: int, most: int = 3) -> str:
    """Wrap text to lines of at most ``letters``; after ``most`` lines it ends in an ellipsis.

    Example:
        >>> wrapped("Class-balanced sampling", 10)
        'Class-\\nbalanced\\nsampling'
        >>> wrapped("CBS (β = 1.5)", 9)
        'CBS\\n(β = 1.5)'
    """
    tied = re.sub(r"\([^()]*\)", lambda found: found[0].replace(" ", "\u00a0"), text)
    return textwrap.fill(tied, letters, max_lines=most, placeholder="…").replace("\u00a0", " ")


def clipped(text: str, letters: int = 26) -> str:
    """Cut a text to ``letters``, also within a word, so that similar names stay different.

    Example:
        >>> clipped("Tomato leaf bacterial spot", 20)
        'Tomato leaf bacteri…'
    """
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


_SETTINGS: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9dce3",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "svg.hashsalt": "longtail",
    "pdf.fonttype": 42,
}


@contextmanager
def style(svg_text: Literal["path", "none"] = "path", *, quiet: bool = True) -> Iterator[None]:
    """Draw or write figures with our matplotlib settings; a context manager, and as ``@style()`` a decorator.

    Args:
        svg_text: whether the text of an SVG becomes paths, or (``"none"``) stays text.
        quiet: do not warn about characters that the font lacks.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    with rc_context({**_SETTINGS, "svg.fonttype": svg_text}), warnings.catch_warnings():
        if quiet:
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> "tuple[Figure, Axes]":
    """Return a figure with one panel."""
    figure, axes = panels(1, width=width, height=height)
    return figure, axes[0]


def panels(
    number: int, *, columns: int = 3, width: float = WIDTH, height: float = HEIGHT, share_y: bool = False
) -> "tuple[Figure, list[Axes]]":
    """Return a figure with several panels in rows of similar length. It opens no window and changes no global state."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    rows = -(-number // columns)
    columns = -(-number // rows)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    flat = list(figure.subplots(rows, columns, squeeze=False, sharey=share_y).flat)
    for axes in flat[number:]:
        axes.set_visible(False)
    return figure, flat[:number]


def legend_below(figure: "Figure", axes: "Axes", columns: int = 3, **options: Any) -> int:
    """Add a legend under the panels, in as many columns as fit into the width of the figure; return its rows."""
    handles, names = axes.get_legend_handles_labels()
    options = {"handles": handles, "labels": names, "labelcolor": INK, **options}
    number = min(columns, len(options["handles"])) or 1
    while True:
        legend = figure.legend(loc="outside lower center", ncols=number, **options)
        if number == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return -(-len(options["handles"]) // number)
        legend.remove()
        number -= 1


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its file name, title and caption."""

    name: str
    """Letters, digits and hyphens."""
    title: str
    figure: "Figure"
    caption: str

    @property
    def wide(self) -> bool:
        """Whether the figure needs the width of the page."""
        return bool(self.figure.get_figwidth() > WIDTH)


def save_figure(figure: "Figure", stem: Path | str, formats: Sequence[str] = ("svg", "pdf", "png")) -> list[Path]:
    """Write a figure as ``stem.svg``, ``stem.pdf`` and ``stem.png`` and return the paths; the bytes are reproducible.

    A character that the font (DejaVu Sans) lacks is drawn as a box, with a warning. In a page, text stays text.
    """
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
        *((rf"(?i){color}\b", f"var(--fig-{variable})") for color, variable in _VARIABLES.items()),
    ):
        text = re.sub(pattern, replacement, text)
    tag, rest = text.split(">", 1)
    tag = re.sub(r" (?:width|height)=\"[^\"]*pt\"", "", tag)
    tag = tag.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"')
    return f"{tag}>{rest}".strip()

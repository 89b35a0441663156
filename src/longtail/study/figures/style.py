"""The look of the figures: colours for colour-blind readers, and markers, lines and hatches for grey print."""

import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1d22"
"""Text and axes; light on a dark page."""
GRID = "#d9dce3"
WIDTH, HEIGHT = 4.4, 3.3
"""Size of one panel in inches: on a phone, 10 points are then 10 pixels."""


@dataclass(frozen=True)
class Mark:
    """How one series is drawn in all figures."""

    colour: str
    marker: str
    line: Any
    hatch: str


# The colours of Okabe and Ito, ordered so that neighbours also differ in lightness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*", "d", "8")
_LINES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1)), (0, (1, 2.5)))
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "---", "ooo", "|||", "**")

GROUPS = {
    "head": Mark("#0072B2", "o", "-", ""),
    "medium": Mark("#E69F00", "s", (0, (5, 2)), "///"),
    "tail": Mark("#D55E00", "^", (0, (1, 1.2)), "..."),
    "all": Mark(INK, "D", (0, (5, 1.5, 1, 1.5)), "xxx"),
}

SPLITS = {
    "training": Mark("#009E73", "o", "-", ""),
    "validation": Mark("#CC79A7", "s", (0, (1, 1.2)), "..."),
    "test": Mark(INK, "D", (0, (4, 2)), "///"),
}
"""Marks of the splits, in colours that no group has."""


def _mark(place: int) -> Mark:
    return Mark(
        _COLOURS[(place + place // len(_MARKERS)) % len(_COLOURS)],
        _MARKERS[place % len(_MARKERS)],
        _LINES[place % len(_LINES)],
        _HATCHES[place % len(_HATCHES)],
    )


def group_mark(name: str, names: Sequence[str] = ()) -> Mark:
    """Return the mark of a group of classes; groups with other names get one by their position."""
    return GROUPS[name] if name in GROUPS else _mark(list(names).index(name) if name in names else 0)


def marks_of(names: Sequence[str]) -> dict[str, Mark]:
    """Return a mark for each series by its position; splits always have the same mark."""
    return {name: SPLITS.get(name, _mark(place)) for place, name in enumerate(names)}


def letters_in(points: float, size: float = 9.5) -> int:
    """Return how many letters of average width fit into a width in points."""
    return max(1, int(points / (0.6 * size)))


def wrapped(text: str, letters: int, most: int = 3) -> str:
    """Wrap text to lines of at most ``letters``; after ``most`` lines it ends in an ellipsis.

    Example:
        >>> wrapped("Class-balanced sampling", 10)
        'Class-\\nbalanced\\nsampling'
        >>> wrapped("CBS (β = 1.5)", 9)
        'CBS\\n(β = 1.5)'
    """
    tied = re.sub(r"\([^()]*\)", lambda found: found[0].replace(" ", "\u00a0"), text)
    lines = [line.replace("\u00a0", " ") for line in textwrap.wrap(tied, letters)]
    if len(lines) > most:
        lines[most - 1 :] = [lines[most - 1][: letters - 1].rstrip() + "…"]
    return "\n".join(lines)


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
    for axes in flat[:number]:
        axes.set_axisbelow(True)
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, flat[:number]


def starts_row(axes: "Axes") -> bool:
    """Return whether a panel is the first of its row, which has the label of the vertical axis."""
    place = axes.get_subplotspec()
    return place is not None and place.is_first_col()


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
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "longtail",
    "pdf.fonttype": 42,
}


@contextmanager
def style(svg_text: Literal["path", "none"] = "path", *, quiet: bool = True) -> Iterator[None]:
    """Draw or write figures with our matplotlib settings.

    Args:
        svg_text: whether the text of an SVG becomes paths, or (``"none"``) stays text.
        quiet: do not warn about characters that the font lacks.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    with rc_context({**_SETTINGS, "svg.fonttype": svg_text}), warnings.catch_warnings():
        if quiet:
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def styled(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Decorate a function that draws so that it uses our settings, whatever those of the caller are."""

    @wraps(draw)
    def inside(*given: Given.args, **named: Given.kwargs) -> Drawn:
        with style():
            return draw(*given, **named)

    return inside


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

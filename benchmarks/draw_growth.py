"""Draw time and memory against classes, members and samples, from the results of ``growth.py`` and ``fleet.py``.

python benchmarks/draw_growth.py docs/images/growth [--gpu h200]
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from record import RESULTS

from longtail.study.figures.style import legend_below, marks_of, panels, save_figure, style

Parts = dict[str, Any]
Series = dict[str, tuple[list[float], list[float]]]


def series_of(growth: Parts, fleet: Parts) -> list[tuple[str, str, Series]]:
    """The panels with data: labels of both axes, and series by name."""
    found: list[tuple[str, str, Series]] = []
    classes = growth.get("classes", {}).get("rows", [])
    members = fleet.get("growth", {}).get("rows", [])
    samples = growth.get("samples", {}).get("rows", [])

    def of_classes(key: str, scale: float) -> Series:
        names = dict.fromkeys(row["name"] for row in classes)
        chosen = {name: [row for row in classes if row["name"] == name and row[key]] for name in names}
        return {n: ([r["classes"] for r in some], [scale * r[key] for r in some]) for n, some in chosen.items() if some}

    def line_of(name: str, rows: list[dict[str, Any]], x: str, y: str, scale: float = 1.0) -> Series:
        some = [row for row in rows if row[y]]
        return {name: ([row[x] for row in some], [scale * row[y] for row in some])} if some else {}

    statistics = partial(line_of, "class statistics", samples, "samples")
    fleets = partial(line_of, "fleet", members, "members")
    for label, unit, drawn in (
        ("classes", "ms per batch", of_classes("ms", 1.0)),
        ("members", "ms per step and model", fleets("ms")),
        ("samples", "s in total", statistics("seconds")),
        ("classes", "MB beyond the inputs", of_classes("peak_bytes", 1e-6)),
        ("members", "GB in total", fleets("gigabytes")),
        ("samples", "MB beyond the inputs", statistics("peak_bytes", 1e-6)),
    ):
        if drawn:
            found.append((label, unit, drawn))
    return found


@style()
def figure_of(growth: Parts, fleet: Parts) -> Any:
    """The figure: time above, memory below, all axes logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - an extra

    drawn = series_of(growth, fleet)
    if not drawn:
        raise SystemExit("There is nothing to draw: run growth.py, or fleet.py --only growth.")
    names = list(dict.fromkeys(name for _, _, some in drawn for name in some))
    marks = marks_of(names)
    figure, all_axes = panels(len(drawn), columns=len({label for label, _, _ in drawn}))
    for axes, (label, unit, some) in zip(all_axes, drawn, strict=True):
        for name, (x, y) in some.items():
            axes.plot(x, y, label=name, **marks[name].options)
        axes.set_xscale("log", base=2 if label == "members" else 10)
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if axis is axes.yaxis:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(label)
        axes.set_ylabel(unit)
    first = drawn[0][2]
    for name in (name for name in names if name not in first):  # the legend is made from the first panel
        all_axes[0].plot([], [], label=name, **marks[name].options)
    legend_below(figure, all_axes[0], columns=6)
    return figure


def parts_of(name: str) -> Parts:
    """The parts of a result file; empty if it does not exist."""
    path = RESULTS / name
    found: Parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stem", type=Path, help="path of the figure without extension")
    parser.add_argument("--gpu", default="h200", help="the GPU whose results are drawn")
    given = parser.parse_args()
    figure = figure_of(parts_of(f"growth-{given.gpu}.json"), parts_of(f"fleet-{given.gpu}.json"))
    for path in save_figure(figure, given.stem, ("png", "svg")):
        print(path)


if __name__ == "__main__":
    main()

"""``longtail report``: one HTML page about a folder of runs, and its figures as files."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from longtail.cli.parsing import call
from longtail.report import Report, report_of_runs, write_report
from longtail.study.figures.writing import undrawn_in

__all__ = ["run", "tell_undrawn"]

console = Console()


def report(
    paths: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="DIR", help="folders of finished runs, however deep they lie"),
    ] = (),
    *,
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE.html", help="where the page goes (default: DIR/report.html)")
    ] = None,
    figures: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="DIR", help="where its figures go, as SVG, PDF and PNG (default: figures/ beside the page)"
        ),
    ] = None,
    no_figures: Annotated[bool, tyro.conf.arg(help="write the page only")] = False,
    reference: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="METHOD",
            help="the method that others are tested against (default: the study's, or balanced-softmax, or softmax)",
        ),
    ] = None,
) -> int:
    """Write one self-contained HTML page about finished runs: summary, tables, figures, every class, the worst classes
    with images, what tail classes are taken for, settings, and the commands to repeat it."""
    if not paths:
        raise ValueError("Expected a folder of runs, but got none.")
    given = {"--out": out, "--figures": figures, "--reference": reference}
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    command = shlex.join(["longtail", "report", *map(str, paths), *flags, *(["--no-figures"] if no_figures else [])])
    out = paths[0] / "report.html" if out is None else out
    where = None if no_figures else out.parent / "figures" if figures is None else figures
    made = report_of_runs(*paths, reference=reference, command=command)
    write_report(made, out, where)
    _tell(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB, one file)")
    if where is not None:
        _tell(f"Figures: {where}, {len(made.drawings)} as SVG, PDF and PNG")
        tell_undrawn(made)
    return 0


def tell_undrawn(made: Report) -> None:
    """Say what files of a report's figures lack, if they lack anything."""
    sentence = undrawn_in(drawing.figure for drawing in made.drawings.values())
    if sentence:
        Console(stderr=True).print(sentence, soft_wrap=True, markup=False, highlight=False)


def _tell(line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def run(arguments: Sequence[str]) -> int:
    """Parse, draw, write."""
    return call(report, arguments, "longtail report")

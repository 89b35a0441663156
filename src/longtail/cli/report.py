"""``longtail report``: one HTML page about finished runs, and its figures as files."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from longtail.cli.parsing import call
from longtail.report import Report
from longtail.report import report as make_report
from longtail.study.figures import missing_glyphs

__all__ = ["print_written", "run"]


def report(
    paths: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="DIR", help="folders of finished runs, at any depth"),
    ] = (),
    *,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html", help="the page (default: DIR/report.html)")] = None,
    figures: Annotated[
        Path | None,
        tyro.conf.arg(metavar="DIR", help="its figures as SVG, PDF and PNG (default: figures/ beside the page)"),
    ] = None,
    no_figures: Annotated[bool, tyro.conf.arg(help="write only the page")] = False,
    reference: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="METHOD",
            help="the method that others are tested against (default: the study's, or balanced-softmax, or softmax)",
        ),
    ] = None,
) -> int:
    """Write one self-contained HTML page about finished runs: summary, tables, figures, all classes, the worst classes
    with images, what rare classes are mistaken for, settings, and the commands to repeat it."""
    if not paths:
        raise ValueError("Expected a folder of runs, but got none.")
    given = {"--out": out, "--figures": figures, "--reference": reference}
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    command = shlex.join(["longtail", "report", *map(str, paths), *flags, *(["--no-figures"] if no_figures else [])])
    out = paths[0] / "report.html" if out is None else out
    folder = None if no_figures else out.parent / "figures" if figures is None else figures
    made = make_report(*paths, reference=reference, command=command)
    made.write(out, folder)
    print_written(made, out, folder)
    return 0


def print_written(made: Report, out: Path, figures: Path | None) -> None:
    """Print which files were written, and which characters the figures lack."""
    lines = [f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB, one file)"]
    if figures is not None:
        lines.append(f"Figures: {figures}, {len(made.drawings)} as SVG, PDF and PNG")
    for line in lines:
        Console().print(line, soft_wrap=True, markup=False, highlight=False)
    missing = missing_glyphs(drawing.figure for drawing in made.drawings.values()) if figures is not None else ""
    if missing:
        some = missing[:8] + ("…" if len(missing) > 8 else "")
        line = f"The figure files show boxes instead of {some}: no installed font has them. The page shows them."
        Console(stderr=True).print(line, soft_wrap=True, markup=False, highlight=False)


def run(arguments: Sequence[str]) -> int:
    """Parse, build, write."""
    return call(report, arguments, "longtail report")

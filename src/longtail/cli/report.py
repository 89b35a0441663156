"""``longtail report``: one HTML page about finished runs, and its figures as files."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from longtail._program import program
from longtail.cli.parsing import Parser
from longtail.cli.show import print_line
from longtail.report import Report, report


def run(words: Sequence[str]) -> int:
    """Parse, build, write."""
    parser = Parser(
        "longtail report",
        "Write one self-contained HTML page about finished runs: summary, tables, figures, all classes, the worst\n"
        "classes with images, what rare classes are mistaken for, settings, and the commands to repeat it.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="folders of finished runs, at any depth")
    parser.flag("--out", "the page (default: DIR/report.html)", type=Path, metavar="FILE.html")
    figures = "its figures as SVG, PDF and PNG (default: NAME-figures/ beside the page NAME.html)"
    parser.flag("--figures", figures, type=Path, metavar="DIR")
    parser.flag("--no-figures", "write only the page", action="store_true")
    reference = "the method that others are tested against (default: the study's, or balanced-softmax, or softmax)"
    parser.flag("--reference", reference, metavar="METHOD")
    given = parser.read(words)
    out = given.out or given.runs[0] / "report.html"
    folder = None if given.no_figures else given.figures or out.with_name(f"{out.stem}-figures")
    with parser.errors_name_flags():
        made = report(*given.runs, reference=given.reference, command=f"{program()} report {shlex.join(words)}")
        made.write(out, folder)
    print_written(made, out, folder)
    return 0


def print_written(made: Report, out: Path, figures: Path | None) -> None:
    """Print which files were written."""
    print_line(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB, one file)")
    if figures is not None:
        print_line(f"Figures: {figures}, {len(made.drawings)} as SVG, PDF and PNG")

"""``longtail diagnose``: a report from anybody's predictions, with what to try next."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from longtail.cli.parsing import call
from longtail.cli.report import tell_undrawn
from longtail.diagnose.diagnose import diagnose as find
from longtail.diagnose.outside_files import FORMATS_HELP
from longtail.report import write_report
from longtail.report.diagnosis import report_of_diagnosis
from longtail.report.words import next_steps, said_of

__all__ = ["run"]

console = Console()

_OUT = Path("diagnosis.html")


def diagnose(
    *,
    test: Annotated[Path, tyro.conf.arg(metavar="FILE", help="predictions on test data")],
    train: Annotated[
        Path | None,
        tyro.conf.arg(metavar="FILE", help="predictions on training data, for the gap between the two"),
    ] = None,
    val: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE", help="predictions on validation data, to choose a post-hoc shift on; never on test"
        ),
    ] = None,
    counts: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE.json", help="training samples of each class; otherwise counted in --train, or the run's"
        ),
    ] = None,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.html", help="where the page goes")] = _OUT,
    figures: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help="write its figures there too")] = None,
    title: Annotated[str, tyro.conf.arg(help="of the page")] = "",
    head_over: Annotated[
        float | None,
        tyro.conf.arg(metavar="N", help="classes with more training samples are head; otherwise 100, or the run's"),
    ] = None,
    tail_under: Annotated[
        float | None,
        tyro.conf.arg(metavar="N", help="classes with fewer training samples are tail; otherwise 20, or the run's"),
    ] = None,
) -> int:
    """See whom a classifier serves badly, and why, from its predictions, however they were made."""
    found = find(test, train, val, counts, head_over=head_over, tail_under=tail_under)
    words = ["longtail", "diagnose"]
    for name, value in (("train", train), ("val", val), ("test", test), ("counts", counts)):
        words += [] if value is None else [f"--{name}", str(value)]
    for name, bound in (("head-over", head_over), ("tail-under", tail_under)):
        words += [] if bound is None else [f"--{name}", f"{bound:g}"]
    words += [] if out == _OUT else ["--out", str(out)]
    words += [] if figures is None else ["--figures", str(figures)]
    words += ["--title", title] if title else []
    made = report_of_diagnosis(found, title=title, command=shlex.join(words))
    write_report(made, out, figures)
    for line in (*said_of(found), *found.notes, *next_steps(found)):
        _tell(line)
    _tell(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB, one file)")
    if figures is not None:
        tell_undrawn(made)
    return 0


diagnose.__doc__ = f"{diagnose.__doc__}\n\n{FORMATS_HELP}"


def _tell(line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def run(arguments: Sequence[str]) -> int:
    """Parse, look, write."""
    return call(diagnose, arguments, "longtail diagnose")

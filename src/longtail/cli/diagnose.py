"""``longtail diagnose``: a report from anybody's predictions, with what to try next."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from longtail.cli.parsing import call
from longtail.cli.report import print_written
from longtail.diagnose import diagnose as find
from longtail.diagnose.files import FORMATS_HELP

__all__ = ["run"]

_OUT = Path("diagnosis.html")
_File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


def diagnose(
    *,
    test: Annotated[Path, tyro.conf.arg(metavar="FILE", help="predictions on test data")],
    train: Annotated[_File, tyro.conf.arg(help="predictions on training data, for the generalisation gap")] = None,
    val: Annotated[
        _File, tyro.conf.arg(help="predictions on validation data, to choose a post-hoc shift; never the test data")
    ] = None,
    counts: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE.json", help="training samples per class (default: counted in --train, or those of the run)"
        ),
    ] = None,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.html", help="the page")] = _OUT,
    figures: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help="also write its figures there")] = None,
    title: Annotated[str, tyro.conf.arg(help="title of the page")] = "",
    head_over: Annotated[
        float | None,
        tyro.conf.arg(metavar="N", help="classes with more training samples are head (default: 100, or as in the run)"),
    ] = None,
    tail_under: Annotated[
        float | None,
        tyro.conf.arg(metavar="N", help="classes with fewer training samples are tail (default: 20, or as in the run)"),
    ] = None,
) -> int:
    """Find out from its predictions which classes a classifier fails on, why, and what to try next."""
    found = find(test, train, val, counts, head_over=head_over, tail_under=tail_under)
    given = {
        "--train": train,
        "--val": val,
        "--test": test,
        "--counts": counts,
        "--head-over": None if head_over is None else f"{head_over:g}",
        "--tail-under": None if tail_under is None else f"{tail_under:g}",
        "--out": None if out == _OUT else out,
        "--figures": figures,
        "--title": title or None,
    }
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    made = found.report(title=title, command=shlex.join(["longtail", "diagnose", *flags]))
    made.write(out, figures)
    Console().print(str(found), soft_wrap=True, markup=False, highlight=False)
    print_written(made, out, figures)
    return 0


diagnose.__doc__ = f"{diagnose.__doc__}\n\n{FORMATS_HELP}"


def run(arguments: Sequence[str]) -> int:
    """Parse, diagnose, write."""
    return call(diagnose, arguments, "longtail diagnose")

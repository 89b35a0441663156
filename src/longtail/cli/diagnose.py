"""``longtail diagnose``: what is wrong with a classifier, from its predictions, and what would help."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from longtail.cli.parsing import Parser, words_of
from longtail.cli.report import print_written
from longtail.cli.show import print_line
from longtail.diagnose import diagnose
from longtail.diagnose.files import FORMATS_HELP

__all__ = ["run"]

_OUT = Path("diagnosis.html")


def run(words: Sequence[str]) -> int:
    """Parse, diagnose, write."""
    parser = Parser(
        "longtail diagnose",
        "Find out from its predictions which classes a classifier fails on, why, and what to try next.",
        epilog=FORMATS_HELP,
    )
    parser.flag("--test", "predictions on test data", type=Path, metavar="FILE", required=True)
    parser.flag("--train", "predictions on training data, for the generalization gap", type=Path, metavar="FILE")
    parser.flag(
        "--val",
        "predictions on validation data, to choose a post-hoc shift; never the test data",
        type=Path,
        metavar="FILE",
    )
    parser.flag(
        "--counts",
        "training samples per class (default: counted in --train, or those of the run)",
        type=Path,
        metavar="FILE.json",
    )
    parser.flag("--out", "the page", type=Path, default=_OUT, metavar="FILE.html")
    parser.flag("--figures", "also write its figures there", type=Path, metavar="DIR")
    parser.flag("--title", "title of the page", metavar="TEXT")
    parser.flag(
        "--head-over",
        "classes with more training samples are head (default: 100, or as in the run)",
        type=float,
        metavar="N",
    )
    parser.flag(
        "--tail-under",
        "classes with fewer training samples are tail (default: 20, or as in the run)",
        type=float,
        metavar="N",
    )
    return parser.run(words, _diagnose)


def _diagnose(given: argparse.Namespace) -> int:
    found = diagnose(
        given.test, given.train, given.val, given.counts, head_over=given.head_over, tail_under=given.tail_under
    )
    names = ("train", "val", "test", "counts", "head_over", "tail_under", "out", "figures", "title")
    flags = {f"--{name.replace('_', '-')}": getattr(given, name) for name in names}
    if given.out == _OUT:
        del flags["--out"]
    command = shlex.join(words_of(["longtail", "diagnose"], flags))
    made = found.report(title=given.title or "", command=command)
    made.write(given.out, given.figures)
    print_line(str(found))
    print_written(made, given.out, given.figures)
    return 0

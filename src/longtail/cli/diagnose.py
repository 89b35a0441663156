"""``longtail diagnose``: what is wrong with a classifier, from its predictions, and what would help."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from longtail._program import program
from longtail.cli.parsing import Parser
from longtail.cli.report import print_written
from longtail.cli.show import print_line
from longtail.diagnosis import diagnose
from longtail.diagnosis.formats import FORMATS_HELP


def run(words: Sequence[str]) -> int:
    """Parse, diagnose, write."""
    parser = Parser(
        "longtail diagnose",
        "Find out from its predictions which classes a classifier fails on, why, and what to try next.",
        epilog=FORMATS_HELP,
    )
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="folder of a finished run; or give --test")
    parser.flag("--test", "predictions on test data, or a run folder", type=Path, metavar="PATH")
    parser.flag("--train", "predictions on training data, for the generalisation gap", type=Path, metavar="FILE")
    parser.flag("--val", "predictions on validation data, to fit a post-hoc shift", type=Path, metavar="FILE")
    counts = "training samples per class: JSON, or a run folder (default: counted in --train, or those of the run)"
    parser.flag("--counts", counts, type=Path, metavar="PATH")
    parser.flag("--out", "the page", type=Path, default=Path("diagnosis.html"), metavar="FILE.html")
    parser.flag("--figures", "also write its figures there", type=Path, metavar="DIR")
    parser.flag("--title", "title of the page", default="", metavar="TEXT")
    groups = "as in `longtail train`: 100,20, quantiles, a JSON file, or auto (default: as in the run, or auto)"
    parser.flag("--groups", groups, metavar="GROUPS")
    given, command = parser.read(words), f"{program()} diagnose {shlex.join(words)}"
    if (given.run is None) == (given.test is None):
        got = "neither" if given.run is None else "both"
        raise ValueError(f"Expected the folder of a run or --test, but got {got}; see `longtail diagnose --help`.")
    test = given.test or given.run
    with parser.errors_name_flags():
        found = diagnose(test, given.train, given.val, given.counts, groups=given.groups)
        made = found.report(title=given.title, command=command)
        made.write(given.out, given.figures)
    print_line(str(found))
    print_written(made, given.out, given.figures)
    return 0

"""``longtail demo``: a study of three losses on long-tailed digits, and its report."""

from collections.abc import Sequence
from pathlib import Path

import torch

from longtail.cli import report, study
from longtail.cli.parsing import Parser

_STUDY = "--data digits-lt --methods softmax balanced-softmax cbs --seeds 5 --epochs 60 --batch-size 32 --nesterov"


def run(words: Sequence[str]) -> int:
    """Parse, train, write the report."""
    parser = Parser(
        "longtail demo",
        "Compare softmax, Balanced Softmax and CBS on long-tailed digits, which come with scikit-learn, and write a\n"
        "report: one to three minutes on a CPU, without a network. The same as\n\n"
        f"  longtail study {_STUDY} --out runs/demo\n"
        "  longtail report runs/demo",
    )
    parser.flag("--out", "the folder of the runs and the report", type=Path, default=Path("runs/demo"), metavar="DIR")
    given = parser.read(words)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads only wait for each other: the network is tiny
    try:
        code = study.run([*_STUDY.split(), "--out", str(given.out)])
        return code or report.run([str(given.out)])
    finally:
        torch.set_num_threads(before)

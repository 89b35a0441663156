"""A few hundred cases of the fuzzer; `make fuzz` runs ten thousand."""

import os
import subprocess
import sys

from tests.train.warm import ROOT


def test_damaged_inputs_are_refused_or_read_correctly():
    """In a process of its own: one that has trained cannot be forked."""
    words = ["--cases", "300", "--seed", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

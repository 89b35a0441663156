"""What cases damage: finished runs, a study with a search for beta, and a run on image files, made once."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

SHORT = {"epochs": 2, "device": "cpu", "evaluate_every": 1, "checkpoint_epochs": 1, "keep": 2, "validation": 0.2}
ROOT = Path()
"""The folder with everything; :func:`prepare` sets it."""


def prepare(root: Path) -> None:
    """Make the runs in a forked process: a process that has trained cannot be forked."""
    global ROOT  # noqa: PLW0603 - forked cases read it
    ROOT = root
    if (root / "done").exists():
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _make(root)
            (root / "done").touch()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def _make(root: Path) -> None:
    from longtail.study import Study
    from longtail.train import Trainer, defaults

    Trainer(defaults("digits-lt", "softmax").changed(**SHORT), root / "run").run()
    Trainer(defaults("digits-lt", "cbs").changed(beta="auto", **SHORT), root / "auto").run()
    recipe = {"epochs": 1, "device": "cpu", "evaluate_every": 1, "batch_size": 256}
    search = {"start": [1.0, 2.0], "folds": 2, "step": 1.0, "bounds": [0.0, 3.0]}
    plan = {"data": "digits-lt", "methods": ["softmax", "cbs"], "betas": ["search"], "seeds": 2, "recipe": recipe}
    Study({**plan, "search": search, "out": str(root / "study")}).run()
    generator = np.random.default_rng(0)
    for name, number in (("cat", 12), ("dog", 6)):
        (root / "pets" / name).mkdir(parents=True)
        for place in range(number):
            pixels = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "pets" / name / f"{place}.png")
    settings = {"epochs": 1, "device": "cpu", "batch_size": 8, "model": "small-cnn"}
    Trainer(defaults(str(root / "pets"), "balanced-softmax", small=True).changed(**settings), root / "of-pets").run()

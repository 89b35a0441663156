"""Kinds of cases: each makes an input, damages most of them, gives it to the program, and checks what was accepted."""

import os

import torch
from tests.fuzz.commands import command_line, find_flags
from tests.fuzz.images import dataset, folder_of_images, image
from tests.fuzz.runs import plan, recipe, record, study, tensors
from tests.fuzz.tables import counts_and_groups, image_list, predictions

KINDS = {
    "image": image,
    "folder": folder_of_images,
    "list": image_list,
    "predictions": predictions,
    "counts": counts_and_groups,
    "recipe": recipe,
    "plan": plan,
    "record": record,
    "study": study,
    "tensors": tensors,
    "dataset": dataset,
    "command": command_line,
}
WEIGHTS = {"image": 6, "list": 4, "predictions": 4, "command": 4, "record": 3, "tensors": 3, "recipe": 3}
"""How often a kind is chosen; the others once."""


def preload() -> None:
    """Import all that a case may need before the first fork, and cut off the network."""
    import socket
    from importlib import import_module

    import matplotlib as mpl
    import scipy.stats  # noqa: F401
    import sklearn.datasets
    import timm  # noqa: F401

    from longtail.cli import COMMANDS

    mpl.use("agg")
    for name in COMMANDS:
        import_module(f"longtail.cli.{name}")
    sklearn.datasets.load_digits()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    find_flags()

    def refuse(*_: object) -> None:
        raise OSError(101, "Network is unreachable")

    socket.socket.connect = refuse  # type: ignore[method-assign,assignment]

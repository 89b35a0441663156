"""Checkpoints: everything that training needs to continue bit for bit."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longtail._io import read_tensors, write_tensors
from longtail.data import DataSet, Split
from longtail.train.recipe import Recipe, differing_settings, settings_of
from longtail.train.step import Step

__all__ = ["Position", "fingerprint", "latest_checkpoint", "load_checkpoint", "restore", "save_checkpoint"]

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Position:
    """The next step of training."""

    stage: int = 0
    epoch: int = 0
    """Within the stage."""
    step: int = 0
    """Within the epoch."""
    log_length: int = 0
    """Bytes in the log at that time."""


def fingerprint(dataset: DataSet, recipe: Recipe) -> dict[str, Any]:
    """What a checkpoint and the run that continues from it must have in common.

    The name, classes, counts and images of the data, and the settings, which say how a subset was drawn and what was
    held out; not the location of the data.
    """
    return {
        **settings_of(recipe),
        "data": dataset.name,
        "classes": list(dataset.class_names),
        "counts": dataset.counts.tolist(),
        "group_of_class": list(dataset.groups.index),
        "images": [_digest(split) for split in (dataset.train, dataset.val) if split is not None],
    }


def _digest(split: Split) -> str:
    """Return a digest of the labels and of what identifies the images: pixels in memory, otherwise names or indices."""
    found = hashlib.blake2b(split.labels.numpy().tobytes(), digest_size=16)
    identity = getattr(split.images, "identity", None)
    if identity is not None:
        found.update(identity())
    return found.hexdigest()


def save_checkpoint(
    folder: Path, position: Position, step: Step, model: nn.Module, *, data: Mapping[str, Any], keep: int
) -> None:
    """Write a checkpoint atomically and remove all but the last ``keep``."""
    tensors: Tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"objective.{name}": value for name, value in step.objective.state_dict().items()}
    path = folder / f"{position.stage}-{position.epoch:05}-{position.step:07}.safetensors"
    write_tensors(path, tensors | step.state(), {"position": asdict(position), **data})
    for old in sorted(folder.glob("*.safetensors"))[:-keep]:
        old.unlink()


def latest_checkpoint(folder: Path, before: Path | None = None) -> Path | None:
    """The newest checkpoint in a folder, or the newest one before another."""
    return max((one for one in folder.glob("*.safetensors") if before is None or one < before), default=None)


def load_checkpoint(path: Path, data: Mapping[str, Any]) -> tuple[Position, Tensors]:
    """Read a checkpoint; a damaged one, or one of another run, is refused."""
    try:
        tensors, metadata = read_tensors(path)
        if "position" not in metadata or "loss_sum" not in tensors:
            raise ValueError(f"Expected {path} to be a checkpoint, but it is another safetensors file.")
    except ValueError as error:
        before = latest_checkpoint(path.parent, before=path)
        rest = "the start" if before is None else before.name
        raise ValueError(f"{str(error).removesuffix('.')}; delete it to continue from {rest}.") from error
    _check(path, metadata, data)
    return Position(**metadata["position"]), tensors


def _check(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if there["data"] != here["data"]:
        raise ValueError(f"Expected a checkpoint of {here['data']} in {path}, but it is of {there['data']}.")
    described = ("classes", "counts", "group_of_class", "images")
    differing = differing_settings(there, {name: value for name, value in here.items() if name not in described})
    if differing:
        raise ValueError(f"Expected {path} to be of this run, but it differs in {', '.join(differing)}.")
    for name in described:
        if there.get(name, here[name]) != here[name]:
            words = "groups" if name == "group_of_class" else name
            raise ValueError(
                f"Expected {path} to have the {words} of {here['data']} now, but since then some were added, removed, "
                "renamed or replaced."
            )


def restore(tensors: Tensors, step: Step, model: nn.Module) -> None:
    """Load the state of a checkpoint into step and model."""

    def part(prefix: str) -> Tensors:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    try:
        model.load_state_dict(part("model."))
        device = next((buffer.device for buffer in step.objective.buffers()), None)
        step.objective.load_state_dict({name: value.to(device) for name, value in part("objective.").items()})
        with torch.no_grad():
            for name, value in step.state().items():
                value.copy_(tensors[name])
    except (RuntimeError, KeyError) as error:
        raise ValueError("Expected a checkpoint of this model and method, but its tensors are of another.") from error

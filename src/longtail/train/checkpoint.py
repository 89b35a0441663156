"""Checkpoints: everything that training needs to continue bit for bit."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longtail._io import read_tensors, write_tensors
from longtail.data import DataSet, Split
from longtail.train.recipe import Recipe, differing_settings, settings_of
from longtail.train.step import Step

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

    @property
    def file_name(self) -> str:
        """The name of its checkpoint; names are in the order of training."""
        return f"{self.stage}-{self.epoch:05}-{self.step:07}.safetensors"


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
    folder: Path,
    position: Position,
    step: Step,
    model: nn.Module,
    *,
    data: Mapping[str, Any],
    keep: int,
    more: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint atomically, with ``more`` tensors if given, and remove all but the last ``keep``."""
    tensors: Tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"objective.{name}": value for name, value in step.objective.state_dict().items()}
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in {**tensors, **step.state(), **(more or {})}.items()
    }
    content = {"position": asdict(position), **data}
    write_tensors(folder / position.file_name, tensors, {**content, "checksum": _checksum(tensors, content)})
    for old in sorted(folder.glob("*.safetensors"))[:-keep]:
        old.unlink()


def _checksum(tensors: Tensors, metadata: Mapping[str, Any]) -> str:
    """Return a digest of all names, types, shapes and values, with SHA-256, which most processors have built in."""
    about = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    found = hashlib.sha256(json.dumps([metadata, about], sort_keys=True).encode())
    for _, value in sorted(tensors.items()):
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def latest_checkpoint(folder: Path, before: Path | None = None) -> Path | None:
    """The newest checkpoint in a folder, or the newest one before another."""
    return max((one for one in folder.glob("*.safetensors") if before is None or one < before), default=None)


def load_checkpoint(
    path: Path, data: Mapping[str, Any], *, epochs: Sequence[int], steps: int, log: Path
) -> tuple[Position, Tensors]:
    """Read a checkpoint; one that is damaged, of another run, or ahead of the log raises an error.

    Args:
        path: the checkpoint.
        data: the :func:`fingerprint` of the run.
        epochs: of each stage.
        steps: per epoch.
        log: the log of the run, with one line per epoch.
    """
    before = latest_checkpoint(path.parent, before=path)
    rest = "the start" if before is None else before.name
    try:
        tensors, metadata = read_tensors(path)
        if "position" not in metadata or "loss_sum" not in tensors:
            raise ValueError(f"Expected {path} to be a checkpoint, but it is another safetensors file.")
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; delete it to continue from {rest}.") from error
    _check(path, metadata, data)
    written = metadata.pop("checksum", None)
    if written != _checksum(tensors, metadata):
        why = "it was changed" if written else "it has none, because an older version wrote it"
        raise ValueError(
            f"Expected {path} to have the checksum of its content, but {why}; delete it to continue from {rest}."
        )
    position = Position(**metadata["position"])
    if path.name != position.file_name or not _is_reached(position, epochs, steps):
        raise ValueError(
            f"Expected the position in {path} to be that of its name and of the recipe, but it is {position.stage}-"
            f"{position.epoch}-{position.step}; delete it to continue from {rest}."
        )
    lines = log.read_bytes()[: position.log_length] if log.exists() else b""
    done = sum(epochs[: position.stage]) + position.epoch
    if len(lines) < position.log_length or lines.count(b"\n") != done:
        raise ValueError(
            f"Expected {log} to have {done} epochs in {position.log_length} bytes, as when {path} was written, but it "
            f"is shorter or was changed; restore it, or delete the checkpoint to continue from {rest}."
        )
    return position, tensors


def _is_reached(position: Position, epochs: Sequence[int], steps: int) -> bool:
    """Whether training comes to this position; the last one of a stage is after its last epoch."""
    last = epochs[position.stage] if position.stage < len(epochs) else -1
    return (position.epoch < last and position.step <= steps) or (position.epoch == last and position.step == 0)


def _check(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if there.get("data") != here["data"]:
        raise ValueError(f"Expected a checkpoint of {here['data']} in {path}, but it is of {there.get('data')}.")
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
            step.load_state(tensors)
    except (RuntimeError, KeyError) as error:
        raise ValueError("Expected a checkpoint of this model and method, but its tensors are of another.") from error

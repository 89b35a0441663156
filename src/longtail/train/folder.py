"""A run folder: the record of one run, and the lock on it."""

import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from longtail._io import plain, write_json, write_text
from longtail.train.recipe import Recipe, differing_settings, read_recipe, settings_of, write_recipe

__all__ = ["RunFolder"]


class RunFolder:
    """Where a run keeps what it leaves.

    ``recipe.toml`` (all settings, resolved), ``environment.json``, ``log.jsonl`` (a line an epoch), ``checkpoints/``,
    ``statistics.safetensors``, ``predictions.safetensors``, ``model.safetensors`` and ``result.json``, written last: a
    run is done when it exists. Where images were left out, ``unreadable.json`` lists them; where the recipe asks for
    it, there is ``tensorboard/`` too.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def recipe_file(self) -> Path:
        """All settings."""
        return self.path / "recipe.toml"

    @property
    def log_file(self) -> Path:
        """What happened, a line an epoch."""
        return self.path / "log.jsonl"

    @property
    def result_file(self) -> Path:
        """The measures; the run is done when it exists."""
        return self.path / "result.json"

    @property
    def statistics_file(self) -> Path:
        """Class statistics of every split, and the classifier's norms and biases."""
        return self.path / "statistics.safetensors"

    @property
    def predictions_file(self) -> Path:
        """Labels and logits of the splits."""
        return self.path / "predictions.safetensors"

    @property
    def unreadable_file(self) -> Path:
        """Images that could not be read and were left out, and why."""
        return self.path / "unreadable.json"

    @property
    def model_file(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def done(self) -> bool:
        """Whether the run is done."""
        return self.result_file.exists()

    @property
    def begun(self) -> bool:
        """Whether there is a run."""
        return self.recipe_file.exists()

    def recipe(self) -> Recipe:
        """The run's settings."""
        return Recipe.from_settings(self.settings())

    def settings(self) -> dict[str, Any]:
        """As they were written down."""
        if not self.begun:
            raise FileNotFoundError(f"Expected a run in {self.path}, but there is no recipe.toml.")
        return read_recipe(self.recipe_file)

    def result(self) -> dict[str, Any]:
        """The run's measures."""
        if not self.done:
            raise FileNotFoundError(f"Expected a finished run in {self.path}, but there is no result.json.")
        try:
            found = json.loads(self.result_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"Expected {self.result_file} to be JSON, but it is damaged: {error}.") from error
        if not isinstance(found, dict):
            raise ValueError(f"Expected {self.result_file} to hold a run's measures, but it holds something else.")
        return found

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe that is not the one of the run here; where and how a run is kept may be otherwise."""
        differing = differing_settings(settings_of(self.recipe()), settings_of(recipe)) if self.begun else []
        if differing:
            raise ValueError(
                f"Expected {self.path} to hold this run, but its recipe.toml differs in {', '.join(differing)}; it "
                "takes a folder of its own."
            )

    def begin(self, recipe: Recipe, device: torch.device, world: int, images: Sequence[str] = ()) -> None:
        """Write down what is to be run, where, and on which images; a run that goes on keeps the settings that it began
        with.
        """
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for part in [*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")]:
            part.unlink(missing_ok=True)  # of a process that was killed while it wrote
        if not self.begun:
            write_text(self.recipe_file, write_recipe(recipe))
        write_json(self._environment_file, {**environment(device, world), "images": list(images)})

    @property
    def images(self) -> list[str] | None:
        """Digests of the splits that the run was trained on and chosen by; ``None`` where nobody wrote them down."""
        if not self._environment_file.exists():
            return None
        found: list[str] | None = json.loads(self._environment_file.read_text(encoding="utf-8")).get("images")
        return found or None

    @property
    def _environment_file(self) -> Path:
        return self.path / "environment.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process works on a run; the lock dies with it, however it ends.

        A process that has it may take it again: whoever drives many trainers locks all runs, then each trainer its own.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        place = self.path.resolve()
        if place not in _locks:
            _locks[place] = _Lock(self._lock())
        held = _locks[place]
        held.holders += 1
        try:
            yield
        finally:
            held.holders -= 1
            if held.holders == 0 and _locks.get(place) is held:
                del _locks[place]
                os.close(held.descriptor)

    def _lock(self) -> int:
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise BlockingIOError(
                    f"Expected {self.path} to be free, but another process is training there."
                ) from None
            raise
        return descriptor

    def log(self, line: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(line), allow_nan=False) + "\n")

    def cut_log(self, length: int) -> None:
        """Forget what was logged after a checkpoint was written; it will happen again."""
        if self.log_file.exists() and self.log_file.stat().st_size > length:
            os.truncate(self.log_file, length)

    @property
    def log_length(self) -> int:
        """Bytes in the log."""
        return self.log_file.stat().st_size if self.log_file.exists() else 0


@dataclass(eq=False)
class _Lock:
    """A lock that this process has, and how often it was taken."""

    descriptor: int
    holders: int = 0


_locks: dict[Path, _Lock] = {}


def _leave_locks() -> None:
    """A process that was forked, as workers are, must not hold a lock on when its parent is gone."""
    for held in _locks.values():
        os.close(held.descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_leave_locks)


def environment(device: torch.device, world: int) -> dict[str, Any]:
    """What the run ran on."""
    versions = {}
    for name in ("longtail", "torch", "torchvision", "timm", "numpy", "scikit-learn", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "world": world,
        "versions": versions,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }

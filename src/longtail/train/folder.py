"""A run folder: the record of one run, the lock on it, and its logs."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from longtail._claims import claim
from longtail._io import (
    NUMBER,
    check_claim,
    check_shape,
    plain,
    read_json,
    reading,
    write_json,
    write_text,
)
from longtail._program import some_of
from longtail._ranks import Ranks
from longtail.methods import find_method
from longtail.train.cache import cache_folder
from longtail.train.recipe import Recipe, differing_settings, recipe_in, settings_of, write_recipe

_BY_GROUP = {str: NUMBER}
_NUMBER = (int, float)
_AUTO_BETA = {"beta": _NUMBER, "measured?": _NUMBER, "std_error?": _NUMBER, "temperature?": _NUMBER, "problem?": str}
_LOG = [{"loss?": NUMBER, "recall?": {str: _BY_GROUP}, "auto_beta?": _AUTO_BETA}]
_RESULT = {
    "data": str,
    "method": str,
    "params": dict,
    "label?": str,
    "beta?": (int, float, str, type(None)),
    "seed": int,
    "epochs": [int],
    "reported": str,
    "posthoc": (str, type(None)),
    "best?": {"epoch": int, "epochs_trained": int, "val_recall": NUMBER},
    "posthoc_chosen_on_val": _BY_GROUP,
    "auto_weight_decay?": {"chosen": NUMBER, "recall": {str: NUMBER}},
    "classes": [str],
    "groups": {str: [int]},
    "train_stats": {"eval", "paper"},
    "held_out?": {str: NUMBER},
    "groups_from?": str,
    "counts?": [int],
    "auto_beta?": {
        **_AUTO_BETA,
        "held_out?": {str: [_NUMBER]},
        "validation": bool,
        "pilots": int,
        "trace": [{"epoch": int, **_AUTO_BETA}],
    },
    "splits": {
        str: {
            "recall": _BY_GROUP,
            "samples?": int,
            "accuracy?": NUMBER,
            "macro_f1?": NUMBER,
            "absent_classes?": [int],
            "unpredicted_classes?": [int],
            "recall_per_class?": [NUMBER],
            "recall_low?": [NUMBER],
            "recall_high?": [NUMBER],
            "probability?": [NUMBER],
            "probability_shift?": _BY_GROUP,
            "target_probability?": _BY_GROUP,
            "gradient_balance?": {str: _BY_GROUP},
        }
    },
    **{
        f"preference_{split}?": {
            "gap?": _BY_GROUP,
            "score": _BY_GROUP,
            "model_imbalance_level": NUMBER,
            "undefined?": [str],
        }
        for split in ("val", "test")
    },
}
"""The part of ``result.json`` that tables and reports read."""


def _check_sizes(result: dict[str, Any]) -> None:
    """Raise an error if groups or lists in ``result.json`` have other classes than it names."""
    classes = len(result["classes"])
    auto = result.get("auto_beta", {"problem": ""}).keys()
    if not ("problem" in auto or {"measured", "std_error"} <= auto):
        raise ValueError("Expected `auto_beta` to have `measured` and `std_error`, but they are missing.")
    if sorted(c for members in result["groups"].values() for c in members) != list(range(classes)):
        raise ValueError(f"Expected `groups` to have each of the {classes} classes once, but they do not.")
    lists = [("counts", result.get("counts"))]
    for split in result["splits"].values():
        lists += [(name, split.get(name)) for name in ("recall_per_class", "probability")]
        if "all" not in split["recall"]:
            raise ValueError("Expected `recall` to have `all`, but it is missing.")
        if any(not 0 <= c < classes for c in split.get("absent_classes") or ()):
            raise ValueError(f"Expected `absent_classes` to be in 0…{classes - 1}, but got others.")
    for name, values in lists:
        if values is not None and len(values) != classes:
            raise ValueError(f"Expected `{name}` to have {classes} numbers, one per class, but got {len(values)}.")


class RunFolder:
    """Where a run keeps its files.

    ``recipe.toml`` (all settings, resolved), ``environment.json``, ``log.jsonl`` (one line per epoch),
    ``checkpoints/``, ``statistics.safetensors``, ``predictions.safetensors``, ``model.safetensors`` and
    ``result.json``, which is written last: a run is done when it exists. ``unreadable.json`` lists images that were
    skipped; ``tensorboard/``, ``wandb/`` and ``mlflow/`` exist if the recipe turns them on.
    """

    def __init__(self, path: "RunFolder | Path | str") -> None:
        self.path: Path = path.path if isinstance(path, RunFolder) else Path(path)
        self.recipe_file = self.path / "recipe.toml"
        self.log_file = self.path / "log.jsonl"
        self.result_file = self.path / "result.json"
        self.statistics_file = self.path / "statistics.safetensors"
        """Class statistics of every split, and norms and biases of the classifier."""
        self.predictions_file = self.path / "predictions.safetensors"
        """Labels and logits of the splits."""
        self.unreadable_file = self.path / "unreadable.json"
        """Images that could not be read and were skipped, and why."""
        self.model_file = self.path / "model.safetensors"
        self.failure_file = self.path / "failed.json"
        """Why the run ended with an error, until it is started again."""
        self.checkpoints = self.path / "checkpoints"
        self._environment_file = self.path / "environment.json"

    @property
    def cache(self) -> Path:
        """The folder of cached images and features: its own, or one that the runs of a study or a command share."""
        own = self.path.parent if re.fullmatch(r"pilot\d", self.path.name) else self.path
        folders = [own, *list(own.parents)[:3]]  # runs of a search are in `search/KEY/RUN`
        existing = next((folder for folder in folders if cache_folder(folder).is_dir()), None)
        study = next((folder for folder in folders if (folder / "study.json").is_file()), None)
        return cache_folder(existing or study or own)

    @property
    def done(self) -> bool:
        """Whether the run is done."""
        return self.result_file.exists()

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return self.recipe_file.exists()

    @property
    def has_trained(self) -> bool:
        """Whether the folder holds a run with a checkpoint, a logged epoch, a pilot or a result."""
        begun = self.begun
        if not begun or self.done:
            return begun
        return bool(any(self.checkpoints.glob("*.safetensors")) or self.epochs_logged or self.pilots)

    @property
    def pilots(self) -> "list[RunFolder]":
        """The folders of the pilots of this run."""
        return [RunFolder(path) for path in sorted(self.path.glob("pilot[0-9]"))]

    def pilot(self, number: int) -> "RunFolder":
        """The folder of a pilot of this run, from 0 on."""
        return RunFolder(self.path / f"pilot{number}")

    @property
    def is_pilot(self) -> bool:
        """Whether the run is a pilot: it is in the folder of the run that it belongs to."""
        return bool(re.fullmatch(r"pilot\d", self.path.name)) and RunFolder(self.path.parent).begun

    def recipe(self, *, unknown_methods: bool = False) -> Recipe:
        """The recipe of the run; ``unknown_methods``: whether its method may be one that is not registered here."""
        try:
            found = recipe_in(self.recipe_file)
        except FileNotFoundError:
            raise self._missing("a run", "recipe.toml") from None
        if not unknown_methods:
            find_method(found.method)
        return found

    def result(self) -> dict[str, Any]:
        """The measures of the run."""
        try:
            found: dict[str, Any] = read_json(self.result_file, _RESULT)
        except FileNotFoundError:
            raise self._missing("a finished run", "result.json") from None
        with reading(self.result_file, "the measures of a run"):
            _check_sizes(found)
        return found

    def _missing(self, what: str, name: str) -> FileNotFoundError:
        """The error for a folder without a run, which names the runs below it."""
        found = (file.parent for depth in ("*", "*/*", "*/*/*") for file in sorted(self.path.glob(f"{depth}/{name}")))
        below = [str(path) for path in found if RunFolder(path).begun and not RunFolder(path).is_pilot]
        hint = f"; the runs are below it: {some_of(below)}" if below else ""
        return FileNotFoundError(f"Expected {what} in {self.path}, but there is no {name}{hint}.")

    def check(self, recipe: Recipe) -> None:
        """Raise an error if the folder holds a run of another recipe; settings of how a run is kept may differ."""
        differing = differing_settings(settings_of(self.recipe()), settings_of(recipe)) if self.has_trained else []
        if differing:
            raise ValueError(
                f"Expected {self.path} to hold this run, but its recipe.toml differs in {', '.join(differing)}; choose "
                "another folder with --out, or delete this one."
            )

    def begin(self, recipe: Recipe, device: torch.device, world: int, images: Sequence[str] = ()) -> None:
        """Write recipe and environment; a run that continues keeps the recipe with which it began."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for part in [*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")]:
            part.unlink(missing_ok=True)  # left by a process that was killed while it wrote
        if not self.has_trained:  # a run that failed before its first checkpoint may start again with other settings
            write_text(self.recipe_file, write_recipe(recipe))
        write_json(self._environment_file, {**environment(device, world), "images": list(images)})
        self.failure_file.unlink(missing_ok=True)

    def fail(self, why: str) -> None:
        """Record why the run ended with an error."""
        with suppress(OSError):  # the error may be a full disk
            write_json(self.failure_file, {"error": why})

    def failure(self) -> str:
        """Why the run ended with an error."""
        return str(read_json(self.failure_file, {"error": str})["error"])

    def failure_after(self, moment: float) -> str | None:
        """Why the run ended with an error after a time by the clock of the file system; ``None`` if it did not."""
        with suppress(FileNotFoundError):
            if self.failure_file.stat().st_mtime > moment:
                return self.failure()
        return None

    @property
    def images(self) -> list[str] | None:
        """Digests of the training and validation images of the run; ``None`` if they were not written."""
        if not self._environment_file.exists():
            return None
        return read_json(self._environment_file, {"images?": [str]}).get("images") or None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process, which can take it again; it is free when the process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with claim(self.path, f"Expected {self.path} to be free, but another process is training there."):
            yield

    def log(self, line: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        check_claim(self.log_file)
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(line), allow_nan=False) + "\n")

    def log_lines(self) -> list[dict[str, Any]]:
        """The log, one entry per epoch; empty if it was not kept."""
        if not self.log_file.exists():
            return []
        with reading(self.log_file, "the log of a run"):
            lines = [json.loads(line) for line in self.log_file.read_text(encoding="utf-8").splitlines()]
            check_shape(lines, _LOG, "its content")
            return lines

    def cut_log(self, length: int) -> None:
        """Remove lines that were logged after a checkpoint was written: they will be logged again."""
        if self.log_file.exists() and self.log_file.stat().st_size > length:
            check_claim(self.log_file)
            os.truncate(self.log_file, length)

    @property
    def epochs_logged(self) -> int:
        """Lines in the log."""
        return self.log_file.read_bytes().count(b"\n") if self.log_file.exists() else 0

    def sync_log(self) -> int:
        """Wait until the log is on disk, and return its bytes: no checkpoint is ahead of it after a power failure."""
        if not self.log_file.exists():
            return 0
        with self.log_file.open("rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)


def environment(device: torch.device, world: int) -> dict[str, Any]:
    """Versions, device and command of this process."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "world": world,
        "versions": _versions(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in ("longtail", "torch", "torchvision", "timm", "numpy", "scikit-learn", "safetensors"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


# Several processes


def check_same_folders(folders: Sequence[RunFolder], ranks: Ranks) -> None:
    """Raise an error on all ranks if they see different run folders: each would continue from its own disk."""
    for folder in folders if ranks.world > 1 else ():
        settings = folder.recipe_file.read_bytes() if folder.begun else b""
        latest = max((one.name for one in folder.checkpoints.glob("*.safetensors")), default=None)
        if not ranks.same(torch.tensor(crc32(settings + f"{folder.done} {latest}".encode()))):
            raise ValueError(
                f"Expected all processes to see the same files in {folder.path}, but they do not; put the run folder "
                "on a disk that all processes share."
            )


@contextmanager
def lock_folders(folders: Sequence[RunFolder], ranks: Ranks) -> Iterator[None]:
    """Lock run folders on the first rank; if that fails, all ranks raise an error."""
    with ExitStack() as locks:
        locked: OSError | None = None
        if ranks.first:
            try:
                for folder in folders:
                    locks.enter_context(folder.lock())
            except OSError as error:
                locked = error
        if ranks.any(locked is not None):
            raise locked or BlockingIOError("Expected free run folders, but the first process could not lock one.")
        yield

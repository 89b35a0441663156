"""How long the runs of a plan will take: going by the logs of finished ones, or by a few steps tried here."""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from longtail.report.page import many
from longtail.study.execute import epochs_done, epochs_of
from longtail.study.plan import Planned
from longtail.study.runs import Run, read_runs
from longtail.train.folder import RunFolder, environment
from longtail.train.recipe import Recipe
from longtail.train.trainer import Trainer

__all__ = ["Estimate", "estimate"]

_WARM_STEPS = 3  # a device's first steps are not like the others
_TRIED_STEPS = 30
_TRIED_SECONDS = 3.0

_Key = tuple[str, float | None, str, str]


@dataclass(frozen=True)
class Estimate:
    """How long the runs that are left will take."""

    left: int
    seconds: float | None
    """``None`` where nothing says."""
    why: str

    def __str__(self) -> str:
        if not self.left:
            return f"0 runs to do: {self.why}."
        if self.seconds is None:
            return f"{many(self.left, 'run')} to do; how long that takes is unknown: {self.why}."
        return f"{many(self.left, 'run')} to do, about {_duration(self.seconds)}: {self.why}."


def estimate(
    runs: Sequence[Planned],
    out: str,
    together: int = 1,
    on: Sequence[torch.device] = (torch.device("cpu"),),
    *,
    trial: bool = False,
) -> Estimate:
    """How long the runs that are left will take.

    A run is taken to last as long an epoch as finished runs of the same data set and model on such a device, of its own
    method where there are some; as many as are trained together share the time that the logs have. Where there are
    none, a few steps are tried, if ``trial`` says so, of one run alone: several together are faster on a GPU, so that
    is an upper end. What a run takes to be measured is not counted.

    Args:
        runs: all of them, done or not.
        out: the folder with finished ones.
        together: runs at a time on a device.
        on: the devices.
        trial: whether steps may be tried.
    """
    left = [run for run in runs if not run.folder.done]
    if not left:
        return Estimate(0, 0.0, "all are done")
    devices = len(on)
    seen, logged = _logged(out, environment(on[0], 1)["device"])
    tried: dict[_Key, float] = {}
    total = 0.0
    for run in left:
        recipe = run.recipe
        epochs = max(epochs_of(recipe) - epochs_done(run), 0)
        own = (recipe.data, recipe.imbalance, recipe.model, recipe.method)
        keys = [key for key in _keys(*own) if key in seen]
        if keys:
            total += epochs * sum(seen[keys[0]]) / len(seen[keys[0]]) / (together * devices)
        elif trial:
            tried[own] = tried[own] if own in tried else _try(recipe)
            total += epochs * tried[own] / devices
        else:
            return Estimate(
                len(left), None, f"no run of {recipe.data} with {recipe.model} was finished on such a device in {out}"
            )
    parts = (
        [f"{many(logged, 'finished run')} in {out}, {together * devices} at a time"]
        if len(tried) < len(_kinds(left))
        else []
    )
    parts += ["a few steps tried here, of one run alone"] if tried else []
    return Estimate(len(left), total, f"going by {' and '.join(parts)}")


def _kinds(runs: Sequence[Planned]) -> set[_Key]:
    return {(run.recipe.data, run.recipe.imbalance, run.recipe.model, run.recipe.method) for run in runs}


def _logged(out: str, device: str) -> tuple[dict[tuple[object, ...], list[float]], int]:
    """Mean seconds an epoch of runs finished on a device, by what they share with others; and how many logged them."""
    try:
        finished = [run for run in read_runs(out, searches=True) if _made_on(run) == device]
    except FileNotFoundError:
        finished = []
    seen: dict[tuple[object, ...], list[float]] = {}
    logged = 0
    for one in finished:
        seconds = [line["seconds"] for line in one.log() if "seconds" in line]
        if seconds:
            logged += 1
            for key in _keys(one.recipe.data, one.recipe.imbalance, one.recipe.model, one.recipe.method):
                seen.setdefault(key, []).append(sum(seconds) / len(seconds))
    return seen, logged


def _made_on(run: Run) -> str:
    file = run.path / "environment.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["device"]) if file.exists() else ""


def _keys(data: str, imbalance: float | None, model: str, method: str) -> list[tuple[object, ...]]:
    return [(data, imbalance, model, method), (data, imbalance, model), (data, model)]


def _try(recipe: Recipe) -> float:
    """Seconds an epoch, from a few steps in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = Trainer(replace(recipe, evaluate_every=0, checkpoint_epochs=0), RunFolder(nowhere))
        warm = min(_WARM_STEPS, trainer.steps_total // 2)
        # After its last step a run is measured, which is no step; one without any says itself what is wrong.
        most = max(1, min(_TRIED_STEPS, trainer.steps_total - warm))
        steps = trainer.steps()
        for _ in islice(steps, warm):
            pass
        _wait(trainer.device)
        begun, counted = time.perf_counter(), 0
        for _ in islice(steps, most):
            counted += 1
            if time.perf_counter() - begun > _TRIED_SECONDS:
                break
        _wait(trainer.device)
        seconds = time.perf_counter() - begun
        steps.close()  # type: ignore[attr-defined]
        return seconds / counted * trainer.loaders.steps_per_epoch


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _duration(seconds: float) -> str:
    """A time in words.

    Example:
        >>> _duration(0.2), _duration(40), _duration(600), _duration(9000)
        ('1 s', '40 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""What is left of a plan, and how long it will take, from the logs of finished runs or from a few training steps."""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from longtail.study.captions import count
from longtail.study.conduct import Preview, preview
from longtail.study.execute import devices, epochs_done, epochs_of
from longtail.study.plan import PlannedRun, SearchKey, StudyPlan
from longtail.study.runs import Run, data_title, read_runs
from longtail.train.fleet import at_a_time
from longtail.train.folder import RunFolder, environment
from longtail.train.loading import open_data
from longtail.train.recipe import Recipe
from longtail.train.trainer import Trainer

__all__ = ["Estimate", "describe", "estimate"]

_WARM_STEPS = 3  # the first steps on a device are slower
_TRIED_STEPS = 30
_TRIED_SECONDS = 3.0


def describe(plans: Sequence[StudyPlan], together: int | None = None, *, searches_only: bool = False) -> str:
    """Return what is done of plans, what is left, and about how long it takes; only a few steps are trained."""
    lines = []
    for plan, ahead in zip(plans, preview(plans, searches_only=searches_only), strict=True):
        done = sum(run.folder.done for run in ahead.runs)
        lines.append(
            f"{count(len(ahead.runs), 'run')} in {plan.out}, {done} done:" if ahead.runs else f"In {plan.out}:"
        )
        for run in ahead.runs:
            state = "done" if run.folder.done else "started" if run.folder.begun else "to do"
            lines.append(f"  {state:<8} {run.path.name}")
        lines += [_describe_search(plan, ahead, key, 0 if searches_only else len(plan.seeds)) for key in plan.searches]
        trials = [run for runs in ahead.rounds.values() for run in runs]
        later = [] if searches_only else [run for key in ahead.rounds for run in _runs_after(plan, key)]
        left = [run for run in (*ahead.runs, *trials, *later) if not run.folder.done]
        places = devices(left)
        kinds = {(run.recipe.data, run.recipe.model): run.recipe for run in left}.values()
        most = together or min((at_a_time(recipe, open_data(recipe), places[0]) for recipe in kinds), default=1)
        time_left = estimate(left, plan.out, most, places, trial=True)
        lines.append(f"{'At least: ' if ahead.rounds else ''}{time_left}")
    return "\n".join(lines)


def _describe_search(plan: StudyPlan, ahead: Preview, key: SearchKey, seeds: int) -> str:
    name = f"search for the beta of {key[2]} on {data_title(key[0], key[1])}"
    if key in ahead.betas:
        return f"  {'done':<8} {name}: beta = {ahead.betas[key]:g}"
    runs = ahead.rounds[key]
    betas = sorted({run.recipe.beta for run in runs if run.recipe.beta is not None})
    tried = f"now with beta {', '.join(f'{beta:g}' for beta in betas)} ({count(len(runs) // len(betas), 'run')} each)"
    left = count(sum(not run.folder.done for run in runs), "run")
    most = "" if plan.betas == ("search",) else "up to "
    later = f", then {most}{count(seeds, 'run')} with the beta that it finds" if seeds else ""
    state = "started" if plan.search_folder(key).exists() else "to do"
    return f"  {state:<8} {name}: {left} or more, {tried}{later}"


def _runs_after(plan: StudyPlan, key: SearchKey) -> Iterator[PlannedRun]:
    """The runs with the beta that a search will find, unless the plan may have them anyway."""
    if plan.betas == ("search",):
        base, folder = plan.base(*key), plan.search_folder(key)
        for seed in plan.seeds:
            yield PlannedRun(replace(base, seed=seed), folder / f"found-seed{seed}")


@dataclass(frozen=True)
class Estimate:
    """How long the runs that are left will take."""

    left: int
    seconds: float | None
    """``None`` if it is unknown."""
    why: str

    def __str__(self) -> str:
        if not self.left:
            return f"0 runs to do: {self.why}."
        if self.seconds is None:
            return f"{count(self.left, 'run')} to do, time unknown: {self.why}."
        return f"{count(self.left, 'run')} to do, about {_duration(self.seconds)}: {self.why}."


def estimate(
    runs: Sequence[PlannedRun],
    out: str,
    together: int = 1,
    on: Sequence[torch.device] = (torch.device("cpu"),),
    *,
    trial: bool = False,
) -> Estimate:
    """Estimate how long the runs that are left will take.

    The time per epoch is that of finished runs of the same data set and model on the same kind of device, with the
    same method if there are any; runs that are trained together share the time in the logs. If there are none and
    ``trial`` is true, a few steps of one run are tried. Several runs together are faster on a GPU, so this is an upper
    bound. The time of the evaluation is not counted.

    Args:
        runs: all runs, done or not.
        out: the folder with finished runs.
        together: runs at a time per device.
        on: the devices.
        trial: whether to try a few steps.
    """
    left = [run for run in runs if not run.folder.done]
    if not left:
        return Estimate(0, 0.0, "all are done")
    at_once = together * len(on)
    seen, logged = _logged(out, environment(on[0], 1)["device"])
    tried: dict[tuple[object, ...], float] = {}
    total = 0.0
    for run in left:
        recipe = run.recipe
        epochs = max(epochs_of(recipe) - epochs_done(run), 0)
        own, *_ = keys = _keys(recipe)
        known = next((seen[key] for key in keys if key in seen), None)
        if known is not None:
            total += epochs * sum(known) / len(known) / at_once
        elif trial:
            tried[own] = tried[own] if own in tried else _try(recipe)
            total += epochs * tried[own] / len(on)
        else:
            why = f"{out} has no finished run of {recipe.data} with {recipe.model} on such a device"
            return Estimate(len(left), None, why)
    parts = []
    if len(tried) < len({_keys(run.recipe)[0] for run in left}):
        parts.append(f"{count(logged, 'finished run')} in {out}, {at_once} at a time")
    parts += ["a few steps of one run alone"] if tried else []
    return Estimate(len(left), total, f"based on {' and '.join(parts)}")


def _logged(out: str, device: str) -> tuple[dict[tuple[object, ...], list[float]], int]:
    """Mean seconds per epoch of runs finished on a device, by their keys; and how many runs have a log."""
    try:
        finished = [run for run in read_runs(out, searches=True) if _device_of(run) == device]
    except FileNotFoundError:
        finished = []
    seen: dict[tuple[object, ...], list[float]] = {}
    logged = 0
    for one in finished:
        seconds = [line["seconds"] for line in one.log() if "seconds" in line]
        if seconds:
            logged += 1
            for key in _keys(one.recipe):
                seen.setdefault(key, []).append(sum(seconds) / len(seconds))
    return seen, logged


def _device_of(run: Run) -> str:
    file = run.path / "environment.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["device"]) if file.exists() else ""


def _keys(recipe: Recipe) -> list[tuple[object, ...]]:
    """What runs of about the same speed share, most specific first."""
    data, imbalance, model = recipe.data, recipe.imbalance, recipe.model
    return [(data, imbalance, model, recipe.method), (data, imbalance, model), (data, model)]


def _try(recipe: Recipe) -> float:
    """Seconds per epoch, from a few steps in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(recipe, evaluate_every=0, checkpoint_epochs=0), RunFolder(folder))
        warm = min(_WARM_STEPS, trainer.steps_total // 2)
        # Stop before the last step, which is followed by the evaluation.
        most = max(1, min(_TRIED_STEPS, trainer.steps_total - warm))
        steps = trainer.steps()
        for _ in islice(steps, warm):
            pass
        _synchronize(trainer.device)
        start, counted = time.perf_counter(), 0
        for _ in islice(steps, most):
            counted += 1
            if time.perf_counter() - start > _TRIED_SECONDS:
                break
        _synchronize(trainer.device)
        seconds = time.perf_counter() - start
        steps.close()  # type: ignore[attr-defined]
        return seconds / counted * trainer.loaders.steps_per_epoch


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> _duration(0.2), _duration(40), _duration(600), _duration(9000)
        ('1 s', '40 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

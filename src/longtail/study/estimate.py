"""What is left of a plan, and about how long it will take."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from longtail.data import data_title
from longtail.study.captions import count
from longtail.study.conduct import Preview, preview
from longtail.study.execute import devices, epochs_done, epochs_of
from longtail.study.plan import PlannedRun, SearchKey, StudyPlan
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe
from longtail.train.trainer import Trainer

_WARM_STEPS = 3  # the first steps on a device are slower
_TRIED_STEPS = 30
_TRIED_SECONDS = 3.0


def describe(plans: Sequence[StudyPlan], *, searches_only: bool = False) -> str:
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
        lines += [_describe_search(plan, ahead, key) for key in plan.searches]
        trials = [run for runs in ahead.rounds.values() for run in runs]
        lines.append(("At least: " if ahead.rounds else "") + estimate([*ahead.runs, *trials]))
    return "\n".join(lines)


def _describe_search(plan: StudyPlan, ahead: Preview, key: SearchKey) -> str:
    name = f"search for the beta of {key[2]} on {data_title(key[0], key[1])}"
    if key in ahead.betas:
        return f"  {'done':<8} {name}: beta = {ahead.betas[key]:g}"
    runs = ahead.rounds[key]
    betas = sorted({run.recipe.beta for run in runs if run.recipe.beta is not None})
    left = count(sum(not run.folder.done for run in runs), "run")
    state = "started" if plan.search_folder(key).exists() else "to do"
    return f"  {state:<8} {name}: {left} or more, now with beta {', '.join(f'{beta:g}' for beta in betas)}"


def estimate(runs: Sequence[PlannedRun]) -> str:
    """Return how many runs are left, and about how long they take, from a few steps of one run per method and model.

    Several runs together are faster on a GPU, so this is an upper bound; evaluation is not counted.
    """
    left = [run for run in runs if not run.folder.done]
    if not left:
        return "0 runs to do: all are done."
    seconds_per_epoch: dict[tuple[object, ...], float] = {}
    total = 0.0
    for run in left:
        recipe = run.recipe
        key = (recipe.data, recipe.imbalance, recipe.model, recipe.method)
        if key not in seconds_per_epoch:
            seconds_per_epoch[key] = _try(recipe)
        total += max(epochs_of(recipe) - epochs_done(run), 0) * seconds_per_epoch[key]
    time_left = _duration(total / len(devices(left)))
    return f"{count(len(left), 'run')} to do, about {time_left} one after the other, from a few training steps."


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

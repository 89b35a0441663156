"""How long the runs of a plan take, from a few real steps and batches of each kind of run."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from longtail._program import count
from longtail._progress import phase
from longtail.study.execute import devices
from longtail.study.planning import PlannedRun
from longtail.train.fleet import at_a_time
from longtail.train.frozen import Sample
from longtail.train.loggers import LOGGERS
from longtail.train.pilots import DECAYS
from longtail.train.recipe import OPENING, Recipe
from longtail.train.trainer import Trainer

_SECONDS = 5.0  # of measuring, for all kinds of runs together
_FEWEST = 3  # steps that are measured
_WARM = 2  # steps before them
_SHARE = 0.3  # of the time for evaluation


@dataclass(frozen=True)
class Speed:
    """How long the parts of a run take, in seconds."""

    step: float
    image: float
    """Evaluation of an image."""
    ends: float = 0.0
    """Building the model at the start, and writing the files at the end."""
    begun: float = 0.0
    """CPU time of this process until the first steps were taken."""

    def of(self, trainer: Trainer, recipe: Recipe) -> float:
        """Return the seconds of one run of a recipe, without its pilots."""
        epochs, images = sum(recipe.stage_epochs), sum(map(len, trainer.dataset.splits.values()))
        evaluations = epochs // recipe.evaluate_every if recipe.evaluate_every else 0
        evaluated = (evaluations + 1) * images + len(trainer.dataset.train)  # the last also measures training mode
        if recipe.best_epoch and trainer.dataset.val is not None:
            evaluated += epochs * len(trainer.dataset.val)
        return self.ends + epochs * trainer.loaders.steps_per_epoch * self.step + evaluated * self.image


def estimate(
    runs: Sequence[PlannedRun],
    *,
    together: int | None = None,
    seconds: float = _SECONDS,
    from_start: bool = False,
) -> tuple[dict[Path, float], float]:
    """Return the seconds of each run that is not done, and of all of them on the devices of this machine.

    Evaluation, pilots and epochs that are done already count. The features of a frozen
    backbone, which the runs on a data set share, count once, in the sum.

    Args:
        runs: the runs.
        together: how many train at a time on a device; default: as many as a fleet takes.
        seconds: how long to measure, about; at least a few steps of each kind of run are taken.
        from_start: whether the time for all of them includes what this process did before its first steps, such as
            imports and reading data, because another process will repeat it.
    """
    kinds: dict[Hashable, list[PlannedRun]] = {}
    for run in runs:
        kinds.setdefault(_kind(run.recipe), []).append(run)
    places = devices(runs)
    found: dict[Path, float] = {}
    features: dict[str, float] = {}  # of each data set, which its runs share
    total = start = 0.0
    with phase(f"Measuring {count(len(kinds), 'kind')} of runs"):
        for alike in kinds.values():
            number = len(alike) if together is None else min(together, len(alike))
            sample = Sample()
            of_kind, begun = _seconds(alike, places[0], number, seconds / len(kinds), sample)
            start = start or begun
            found |= of_kind
            total += sum(of_kind.values())
            features[alike[0].recipe.data] = sample.seconds
    total += sum(features.values())
    return found, total / min(len(places), max(len(runs), 1)) + (start if from_start else 0.0)


def _kind(recipe: Recipe) -> Hashable:
    """What the speed of a run depends on."""
    data = ("data", "imbalance", "image_size", "folds", "validation", "test", *OPENING)
    loading = ("augment", "mixup", "cutmix", "workers", "sampler")
    model = ("method", "model", "train", "precision", "channels_last", "kernels", "compile")
    steps = ("batch_size", "accumulate", "optimizer", "clip_grad", "ema", "best_epoch")
    return tuple(getattr(recipe, name) for name in (*data, *loading, *model, *steps))


def _seconds(
    runs: Sequence[PlannedRun], device: torch.device, together: int, seconds: float, sample: Sample
) -> tuple[dict[Path, float], float]:
    """Return the seconds of runs of one kind, and the CPU time until its first steps; a fleet shares the device."""
    recipe = runs[0].recipe.changed(**dict.fromkeys(LOGGERS, False))
    cache = runs[0].folder.cache if recipe.cache else None
    with TemporaryDirectory() as folder:
        trainers = [Trainer(recipe, folder, device=device)]
        number = min(together, at_a_time(recipe, trainers[0].dataset, device))
        trainers += [Trainer(recipe, folder, device=device) for _ in range(number - 1)]
        for trainer in trainers:
            trainer.stages.cache, trainer.stages.sample = cache, Sample(8)
        trainers[0].stages.sample = sample
        speed = _measure(trainers, seconds)
    if trainers[0].loaders.steps_per_epoch * speed.step < seconds / 4:
        speed = replace(speed, ends=_measure_ends(recipe, device, speed, cache))
    return {run.path: _run_seconds(run, trainers[0], speed) for run in runs}, speed.begun


def _measure(trainers: Sequence[Trainer], seconds: float) -> Speed:
    """Return the speed of a run among others like it that take their steps in turn."""
    device, models, turns = trainers[0].device, [], []
    for trainer in trainers:
        model = trainer.stages.build()
        running = trainer.stages.start(model, 0)
        running.objective.begin_epoch(0)
        models.append(model)
        turns.append((trainer, running))
    times: list[float] = []  # of one step of each
    epoch, most, begun = 0, seconds * (1 - _SHARE), 0.0
    while not _enough(times, most):
        drivers = [running.driver.epoch(trainer.recipe.seed, epoch, 0) for trainer, running in turns]
        begin = time.perf_counter()
        for _ in zip(*drivers, strict=True):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - begin)
            begun = time.process_time() if len(times) <= _WARM else begun
            if _enough(times, most):
                break
            begin = time.perf_counter()
        epoch += 1
    warm = times[_WARM:] or times[-1:]
    step = sum(warm) / len(warm) / len(trainers)
    image = trainers[0].evaluator.seconds_per_image(models[0], "train", seconds * _SHARE)
    for trainer in trainers:
        trainer.evaluator.release()
        trainer.loaders.release()
    return Speed(step, image, begun=begun)


def _enough(times: Sequence[float], most: float) -> bool:
    """Whether steps were measured for long enough; a single one counts if it takes too long."""
    return sum(times) > most and (len(times) >= _WARM + _FEWEST or sum(times) > 2 * most)


def _measure_ends(recipe: Recipe, device: torch.device, speed: Speed, cache: Path | None) -> float:
    """Return what a run of one epoch takes in addition to its steps and its evaluation."""
    short = recipe.changed(epochs=1, evaluate_every=0)
    if short.spec.is_auto(short.params):
        short = short.changed(folds=max(short.folds, 2))  # no pilots
    if short.weight_decay == "auto":
        short = short.changed(weight_decay=DECAYS[0])
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        trainer = Trainer(short, folder, device=device)
        trainer.stages.cache, trainer.stages.sample = cache, Sample(8)
        for _ in trainer.steps():
            pass
        return max(0.0, time.perf_counter() - begin - speed.of(trainer, short))


def _run_seconds(run: PlannedRun, trainer: Trainer, speed: Speed) -> float:
    runs = trainer.epochs_total // sum(trainer.epochs)  # the pilots are runs too
    logged = sum(folder.epochs_logged for folder in (run.folder, *run.folder.pilots))
    return runs * speed.of(trainer, run.recipe) * max(0.0, 1 - logged / (sum(run.recipe.stage_epochs) * runs))

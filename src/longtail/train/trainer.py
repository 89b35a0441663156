"""The trainer: drives the step through a method's stages for one model, and leaves a run folder."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from longtail.data import ArrayImages, Resident
from longtail.data.plan import Batch
from longtail.data.samplers import ClassAware, Instance, Progressive, Sampler, SquareRoot
from longtail.methods import Stage, Task, find_method
from longtail.metrics import ClassStatistics, recall
from longtail.models import HeadName, Model, build_model, replace_head
from longtail.objectives import Objective
from longtail.ranks import Ranks
from longtail.train.checkpoint import (
    Position,
    fingerprint,
    latest_checkpoint,
    load_checkpoint,
    restore,
    save_checkpoint,
)
from longtail.train.drivers import Captured, Driver, Eager
from longtail.train.evaluation import (
    NO_LABEL,
    as_in_training,
    kept_splits,
    pass_over,
    predictions_writer,
    write_statistics,
)
from longtail.train.files import write_json, write_tensors
from longtail.train.folder import RunFolder
from longtail.train.loading import Loader, Loaders, open_data
from longtail.train.posthoc import Classifier, PostHoc, Search, classifier_of
from longtail.train.recipe import Recipe
from longtail.train.results import measures
from longtail.train.schedules import learning_rate
from longtail.train.step import Step, make_optimizer
from longtail.train.tensorboard import TensorBoard

__all__ = ["NotFiniteError", "StoppedError", "Trainer", "pick_device"]

_CHECK_SECONDS = 10.0  # how often the device is asked whether the loss is finite
_CIFAR_MODELS = ("resnet20", "resnet32", "resnet44", "resnet56", "small-cnn")


class NotFiniteError(RuntimeError):
    """The loss is infinite or not a number."""


class StoppedError(RuntimeError):
    """Training was asked to stop, and has saved where it is."""


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that a recipe names; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"Expected `device` to be auto, cpu, cuda or mps, but got {name!r}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Expected a GPU for `device` = {name}, but torch finds none.")
    return device


@dataclass
class _Running:
    """A stage that is under way."""

    stage: Stage
    objective: Objective
    loader: Loader
    step: Step
    driver: Driver
    epochs: int
    first_epoch: int
    """Epochs of the stages before: each epoch of a run has draws of its own."""
    rate: Callable[[float], float]


class Trainer:
    """Trains one model as a recipe says.

    ``for _ in trainer.steps(): …`` takes all steps of all stages, one at a time, then measures the model and writes the
    result; :meth:`run` does it in one call. What was stopped goes on from its last checkpoint.

    Args:
        recipe: every setting.
        folder: where the run is kept.
        ranks: the processes that train together.
        device: where to train; default: the recipe's.
    """

    def __init__(
        self, recipe: Recipe, folder: RunFolder, *, ranks: Ranks | None = None, device: torch.device | None = None
    ) -> None:
        self.recipe, self.folder = recipe, folder
        self.ranks = Ranks.of_this_process() if ranks is None else ranks
        self.device = pick_device(recipe.device) if device is None else device
        self.method = find_method(recipe.method)
        self.knobs = recipe.knobs
        self.dataset = open_data(recipe)
        self.loaders = Loaders(recipe, self.dataset, self.device, self.ranks)
        self.precision = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
        self.position = Position()
        self.stop_asked = False
        """Set it to have the next step be the last: training saves where it is and raises :class:`StoppedError`."""
        self.last_line: dict[str, Any] = {}
        """What was logged last."""
        self._board = TensorBoard(folder.path / "tensorboard") if recipe.tensorboard and self.ranks.first else None
        self._check_sampler()
        if self.method.posthoc is not None and self.knobs["tau"] is None and self.dataset.val is None:
            raise ValueError(
                f"Expected `tau` for {recipe.method}, or validation data to choose it on (`validation` = 0.1 holds "
                "some out), but got neither."
            )

    @property
    def epochs(self) -> list[int]:
        """Epochs of each stage."""
        return [self.recipe.epochs if s.epochs is None else int(self.knobs[s.epochs]) for s in self.method.stages]

    @property
    def epochs_done(self) -> int:
        """Epochs that are behind, of all stages."""
        return sum(self.epochs[: self.position.stage]) + self.position.epoch

    def run(self) -> dict[str, Any]:
        """Train to the end; the result."""
        for _ in self.steps():
            pass
        return self.folder.result()

    def steps(self) -> Iterator[None]:
        """Take the steps, one at a time, and leave a finished run."""
        if self.folder.done:
            return
        data = fingerprint(self.dataset, self.recipe.method, self.recipe.model)
        state: dict[str, Tensor] | None = None
        latest = latest_checkpoint(self.folder.checkpoints)
        if latest is not None:
            self.position, state = load_checkpoint(latest, data)
        if self.ranks.first:
            self.folder.begin(self.recipe, self.device, self.ranks.world)
            self.folder.cut_log(self.position.log_length)
        torch.backends.cudnn.benchmark = True
        model = self._build()
        running: _Running | None = None
        for number, stage in enumerate(self.method.stages):
            if number > 0:
                self._next_head(model, stage, number)
            if number < self.position.stage:
                continue
            running = self._start(model, stage, number)
            if state is not None:
                restore(state, running.step, model)
                state = None
            yield from self._stage(running, model, data)
            self.position = Position(number + 1)
        assert running is not None
        self._finish(model, running)
        if self._board is not None:
            self._board.close()

    # What a stage is made of

    def _head(self, stage: Stage) -> HeadName:
        name = self.recipe.head if self.recipe.head is not None and stage.head == "linear" else stage.head
        if name == "reslt":
            return "reslt-cifar" if self.recipe.model in _CIFAR_MODELS else "reslt-imagenet"
        return name  # type: ignore[return-value]

    def _build(self) -> Model:
        knobs, recipe = self.knobs, self.recipe
        model = build_model(
            recipe.model,
            self.dataset.num_classes,
            head=self._head(self.method.stages[0]),
            in_channels=self.loaders.channels,
            pretrained=recipe.weights or recipe.pretrained,
            projection=(knobs["hidden"], knobs["projection"]) if self.method.projection else None,
            prototypes=self.method.prototypes,
            scale=knobs.get("scale", 30.0),
            branches=knobs.get("branches", 3),
            seed=recipe.seed,
        )
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if recipe.channels_last else model

    def _next_head(self, model: Model, stage: Stage, number: int) -> None:
        replace_head(model, self._head(stage), seed=self.recipe.seed + number, keep_weights=not stage.reinit)

    def _sampler(self, stage: Stage, epochs: int) -> Sampler:
        chosen = self.recipe.sampler
        if chosen is None or stage.train == "classifier":  # which a second stage is about
            return stage.sampler(self.knobs)
        per_class = self.knobs.get("per_class", 4)
        made: dict[str, Callable[[], Sampler]] = {
            "instance": Instance,
            "class-aware": lambda: ClassAware(per_class),
            "square-root": SquareRoot,
            "progressive": lambda: Progressive(epochs),
        }
        return made[chosen]()

    def _check_sampler(self) -> None:
        if self.recipe.sampler in {None, "instance"} or self.recipe.correct_twice:
            return
        shift = self._objective(self.method.stages[0], self.recipe.epochs).shift
        if shift is not None and bool(shift.any()):
            raise ValueError(
                f"Expected the instance sampler with {self.recipe.method}, whose loss corrects for class counts "
                f"already, but got {self.recipe.sampler}; `correct_twice` allows it."
            )

    def _objective(self, stage: Stage, epochs: int) -> Objective:
        recipe = self.recipe
        return stage.objective(
            Task(self.dataset.counts, self.dataset.groups, epochs, self.knobs, recipe.seed, recipe.label_smoothing)
        )

    def _start(self, model: Model, stage: Stage, number: int) -> _Running:
        recipe, epochs = self.recipe, self.epochs[number]
        objective = self._objective(stage, epochs).to(self.device)
        objective.ranks = self.ranks
        loader = self.loaders.training(objective.views, self._sampler(stage, epochs), drop_last=recipe.drop_last)
        optimizer = make_optimizer(
            model.trainable(stage.train),
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        wrapped: nn.Module = model
        if recipe.compile:
            wrapped = torch.compile(wrapped)  # type: ignore[assignment]
        if self.ranks.world > 1:
            wrapped = DistributedDataParallel(wrapped, device_ids=[self.device] if self.device.type == "cuda" else None)
        step = Step(wrapped, objective, optimizer, precision=self.precision, channels_last=recipe.channels_last)
        alone = self.ranks.world == 1 and recipe.accumulate == 1
        if isinstance(loader, Resident) and self.device.type == "cuda" and alone:
            driver: Driver = Captured(step, loader, recipe.mixup)
        else:
            driver = Eager(step, loader, recipe.accumulate, recipe.mixup)

        def rate(epoch: float) -> float:
            if stage.lr is not None:
                return learning_rate(epoch, lr=self.knobs[stage.lr], epochs=epochs, schedule="cosine")
            return learning_rate(
                epoch,
                lr=recipe.lr,
                epochs=epochs,
                schedule=recipe.schedule,
                milestones=recipe.milestones,
                decay=recipe.decay,
                warmup=recipe.warmup,
            )

        return _Running(stage, objective, loader, step, driver, epochs, sum(self.epochs[:number]), rate)

    # The steps of a stage

    def _stage(self, running: _Running, model: Model, data: dict[str, Any]) -> Iterator[None]:
        number, begin = self.position.stage, self.position.epoch
        saved = time.monotonic()
        for epoch in range(begin, running.epochs):
            start = self.position.step if epoch == begin else 0
            lr = running.rate(epoch)
            running.step.set_rate(lr)
            running.objective.begin_epoch(epoch)
            model.train()
            if start == 0:
                running.step.taken.zero_()
                running.step.loss_sum.zero_()
            began = checked = time.monotonic()
            steps = running.driver.epoch(self.recipe.seed, running.first_epoch + epoch, start)
            for taken, _ in enumerate(steps, start + 1):
                self.position = Position(number, epoch, taken)
                if time.monotonic() - checked > _CHECK_SECONDS:
                    self._check_finite(running, epoch, lr)
                    checked = time.monotonic()
                due = time.monotonic() - saved > 60 * self.recipe.checkpoint_minutes
                if self.ranks.any(self.stop_asked or due):
                    self._save(running, model, data, epoch, lr)
                    saved = time.monotonic()
                    if self.ranks.any(self.stop_asked):
                        raise StoppedError(f"Stopped in epoch {epoch} after step {taken}.")
                yield
            self._check_finite(running, epoch, lr)
            running.objective.end_epoch()
            self._log(running, model, epoch, lr, time.monotonic() - began)
            self.position = Position(number, epoch + 1)
            every = self.recipe.checkpoint_epochs
            if (every and (epoch + 1) % every == 0) or epoch + 1 == running.epochs:
                self._save(running, model, data, epoch, lr)
                saved = time.monotonic()

    def _save(self, running: _Running, model: Model, data: dict[str, Any], epoch: int, lr: float) -> None:
        self._check_finite(running, epoch, lr)
        if self.ranks.first:
            position = replace(self.position, log_length=self.folder.log_length)
            save_checkpoint(self.folder.checkpoints, position, running.step, model, data=data, keep=self.recipe.keep)
        self.ranks.wait()

    def _check_finite(self, running: _Running, epoch: int, lr: float) -> None:
        running.driver.settle()
        bad = int(running.step.first_bad)
        if bad < 0:
            return
        if self.ranks.first:
            indices = self._samples(running, epoch, bad)
            labels = self.dataset.train.labels[indices]
            found = {"stage": self.position.stage, "epoch": epoch, "step": bad, "lr": lr}
            write_json(self.folder.path / "not_finite.json", {**found, "labels": labels, "samples": indices})
        raise NotFiniteError(
            f"Expected a finite loss, but in epoch {epoch}, step {bad}, at learning rate {lr:g}, it was not; that "
            f"batch's labels are in {self.folder.path / 'not_finite.json'}."
        )

    def _samples(self, running: _Running, epoch: int, step: int) -> Tensor:
        """Which training samples a step saw, on all ranks."""
        found = []
        for rank in range(self.ranks.world):
            plan = replace(running.loader.plan, rank=rank)
            batches = plan.training(self.recipe.seed, running.first_epoch + epoch, start=step * self.recipe.accumulate)
            found += [batch.indices for batch in islice(batches, self.recipe.accumulate)]
        return torch.cat(found)

    # What is logged and left

    def _log(self, running: _Running, model: Model, epoch: int, lr: float, seconds: float) -> None:
        taken = int(running.step.taken)
        images = len(self.dataset.train)
        line: dict[str, Any] = {
            "stage": self.position.stage,
            "epoch": epoch,
            "loss": float(running.step.loss_sum) / max(taken, 1),
            "lr": lr,
            "images_per_second": round(images / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 3),
        }
        every = self.recipe.evaluate_every
        if every and (epoch + 1) % every == 0:
            line["recall"] = self._recalls(model, running.first_epoch + epoch)
        self.last_line = line
        if self.ranks.first:
            self.folder.log(line)
        if self._board is not None:
            self._board.add(running.first_epoch + epoch + 1, line)

    def _recalls(self, model: Model, epoch: int) -> dict[str, dict[str, float]]:
        """Recall of each group on train and test, for the log only: nothing is chosen by it."""
        found = {}
        self.ranks.agree(model.buffers())
        for name, split in self.dataset.splits.items():
            if name == "train" and self.recipe.train_stats == "paper":
                one = self._pass_as_trained(model, epoch)
            else:
                model.eval()
                one = pass_over(
                    model, self.loaders.evaluation(split).evaluation(), precision=self.precision, ranks=self.ranks
                )
            values = recall(one.correct, one.samples, self.dataset.groups)
            found[name] = {"all": values.all, **values.groups}
        return found

    def _pass_as_trained(
        self,
        model: Model,
        epoch: int,
        shift: Tensor | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> ClassStatistics:
        """A pass over the training split as the paper's authors took it: training mode, augmented, nothing learnt."""
        loader = self.loaders.training(("weak",), Instance(), drop_last=False)
        with as_in_training(model):
            return pass_over(
                model,
                self._counted_once(loader.training(self.recipe.seed, epoch)),
                precision=self.precision,
                ranks=self.ranks,
                shift=shift,
                change=change,
            )

    def _counted_once(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of training in which samples that only fill up the last of several ranks' have no label."""
        place = self.ranks.rank
        for batch in batches:
            places = place + self.ranks.world * torch.arange(len(batch.labels), device=batch.labels.device)
            yield batch._replace(labels=batch.labels.masked_fill(places >= len(self.dataset.train), NO_LABEL))
            place += self.ranks.world * len(batch.labels)

    def _finish(self, model: Model, running: _Running) -> None:
        """Measure the model and write what a run leaves; the result last."""
        shift = running.objective.shift
        self.ranks.agree(model.buffers())  # each rank's BatchNorm has seen its own last batch
        classifier = classifier_of(model.head.weight, model.head.bias, self.dataset.counts)
        posthoc, trace = self._posthoc(model, classifier)
        change = None if posthoc is None else lambda logits: posthoc.apply(logits, classifier)
        statistics = self._evaluate(model, shift, change)
        statistics["train_paper"] = self._pass_as_trained(model, sum(self.epochs), shift, change)
        if self.ranks.first:
            self._write(model, running.stage, statistics, classifier, (posthoc, trace))
        self.ranks.wait()  # none leaves before all is written

    def _write(
        self,
        model: Model,
        stage: Stage,
        statistics: dict[str, ClassStatistics],
        classifier: Classifier,
        chosen: tuple[PostHoc | None, dict[str, float]],
    ) -> None:
        posthoc, trace = chosen
        write_statistics(self.folder.statistics_file, statistics, classifier)
        write_tensors(self.folder.model_file, model.state_dict(), self._card(stage))
        result = measures(statistics, self.dataset.groups, self.dataset.class_names, self.recipe.train_stats)
        about = {
            "data": self.dataset.name,
            "method": self.recipe.method,
            "knobs": self.knobs,
            "seed": self.recipe.seed,
            "epochs": self.epochs,
            "reported": "last epoch",
            "posthoc": None if posthoc is None else str(posthoc),
            "posthoc_chosen_on_val": trace,
        }
        write_json(self.folder.result_file, {**about, **result})

    def _evaluate(
        self, model: Model, shift: Tensor | None, change: Callable[[Tensor], Tensor] | None
    ) -> dict[str, ClassStatistics]:
        """Every split's statistics; plain logits and labels are written down on the way."""
        model.eval()
        splits, classes = self.dataset.splits, self.dataset.num_classes
        kept = kept_splits(splits, classes)
        writer = predictions_writer(self.folder.predictions_file, splits, classes) if self.ranks.first else None

        def write(name: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            assert writer is not None  # the first rank is given all ranks' rows
            writer.write(f"{name}.logits", rows, logits)
            writer.write(f"{name}.labels", rows, labels)

        try:
            found = {
                name: pass_over(
                    model,
                    self._until_stopped(self.loaders.evaluation(split).evaluation()),
                    precision=self.precision,
                    ranks=self.ranks,
                    shift=shift,
                    change=change,
                    write=partial(write, name) if name in kept else None,
                )
                for name, split in self.dataset.splits.items()
            }
            if writer is not None:
                writer.close()
        finally:
            if writer is not None:
                writer.abandon()
        return found

    def _until_stopped(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of the last evaluation, before which all was saved; one process may leave it at any of them."""
        for batch in batches:
            if self.stop_asked and self.ranks.world == 1:
                raise StoppedError("Stopped in the last evaluation.")
            yield batch

    def _posthoc(self, model: Model, classifier: Classifier) -> tuple[PostHoc | None, dict[str, float]]:
        """The method's step after training, its strength chosen on validation data unless given."""
        kind = self.method.posthoc
        if kind is None:
            return None, {}
        if self.knobs["tau"] is not None:
            return PostHoc(kind, self.knobs["tau"]), {}
        search = Search(kind, classifier, self.dataset.groups)
        assert self.dataset.val is not None  # checked at the start
        model.eval()
        pass_over(
            model,
            self.loaders.evaluation(self.dataset.val).evaluation(),
            precision=self.precision,
            ranks=self.ranks,
            write=lambda _, logits, labels: search.add(logits, labels),
        )
        strength = self.ranks.sum(
            torch.tensor(search.best().strength if self.ranks.first else 0.0, dtype=torch.float64)
        )
        return PostHoc(kind, float(strength)), search.recalls() if self.ranks.first else {}

    def _card(self, stage: Stage) -> dict[str, Any]:
        """What is needed to use the model."""
        return {
            "model": self.recipe.model,
            "head": self._head(stage),
            "scale": self.knobs.get("scale", 30.0),
            "branches": self.knobs.get("branches", 3),
            "classes": list(self.dataset.class_names),
            "channels": self.loaders.channels,
            "image_size": self.loaders.image_size,
            "in_memory": isinstance(self.dataset.train.images, ArrayImages),
            "augment": self.recipe.augment,
            "mean": list(self.dataset.normalisation.mean),
            "std": list(self.dataset.normalisation.std),
            "counts": self.dataset.counts.tolist(),
        }

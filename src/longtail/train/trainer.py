"""The trainer: takes one model through the stages of a method, and leaves a run folder."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._io import write_json, write_tensors
from longtail._ranks import Ranks
from longtail.beta import ShiftFit
from longtail.data import ArrayImages, DataSet, FeatureVectors
from longtail.data.sampling.samplers import Instance
from longtail.metrics import ClassStatistics
from longtail.models import Model
from longtail.train.checkpoint import (
    Position,
    fingerprint,
    latest_checkpoint,
    load_checkpoint,
    restore,
    save_checkpoint,
)
from longtail.train.dataset import open_data, pilots_of
from longtail.train.evaluation import Evaluator
from longtail.train.folder import RunFolder, check_same_folders, lock_folders
from longtail.train.loaders import Loaders
from longtail.train.loggers import LOGGERS, open_loggers
from longtail.train.measures import POSTHOCS, Classifier, PostHoc, measures
from longtail.train.pilots import DECAYS, FOLDS, NO_PILOTS, choose_decay, effect, pooled_fit, summary
from longtail.train.recipe import Recipe, pick_device, with_precision
from longtail.train.stages import Running, Stages
from longtail.train.stored import stored_batches, write_statistics
from longtail.train.weights import BestEpoch

_CHECK_SECONDS = 10.0  # between checks that the loss is finite, for which the host waits for the device


class NotFiniteError(RuntimeError):
    """The loss or the logits of the trained model are infinite or NaN."""


class StoppedError(RuntimeError):
    """Training was stopped on request, after it saved its state."""

    def __init__(self, message: str, failed: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.failed = dict(failed or {})
        """With several runs, the folders of those that had failed, and why."""
        self.signal: int | None = None
        """The signal that stopped it, if this process received one."""


class Trainer:
    """Trains one model by a recipe.

    :meth:`run` trains to the end. ``for _ in trainer.steps(): …`` does the same one step at a time. A stopped run
    continues from its last checkpoint. A folder in which another process trains, or that holds a run of another
    recipe, raises an error.

    Args:
        recipe: every setting.
        folder: the run folder.
        ranks: the processes that train together.
        device: where to train; default: the recipe's.
        dataset: what to train on; default: the data set that the recipe names. If given, ``data`` is only a name.
        on_log: called with every line of the log, on the first rank.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder | Path | str,
        *,
        ranks: Ranks | None = None,
        device: torch.device | None = None,
        dataset: DataSet | None = None,
        on_log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.folder = RunFolder(folder)
        self.ranks = Ranks.of_this_process() if ranks is None else ranks
        self.device = pick_device(recipe.device) if device is None else device
        self.recipe = recipe = self._with_precision(recipe)
        self.method, self.params = recipe.spec, recipe.params
        self.epochs = recipe.stage_epochs
        """Epochs of each stage."""
        self._given_data = dataset
        self.dataset = open_data(recipe, dataset, self.folder.cache)
        self.loaders = Loaders(recipe, self.dataset, self.device, self.ranks, dict(self.dataset.unreadable))
        self.stages = Stages(self.loaders, self.folder.cache if recipe.cache else None)
        self.evaluator = Evaluator(self.loaders)
        self.position = Position()
        self.stop_requested = False
        """Set it to stop after the next step: training saves its state and raises :class:`StoppedError`."""
        self.live: dict[str, Any] = {}
        """Progress, updated now and then: epoch, loss (mean over the epoch so far), lr and images_per_second."""
        self.stream: torch.cuda.Stream | None = None
        """The stream on which the steps of this stage are replayed, if they are."""
        self.on_log = on_log
        self._listed = 0
        self._saved = 0.0  # when the last checkpoint was written
        self._loggers = open_loggers(recipe, self.folder) if self.ranks.first else []
        if recipe.bad_images == "skip" and self.ranks.world > 1:
            raise ValueError(
                "Expected `bad_images` = error with several processes, whose batches must have the same size, but got "
                "skip."
            )
        self._best = BestEpoch(recipe.patience) if recipe.best_epoch else None
        if self._best is not None and self.dataset.val is None:
            raise ValueError(
                "Expected validation data with `best_epoch`, but there is none; `validation` = 0.1 holds out a "
                "tenth of the training data."
            )
        if self.method.chooses_tau(self.params) and self.dataset.val is None:
            raise ValueError(
                f"Expected `{self.method.tau}` for {recipe.method}, or validation data on which to choose it, but got "
                "neither; `validation` = 0.1 holds out a tenth of the training data."
            )
        self.pilots: list[Trainer] = []
        """Runs that are trained before this one: the first to choose the weight decay, the others to measure beta."""
        if self.method.posthoc is not None:
            POSTHOCS.find(self.method.posthoc)
        self._auto = self.method.is_auto(self.params)
        if self._auto and self.method.posthoc is not None:
            raise ValueError(
                f"Expected a number for `{self.method.beta}`, because {recipe.method} has a post-hoc step, not auto."
            )
        self._tried = len(DECAYS) if recipe.weight_decay == "auto" else 0
        self._pilots_needed = self._tried + pilots_of(recipe, self.dataset)
        self._decay: dict[str, Any] | None = None

    def _with_precision(self, recipe: Recipe) -> Recipe:
        """Resolve ``precision``; a resumed run keeps the precision that it began with."""
        if recipe.precision == "auto" and self.folder.begun:
            begun = self.folder.recipe()
            if begun.precision != "auto":  # of a recipe that was written before the run began
                return replace(recipe, precision=begun.precision, channels_last=begun.channels_last)
        return with_precision(recipe, self.device)

    @property
    def epochs_done(self) -> int:
        """Finished epochs of all stages; those of pilots come first."""
        return self._own_epochs_done + sum(pilot.epochs_done for pilot in self.pilots)

    @property
    def epochs_total(self) -> int:
        """Epochs of all stages, and of the pilots."""
        return sum(self.epochs) * (1 + self._pilots_needed)

    @property
    def steps_total(self) -> int:
        """Steps of all stages; a step of a pilot counts a little more, because it has fewer of them."""
        return self.epochs_total * self.loaders.steps_per_epoch

    @property
    def steps_done(self) -> int:
        """Finished steps of all stages; those of pilots come first."""
        own = self._own_epochs_done * self.loaders.steps_per_epoch + self.position.step
        pilots = sum(pilot.steps_done / pilot.steps_total for pilot in self.pilots)
        return own + round(pilots * sum(self.epochs) * self.loaders.steps_per_epoch)

    @property
    def _own_epochs_done(self) -> int:
        return sum(self.epochs[: self.position.stage]) + self.position.epoch

    def run(self) -> dict[str, Any]:
        """Train to the end and return the result."""
        for _ in self.steps():
            pass
        return self.folder.result()

    def steps(self) -> Iterator[None]:
        """Take the steps one at a time, then evaluate the model and write the result."""
        check_same_folders([self.folder], self.ranks)
        self.folder.check(self.recipe)
        if not self.folder.done:
            with lock_folders([self.folder], self.ranks):
                yield from self._pilot_steps()
                yield from self._steps()
        elif self._given_data is not None:
            self._check_images()

    def _check_images(self) -> None:
        """Raise an error if the run in the folder began with other data."""
        if self.folder.images not in (None, fingerprint(self.dataset, self.recipe)["images"]):
            raise ValueError(
                f"Expected the data set with which the run in {self.folder.path} began, but got other images or "
                "labels; choose another folder."
            )

    def _pilot_steps(self) -> Iterator[None]:
        """Train pilots: one for each weight decay, then on all but a tenth of the images, each time another."""
        if self._pilots_needed:
            self._check_images()
        for number in range(self._pilots_needed):
            pilot = Trainer(
                self._pilot_recipe(number),
                self.folder.pilot(number),
                ranks=self.ranks,
                device=self.device,
                dataset=self._given_data,
            )
            self.pilots.append(pilot)
            for _ in pilot.steps():
                if self.ranks.first and not self.folder.begun:  # the pilot has checked all settings
                    images = fingerprint(self.dataset, self.recipe)["images"]
                    self.folder.begin(self.recipe, self.device, self.ranks.world, images)
                    for other in range(self._pilots_needed):  # how many there will be
                        self.folder.pilot(other).path.mkdir(exist_ok=True)
                self.stream, self.live = pilot.stream, pilot.live
                yield
                pilot.stop_requested = self.stop_requested
            self.stream = None
            pilot.position = Position(len(pilot.epochs))  # also if it was finished before
            if number + 1 == self._tried:
                self._choose_decay()

    def _pilot_recipe(self, number: int) -> Recipe:
        """The recipe of a pilot: this one with a given weight decay, and beta 1 or a tenth held out."""
        tries = number < self._tried
        changes: dict[str, Any] = dict.fromkeys(LOGGERS, False)
        changes["weight_decay"] = DECAYS[number] if tries else self.stages.weight_decay
        if tries and self._auto:
            changes[str(self.method.beta)] = 1.0
        if not tries or self.dataset.val is None:
            changes |= {"folds": FOLDS, "fold": 0 if tries else number - self._tried, "validation": 0.0}
        return self.recipe.changed(**changes)

    def _choose_decay(self) -> None:
        """Take the weight decay of the pilot with the highest recall over all classes on held-out data."""
        recalls = torch.zeros(self._tried, dtype=torch.float64)
        if self.ranks.first:
            results = [pilot.folder.result() for pilot in self.pilots]
            recalls += torch.tensor([one["splits"]["val"]["recall"]["all"] for one in results])
        self._decay = choose_decay(self.ranks.sum(recalls).tolist())
        self.stages.weight_decay = self._decay["chosen"]

    def _steps(self) -> Iterator[None]:
        data = fingerprint(self.dataset, self.recipe)
        state: dict[str, Tensor] | None = None
        latest = latest_checkpoint(self.folder.checkpoints)
        torch.backends.cudnn.benchmark = True
        try:
            model = self.stages.build(fresh=latest is None)
            if latest is not None:
                steps, log = self.loaders.steps_per_epoch, self.folder.log_file
                self.position, state = load_checkpoint(latest, data, epochs=self.epochs, steps=steps, log=log)
            self._check_posthoc(model)
            yield from self._all_stages(model, state, data)
        except ValueError:  # skipped images may be the reason
            self._list_unreadable()
            raise
        finally:
            self.stream = None  # from now on others may use it
            self.evaluator.release()
            self.loaders.release()
            for logger in self._loggers:
                logger.close(self.folder.result() if self.folder.done else None)

    def _check_posthoc(self, model: Model) -> None:
        """Raise an error if the classifier does not fit the post-hoc step, before it is trained."""
        first, last = (self.stages.head(self.method.stages[place]) for place in (0, -1))
        if self.method.posthoc is not None and first == last:
            classifier = Classifier.of(model.head.weight, model.head.bias, self.dataset.counts)
            PostHoc(self.method.posthoc, 1.0).apply(torch.zeros(1, self.dataset.num_classes), classifier)

    def _all_stages(self, model: Model, state: dict[str, Tensor] | None, data: dict[str, Any]) -> Iterator[None]:
        running: Running | None = None
        for number in range(len(self.epochs)):
            if number > 0:
                self.stages.change_head(model, number)
            if number < self.position.stage:
                continue
            first, running = running is None, self.stages.start(model, number)
            if state is not None:
                restore(state, running.step, model)
                if self._best is not None:
                    self._best.restore(state)
                state = None
            if first and self.ranks.first:  # all settings have been checked by now
                self.folder.begin(self.recipe, self.device, self.ranks.world, data["images"])
                self.folder.cut_log(self.position.log_length)
            yield from self._stage(running, model, data)
            if running.step.ema is not None:
                running.driver.settle()
                running.step.ema.load()
            self.position = Position(number + 1)
        assert running is not None
        yield from self._finish(model, running)

    # The steps of a stage

    def _stage(self, running: Running, model: Model, data: dict[str, Any]) -> Iterator[None]:
        number, begin = self.position.stage, self.position.epoch
        best = self._best if number + 1 == len(self.epochs) else None
        self.stream = running.driver.stream
        self._saved = time.monotonic()
        for epoch in range(begin, running.epochs):
            if best is not None and best.stops_before(epoch):
                break
            start = self.position.step if epoch == begin else 0
            lr = running.rate(epoch, step=(epoch + 1) * self.loaders.steps_per_epoch - 1)
            running.step.set_rate(lr)
            self._warm_up(running, epoch, start)
            running.objective.begin_epoch(epoch)
            model.train()
            if start == 0:
                running.step.taken.zero_()
                running.step.loss_sum.zero_()
            began = time.monotonic()
            yield from self._take_steps(running, partial(self._save, running, model, data, epoch, lr), epoch, start, lr)
            self._check_finite(running, epoch, lr)
            running.objective.end_epoch()
            seconds = time.monotonic() - began
            self._update_live(running, epoch, lr, (int(running.step.taken) - start) / max(seconds, 1e-9))
            average = running.step.ema
            # Other members of a fleet take steps while the evaluation waits for the device; this model does not change.
            with nullcontext() if average is None else average.in_model():
                recalls, fit = yield from self._evaluate(running, model, epoch, best)
            self._log(running, seconds, recalls, fit)
            self.position = Position(number, epoch + 1)
            every = self.recipe.checkpoint_epochs
            last = epoch + 1 == running.epochs or (best is not None and best.stops_before(epoch + 1))
            if last or (every and (epoch + 1) % every == 0):
                self._save(running, model, data, epoch, lr)

    def _take_steps(
        self, running: Running, save: Callable[[], None], epoch: int, start: int, lr: float
    ) -> Iterator[None]:
        """Take the steps of an epoch; save now and then, and before stopping."""
        began = checked = time.monotonic()
        steps = running.driver.epoch(self.recipe.seed, running.first_epoch + epoch, start)
        for taken, _ in enumerate(steps, start + 1):
            self.position = Position(self.position.stage, epoch, taken)
            if time.monotonic() - checked > _CHECK_SECONDS:
                self._check_finite(running, epoch, lr)
                self._update_live(running, epoch, lr, (taken - start) / (time.monotonic() - began))
                checked = time.monotonic()
            due = time.monotonic() - self._saved > 60 * self.recipe.checkpoint_minutes
            if self.ranks.any(self.stop_requested or due):
                save()
                if self.ranks.any(self.stop_requested):
                    raise StoppedError(f"Stopped in epoch {epoch + 1} after step {taken}.")
            self._warm_up(running, epoch, taken)
            yield

    def _evaluate(
        self, running: Running, model: Model, epoch: int, best: BestEpoch | None
    ) -> Generator[None, None, tuple[dict[str, dict[str, float]] | None, ShiftFit | None]]:
        """What the log says about an epoch: recalls and beta, if they are due."""
        recalls: dict[str, dict[str, float]] | None = None
        fit: ShiftFit | None = None
        if self.recipe.evaluate_every and (epoch + 1) % self.recipe.evaluate_every == 0:
            recalls = yield from self.evaluator.recalls(model, running.first_epoch + epoch)
            rows = (yield from self.evaluator.validation_rows(model)) if self._auto else []
            fit = pooled_fit(rows, self.dataset.counts) if rows else None
        if best is not None:
            found = recalls or (yield from self.evaluator.recalls(model, running.first_epoch + epoch, ["val"]))
            best.consider(epoch, found["val"]["all"], model)
        return recalls, fit

    def _warm_up(self, running: Running, epoch: int, step: int) -> None:
        """Set the learning rate of a step, if rates differ within an epoch."""
        taken = epoch * self.loaders.steps_per_epoch + step
        if taken <= self.recipe.warmup_steps and self.recipe.warmup_steps:
            stream = running.driver.stream
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                running.step.set_rate(running.rate(epoch, step=taken))

    def _save(self, running: Running, model: Model, data: dict[str, Any], epoch: int, lr: float) -> None:
        self._check_finite(running, epoch, lr)
        if self.ranks.first:
            position = replace(self.position, log_length=self.folder.sync_log())
            more = None if self._best is None else self._best.state()
            save_checkpoint(
                self.folder.checkpoints, position, running.step, model, data=data, keep=self.recipe.keep, more=more
            )
        self.ranks.wait()
        self._saved = time.monotonic()

    def _check_finite(self, running: Running, epoch: int, lr: float) -> None:
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
            f"Expected a finite loss, but in epoch {epoch + 1}, step {bad + 1}, at learning rate {lr:g}, it was not; "
            f"the labels of that batch are in {self.folder.path / 'not_finite.json'}."
        )

    def _samples(self, running: Running, epoch: int, step: int) -> Tensor:
        """The training samples of a step, on all ranks."""
        found = []
        for rank in range(self.ranks.world):
            plan = replace(running.loader.plan, rank=rank)
            batches = plan.training(self.recipe.seed, running.first_epoch + epoch, start=step * self.recipe.accumulate)
            found += [batch.indices for batch in islice(batches, self.recipe.accumulate)]
        return torch.cat(found)

    # What is logged and written

    def _update_live(self, running: Running, epoch: int, lr: float, rate: float) -> None:
        """Update :attr:`live`; ``rate`` is in steps per second."""
        taken = int(running.step.taken)
        self.live = {
            "epoch": epoch,
            "loss": float(running.step.loss_sum) / max(taken, 1),
            "lr": lr,
            "images_per_second": round(rate * len(self.dataset.train) / self.loaders.steps_per_epoch, 1),
        }

    def _log(
        self,
        running: Running,
        seconds: float,
        recalls: dict[str, dict[str, float]] | None,
        fit: ShiftFit | None,
    ) -> None:
        self._list_unreadable()
        line: dict[str, Any] = {"stage": self.position.stage, **self.live, "seconds": round(seconds, 3)}
        if recalls is not None:
            line["recall"] = recalls
        if fit is not None:
            line["auto_beta"] = summary(fit)
        if self.ranks.first:
            self.folder.log(line)
            if self.on_log is not None:
                self.on_log(line)
        for logger in self._loggers:
            logger.add(running.first_epoch + self.live["epoch"] + 1, line)

    def _list_unreadable(self) -> None:
        """Write the list of skipped images, if it has grown."""
        found = dict(self.loaders.unreadable)
        if len(found) > self._listed and self.ranks.first:
            write_json(self.folder.unreadable_file, dict(sorted(found.items())))
            self._listed = len(found)

    def _finish(self, model: Model, running: Running) -> Iterator[None]:
        """Evaluate the model and write all files of a finished run, the result last."""
        self.ranks.agree(model.buffers())  # BatchNorm of each rank has seen its own last batch
        if self._best is not None:
            self._best.load_into(model)
        self.stages.merge(model)
        classifier = Classifier.of(model.head.weight, model.head.bias, self.dataset.counts)
        posthoc, chosen = yield from self._posthoc(model, classifier)
        statistics = yield from self.evaluator.final(
            model,
            sum(self.epochs),
            self.folder.predictions_file,
            shift=running.objective.logit_shift,
            change=None if posthoc is None else lambda logits: posthoc.apply(logits, classifier),
            check_stopped=self._check_stopped,
        )
        self._list_unreadable()
        bad = [name for name, one in statistics.items() if not bool(one.probability_sum.isfinite().all())]
        if bad:  # because of the very last step, after which no loss was computed
            raise NotFiniteError(
                f"Expected finite logits of the trained model, but on split {bad[0]} some logits are not finite "
                f"although all training losses were; a lower learning rate than {self.recipe.lr:g} may help."
            )
        if self.ranks.first:
            chosen = {"posthoc": None if posthoc is None else str(posthoc), "posthoc_chosen_on_val": {}, **chosen}
            self._write(model, running, statistics, classifier, chosen)
        self.ranks.wait()  # no process leaves before everything is written

    def _write(
        self,
        model: Model,
        running: Running,
        statistics: dict[str, ClassStatistics],
        classifier: Classifier,
        chosen: dict[str, Any],
    ) -> None:
        write_statistics(self.folder.statistics_file, statistics, classifier)
        self.stages.complete(model)
        write_tensors(self.folder.model_file, model.state_dict(), self._card(running, model))
        # Class statistics have the gradient of the loss only if every training image counts once.
        every_image_once = isinstance(running.loader.plan.sampler, Instance) and not (
            self.recipe.mixup or self.recipe.cutmix or self.recipe.drop_last
        )
        result = measures(
            statistics,
            self.dataset.groups,
            self.dataset.class_names,
            self.recipe.train_stats,
            gradients=chosen["posthoc"] is None and every_image_once and running.objective.is_pure_shift,
        )
        reported = "last epoch" if self._best is None else "best epoch on validation data"
        about = {
            "data": self.dataset.name,
            "method": self.recipe.method,
            "label": self.method.label(self.params),
            "beta": self.recipe.beta,
            "params": self.method.values(self.params),
            "seed": self.recipe.seed,
            "epochs": self.epochs,
            "reported": f"{reported}, moving average of the weights" if self.recipe.ema else reported,
            "groups_from": self.dataset.groups_from,
            "held_out": dict(self.dataset.held_out),
        }
        if self._decay is not None:
            about["auto_weight_decay"] = self._decay
        if self._best is not None:
            about["best"] = self._best.summary(self.folder.epochs_logged - sum(self.epochs[:-1]))
        write_json(self.folder.result_file, {**about, **chosen, **result})

    def _check_stopped(self) -> None:
        """Everything was saved before the last evaluation; a single process may leave it at any batch."""
        if self.stop_requested and self.ranks.world == 1:
            raise StoppedError("Stopped in the last evaluation.")

    def _posthoc(
        self, model: Model, classifier: Classifier
    ) -> Generator[None, None, tuple[PostHoc | None, dict[str, Any]]]:
        """The step after training, its strength chosen on held-out data unless given, and how it was chosen."""
        if self._auto:
            return (yield from self._auto_beta(model))
        kind = self.method.posthoc
        if kind is None:
            return None, {}
        tau = self.method.tau_of(self.params)
        if tau is not None:
            return PostHoc(kind, tau), {}
        posthoc, trace = yield from self.evaluator.choose_posthoc(model, kind, classifier)
        return posthoc, {"posthoc_chosen_on_val": trace}

    def _auto_beta(self, model: Model) -> Generator[None, None, tuple[PostHoc | None, dict[str, Any]]]:
        """Logit adjustment by the shift that is still needed after training with beta = 1, and how it was measured."""
        rows = yield from self.evaluator.validation_rows(model)
        found: dict[str, Any] = {"beta": 1.0, "problem": NO_PILOTS}
        temperature = 1.0
        if self.ranks.first:
            pilots = self.pilots[self._tried :]
            for pilot in pilots:
                rows += stored_batches(pilot.folder.predictions_file, "val")
            validated = self.dataset.val is not None
            measured = self if validated or not pilots else pilots[0]
            if rows:
                fit = pooled_fit(rows, measured.dataset.counts)
                found = summary(fit)
                if fit.problem is None:
                    found["temperature"] = temperature = fit.temperature
                    found["held_out"] = effect(rows, measured.dataset.counts, fit.tau)
            lines = enumerate(measured.folder.log_lines(), 1)
            trace = [{"epoch": epoch, **line["auto_beta"]} for epoch, line in lines if "auto_beta" in line]
            found |= {"validation": validated, "pilots": len(pilots), "trace": trace}
        known = torch.tensor([found["beta"] - 1.0, temperature - 1.0], dtype=torch.float64)
        tau, rest = self.ranks.sum(known).tolist()  # the other ranks have zeros
        return PostHoc("adjust", tau, 1.0 + rest) if tau or rest else None, {"auto_beta": found}

    def _card(self, running: Running, model: Model) -> dict[str, Any]:
        """What is needed to use the model."""
        head = self.stages.head(running.stage)
        images = self.dataset.train.images
        columns = images.columns if isinstance(images, FeatureVectors) else ()
        return {
            "model": self.recipe.model,
            "head": head.name,
            "head_options": dict(head.options),
            "classes": list(self.dataset.class_names),
            "channels": self.loaders.channels,
            "image_size": self.loaders.image_size,
            "in_memory": isinstance(images, ArrayImages),
            "augment": self.recipe.augment,
            "mean": list(self.loaders.normalisation.mean),
            "std": list(self.loaders.normalisation.std),
            "counts": self.dataset.counts.tolist(),
            **({} if model.scaler is None else {"standardised": True}),
            **({"columns": list(columns)} if columns else {}),
            **({"adapter_rank": self.recipe.rank} if self.recipe.train == "adapter" else {}),
        }

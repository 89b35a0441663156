"""Evaluation: passes of a model over a split that give class statistics, on one device or over all ranks."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longtail._progress import Phase, phase
from longtail._ranks import Ranks
from longtail.data import ArrayImages, Resident, Split
from longtail.data.sampling.batch_plan import Batch
from longtail.data.sampling.samplers import Instance
from longtail.metrics import ClassStatistics, class_statistics, recall
from longtail.models import Model, Outputs
from longtail.models.backbones import evaluation_mode
from longtail.train.drivers import seeded
from longtail.train.graphs import ReplayedForward, forward_eval
from longtail.train.loaders import Loader, Loaders
from longtail.train.measures import Classifier, PostHoc, choose_posthoc
from longtail.train.stored import NO_LABEL, kept_splits, predictions_writer

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From images to plain logits and features, without gradients."""
Change = Callable[[Tensor], Tensor]
"""A post-hoc step on logits."""
Write = Callable[[Tensor, Tensor, Tensor], None]
"""Receives positions in the split, logits before any post-hoc step, and labels."""

_SAMPLES = 2**14  # that are counted together, at most
_NUMBERS = 2**22  # in their logits, features and labels, at most: 16 MB as float32
_AFTER_STEPS = 2**40  # dropout in this pass has other draws than in any step
_WAITING = 2**26  # logits of a run that may wait on the device: 256 MB


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    *,
    transforms: Callable[[Any], Tensor] | None = None,
    batch_size: int = 256,
) -> ClassStatistics:
    """Class statistics of a model on a split, in evaluation mode; see :mod:`longtail.metrics` for their measures.

    Args:
        model: returns logits ``(B, C)`` or :class:`Outputs <longtail.models.Outputs>`.
        split: images and labels, for example ``load("digits-lt").test``.
        transforms: turns a list of images into a batch for the model; default: ``model.transforms``, which a model of
            :func:`longtail.load` has.
        batch_size: images per batch.
    """
    transforms = transforms or getattr(model, "transforms", None)
    if transforms is None:
        raise ValueError("Expected `transforms` for a model without transforms, but got None.")
    device = next(model.parameters()).device
    total: ClassStatistics | None = None
    with evaluation_mode(model):
        for begin in range(0, len(split), batch_size):
            places = range(begin, min(begin + batch_size, len(split)))
            outputs = model(transforms([split.images[place] for place in places]).to(device))
            logits, features = outputs[:2] if isinstance(outputs, Outputs) else (outputs, None)
            labels = split.labels[places.start : places.stop].to(device)
            found = class_statistics(logits, labels, features)
            total = found if total is None else total + found
    if total is None:
        raise ValueError("Expected `split` to have a sample, but it is empty.")
    return _on_cpu(total)


def _on_cpu(statistics: ClassStatistics) -> ClassStatistics:
    return ClassStatistics(**{name: value.cpu() for name, value in statistics.tensors().items()})


class Evaluator:
    """Evaluates the model of a run on the splits of its data set.

    If one process holds the images on a GPU, forward passes are replayed from CUDA graphs on their own stream: they are
    queued on the device and cost the host little until their result is read. Methods that are generators yield once
    between the two, so that other members of a fleet can take a step; the model must not change until they end.
    """

    def __init__(self, loaders: Loaders) -> None:
        self.loaders, self.dataset, self.ranks = loaders, loaders.dataset, loaders.ranks
        self.precision = torch.bfloat16 if loaders.recipe.precision == "bf16" else torch.float32
        resident = isinstance(self.dataset.train.images, ArrayImages)
        self.replays = resident and loaders.device.type == "cuda" and self.ranks.world == 1
        """Whether passes are only queued on the device until they are read."""
        self._replayed: ReplayedForward | None = None
        self._evaluation: dict[str, Loader] = {}
        self._training: Loader | None = None

    def release(self) -> None:
        """Release what is kept on the device between passes."""
        self.wait()  # a pass that nobody has read may still use that memory
        self._replayed = None
        self._evaluation.clear()
        self._training = None

    def wait(self) -> None:
        """Wait for passes that are queued on the device."""
        if self._replayed is not None:
            self._replayed.stream.synchronize()

    def statistics(self, model: Model, split: str, *, shift: Tensor | None = None) -> ClassStatistics:
        """Class statistics of a split, on the CPU.

        ``"train_paper"`` is the training split as the paper's authors measured it: in training mode, augmented, and
        nothing is learnt.
        """
        with self._pass(model, split) as (forward, batches):
            found = add_statistics(forward, batches, ranks=self.ranks, shift=shift)
        self.wait()
        return _on_cpu(found)

    def seconds_per_image(self, model: Model, split: str, most: float) -> float:
        """How long the evaluation of an image takes, measured for ``most`` seconds or a whole split."""
        images = 0
        with self._pass(model, split) as (forward, batches), torch.no_grad():
            begin = time.perf_counter()
            for batch in batches:
                forward(batch.views[0])[0].argmax(1).cpu()
                images += len(batch.labels)
                if time.perf_counter() - begin > most:
                    break
        return (time.perf_counter() - begin) / max(images, 1)

    def recalls(
        self, model: Model, epoch: int, splits: Iterable[str] | None = None
    ) -> Generator[None, None, dict[str, dict[str, float]]]:
        """The recall of each group on some splits, by default on all."""
        self.ranks.agree(model.buffers())
        counts: dict[str, tuple[Tensor, Tensor]] = {}
        for name in splits or self.dataset.splits:
            paper = name == "train" and self.loaders.recipe.train_stats == "paper"
            with self._pass(model, "train_paper" if paper else name, epoch) as (forward, batches):
                counts[name] = count_correct(forward, batches, self.dataset.num_classes, self.ranks)
        if self.replays:
            yield
        self.wait()
        groups = self.dataset.groups
        recalls = {name: recall(right.cpu(), all_.cpu(), groups) for name, (right, all_) in counts.items()}
        return {name: {"all": values.all, **values.groups} for name, values in recalls.items()}

    def final(
        self,
        model: Model,
        epoch: int,
        file: Path,
        *,
        shift: Tensor | None,
        change: Change | None,
        check_stopped: Callable[[], None],
    ) -> Generator[None, None, dict[str, ClassStatistics]]:
        """The last evaluation of a run: statistics of every split; logits and labels are written to ``file``.

        On a GPU, logits wait on the device until the statistics are read, unless they are many. ``train_paper`` uses
        the random draws of ``epoch``; ``shift`` is that of the loss whose gradient is measured; ``check_stopped`` is
        called before each batch.
        """
        splits, classes = self.dataset.splits, self.dataset.num_classes
        kept = kept_splits(splits, classes)
        waits = self.replays and sum(len(splits[name]) for name in kept) * classes < _WAITING
        add = partial(add_statistics, ranks=self.ranks, shift=shift, change=change)
        found: dict[str, ClassStatistics] = {}
        waiting: list[tuple[str, Tensor, Tensor, Tensor]] = []

        def keep(name: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            waiting.append((name, rows, logits.clone(), labels))

        with ExitStack() as stack:
            write = keep if waits else stack.enter_context(predictions_writer(file, splits, classes, self.ranks))
            progress = stack.enter_context(phase("Evaluating", sum(map(len, splits.values())), in_logs=False))
            for name in splits:
                with self._pass(model, name) as (forward, batches):
                    checked = _before_each(batches, check_stopped, progress)
                    found[name] = add(forward, checked, write=partial(write, name) if name in kept else None)
        with self._pass(model, "train_paper", epoch) as (forward, batches):
            found["train_paper"] = add(forward, batches)
        if self.replays:
            yield
            check_stopped()
        self.wait()
        on_cpu = {name: _on_cpu(one) for name, one in found.items()}
        if waits:
            with predictions_writer(file, splits, classes, self.ranks) as write:
                for row in waiting:
                    write(*row)
        return on_cpu

    def validation_rows(self, model: Model) -> Generator[None, None, list[tuple[Tensor, Tensor]]]:
        """Logits and labels of the validation split, if there is one, in parts, on the CPU of the first rank."""
        rows: list[tuple[Tensor, Tensor]] = []
        if self.dataset.val is None:
            return rows
        with self._pass(model, "val") as (forward, batches), torch.no_grad():
            for _ in _outputs(forward, batches, self.ranks, lambda _, *part: rows.append((part[0].clone(), part[1]))):
                pass
        if self.replays:
            yield
        self.wait()
        return [(logits.cpu(), labels.cpu()) for logits, labels in rows]

    def choose_posthoc(
        self, model: Model, kind: str, classifier: Classifier
    ) -> Generator[None, None, tuple[PostHoc, dict[str, float]]]:
        """A post-hoc step with its strength chosen on validation data, and the recall at each strength."""
        rows = yield from self.validation_rows(model)
        best, recalls = PostHoc(kind, 0.0), dict[str, float]()
        if self.ranks.first:
            best, recalls = choose_posthoc(kind, classifier, self.dataset.groups, rows)
        strength = self.ranks.sum(torch.tensor(best.strength, dtype=torch.float64))
        return PostHoc(kind, float(strength)), recalls

    @contextmanager
    def _pass(self, model: Model, split: str, epoch: int = 0) -> Iterator[tuple[Forward, Iterator[Batch]]]:
        """The forward pass and the batches of a split, in the mode of :meth:`statistics`."""
        if split == "train_paper":
            draws = seeded(self.loaders.device, self.loaders.recipe.seed, epoch, _AFTER_STEPS, self.ranks.rank)
            with batch_statistics(model), draws, self._forward(model) as forward:
                yield forward, self._augmented(epoch)
        else:
            with self._forward(model.eval()) as forward:
                yield forward, self._batches(split)

    @contextmanager
    def _forward(self, model: Model) -> Iterator[Forward]:
        """The forward pass of the model; on a GPU the block runs on its stream."""
        if not self.replays:
            yield partial(forward_eval, model, self.precision)
            return
        if self._replayed is None or not self._replayed.holds(model):
            self._replayed = ReplayedForward(model, self.precision)
        stream = self._replayed.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield self._replayed

    def _batches(self, split: str) -> Iterator[Batch]:
        if split not in self._evaluation:
            self._evaluation[split] = self.loaders.evaluation(self.dataset.splits[split])
        loader = self._evaluation[split]
        return _in_order(loader) if self.replays and isinstance(loader, Resident) else loader.evaluation()

    def _augmented(self, epoch: int) -> Iterator[Batch]:
        if self._training is None:
            self._training = self.loaders.training(("weak",), Instance(), drop_last=False)
        return self._counted_once(self._training.training(self.loaders.recipe.seed, epoch))

    def _counted_once(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Training batches without the labels of samples that only fill up the last batch of several ranks."""
        if self.ranks.world == 1:
            yield from batches
            return
        place = self.ranks.rank
        for batch in batches:
            places = place + self.ranks.world * torch.arange(len(batch.labels), device=batch.labels.device)
            yield batch._replace(labels=batch.labels.masked_fill(places >= len(self.dataset.train), NO_LABEL))
            place += self.ranks.world * len(batch.labels)


def _before_each(batches: Iterator[Batch], call: Callable[[], None], progress: Phase) -> Iterator[Batch]:
    for batch in batches:
        call()
        yield batch
        progress.advance(len(batch.labels))


def _in_order(loader: Resident) -> Iterator[Batch]:
    """Like ``loader.evaluation()`` of one process, but without indices on the device: the host waits for nothing."""
    (view,), size = loader.plan.views, loader.plan.batch_size
    for begin in range(0, len(loader.labels), size):
        images, labels = loader.pixels[begin : begin + size], loader.labels[begin : begin + size]
        yield Batch((view(images),), labels, torch.arange(begin, begin + len(labels)))


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Training mode in which BatchNorm normalises by the batch but does not update its statistics."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    tracked = [layer.track_running_stats for layer in layers]
    model.train()
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, was in zip(layers, tracked, strict=True):
            layer.track_running_stats = was


# Counting


@torch.no_grad()
def count_correct(forward: Forward, batches: Iterable[Batch], num_classes: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Correct predictions and samples per class, over all batches and ranks; nothing is read back from the device."""
    total: Tensor | None = None
    predictions = ((forward(batch.views[0])[0].argmax(1), batch.labels) for batch in batches)
    for predicted, labels in _merged(predictions, overwritten=0):
        counted = labels != NO_LABEL
        right = counted & (predicted == labels)
        if total is None:
            total = torch.zeros(num_classes, 2, dtype=torch.int64, device=labels.device)
        total.index_add_(0, labels.clamp(min=0), torch.stack([right, counted], 1).long())
    if total is None:
        raise ValueError("Expected a split with a sample for every process, but got none.")
    correct, samples = ranks.sum(total).unbind(1)
    return correct, samples


@torch.no_grad()
def add_statistics(
    forward: Forward,
    batches: Iterable[Batch],
    *,
    ranks: Ranks,
    shift: Tensor | None = None,
    change: Change | None = None,
    write: Write | None = None,
) -> ClassStatistics:
    """The class statistics of all batches and ranks; a single rank reads nothing back from the device."""
    total: ClassStatistics | None = None
    for logits, features, labels in _merged(_outputs(forward, batches, ranks, write), overwritten=2):
        changed = logits if change is None else change(logits)
        found = class_statistics(changed, labels, features, shift=shift, check_labels=False)
        total = found if total is None else total + found
    if total is None:
        raise ValueError("Expected a split with a sample for every process, but got none.")
    return ClassStatistics(**{name: ranks.sum(value) for name, value in total.tensors().items()})


def _outputs(
    forward: Forward, batches: Iterable[Batch], ranks: Ranks, write: Write | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Logits, features and labels of this rank's batches; the first rank writes those of all ranks."""
    for batch in _same_number(batches, ranks):
        outputs = None if batch is None else forward(batch.views[0])
        rows = None if batch is None or outputs is None else (batch.indices, outputs[0], batch.labels)
        if write is not None:
            for part in _gathered(ranks, rows):
                write(*part)
        if batch is not None and outputs is not None:
            yield *outputs, batch.labels


def _merged(batches: Iterable[tuple[Tensor, ...]], *, overwritten: int) -> Iterator[tuple[Tensor, ...]]:
    """Merge small batches, because counting one takes dozens of launches; large ones pass as they are.

    The next batch overwrites the first ``overwritten`` tensors of a batch: they are copied while they wait.
    """
    waiting: list[tuple[Tensor, ...]] = []
    samples = numbers = 0
    for rows in batches:
        count, size = len(rows[0]), sum(part.numel() for part in rows)
        if waiting and (samples + count > _SAMPLES or numbers + size > _NUMBERS):
            merged = tuple(map(torch.cat, zip(*waiting, strict=True)))
            waiting.clear()  # before the consumer allocates more
            samples = numbers = 0
            yield merged
        if count >= _SAMPLES or size >= _NUMBERS:
            yield rows
            continue
        waiting.append((*(part.clone() for part in rows[:overwritten]), *rows[overwritten:]))
        samples, numbers = samples + count, numbers + size
    if waiting:
        yield tuple(map(torch.cat, zip(*waiting, strict=True)))


def _same_number(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch | None]:
    """The batches; a rank that has fewer than another yields ``None`` until that one is done."""
    if ranks.world == 1:
        yield from batches
        return
    iterator = iter(batches)
    while True:
        batch = next(iterator, None)
        if not int(ranks.sum(torch.tensor(int(batch is not None)))):
            return
        yield batch


def _gathered(ranks: Ranks, rows: tuple[Tensor, ...] | None) -> list[tuple[Tensor, ...]]:
    """The rows of all ranks, on the first one."""
    parts = [rows]
    if ranks.world > 1:
        parts = [None] * ranks.world
        sent = None if rows is None else tuple(part.cpu() for part in rows)
        torch.distributed.gather_object(sent, parts if ranks.first else None)
    return [part for part in parts if part is not None] if ranks.first else []

"""A run's model, measured: passes over the splits of its data set, and what is made of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from longtail.data import ArrayImages, Resident, Split
from longtail.data.sampling.plan import Batch
from longtail.data.sampling.samplers import Instance
from longtail.metrics import ClassStatistics, recall
from longtail.models import Model
from longtail.train.evaluation import (
    NO_LABEL,
    Hits,
    Look,
    as_in_training,
    count_hits,
    kept_splits,
    pass_over,
    predictions_writer,
)
from longtail.train.loading import Loader, Loaders
from longtail.train.posthoc import Classifier, Kind, PostHoc, Search
from longtail.train.replay import Replayed, look

__all__ = ["Measuring"]

Change = Callable[[Tensor], Tensor]
Write = Callable[[Tensor, Tensor, Tensor], None]
_WAITING = 2**26  # logits of a run that may wait on the device: 256 MB


class Measuring:
    """Takes the measures of a run.

    Where one process holds its images on a GPU, forward passes are replayed from CUDA graphs, on a stream of their own.

    Args:
        loaders: of the run's splits.
    """

    def __init__(self, loaders: Loaders) -> None:
        self.loaders, self.dataset, self.ranks = loaders, loaders.dataset, loaders.ranks
        self.precision = torch.bfloat16 if loaders.recipe.precision == "bf16" else torch.float32
        resident = isinstance(self.dataset.train.images, ArrayImages)
        self.replays = resident and loaders.device.type == "cuda" and self.ranks.world == 1
        """Whether passes are queued on the device, and cost the host little until they are read."""
        self._replayed: Replayed | None = None
        self._evaluation: dict[Split, Loader] = {}
        self._training: Loader | None = None

    def release(self) -> None:
        """Let go of what is held on the device between one pass and the next."""
        self._wait()  # a pass that nobody has read may still run in that memory
        self._replayed = None
        self._evaluation.clear()
        self._training = None

    def of(
        self,
        model: Model,
        split: Split,
        *,
        shift: Tensor | None = None,
        change: Change | None = None,
        write: Write | None = None,
        each: Callable[[], None] | None = None,
    ) -> ClassStatistics:
        """The class statistics of a split, in evaluation mode.

        Args:
            model: whose.
            split: of what.
            shift: of the loss whose gradient is measured.
            change: a post-hoc step, before anything is counted.
            write: given samples' places, plain logits and labels, as :func:`pass_over` does, on the first rank.
            each: called before each batch.
        """
        return self._queue(model, split, shift=shift, change=change, write=write, each=each)()

    def as_trained(
        self, model: Model, epoch: int, *, shift: Tensor | None = None, change: Change | None = None
    ) -> ClassStatistics:
        """Those of the training split as the paper's authors took them: training mode, augmented, nothing learnt.

        Args:
            model: whose.
            epoch: whose draws to take.
            shift: as in :meth:`of`.
            change: as in :meth:`of`.
        """
        return self._queue_as_trained(model, epoch, shift=shift, change=change)()

    def _queue(
        self,
        model: Model,
        split: Split,
        *,
        shift: Tensor | None,
        change: Change | None,
        write: Write | None,
        each: Callable[[], None] | None,
    ) -> Callable[[], ClassStatistics]:
        """:meth:`of`, to be read later."""
        with self._looking(model.eval()) as looking:
            batches = self._batches(split)
            found = pass_over(
                looking,
                batches if each is None else _calling(each, batches),
                ranks=self.ranks,
                shift=shift,
                change=change,
                write=write,
            )
        return partial(self._on_cpu, found)

    def _queue_as_trained(
        self, model: Model, epoch: int, *, shift: Tensor | None, change: Change | None
    ) -> Callable[[], ClassStatistics]:
        """:meth:`as_trained`, to be read later."""
        with as_in_training(model), self._looking(model) as looking:
            found = pass_over(looking, self._as_in_training(epoch), ranks=self.ranks, shift=shift, change=change)
        return partial(self._on_cpu, found)

    def _on_cpu(self, found: ClassStatistics) -> ClassStatistics:
        self._wait()
        return ClassStatistics(**{name: value.cpu() for name, value in found.tensors().items()})

    def _wait(self) -> None:
        """Until passes that were queued are through."""
        if self._replayed is not None:
            self._replayed.stream.synchronize()

    def _as_in_training(self, epoch: int) -> Iterator[Batch]:
        """An epoch of training; its loader is kept, as those of :meth:`_batches` are."""
        if self._training is None:
            self._training = self.loaders.training(("weak",), Instance(), drop_last=False)
        return self._counted_once(self._training.training(self.loaders.recipe.seed, epoch))

    def _batches(self, split: Split) -> Iterator[Batch]:
        """A split in order; its loader is kept for the next time."""
        if split not in self._evaluation:
            self._evaluation[split] = self.loaders.evaluation(split)
        loader = self._evaluation[split]
        return _in_order(loader) if self.replays and isinstance(loader, Resident) else loader.evaluation()

    @contextmanager
    def _looking(self, model: Model) -> Iterator[Look]:
        """The model's forward pass, for what is done inside."""
        if not self.replays:
            yield partial(look, model, self.precision)
            return
        if self._replayed is None or not self._replayed.holds(model):
            self._replayed = Replayed(model, self.precision)
        stream = self._replayed.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield self._replayed

    def _counted_once(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of training in which samples that only fill up the last of several ranks' have no label."""
        if self.ranks.world == 1:
            yield from batches
            return
        place = self.ranks.rank
        for batch in batches:
            places = place + self.ranks.world * torch.arange(len(batch.labels), device=batch.labels.device)
            yield batch._replace(labels=batch.labels.masked_fill(places >= len(self.dataset.train), NO_LABEL))
            place += self.ranks.world * len(batch.labels)

    def recalls(self, model: Model, epoch: int) -> Callable[[], dict[str, dict[str, float]]]:
        """Recall of each group on every split, for the log only: nothing is chosen by it.

        Returns:
            what reads them from the device; where passes are replayed they are only queued until then. The model must
            not be changed before.
        """
        self.ranks.agree(model.buffers())
        found = {name: self._hits(model, name, split, epoch) for name, split in self.dataset.splits.items()}
        return partial(self._read, found)

    def _hits(self, model: Model, name: str, split: Split, epoch: int) -> Hits:
        if name == "train" and self.loaders.recipe.train_stats == "paper":
            with as_in_training(model), self._looking(model) as looking:
                return count_hits(looking, self._as_in_training(epoch), self.dataset.num_classes, self.ranks)
        with self._looking(model.eval()) as looking:
            return count_hits(looking, self._batches(split), self.dataset.num_classes, self.ranks)

    def _read(self, found: dict[str, Hits]) -> dict[str, dict[str, float]]:
        self._wait()
        recalls = {
            name: recall(one.correct.cpu(), one.samples.cpu(), self.dataset.groups) for name, one in found.items()
        }
        return {name: {"all": values.all, **values.groups} for name, values in recalls.items()}

    def everything(
        self,
        model: Model,
        epoch: int,
        file: Path,
        *,
        shift: Tensor | None,
        change: Change | None,
        each: Callable[[], None],
    ) -> Callable[[], dict[str, ClassStatistics]]:
        """What a run leaves: every split's statistics, plain logits and labels in ``file``, and :meth:`as_trained`.

        Returns:
            what reads the statistics, and has the file written if it was not; where passes are replayed they are only
            queued until then, and logits, unless they are many, wait on the device. The model must not be changed
            before.
        """
        splits, classes = self.dataset.splits, self.dataset.num_classes
        kept = kept_splits(splits, classes)
        later = self.replays and sum(len(splits[name]) for name in kept) * classes < _WAITING
        waiting: list[tuple[str, Tensor, Tensor, Tensor]] = []

        def wait(name: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            waiting.append((name, rows, logits.clone(), labels))

        def queued(write: Callable[[str, Tensor, Tensor, Tensor], None]) -> dict[str, Callable[[], ClassStatistics]]:
            return {
                name: self._queue(
                    model,
                    split,
                    shift=shift,
                    change=change,
                    write=partial(write, name) if name in kept else None,
                    each=each,
                )
                for name, split in splits.items()
            }

        if later:
            passes = queued(wait)
        else:
            with self._predictions(file) as write:
                passes = queued(write)
        passes["train_paper"] = self._queue_as_trained(model, epoch, shift=shift, change=change)

        def read() -> dict[str, ClassStatistics]:
            found = {name: one() for name, one in passes.items()}
            if later:
                with self._predictions(file) as write:
                    for rows in waiting:
                        write(*rows)
            return found

        return read

    @contextmanager
    def _predictions(self, file: Path) -> Iterator[Callable[[str, Tensor, Tensor, Tensor], None]]:
        """Writes logits and labels of a split's rows into a file, which is there once all are; on the first rank."""
        if not self.ranks.first:
            yield lambda *_: None  # the first rank is given all ranks' rows
            return
        writer = predictions_writer(file, self.dataset.splits, self.dataset.num_classes)

        def write(name: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            writer.write(f"{name}.logits", rows, logits)
            writer.write(f"{name}.labels", rows, labels)

        try:
            yield write
            writer.close()
        finally:
            writer.abandon()

    def choose_posthoc(self, model: Model, kind: Kind, classifier: Classifier) -> tuple[PostHoc, dict[str, float]]:
        """A post-hoc step whose strength is chosen on validation data, and the recalls it was chosen by."""
        assert self.dataset.val is not None  # the trainer sees to it
        search = Search(kind, classifier, self.dataset.groups)
        self.of(model, self.dataset.val, write=lambda _, logits, labels: search.add(logits.cpu(), labels.cpu()))
        best = search.best().strength if self.ranks.first else 0.0
        strength = self.ranks.sum(torch.tensor(best, dtype=torch.float64))
        return PostHoc(kind, float(strength)), search.recalls() if self.ranks.first else {}


def _calling(each: Callable[[], None], batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        each()
        yield batch


def _in_order(loader: Resident) -> Iterator[Batch]:
    """What ``loader.evaluation()`` gives one process, but without indices on the device: the host waits for nothing."""
    (view,), size = loader.plan.views, loader.plan.batch_size
    for begin in range(0, len(loader.labels), size):
        images, labels = loader.pixels[begin : begin + size], loader.labels[begin : begin + size]
        yield Batch((view(images),), labels, torch.arange(begin, begin + len(labels)))

"""A run's model, measured: passes over the splits of its data set, and what is made of them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from longtail.data import Split
from longtail.data.plan import Batch
from longtail.data.samplers import Instance
from longtail.metrics import ClassStatistics, recall
from longtail.models import Model
from longtail.train.evaluation import NO_LABEL, as_in_training, kept_splits, pass_over, predictions_writer
from longtail.train.loading import Loaders
from longtail.train.posthoc import Classifier, Kind, PostHoc, Search

__all__ = ["Measuring"]

Change = Callable[[Tensor], Tensor]


class Measuring:
    """Takes the measures of a run.

    Args:
        loaders: of the run's splits.
    """

    def __init__(self, loaders: Loaders) -> None:
        self.loaders, self.dataset, self.ranks = loaders, loaders.dataset, loaders.ranks
        self.precision = torch.bfloat16 if loaders.recipe.precision == "bf16" else torch.float32

    def of(
        self,
        model: Model,
        split: Split,
        *,
        shift: Tensor | None = None,
        change: Change | None = None,
        write: Callable[[Tensor, Tensor, Tensor], None] | None = None,
        each: Callable[[], None] | None = None,
    ) -> ClassStatistics:
        """The class statistics of a split, in evaluation mode.

        Args:
            model: whose.
            split: of what.
            shift: of the loss whose gradient is measured.
            change: a post-hoc step, before anything is counted.
            write: given samples' places, plain logits and labels, on the first rank.
            each: called before each batch.
        """
        batches = self.loaders.evaluation(split).evaluation()
        return pass_over(
            model.eval(),
            batches if each is None else _calling(each, batches),
            precision=self.precision,
            ranks=self.ranks,
            shift=shift,
            change=change,
            write=write,
        )

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
        loader = self.loaders.training(("weak",), Instance(), drop_last=False)
        with as_in_training(model):
            return pass_over(
                model,
                self._counted_once(loader.training(self.loaders.recipe.seed, epoch)),
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

    def recalls(self, model: Model, epoch: int) -> dict[str, dict[str, float]]:
        """Recall of each group on every split, for the log only: nothing is chosen by it."""
        found = {}
        self.ranks.agree(model.buffers())
        for name, split in self.dataset.splits.items():
            paper = name == "train" and self.loaders.recipe.train_stats == "paper"
            one = self.as_trained(model, epoch) if paper else self.of(model, split)
            values = recall(one.correct, one.samples, self.dataset.groups)
            found[name] = {"all": values.all, **values.groups}
        return found

    def all_splits(
        self,
        model: Model,
        file: Path,
        *,
        shift: Tensor | None,
        change: Change | None,
        each: Callable[[], None],
    ) -> dict[str, ClassStatistics]:
        """Every split's statistics; plain logits and labels are written into ``file`` on the way."""
        splits, classes = self.dataset.splits, self.dataset.num_classes
        kept = kept_splits(splits, classes)
        writer = predictions_writer(file, splits, classes) if self.ranks.first else None

        def write(name: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            assert writer is not None  # the first rank is given all ranks' rows
            writer.write(f"{name}.logits", rows, logits)
            writer.write(f"{name}.labels", rows, labels)

        try:
            found = {
                name: self.of(
                    model,
                    split,
                    shift=shift,
                    change=change,
                    write=partial(write, name) if name in kept else None,
                    each=each,
                )
                for name, split in splits.items()
            }
            if writer is not None:
                writer.close()
        finally:
            if writer is not None:
                writer.abandon()
        return found

    def choose_posthoc(self, model: Model, kind: Kind, classifier: Classifier) -> tuple[PostHoc, dict[str, float]]:
        """A post-hoc step whose strength is chosen on validation data, and the recalls it was chosen by."""
        assert self.dataset.val is not None  # the trainer sees to it
        search = Search(kind, classifier, self.dataset.groups)
        self.of(model, self.dataset.val, write=lambda _, logits, labels: search.add(logits, labels))
        best = search.best().strength if self.ranks.first else 0.0
        strength = self.ranks.sum(torch.tensor(best, dtype=torch.float64))
        return PostHoc(kind, float(strength)), search.recalls() if self.ranks.first else {}


def _calling(each: Callable[[], None], batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        each()
        yield batch

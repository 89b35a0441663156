"""A pass over a split: class statistics, and logits written down without holding them in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from longtail._io import TensorWriter, read_tensors, write_tensors
from longtail.data import Split
from longtail.data.sampling.plan import Batch
from longtail.metrics import ClassStatistics, class_statistics
from longtail.ranks import Ranks
from longtail.train.posthoc import Classifier

__all__ = [
    "Hits",
    "as_in_training",
    "count_hits",
    "kept_splits",
    "pass_over",
    "predictions_writer",
    "read_statistics",
    "stored_batches",
    "stored_splits",
    "write_statistics",
]

TRAIN_LOGITS_BELOW = 512 * 2**20
"""Bytes under which the training split's logits are kept too."""
NO_LABEL = -100
"""Of a sample that was left out; losses and measures ignore it."""

_SAMPLES = 2**14  # that are counted together, at most
_NUMBERS = 2**22  # in their logits, features and labels, at most: 16 MB as float32


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """BatchNorm normalises by the batch, as in training, but learns nothing from it."""
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


Look = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From images to plain logits and features, without gradients."""


class Hits(NamedTuple):
    """How many samples of each class there are, and how many are predicted right; int64 ``(C,)``, on any device."""

    correct: Tensor
    samples: Tensor


@torch.no_grad()
def count_hits(look: Look, batches: Iterable[Batch], num_classes: int, ranks: Ranks) -> Hits:
    """What recall needs, of all batches, over all ranks; nothing is read back from the device.

    Args:
        look: the model's forward pass.
        batches: the split's; the first view is used.
        num_classes: C.
        ranks: the processes that share the split.
    """
    total: Tensor | None = None
    predictions = ((look(batch.views[0])[0].argmax(1), batch.labels) for batch in batches)
    for predicted, labels in _lots(predictions, overwritten=0):
        counted = labels != NO_LABEL
        right = counted & (predicted == labels)
        if total is None:
            total = torch.zeros(num_classes, 2, dtype=torch.int64, device=labels.device)
        total.index_add_(0, labels.clamp(min=0), torch.stack([right, counted], 1).long())
    if total is None:
        raise ValueError("Expected a split with a sample for every process, but got none.")
    return Hits(*ranks.sum(total).unbind(1))


@torch.no_grad()
def pass_over(
    look: Look,
    batches: Iterable[Batch],
    *,
    ranks: Ranks,
    shift: Tensor | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    write: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> ClassStatistics:
    """The class statistics of all batches, over all ranks; of one rank nothing is read back from the device.

    Args:
        look: the model's forward pass.
        batches: the split's; the first view is used.
        ranks: the processes that share the split.
        shift: of the loss whose gradient is measured.
        change: a post-hoc step, row by row, before anything is counted.
        write: given the samples' places, logits before any change, and labels, of each batch as it comes, wherever they
            lie; the next batch may overwrite the logits. On the first rank only.
    """
    total: ClassStatistics | None = None
    for logits, features, labels in _lots(_looked_at(look, batches, ranks, write), overwritten=2):
        counted = logits if change is None else change(logits)
        found = class_statistics(counted, labels, features, shift=shift, check_labels=False)
        total = found if total is None else total + found
    if total is None:
        raise ValueError("Expected a split with a sample for every process, but got none.")
    return ClassStatistics(**{name: ranks.sum(value) for name, value in total.tensors().items()})


def _looked_at(
    look: Look, batches: Iterable[Batch], ranks: Ranks, write: Callable[[Tensor, Tensor, Tensor], None] | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Logits, features and labels of this rank's batches; on the way all ranks' are written down."""
    for batch in _together(batches, ranks):
        if batch is None:  # this rank has no more, but must hear the others
            _gathered(ranks, None, write)
            continue
        logits, features = look(batch.views[0])
        _gathered(ranks, (batch.indices, logits, batch.labels), write)
        yield logits, features, batch.labels


def _lots(batches: Iterable[tuple[Tensor, ...]], *, overwritten: int) -> Iterator[tuple[Tensor, ...]]:
    """Small batches put together, since counting one takes dozens of launches; a large one as it is.

    Args:
        batches: tensors that have a row for each sample.
        overwritten: how many of them, from the first on, the next batch overwrites. While they wait they are copies.
    """
    waiting: list[tuple[Tensor, ...]] = []
    samples = numbers = 0
    for rows in batches:
        count, size = len(rows[0]), sum(part.numel() for part in rows)
        if waiting and (samples + count > _SAMPLES or numbers + size > _NUMBERS):
            yield _one_lot(waiting)
            samples = numbers = 0
        if count >= _SAMPLES or size >= _NUMBERS:
            yield rows
            continue
        waiting.append((*(part.clone() for part in rows[:overwritten]), *rows[overwritten:]))
        samples, numbers = samples + count, numbers + size
    if waiting:
        yield _one_lot(waiting)


def _one_lot(waiting: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What waits, as one batch; then nothing does."""
    lot = tuple(map(torch.cat, zip(*waiting, strict=True)))
    waiting.clear()
    return lot


def _together(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch | None]:
    """The batches; on a rank that has fewer than another, ``None`` until that one is through too."""
    if ranks.world == 1:
        yield from batches
        return
    iterator = iter(batches)
    while True:
        batch = next(iterator, None)
        if not int(ranks.sum(torch.tensor(int(batch is not None)))):
            return
        yield batch


Rows = tuple[Tensor, Tensor, Tensor]


def _gathered(ranks: Ranks, mine: Rows | None, write: Callable[[Tensor, Tensor, Tensor], None] | None) -> None:
    """Have the first rank write down all ranks' rows."""
    if write is None:
        return
    parts: list[Rows | None] = [mine]
    if ranks.world > 1:
        parts = [None] * ranks.world
        sent: Rows | None = None if mine is None else (mine[0].cpu(), mine[1].cpu(), mine[2].cpu())
        torch.distributed.gather_object(sent, parts if ranks.first else None)
    for part in parts:
        if part is not None and ranks.first:
            write(*part)


def kept_splits(splits: Mapping[str, Split], num_classes: int) -> set[str]:
    """The splits whose logits are kept."""
    return {
        name
        for name, split in splits.items()
        if name != "train" or len(split) * num_classes * torch.float32.itemsize < TRAIN_LOGITS_BELOW
    }


def predictions_writer(path: Path, splits: Mapping[str, Split], num_classes: int) -> TensorWriter:
    """A file for the logits and labels of those splits whose logits are kept."""
    kept = kept_splits(splits, num_classes)
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in sorted(kept):
        shapes[f"{name}.logits"] = (torch.float32, (len(splits[name]), num_classes))
        shapes[f"{name}.labels"] = (torch.int64, (len(splits[name]),))
    writer = TensorWriter(path, shapes)
    try:
        for name in kept:  # a sample whose image could not be read stays without a label
            length = len(splits[name])
            writer.write(f"{name}.labels", torch.arange(length), torch.full((length,), NO_LABEL))
    except OSError:
        writer.abandon()
        raise
    return writer


def stored_splits(path: Path) -> tuple[str, ...]:
    """The splits whose logits a run has written down."""
    with _stored(path) as file:
        return tuple(name.removesuffix(".logits") for name in file.keys() if name.endswith(".logits"))  # noqa: SIM118


def stored_batches(path: Path, split: str, rows: int = 8192) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels of a split that a run has written down, some rows at a time."""
    if split not in stored_splits(path):
        raise ValueError(f"Expected the logits of {split} in {path}, but they were not kept.")
    with _stored(path) as file:
        logits, labels = file.get_slice(f"{split}.logits"), file.get_slice(f"{split}.labels")
        for begin in range(0, logits.get_shape()[0], rows):
            yield logits[begin : begin + rows], labels[begin : begin + rows]


@contextmanager
def _stored(path: Path) -> Iterator[Any]:
    if not path.exists():
        raise FileNotFoundError(f"Expected the logits of a run in {path}, but they are not there.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"Expected {path} to be a whole safetensors file, but it is damaged: {error}.") from error


def write_statistics(path: Path, statistics: Mapping[str, ClassStatistics], classifier: Classifier) -> None:
    """Keep all class statistics, and the classifier's norms and biases."""
    tensors = {f"{split}.{name}": t for split, one in statistics.items() for name, t in one.tensors().items()}
    tensors["classifier.counts"] = classifier.counts
    if classifier.norms is not None:
        tensors["classifier.norms"] = classifier.norms
    if classifier.bias is not None:
        tensors["classifier.bias"] = classifier.bias
    write_tensors(path, tensors, {})


def read_statistics(path: Path) -> tuple[dict[str, ClassStatistics], Classifier]:
    """What :func:`write_statistics` wrote."""
    tensors, _ = read_tensors(path)
    if "classifier.counts" not in tensors:
        raise ValueError(f"Expected {path} to hold a run's class statistics, but it holds something else.")
    splits: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        split, _, name = key.rpartition(".")
        splits.setdefault(split, {})[name] = value
    classifier = splits.pop("classifier")
    found = {split: ClassStatistics(**sums) for split, sums in splits.items()}
    return found, Classifier(classifier["counts"], classifier.get("norms"), classifier.get("bias"))

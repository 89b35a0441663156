"""Files of a run with class statistics and logits, and the measures of a finished run computed from them again."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._io import open_tensors, plain, read_tensors, reading, tensor_writer, write_tensors
from longtail._ranks import Ranks
from longtail.classes import Groups
from longtail.data import Split
from longtail.metrics import ClassStatistics, class_statistics
from longtail.train.folder import RunFolder
from longtail.train.measures import POSTHOCS, Classifier, PostHoc, choose_posthoc, measures

TRAIN_LOGITS_BELOW = 512 * 2**20
"""Bytes under which the logits of the training split are kept too."""
NO_LABEL = -100
"""Label of a sample that was left out; losses and measures ignore it."""

WriteRows = Callable[[str, Tensor, Tensor, Tensor], None]
"""Receives a split, positions in it in ascending order, logits before any post-hoc step, and labels."""

_LOGITS = 2**22  # that are read at a time: 16 MB


def kept_splits(splits: Mapping[str, Split], num_classes: int) -> set[str]:
    """The splits whose logits are kept."""
    return {
        name
        for name, split in splits.items()
        if name != "train" or len(split) * num_classes * torch.float32.itemsize < TRAIN_LOGITS_BELOW
    }


@contextmanager
def predictions_writer(path: Path, splits: Mapping[str, Split], num_classes: int, ranks: Ranks) -> Iterator[WriteRows]:
    """Yield a function that writes rows of a split; the file exists once the block has ended without an error.

    Ranks other than the first write nothing: the first rank receives the rows of all ranks.
    """
    if not ranks.first:
        yield lambda *_: None
        return
    kept = sorted(kept_splits(splits, num_classes))
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in kept:
        shapes[f"{name}.logits"] = (torch.float32, (len(splits[name]), num_classes))
        shapes[f"{name}.labels"] = (torch.int64, (len(splits[name]),))
    with tensor_writer(path, shapes) as put:

        def write(split: str, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
            put(f"{split}.logits", rows, logits)
            put(f"{split}.labels", rows, labels)

        for name in kept:  # a sample whose image cannot be read keeps this label
            length = len(splits[name])
            put(f"{name}.labels", torch.arange(length), torch.full((length,), NO_LABEL))
        yield write


def stored_splits(path: Path) -> tuple[str, ...]:
    """The splits whose logits are in a run's file."""
    with _stored(path) as file:
        return tuple(name.removesuffix(".logits") for name in file.keys() if name.endswith(".logits"))  # noqa: SIM118


def stored_batches(path: Path, split: str, rows: int = 8192) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels of a split from a run's file, some rows at a time."""
    if split not in stored_splits(path):
        raise ValueError(f"Expected the logits of {split} in {path}, but they were not kept.")
    with _stored(path) as file:
        logits, labels = file.get_slice(f"{split}.logits"), file.get_slice(f"{split}.labels")
        for begin in range(0, logits.get_shape()[0], rows):
            yield logits[begin : begin + rows], labels[begin : begin + rows]


def _stored(path: Path) -> AbstractContextManager[Any]:
    if not path.exists():
        raise FileNotFoundError(f"Expected the logits of a run in {path}, but there is no such file.")
    return open_tensors(path)


def write_statistics(path: Path, statistics: Mapping[str, ClassStatistics], classifier: Classifier) -> None:
    """Write all class statistics, and the norms and biases of the classifier."""
    tensors = {f"{split}.{name}": t for split, one in statistics.items() for name, t in one.tensors().items()}
    known = {"counts": classifier.counts, "norms": classifier.norms, "bias": classifier.bias}
    tensors |= {f"classifier.{name}": value for name, value in known.items() if value is not None}
    write_tensors(path, tensors, {})


def read_statistics(path: Path) -> tuple[dict[str, ClassStatistics], Classifier]:
    """What :func:`write_statistics` wrote."""
    tensors, _ = read_tensors(path)
    with reading(path, "the class statistics of a run"):
        if "classifier.counts" not in tensors:
            raise ValueError(f"Expected {path} to hold the class statistics of a run, but it holds something else.")
        splits: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            split, _, name = key.rpartition(".")
            splits.setdefault(split, {})[name] = value
        classifier = splits.pop("classifier")
        found = {split: ClassStatistics(**sums) for split, sums in splits.items()}
        return found, Classifier(classifier["counts"], classifier.get("norms"), classifier.get("bias"))


def evaluate_run(folder: RunFolder | Path | str, posthoc: PostHoc | str | None = None) -> dict[str, Any]:
    """All measures of a finished run, computed again; nothing is written.

    Without a post-hoc step they come from the run's class statistics and equal those of ``result.json``. With one they
    come from its stored logits, which are those before any step: the step replaces the one that the run had. What
    logits cannot give is left out: gradient balances, and the splits in ``without_logits`` (training mode, and training
    splits whose logits were too large to keep).

    Args:
        folder: the run folder.
        posthoc: such as ``"tau=0.7"`` or ``"adjust=1"``; ``"tau"`` or ``"adjust"`` alone chooses the strength on the
            run's validation logits, and ``posthoc_chosen_on_val`` has the recalls.

    Returns:
        plain data, as in ``result.json``.
    """
    run = RunFolder(folder)
    kept = run.result()
    statistics, classifier = read_statistics(run.statistics_file)
    about = {name: kept[name] for name in ("data", "method", "params", "seed", "epochs", "reported")}
    about |= {name: kept[name] for name in ("label", "beta", "groups_from", "held_out", "best") if name in kept}
    groups = Groups.from_indices(**kept["groups"])
    named, train_stats = tuple(kept["classes"]), kept["train_stats"]
    trace, done = kept["posthoc_chosen_on_val"], kept["posthoc"]
    more: dict[str, Any] = {}
    if posthoc is None:
        more = {"auto_beta": kept["auto_beta"]} if "auto_beta" in kept else {}
    else:
        step, trace = choose_step(run, posthoc, classifier, groups)
        done = str(step)
        stored = stored_splits(run.predictions_file)
        more = {"without_logits": [name for name in statistics if name not in stored]}
        statistics = {name: _statistics_after(run, name, step, classifier) for name in statistics if name in stored}
    known = posthoc is None and all("gradient_balance" in split for split in kept["splits"].values())
    found = measures(statistics, groups, named, train_stats, gradients=known)
    if posthoc is not None:
        found = {name: kept[name] for name in ("counts", "imbalance_factor") if name in kept} | found
    result: dict[str, Any] = plain({**about, "posthoc": done, "posthoc_chosen_on_val": trace, **found, **more})
    return result


def choose_step(
    run: RunFolder, posthoc: PostHoc | str, classifier: Classifier, groups: Groups
) -> tuple[PostHoc, dict[str, float]]:
    """The post-hoc step that ``posthoc`` names, its strength chosen on the run's validation logits if it has none."""
    if isinstance(posthoc, PostHoc):
        return posthoc, {}
    if posthoc not in POSTHOCS:
        return PostHoc.parse(posthoc), {}
    if "val" not in stored_splits(run.predictions_file):
        raise ValueError(
            f"Expected validation logits in {run.path} to choose the strength of {posthoc}, but the run had no "
            f"validation split; `{posthoc}=1` gives a strength."
        )
    return choose_posthoc(posthoc, classifier, groups, _labelled(run, "val", classifier))


def _statistics_after(run: RunFolder, split: str, step: PostHoc, classifier: Classifier) -> ClassStatistics:
    batches = _labelled(run, split, classifier)
    parts = (class_statistics(step.apply(logits, classifier), labels) for logits, labels in batches)
    first = next(parts, None)
    if first is None:
        raise ValueError(f"Expected logits of {split} in {run.predictions_file}, but there are none.")
    return sum(parts, first)


def _labelled(run: RunFolder, split: str, classifier: Classifier) -> Iterator[tuple[Tensor, Tensor]]:
    """Stored logits and labels, without samples whose image could not be read."""
    rows = max(1, _LOGITS // len(classifier.counts))
    for logits, labels in stored_batches(run.predictions_file, split, rows):
        seen = labels >= 0
        if bool(seen.any()):
            yield logits[seen], labels[seen]

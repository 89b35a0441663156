"""The measures of a finished run again, from what it left: as they were, or after a post-hoc step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from longtail._io import plain
from longtail.classes import Groups
from longtail.metrics import ClassStatistics, class_statistics
from longtail.train.evaluation import read_statistics, stored_batches, stored_splits
from longtail.train.folder import RunFolder
from longtail.train.posthoc import Classifier, Kind, PostHoc, Search
from longtail.train.results import measures

__all__ = ["evaluate_run"]

_LOGITS = 2**22  # that are looked at together: 16 MB


def evaluate_run(folder: RunFolder | Path | str, posthoc: PostHoc | str | None = None) -> dict[str, Any]:
    """All measures of a finished run, recomputed; nothing is written.

    Without a post-hoc step they come from the run's class statistics, and are those of its ``result.json``. With one
    they come from its stored logits, which are those before any step: a step that the run had is replaced, not
    followed. What cannot be had from logits is then left out: the classifier's gradients, and the splits that
    ``without_logits`` names (training-mode passes, and training splits whose logits were too large to keep).

    Args:
        folder: the run's.
        posthoc: such as ``"tau=0.7"`` or ``"adjust=1"``; ``"tau"`` or ``"adjust"`` alone chooses the strength on the
            run's validation logits, as ``posthoc_chosen_on_val`` of the result tells.

    Returns:
        plain data, as in ``result.json``.
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    kept = run.result()
    statistics, classifier = read_statistics(run.statistics_file)
    try:
        about = {name: kept[name] for name in ("data", "method", "params", "seed", "epochs", "reported")}
        groups = Groups.from_indices(**kept["groups"])
        named, train_stats = tuple(kept["classes"]), kept["train_stats"]
        trace = kept["posthoc_chosen_on_val"]
        done = kept["posthoc"]
    except KeyError as error:
        raise ValueError(f"Expected {run.result_file} to be a run's measures, but it has no {error}.") from None
    more: dict[str, Any] = {}
    if posthoc is not None:
        step, trace = _step(run, posthoc, classifier, groups)
        done = str(step)
        stored = stored_splits(run.predictions_file)
        more = {"without_logits": [name for name in statistics if name not in stored]}
        statistics = {name: _after(run, name, step, classifier) for name in statistics if name in stored}
    known = posthoc is None and all("gradient_balance" in split for split in kept["splits"].values())
    found = measures(statistics, groups, named, train_stats, gradients=known)
    if posthoc is not None:
        found = {name: kept[name] for name in ("counts", "imbalance_factor") if name in kept} | found  # train's
    result: dict[str, Any] = plain({**about, "posthoc": done, "posthoc_chosen_on_val": trace, **found, **more})
    return result


def _step(
    run: RunFolder, posthoc: PostHoc | str, classifier: Classifier, groups: Groups
) -> tuple[PostHoc, dict[str, float]]:
    """The step that is asked for, and what it was chosen by, where it was."""
    if isinstance(posthoc, PostHoc):
        return posthoc, {}
    kind = next((kind for kind in get_args(Kind) if kind == posthoc), None)
    if kind is None:
        return PostHoc.parse(posthoc), {}
    if "val" not in stored_splits(run.predictions_file):
        raise ValueError(
            f"Expected validation logits in {run.path} to choose the strength of {kind} on, but the run had no "
            f"validation split; `{kind}=1` gives a strength."
        )
    search = Search(kind, classifier, groups)
    for logits, labels in _batches(run, "val", classifier):
        search.add(logits, labels)
    return search.best(), search.recalls()


def _after(run: RunFolder, split: str, step: PostHoc, classifier: Classifier) -> ClassStatistics:
    """A split's statistics after a post-hoc step, in one pass over its stored logits."""
    parts = (
        class_statistics(step.apply(logits, classifier), labels) for logits, labels in _batches(run, split, classifier)
    )
    total = next(parts, None)
    if total is None:
        raise ValueError(f"Expected logits of {split} in {run.predictions_file}, but there are none.")
    for part in parts:
        total = total + part
    return total


def _batches(run: RunFolder, split: str, classifier: Classifier) -> Iterator[tuple[Tensor, Tensor]]:
    """Stored logits and labels, without the samples whose image could not be read."""
    rows = max(1, _LOGITS // len(classifier.counts))
    for logits, labels in stored_batches(run.predictions_file, split, rows):
        seen = labels >= 0
        if bool(seen.any()):
            yield logits[seen], labels[seen]

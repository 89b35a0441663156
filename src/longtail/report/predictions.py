"""What a run predicted: how often each class was taken for which, and which samples went wrong."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.study.runs import Run
from longtail.train.evaluation import read_statistics, stored_batches, stored_splits
from longtail.train.folder import RunFolder
from longtail.train.posthoc import PostHoc

__all__ = ["Confusions", "Predicted", "predicted_by", "pick_mistakes"]


@dataclass(frozen=True, eq=False)
class Predicted:
    """A split's true and predicted classes, and how sure each prediction was."""

    labels: Tensor
    """int64 ``(N,)``; negative where a sample was left out."""
    classes: Tensor
    """int64 ``(N,)``."""
    confidence: Tensor | None = None
    """Probability of the predicted class, ``(N,)``; ``None`` where only labels are known."""
    whose: str = ""
    """The run that predicted it, in words; empty where there is none."""
    split: str = "test"


def predicted_by(run: Run, split: str = "test") -> Predicted | None:
    """What a run predicted, after its post-hoc step where it had one; ``None`` where its logits were not kept."""
    folder = RunFolder(run.path)
    if not folder.predictions_file.exists() or split not in stored_splits(folder.predictions_file):
        return None
    step = run.result.get("posthoc")
    change = PostHoc.parse(step) if step else None
    classifier = read_statistics(folder.statistics_file)[1] if change else None
    labels, classes, confidence = [], [], []
    for logits, label in stored_batches(folder.predictions_file, split):
        after = logits if change is None or classifier is None else change.apply(logits, classifier)
        best = after.softmax(1).max(1)
        labels.append(label)
        classes.append(after.argmax(1))
        confidence.append(best.values)
    whose = f"the run with seed {run.recipe.seed}"
    return Predicted(torch.cat(labels), torch.cat(classes), torch.cat(confidence), whose, split)


class Confusions:
    """How often each class was taken for which; only pairs that occur are kept, so that many classes do no harm.

    Args:
        num_classes: how many there are.
        predictions: of one run, or of several, whose samples are counted together.

    Example:
        >>> taken = Confusions(3, [Predicted(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 2, 2, 1]))])
        >>> taken.of(0)
        [(2, 66.66666666666667)]
    """

    def __init__(self, num_classes: int, predictions: Iterable[Predicted]) -> None:
        pairs: dict[tuple[int, int], int] = {}
        self._samples = [0] * num_classes
        for one in predictions:
            seen = one.labels >= 0
            codes, counts = torch.unique(one.labels[seen] * num_classes + one.classes[seen], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                label, guess = divmod(code, num_classes)
                self._samples[label] += count
                if label != guess:
                    pairs[label, guess] = pairs.get((label, guess), 0) + count
        self._taken: dict[int, list[tuple[int, int]]] = {}
        for (label, guess), count in pairs.items():
            self._taken.setdefault(label, []).append((guess, count))

    def of(self, label: int, most: int = 3) -> list[tuple[int, float]]:
        """The classes that it is taken for most, and the per cent of its samples."""
        found = sorted(self._taken.get(label, []), key=lambda pair: (-pair[1], pair[0]))[:most]
        return [(guess, 100 * count / self._samples[label]) for guess, count in found]

    def samples(self, label: int) -> int:
        """How many samples it has."""
        return self._samples[label]


def pick_mistakes(predicted: Predicted, label: int, most: int = 4) -> list[int]:
    """Samples of a class that were taken for another, the surest first."""
    wrong = ((predicted.labels == label) & (predicted.classes != label)).nonzero().flatten()
    if predicted.confidence is None or not len(wrong):
        return [int(place) for place in wrong[:most].tolist()]
    order: Sequence[int] = predicted.confidence[wrong].argsort(descending=True, stable=True)[:most].tolist()
    return [int(wrong[place]) for place in order]

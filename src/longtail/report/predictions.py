"""The predictions of a run: confusions between classes, and images of mistakes."""

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.data import DataSet, Split
from longtail.report.page import Example
from longtail.study.runs import Run
from longtail.train.dataset import open_data
from longtail.train.folder import RunFolder
from longtail.train.measures import PostHoc
from longtail.train.stored import read_statistics, stored_batches, stored_splits


@dataclass(frozen=True, eq=False)
class Predicted:
    """True and predicted classes of a split."""

    labels: Tensor
    """int64 ``(N,)``; negative for ignored samples."""
    classes: Tensor
    """int64 ``(N,)``."""
    confidence: Tensor | None = None
    """Probability of the predicted class, ``(N,)``."""
    seed: int | None = None
    split: str = "test"

    def mistakes(self, label: int, most: int = 4) -> list[int]:
        """Return indices of samples of a class that were predicted as another, the most confident first."""
        wrong = ((self.labels == label) & (self.classes != label)).nonzero().flatten()
        if self.confidence is not None:
            wrong = wrong[self.confidence[wrong].argsort(descending=True, stable=True)]
        return [int(place) for place in wrong[:most].tolist()]


def predicted_by(run: Run, split: str = "test") -> Predicted | None:
    """Return the predictions of a run after its post-hoc step; ``None`` if its logits were not kept."""
    folder = RunFolder(run.path)
    if not folder.predictions_file.exists() or split not in stored_splits(folder.predictions_file):
        return None
    step = run.result.get("posthoc")
    change = PostHoc.parse(step) if step else None
    classifier = read_statistics(folder.statistics_file)[1] if change else None
    labels, classes, confidence = [], [], []
    for logits, label in stored_batches(folder.predictions_file, split):
        after = logits if change is None or classifier is None else change.apply(logits, classifier)
        labels.append(label)
        classes.append(after.argmax(1))
        confidence.append(after.softmax(1).amax(1))
    return Predicted(torch.cat(labels), torch.cat(classes), torch.cat(confidence), run.recipe.seed, split)


class Confusions:
    """How often each class is predicted as which other class; only pairs that occur are stored.

    Args:
        num_classes: the number of classes.
        predictions: of one or more runs, whose samples are counted together.

    Example:
        >>> found = Confusions(3, [Predicted(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 2, 2, 1]))])
        >>> found.of(0)
        [(2, 66.66666666666667)]
    """

    def __init__(self, num_classes: int, predictions: Iterable[Predicted]) -> None:
        self._pairs: dict[int, dict[int, int]] = {}
        self._samples = [0] * num_classes
        for one in predictions:
            seen = one.labels >= 0
            codes, counts = torch.unique(one.labels[seen] * num_classes + one.classes[seen], return_counts=True)
            for code, number in zip(codes.tolist(), counts.tolist(), strict=True):
                label, guess = divmod(code, num_classes)
                self._samples[label] += number
                if label != guess:
                    pairs = self._pairs.setdefault(label, {})
                    pairs[guess] = pairs.get(guess, 0) + number

    def of(self, label: int, most: int = 3) -> list[tuple[int, float]]:
        """Return the classes that a class is most often mistaken for, with the per cent of its samples."""
        found = sorted(self._pairs.get(label, {}).items(), key=lambda pair: (-pair[1], pair[0]))[:most]
        return [(guess, 100 * number / self._samples[label]) for guess, number in found]

    def samples(self, label: int) -> int:
        """Return the number of samples of a class."""
        return self._samples[label]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of a data set, or the reason why there are none."""

    dataset: DataSet | None
    why_not: str = ""

    def mistakes(self, predicted: Predicted | None, label: int) -> tuple[str, list[Example]]:
        """Return a title and images of a class that were predicted as another; none without predictions."""
        seen = None if self.dataset is None or predicted is None else self.dataset.splits.get(predicted.split)
        if self.dataset is None or predicted is None or seen is None or len(seen) != len(predicted.labels):
            return "", []
        names, found = self.dataset.class_names, []
        for place in predicted.mistakes(label):
            guess, uri = names[int(predicted.classes[place])], _uri(seen, place)
            sure = "" if predicted.confidence is None else f", {100 * float(predicted.confidence[place]):.0f} %"
            found += [Example(uri, f"{names[label]}, predicted as {guess}", f"{guess}{sure}")] if uri else []
        images = "validation images" if predicted.split == "val" else "test images"
        run = "" if predicted.seed is None else f", seed {predicted.seed}"
        return (f"Most confident mistakes ({images}{run}) and the predictions:" if found else ""), found


def open_pictures(run: Run) -> Pictures:
    """Return the images of the data set of a run; without them the report has none."""
    try:
        return Pictures(open_data(run.recipe))
    except ModuleNotFoundError as error:
        return Pictures(None, f"There are no example images: {error}.")
    except (OSError, ValueError) as error:
        return Pictures(None, f"There are no example images, because the data is not on this machine: {error}")


def _uri(split: Split, place: int, side: int = 64) -> str:
    """An image as a small PNG; empty if it cannot be read."""
    from PIL import Image  # noqa: PLC0415 - an extra

    try:
        pixels = split.images[place].to(torch.uint8)
    except (OSError, ValueError):
        return ""
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if max(image.size) > side:
        image.thumbnail((side, side))
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")

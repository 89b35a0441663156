"""The predictions of a run, and images of its mistakes."""

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.data import FeatureVectors, Split
from longtail.report.class_results import Example
from longtail.study.runs import Run
from longtail.train.dataset import open_data
from longtail.train.folder import RunFolder
from longtail.train.measures import PostHoc
from longtail.train.stored import read_statistics, stored_batches, stored_splits


class Predicted(NamedTuple):
    """The predictions of a run on a split, one per sample."""

    labels: Tensor
    """True classes; negative for ignored samples."""
    classes: Tensor
    """Predicted classes."""
    confidence: Tensor
    """Probabilities of the predicted classes."""


def read_predicted(run: Run, split: str = "test") -> Predicted | None:
    """Return the predictions of a run after its post-hoc step; ``None`` if its logits were not kept."""
    folder = RunFolder(run.path)
    if not folder.predictions_file.exists() or split not in stored_splits(folder.predictions_file):
        return None
    change = PostHoc.of(run.result)
    classifier = read_statistics(folder.statistics_file)[1] if change else None
    batches = []
    for logits, labels in stored_batches(folder.predictions_file, split):
        after = logits if change is None or classifier is None else change.apply(logits, classifier)
        batches.append((labels, after.argmax(1), after.softmax(1).amax(1)))
    return Predicted(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def images_of_mistakes(
    run: Run, predicted: Predicted | None, split: str, classes: Sequence[int], most: int = 4
) -> tuple[dict[int, list[Example]], str]:
    """Return images of the most confident mistakes on some classes, and why there are none if there are none."""
    try:
        dataset = open_data(run.recipe)
    except ModuleNotFoundError as error:
        return {}, f"There are no example images: {error}."
    except (OSError, ValueError) as error:
        return {}, f"There are no example images, because the data is not on this machine: {error}"
    images = dataset.splits.get(split)
    if images is None or predicted is None or len(images) != len(predicted.labels):
        return {}, "There are no example images, because the run did not keep its predictions or its data has changed."
    if isinstance(images.images, FeatureVectors):
        return {}, ""
    found: dict[int, list[Example]] = {}
    for c in classes:
        wrong = ((predicted.labels == c) & (predicted.classes != c)).nonzero().flatten()
        order = predicted.confidence[wrong].argsort(descending=True, stable=True)
        for place in wrong[order][:most].tolist():
            uri, guess = _data_uri(images, place), dataset.class_names[int(predicted.classes[place])]
            if uri:
                found.setdefault(c, []).append((uri, guess, 100 * float(predicted.confidence[place])))
    return found, ""


def _data_uri(split: Split, place: int, side: int = 64) -> str:
    """An image as a small PNG; empty if it cannot be read."""
    from PIL import Image  # noqa: PLC0415 - an extra

    try:
        array = split.images[place].to(torch.uint8).permute(1, 2, 0).numpy()
    except (OSError, ValueError):
        return ""
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    image.thumbnail((side, side))  # never enlarges
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")

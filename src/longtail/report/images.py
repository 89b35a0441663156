"""Images of a run's data as small pictures inside a page, where the data is there."""

import base64
import io
from dataclasses import dataclass

import torch

from longtail.data import DataSet, Split
from longtail.report.page import Example
from longtail.report.predictions import Predicted, pick_mistakes
from longtail.study.runs import Run
from longtail.train.loading import open_data

__all__ = ["Pictures", "open_pictures"]

_SIDE = 64


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of a data set, or the reason why there are none."""

    dataset: DataSet | None
    why_not: str = ""

    def mistakes(self, predicted: Predicted | None, label: int, most: int = 4) -> tuple[str, list[Example]]:
        """Images of a class that were taken for another; without predictions, training images of it."""
        if self.dataset is None:
            return "", []
        names = self.dataset.class_names
        seen = None if predicted is None else self.dataset.splits.get(predicted.split)
        if predicted is not None and seen is not None and len(seen) == len(predicted.labels):
            found = []
            for place in pick_mistakes(predicted, label, most):
                guess = names[int(predicted.classes[place])]
                sure = "" if predicted.confidence is None else f", {100 * float(predicted.confidence[place]):.0f} %"
                uri = _uri(seen, place)
                if uri:
                    found.append(Example(uri, f"{names[label]}, taken for {guess}", f"{guess}{sure}"))
            whose = f" of {predicted.whose}" if predicted.whose else ""
            images = "validation images" if predicted.split == "val" else "test images"
            title = f"Surest mistakes{whose} on {images}, with what they were taken for:"
            return (title if found else ""), found
        of_class = (self.dataset.train.labels == label).nonzero().flatten()[:most].tolist()
        uris = [_uri(self.dataset.train, place) for place in of_class]
        examples = [Example(uri, f"a training image of {names[label]}") for uri in uris if uri]
        return ("Training images of it:" if examples else ""), examples


def open_pictures(run: Run) -> Pictures:
    """The images that a run was trained and tested on; a page without them is better than none."""
    try:
        return Pictures(open_data(run.recipe))
    except ModuleNotFoundError as error:
        return Pictures(None, f"Example images are left out: {error}.")
    except (OSError, ValueError) as error:
        return Pictures(None, f"Example images are left out, because the data is not here: {error}")


def _uri(split: Split, place: int) -> str:
    """An image as a PNG of at most 64 pixels a side; empty where it cannot be read."""
    from PIL import Image  # noqa: PLC0415 - an extra

    try:
        pixels = split.images[place].to(torch.uint8)
    except (OSError, ValueError):
        return ""
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if max(image.size) > _SIDE:
        image.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")

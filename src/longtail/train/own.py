"""Your own images: opening their path, and whether they are small."""

from functools import cache
from itertools import islice
from pathlib import Path

from longtail._program import program
from longtail._registry import nearest
from longtail.data import CATALOG, DataSet, FileImages, open_path
from longtail.data.loaders.decode import UnreadableImageError, image_size

__all__ = ["all_small", "is_small", "open_own"]

SMALL = 64
"""Images up to this side are small."""


def is_small(path: Path | str) -> bool:
    """Whether your own images are small, square and of one size: then they are trained on like CIFAR.

    Headers are read once per process, and again if the folder or the list has changed.
    """
    found = Path(path)
    if not found.exists():
        near = nearest(str(path), CATALOG)
        raise ValueError(
            f"Expected a data set that `longtail data list` shows, or a path, but got {str(path)!r}{near}."
        )
    return _is_small(found.resolve(), found.stat().st_mtime_ns)


@cache
def _is_small(path: Path, modified: int) -> bool:  # noqa: ARG001 - a key of the cache
    return all_small(open_own(path))


def open_own(path: Path | str) -> DataSet:
    """Your own data set; a run folder is refused."""
    if (Path(path) / "recipe.toml").exists():
        raise ValueError(
            f"Expected {path} to have class folders, but it is a run folder: `{program()} train --resume {path}` "
            "continues the run."
        )
    return open_path(path)


def all_small(dataset: DataSet, most: int | None = None) -> bool:
    """Whether images are small, square and of one size; reads headers, up to the first that is not, or ``most``."""
    first: tuple[int, int] | None = None
    every = ((split.images, place) for split in dataset.splits.values() for place in range(len(split)))
    for images, place in islice(every, most):
        if isinstance(images, FileImages):
            try:
                size = image_size(images.path(place))
            except UnreadableImageError:
                continue  # treated as `bad_images` says
        else:
            size = (int(images[place].shape[1]), int(images[place].shape[2]))
        first = first or size
        if size != first or size[0] != size[1] or size[0] > SMALL:
            return False
    return first is not None

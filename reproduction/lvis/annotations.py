"""The annotations of LVIS: boxes in COCO images, from ``lvis_v1_train.json`` and ``lvis_v1_val.json``."""

import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import describe, shown
from longtail.data.datasets.image_files import inside

__all__ = ["Lvis", "read_lvis"]

_BOX = struct.Struct("<qqqdddd")
_BOXES = np.dtype([("id", "<i8"), ("image_id", "<i8"), ("category_id", "<i8"), ("box", "<f8", (4,))])
_MARK = b"\xef\xbb\xbf"  # some editors put a byte order mark first


@dataclass(frozen=True, eq=False)
class Lvis:
    """The images, boxes and classes of an LVIS file, without outlines."""

    image_ids: NDArray[np.int64]
    """``(images,)``, in the order of the file, like all that follows."""
    file_names: tuple[str, ...]
    """Path of each image in the COCO folder: ``train2017/000000391895.jpg``."""
    widths: NDArray[np.int64]
    heights: NDArray[np.int64]
    annotation_ids: NDArray[np.int64]
    """``(boxes,)``."""
    image_index: NDArray[np.int64]
    """Index of each box's image in ``image_ids``."""
    class_index: NDArray[np.int64]
    """Class of each box: its category id - 1."""
    boxes: NDArray[np.float64]
    """``(boxes, 4)``: left, top, width and height in pixels, unchecked."""
    class_names: tuple[str, ...]
    image_counts: NDArray[np.int64]
    """Images per class, according to the file."""
    frequencies: tuple[str, ...]
    """``f``, ``c`` or ``r`` for each class: frequent, common or rare."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def box_counts(self) -> NDArray[np.int64]:
        """Boxes per class, counted."""
        return np.bincount(self.class_index, minlength=self.num_classes).astype(np.int64)


def read_lvis(path: Path) -> Lvis:
    """Return the images, boxes and classes of an LVIS v1 file.

    Most of the 1.1 GB of ``lvis_v1_train.json`` is outlines. They are dropped while the file is parsed and each
    annotation is packed into 56 bytes, so memory stays little above the size of the file.

    Args:
        path: the JSON file. Every image must have ``id``, ``width``, ``height`` and ``coco_url``; every annotation
            ``id``, ``image_id``, ``category_id`` and ``bbox``; every category ``id``, ``name``, ``image_count`` and
            ``frequency``. Ids are unique; categories count from 1 without a gap. A box may hold any numbers.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "lvis.json"
        >>> size = path.write_text('''{
        ...     "images": [{"id": 7, "width": 640, "height": 480, "coco_url": "http://coco.org/train2017/07.jpg"}],
        ...     "categories": [{"id": 1, "name": "apple", "image_count": 1, "frequency": "r"}],
        ...     "annotations": [{"id": 1, "image_id": 7, "category_id": 1, "bbox": [10, 20.5, 30, 40],
        ...                      "segmentation": [[10, 20.5, 40, 20.5, 40, 60.5]]}]}''')
        >>> lvis = read_lvis(path)
        >>> lvis.file_names, lvis.class_names, lvis.box_counts, lvis.boxes
        (('train2017/07.jpg',), ('apple',), array([1]), array([[10. , 20.5, 30. , 40. ]]))
        >>> folder.cleanup()
    """
    try:
        content = json.loads(_text(path), object_hook=_compact)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"got: {error}"
        raise ValueError(f"Expected {path} to be JSON, but {reason}.") from None
    images, annotations, categories = (_list(path, content, key) for key in ("images", "annotations", "categories"))
    del content

    wrong = next((i for i, packed in enumerate(annotations) if not isinstance(packed, bytes)), None)
    if wrong is not None:
        raise ValueError(
            f"Expected annotation {wrong} in {path} to have integers as `id`, `image_id` and `category_id` and four "
            f"numbers as `bbox`, but got {describe(annotations[wrong])}."
        )
    packed = np.frombuffer(b"".join(annotations), dtype=_BOXES)
    del annotations
    image_ids, widths, heights = (_integers(path, "image", images, key) for key in ("id", "width", "height"))
    category_ids = _integers(path, "category", categories, "id")
    annotation_ids = packed["id"].astype(np.int64)
    for what, ids in (("image", image_ids), ("category", category_ids), ("annotation", annotation_ids)):
        _check_unique(path, what, ids)
    if not np.array_equal(np.sort(category_ids), np.arange(1, len(categories) + 1)):
        found = shown(np.sort(category_ids).tolist())
        raise ValueError(f"Expected category ids in {path} to be 1…{len(categories)}, but got {found}.")
    categories = [categories[i] for i in np.argsort(category_ids).tolist()]
    _index(path, "category_id", packed["category_id"], category_ids)
    return Lvis(
        image_ids=image_ids,
        file_names=tuple(_file_name(path, image) for image in images),
        widths=widths,
        heights=heights,
        annotation_ids=annotation_ids,
        image_index=_index(path, "image_id", packed["image_id"], image_ids),
        class_index=packed["category_id"].astype(np.int64) - 1,
        boxes=packed["box"].astype(np.float64),
        class_names=tuple(_strings(path, "category", categories, "name")),
        image_counts=_integers(path, "category", categories, "image_count"),
        frequencies=tuple(_strings(path, "category", categories, "frequency")),
    )


def _text(path: Path) -> str:
    """Return the file as text without a copy of its bytes in memory."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            start = len(_MARK) if content[: len(_MARK)] == _MARK else 0
            with view[start:] as rest:
                return str(rest, "utf-8")


def _compact(found: dict[str, Any]) -> dict[str, Any] | bytes:
    """Pack an annotation, or drop unneeded parts of another object; called for each parsed object."""
    if "bbox" in found:
        try:
            return _BOX.pack(found["id"], found["image_id"], found["category_id"], *found["bbox"])
        except (KeyError, TypeError, OverflowError, struct.error):
            pass  # reported after the file is read
    for heavy in ("segmentation", "neg_category_ids", "not_exhaustive_category_ids", "synonyms", "def"):
        found.pop(heavy, None)
    return found


def _list(path: Path, content: object, key: str) -> list[Any]:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise ValueError(f"Expected {path} to have a list of {key}, but got {describe(found if found else content)}.")
    return found


def _integers(path: Path, what: str, rows: list[Any], key: str) -> NDArray[np.int64]:
    values = []
    for number, row in enumerate(rows):
        value = row.get(key) if isinstance(row, dict) else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise ValueError(f"Expected {what} {number} in {path} to have an integer `{key}`, but got {describe(row)}.")
        values.append(value)
    return np.array(values, dtype=np.int64)


def _strings(path: Path, what: str, rows: list[Any], key: str) -> list[str]:
    for row in rows:  # dictionaries with an id, checked before
        if not isinstance(row.get(key), str):
            raise ValueError(
                f"Expected {what} {row['id']} in {path} to have a string `{key}`, but got {describe(row)}."
            )
    return [row[key] for row in rows]


def _file_name(path: Path, image: dict[str, Any]) -> str:
    """Return the last two parts of an image's address."""
    url = image.get("coco_url")
    name = "/".join(url.split("/")[-2:]) if isinstance(url, str) else ""
    if "/" not in name or name[-1] == "/" or not inside(name):
        raise ValueError(
            f"Expected image {image['id']} in {path} to have a `coco_url` that ends in folder/name, "
            f"but got {describe(url)}."
        )
    return name


def _check_unique(path: Path, what: str, ids: NDArray[np.int64]) -> None:
    found, times = np.unique(ids, return_counts=True)
    if (times > 1).any():
        raise ValueError(
            f"Expected {what} ids in {path} to be unique, but got twice: {shown(found[times > 1].tolist())}."
        )


def _index(path: Path, key: str, values: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each of ``values`` in ``ids``."""
    order = np.argsort(ids)
    place = np.searchsorted(ids, values, sorter=order)
    known = place < len(ids)
    known[known] = ids[order[place[known]]] == values[known]
    if not known.all():
        unknown = shown(np.unique(values[~known]).tolist())
        raise ValueError(f"Expected each `{key}` in {path} to be in the list of the file, but got {unknown}.")
    return order[place].astype(np.int64)

"""LVIS crops: a classification set whose samples are the boxes of LVIS v1, cut out of COCO's images."""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from longtail._checks import Vector, check_choice, check_integer, shown
from longtail.classes import Groups
from longtail.data.datasets.dataset import DataSet, Split
from longtail.data.datasets.lvis_windows import NoWindow, Window, cut_window, window
from longtail.data.datasets.readers.lvis import Lvis, read_lvis
from longtail.data.datasets.shards import ShardImages, ShardWriter, write_whole
from longtail.data.loaders.decode import BadImages, UnreadableImageError, decode

__all__ = ["BadImage", "Progress", "Report", "build_lvis_crops", "lvis_groups", "read_lvis_crops"]

Progress = Callable[[str, int, int], None]
"""Called with the name of the annotations, the boxes that are done, and how many there are."""

BadImage = Literal["missing-image", "unreadable-image", "wrong-size"]
Reason = NoWindow | BadImage
"""Why a box gives no crop."""

_SOURCE, _DROPPED, _REPORT = "source.json", "dropped.jsonl", "report.json"


@dataclass(frozen=True)
class Report:
    """What became of an LVIS file's boxes."""

    folder: Path
    boxes: int
    crops: int
    dropped: dict[str, int]
    """Boxes that were left out, by reason; ``dropped.jsonl`` in the folder lists each."""
    counts_before: tuple[int, ...]
    """Boxes of each class."""
    counts_after: tuple[int, ...]
    """Crops of each class."""
    emptied: tuple[str, ...]
    """Classes that have boxes but no crop."""
    differences: tuple[str, ...]
    """Where the boxes differ from the counts that ship with the package; for the official training file only."""


def build_lvis_crops(
    annotations: Path | str,
    images: Path | str,
    out: Path | str,
    *,
    size: int = 224,
    workers: int = 0,
    bad_images: BadImages = "error",
    samples_per_shard: int = 4096,
    progress: Progress | None = None,
) -> Report:
    """Cut every box of an LVIS file out of its image, into packed shards.

    Each image is decoded once and all its boxes are cut from it (:func:`window`, :func:`cut_window`). Crops come in the
    order of image ids, then of annotation ids. A build that was stopped, by a full disk or a kill, goes on after its
    last whole shard when it is called again, and ends with the same bytes; one that had ended is left as it is. The
    folder has, beside the shards, ``source.json`` (what it is made of), ``dropped.jsonl`` (each box that gave no crop,
    and why) and ``report.json``. The training set takes 191 GB at size 224.

    Args:
        annotations: ``lvis_v1_train.json`` or ``lvis_v1_val.json``.
        images: the folder that has COCO's ``train2017`` and ``val2017`` in it.
        out: the folder to write, of this build alone. A second process that builds there at the same time is refused.
        size: side of the crops.
        workers: processes that decode and cut; 0 does so in this one.
        bad_images: images that are missing, cannot be decoded or have another size than the file says stop the build
            (``"error"``): missing ones before it begins, others once all that is left has been looked at, so that the
            message has their number; or their boxes are left out and listed (``"skip"``).
        samples_per_shard: how many crops make a shard full.
        progress: called after each image.

    Returns:
        What was cut, what was left out, and how the counts differ from those expected.
    """
    annotations, images, out = Path(annotations), Path(images), Path(out)
    size = check_integer("size", size, minimum=1)
    workers = check_integer("workers", workers, minimum=0)
    check_choice("bad_images", bad_images, BadImages)
    if not images.is_dir():
        raise FileNotFoundError(f"Expected `images` to be a folder, but got {images}.")
    lvis = read_lvis(annotations)
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        _take_up(lvis, annotations.name, out, size, samples_per_shard)
        order = np.lexsort((lvis.annotation_ids, lvis.image_ids[lvis.image_index]))
        with ShardWriter(out, samples_per_shard) as writer:
            if not writer.finished:
                _check_there(lvis, images, bad_images)
                done = 0
                if writer.last_id is not None:
                    done = int(np.flatnonzero(lvis.annotation_ids[order] == writer.last_id)[0]) + 1
                errors: list[UnreadableImageError] = []
                for cuts in _all_cuts(lvis, order[done:], images, size, workers):
                    if cuts.error is not None and bad_images == "error":
                        errors.append(cuts.error)
                    if not errors:
                        _write(writer, lvis, cuts)
                    done += len(cuts.boxes)
                    if progress is not None:
                        progress(annotations.name, done, len(order))
                if errors:
                    raise UnreadableImageError.of_several(errors, f"of {len(lvis.file_names)} images")
        return _report(lvis, annotations.name, out)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from building in a folder (where the system can lock it); the lock ends with the process."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Expected to build in {folder} alone, but another process is building there.") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def lvis_groups(image_counts: Vector) -> Groups:
    """LVIS's own cut, by *images* of each class: frequent (> 100), common (11…100) and rare (<= 10).

    Example:
        >>> from longtail.data import expected_counts
        >>> lvis_groups(expected_counts("lvis-v1")["train_images"]).sizes
        {'head': 405, 'medium': 461, 'tail': 337}
    """
    return Groups.from_counts(image_counts, head_over=100, tail_under=11)


def read_lvis_crops(root: Path | str) -> DataSet:
    """LVIS crops, as :func:`build_lvis_crops` has written them to ``lvis-crops/train`` and ``lvis-crops/val``.

    ``lvis_v1_val`` is the test split, as in the paper. Groups are cut by image count: by the counts that ship with the
    package where there are 1203 classes, else by those of the training file.

    Args:
        root: the data folder.
    """
    from longtail.data.datasets.catalog import expected_counts  # noqa: PLC0415 - it imports this file

    folder = Path(root) / "lvis-crops"
    sources, splits = {}, {}
    for part in ("train", "val"):
        if not (folder / part / _SOURCE).exists() or not (folder / part / "index.json").exists():
            raise FileNotFoundError(
                f"Expected whole LVIS crops in {folder / part}, but they are not; "
                f"`longtail data build-lvis-crops` makes or completes them from lvis_v1_{part}.json."
            )
        images = ShardImages(folder / part)
        sources[part], splits[part] = _read_source(folder / part), Split(images, images.labels)
    for key in ("class_names", "size"):
        if sources["train"][key] != sources["val"][key]:
            raise ValueError(f"Expected train and val in {folder} to have the same `{key}`, but they differ.")
    class_names = tuple(sources["train"]["class_names"])
    official = len(class_names) == 1203
    counts = expected_counts("lvis-v1")["train_images"] if official else sources["train"]["image_counts"]
    return DataSet("lvis-crops", class_names, train=splits["train"], test=splits["val"], cut=lvis_groups(counts))


class _Cuts(NamedTuple):
    """What came of an image's boxes."""

    boxes: NDArray[np.int64]
    """Which of all boxes."""
    crops: list[NDArray[np.uint8] | Reason]
    """The crop of each, or why there is none."""
    detail: str = ""
    error: UnreadableImageError | None = None


@dataclass
class _Cutter(Dataset[_Cuts]):
    """Decodes an image and cuts its boxes. Arrays, not tensors: those would go through what little shared memory is."""

    lvis: Lvis
    boxes: list[NDArray[np.int64]]
    """Of each image that has some."""
    images: Path
    size: int

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, number: int) -> _Cuts:
        boxes = self.boxes[number]
        index = int(self.lvis.image_index[boxes[0]])
        path = self.images / self.lvis.file_names[index]
        width, height = int(self.lvis.widths[index]), int(self.lvis.heights[index])
        if not path.is_file():
            return self._none(boxes, "missing-image", UnreadableImageError(path, "it is not there"))
        try:
            image = decode(path)
        except UnreadableImageError as error:
            return self._none(boxes, "unreadable-image", error)
        if image.shape[1:] != (height, width):
            found = f"it has {image.shape[2]} x {image.shape[1]} pixels and not {width} x {height}"
            return self._none(boxes, "wrong-size", UnreadableImageError(path, found))
        crops: list[NDArray[np.uint8] | Reason] = []
        for box in self.lvis.boxes[boxes].tolist():
            square = window(box, width, height)
            crops.append(cut_window(image, square, self.size).numpy() if isinstance(square, Window) else square)
        return _Cuts(boxes, crops)

    @staticmethod
    def _none(boxes: NDArray[np.int64], reason: BadImage, error: UnreadableImageError) -> _Cuts:
        return _Cuts(boxes, [reason] * len(boxes), error.reason, error)


def _all_cuts(lvis: Lvis, order: NDArray[np.int64], images: Path, size: int, workers: int) -> Iterator[_Cuts]:
    """Image by image, in order, however many workers there are; each is at most two images ahead."""
    starts = np.flatnonzero(np.diff(lvis.image_index[order])) + 1
    cutter = _Cutter(lvis, np.split(order, starts) if len(order) else [], images, size)
    yield from DataLoader(cutter, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(cuts: Any) -> Any:
    return cuts


def _write(writer: ShardWriter, lvis: Lvis, cuts: _Cuts) -> None:
    for box, crop in zip(cuts.boxes.tolist(), cuts.crops, strict=True):
        if not isinstance(crop, str):
            writer.add(crop, label=int(lvis.class_index[box]), source_id=int(lvis.annotation_ids[box]))
            continue
        image = lvis.image_index[box]
        values = [value if math.isfinite(value) else str(value) for value in lvis.boxes[box].tolist()]
        writer.note(
            {
                "annotation": int(lvis.annotation_ids[box]),
                "image": int(lvis.image_ids[image]),
                "file": lvis.file_names[image],
                "class": lvis.class_names[lvis.class_index[box]],
                "box": values,
                "reason": crop,
                "detail": cuts.detail,
            }
        )


def _take_up(lvis: Lvis, name: str, out: Path, size: int, samples_per_shard: int) -> None:
    """Say in ``source.json`` what the folder is made of; where that is said already, it must be the same."""
    digest = hashlib.sha256(json.dumps([lvis.file_names, lvis.class_names]).encode())
    arrays = (lvis.image_ids, lvis.widths, lvis.heights, lvis.annotation_ids, lvis.image_index, lvis.class_index)
    for array in (*arrays, lvis.boxes, lvis.image_counts):
        digest.update(np.ascontiguousarray(array).data)
    source = {
        "annotations": name,
        "sha256": digest.hexdigest(),
        "size": size,
        "samples_per_shard": samples_per_shard,
        "class_names": list(lvis.class_names),
        "image_counts": lvis.image_counts.tolist(),
    }
    if (out / _SOURCE).exists():
        before = _read_source(out)
        other = next((key for key in source if before.get(key) != source[key]), None)
        if other is not None:
            raise ValueError(
                f"Expected {out} to be empty or begun with the same arguments, but its `{other}` is another one."
            )
        return
    if out.exists() and any(out.glob("shard-*")):
        raise ValueError(f"Expected {out} to be empty or begun with the same arguments, but it has other shards.")
    write_whole(out / _SOURCE, json.dumps(source, ensure_ascii=False) + "\n")


def _read_source(folder: Path) -> dict[str, Any]:
    path = folder / _SOURCE
    try:
        source: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Expected {path} to be JSON, but got: {error}.") from None
    return source


def _check_there(lvis: Lvis, images: Path, bad_images: BadImages) -> None:
    """Files that are missing stop a build before it starts, where the user wants that or there is not one that is."""
    names = [lvis.file_names[i] for i in np.unique(lvis.image_index).tolist()]
    if bad_images == "skip" and (not names or any((images / name).is_file() for name in names)):
        return
    missing = [name for name in names if not (images / name).is_file()]
    if missing:
        raise FileNotFoundError(f"Expected all images under {images}, but these are not there: {shown(missing)}.")


def _report(lvis: Lvis, name: str, out: Path) -> Report:
    """Made of the finished shards alone, so that it comes out the same whenever they were finished."""
    finished = ShardImages(out)
    before, after = lvis.box_counts, np.bincount(finished.labels.numpy(), minlength=lvis.num_classes)
    report = Report(
        folder=out,
        boxes=len(lvis.boxes),
        crops=len(finished),
        dropped=dict(sorted(Counter(note["reason"] for note in finished.notes).items())),
        counts_before=tuple(before.tolist()),
        counts_after=tuple(after.tolist()),
        emptied=tuple(lvis.class_names[c] for c in np.flatnonzero((before > 0) & (after == 0)).tolist()),
        differences=_differences(lvis, name),
    )
    lines = [json.dumps(note, ensure_ascii=False) + "\n" for note in finished.notes]
    content = {key: value for key, value in vars(report).items() if key != "folder"}
    write_whole(out / _DROPPED, "".join(lines))
    write_whole(out / _REPORT, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return report


def _differences(lvis: Lvis, name: str) -> tuple[str, ...]:
    """Where the official training file is not what it should be, a sentence each."""
    from longtail.data.datasets.catalog import expected_counts  # noqa: PLC0415 - it imports this file

    if lvis.num_classes != 1203 or not name.startswith("lvis_v1_train"):
        return ()
    expected = expected_counts("lvis-v1")
    pairs = np.unique(lvis.class_index * len(lvis.image_ids) + lvis.image_index)
    image_counts = np.bincount(pairs // max(len(lvis.image_ids), 1), minlength=lvis.num_classes)
    found = {"train": lvis.box_counts.tolist(), "train_images": image_counts.tolist(), "names": lvis.class_names}
    words = {"train": "boxes", "train_images": "images", "names": "as its name"}
    sentences = []
    if sum(expected["train"]) != len(lvis.boxes):
        sentences.append(f"Expected {sum(expected['train'])} boxes, but got {len(lvis.boxes)}.")
    for key, values in found.items():
        for c, (wanted, value) in enumerate(zip(expected[key], values, strict=True)):
            if wanted != value:
                named = expected["names"][c]
                sentences.append(f"Expected class {c} ({named}) to have {wanted} {words[key]}, but got {value}.")
    return tuple(sentences)

"""LVIS crops: a classification data set whose samples are the boxes of LVIS v1, cut out of COCO's images."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from longtail._checks import Vector, check_choice, check_integer, shown
from longtail._io import file_lock, read_json, write_text
from longtail.classes import Groups
from longtail.data.datasets.splits import DataSet, Split
from longtail.data.loaders.decode import BadImages, UnreadableImageError, decode
from reproduction.lvis.annotations import Lvis, read_lvis
from reproduction.lvis.shards import ShardImages, ShardWriter
from reproduction.lvis.windows import NoWindow, Window, cut_window, window

__all__ = ["BadImage", "Report", "build_lvis_crops", "lvis_counts", "lvis_groups", "read_lvis_crops"]

Progress = Callable[[str, int, int], None]
"""Called with the name of the annotations, the number of finished boxes, and the total."""

BadImage = Literal["missing-image", "unreadable-image", "wrong-size"]
Reason = NoWindow | BadImage
"""Why a box gives no crop."""

_SOURCE, _DROPPED, _REPORT = "source.json", "dropped.jsonl", "report.json"


@dataclass(frozen=True)
class Report:
    """Counts of kept and dropped boxes of an LVIS file."""

    folder: Path
    boxes: int
    crops: int
    dropped: dict[str, int]
    """Number of dropped boxes by reason; ``dropped.jsonl`` in the folder lists them."""
    counts_before: tuple[int, ...]
    """Boxes per class."""
    counts_after: tuple[int, ...]
    """Crops per class."""
    emptied: tuple[str, ...]
    """Classes that have boxes but no crop."""
    differences: tuple[str, ...]
    """Differences from ``lvis-v1.json``; for the official training file only."""


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
    """Cut every box of an LVIS file out of its image and write the crops to packed shards.

    Crops are ordered by image id, then by annotation id. A build that was stopped continues after its last whole shard
    and ends with the same bytes; a finished one is kept. The folder also has ``source.json`` (the arguments),
    ``dropped.jsonl`` (each box without a crop, and why) and ``report.json``. The training set takes 191 GB at size 224.

    Args:
        annotations: ``lvis_v1_train.json`` or ``lvis_v1_val.json``.
        images: the folder that has COCO's ``train2017`` and ``val2017`` in it.
        out: the folder to write; a second process that builds there at the same time is refused.
        size: side of the crops.
        workers: processes that decode and cut; 0: this process.
        bad_images: ``"error"``: images that are missing, cannot be decoded or have a wrong size stop the build, missing
            ones before it starts, others after all images were tried; ``"skip"``: their boxes are left out and listed.
        samples_per_shard: number of crops in a full shard.
        progress: called after each image.

    Returns:
        Counts of kept and dropped boxes, and differences from the expected counts.
    """
    annotations, images, out = Path(annotations), Path(images), Path(out)
    size = check_integer("size", size, minimum=1)
    workers = check_integer("workers", workers, minimum=0)
    check_choice("bad_images", bad_images, BadImages)
    if not images.is_dir():
        raise FileNotFoundError(f"Expected `images` to be a folder, but got {images}.")
    lvis = read_lvis(annotations)
    out.mkdir(parents=True, exist_ok=True)
    busy = f"Expected to build in {out} alone, but another process is building there."
    with file_lock(out / ".lock", busy, required=False, remove=True):
        _check_source(lvis, annotations.name, out, size, samples_per_shard)
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


@cache
def lvis_counts() -> dict[str, Any]:
    """Return the official boxes and images per class, and the class names."""
    found: dict[str, Any] = read_json(Path(__file__).with_name("lvis-v1.json"))
    return found


def lvis_groups(image_counts: Vector) -> Groups:
    """Return the groups of LVIS, by *images* per class: frequent (> 100), common (11…100) and rare (<= 10).

    Example:
        >>> lvis_groups(lvis_counts()["train_images"]).sizes
        {'head': 405, 'medium': 461, 'tail': 337}
    """
    return Groups.from_counts(image_counts, head_over=100, tail_under=11)


def read_lvis_crops(root: Path | str) -> DataSet:
    """Return the crops that :func:`build_lvis_crops` wrote to ``lvis-crops/train`` and ``lvis-crops/val``.

    ``lvis_v1_val`` is the test split, as in the paper. Groups are defined by the official image counts if there are
    1203 classes, otherwise by those of the training file.

    Args:
        root: the data folder.
    """
    folder = Path(root) / "lvis-crops"
    sources, splits = {}, {}
    for part in ("train", "val"):
        if not (folder / part / _SOURCE).exists() or not (folder / part / "index.json").exists():
            raise FileNotFoundError(
                f"Expected whole LVIS crops in {folder / part}, but they are not complete; "
                f"`python -m reproduction.lvis build` makes them from lvis_v1_{part}.json."
            )
        images = ShardImages(folder / part)
        sources[part], splits[part] = read_json(folder / part / _SOURCE), Split(images, images.labels)
        index = {name: c for c, name in enumerate(sources[part]["class_names"])}
        images.left_out = torch.tensor([index[note["class"]] for note in images.notes], dtype=torch.int64)
    for key in ("class_names", "size"):
        if sources["train"][key] != sources["val"][key]:
            raise ValueError(f"Expected train and val in {folder} to have the same `{key}`, but they differ.")
    class_names = tuple(sources["train"]["class_names"])
    official = len(class_names) == 1203
    counts = lvis_counts()["train_images"] if official else sources["train"]["image_counts"]
    return DataSet("lvis-crops", class_names, train=splits["train"], test=splits["val"], cut=lvis_groups(counts))


class _Cuts(NamedTuple):
    """The crops of an image."""

    boxes: NDArray[np.int64]
    """Indices of the boxes."""
    crops: list[NDArray[np.uint8] | Reason]
    """The crop of each box, or why there is none."""
    detail: str = ""
    error: UnreadableImageError | None = None


@dataclass
class _Cutter(Dataset[_Cuts]):
    """Decodes an image and cuts its boxes, as arrays: tensors would need shared memory."""

    lvis: Lvis
    boxes: list[NDArray[np.int64]]
    """The boxes of each image that has any."""
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
            return self._failed(boxes, "missing-image", UnreadableImageError(path, "it does not exist"))
        try:
            image = decode(path)
        except UnreadableImageError as error:
            return self._failed(boxes, "unreadable-image", error)
        if image.shape[1:] != (height, width):
            found = f"it has {image.shape[2]} x {image.shape[1]} pixels and not {width} x {height}"
            return self._failed(boxes, "wrong-size", UnreadableImageError(path, found))
        crops: list[NDArray[np.uint8] | Reason] = []
        for box in self.lvis.boxes[boxes].tolist():
            square = window(box, width, height)
            crops.append(cut_window(image, square, self.size).numpy() if isinstance(square, Window) else square)
        return _Cuts(boxes, crops)

    @staticmethod
    def _failed(boxes: NDArray[np.int64], reason: BadImage, error: UnreadableImageError) -> _Cuts:
        return _Cuts(boxes, [reason] * len(boxes), error.reason, error)


def _all_cuts(lvis: Lvis, order: NDArray[np.int64], images: Path, size: int, workers: int) -> Iterator[_Cuts]:
    """Yield the crops of each image in order, for any number of workers."""
    starts = np.flatnonzero(np.diff(lvis.image_index[order])) + 1
    cutter = _Cutter(lvis, np.split(order, starts) if len(order) else [], images, size)
    yield from DataLoader(cutter, batch_size=None, num_workers=workers, collate_fn=_identity)


def _identity(cuts: Any) -> Any:
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


def _check_source(lvis: Lvis, name: str, out: Path, size: int, samples_per_shard: int) -> None:
    """Write the arguments to ``source.json``, or compare them with those of an earlier build."""
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
        before = read_json(out / _SOURCE)
        other = next((key for key in source if before.get(key) != source[key]), None)
        if other is not None:
            raise ValueError(f"Expected {out} to be empty or made with the same arguments, but its `{other}` differs.")
        return
    if out.exists() and any(out.glob("shard-*")):
        raise ValueError(f"Expected {out} to be empty or made with the same arguments, but it has other shards.")
    write_text(out / _SOURCE, json.dumps(source, ensure_ascii=False) + "\n")


def _check_there(lvis: Lvis, images: Path, bad_images: BadImages) -> None:
    """Raise before the build if files are missing and must not be skipped, or all are missing."""
    names = [lvis.file_names[i] for i in np.unique(lvis.image_index).tolist()]
    if bad_images == "skip" and (not names or any((images / name).is_file() for name in names)):
        return
    missing = [name for name in names if not (images / name).is_file()]
    if missing:
        raise FileNotFoundError(f"Expected all images under {images}, but these do not exist: {shown(missing)}.")


def _report(lvis: Lvis, name: str, out: Path) -> Report:
    """Make the report from the finished shards alone, so that it is the same after an interrupted build."""
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
    write_text(out / _DROPPED, "".join(lines))
    write_text(out / _REPORT, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return report


def _differences(lvis: Lvis, name: str) -> tuple[str, ...]:
    """Return a sentence per difference from the official training file."""
    if lvis.num_classes != 1203 or not name.startswith("lvis_v1_train"):
        return ()
    expected = lvis_counts()
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

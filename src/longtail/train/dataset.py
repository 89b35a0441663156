"""The data set of a recipe: by name or from your own files, with its validation split."""

from dataclasses import replace

import torch
from torch import Tensor

from longtail.data import (
    CATALOG,
    ArrayImages,
    DataSet,
    FileImages,
    Images,
    Split,
    hold_out,
    hold_out_fold,
    load,
    long_tailed,
)
from longtail.data.datasets.own import empty_folders
from longtail.data.loaders.decode import UnreadableImageError
from longtail.train.own import all_small, open_own
from longtail.train.recipe import Recipe

__all__ = ["in_memory", "open_data"]


def open_data(recipe: Recipe, own: DataSet | None = None) -> DataSet:
    """The data set of a recipe, or your own one, with its validation split."""
    if own is None and recipe.data in CATALOG:
        if recipe.imbalance is not None and CATALOG[recipe.data].imbalance is None:
            made = f"{recipe.data}-lt"
            hint = f"; {made} takes it" if made in CATALOG else ""
            raise ValueError(f"Expected no `imbalance` for {recipe.data}, but got {recipe.imbalance:g}{hint}.")
        dataset = load(
            recipe.data,
            recipe.root,
            imbalance=recipe.imbalance,
            profile=recipe.profile,
            subset_seed=recipe.subset_seed,
            seed=recipe.seed,
        )
    else:
        dataset = _without_empty_splits(open_own(recipe.data) if own is None else own)
        dataset = in_memory(dataset) or dataset
        if recipe.imbalance is not None:
            chosen = recipe.seed if recipe.subset_seed == "run" else recipe.subset_seed
            dataset = long_tailed(dataset, recipe.imbalance, profile=recipe.profile, subset_seed=chosen)
    if recipe.groups != "auto":
        dataset = replace(dataset, cut=recipe.groups)
    _check_classes(dataset, recipe.data if own is None and recipe.data not in CATALOG else None)
    if recipe.folds:
        dataset = hold_out_fold(dataset, recipe.fold, recipe.folds, seed=recipe.seed)
    elif recipe.validation and dataset.val is None:
        dataset = hold_out(dataset, recipe.validation, seed=recipe.seed)
    return _without_empty_splits(dataset)


def _check_classes(dataset: DataSet, path: str | None) -> None:
    empty = [dataset.class_names[c] for c in (dataset.counts == 0).nonzero().flatten().tolist()]
    if not empty:
        return
    more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
    folders = empty_folders(path, dataset) if path is not None else []
    hint = f"; {folders[0]} has no image: fill or remove it" if folders else ""
    if path is not None and not folders and all(name.isdecimal() for name in dataset.class_names):
        hint = "; labels that are whole numbers are indices of classes, from 0 on"
    raise ValueError(
        f"Expected a training image of every class of {dataset.name}, but there is none of "
        f"{', '.join(map(repr, empty[:3]))}{more}{hint}."
    )


def _without_empty_splits(dataset: DataSet) -> DataSet:
    """Remove empty splits: a folder may be empty, or every class may have one image and none to hold out."""
    return replace(dataset, val=dataset.val or None, test=dataset.test or None)  # an empty split is false


def in_memory(dataset: DataSet) -> DataSet | None:
    """The data set with its images in memory if they are small, square and of one size; else ``None``.

    The runs of a study share what was read last, unless a file has changed since.
    """
    if not all_small(dataset, most=1):
        return None
    stamps = _stamps(dataset)
    found = _read.get(stamps) or _decoded(dataset)
    if found is None:
        return None
    if stamps is not None:
        _read.clear()
        _read[stamps] = found
    splits = {name: Split(found[name], split.labels) for name, split in dataset.splits.items()}
    return replace(dataset, train=splits["train"], test=splits.get("test"), val=splits.get("val"))


_Stamps = tuple[tuple[str, int, int], ...]
_read: dict[_Stamps | None, dict[str, ArrayImages]] = {}


def _stamps(dataset: DataSet) -> _Stamps | None:
    """The files of a data set with sizes and times; ``None`` if its images are not files, or some are missing."""
    found = []
    for name, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            return None
        for place in range(len(split)):
            path = split.images.path(place)
            if not path.exists():
                return None
            found.append((f"{name}: {path}", path.stat().st_size, path.stat().st_mtime_ns))
    return tuple(found)


def _decoded(dataset: DataSet) -> dict[str, ArrayImages] | None:
    if not all_small(dataset):
        return None
    first = first_image(dataset.train.images)
    found: dict[str, ArrayImages] = {}
    for name, split in dataset.splits.items():
        pixels = torch.empty((len(split), *first.shape), dtype=torch.uint8)
        for place in range(len(split)):
            try:
                image = split.images[place]
            except UnreadableImageError:
                return None  # streaming treats it as `bad_images` says
            if image.shape != first.shape:
                return None
            pixels[place] = image
        found[name] = ArrayImages(pixels)
    return found


def first_image(images: Images) -> Tensor:
    """The first image that can be read."""
    refused: UnreadableImageError | None = None
    for place in range(len(images)):
        try:
            return images[place]
        except UnreadableImageError as error:  # treated as `bad_images` says
            refused = refused or error
    raise refused or ValueError("Expected a training image, but there is none.")

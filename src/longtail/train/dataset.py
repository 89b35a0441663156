"""The data set of a recipe: by name or from your own files, with its validation split."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from longtail.data import (
    CATALOG,
    DataSet,
    Images,
    hold_out,
    hold_out_fold,
    load,
    long_tailed,
)
from longtail.data.datasets.own import empty_folders
from longtail.data.loaders.decode import UnreadableImageError
from longtail.train.own import in_memory, open_own, without_empty_splits
from longtail.train.recipe import Recipe

__all__ = ["open_data"]


def open_data(recipe: Recipe, own: DataSet | None = None, cache: Path | None = None) -> DataSet:
    """The data set of a recipe, or your own one, with its validation split; ``cache`` as for :func:`in_memory`."""
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
        dataset = open_own(recipe.data) if own is None else without_empty_splits(own)
        dataset = in_memory(dataset, cache if recipe.cache else None) or dataset
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
    return without_empty_splits(dataset)


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


def first_image(images: Images) -> Tensor:
    """The first image that can be read."""
    refused: UnreadableImageError | None = None
    for place in range(len(images)):
        try:
            return images[place]
        except UnreadableImageError as error:  # treated as `bad_images` says
            refused = refused or error
    raise refused or ValueError("Expected a training image, but there is none.")

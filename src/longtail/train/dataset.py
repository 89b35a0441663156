"""The data set of a recipe: by name or from your own files, with its validation split."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
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
from longtail.data.datasets.inspection import groups_in_several_splits
from longtail.data.datasets.own import empty_folders
from longtail.data.loaders.decode import UnreadableImageError
from longtail.train.own import check_no_texts, in_memory, open_own, without_empty_splits
from longtail.train.pilots import DECAYS, pilots_needed
from longtail.train.recipe import Recipe


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
        check_no_texts(dataset)
        dataset = _with_test(dataset, recipe)
    else:
        dataset = open_own(recipe.data, **recipe.opening) if own is None else without_empty_splits(own)
        if recipe.split_by is not None:
            _check_groups(dataset, recipe.split_by)
        dataset = in_memory(dataset, cache if recipe.cache else None, recipe.bad_images) or dataset
        dataset = _with_test(dataset, recipe)
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


def data_notes(recipes: Iterable[Recipe]) -> list[str]:
    """Notes about the data of recipes: ignored files, test data held out, pilots.

    Raises an error for wrong data before the first run starts.
    """
    first: dict[tuple[object, ...], Recipe] = {}
    for recipe in recipes:
        auto = recipe.spec.is_auto(recipe.params)
        first.setdefault((recipe.data, *recipe.opening.values(), recipe.test, auto), recipe)
    notes = []
    for recipe in first.values():
        if recipe.data not in CATALOG or recipe.test:
            dataset = open_data(recipe)
            notes += [*dataset.notes, *_pilot_note(recipe, dataset)]
    return list(dict.fromkeys(notes))


def pilots_of(recipe: Recipe, dataset: DataSet) -> int:
    """How many pilots a run on this data trains, to measure beta; a pilot trains none."""
    if not recipe.spec.is_auto(recipe.params) or recipe.folds:
        return 0
    there = None if dataset.val is None else dataset.val.labels.bincount(minlength=dataset.num_classes)
    counts = dataset.counts
    return pilots_needed(torch.where(dataset.can_hold_out, counts, counts.clamp(max=1)), there)  # else as one image


def _pilot_note(recipe: Recipe, dataset: DataSet) -> list[str]:
    notes = []
    if recipe.weight_decay == "auto":
        tried = f"{len(DECAYS)} pilot runs to choose its weight decay"
        notes.append(f"Each run first trains {tried}; `--weight-decay 1` needs none.")
    number = pilots_of(recipe, dataset)
    if number:
        runs = f"{number} pilot run{'s' * (number > 1)}"
        notes.append(f"{recipe.method} first trains {runs} to measure beta; `--{recipe.spec.beta} 1` needs none.")
    return notes


def _with_test(dataset: DataSet, recipe: Recipe) -> DataSet:
    """The data set with the test split that the recipe holds out of the training images."""
    if not recipe.test:
        return dataset
    if dataset.test is not None:
        raise ValueError(
            f"Expected no `test` for {dataset.name}, which has {len(dataset.test):,} test images, but got "
            f"{recipe.test:g}."
        )
    made = hold_out(
        dataset, recipe.test, seed=recipe.seed if recipe.test_seed == "run" else recipe.test_seed, part="test"
    )
    if not made.test:
        whole = "one image" if dataset.train.groups is None else "one group"
        raise ValueError(
            f"Expected no `test` for {dataset.name}, where nothing can be held out because each class has {whole}, but "
            f"got {recipe.test:g}."
        )
    about = "" if dataset.train.groups is None else "about "  # whole groups are held out
    seeds = "different images for each seed" if recipe.test_seed == "run" else "the same for every seed"
    share = f"Held out {about}{100 * recipe.test:g} % of each class of {dataset.name} as test data, {seeds}"
    return replace(made, notes=(*made.notes, f"{share}: {len(made.test):,} samples."))


def _check_groups(dataset: DataSet, split_by: str) -> None:
    """Raise an error if a group is in two splits, or if there are no groups."""
    if dataset.train.groups is None:
        raise ValueError(f"Expected `groups` in the splits of {dataset.name} to split by {split_by}, but got none.")
    leaking = groups_in_several_splits(dataset)
    if leaking:
        raise ValueError(
            f"Expected each value of {split_by} in one split of {dataset.name}, but {leaking[0]}"
            f"{f' and {len(leaking) - 1} more' if len(leaking) > 1 else ''}; `longtail data describe` lists them."
        )


def _check_classes(dataset: DataSet, path: str | None) -> None:
    if dataset.num_classes < 2:
        raise ValueError(
            f"Expected {dataset.name} to have two or more classes, but got {dataset.class_names[0]!r} only."
        )
    empty = [dataset.class_names[c] for c in (dataset.counts == 0).nonzero().flatten().tolist()]
    if not empty:
        return
    more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
    folders = empty_folders(path, dataset) if path is not None else []
    hint = f"; {folders[0]} has no image: fill or remove it" if folders else ""
    hint += "".join(f" ({note.removesuffix('.')})" for note in dataset.notes if folders and note.startswith("Ignored"))
    if path is not None and not folders:
        hint = "; add some, or remove the validation and test samples of these classes"
    raise ValueError(
        f"Expected a training sample of every class of {dataset.name}, but there is none of "
        f"{', '.join(map(repr, empty[:3]))}{more}{hint}."
    )


def first_image(images: Images) -> Tensor:
    """The first image that can be read."""
    first: UnreadableImageError | None = None
    for place in range(len(images)):
        try:
            return images[place]
        except UnreadableImageError as error:  # treated as `bad_images` says
            first = first or error
    raise first or ValueError("Expected a training image, but there is none.")

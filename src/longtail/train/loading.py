"""A recipe's data: the data set, and the loaders of its splits."""

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from longtail._program import program
from longtail.data import (
    CATALOG,
    ArrayImages,
    BatchPlan,
    DataSet,
    FileImages,
    Images,
    Normalisation,
    Resident,
    ResidentFiles,
    Split,
    Streaming,
    hold_out,
    hold_out_fold,
    load,
    long_tailed,
    open_path,
)
from longtail.data.augment import Augmentation
from longtail.data.datasets.own import empty_folders
from longtail.data.loaders.decode import UnreadableImageError, image_size
from longtail.data.loaders.resident_files import NoRoomError
from longtail.data.sampling.samplers import Instance, Sampler
from longtail.models import pretrained_normalisation
from longtail.ranks import Ranks
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe
from longtail.train.views import evaluation_view, training_views

__all__ = ["HELD_OUT", "Loader", "Loaders", "in_memory", "is_small", "lacks_validation", "open_data"]

Loader = Resident | ResidentFiles | Streaming

HELD_OUT = 0.1
"""The share of training data on which a method's strength is chosen where nothing else is said."""

_SMALL = 64
_LARGE = 224  # what a model sees of images that are not small
_EVALUATION_PIXELS = 2**24  # a batch of evaluation: 64 MB as float32


def lacks_validation(recipe: Recipe) -> bool:
    """Whether the method has a strength to choose after training, and the data set by name nothing to choose it on."""
    if not recipe.spec.chooses_tau(recipe.params) or recipe.validation or recipe.folds:
        return False
    return recipe.data in CATALOG and "val" not in CATALOG[recipe.data].sizes


def open_data(recipe: Recipe, own: DataSet | None = None) -> DataSet:
    """The data set that a recipe names, or one's own, with its validation split."""
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
        dataset = _without_empty_splits(_open_own(recipe.data) if own is None else own)
        dataset = in_memory(dataset) or dataset
        if recipe.imbalance is not None:
            chosen = recipe.seed if recipe.subset_seed == "run" else recipe.subset_seed
            dataset = long_tailed(dataset, recipe.imbalance, profile=recipe.profile, subset_seed=chosen)
    empty = [dataset.class_names[c] for c in (dataset.counts == 0).nonzero().flatten().tolist()]
    if empty:
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        on_disk = own is None and recipe.data not in CATALOG
        folders = empty_folders(recipe.data, dataset) if on_disk else []
        hint = f"; {folders[0]} has no image: fill or remove it" if folders else ""
        if on_disk and not folders and all(name.isdecimal() for name in dataset.class_names):
            hint = "; labels that are whole numbers are indices of classes, from 0 on"
        raise ValueError(
            f"Expected a training image of every class of {dataset.name}, but there is none of "
            f"{', '.join(map(repr, empty[:3]))}{more}{hint}."
        )
    if recipe.folds:
        dataset = hold_out_fold(dataset, recipe.fold, recipe.folds, seed=recipe.seed)
    elif recipe.validation and dataset.val is None:
        dataset = hold_out(dataset, recipe.validation, seed=recipe.seed)
    return _without_empty_splits(dataset)


def _without_empty_splits(dataset: DataSet) -> DataSet:
    """A split without a sample is none: its folder may be empty, or each class have one image and none to hold out."""
    return replace(dataset, val=dataset.val or None, test=dataset.test or None)  # one without a sample is false


def in_memory(dataset: DataSet) -> DataSet | None:
    """The data set with its images in memory, where they are small, square and all of one size; else ``None``.

    The runs of a study share what was read last, unless a file has changed since.
    """
    stamps = _stamps(dataset) if _all_small(dataset, most=1) else None
    found = None if stamps is None else _read.get(stamps)
    if found is None:
        found = _decoded(dataset)
    if found is None:
        return None
    if stamps is not None:
        _read.clear()
        _read[stamps] = found
    splits = {name: Split(found[name], split.labels) for name, split in dataset.splits.items()}
    return replace(dataset, train=splits["train"], test=splits.get("test"), val=splits.get("val"))


_Stamps = tuple[tuple[str, int, int], ...]
_read: dict[_Stamps, dict[str, ArrayImages]] = {}


def _stamps(dataset: DataSet) -> _Stamps | None:
    """The files of a data set with their sizes and times; ``None`` where its images are no files, or not all there."""
    found = []
    for name, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            return None
        paths = [split.images.path(place) for place in range(len(split))]
        try:
            found += [(f"{name}: {path}", stat.st_size, stat.st_mtime_ns) for path in paths for stat in [path.stat()]]
        except OSError:
            return None
    return tuple(found)


def _decoded(dataset: DataSet) -> dict[str, ArrayImages] | None:
    """All images of each split, where :func:`in_memory` takes them."""
    if not _all_small(dataset):
        return None
    first = _first_of(dataset.train.images)
    found: dict[str, ArrayImages] = {}
    for name, split in dataset.splits.items():
        pixels = torch.empty((len(split), *first.shape), dtype=torch.uint8)
        for place in range(len(split)):
            try:
                image = split.images[place]
            except UnreadableImageError:
                return None  # streaming does with it as `bad_images` says
            if image.shape != first.shape:
                return None
            pixels[place] = image
        found[name] = ArrayImages(pixels)
    return found


def _first_of(images: Images) -> Tensor:
    """The first image that can be read."""
    refused: UnreadableImageError | None = None
    for place in range(len(images)):
        try:
            return images[place]
        except UnreadableImageError as error:  # which `bad_images` is about
            refused = refused or error
    raise refused or ValueError("Expected a training image, but there is none.")


@dataclass(frozen=True, eq=False)
class Loaders:
    """Makes the loaders of a run's splits."""

    recipe: Recipe
    dataset: DataSet
    device: torch.device
    ranks: Ranks
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that were left out so far, of all splits, and why."""
    _held: dict[Split, Resident | ResidentFiles] = field(default_factory=dict)
    """Splits that are held on the device, once each, for all loaders of theirs."""

    @property
    def image_size(self) -> int:
        """Side of the images that the model sees."""
        if self.recipe.image_size is not None:
            return self.recipe.image_size
        images = self.dataset.train.images
        if isinstance(images, ArrayImages):
            return images.size[0]
        if self.recipe.augment in {"cifar", "shift"}:  # small ones that are not in memory, as some cannot be read
            side = int(_first_of(images).shape[1])
            return side if side <= _SMALL else _LARGE
        return _LARGE

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch of training."""
        recipe, samples = self.recipe, len(self.dataset.train)
        if recipe.drop_last:
            return samples // recipe.batch_size
        return -(-samples // recipe.batch_size)

    @property
    def channels(self) -> int:
        """Of an image."""
        return int(_first_of(self.dataset.train.images).shape[0])

    @cached_property
    def normalisation(self) -> Normalisation:
        """What images are normalised by: as the model's pretrained weights expect it, else the data set's."""
        begun = self.recipe.weights or self.recipe.pretrained
        expected = pretrained_normalisation(self.recipe.model, begun, self.channels) if begun else None
        found = expected or self.dataset.normalisation
        if self.channels == 1 and len(found.mean) == 3:  # grey, normalised as if it were a colour
            return Normalisation(*((sum(values) / 3,) for values in (found.mean, found.std)))
        return found

    def training(self, views: tuple[str, ...], sampler: Sampler, *, drop_last: bool) -> Loader:
        """Of the training split, augmented."""
        recipe, world, split = self.recipe, self.ranks.world, self.dataset.train
        family = training_views(
            recipe.augment, self.image_size, self.normalisation, torch.float32, sized=self._sized(split)
        )
        if recipe.batch_size % (world * recipe.accumulate):
            raise ValueError(
                f"Expected `batch_size` to be shared by {world} processes of {recipe.accumulate} micro-batches each, "
                f"but got {recipe.batch_size}."
            )
        plan = BatchPlan(
            split.labels,
            tuple(family[name] for name in views),
            recipe.batch_size // world // recipe.accumulate,
            sampler,
            self.ranks.rank,
            world,
            drop_last,
            recipe.accumulate,
        )
        if plan.steps == 0:
            raise ValueError(
                f"Expected `batch_size` to be at most the {len(split)} training images where the last batch is "
                f"dropped, but got {recipe.batch_size}."
            )
        return self._loader(split, plan)

    def evaluation(self, split: Split) -> Loader:
        """Of any split, every sample once."""
        size = self.image_size
        view: Augmentation = evaluation_view(
            self.recipe.augment, size, self.normalisation, torch.float32, sized=self._sized(split)
        )
        batch = max(1, min(1000, _EVALUATION_PIXELS // (self.channels * size * size)))
        plan = BatchPlan(split.labels, (view,), batch, Instance(), self.ranks.rank, self.ranks.world)
        return self._loader(split, plan)

    def _sized(self, split: Split) -> bool:
        """Whether its images are as the model sees them."""
        return isinstance(split.images, ArrayImages) and split.images.size == (self.image_size, self.image_size)

    def _loader(self, split: Split, plan: BatchPlan) -> Loader:
        recipe = self.recipe
        held = self._resident(split, plan)
        if held is not None:
            return held.with_plan(plan)
        on_device = self.device.type == "cuda" and _are_jpegs(split.images)
        streaming = Streaming(
            split,
            plan,
            self.device,
            workers=min(recipe.workers, _cores()),
            decode_in="device" if on_device else "workers",
            bad_images=recipe.bad_images,
        )
        streaming.unreadable = self.unreadable
        return streaming

    def release(self) -> None:
        """Let go of the splits that are held on the device; who asks for them again has them put there again."""
        self._held.clear()

    def _resident(self, split: Split, plan: BatchPlan) -> Resident | ResidentFiles | None:
        """The split on the device; ``None`` where it is to be streamed."""
        if split not in self._held:
            if isinstance(split.images, ArrayImages):
                self._held[split] = Resident(split, plan, self.device)
            elif self.recipe.loading == "resident" and isinstance(split.images, FileImages):
                packed = self._packed(split, plan)
                if packed is not None:
                    self._held[split] = packed
        return self._held.get(split)

    def _packed(self, split: Split, plan: BatchPlan) -> ResidentFiles | None:
        """Its files on the device; ``None`` where there is no room for them once the training split is there."""
        workers, bad_images = max(self.recipe.workers, 1), self.recipe.bad_images
        try:
            packed = ResidentFiles(split, plan, self.device, workers=workers, bad_images=bad_images)
        except NoRoomError:
            if split is self.dataset.train:
                raise
            return None
        self.unreadable.update(packed.unreadable)
        return packed


def _are_jpegs(images: Images) -> bool:
    """Whether most are files that a GPU can decode; of others whole pictures would have to wait in memory."""
    if not isinstance(images, FileImages):
        return False
    return sum(name.lower().endswith((".jpg", ".jpeg")) for name in images.names) > len(images) / 2


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_small(path: Path | str) -> bool:
    """Whether one's own images are small, square and all of one size: then they are trained on as CIFAR's are."""
    return _all_small(_open_own(path))


def _open_own(path: Path | str) -> DataSet:
    """One's own data; a run's folder is taken for a word that was forgotten."""
    if RunFolder(path).begun:
        raise ValueError(
            f"Expected {path} to have class folders, but it is a run's folder: `{program()} train --resume {path}` "
            "goes on with the run."
        )
    return open_path(path)


def _all_small(dataset: DataSet, most: int | None = None) -> bool:
    """Looks at the files' headers only, and no further than the first that is not, or ``most`` of them."""
    first: tuple[int, int] | None = None
    every = ((split.images, place) for split in dataset.splits.values() for place in range(len(split)))
    for images, place in islice(every, most):
        if isinstance(images, FileImages):
            try:
                size = image_size(images.path(place))
            except UnreadableImageError:
                continue  # which `bad_images` is about
        else:
            size = (int(images[place].shape[1]), int(images[place].shape[2]))
        first = first or size
        if size != first or size[0] != size[1] or size[0] > _SMALL:
            return False
    return first is not None

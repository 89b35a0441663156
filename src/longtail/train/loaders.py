"""The loaders of a run's splits, and the augmentations of their views."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from longtail._ranks import Ranks
from longtail.data import (
    ArrayImages,
    BatchPlan,
    DataSet,
    FeatureVectors,
    FileImages,
    Images,
    Normalisation,
    Resident,
    Split,
    Streaming,
)
from longtail.data.augment import (
    Augmentation,
    AutoAugmentCIFAR,
    CentreCrop,
    ColorJitter,
    Compose,
    Cutout,
    Normalise,
    RandAugment,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
    Unchanged,
)
from longtail.data.sampling.samplers import Instance, Sampler
from longtail.models import pretrained_normalisation
from longtail.train.dataset import first_image
from longtail.train.own import SMALL, cores
from longtail.train.recipe import Family, Recipe

Loader = Resident | Streaming

_LARGE = 224  # size of images that are not small
_EVALUATION_PIXELS = {"cuda": 2**24, "cpu": 2**20}  # of an evaluation batch; a CPU is slower beyond its caches


@dataclass(frozen=True, eq=False)
class Loaders:
    """Makes the loaders of a run's splits."""

    recipe: Recipe
    dataset: DataSet
    device: torch.device
    ranks: Ranks
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files of all splits that were skipped so far, and why."""
    features: dict[Split, Split] = field(default_factory=dict)
    """Splits of images whose loaders yield features of a frozen backbone instead."""
    _held: dict[Split, Resident] = field(default_factory=dict)
    """Splits that are on the device, once for all their loaders."""

    @property
    def image_size(self) -> int:
        """Side of the images that the model sees."""
        if self.recipe.image_size is not None:
            return self.recipe.image_size
        images = self.dataset.train.images
        if isinstance(images, ArrayImages):
            return images.size[0]
        if self.recipe.augment in {"cifar", "shift"}:  # small images that are not in memory, as some differ in size
            side = int(first_image(images).shape[1])
            return side if side <= SMALL else _LARGE
        return _LARGE

    @property
    def steps_per_epoch(self) -> int:
        """Steps per training epoch."""
        recipe, samples = self.recipe, len(self.features.get(self.dataset.train, self.dataset.train))
        return samples // recipe.batch_size if recipe.drop_last else -(-samples // recipe.batch_size)

    @cached_property
    def channels(self) -> int:
        """Channels of the images."""
        return int(first_image(self.dataset.train.images).shape[0])

    @cached_property
    def normalisation(self) -> Normalisation:
        """Mean and standard deviation: those of the model's pretrained weights, else those of the data set."""
        if isinstance(self.dataset.train.images, FeatureVectors):
            return Normalisation((0.0,), (1.0,))  # the model standardises them itself
        weights = self.recipe.weights or self.recipe.pretrained
        expected = pretrained_normalisation(self.recipe.model, weights, self.channels) if weights else None
        found = expected or self.dataset.normalisation
        if self.channels == 1 and len(found.mean) == 3:  # grey images with the normalisation of colours
            return Normalisation(*((sum(values) / 3,) for values in (found.mean, found.std)))
        return found

    def training(self, views: tuple[str, ...], sampler: Sampler, *, drop_last: bool) -> Loader:
        """The loader of the training split, augmented."""
        recipe, world = self.recipe, self.ranks.world
        split = self.features.get(self.dataset.train, self.dataset.train)
        family: Mapping[str, Augmentation] = dict.fromkeys(views, Unchanged())
        if not isinstance(split.images, FeatureVectors):
            family = training_views(recipe.augment, self.image_size, self.normalisation, sized=self._sized(split))
        if recipe.batch_size % (world * recipe.accumulate):
            raise ValueError(
                f"Expected `batch_size` to be divisible by {world} processes x {recipe.accumulate} micro-batches, but "
                f"got {recipe.batch_size}."
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
                f"Expected `batch_size` to be at most the {len(split)} training images with `drop_last`, but got "
                f"{recipe.batch_size}."
            )
        return self._loader(split, plan)

    def evaluation(self, split: Split) -> Loader:
        """The loader of a split in order, every sample once."""
        split = self.features.get(split, split)
        size = self.image_size
        view: Augmentation = Unchanged()
        batch = max(1, min(1000, _EVALUATION_PIXELS[self.device.type] // (self.channels * size * size)))
        if not isinstance(split.images, FeatureVectors):
            view = evaluation_view(self.recipe.augment, size, self.normalisation, sized=self._sized(split))
        elif self.features:
            batch = 1000
        plan = BatchPlan(split.labels, (view,), batch, Instance(), self.ranks.rank, self.ranks.world)
        return self._loader(split, plan)

    def release(self) -> None:
        """Release the splits that are on the device."""
        self._held.clear()

    def _sized(self, split: Split) -> bool:
        return isinstance(split.images, ArrayImages) and split.images.size == (self.image_size, self.image_size)

    def _loader(self, split: Split, plan: BatchPlan) -> Loader:
        recipe = self.recipe
        if split not in self._held and isinstance(split.images, ArrayImages):
            self._held[split] = Resident(split, plan, self.device)
        if split in self._held:
            return self._held[split].with_plan(plan)
        on_device = self.device.type == "cuda" and _are_jpegs(split.images)
        streaming = Streaming(
            split,
            plan,
            self.device,
            workers=min(recipe.workers, cores()),
            decode_in="device" if on_device else "workers",
            bad_images=recipe.bad_images,
        )
        streaming.unreadable = self.unreadable
        return streaming


def _are_jpegs(images: Images) -> bool:
    """Whether most files can be decoded on a GPU; others would wait in memory as whole images."""
    if not isinstance(images, FileImages):
        return False
    return sum(name.lower().endswith((".jpg", ".jpeg")) for name in images.names) > len(images) / 2


# Views


def training_views(family: Family, size: int, normalisation: Normalisation, *, sized: bool) -> dict[str, Augmentation]:
    """The augmentations by view: ``weak`` (the usual one of a classifier), ``strong`` and ``contrast``.

    ``"cifar"`` pads, crops and flips; ``"imagenet"`` uses resized crops, flips and colour jitter;
    ``"imagenet-plain"`` has no colour jitter in the weak view, as on iNaturalist; ``"shift"`` pads and crops without a
    flip, for small grey images; ``"none"`` only resizes. Strong and contrast are those of the repositories of BCL and
    ProCo. If images are not ``sized`` already, padding and cropping come after a resize, as in evaluation.
    """
    end = Normalise(normalisation.mean, normalisation.std)
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    resized = () if sized else (Resize((size, size)),)
    parts: dict[str, tuple[Augmentation, ...]]
    if family == "cifar":
        shifted = (*resized, RandomCrop(size, padding=size // 8), RandomFlip())
        parts = {
            "weak": shifted,
            "strong": (*shifted, AutoAugmentCIFAR(fill=128), Cutout(size // 2)),
            "contrast": (RandomResizedCrop(size), RandomFlip(), jitter, RandomGrey(0.2)),
        }
    elif family in {"imagenet", "imagenet-plain"}:
        cropped = (RandomResizedCrop(size), RandomFlip())
        coloured = (*cropped, ColorJitter(0.4, 0.4, 0.4))
        parts = {
            "weak": coloured if family == "imagenet" else cropped,
            "strong": (*coloured, RandAugment(2, 30, p=0.5)),
            "contrast": (*cropped, jitter, RandomGrey(0.2)),
        }
    elif family == "shift":
        moved = (*resized, RandomCrop(size, padding=max(size // 8, 1)))
        parts = {
            "weak": moved,
            "strong": (*moved, Cutout(max(size // 4, 1))),
            "contrast": (RandomResizedCrop(size, scale=(0.5, 1.0)),),
        }
    else:
        whole = (Resize((size, size)),)
        parts = {"weak": whole, "strong": whole, "contrast": whole}
    return {name: Compose((*part, end)) for name, part in parts.items()}


def evaluation_view(family: Family, size: int, normalisation: Normalisation, *, sized: bool) -> Augmentation:
    """What happens to an image in evaluation: a centre crop for the ImageNet families, else a resize."""
    end = Normalise(normalisation.mean, normalisation.std)
    if sized:
        return Compose((end,))
    if family in {"imagenet", "imagenet-plain"}:
        return Compose((Resize(round(size * 256 / 224)), CentreCrop(size), end))
    return Compose((Resize((size, size)), end))

"""Use a trained model: a run folder as an ``nn.Module`` with transforms and class names; its metrics on new data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from longtail._checks import check_integer, describe
from longtail._io import plain, read_tensors, reading
from longtail._program import some_of
from longtail.classes import Groups
from longtail.data import BatchPlan, DataSet, FeatureVectors, FileImages, Normalisation, Split, Streaming, decode
from longtail.data.augment import Augmentation, Compose
from longtail.data.loaders.decode import MAX_PIXELS, pixels_to_tensor, raw_pixels
from longtail.metrics import class_statistics
from longtail.models import FeatureNet, HeadSpec, Model, build_model, is_feature_model
from longtail.models.backbones import evaluation_mode
from longtail.models.tuning import add_adapters
from longtail.train.folder import RunFolder
from longtail.train.loaders import evaluation_view
from longtail.train.measures import Classifier, PostHoc, measures
from longtail.train.own import check_no_texts
from longtail.train.recipe import Family
from longtail.train.stored import choose_step, read_statistics

__all__ = ["Evaluation", "FeatureTransforms", "Predictions", "TrainedClassifier", "Transforms", "evaluate_on", "load"]


class Predictions(NamedTuple):
    """Predictions of a model, one row per image."""

    labels: Tensor
    """The most probable class, int64 ``(N,)``."""
    probabilities: Tensor
    """The probability of every class, float32 ``(N, C)``."""


@dataclass(frozen=True)
class ToChannels:
    """Converts grey images to RGB, or RGB images to grey (0.299 R + 0.587 G + 0.114 B, rounded), as the model needs.

    Example:
        >>> ToChannels(1)(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)).flatten()
        tensor([76], dtype=torch.uint8)
    """

    channels: int

    @property
    def draws(self) -> int:
        """Random numbers per image."""
        return 0

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:  # noqa: ARG002 - nothing is drawn
        """``images`` with the right number of channels."""
        found = images.shape[1]
        if found == self.channels:
            return images
        if found == 1:
            return images.expand(-1, self.channels, -1, -1)
        if found == 3 and self.channels == 1:
            red, green, blue = images.int().unbind(1)
            return ((299 * red + 587 * green + 114 * blue + 500) // 1000).to(torch.uint8)[:, None]
        raise ValueError(
            f"Expected images with {self.channels} channels, or grey or RGB, but got {found} channels; a tensor is "
            "(channels, height, width), a NumPy array (height, width, channels)."
        )


@dataclass(frozen=True)
class Transforms:
    """Prepares images as in the run's evaluation: channels, size and normalisation; nothing is random.

    Args:
        channels: channels of the images that the model reads.
        size: their side.
        normalisation: mean and standard deviation.
        family: family of augmentations, which says how an image is resized.
        in_memory: the run's images were in memory: images that already have the size are not resized.
    """

    channels: int
    size: int
    normalisation: Normalisation
    family: Family = "cifar"
    in_memory: bool = False

    def __post_init__(self) -> None:
        if check_integer("image_size", self.size, minimum=1) ** 2 > MAX_PIXELS:
            raise ValueError(f"Expected `image_size` to be at most {math.isqrt(MAX_PIXELS)}, but got {self.size}.")

    def view(self, *, sized: bool = False) -> Augmentation:
        """All steps as one augmentation, for images that have the size already, or for others."""
        rest = evaluation_view(self.family, self.size, self.normalisation, sized=sized)
        return Compose((ToChannels(self.channels), *(rest.augmentations if isinstance(rest, Compose) else (rest,))))

    def __call__(self, images: Any) -> Tensor:
        """A normalised batch.

        Args:
            images: one image, or a sequence of images of any sizes. An image is a path, a PIL image, or uint8 pixels,
                grey or RGB: a tensor ``(channels, height, width)``, or a NumPy array ``(height, width)`` or ``(height,
                width, channels)``. A tensor or an array with four dimensions is a batch.

        Returns:
            float32 ``(B, channels, size, size)``.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype == np.uint8:
            images = pixels_to_tensor(images).permute(0, 3, 1, 2)
        if isinstance(images, Tensor) and images.ndim == 4:
            if images.dtype != torch.uint8:
                raise TypeError(f"Expected `images` to be uint8 pixels, but got {describe(images)}.")
            if len(images) == 0:
                return torch.empty(0, self.channels, self.size, self.size, device=images.device)
            sized = self.in_memory and tuple(images.shape[2:]) == (self.size, self.size)
            return self.view(sized=sized)(images)
        rows = [self(_pixels(image)[None]) for image in (images if _several(images) else [images])]
        return torch.cat(rows) if rows else torch.empty(0, self.channels, self.size, self.size)


@dataclass(frozen=True)
class FeatureTransforms:
    """Prepares feature vectors for a model of features, which standardises them itself.

    Args:
        channels: length of a vector.
        columns: names of the features, if the model was trained on a table with a column per feature.
    """

    channels: int
    columns: tuple[str, ...] = ()

    def __call__(self, features: Any) -> Tensor:
        """A batch of feature vectors, float32 ``(B, D)``, from a tensor or an array ``(B, D)`` or ``(D,)``.

        A pandas ``DataFrame``, and :class:`FeatureVectors <longtail.data.FeatureVectors>` of a table, are taken by the
        names of their columns.
        """
        table = isinstance(features, FeatureVectors) or (hasattr(features, "iloc") and hasattr(features, "columns"))
        names = [str(name).strip() for name in features.columns] if table and self.columns else []
        places = self._places(names) if names and tuple(names) != self.columns else slice(None)
        if isinstance(features, FeatureVectors):
            features = features.pixels[:, places]
        elif names:
            features = features.iloc[:, places].to_numpy(np.float64)
        found = torch.as_tensor(features if isinstance(features, Tensor) else np.require(features, requirements="W"))
        if found.dtype.is_complex or found.ndim not in {1, 2} or found.shape[-1] != self.channels:
            raise ValueError(
                f"Expected features of shape (N, {self.channels}), as the model was trained on, but got "
                f"{found.dtype} of shape {tuple(found.shape)}."
            )
        return found.float().reshape(-1, self.channels)

    def _places(self, names: Sequence[str]) -> list[int]:
        """Where each feature is in a table with these columns."""
        places, known = {name: place for place, name in enumerate(names)}, set(self.columns)
        wrong = {
            "lacks": [name for name in self.columns if name not in places],
            "also has": [name for place, name in enumerate(names) if name not in known or places[name] != place],
        }
        found = [f"{what} {some_of(list(map(repr, columns)))}" for what, columns in wrong.items() if columns]
        if found:
            raise ValueError(
                f"Expected the {self.channels} columns on which the model was trained, in any order, and no others, "
                f"but the table {' and '.join(found)}."
            )
        return [places[name] for name in self.columns]


def _several(images: Any) -> bool:
    if isinstance(images, Tensor | np.ndarray):
        return images.ndim == 4
    return isinstance(images, Sequence) and not isinstance(images, str | bytes)


def _pixels(image: Any) -> Tensor:
    if isinstance(image, str | PathLike):
        return decode(Path(image))
    pixels = raw_pixels(image)
    if pixels is None:
        array = isinstance(image, np.ndarray)
        found = f"an array of {image.dtype} and shape {image.shape}" if array else describe(image)
        raise TypeError(
            "Expected an image to be a path, a PIL image, or uint8 pixels in a tensor (channels, height, width) or a "
            f"NumPy array (height, width, channels), but got {found}."
        )
    return pixels


class TrainedClassifier(nn.Module):
    """The model of a run: logits of a normalised batch, after the run's post-hoc step if it had one.

    Args:
        model: the network.
        class_names: names of the classes, in the order of the logits.
        transforms: prepares images for :meth:`forward`.
        counts: training images per class.
        posthoc: the post-hoc step; tau-normalisation uses the norms that the classifier has now.
    """

    def __init__(
        self,
        model: Model,
        class_names: Sequence[str],
        transforms: Transforms | FeatureTransforms,
        counts: Sequence[int],
        posthoc: PostHoc | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.class_names = tuple(class_names)
        self.transforms = transforms
        self.counts = tuple(counts)
        self.posthoc = posthoc
        self._classifier = Classifier.of(model.head.weight, model.head.bias, torch.tensor(counts))

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def forward(self, images: Tensor) -> Tensor:
        """Logits, float32 or better ``(B, C)``, of images ``(B, channels, size, size)`` in the type of the weights."""
        logits: Tensor = self.model(images, project=False).logits
        return self.after_training(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    def after_training(self, logits: Tensor) -> Tensor:
        """Logits of the network after the run's post-hoc step, if it had one."""
        return logits if self.posthoc is None else self.posthoc.apply(logits, self._classifier)

    def predict(self, images: Any, *, batch_size: int = 256) -> Predictions:
        """Labels and probabilities in evaluation mode, computed in the type of the model's weights.

        Args:
            images: one, a sequence, or a batch, as in :class:`Transforms`: paths, PIL images, or uint8 pixels in
                tensors ``(channels, height, width)`` or NumPy arrays ``(height, width, channels)``; for a model of
                features, vectors ``(N, D)`` or a pandas ``DataFrame``.
            batch_size: images per forward pass.
        """
        check_integer("batch_size", batch_size, minimum=1)
        if isinstance(self.transforms, FeatureTransforms):
            images = self.transforms(images)
        elif isinstance(images, Tensor) and images.ndim == 4:
            images = images.to(self.device)
        elif not _several(images):
            images = [images]
        parts = [torch.empty(0, len(self.class_names))]
        for begin in range(0, len(images), batch_size):
            parts.append(self._logits(self.transforms(images[begin : begin + batch_size])).softmax(1).float())
        together = torch.cat(parts)
        return Predictions(together.argmax(1), together)

    def files(
        self,
        paths: Sequence[Path | str],
        *,
        batch_size: int = 64,
        workers: int = 4,
        unreadable: dict[str, str] | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the position and the class probabilities of each file; threads read them, without keeping them all.

        Args:
            paths: the image files.
            batch_size: images per forward pass.
            workers: threads that read.
            unreadable: receives the files that cannot be read, and why; without it such a file raises an error.
        """
        if not paths:
            return
        images = FileImages(Path("/"), [str(Path(path).absolute()).lstrip("/") for path in paths])
        split = Split(images, torch.zeros(len(images), dtype=torch.int64))
        for indices, logits in self.logits(split, batch_size=batch_size, workers=workers, unreadable=unreadable):
            yield from zip(indices.tolist(), logits.softmax(1).float(), strict=True)

    def logits(
        self, split: Split, *, batch_size: int = 64, workers: int = 4, unreadable: dict[str, str] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield positions and logits of the images of a split, on the CPU; arguments as for :meth:`files`."""
        if isinstance(split.images, FeatureVectors):
            vectors = split.images.pixels
            if isinstance(self.transforms, FeatureTransforms):
                vectors = self.transforms(split.images)
            for rows in torch.split(torch.arange(len(split)), max(batch_size, 1024)):
                yield rows, self._logits(self.transforms(vectors[rows]))
            return
        if not isinstance(self.transforms, Transforms):
            raise ValueError("Expected features, as the model was trained on, but got images.")
        view = self.transforms.view()
        for rows, images in views(
            split, view, self.device, batch_size=batch_size, workers=workers, unreadable=unreadable
        ):
            yield rows, self._logits(images)

    @torch.no_grad()
    def _logits(self, images: Tensor) -> Tensor:
        """Logits of normalised images in evaluation mode, on the CPU."""
        with evaluation_mode(self):
            logits: Tensor = self(images.to(next(self.model.parameters())))  # its device and type
            return logits.cpu()


def load(run: Path | str, device: torch.device | str = "cpu") -> TrainedClassifier:
    """The model of a finished run, ready to predict. Nothing in its files is executed.

    Args:
        run: the run folder.
        device: where to put the model.

    Returns:
        an ``nn.Module`` in evaluation mode, in float32; the post-hoc step of the run, if it had one, is part of it.
    """
    folder = RunFolder(run)
    result = folder.result()
    if not folder.model_file.exists():
        raise FileNotFoundError(f"Expected a model in {folder.model_file}, but there is no such file.")
    state, card = read_tensors(folder.model_file)
    with reading(folder.model_file, "a model of longtail"):
        classifier = _from_card(state, card, PostHoc.of(result))
    return classifier.to(memory_format=torch.channels_last).to(device).eval()  # faster convolutions


def views(
    split: Split,
    view: Augmentation,
    device: torch.device | str,
    *,
    batch_size: int,
    workers: int,
    unreadable: dict[str, str] | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions and prepared images of a split; arguments as for :meth:`TrainedClassifier.files`."""
    files = isinstance(split.images, FileImages)
    loader = Streaming(
        split,
        BatchPlan(split.labels, (view,), batch_size),
        device,
        workers=workers if files else 0,
        # Or threads: starting processes would take longer than reading a few images.
        decode_in="device" if files else "workers",
        bad_images="error" if unreadable is None else "skip",
    )
    if unreadable is not None:
        loader.unreadable = unreadable
    for batch in loader.evaluation():
        yield batch.indices, batch.views[0]


class Evaluation(NamedTuple):
    """A trained model on new data."""

    result: dict[str, Any]
    """The metrics, as in ``result.json``; the new data is the split ``test``, whichever ``part`` of it was read."""
    split: Split
    """The images that were read, with the run's class indices as labels."""
    logits: Tensor
    """After the post-hoc step, float32 ``(N, C)``."""


def evaluate_on(
    run: Path | str,
    dataset: DataSet,
    part: str | None = None,
    *,
    posthoc: PostHoc | str | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    workers: int = 4,
    unreadable: dict[str, str] | None = None,
) -> Evaluation:
    """The metrics of a finished run on new labelled data; nothing is trained, and the run is not changed.

    Args:
        run: the run folder.
        dataset: the new data. Its classes are matched by name; each must be a class of the run, but it need not have
            all of them.
        part: ``"train"``, ``"val"`` or ``"test"``; default: ``test``, or all images if the data has no splits.
        posthoc: replaces the run's own post-hoc step; see :func:`longtail.train.evaluate_run`.
        device: where to compute.
        batch_size: images per forward pass.
        workers: threads that read files.
        unreadable: receives the files that cannot be read, and why; without it such a file raises an error.
    """
    check_no_texts(dataset)
    folder, model = RunFolder(run), load(run, device)
    kept, (statistics, classifier) = folder.result(), read_statistics(folder.statistics_file)
    groups, trace = Groups.from_indices(**kept["groups"]), kept["posthoc_chosen_on_val"]
    step, model.posthoc = model.posthoc, None
    if posthoc is not None:
        step, trace = choose_step(folder, posthoc, classifier, groups)
    part = _part(dataset, part)
    split = _of_classes(dataset.splits[part], dataset, model.class_names, folder)
    batches = list(model.logits(split, batch_size=batch_size, workers=workers, unreadable=unreadable))
    if not batches:
        raise ValueError(f"Expected an image of {dataset.name} that can be read, but there is none.")
    read, logits = (torch.cat(parts) for parts in zip(*batches, strict=True))
    split = split.subset(read)
    after = logits if step is None else step.apply(logits, classifier)
    # Training recalls before another step say nothing about the model after it.
    trained = {name: one for name, one in statistics.items() if name.startswith("train") and posthoc is None}
    found = measures(
        {**trained, "test": class_statistics(after, split.labels)},
        groups,
        model.class_names,
        kept["train_stats"],
        gradients=False,
    )
    same = ["method", "params", "label", "beta", "seed", "epochs", "reported", "groups_from", "best"]
    same += ["auto_beta"] if posthoc is None else []
    about: dict[str, Any] = {name: kept[name] for name in same if name in kept}
    about |= {"data": dataset.name, "part": part if len(dataset.splits) > 1 else "all", "trained_on": kept["data"]}
    about |= {"posthoc": None if step is None else str(step)}
    counts = {name: kept[name] for name in ("counts", "imbalance_factor") if name in kept}
    return Evaluation(plain({**about, "posthoc_chosen_on_val": trace, **counts, **found}), split, after.float())


def _part(dataset: DataSet, part: str | None) -> str:
    """The split to use: the given one, or the default."""
    splits = dataset.splits
    if part is None:
        part = "test" if "test" in splits else "train" if len(splits) == 1 else None
    if part is not None and part in splits:
        return part
    found = f"it has {' and '.join(splits)}"
    raise ValueError(f"Expected `part` to be a split of {dataset.name}, but {found}, and got {part or 'none'}.")


def _of_classes(split: Split, dataset: DataSet, class_names: Sequence[str], run: RunFolder) -> Split:
    """The split with the run's class indices as labels."""
    index = {name: c for c, name in enumerate(class_names)}
    present = sorted({dataset.class_names[c] for c in split.labels.tolist()})
    unknown = [name for name in present if name not in index]
    if unknown:
        raise ValueError(
            f"Expected the classes of {dataset.name} to be classes of {run.path}, such as {class_names[0]!r}, but got "
            f"{some_of(list(map(repr, unknown)))}."
        )
    mapped = torch.tensor([index.get(name, -1) for name in dataset.class_names])
    return Split(split.images, mapped[split.labels])


def _from_card(state: Mapping[str, Tensor], card: Mapping[str, Any], posthoc: PostHoc | None) -> TrainedClassifier:
    names, counts, size = card["classes"], card["counts"], card["image_size"]
    transforms: Transforms | FeatureTransforms = FeatureTransforms(card["channels"], tuple(card.get("columns", ())))
    if not is_feature_model(card["model"]):
        normalisation = Normalisation(tuple(card["mean"]), tuple(card["std"]))
        if len(normalisation.mean) != card["channels"]:
            raise ValueError(f"Expected a mean for each of {card['channels']} channels, but got {card['mean']}.")
        transforms = Transforms(card["channels"], size, normalisation, card["augment"], card.get("in_memory", False))
    model = build_model(
        card["model"],
        len(names),
        head=HeadSpec(card["head"], card["head_options"]),
        in_channels=transforms.channels,
        image_size=size,
    )
    if card.get("standardised"):
        model.scaler = FeatureNet(model.backbone.num_features)
    if "adapter_rank" in card:
        add_adapters(model, card["adapter_rank"], seed=0)
    used = {name: value for name, value in state.items() if name.split(".")[0] in {"backbone", "scaler", "head"}}
    model.load_state_dict(used)  # projectors are needed for training only
    if len(counts) != len(names):
        raise ValueError(f"Expected a count for each of {len(names)} classes, but got {len(counts)}.")
    return TrainedClassifier(model, names, transforms, counts, posthoc)

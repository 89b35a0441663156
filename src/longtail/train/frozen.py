"""Features of a frozen backbone, computed once, so that training the head takes seconds."""

import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from longtail._program import some_of
from longtail._progress import phase
from longtail._ranks import Ranks
from longtail.data import FeatureVectors, FileImages, Split
from longtail.data.datasets.features import FEATURES, read_features
from longtail.data.loaders.decode import UnreadableImageError, decode
from longtail.models import Backbone, FeatureNet
from longtail.models.backbones import evaluation_mode
from longtail.models.heads import unit
from longtail.train.cache import paths_of, read_cache, stamp_of, write_cache
from longtail.train.loaders import Loaders


@dataclass
class Sample:
    """A sample of images used to estimate the time of a run; their features, repeated, replace those of all."""

    number: int = 64
    seconds: float = 0.0
    """How long the features of all images take; 0 if they are in the cache."""


def frozen_features(
    backbone: Backbone, loaders: Loaders, cache: Path | None, sample: Sample | None = None
) -> dict[Split, Split]:
    """The features of the images of each split that can be read, without augmentation, as a split of vectors.

    Features of image files are kept in the folder ``cache``, under a name made of all files (name, size, time, inode),
    of the weights and of how images are resized and normalised. Splits and seeds do not matter, so the runs of a study
    share them. Those of a ``sample`` are not kept. Files that cannot be read are added to ``loaders.unreadable``, or
    raise an error, as ``bad_images`` says.
    """
    splits = list(loaders.dataset.splits.values())
    if not all(isinstance(split.images, FileImages) for split in splits):
        return {split: _with(split, _features(backbone, loaders, split, sample)) for split in splits}
    paths = {split: paths_of(split.images) for split in splits if isinstance(split.images, FileImages)}
    files = sorted({path for found in paths.values() for path in found})
    everything = Split(FileImages(Path("/"), [file.lstrip("/") for file in files]), torch.zeros(len(files)).long())
    key = _key(backbone, loaders, files)
    file = None if cache is None else cache / f"features-{key}.safetensors"
    kept = None if file is None else read_cache(file, key)
    if kept is None:
        kept = {"features": _features(backbone, loaders, everything, sample)}
        if file is not None and sample is None and loaders.ranks.first:
            write_cache(file, key, kept)
    unread = kept["features"][:, 0].isnan().nonzero().flatten().tolist()
    _report_unreadable([files[row] for row in unread], loaders)
    place = {file: number for number, file in enumerate(files)}
    return {split: _with(split, kept["features"][[place[path] for path in paths[split]]]) for split in splits}


def _with(split: Split, vectors: Tensor) -> Split:
    read = (~vectors[:, 0].isnan()).nonzero().flatten()
    if not len(read):
        raise ValueError(f"Expected an image that can be read in a split of {len(split):,}, but there is none.")
    return Split(FeatureVectors(vectors), split.labels, split.groups).subset(read)


@torch.no_grad()
def _features(backbone: Backbone, loaders: Loaders, split: Split, sample: Sample | None) -> Tensor:
    """Float32 ``(N, D)``, on the CPU, NaN for images that cannot be read; every rank computes all of them."""
    assert isinstance(backbone, nn.Module)
    if sample is not None and sample.number < len(split):
        begin, few = time.perf_counter(), split.subset(torch.arange(sample.number))
        vectors = _features(backbone, loaders, few, None)
        sample.seconds += (time.perf_counter() - begin) * len(split) / sample.number
        return vectors[torch.arange(len(split)) % sample.number]
    alone = Loaders(loaders.recipe.changed(bad_images="skip"), loaders.dataset, loaders.device, Ranks())
    vectors = torch.full((len(split), backbone.num_features), torch.nan)
    cast = torch.autocast(loaders.device.type, torch.bfloat16, enabled=loaders.recipe.precision == "bf16")
    with evaluation_mode(backbone), cast, phase("Computing features", len(split)) as progress:
        for batch in alone.evaluation(split).evaluation():
            found = backbone(batch.views[0]).float().cpu()
            if not found.isfinite().all():
                raise ValueError(f"Expected finite features of {loaders.recipe.model}, but got infinity or NaN.")
            vectors[batch.indices.cpu()] = found
            progress.advance(len(batch.labels))
            if loaders.recipe.bad_images == "error":
                _report_unreadable(alone.unreadable, loaders)
    return vectors


def _report_unreadable(files: Iterable[str], loaders: Loaders) -> None:
    """Add files to those that were skipped, or raise an error, as ``bad_images`` says."""
    errors = []
    for file in files:
        try:
            decode(Path(file))
            errors.append(UnreadableImageError(file, "it could not be read when its features were computed"))
        except UnreadableImageError as error:
            errors.append(error)
    if errors and loaders.recipe.bad_images == "error":
        raise UnreadableImageError.of_several(errors, "so far")
    loaders.unreadable.update({str(error.path): error.reason for error in errors})


def _key(backbone: Backbone, loaders: Loaders, files: list[str]) -> str:
    assert isinstance(backbone, nn.Module)
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        stamp: object = file
        with suppress(OSError):  # it does not exist: the loader says so
            stamp = stamp_of(file)
        found.update(str(stamp).encode("utf-8", "surrogateescape"))
    for name, value in backbone.state_dict().items():
        found.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    recipe = loaders.recipe
    about = (recipe.model, recipe.augment, recipe.precision, recipe.channels_last, loaders.image_size, loaders.channels)
    found.update(repr((about, loaders.normalisation, loaders.device.type, torch.__version__)).encode())
    return found.hexdigest()


@torch.no_grad()
def class_means(backbone: Backbone, loaders: Loaders) -> Tensor:
    """The mean features of each class of the training split, without augmentation: float64 ``(C, D)``.

    A class without samples has the mean of all.
    """
    assert isinstance(backbone, nn.Module)
    classes = loaders.dataset.num_classes
    sums = torch.zeros(classes, backbone.num_features, dtype=torch.float64, device=loaders.device)
    counts = torch.zeros(classes, dtype=torch.float64, device=loaders.device)
    with evaluation_mode(backbone), phase("Computing class means"):
        for batch in loaders.evaluation(loaders.dataset.train).evaluation():
            sums.index_add_(0, batch.labels, backbone(batch.views[0]).double())
            counts += batch.labels.bincount(minlength=classes)
    sums, counts = loaders.ranks.sum(sums), loaders.ranks.sum(counts)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], sums.sum(0) / counts.sum())


def read_class_embeddings(path: str, class_names: Sequence[str], backbone: Backbone) -> Tensor:
    """An embedding of each class, float32 ``(C, D)``, from a file of features.

    Args:
        path: of the file. The labels of its rows, or else its array ``classes``, name the class of each row; rows of
            one class are averaged, and those of other classes are not used.
        class_names: of the run.
        backbone: the embeddings are like its features, or the feature vectors that it reads.
    """
    stored, rows = read_features(path, labelled=False), dict[str, list[int]]()
    names = stored.labels or stored.class_names or ()
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    features = stored.samples.pixels
    number, length = features.shape
    wanted = backbone.in_features if isinstance(backbone, FeatureNet) else backbone.num_features
    if length != wanted or len(names) != number:
        raise ValueError(
            f"Expected {path} to have `{FEATURES}` of {wanted} numbers, as the model has, and in `classes` the name of "
            f"each row, but got {length} numbers, {number} rows and {len(names)} names."
        )
    missing = [repr(name) for name in class_names if name not in rows]
    if missing:
        raise ValueError(f"Expected {path} to have an embedding of each class, but it has none of {some_of(missing)}.")
    return torch.stack([features[rows[name]].mean(0) for name in class_names])


@torch.no_grad()
def embeddings_as_means(backbone: Backbone, embeddings: Tensor) -> Tensor:
    """Embeddings in place of class means: float64 ``(C, D)``, standardised as the features are, and of length sqrt(D).

    As their lengths are equal, the nearest one is also the one with the largest cosine.
    """
    if isinstance(backbone, FeatureNet):
        with evaluation_mode(backbone):
            embeddings = backbone(embeddings)
    return unit(embeddings.double()) * math.sqrt(embeddings.shape[1])

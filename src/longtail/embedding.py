"""Features of images or texts from a pretrained network, computed once, for training on features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from longtail._io import import_extra
from longtail.data import BatchPlan, DataSet, FeatureVectors, FileImages, Split, Streaming
from longtail.models import build_backbone, is_feature_model, pretrained_normalisation
from longtail.models.backbones import evaluation_mode
from longtail.train.loaders import evaluation_view

__all__ = ["embed_images", "embed_texts"]

_SIZE = 224


def embed_images(
    dataset: DataSet,
    model: str,
    weights: PathLike[str] | str | bool,
    *,
    image_size: int = _SIZE,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    workers: int = 4,
    unreadable: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> DataSet:
    """A data set with the features of its images instead of the images; nothing is augmented.

    Args:
        dataset: image files, in any splits.
        model: a torchvision or timm network, as in :func:`build_backbone <longtail.models.build_backbone>`.
        weights: a file of weights for it; ``True`` downloads the published ones.
        image_size: side of the images that the network sees: a centre crop, as for ImageNet.
        device: where to compute.
        batch_size: images per forward pass.
        workers: processes or threads that read files.
        unreadable: receives the files that cannot be read, and why; without it such a file raises an error.
        progress: called with the number of images embedded since the last call.
    """
    if is_feature_model(model):
        raise ValueError(f"Expected `model` to be a network for images, but got {model}.")
    backbone = build_backbone(model, pretrained=weights, image_size=image_size)
    assert isinstance(backbone, nn.Module)
    backbone.to(device)
    found = pretrained_normalisation(model, weights)
    normalisation = dataset.normalisation if found is None else found
    view = evaluation_view("imagenet", image_size, normalisation, sized=False)

    def features(split: Split) -> Split:
        loader = Streaming(
            split,
            BatchPlan(split.labels, (view,), batch_size),
            device,
            workers=workers,
            decode_in="device" if isinstance(split.images, FileImages) else "workers",
            bad_images="error" if unreadable is None else "skip",
        )
        if unreadable is not None:
            loader.unreadable = unreadable
        rows, vectors = [], []
        with torch.no_grad(), evaluation_mode(backbone):
            for batch in loader.evaluation():
                vectors.append(backbone(batch.views[0]).float().cpu())
                rows.append(batch.indices)
                if progress is not None:
                    progress(len(batch.indices))
        if not rows:
            raise ValueError(f"Expected an image of {dataset.name} that can be read, but there is none.")
        read = torch.cat(rows)
        groups = None if split.groups is None else split.groups[read]
        return Split(FeatureVectors(torch.cat(vectors)), split.labels[read], groups)

    return replace(dataset, **{name: features(split) for name, split in dataset.splits.items()})  # type: ignore[arg-type]


def embed_texts(
    texts: Sequence[str],
    model: PathLike[str] | str,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    max_length: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Features of texts, float32 ``(N, D)``: the mean of the last hidden states of an encoder over a text's tokens.

    Args:
        texts: the texts.
        model: the folder of a Hugging Face encoder and its tokenizer; nothing is downloaded, and no code in it is run.
        device: where to compute.
        batch_size: texts per forward pass.
        max_length: tokens of a text that are read.
        progress: called with the number of texts embedded since the last call.
    """
    transformers = import_extra("transformers", "text")
    if not (Path(model) / "config.json").is_file():
        raise FileNotFoundError(
            f"Expected {model} to be the folder of a Hugging Face model, but it has no config.json."
        )
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    encoder = transformers.AutoModel.from_pretrained(model, local_files_only=True).to(device).eval()
    vectors = torch.empty(len(texts), encoder.config.hidden_size)
    for places in _batches(texts, batch_size):
        inputs = tokenizer(
            [texts[place] for place in places],
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
        ).to(device)
        with torch.no_grad():
            states = encoder(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][:, :, None].float()
        vectors[places] = ((states * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu()
        if progress is not None:
            progress(len(places))
    return vectors


def _batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Positions in batches of similar lengths, because padding costs time."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]

"""Features of images or texts from a pretrained network, computed once, for training on features."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from longtail._io import import_extra
from longtail._progress import note, phase
from longtail.data import DataSet, FeatureVectors, Split
from longtail.inference import views
from longtail.models import build_backbone, is_feature_model, pretrained_normalisation
from longtail.models.backbones import evaluation_mode
from longtail.train.loaders import evaluation_view

__all__ = ["embed_images", "embed_texts"]


def embed_images(
    dataset: DataSet,
    model: str,
    weights: PathLike[str] | str | bool,
    *,
    image_size: int = 224,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    workers: int = 4,
    unreadable: dict[str, str] | None = None,
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
    """
    if is_feature_model(model):
        raise ValueError(f"Expected `model` to be a network for images, but got {model}.")
    backbone = build_backbone(model, pretrained=weights, image_size=image_size)
    backbone.to(memory_format=torch.channels_last).to(device)
    found = pretrained_normalisation(model, weights)
    normalisation = dataset.normalisation if found is None else found
    view = evaluation_view("imagenet", image_size, normalisation, sized=False)

    def features(split: Split) -> Split:
        rows, vectors = [], []
        batches = views(split, view, device, batch_size=batch_size, workers=workers, unreadable=unreadable)
        with torch.no_grad(), evaluation_mode(backbone):
            for places, images in batches:
                vectors.append(backbone(images).float().cpu())
                rows.append(places)
                shown.advance(len(places))
        if not rows:
            raise ValueError(f"Expected an image of {dataset.name} that can be read, but there is none.")
        read = torch.cat(rows)
        groups = None if split.groups is None else split.groups[read]
        return Split(FeatureVectors(torch.cat(vectors)), split.labels[read], groups)

    with phase("embedding images", sum(map(len, dataset.splits.values()))) as shown:
        return replace(dataset, **{name: features(split) for name, split in dataset.splits.items()})  # type: ignore[arg-type]


def embed_texts(
    texts: Sequence[str],
    model: PathLike[str] | str,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    max_length: int = 256,
) -> Tensor:
    """Features of texts, float32 ``(N, D)``: the mean of the last hidden states of an encoder over a text's tokens.

    Args:
        texts: the texts.
        model: the folder of a Hugging Face encoder and its tokenizer; nothing is downloaded, and no code in it is run.
        device: where to compute.
        batch_size: texts per forward pass.
        max_length: tokens of a text that are read.
    """
    transformers = import_extra("transformers", "text")
    if not (Path(model) / "config.json").is_file():
        why = "it has no config.json" if Path(model).is_dir() else "there is no such folder"
        raise FileNotFoundError(f"Expected {model} to be the folder of a Hugging Face model, but {why}.")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    encoder = transformers.AutoModel.from_pretrained(model, local_files_only=True).to(device).eval()
    vectors = torch.empty(len(texts), encoder.config.hidden_size)
    cut = 0
    by_length = torch.tensor([len(text) for text in texts]).argsort(stable=True)  # because padding costs time
    with torch.no_grad(), phase("embedding texts", len(texts)) as shown:
        for places in torch.split(by_length, batch_size):
            inputs = tokenizer(
                [texts[place] for place in places.tolist()],
                padding=True,
                truncation=True,
                max_length=max_length,
                return_tensors="pt",
            ).to(device)
            states = encoder(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][:, :, None].float()
            cut += int((mask.sum(1) >= max_length).sum())
            vectors[places] = ((states * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu()
            shown.advance(len(places))
    if cut:
        note(f"{cut:,} of {len(texts):,} texts have {max_length} tokens or more; only the first {max_length} are read.")
    return vectors

"""``longtail embed``: features of images or texts from a pretrained network, in a file to train on."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from longtail._program import count
from longtail._progress import note
from longtail.cli.parsing import (
    Parser,
    add_opening,
    add_reading,
    check_folder_of,
    open_given,
    open_texts,
    positive_integer,
)
from longtail.cli.show import Phases, print_line, print_unreadable
from longtail.data import DataSet, FeatureVectors, Texts
from longtail.data.datasets.features import write_features
from longtail.data.datasets.rows import Rows
from longtail.embedding import embed_images, embed_texts
from longtail.train.recipe import pick_device


def run(words: Sequence[str]) -> int:
    """Parse, embed, write."""
    parser = Parser(
        "longtail embed",
        "Compute the features of images or texts once with a pretrained network, and write them to a file that\n"
        "`longtail train` and `longtail study` take as data. Nothing is downloaded without --pretrained.",
    )
    about = (
        "a folder of class folders, a list of images, a data set by name, or with --text a table (.csv, .tsv, "
        ".parquet) or a folder with tables named train, val and test"
    )
    parser.add_argument("data", metavar="DATA", help=about)
    parser.flag(
        "--model", "a torchvision or timm network; of texts the folder of a Hugging Face encoder", required=True
    )
    parser.flag("--weights", "the network's weights, .safetensors or of torch.save", type=Path, metavar="FILE")
    parser.flag("--pretrained", "download the network's published weights", action="store_true")
    parser.flag(
        "--text",
        "of your own table: the column with texts; labels are in `label`, and splits in `split` if there are any",
        metavar="COLUMN",
    )
    parser.flag(
        "--out", "the file of features; an existing one is replaced", type=Path, required=True, metavar="FILE.npz"
    )
    parser.flag(
        "--image-size", "side of the images that the network sees", type=positive_integer, default=224, metavar="N"
    )
    add_opening(parser)
    parser.flag("--root", "the data folder, for data sets by name", default="data", metavar="DIR")
    add_reading(parser)
    given = parser.read(words)
    check_folder_of("--out", given.out)
    if given.out.suffix != ".npz":
        raise ValueError(f"Expected --out to end in .npz, but got {given.out}.")
    with parser.errors_name_flags(), Phases():
        found = _table(given) if given.text is not None else _data_set(given)
    write_features(given.out, found)
    rows, width = found.samples.pixels.shape
    classes = count(len(set(found.labels)), "class") if found.labels else "without labels"
    print_line(f"{given.out}: {rows:,} vectors of {width:,} numbers, {classes}")
    if found.groups:
        print_line(
            f"{count(len(set(found.groups)), 'group')} of {given.split_by or 'the data set'}, never split in training."
        )
    return 0


def _data_set(given: argparse.Namespace) -> Rows[FeatureVectors]:
    dataset = open_given(given.data, given)
    found = _texts(given, dataset) if isinstance(dataset.train.images, Texts) else _images(given, dataset)
    splits = found.splits
    vectors = [split.images.pixels for split in splits.values() if isinstance(split.images, FeatureVectors)]
    labels = [found.class_names[c] for split in splits.values() for c in split.labels.tolist()]
    parts = [part for part, split in splits.items() for _ in range(len(split))]
    groups: list[str] = []
    if any(split.groups is not None for split in splits.values()):
        for part, split in splits.items():
            alone = [f"{part} {place}" for place in range(len(split))]  # every sample without a group is one
            groups += alone if split.groups is None else [found.group_names[g] for g in split.groups.tolist()]
    return Rows(FeatureVectors(torch.cat(vectors)), labels, parts, groups, found.class_names)


def _images(given: argparse.Namespace, dataset: DataSet) -> DataSet:
    if given.weights is None and not given.pretrained:
        raise ValueError("Expected --weights FILE or --pretrained: features of an untrained network are of no use.")
    if given.weights is not None and given.pretrained:
        raise ValueError(f"Expected --weights or --pretrained, not both, but got {given.weights} and --pretrained.")
    skipped: dict[str, str] = {}
    found = embed_images(
        dataset,
        given.model,
        given.weights or True,
        image_size=given.image_size,
        device=pick_device(given.device),
        batch_size=given.batch_size,
        workers=given.workers,
        unreadable=skipped if given.bad_images == "skip" else None,
    )
    print_unreadable(skipped, sum(map(len, dataset.splits.values())))
    return found


def _texts(given: argparse.Namespace, dataset: DataSet) -> DataSet:
    splits = dataset.splits
    vectors = _vectors(given, [str(split.images[i]) for split in splits.values() for i in range(len(split))])
    ends = torch.tensor([len(split) for split in splits.values()]).cumsum(0).tolist()
    parts = {
        name: replace(split, images=FeatureVectors(vectors[end - len(split) : end]))
        for (name, split), end in zip(splits.items(), ends, strict=True)
    }
    return replace(dataset, **parts)  # type: ignore[arg-type]


def _table(given: argparse.Namespace) -> Rows[FeatureVectors]:
    table = open_texts(given.data, given)
    if not table.labels:
        note(f'{given.data} has no column "label", so its features cannot be trained on; --label-column names another.')
    vectors = FeatureVectors(_vectors(given, table.samples.stored))
    return Rows(vectors, table.labels, table.splits, table.groups)


def _vectors(given: argparse.Namespace, texts: Sequence[str]) -> torch.Tensor:
    if given.weights is not None or given.pretrained:
        raise ValueError("Expected --model to be a folder with the weights of the encoder, and no other weights.")
    return embed_texts(texts, given.model, device=pick_device(given.device), batch_size=given.batch_size)

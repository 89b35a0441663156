"""LVIS crops, the paper's fifth data set: built from LVIS and COCO, and registered as ``lvis-crops``."""

import tomllib
from pathlib import Path

from longtail.data import CATALOG, register_dataset
from reproduction.lvis.crops import lvis_counts, read_lvis_crops

__all__ = ["STEPS", "register"]

STEPS = (
    "download lvis_v1_train.json and lvis_v1_val.json (https://www.lvisdataset.org) into lvis, and COCO's train2017 "
    "and val2017 images (https://cocodataset.org) into coco, then run `python -m reproduction.lvis build`, which "
    "writes 228 GB."
)


def register() -> None:
    """Register ``lvis-crops``, unless it is registered already."""
    if "lvis-crops" in CATALOG:
        return
    register_dataset(
        "lvis-crops",
        read_lvis_crops,
        num_classes=1203,
        sizes={"train": 1_270_141, "test": 244_707},
        recipe=tomllib.loads(Path(__file__).with_name("recipe.toml").read_text(encoding="utf-8")),
        label="LVIS",
        files=("lvis-crops/train/index.json", "lvis-crops/val/index.json"),
        steps=STEPS,
        train_range=(1, 50_552),
        counts=lvis_counts,
    )

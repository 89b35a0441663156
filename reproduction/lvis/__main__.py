"""Build and check LVIS crops: ``python -m reproduction.lvis build --root data``."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

from longtail.data import check_dataset, load
from longtail.data.loaders.decode import BadImages
from reproduction.lvis import STEPS, register
from reproduction.lvis.crops import BadImage, build_lvis_crops
from reproduction.lvis.shards import ShardImages


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser("python -m reproduction.lvis", description="Build and check LVIS crops.")
    parser.add_argument("command", choices=["build", "check"])
    parser.add_argument("--root", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--annotations", type=Path, help="folder of lvis_v1_*.json, by default ROOT/lvis")
    parser.add_argument("--images", type=Path, help="folder of train2017 and val2017, by default ROOT/coco")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels")
    parser.add_argument("--workers", type=int, default=4, help="processes that decode and cut")
    parser.add_argument("--bad-images", choices=get_args(BadImages), default="error")
    line = parser.parse_args(arguments)
    register()
    try:
        if line.command == "build":
            _build(line)
        return _check(line.root)
    except (ValueError, OSError) as error:
        print(f"reproduction.lvis: {error}", file=sys.stderr)
        return 2


def _build(line: argparse.Namespace) -> None:
    folder = line.annotations or line.root / "lvis"
    parts = {part: folder / f"lvis_v1_{part}.json" for part in ("train", "val")}
    missing = [path for path in parts.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"Expected {missing[0]}, but it does not exist; {STEPS}")
    for part, path in parts.items():
        report = build_lvis_crops(
            path,
            line.images or line.root / "coco",
            line.root / "lvis-crops" / part,
            size=line.size,
            workers=line.workers,
            bad_images=line.bad_images,
        )
        print(f"{part}: {report.crops:,} crops of {report.boxes:,} boxes in {report.folder}")
        for reason, number in report.dropped.items():
            print(f"  {number:,} dropped: {reason}")
        if report.dropped:
            print(f"  all are listed in {report.folder / 'dropped.jsonl'}")
        if report.emptied:
            print(f"  classes that have boxes but no crop: {', '.join(report.emptied)}")


def _check(root: Path) -> int:
    """Print differences; boxes without a crop count as present, except those of bad images."""
    lines = [str(difference) for difference in check_dataset("lvis-crops", root)]
    for part, split in load("lvis-crops", root).splits.items():
        assert isinstance(split.images, ShardImages)
        found = Counter(note["reason"] for note in split.images.notes)
        bad = [reason for reason in get_args(BadImage) if found[reason]]
        lines += [f"{part} boxes left out: {found[reason]} ({reason})" for reason in bad]
    print("\n".join(lines) or "lvis-crops is as expected.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

"""Photographs to load, made of noise: the benchmarks of ImageNet's size read them, and compare what loaders give."""

from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from longtail.data import FileImages, Split
from longtail.data.sampling.plan import Batch

LEVELS = 2.0  # nvJPEG and Pillow differ by up to 4 in single pixels, where colours have full resolution


def write_photographs(folder: Path, number: int, subsampling: int = 2) -> Split:
    """JPEGs of 500 x 375 with some detail, about 100 kB each; 256 files, each listed as often as it takes.

    Args:
        folder: where to.
        number: of the images that are listed.
        subsampling: of the colours, as Pillow counts: 2 is half the resolution, as cameras write them; 0 is full.
    """
    generator = torch.Generator().manual_seed(0)
    names = [f"{i}.jpg" for i in range(min(number, 256))]
    for name in names:
        noise = torch.nn.functional.interpolate(
            torch.rand(1, 3, 75, 100, generator=generator) * 255, size=(375, 500), mode="bicubic"
        )
        pixels = (noise[0] + 8 * torch.randn(3, 375, 500, generator=generator)).clamp(0, 255).to(torch.uint8)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name, quality=90, subsampling=subsampling)
    listed = [names[i % len(names)] for i in range(number)]
    return Split(FileImages(folder, listed), torch.randint(1000, (number,), generator=generator))


def compare(name: str, here: Iterable[Batch], there: Iterable[Batch], std: Tensor | float) -> tuple[float, list[str]]:
    """Levels of 255 by which a loader's pixels differ from the CPU's, on average, and what is wrong with its batches.

    Args:
        name: of the loader.
        here: its batches.
        there: the CPU's.
        std: what colours were divided by, of a scale of 1.
    """
    batches = list(here), list(there)
    images, wanted = (torch.cat([batch.views[0].cpu().float() for batch in some]) for some in batches)
    if images.shape != wanted.shape:
        return float("nan"), [f"images from {name} are {tuple(images.shape)}, on the CPU {tuple(wanted.shape)}"]
    levels = float(((images - wanted).abs() * std).mean()) * 255
    wrong = []
    if not torch.equal(*(torch.cat([batch.labels.cpu() for batch in some]) for some in batches)):
        wrong.append(f"other labels from {name} than on the CPU")
    if not levels < LEVELS:
        wrong.append(f"images from {name} differ by {levels:.2f} levels from the CPU's, more than {LEVELS:g}")
    return levels, wrong


def show_levels(levels: dict[str, float]) -> None:
    print("levels by which pixels differ from the CPU's:", {k: round(v, 3) for k, v in levels.items()}, flush=True)

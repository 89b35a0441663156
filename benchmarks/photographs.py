"""Photographs made of noise for the benchmarks of ImageNet's size, and a comparison of loaded batches."""

from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from longtail.data import FileImages, Split
from longtail.data.sampling.batch_plan import Batch

LEVELS = 2.0  # nvJPEG and Pillow differ by up to 4 in single pixels with colours of full resolution


def write_photographs(folder: Path, number: int, subsampling: int = 2) -> Split:
    """Write up to 256 JPEGs of 500 x 375, about 100 kB each, and return a split that lists them repeatedly.

    Args:
        folder: the folder for the files.
        number: the number of listed images.
        subsampling: Pillow's setting for the colours: 2 is half the resolution, as cameras write them; 0 is full.
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
    """Mean difference between a loader's pixels and the CPU's, in levels of 255, and problems with its batches.

    Args:
        name: the name of the loader.
        here: its batches.
        there: the batches of the CPU.
        std: the standard deviation by which pixels in [0, 1] were divided.
    """
    batches = list(here), list(there)
    images, wanted = (torch.cat([batch.views[0].cpu().float() for batch in some]) for some in batches)
    if images.shape != wanted.shape:
        return float("nan"), [f"images from {name} are {tuple(images.shape)}, on the CPU {tuple(wanted.shape)}"]
    levels = float(((images - wanted).abs() * std).mean()) * 255
    wrong = []
    if not torch.equal(*(torch.cat([batch.labels.cpu() for batch in some]) for some in batches)):
        wrong.append(f"labels from {name} differ from the CPU's")
    if not levels < LEVELS:
        wrong.append(f"images from {name} differ by {levels:.2f} levels from the CPU's, more than {LEVELS:g}")
    return levels, wrong


def show_levels(levels: dict[str, float]) -> None:
    print("mean difference from the CPU, in levels of 255:", {k: round(v, 3) for k, v in levels.items()}, flush=True)

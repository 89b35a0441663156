"""Photographs to load, made of noise: the benchmarks of ImageNet's size read them."""

from pathlib import Path

import torch
from PIL import Image

from longtail.data import FileImages, Split


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

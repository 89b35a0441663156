"""Windows resized by one kernel against float64, and against torch's matrix products, in Triton's interpreter.

``test_sizing.py`` runs this in another process, because the interpreter is chosen when a kernel is defined.
"""

import numpy as np
import torch

from longtail.data.augment import CentreCrop, RandomResizedCrop, Resize
from longtail.data.augment.geometry import resized_crop
from longtail.data.loaders.sizing import PackedImages, resized_by_kernel, windows_of


def triangle(length: int, size: int) -> np.ndarray:
    """The weights of ``resized_crop``'s docstring, ``(size, length)``, in float64."""
    scale = length / size
    apart = np.abs(np.arange(length) + 0.5 - scale * (np.arange(size)[:, None] + 0.5))
    weights = np.maximum(0, 1 - apart / max(1, scale))
    return weights / weights.sum(axis=1, keepdims=True)


def exactly(image: torch.Tensor, window: list[int], size: tuple[int, int]) -> np.ndarray:
    """A window of one image, before it is rounded."""
    top, left, height, width = window
    inside = image[:, top : top + height, left : left + width].double().numpy()
    return triangle(height, size[0]) @ inside @ triangle(width, size[1]).T


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    sides = [(24, 18), (1, 1), (36, 5), (17, 17), (4, 30), (2, 3)]
    images = [torch.randint(256, (3, *side), dtype=torch.uint8, generator=generator) for side in sides]
    images[3][:] = 255
    row = PackedImages.of(images)
    for size in ((17, 16), (5, 20)):  # the first needs two programs per image
        crop = RandomResizedCrop(size)
        for turn in range(2):
            uniforms = torch.rand(len(images), crop.draws, generator=generator)
            windows, _ = windows_of(row, [Resize(size)] if turn == 0 else [crop], uniforms)
            found = resized_by_kernel(row, windows, size)
            assert found.shape == (len(images), 3, *size)
            assert found.dtype == torch.uint8
            by_torch = torch.cat([resized_crop(row[i][None], *windows[:4, i : i + 1], size) for i in range(len(row))])
            for i, image in enumerate(images):
                wanted = exactly(image, windows[:4, i].tolist(), size)
                assert np.abs(found[i].numpy() - wanted).max() < 0.5 + 1e-4
                other = (found[i] != by_torch[i]).numpy()  # only values halfway between two levels
                assert np.all(np.abs(wanted[other] % 1 - 0.5) < 1e-3)
    for side, kept in ((10, 10), (9, (5, 8)), ((14, 9), (7, 9))):  # resized by the shorter side, and the middle
        parts = [Resize(side), CentreCrop(kept)]
        windows, size = windows_of(row, parts, torch.empty(len(images), 0))
        found = resized_by_kernel(row, windows, size)
        for i, image in enumerate(images):
            high, wide = image.shape[1:]
            shorter = min(high, wide)
            whole = (side * high // shorter, side * wide // shorter) if isinstance(side, int) else side
            top, left = (round((has - keeps) / 2) for has, keeps in zip(whole, size, strict=True))
            wanted = exactly(image, [0, 0, high, wide], whole)[:, top : top + size[0], left : left + size[1]]
            assert found[i].shape == wanted.shape == (3, *size)
            assert np.abs(found[i].numpy() - wanted).max() < 0.5 + 1e-4
            plain = CentreCrop(kept)(Resize(side)(image[None]))[0]
            other = (found[i] != plain).numpy()
            assert np.all(np.abs(wanted[other] % 1 - 0.5) < 1e-3)
    print("the same")


if __name__ == "__main__":
    main()

"""Colours changed by two kernels against torchvision's formulas in float64, and against torch, in Triton's interpreter.

``test_colour.py`` runs this in another process, because the interpreter is chosen when a kernel is defined.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from longtail.data.augment import ColorJitter
from longtail.data.augment.colour import _jittered, jittered_by_kernels

WHOLE = (0.0, 1.0, 2.0)  # factors whose products float32 does not round


def grey_level(image: np.ndarray) -> np.ndarray:
    """torchvision's ``rgb_to_grayscale``, before it is cut off."""
    return 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def turned(image: np.ndarray, shift: float) -> np.ndarray:
    """torchvision's ``adjust_hue``, before it is cut off."""
    red, green, blue = image / 255
    value, least = image.max(axis=0) / 255, image.min(axis=0) / 255
    spread = value - least
    divisor = np.where(spread == 0, 1, spread)
    saturation = spread / np.where(value == 0, 1, value)
    rc, gc, bc = ((value - channel) / divisor for channel in (red, green, blue))
    sixths = np.where(value == red, bc - gc, np.where(value == green, 2 + rc - bc, 4 + gc - rc))
    hue = (sixths / 6 + 1 + shift) % 1
    sector = np.floor(6 * hue)
    part = 6 * hue - sector
    p, q, t = (value * (1 - saturation * share) for share in (1, part, 1 - part))
    tables = ((value, q, p, p, t, value), (t, value, value, q, p, p), (p, p, t, value, value, q))
    return np.stack([np.choose(sector.astype(int) % 6, table) for table in tables]) * 255.999


def unsure(levels: np.ndarray, error: float, whole: bool) -> np.ndarray:
    """Where float32 may be cut off to another level than float64: just at a whole number, unless none is rounded."""
    near = np.round(levels)
    return (np.abs(levels - near) < error) & (near >= 1) & (near <= 255) & ~(whole & (levels == near))


def exactly(image: Tensor, factors: list[float], order: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """An image after its changes, in float64; and which of its pixels float32 may change to other levels."""
    levels = image.double().numpy()
    doubtful = np.zeros(levels.shape[1:], bool)
    for which in order:
        factor, error = factors[which], 1e-4
        grey = grey_level(levels)
        if which == 0:
            levels = factor * levels
        elif which == 1:
            doubtful |= unsure(grey, error, whole=False)
            error += 4 * abs(1 - factor) * doubtful.mean()  # other levels, another mean
            levels = factor * levels + (1 - factor) * np.floor(grey).mean()
        elif which == 2:
            doubtful |= unsure(grey, error, whole=False)
            levels = factor * levels + (1 - factor) * np.floor(grey)
        else:
            levels, error = turned(levels, factor), 1e-3
        doubtful |= unsure(levels, error, whole=which != 3 and factor in WHOLE).any(axis=0)
        levels = np.floor(np.clip(levels, 0, 255))
    return levels, doubtful


def pictures(samples: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    images = torch.randint(256, (samples, 3, height, width), dtype=torch.uint8, generator=generator)
    images[:, :, 0, ::3] = images[:, :1, 0, ::3]  # grey pixels
    images[:, 0, -1] = images[:, 2, -1]  # two channels alike
    return images


def check(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor) -> None:
    before = images.clone()
    found = jittered_by_kernels(images, factors, order, changed)
    assert torch.equal(images, before)
    assert found.dtype == torch.uint8
    assert torch.equal(found, torch.where(changed.view(-1, 1, 1, 1), _jittered(images, factors, order), images))
    sure = 0
    for i, image in enumerate(images):
        wanted, doubtful = exactly(image, factors[i].tolist(), order[i].tolist() if changed[i] else [])
        apart = np.abs(found[i].numpy() - wanted)
        assert np.all(apart[:, ~doubtful] == 0)
        assert apart.max() <= 2  # a level, times factors
        sure += np.count_nonzero(~doubtful)
    assert sure > 0.9 * images[:, 0].numel()


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    for steps, (height, width) in itertools.product((3, 4), ((7, 5), (1, 1), (33, 41))):  # the last: two programs
        order = torch.tensor(list(itertools.permutations(range(steps))))
        orders, always = len(order), torch.ones(len(order), dtype=torch.bool)
        images = pictures(orders, height, width, generator)
        factors = torch.rand(orders, steps, generator=generator) * 0.8 + 0.6
        factors[:, 3:] = (factors[:, 3:] - 1) / 4
        check(images, factors, order, always)
        wholes = torch.randint(3, (orders, steps), generator=generator).float()
        wholes[:, 3:] = (wholes[:, 3:] - 1) / 2
        check(images, wholes, order, always)
        for level in (0, 255):
            check(torch.full_like(images, level)[:, :, :5, :3], factors, order, always)
    for jitter in (ColorJitter(0.4, 0.4, 0.4, p=0.5), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)):
        factors, order, changed = jitter.parameters(torch.rand(16, jitter.draws, generator=generator))
        assert 0 < int(changed.sum()) < 16
        images = pictures(16, 9, 11, generator)
        check(images, factors, order, changed)
        check(images.contiguous(memory_format=torch.channels_last), factors, order.T.contiguous().T, changed)
    assert jittered_by_kernels(images[:0], factors[:0], order[:0], changed[:0]).shape == (0, 3, 9, 11)
    print("the same")


if __name__ == "__main__":
    main()

"""A batch of small images in one launch: gathered, cropped, flipped, normalised.

torch needs fifty launches for it, each shorter than the time to launch it. Draws and roundings are the same, so the
result is the same bit for bit.
"""

import torch
from torch import Tensor

from longtail.data import Resident
from longtail.data.augment import Augmentation, Compose, Normalise, RandomCrop, RandomFlip
from longtail.data.augment.augmentation import check_size
from longtail.kernels.images import gather_batch

_ELEMENTS = 1024


def can_gather(view: Augmentation, pixels: Tensor) -> bool:
    """Whether a view is what the kernel does: pad and crop, perhaps flip, normalise."""
    if not isinstance(view, Compose) or pixels.dtype != torch.uint8 or pixels.ndim != 4:
        return False
    kinds = tuple(type(part) for part in view.augmentations)
    return kinds in {(RandomCrop, Normalise), (RandomCrop, RandomFlip, Normalise)}


class Gathering:
    """The batches of a loader with one view that :func:`can_gather`, made by one launch each.

    ``order`` and ``uniforms`` have a row per sample of the epoch; ``row``, a scalar on the device, is where a batch
    begins.
    """

    def __init__(
        self, loader: Resident, order: Tensor, uniforms: Tensor, row: Tensor, memory_format: torch.memory_format
    ) -> None:
        view = loader.plan.views[0]
        assert isinstance(view, Compose)
        crop, *flip, normalise = view.augmentations
        assert isinstance(crop, RandomCrop)
        self.pixels, self.labels = loader.pixels.contiguous(), loader.labels
        self.order, self.uniforms, self.row, self.memory_format = order, uniforms, row, memory_format
        _, self.channels, self.height, self.width = self.pixels.shape
        levels = torch.arange(256, dtype=torch.uint8, device=self.pixels.device)
        # The augmentation's own arithmetic, once for all: (C, 256).
        self.levels = normalise(levels.view(1, 1, 1, 256).expand(1, self.channels, 1, 256))[0, :, 0].contiguous()
        self.size, self.padding = check_size("size", crop.size), crop.padding
        crop.parameters(uniforms[:1], self.height, self.width)  # says what is wrong with a window that is too large
        self.p = flip[0].p if flip else None  # type: ignore[attr-defined]

    def __call__(self, size: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the next ``size`` samples."""
        (high, wide), device = self.size, self.pixels.device
        shape = (size, self.channels, high, wide)
        images = torch.empty(shape, dtype=self.levels.dtype, device=device, memory_format=self.memory_format)
        labels = torch.empty(size, dtype=self.labels.dtype, device=device)
        parts = -(-self.channels * high * wide // _ELEMENTS)
        gather_batch[(size, parts)](
            self.pixels, self.labels, self.order, self.uniforms, self.row, self.levels, images, labels,
            H=self.height, W=self.width, HO=high, WO=wide, C=self.channels, PADDING=self.padding,
            FREE_ROWS=self.height + 2 * self.padding - high + 1, FREE_COLUMNS=self.width + 2 * self.padding - wide + 1,
            DRAWS=self.uniforms.shape[1], FLIPS=self.p is not None, P=self.p or 0.0,
            LAST=self.memory_format == torch.channels_last, E=_ELEMENTS, num_warps=4,
        )  # fmt: skip
        return images, labels

"""JPEG files decoded on the GPU, where torchvision can; what it cannot goes the way of all files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longtail.data.decode import UnreadableImageError, decode

__all__ = ["decode_on", "padded", "read_bytes"]

_JPEG = b"\xff\xd8"


def read_bytes(path: Path) -> Tensor:
    """A file as it is, uint8; empty where it cannot be read, which :func:`decode_on` then reports."""
    try:
        return torch.from_numpy(np.fromfile(path, dtype=np.uint8))
    except OSError:
        return torch.empty(0, dtype=torch.uint8)


def decode_on(
    device: torch.device, files: Sequence[Tensor], paths: Sequence[Path]
) -> list[Tensor | UnreadableImageError]:
    """Files as RGB pixels on a device, uint8 ``(3, height, width)``, or why not.

    JPEGs are decoded there in one call; nvJPEG and the CPU's decoder differ by a few levels a pixel. Where the call
    fails, and for other formats, each file is decoded on the CPU, which says which it is and what is wrong with it.

    Args:
        device: a CUDA device.
        files: what :func:`read_bytes` gave.
        paths: where they came from.
    """
    decoded: dict[int, Tensor] = {}
    jpegs = [i for i, file in enumerate(files) if bytes(file[:2].numpy()) == _JPEG] if device.type == "cuda" else []
    if jpegs:
        from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415 - an extra

        try:
            images = decode_jpeg([files[i] for i in jpegs], mode=ImageReadMode.RGB, device=device)
            decoded = dict(zip(jpegs, images, strict=True))
        except RuntimeError:  # one of them is damaged: which, the CPU tells
            decoded = {}
    return [decoded[i] if i in decoded else _on_cpu(path, device) for i, path in enumerate(paths)]


def _on_cpu(path: Path, device: torch.device) -> Tensor | UnreadableImageError:
    try:
        return decode(path).to(device, non_blocking=True)
    except UnreadableImageError as error:
        return error


def padded(images: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Images of different sizes in one batch, black beyond their right and lower ends.

    Returns:
        the batch, ``(B, channels, height, width)`` of the largest sides, and the images' heights and widths, ``(B,)``.

    Example:
        >>> batch, heights, widths = padded([torch.ones(3, 2, 5), torch.ones(3, 4, 3)])
        >>> batch.shape, heights, widths
        (torch.Size([2, 3, 4, 5]), tensor([2, 4]), tensor([5, 3]))
    """
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    sizes = torch.tensor([image.shape[1:] for image in images]).to(batch.device, non_blocking=True)
    return batch, sizes[:, 0], sizes[:, 1]

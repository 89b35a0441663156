"""Mixup and CutMix: what is drawn for each step, and how it mixes a batch with itself in reverse order."""

import torch
from torch import Tensor

from longtail._io import import_extra
from longtail.data import Draws

_MIXUP_STREAM = 2**24 - 1  # the last one; views use the first ones
_CUTMIX_STREAM = 2**24 - 2


def mixed_shares(seed: int, epoch: int, alpha: float, steps: int) -> Tensor | None:
    """The weight of an image in the mixup of each step, drawn from Beta(alpha, alpha); ``None`` for alpha 0."""
    if not alpha:
        return None
    uniforms = Draws(seed, epoch).uniforms(0, steps, 1, stream=_MIXUP_STREAM)[:, 0]
    return _beta(alpha, uniforms)


def mixed_rows(seed: int, epoch: int, mixup: float, cutmix: float, steps: int) -> Tensor | None:
    """What mixes the batch of each step; ``None`` if nothing does.

    With mixup alone, the weights of :func:`mixed_shares`, shape ``(steps,)``. With CutMix (Yun et al., 2019) rows of
    five numbers: the weight of an image outside the box, then top, bottom, left and right of the box as fractions of
    the sides. The other image fills the box. With both, each step has one of the two, with equal probability.
    """
    shares = mixed_shares(seed, epoch, mixup, steps)
    if not cutmix:
        return shares
    choice, kept, *centre = Draws(seed, epoch).uniforms(0, steps, 4, stream=_CUTMIX_STREAM).unbind(1)
    half = (1 - _beta(cutmix, kept)).sqrt() / 2
    edges = [(place + sign * half).clamp(0, 1) for place in centre for sign in (-1, 1)]
    rows = torch.stack([torch.ones_like(half), *edges], 1)
    if shares is None:
        return rows
    mixups = torch.cat([shares[:, None], torch.zeros(steps, 4)], 1)
    return torch.where(choice[:, None] < 0.5, mixups, rows)


def _beta(alpha: float, uniforms: Tensor) -> Tensor:
    betaincinv = import_extra("scipy.special", "train").betaincinv
    return torch.from_numpy(betaincinv(alpha, alpha, uniforms.double().numpy())).float()


def _box(row: Tensor, height: int, width: int) -> Tensor:
    """Whether a pixel, by its centre, is in the box, ``(height, width)``."""
    inside = []
    for side, low, high in ((height, row[1], row[2]), (width, row[3], row[4])):
        places = (torch.arange(side, device=row.device) + 0.5) / side
        inside.append((places >= low) & (places < high))
    return inside[0][:, None] & inside[1]


def share_of(row: Tensor, images: Tensor) -> Tensor:
    """The weight of an image's own label: the share of its pixels in the mixed image."""
    return row if row.ndim == 0 else row[0] * (1 - _box(row, *images.shape[-2:]).float().mean())


def mix_images(images: Tensor, row: Tensor) -> Tensor:
    """The first image mixed with the last, and so on."""
    other = images.flip(0)
    weight = (row if row.ndim == 0 else row[0]).to(images.dtype)
    mixed = weight * images + (1 - weight) * other
    return mixed if row.ndim == 0 else torch.where(_box(row, *images.shape[-2:]), other, mixed)

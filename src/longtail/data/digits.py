"""digits-lt: the handwritten digits that come with scikit-learn, made long-tailed. Needs ``longtail[data]``."""

from typing import NamedTuple

import torch
from torch import Tensor

from longtail.classes import Groups, class_counts
from longtail.data.long_tail import long_tail_counts, long_tail_indices

__all__ = ["DigitsLT", "digits_lt"]


class DigitsLT(NamedTuple):
    """Long-tailed digits: images are float32 in [0, 1], shape ``(N, 1, 8, 8)``."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    counts: Tensor
    """Training images of each digit."""
    groups: Groups
    """Digits 0-2, 3-5 and 6-9, as the paper cuts CIFAR-10."""


def digits_lt(imbalance_factor: float = 50, test_per_class: int = 50, subset_seed: int = 0) -> DigitsLT:
    """The 1797 digits of scikit-learn: the last ones of each to test on, a long-tailed subset of the rest to train on.

    The digits come writer after writer, so the last ones are mostly of people whom the model has not seen.

    Args:
        imbalance_factor: how many times rarer the 9 is than the 0.
        test_per_class: test images of each digit.
        subset_seed: chooses the training subset, apart from any training seed. The test images are always the same.

    Example:
        >>> digits = digits_lt()
        >>> digits.counts
        tensor([124,  80,  51,  33,  21,  14,   9,   5,   3,   2])
        >>> digits.test_images.shape
        torch.Size([500, 1, 8, 8])
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("digits-lt comes with scikit-learn: pip install 'longtail[data]'.") from error
    if not 1 <= test_per_class <= 100:
        raise ValueError(f"Expected `test_per_class` to be in 1…100, but got {test_per_class}.")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)
    labels = torch.tensor(digits.target)
    by_class = [(labels == c).nonzero().flatten() for c in range(10)]
    test = torch.cat([indices[-test_per_class:] for indices in by_class])
    pool = torch.cat([indices[:-test_per_class] for indices in by_class])
    largest = int(class_counts(labels[pool], 10).min())
    train = pool[long_tail_indices(labels[pool], long_tail_counts(10, largest, imbalance_factor), subset_seed)]
    return DigitsLT(
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        counts=class_counts(labels[train], 10),
        groups=Groups.from_indices(head=range(3), medium=range(3, 6), tail=range(6, 10)),
    )

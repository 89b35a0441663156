"""Long-tailing: from a data set to a subset of it whose class counts fall off exponentially."""

import numpy as np
import torch
from torch import Tensor

from longtail._arguments import Vector, as_counts, check_number
from longtail.classes import class_counts

__all__ = ["long_tail_counts", "long_tail_indices"]


def long_tail_counts(num_classes: int, largest: int, imbalance_factor: float) -> Tensor:
    r"""Class counts of the *exp* profile (Cao et al., 2019), largest class first.

    .. math:: N_c = \lfloor N_{max} \cdot IF^{-c / (C - 1)} \rfloor

    Args:
        num_classes: how many classes there are.
        largest: examples in the largest class.
        imbalance_factor: how many times the smallest class is smaller, >= 1.

    Returns:
        int64 counts of shape ``(num_classes,)``.

    Example:
        >>> long_tail_counts(10, 5000, imbalance_factor=100)  # CIFAR-10-LT
        tensor([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    """
    imbalance_factor = check_number("imbalance_factor", imbalance_factor, minimum=1.0)
    last = max(num_classes - 1, 1)
    return torch.tensor([int(largest * imbalance_factor ** (-c / last)) for c in range(num_classes)])


def long_tail_indices(labels: Vector, counts: Vector, seed: int = 0) -> Tensor:
    """Indices of a subset with ``counts`` examples a class, chosen as the literature chooses CIFAR-LT.

    One ``numpy.random.RandomState(seed)`` shuffles the indices of each class in label order; the first ones are kept.

    Args:
        labels: class index of each example.
        counts: how many to keep of each class.
        seed: the literature's is 0.

    Returns:
        int64 indices, class by class.

    Example:
        >>> long_tail_indices([0, 0, 0, 1, 1, 1], counts=[3, 1]).tolist()
        [2, 1, 0, 5]
    """
    wanted = as_counts(counts)
    available = class_counts(labels, wanted.numel())
    short = (available < wanted).nonzero().flatten().tolist()
    if short:
        c = short[0]
        raise ValueError(f"Expected at least {wanted[c]} examples of class {c}, but got {available[c]}.")
    label = np.asarray(labels)
    random = np.random.RandomState(seed)  # the literature's generator
    kept = []
    for c, count in enumerate(wanted.tolist()):
        indices = np.flatnonzero(label == c)
        random.shuffle(indices)
        kept.append(indices[:count])
    return torch.tensor(np.concatenate(kept))

"""Long-tailed class counts, and the subset of a data set that has them."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from longtail._checks import Vector, as_counts, check_choice, check_integer, check_number
from longtail.classes import class_counts

Profile = Literal["exp", "step", "pareto"]


def long_tail_counts(
    num_classes: int,
    largest: int,
    imbalance_factor: float,
    *,
    profile: Profile = "exp",
) -> Tensor:
    r"""Return the class counts of a long-tailed profile.

    For class :math:`k = 0, 1, …`, from the most to the least frequent,

    .. math:: N = \lfloor N_{max} \cdot IF^{-k / (C - 1)} \rfloor \;\text{(exp)}, \qquad
              N = \lfloor N_{max} \cdot (k + 1)^{-\log IF / \log C} \rfloor \;\text{(pareto)},

    and for *step* the first half of the classes has :math:`N_{max}`, the others :math:`\lfloor N_{max} / IF \rfloor`.

    Args:
        num_classes: number of classes.
        largest: examples in the largest class.
        imbalance_factor: size of the largest class over that of the smallest, >= 1.
        profile: ``"exp"`` (Cao et al., 2019; used in the paper), ``"step"`` or ``"pareto"`` (a power of the rank).

    Returns:
        int64 counts of shape ``(num_classes,)``.

    Example:
        >>> long_tail_counts(10, 5000, imbalance_factor=100)  # CIFAR-10-LT
        tensor([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
        >>> long_tail_counts(4, 100, imbalance_factor=10, profile="step")
        tensor([100, 100,  10,  10])
    """
    num_classes = check_integer("num_classes", num_classes, minimum=1)
    largest = check_integer("largest", largest, minimum=1)
    imbalance_factor = check_number("imbalance_factor", imbalance_factor, minimum=1.0)
    check_choice("profile", profile, Profile)
    places = range(num_classes)
    if profile == "exp":
        counts = [int(largest * imbalance_factor ** (-k / max(num_classes - 1, 1))) for k in places]
    elif profile == "step":
        counts = [largest if 2 * k < num_classes else int(largest / imbalance_factor) for k in places]
    else:
        power = math.log(imbalance_factor) / math.log(num_classes) if num_classes > 1 else 0.0
        counts = [int(largest * (k + 1) ** -power + 1e-9) for k in places]
    return torch.tensor(counts)


def long_tail_indices(labels: Vector, counts: Vector, seed: int = 0) -> Tensor:
    """Return the indices of a subset with ``counts`` examples per class, chosen like CIFAR-LT in the literature.

    One ``numpy.random.RandomState(seed)`` shuffles the indices of each class in label order; the first ones are kept.
    The literature uses seed 0.

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
    random = np.random.RandomState(seed)  # the generator of the literature
    kept = []
    for indices, count in zip(indices_by_class(labels, available), wanted.tolist(), strict=True):
        random.shuffle(indices)
        kept.append(indices[:count])
    return torch.tensor(np.concatenate(kept))


def indices_by_class(labels: Vector, counts: Tensor) -> list[np.ndarray]:
    """Return the ascending indices of the examples of each class."""
    by_class = np.argsort(np.asarray(labels), kind="stable")
    return np.split(by_class, counts.cumsum(0)[:-1].numpy())

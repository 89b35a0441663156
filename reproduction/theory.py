r"""The paper's statements as functions, in their exact forms (its text approximates some of them).

Counts are :math:`N_c`, their sum is :math:`N`, the number of classes is :math:`C`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import Vector, along_classes, as_vector, check_logits, check_number, class_dim, positive_counts
from longtail.losses.softmax import prior_shift

__all__ = ["balanced_model_shift", "imbalanced_model_shift", "initial_gradient", "two_prior_softmax"]


def initial_gradient(counts: Vector, beta: float = 0.0) -> Tensor:
    r"""Reward minus penalty per class before the first step, for any beta (theorem 1 of the paper has beta 0).

    .. math:: \Delta^{grad}_c = \upsilon \left( N_c - N \frac{N_c^\beta}{\sum_d N_d^\beta} \right)

    for a model with equal logits and features :math:`h_{ni} = \upsilon`, here 1. At :math:`\beta = 0` it is
    proportional to :math:`C N_c - N`, at 1 it vanishes, above 1 it favours the tail.

    Args:
        counts: training examples per class, shape ``(C,)``.
        beta: of the loss, >= 0.

    Returns:
        float64 ``(C,)``.

    Example:
        >>> initial_gradient([90, 10])
        tensor([ 40., -40.], dtype=torch.float64)
        >>> initial_gradient([90, 10], beta=2.0)
        tensor([-8.7805,  8.7805], dtype=torch.float64)
    """
    beta = check_number("beta", beta)
    number = positive_counts(counts).to("cpu", torch.float64)
    return number - number.sum() * F.softmax(beta * number.log(), 0)


def balanced_model_shift(counts: Vector, epsilon: float) -> Tensor:
    r"""p(y=c) - N_c / N of an ideally balanced model on imbalanced data (theorem 3, without its approximations).

    .. math:: p(y=c) - \frac{N_c}{N} = \epsilon \frac{N - C N_c}{N (C - 1)}

    for a model that gives the true class :math:`1 - \epsilon` and the other classes equal shares of :math:`\epsilon`.
    Negative for head classes (:math:`C N_c > N`), positive for tail classes.

    Args:
        counts: training examples per class, shape ``(C,)``, of two classes or more.
        epsilon: the model's error, in [0, 1].

    Returns:
        float64 ``(C,)``.

    Example:
        >>> balanced_model_shift([90, 10], epsilon=0.1)
        tensor([-0.0800,  0.0800], dtype=torch.float64)
    """
    epsilon = check_number("epsilon", epsilon)
    number = positive_counts(counts)
    return imbalanced_model_shift(number, [epsilon] * number.numel())


def imbalanced_model_shift(counts: Vector, epsilon: Vector) -> Tensor:
    r"""p̂(y=c) - N_c / N of a model whose error differs by class (the paper's appendix D, exact).

    .. math:: \hat p(y=c) - \frac{N_c}{N} = \frac{1}{N} \left( \frac{\sum_{d \ne c} N_d \epsilon_d}{C - 1}
              - N_c \epsilon_c \right)

    for a model that gives samples of class c the probability :math:`1 - \epsilon_c` for c and equal shares for the
    other classes. It is positive exactly when :math:`N_c \epsilon_c` is below the mean of :math:`N_d \epsilon_d` over
    the other classes; that head classes have smaller :math:`\epsilon_c` does not suffice.

    Args:
        counts: training examples per class, shape ``(C,)``, of two classes or more.
        epsilon: the model's error per class, shape ``(C,)``, in [0, 1].

    Returns:
        float64 ``(C,)``.

    Example:
        >>> imbalanced_model_shift([90, 10], [0.01, 0.3])
        tensor([ 0.0210, -0.0210], dtype=torch.float64)
    """
    number = positive_counts(counts).to("cpu", torch.float64)
    error = as_vector("epsilon", epsilon, number.numel()).to("cpu", torch.float64)
    if number.numel() < 2:
        raise ValueError("Expected `counts` to have two classes or more, but got 1: there is no other class to err to.")
    wrong = error[~((error >= 0) & (error <= 1))]
    if wrong.numel():
        raise ValueError(f"Expected `epsilon` to be in [0, 1], but got {wrong[0].item():g}.")
    missed = number * error
    others = (missed.sum() - missed) / (number.numel() - 1)
    return (others - missed) / number.sum()


def two_prior_softmax(logits: Tensor, p_hat: Vector, p: Vector) -> Tensor:
    r"""The probabilities of model B if those of model A, with the same logits, are their softmax (theorem 2).

    .. math:: \hat\phi_{nc} = \frac{\frac{\hat p(y=c)}{p(y=c)} e^{z_{nc}}}
              {\sum_d \frac{\hat p(y=d)}{p(y=d)} e^{z_{nd}}}

    Args:
        logits: shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        p_hat: class probabilities of model B, ``(C,)``, > 0, up to a constant factor.
        p: class probabilities of model A, likewise.

    Returns:
        probabilities of the logits' shape; the ratio of the priors is held in float32.

    Example:
        >>> two_prior_softmax(torch.tensor([[0.0, 0.0]]), p_hat=[0.9, 0.1], p=[0.5, 0.5])
        tensor([[0.9000, 0.1000]])
    """
    shift = prior_shift(p_hat, p)
    check_logits(logits, shift.numel(), of="p_hat")
    return F.softmax(logits + along_classes(shift.to(logits.device), logits), class_dim(logits))

"""Corrections of a trained classifier: logit adjustment, a known target prior, tau-normalisation."""

import math
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from longtail._checks import (
    Vector,
    ZeroCounts,
    along_classes,
    as_distribution,
    as_vector,
    check_logits,
    check_no_probabilities,
    check_number,
    describe,
    shown,
    training_counts,
)

__all__ = ["adjust_logits", "tau_normalize", "tau_normalize_logits"]

TAUS = tuple(tenth / 10 for tenth in range(21))
"""Strengths that a search tries: 0 to 2 in steps of 0.1."""


def adjust_logits(
    logits: Tensor | np.ndarray[Any, Any],
    counts: Vector,
    tau: float,
    *,
    target_prior: Vector | None = None,
    zero_counts: ZeroCounts = "error",
) -> Tensor:
    r"""Return logits adjusted after training (Menon et al., 2021) to a balanced or any known test distribution.

    .. math:: z'_c = z_c - \tau \log \pi_c + \log q_c, \qquad \pi_c = N_c / N

    with the class prior :math:`\pi` of the training data and the target prior :math:`q` (uniform by default, which
    changes nothing). Use it for a model trained with plain softmax. A model trained with a shifted loss is adjusted
    already: use ``tau=0`` and a target prior, if one is known, or measure what is left with :func:`longtail.fit_shift`.

    Args:
        logits: shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``; logarithms of probabilities are logits too.
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        tau: how strongly to adjust; 1 is the paper's "Adjust logit", and :func:`longtail.fit_shift` measures what
            held-out data needs. A negative number favours frequent classes.
        target_prior: class probabilities where the model will be used, up to a constant factor. A class with
            probability 0 is never predicted: its logit becomes -inf.
        zero_counts: how to treat a class without examples: ``"error"``, ``"mask"`` (never predicted: its logit becomes
            -inf) or count it as ``"one"``.

    Returns:
        adjusted logits of the logits' shape, float32 (float64 for float64 logits).

    Example:
        >>> logits = torch.tensor([[2.0, 1.0]])
        >>> adjust_logits(logits, [90, 10], tau=1.0)
        tensor([[2.1054, 3.3026]])
        >>> adjust_logits(logits, [90, 10], tau=1.0, target_prior=[0.9, 0.1])
        tensor([[2., 1.]])
    """
    tau = check_number("tau", tau, minimum=-math.inf)
    counts = training_counts(counts, zero_counts).cpu()
    logits = torch.from_numpy(logits) if isinstance(logits, np.ndarray) else logits
    check_logits(logits, counts.numel())
    if logits.ndim == 2 and logits.device.type == "cpu" and not (logits.requires_grad or torch.compiler.is_compiling()):
        check_no_probabilities(logits)
    number = counts.to(torch.float64)
    # 0 * log 0 is NaN, so masked classes are treated separately for every tau.
    adjustment = torch.where(number > 0, -tau * (number / number.sum()).log(), 0.0)
    if target_prior is not None:
        prior = as_distribution("target_prior", target_prior, counts.numel(), zeros=True).cpu()
        adjustment = adjustment + (prior / prior.sum()).log()
    adjustment = adjustment.where(number > 0, -torch.inf).to(logits.device, torch.float32)
    return logits + along_classes(adjustment, logits)


@overload
def tau_normalize(classifier: Tensor, tau: float) -> Tensor: ...
@overload
def tau_normalize(classifier: nn.Linear, tau: float) -> nn.Linear: ...
def tau_normalize(classifier: Tensor | nn.Linear, tau: float) -> Tensor | nn.Linear:
    r"""Tau-normalisation (Kang et al., 2020): divide each class weight by a power of its norm and drop the bias.

    .. math:: w'_c = w_c / \lVert w_c \rVert^\tau

    Args:
        classifier: a weight matrix of shape ``(C, D)``, or the ``nn.Linear`` that holds it.
        tau: 0 leaves the weights as they are, 1 makes all norms one.

    Returns:
        a new matrix, or a new ``nn.Linear`` without bias; the input does not change. A weight of zero stays zero.

    Example:
        >>> tau_normalize(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), tau=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 1.0000]])
    """
    tau = check_number("tau", tau)
    if isinstance(classifier, nn.Linear):
        # On the meta device, because initial weights would draw random numbers.
        linear = nn.Linear(classifier.in_features, classifier.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(tau_normalize(classifier.weight.detach(), tau))
        return linear.train(classifier.training)
    if not isinstance(classifier, Tensor) or classifier.ndim != 2 or not classifier.is_floating_point():
        raise TypeError(
            f"Expected `classifier` to be an nn.Linear or a floating-point matrix, but got {describe(classifier)}."
        )
    norms = torch.linalg.vector_norm(classifier, dim=1, keepdim=True)
    return classifier / _power(norms, tau)


def tau_normalize_logits(logits: Tensor, bias: Vector | None, norms: Vector, tau: float) -> Tensor:
    r"""Tau-normalisation from stored logits, without the features: :math:`z'_c = (z_c - b_c) / \lVert w_c \rVert^\tau`.

    Args:
        logits: logits of a linear classifier, shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        bias: its :math:`b_c`, shape ``(C,)``, or ``None`` if it has none.
        norms: its :math:`\lVert w_c \rVert`, shape ``(C,)``.
        tau: as in :func:`tau_normalize`.

    Returns:
        logits of the tau-normalised classifier, float32 (float64 for float64 logits).

    Example:
        >>> tau_normalize_logits(torch.tensor([[6.0, 2.0]]), bias=[1.0, 1.0], norms=[5.0, 0.5], tau=1.0)
        tensor([[1., 2.]])
    """
    tau = check_number("tau", tau)
    lengths = as_vector("norms", norms)
    check_logits(logits, lengths.numel(), of="norms")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    wrong = ~(lengths.isfinite() & (lengths >= 0))
    if wrong.any():
        raise ValueError(f"Expected `norms` to hold finite numbers >= 0, but got {shown(lengths[wrong].tolist())}.")
    if bias is not None:
        offset = as_vector("bias", bias, lengths.numel())
        logits = logits - along_classes(offset.to(logits.device, dtype), logits)
    return logits / along_classes(_power(lengths.to(logits.device, dtype), tau), logits)


def _power(norms: Tensor, tau: float) -> Tensor:
    """``norms ** tau``, with 1 for a norm of zero, so that a zero weight stays zero."""
    return torch.where(norms > 0, norms, 1.0) ** tau

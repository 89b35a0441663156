r"""The normaliser of the von Mises-Fisher distribution, at a cost that does not grow with the dimension.

The density of a unit vector :math:`z` in :math:`p` dimensions is :math:`C_p(\kappa) e^{\kappa \mu \cdot z}` with

.. math:: \log C_p(\kappa) = \nu \log \kappa - \log I_\nu(\kappa) - \tfrac p2 \log 2 \pi, \qquad \nu = \tfrac p2 - 1.

What is computed is :math:`F(\kappa) = \log I_\nu(\kappa) - \nu \log \kappa`, by the expansion of :math:`I_\nu(\nu x)`
that holds for large orders uniformly in :math:`x` (Debye; DLMF 10.41.3). With :math:`s = \sqrt{\nu^2 + \kappa^2}` and
:math:`t = \nu / s` it reads

.. math:: F(\kappa) = s - \nu \log(\nu + s) - \tfrac12 \log(2 \pi s) + \sum_{k=1}^K \nu^{-k} D_k(t),

which has no :math:`\log \kappa`, so that :math:`\kappa = 0` is nothing special. :math:`D_k` are polynomials, those of
the logarithm of DLMF's series. Few terms are needed, fewer the larger the order: as many as make the first one left out
at most 1e-8 (:math:`K = 3` for 128 dimensions, 2 for 1024). Orders below 12 are stepped down to from one above by
:math:`I_\nu = I_{\nu+1} (2 (\nu + 1) / \kappa + I_{\nu+2} / I_{\nu+1})`.

Errors, as tested against mpmath for 2 to 1024 dimensions and concentrations from 0 to 1e5: 1e-8, absolute in
:math:`\log C_p`, relative in :math:`I_{\nu+1} / I_\nu`. Everything is in float64, for :math:`\log C_p` is as large as
:math:`\kappa` and what is wanted of it are differences of some units. A GPU has 64 times less float64 than float32
arithmetic at worst, which here is still less than the time that the numbers take to come from memory.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longtail._checks import check_integer, told

__all__ = ["vmf_log_normalizer", "vmf_mean_length"]

ERROR = 1e-8
"""The largest term that is left out, unless more is allowed."""

# Row k - 1: the coefficients of t^k, t^(k+2), …, t^(3k) in D_k. From U_(k+1) = t²(1-t²)/2 U_k' + ∫(1-5t²)/8 U_k (DLMF
# 10.41.9) and log Σ U_k / nu^k = Σ D_k / nu^k.
_TERMS = (
    (1 / 8, -5 / 24),
    (1 / 16, -3 / 8, 5 / 16),
    (25 / 384, -531 / 640, 221 / 128, -1105 / 1152),
    (13 / 128, -71 / 32, 531 / 64, -339 / 32, 565 / 128),
    (1073 / 5120, -50049 / 7168, 186821 / 4608, -44899 / 512, 82825 / 1024, -82825 / 3072),
    (103 / 192, -405 / 16, 1677 / 8, -5389 / 8, 65385 / 64, -11805 / 16, 19675 / 96),
)
_LARGEST = (0.0329, 0.0152, 0.0197, 0.0200, 0.0398, 0.0646)
"""Entry k - 1: the largest \\|D_(k+1)(t)\\| for t in [0, 1]: times nu^-(k+1), the error with k terms."""

_SMALLEST_ORDER = 12.0
"""From here on six terms are enough."""


def _coefficients(order: float, error: float) -> list[float]:
    """Those of t, t², … in the sum over D_k / order^k."""
    terms = 1
    while terms < len(_TERMS) and _LARGEST[terms - 1] / order ** (terms + 1) > error:
        terms += 1
    coefficients = [0.0] * (3 * terms)
    for k in range(1, terms + 1):
        for j, coefficient in enumerate(_TERMS[k - 1]):
            coefficients[k + 2 * j - 1] += coefficient / order**k
    return coefficients


def _polynomial(coefficients: list[float], t: Tensor) -> Tensor:
    """The sum over c_n t^n, n = 1, 2, …"""
    value = t * coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value.add_(coefficient).mul_(t)
    return value


def log_bessel(
    square: Tensor, order: float, *, slope: bool = True, error: float = ERROR
) -> tuple[Tensor, Tensor | None]:
    r"""The function of the module's text in terms of :math:`x = \kappa^2`, where it is smooth; not differentiable.

    Args:
        square: :math:`x \ge 0`, float64, any shape.
        order: :math:`\nu \ge 0`.
        slope: whether the second result is wanted.
        error: the largest term that may be left out.

    Returns:
        :math:`\log I_\nu(\sqrt x) - \nu \log \sqrt x + \frac12 \log 2 \pi` (the constant is one pass less), and
        :math:`I_{\nu+1}(\sqrt x) / (\sqrt x I_\nu(\sqrt x))`, which is twice its derivative and
        :math:`1 / (2 \nu + 2)` at 0.
    """
    steps = max(0, math.ceil(_SMALLEST_ORDER - order))
    top = order + steps
    s = (square + top**2).sqrt_()
    t = top / s
    coefficients = _coefficients(top, error)
    beyond = s + top
    value = s.sub(beyond.log(), alpha=top).sub_(s.log(), alpha=0.5).add_(_polynomial(coefficients, t))
    ratio = None
    if slope or steps:
        # d/ds: s / (top + s) - (1/2 + t d/dt of the sum) / s; and 2 dx = 4 s ds
        falling = _polynomial([(n + 1) * c for n, c in enumerate(coefficients)], t).add_(0.5)
        ratio = beyond.reciprocal_().addcdiv_(falling, s.square_(), value=-1)
    for step in range(steps):
        assert ratio is not None
        lower = (square * ratio).add_(2 * (top - step))
        value.add_(lower.log())
        ratio = lower.reciprocal_()
    return value, ratio


class _LogBessel(torch.autograd.Function):
    """:func:`log_bessel` of the root, with a derivative."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float) -> Tensor:
        value, ratio = log_bessel(kappa.square(), order)
        assert ratio is not None
        ctx.save_for_backward(ratio.mul_(kappa))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return grad * ratio, None


def _check(kappa: object, dim: object) -> tuple[Tensor, float]:
    """The concentration as float64, and the order."""
    if not isinstance(kappa, Tensor) or not kappa.is_floating_point():
        raise TypeError(f"Expected `kappa` to be a floating-point tensor, but got {told(kappa)}.")
    return kappa.double(), check_integer("dim", dim, minimum=2) / 2 - 1


def vmf_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    r"""The log of the von Mises-Fisher normaliser, :math:`\log C_p(\kappa)`; see the module's text for the method.

    .. math:: \log C_p(\kappa) = \nu \log \kappa - \log I_\nu(\kappa) - \tfrac p2 \log 2 \pi,
              \qquad \nu = \tfrac p2 - 1, \qquad \frac{d \log C_p}{d \kappa} = -\frac{I_{\nu+1}(\kappa)}{I_\nu(\kappa)}

    Args:
        kappa: concentrations >= 0, any shape.
        dim: :math:`p`, the dimension of the vectors, at least 2.

    Returns:
        float64 of the shape of ``kappa``, within 1e-8 for ``kappa`` up to 1e5; once differentiable.

    Example:
        >>> vmf_log_normalizer(torch.tensor([0.0, 10.0]), dim=3)  # 1 / (4 pi) where all directions are alike
        tensor([-2.5310, -9.5353], dtype=torch.float64)
    """
    concentration, order = _check(kappa, dim)
    value: Tensor = _LogBessel.apply(concentration, order)
    return -value - (order + 0.5) * math.log(2 * math.pi)


def vmf_mean_length(kappa: Tensor, dim: int) -> Tensor:
    r"""How long the mean of von Mises-Fisher vectors is, :math:`A_p(\kappa) = I_{p/2}(\kappa) / I_{p/2-1}(\kappa)`.

    Args:
        kappa: concentrations >= 0, any shape.
        dim: :math:`p`, the dimension of the vectors, at least 2.

    Returns:
        float64 of the shape of ``kappa``, in [0, 1); not differentiable.

    Example:
        >>> vmf_mean_length(torch.tensor([0.0, 10.0, 1000.0]), dim=3)  # coth(kappa) - 1 / kappa
        tensor([0.0000, 0.9000, 0.9990], dtype=torch.float64)
    """
    concentration, order = _check(kappa, dim)
    concentration = concentration.detach()
    _, ratio = log_bessel(concentration.square(), order)
    assert ratio is not None
    return ratio.mul_(concentration)

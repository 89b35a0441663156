r"""The logarithm of the Bessel function in the von Mises-Fisher normaliser, at a cost independent of the dimension.

The density of a unit vector :math:`z` in :math:`p` dimensions is :math:`C_p(\kappa) e^{\kappa \mu \cdot z}` with

.. math:: \log C_p(\kappa) = \nu \log \kappa - \log I_\nu(\kappa) - \tfrac p2 \log 2 \pi, \qquad \nu = \tfrac p2 - 1.

This module computes :math:`F(\kappa) = \log I_\nu(\kappa) - \nu \log \kappa` with the expansion of
:math:`I_\nu(\nu x)` for large orders, which is uniform in :math:`x` (Debye; DLMF 10.41.3). With
:math:`s = \sqrt{\nu^2 + \kappa^2}` and :math:`t = \nu / s` it is

.. math:: F(\kappa) = s - \nu \log(\nu + s) - \tfrac12 \log(2 \pi s) + \sum_{k=1}^K \nu^{-k} D_k(t),

which has no :math:`\log \kappa`, so :math:`\kappa = 0` needs no special case. The polynomials :math:`D_k` are those of
the logarithm of DLMF's series. :math:`K` is chosen so that the first omitted term is at most 1e-8 (3 terms for 128
dimensions, 2 for 1024). For orders below 12 a larger order is computed first and stepped down with
:math:`I_\nu = I_{\nu+1} (2 (\nu + 1) / \kappa + I_{\nu+2} / I_{\nu+1})`.

Errors, tested against mpmath for 2 to 1024 dimensions and concentrations from 0 to 1e5: 1e-8, absolute in
:math:`\log C_p`, relative in :math:`I_{\nu+1} / I_\nu`. All of it is float64, because :math:`\log C_p` is as large as
:math:`\kappa` and only differences of a few units matter. A GPU has up to 64 times less float64 than float32
arithmetic, but here memory traffic still takes longer.
"""

import math

from torch import Tensor

ERROR = 1e-8
"""The largest term that is left out by default."""

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
"""Six terms are enough for this order and above."""


def _coefficients(order: float, error: float) -> list[float]:
    """Coefficients of t, t², … in the sum over D_k / order^k."""
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
    r"""The function above in terms of :math:`x = \kappa^2`, where it is smooth, and its slope. Not differentiable.

    Args:
        square: :math:`x \ge 0`, float64, any shape.
        order: :math:`\nu \ge 0`.
        slope: whether to compute the slope.
        error: the largest term that may be left out.

    Returns:
        :math:`\log I_\nu(\sqrt x) - \nu \log \sqrt x + \frac12 \log 2 \pi` (leaving out the constant saves a pass), and
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

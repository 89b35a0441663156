"""The von Mises-Fisher normaliser against mpmath and scipy, its derivative, its limits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import gammaln, ive
from tests.losses.reference import array
from torch import Tensor

from longtail.losses import bessel
from longtail.losses.bessel import log_bessel

DIMS = [2, 3, 25, 26, 128, 1024]
KAPPAS = [*np.logspace(-3, 5, 17), 5.0, 30.0, 300.0, 511.0]
every_dim = pytest.mark.parametrize("dim", DIMS)


def exact(dim: int, kappa: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """log C_p and A_p to forty digits."""
    with mpmath.workdps(40):
        order, k = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        low, high = mpmath.besseli(order, k), mpmath.besseli(order + 1, k)
        return order * mpmath.log(k) - mpmath.log(low) - mpmath.mpf(dim) / 2 * mpmath.log(2 * mpmath.pi), high / low


def kappas(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def vmf_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    return -log_bessel(kappa.square(), dim / 2 - 1)[0] - (dim - 1) / 2 * math.log(2 * math.pi)


def vmf_mean_length(kappa: Tensor, dim: int) -> Tensor:
    ratio = log_bessel(kappa.square(), dim / 2 - 1)[1]
    assert ratio is not None
    return ratio * kappa


@every_dim
def test_against_mpmath(dim: int) -> None:
    """The stated bound, 1e-8, absolute in the log of the normaliser, relative in the mean length."""
    values, lengths = vmf_log_normalizer(kappas(*KAPPAS), dim), vmf_mean_length(kappas(*KAPPAS), dim)
    for kappa, value, length in zip(KAPPAS, values.tolist(), lengths.tolist(), strict=True):
        log_c, a = exact(dim, kappa)
        assert abs(value - log_c) < 1e-8, kappa
        assert abs(length / a - 1) < 1e-8, kappa


@pytest.mark.parametrize("dim", [16, 128])
def test_against_scipy(dim: int) -> None:
    """Where its scaled Bessel function neither over- nor underflows."""
    k, order = np.logspace(1, 5, 200), dim / 2 - 1
    log_c = order * np.log(k) - np.log(ive(order, k)) - k - dim / 2 * np.log(2 * np.pi)
    assert_allclose(vmf_log_normalizer(kappas(*k), dim), log_c, rtol=0, atol=1e-8)
    assert_allclose(vmf_mean_length(kappas(*k), dim), ive(order + 1, k) / ive(order, k), rtol=1e-8)


def test_closed_form_on_the_sphere() -> None:
    """In three dimensions C is kappa / (4 pi sinh kappa), A is coth kappa - 1 / kappa."""
    k = np.array([0.01, 1.0, 20.0])
    assert_allclose(vmf_log_normalizer(kappas(*k), 3), np.log(k / (4 * np.pi * np.sinh(k))), atol=1e-8)
    assert_allclose(vmf_mean_length(kappas(*k), 3), 1 / np.tanh(k) - 1 / k, rtol=1e-8)


@every_dim
def test_no_concentration(dim: int) -> None:
    """At 0 one over the area of the sphere; next to it a slope of 1 / p."""
    value = vmf_log_normalizer(kappas(0.0), dim)
    assert_allclose(value, gammaln(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi), atol=1e-8)
    assert vmf_mean_length(kappas(0.0), dim).item() == 0
    assert_allclose(vmf_mean_length(kappas(1e-6), dim), 1e-6 / dim, rtol=1e-8)


@every_dim
def test_the_slope_is_the_derivative(dim: int) -> None:
    """d log C / d kappa is minus the mean length, by central differences."""
    k = kappas(0.5, 10.0, 200.0, 5000.0)
    slope = (vmf_log_normalizer(k + 1e-3, dim) - vmf_log_normalizer(k - 1e-3, dim)) / 2e-3
    assert_allclose(slope, -vmf_mean_length(k, dim), atol=1e-5)


@every_dim
def test_the_mean_length_grows(dim: int) -> None:
    """From 0 towards 1, never there."""
    lengths = vmf_mean_length(kappas(0.0, *sorted(KAPPAS)), dim)
    assert (lengths.diff() > 0).all()
    assert (lengths < 1).all()


def test_differences_at_large_concentrations() -> None:
    """What ProCo takes of it: log C(k) - log C(k + d) is d A(k) and a bit, for k as large as may be."""
    for dim in (16, 128, 1024):
        for kappa, step in ((1e5, 10.0), (1e5, -10.0), (3e4, 1e-3), (1e3, 14.0)):
            found = vmf_log_normalizer(kappas(kappa), dim) - vmf_log_normalizer(kappas(kappa + step), dim)
            expected = exact(dim, kappa)[0] - exact(dim, kappa + step)[0]
            assert abs(found.item() - expected) < 1e-8


def test_the_polynomials() -> None:
    """The table is what the recurrence of DLMF 10.41.9 gives, and the largest values are below those stated."""
    terms = len(bessel._TERMS)
    u = [{0: Fraction(1)}]
    for _ in range(terms + 1):
        following: dict[int, Fraction] = {}
        for n, c in u[-1].items():
            for power, share in ((n + 1, Fraction(n, 2)), (n + 3, Fraction(-n, 2))):
                following[power] = following.get(power, Fraction(0)) + c * share
            for power, share in ((n + 1, Fraction(1, 8)), (n + 3, Fraction(-5, 8))):
                following[power] = following.get(power, Fraction(0)) + c * share / power
        u.append(following)
    d: list[dict[int, Fraction]] = [{}]
    for k in range(1, terms + 2):  # log of a series: k D_k = k U_k - sum over j D_j U_(k-j)
        total = {n: k * c for n, c in u[k].items()}
        for j in range(1, k):
            for n, a in d[j].items():
                for m, b in u[k - j].items():
                    total[n + m] = total.get(n + m, Fraction(0)) - j * a * b
        d.append({n: c / k for n, c in total.items() if c})
    t = np.linspace(0, 1, 2001)
    for k in range(1, terms + 1):
        assert bessel._TERMS[k - 1] == tuple(float(d[k][k + 2 * j]) for j in range(k + 1))
        largest = np.abs(sum(float(c) * t**n for n, c in d[k + 1].items())).max()
        assert largest < bessel._LARGEST[k - 1] < 1.01 * largest


def test_the_cost_does_not_grow_with_the_dimension() -> None:
    """Terms get fewer; steps are those of small orders only."""
    lengths = [len(bessel._coefficients(order, 1e-8)) for order in (12.0, 31.0, 63.0, 255.0, 511.0, 1e5)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 18
    assert lengths[-1] == 3


def test_nothing_given_is_changed() -> None:
    """Although much is computed in place; without the slope only the value is returned."""
    square = kappas(0.0, 1.0, 1e5)
    value, ratio = log_bessel(square, 7.0)
    assert square.tolist() == [0.0, 1.0, 1e5]
    assert ratio is not None
    assert log_bessel(square, 63.0, slope=False)[1] is None
    assert torch.equal(log_bessel(square, 7.0, slope=False)[0], value)
    assert log_bessel(torch.ones(0, 3, dtype=torch.float64), 7.0)[0].shape == (0, 3)


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    """The CPU's values."""
    for dim in DIMS:
        k = kappas(0.0, *KAPPAS)
        assert_allclose(array(vmf_log_normalizer(k.cuda(), dim).cpu()), array(vmf_log_normalizer(k, dim)), rtol=1e-12)
        assert_allclose(array(vmf_mean_length(k.cuda(), dim).cpu()), array(vmf_mean_length(k, dim)), rtol=1e-9)

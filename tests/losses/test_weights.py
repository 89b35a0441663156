"""Class weights from the effective number of samples, against mpmath."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses.reference import property_test, refused

from longtail.losses import effective_number_weights


def exact(counts: list[int], b: float) -> np.ndarray:
    """(1 - b) / (1 - b^N), scaled to sum C, in fifty digits."""
    with mpmath.workdps(50):
        weights = [(1 - mpmath.mpf(b)) / (1 - mpmath.mpf(b) ** n) for n in counts]
        total = mpmath.fsum(weights)
        return np.array([float(w * len(counts) / total) for w in weights])


@pytest.mark.parametrize("b", [0.0, 0.9, 0.9999, 1 - 2**-53])
def test_against_mpmath(b: float) -> None:
    """No digits are lost where b^N is near 1, or 0."""
    for counts in ([5000, 500, 50, 5], [10**9, 10**6, 1000, 1], [1, 1, 1], [10**9], [2, 10**9, 3]):
        weights = effective_number_weights(counts, b)
        assert weights.dtype == torch.float32
        assert_allclose(weights, exact(counts, b), rtol=1e-6, atol=0)


@property_test
@given(
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=20),
    b=st.floats(0, 1, exclude_max=True, allow_subnormal=False),
)
def test_properties(counts: list[int], b: float) -> None:
    """They sum to C, are positive, and never larger for a larger class."""
    weights = effective_number_weights(counts, b)
    assert_allclose(weights.double().sum(), len(counts), rtol=1e-6)
    assert (weights > 0).all()
    assert_allclose(weights, exact(counts, b), rtol=1e-5)
    order = np.argsort(counts)
    assert (weights[torch.tensor(order)].diff() <= 0).all()


def test_the_two_ends() -> None:
    """b = 0 weighs all alike, b towards 1 by inverse frequency."""
    counts = [5000, 500, 50]
    assert torch.equal(effective_number_weights(counts, 0), torch.ones(3))
    inverse = 1 / np.array(counts)
    assert_allclose(effective_number_weights(counts, 1 - 1e-12), inverse * 3 / inverse.sum(), rtol=1e-5)


def test_classes_without_examples() -> None:
    """Refused, weighed 0, or counted as one."""
    with refused(ValueError, "`counts`", "0 for class 1"):
        effective_number_weights([10, 0, 5], 0.9)
    for b in (0.0, 0.9):
        masked = effective_number_weights([10, 0, 5], b, zero_counts="mask")
        assert masked[1] == 0
        assert_allclose(masked[[0, 2]] / masked.sum(), exact([10, 5], b) / 2, rtol=1e-6)
    one = effective_number_weights([10, 0, 5], 0.9, zero_counts="one")
    assert torch.equal(one, effective_number_weights([10, 1, 5], 0.9))


def test_b_is_below_one() -> None:
    with refused(ValueError, "`b`", 1.0):
        effective_number_weights([10, 5], 1.0)

"""Argument checks: what they accept, and errors that name the argument and the value."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.reference import refused

from longtail._checks import (
    as_counts,
    as_distribution,
    as_tensor,
    check_choice,
    check_fraction,
    check_integer,
    check_logits,
    check_number,
    describe,
    positive_counts,
    shown,
    training_counts,
)
from longtail.losses._common import Reduction

nan, inf = math.nan, math.inf


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(2), np.float64(0.5)], ids=repr)
def test_any_real_number_is_accepted(value: Any) -> None:
    found = check_number("beta", value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("value", [-1, -0.001, nan, inf, -inf, np.float32(-1), 10**400], ids=repr)
def test_number_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="`beta`"):
        check_number("beta", value)


@pytest.mark.parametrize("value", [True, np.bool_(False), "1", None, [1.0], 1j, np.ones(2), torch.ones(3, 3)], ids=repr)
def test_values_that_are_not_numbers_are_refused(value: Any) -> None:
    with refused(TypeError, "`beta`", type(value).__name__):
        check_number("beta", value)
    with refused(TypeError, "`seed`", type(value).__name__):
        check_integer("seed", value)


def test_bounds() -> None:
    assert check_number("b", 0.999, below=1.0) == 0.999
    with refused(ValueError, "`b`", ">= 0 and < 1", "1.0"):
        check_number("b", 1.0, below=1.0)
    with refused(ValueError, "`b`", ">= 2", "1.5"):
        check_number("b", 1.5, minimum=2)
    assert check_integer("n", np.int64(3), minimum=3) == 3
    with refused(ValueError, "`n`", ">= 3", "2"):
        check_integer("n", 2, minimum=3)
    with refused(TypeError, "`n`", "2.0"):
        check_integer("n", 2.0)
    assert check_fraction("alpha", 1) == 1.0
    for value in (-0.1, 1.1, nan):
        with refused(ValueError, "`alpha`", value):
            check_fraction("alpha", value)


@pytest.mark.parametrize("value", ["avg", "MEAN", "", None, 0, ["mean"], torch.ones(2, 2)], ids=str)
def test_choices(value: Any) -> None:
    check_choice("reduction", "mean", Reduction)
    with refused(ValueError, "`reduction`", "'none', 'mean', 'sum'"):
        check_choice("reduction", value, Reduction)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float32, np.float64])
def test_whole_counts_become_int64(dtype: Any) -> None:
    for counts in (np.array([5, 0, 2], dtype=dtype), torch.tensor(np.array([5, 0, 2]).astype(dtype).tolist())):
        found = as_counts(counts)
        assert found.dtype == torch.int64
        assert found.tolist() == [5, 0, 2]


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        ([5, -3], "-3"),
        (np.array([5.0, -3.0]), "-3"),
        ([5, nan], "nan"),
        ([5, inf], "inf"),
        ([1e30, 3], "1e+30"),
        ([], "(0,)"),
        (7, "()"),
        ([[5, 3]], "(1, 2)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("fractions", [False, True])
def test_counts_out_of_range_are_refused(counts: Any, value: str, fractions: bool) -> None:
    with refused(ValueError, "`counts`", value):
        as_counts(counts, fractions=fractions)


@pytest.mark.parametrize(
    "counts",
    [[True, False], torch.ones(4, dtype=torch.complex64), "many", ["5", "3"], None, [[5, 3], [2]], [5, None]],
    ids=str,
)
def test_values_that_are_not_counts_are_refused(counts: Any) -> None:
    with refused(TypeError, "`counts`"):
        as_counts(counts)


def test_fractional_counts() -> None:
    """Fractions are refused unless counts may be sums of sample weights."""
    with refused(ValueError, "`samples`", "whole", 1.5):
        as_counts([5, 1.5], name="samples")
    assert as_counts([5, 1.5], fractions=True).tolist() == [5, 1.5]
    assert as_counts([5.0, 1.0], fractions=True).dtype == torch.int64
    assert as_counts(torch.tensor([0.5, 2]).half(), fractions=True).dtype == torch.float32


def test_wrong_number_of_classes_is_refused() -> None:
    with refused(ValueError, "`counts`", 3, 2):
        as_counts([5, 1], 3)


def test_zero_counts() -> None:
    """Zero counts are refused with a remedy, kept, or counted as one."""
    with refused(ValueError, "`counts`", "0 for class 1, 3", "zero_counts='mask'", "zero_counts='one'"):
        training_counts([5, 0, 2, 0], "error")
    assert training_counts([5, 0, 2, 0], "mask").tolist() == [5, 0, 2, 0]
    assert training_counts([5, 0, 2, 0], "one").tolist() == [5, 1, 2, 1]
    with refused(ValueError, "`counts`", "in all"):
        positive_counts([5, *[0] * 1000])
    with refused(ValueError, "`counts`", "0 for every class"):
        training_counts([0, 0], "mask")
    with refused(ValueError, "`zero_counts`", "'error', 'mask', 'one'"):
        training_counts([5, 1], "skip")  # type: ignore[arg-type]


def test_distributions() -> None:
    """A distribution has finite numbers > 0, or >= 0 with ``zeros``, and need not be normalised."""
    assert as_distribution("p", [20, 80]).dtype == torch.float64
    assert as_distribution("p", [0, 1], zeros=True).tolist() == [0, 1]
    for bad in (0.0, -0.5, nan, inf):
        with refused(ValueError, "`p`", bad):
            as_distribution("p", [0.5, bad])
    for bad in (-0.5, nan, inf):
        with refused(ValueError, "`p`", bad):
            as_distribution("p", [0.5, bad], zeros=True)
    with refused(ValueError, "`p`", "0 for every class"):
        as_distribution("p", [0, 0], zeros=True)


def test_logits() -> None:
    check_logits(torch.zeros(3), 3)
    check_logits(torch.zeros(6, 3, 2), 3)
    for shape in [(6, 1), (6, 4), (4,), (6, 4, 3), ()]:
        with refused(ValueError, "`logits`", "3 classes", "`counts`", shape):
            check_logits(torch.zeros(shape), 3)
    for other in ([[0.0] * 3], None, torch.zeros(6, 3).long(), torch.zeros(6, 3) > 0, torch.zeros(6, 3) * 1j):
        with refused(TypeError, "`logits`"):
            check_logits(other, 3)  # type: ignore[arg-type]
    with refused(ValueError, "`logits`", (6, 0)):
        check_logits(torch.zeros(6, 0), 0)


def test_tensors_on_the_default_device() -> None:
    """A sequence becomes a tensor on the default device, except on the meta device, which has no values."""
    with torch.device("meta"):
        assert as_tensor("x", [1, 2]).tolist() == [1, 2]
        assert as_counts([1, 2]).device.type == "cpu"
    with refused(ValueError, "`counts`", "meta"):
        as_counts(torch.ones(2, device="meta"))


def test_values_in_messages_are_short() -> None:
    assert describe(torch.ones(2, 3)) == "a Tensor of torch.float32 and shape (2, 3)"
    assert describe("x" * 1000).count("x") < 70
    assert "\n" not in describe(np.ones((20, 20)))
    assert shown([1, 2, 3]) == "1, 2, 3"
    assert shown(list(range(50))) == "0, 1, 2, 3, 4, … (50 in all)"

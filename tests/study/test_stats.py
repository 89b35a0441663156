import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longtail.study import compare, holm

# C10-LT100 in the paper's box plot: five runs of Balanced Softmax and of CBS.
BALANCED_SOFTMAX = [78.32, 78.53, 79.09, 79.65, 79.53]
CBS = [81.58, 81.13, 81.44, 81.26, 81.73]


def test_welch_equals_scipy():
    result = compare(CBS, BALANCED_SOFTMAX, paired=False)
    expected = stats.ttest_ind(CBS, BALANCED_SOFTMAX, equal_var=False)
    assert result.p_value == pytest.approx(expected.pvalue)
    assert result.difference == pytest.approx(np.mean(CBS) - np.mean(BALANCED_SOFTMAX))
    assert not result.paired


def test_welch_by_hand():
    # means 2 and 5, variances 1 and 4, three runs each: t = -3 / sqrt(5/3), df by Welch and Satterthwaite.
    result = compare([1, 2, 3], [3, 5, 7], paired=False)
    error = math.sqrt(1 / 3 + 4 / 3)
    df = (1 / 3 + 4 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2)
    assert result.p_value == pytest.approx(2 * stats.t.sf(3 / error, df))
    half = stats.t.ppf(0.975, df) * error
    assert (result.low, result.high) == pytest.approx((-3 - half, -3 + half))
    assert result.effect_size == pytest.approx(-3 / math.sqrt(2.5))


def test_paired_by_hand():
    result = compare([3, 5, 8], [1, 4, 5], paired=True)  # differences 2, 1, 3: mean 2, SD 1
    assert result.difference == pytest.approx(2)
    assert result.p_value == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert (result.low, result.high) == pytest.approx((2 - half, 2 + half))


def test_no_variation_needs_no_division():
    same = compare([1.0, 2.0], [1.0, 2.0], paired=True)
    assert (same.difference, same.p_value) == (0.0, 1.0)
    always = compare([2.0, 3.0], [1.0, 2.0], paired=True)
    assert (always.difference, always.p_value, always.low, always.high) == (1.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "paired"),
    [([1.0], [2.0, 3.0], False), ([1.0, 2.0], [1.0, 2.0, 3.0], True), ([1.0, math.nan], [1.0, 2.0], True)],
)
def test_what_cannot_be_tested_is_refused(first, second, paired):
    with pytest.raises(ValueError, match=r"^Expected .*\.$"):
        compare(first, second, paired=paired)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_definition(p_values):
    ordered = sorted(p_values)
    m = len(ordered)
    expected = [max(min(1.0, (m - j) * ordered[j]) for j in range(i + 1)) for i in range(m)]
    assert sorted(holm(p_values)) == pytest.approx(sorted(expected))
    assert all(corrected >= p for p, corrected in zip(p_values, holm(p_values), strict=True))

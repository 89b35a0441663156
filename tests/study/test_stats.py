import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from tests.study.conftest import compare_cells

from longtail.study import compare, holm, sentence, summarise
from longtail.study.comparisons import how_tested, stars
from longtail.study.runs import group_runs
from longtail.study.stats import format_p

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


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
@pytest.mark.parametrize(
    ("first", "second", "paired"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([2.0, 3.0], [1.0, 2.0], True),
        ([96.0, 98.7, 94.1], [93.3, 96.0, 91.4], True),  # equal except for rounding
        ([2.0, 2.0], [1.0, 1.0], False),
    ],
)
def test_without_variation_there_is_no_test(first, second, paired, alternative):
    found = compare(first, second, paired=paired, alternative=alternative)
    assert found.difference == pytest.approx(first[0] - second[0])
    assert all(math.isnan(number) for number in (found.p_value, found.low, found.high))
    assert format_p(found.p_value) == "undefined"
    number = len(first)
    assert sentence("A", "B", found) == (
        f"A and B are not tested: difference {found.difference:.{1 if found.difference else 2}f} points, no spread, "
        f"n = {number}."
    )


def test_an_undefined_p_value_does_not_count_in_the_correction():
    assert holm([0.01, math.nan, 0.03]) == pytest.approx([0.02, math.nan, 0.03], nan_ok=True)


def test_equal_differences_get_no_stars(made):
    """Two seeds whose differences agree by chance: the reviewer's head recalls of 96.0 and 93.3, three stars."""

    def cells(*differences):
        runs = [made("balanced-softmax", seed, (90.0, 80.0, 70.0, 93.3 - 5 * seed)) for seed in (0, 1)]
        runs += [made("softmax", seed, (90.0, 80.0, 70.0, 93.3 - 5 * seed + by)) for seed, by in enumerate(differences)]
        found = {cell.recipe.method: cell for cell in group_runs(runs)}
        return found["softmax"], found["balanced-softmax"]

    (found,) = compare_cells(list(cells(2.7, 2.7)[:1]), cells(2.7, 2.7)[1])
    assert (found.found, stars(found.p_value)) == (None, "")
    assert math.isnan(found.p_value)
    assert str(found) == (
        "Softmax is 2.7 points above Balanced Softmax: the difference is the same in every seed, so no test."
    )
    assert how_tested([found]) == "No tests: the difference is the same in every seed."
    ours, theirs = cells(2.7, 2.70001)
    (other,) = compare_cells([ours], theirs)
    assert stars(other.p_value) == "***"
    text = how_tested([other, other, found, found])  # two columns: rows are counted, not cells of the table
    assert text.endswith("; 1 row not tested (the difference is the same in every seed).")
    (again,) = compare_cells([other.cell], found.reference, lambda run: run.recipe.seed)
    assert how_tested([other, again]).endswith(
        "; 1 row not tested in some columns (the difference is the same in every seed)."
    )
    (same,) = compare_cells([cells(0.0, 0.0)[0]], theirs)
    assert str(same).startswith("Softmax is equal to Balanced Softmax: ")


@pytest.mark.parametrize(
    ("first", "second", "paired"),
    [([1.0], [2.0, 3.0], False), ([1.0, 2.0], [1.0, 2.0, 3.0], True), ([1.0, math.nan], [1.0, 2.0], True)],
)
def test_values_that_cannot_be_tested_are_refused(first, second, paired):
    with pytest.raises(ValueError, match=r"^Expected .*\.$"):
        compare(first, second, paired=paired)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_definition(p_values):
    ordered = sorted(p_values)
    m = len(ordered)
    expected = [max(min(1.0, (m - j) * ordered[j]) for j in range(i + 1)) for i in range(m)]
    assert sorted(holm(p_values)) == pytest.approx(sorted(expected))
    assert all(corrected >= p for p, corrected in zip(p_values, holm(p_values), strict=True))


# --- one-sided, summaries, words


@given(
    st.lists(st.floats(50, 90), min_size=2, max_size=6),
    st.lists(st.floats(50, 90), min_size=2, max_size=6),
    st.sampled_from(["two-sided", "greater"]),
)
def test_welch_equals_scipy_whatever_the_runs(a, b, alternative):
    assume(min(np.var(a), np.var(b)) > 1e-6)  # scipy warns of less
    result = compare(a, b, paired=False, alternative=alternative)
    expected = stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(st.floats(50, 90), st.floats(50, 90)), min_size=2, max_size=6))
def test_paired_one_sided_equals_scipy_and_keeps_the_two_sided_interval(pairs):
    a, b = map(list, zip(*pairs, strict=True))
    assume(np.std(np.subtract(a, b)) > 1e-6)  # scipy warns of less
    result = compare(a, b, paired=True, alternative="greater")
    assert result.p_value == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.test == "paired t-test, one-sided"


def test_the_standard_deviation_has_n_minus_one():
    found = summarise([1.0, 2.0, 4.0])
    assert (found.mean, found.sd, found.runs) == (pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert math.isnan(summarise([3.0]).sd)
    with pytest.raises(ValueError, match="one number per run"):
        summarise([])


def test_sentences_state_the_difference_the_interval_and_p():
    found = compare(CBS, BALANCED_SOFTMAX, paired=False)
    assert sentence("CBS", "Balanced Softmax", found) == (
        "CBS is better than Balanced Softmax by 2.4 points, 95 % interval 1.7 to 3.1, p = 0.0003 (Welch’s t-test), "
        "n = 5."
    )
    back = compare(BALANCED_SOFTMAX, CBS, paired=False)
    assert sentence("BS", "CBS", back, note="no two seeds in common") == (
        "BS is worse than CBS by 2.4 points, 95 % interval 1.7 to 3.1, p = 0.0003 (Welch’s t-test), n = 5 (no two "
        "seeds in common)."
    )
    paired = compare(BALANCED_SOFTMAX, CBS, paired=True)
    lower = sentence("A", "B", paired, corrected=0.0009)
    assert lower.startswith("A is worse than B by 2.4 points")
    assert lower.endswith("p = 0.0009 (paired t-test, after Holm), n = 5.")


def test_no_significant_difference_is_stated():
    found = compare([60.16, 60.32, 59.96, 60.89, 60.35], [61.07, 59.63, 60.28, 59.97, 60.89], paired=False)
    assert sentence("A", "B", found) == (
        "A and B have no significant difference: difference -0.03 points, 95 % interval -0.8 to 0.7, p = 0.92 "
        "(Welch’s t-test), n = 5."
    )
    clear = compare(CBS, BALANCED_SOFTMAX, paired=False, alternative="greater")
    text = sentence("A", "B", clear, corrected=0.2)
    assert text.startswith(
        "A and B have no significant difference after correction for the number of tests: difference 2.4 points"
    )
    assert "95 % interval (not corrected) 1.7 to 3.1" in text
    assert text.endswith(
        "p = 0.20 (Welch’s t-test, one-sided, after Holm, 0.0001 before), n = 5."
    )  # its interval leaves zero out


@pytest.mark.parametrize(
    ("p_value", "shown"),
    [(0.0, "< 0.0001"), (0.00012, "= 0.0001"), (0.0497, "= 0.0497"), (0.0016, "= 0.0016"), (1.0, "= 1.00")],
)
def test_p_values_as_text(p_value, shown):
    assert format_p(p_value) == shown

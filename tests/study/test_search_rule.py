"""The rule of the search for beta, on response curves whose peak is known."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.study.search_rule import (
    START,
    Score,
    SearchPlan,
    Trial,
    choose,
    next_betas,
)


def search_beta(evaluate, settings=None):
    """The search with a function that scores the betas of each round."""
    settings, trials = settings or SearchPlan(), []
    while betas := next_betas(trials, settings):
        trials += [Trial(beta, tuple(scores)) for beta, scores in zip(betas, evaluate(betas), strict=True)]
        trials.sort(key=lambda trial: trial.beta)
    return SimpleNamespace(trials=trials, choice=choose(trials, settings))


def response(curve, *, noise=0.0, runs=1, level=lambda beta: 10.0, seed=0, blocks=0.0):
    """Scores of a curve; the same runs see every beta, each with its own level (``blocks``)."""

    def evaluate(betas):
        tried_rounds.append(betas)
        found = []
        for beta in betas:
            rng = np.random.default_rng([seed, round(1000 * beta)])
            own = np.random.default_rng(seed).normal(0, blocks, runs)
            found.append([Score(curve(beta) + own[i] + rng.normal(0, noise), level(beta)) for i in range(runs)])
        return found

    tried_rounds = []
    return evaluate, tried_rounds


def parabola(peak, height=80.0, width=10.0):
    return lambda beta: height - width * (beta - peak) ** 2


@pytest.mark.parametrize("peak", [1.0, 1.3])
def test_a_peak_inside_the_start_needs_at_most_one_step_more(peak):
    evaluate, tried_rounds = response(parabola(peak))
    found = search_beta(evaluate)
    assert found.choice.beta == peak
    assert tried_rounds[0] == START
    assert {beta for betas in tried_rounds for beta in betas} - set(START) <= {0.9, 1.4}
    assert not found.choice.at_bound


@pytest.mark.parametrize("peak", [1.8, 2.5, 0.9, 0.2])
def test_a_peak_outside_is_found_with_one_step_beyond(peak):
    evaluate, _ = response(parabola(peak))
    found = search_beta(evaluate)
    assert found.choice.beta == peak
    ends = found.trials[0].beta, found.trials[-1].beta
    assert ends == pytest.approx((1.0, peak + 0.1) if peak > 1 else (peak - 0.1, 1.3))


def test_a_monotone_curve_ends_at_the_bound_and_says_so():
    evaluate, _ = response(lambda beta: 10 * beta)
    up = search_beta(evaluate, SearchPlan(bounds=(0.0, 1.7)))
    assert (up.choice.beta, up.choice.at_bound) == (1.7, True)
    assert "at the bound, 1.7" in str(up.choice)
    evaluate, _ = response(lambda beta: -10 * beta)
    down = search_beta(evaluate)
    assert (down.choice.beta, down.choice.at_bound, down.trials[0].beta) == (0.0, True, 0.0)


def test_a_bound_between_two_steps_is_not_passed():
    evaluate, tried_rounds = response(lambda beta: 10 * beta)
    found = search_beta(evaluate, SearchPlan(bounds=(0.0, 1.45)))
    assert max(max(betas) for betas in tried_rounds) == 1.4
    assert found.choice.at_bound


def test_a_peak_between_two_betas_goes_to_the_nearer():
    evaluate, _ = response(parabola(1.23))
    found = search_beta(evaluate)
    assert found.choice.beta == 1.2
    assert found.choice.peak == pytest.approx(1.23)


def test_on_a_flat_curve_the_lowest_level_wins():
    evaluate, tried_rounds = response(lambda beta: 70.0, runs=3, level=lambda beta: 20 - 5 * beta)
    found = search_beta(evaluate)
    assert len(tried_rounds) <= 2
    assert found.choice.ties == tuple(point.beta for point in found.trials)
    assert found.choice.beta == found.trials[-1].beta  # where the level is lowest
    assert not found.choice.smoothed  # no maximum
    evaluate, _ = response(lambda beta: 70.0)
    assert search_beta(evaluate).choice.beta == min(search_beta(evaluate).choice.ties)


def test_ties_within_one_standard_error_go_to_the_lower_level():
    scores = {1.0: (70.0, 71.0, 69.0), 1.1: (72.0, 72.4, 71.9), 1.2: (72.3, 71.8, 72.4), 1.3: (70.0, 69.7, 70.2)}
    levels = {1.0: 30.0, 1.1: 20.0, 1.2: 10.0, 1.3: 5.0}
    points = [Trial(beta, tuple(Score(v, levels[beta]) for v in values)) for beta, values in scores.items()]
    found = choose(points, SearchPlan())
    assert found.ties == (1.1, 1.2)
    assert found.beta == 1.2
    assert "the lowest imbalance level (then the smallest) of 1.1, 1.2" in str(found)
    table = np.array(list(scores.values()))  # the residual mean square of the two-way layout, over the runs
    rest = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
    assert found.standard_error == pytest.approx(math.sqrt((rest**2).sum() / (3 * 2) / 3))


def test_levels_that_all_betas_share_are_not_noise():
    """Folds differ much; betas are compared within each."""
    evaluate, _ = response(parabola(1.6), runs=5, blocks=20.0)
    found = search_beta(evaluate)
    assert found.choice.beta == 1.6
    assert found.choice.standard_error == pytest.approx(0.0, abs=1e-9)


def test_noise_does_not_lead_far_astray():
    for seed in range(8):
        evaluate, tried_rounds = response(parabola(1.6), noise=0.3, runs=10, seed=seed, blocks=3.0)
        assert abs(search_beta(evaluate).choice.beta - 1.6) <= 0.2
        assert sum(map(len, tried_rounds)) <= 12


@given(st.floats(-5, 5), st.integers(0, 100), st.floats(0, 5))
def test_a_search_ends_within_its_bounds(slope, seed, noise):
    settings = SearchPlan(bounds=(0.5, 2.0))
    evaluate, tried_rounds = response(lambda beta: slope * beta, noise=noise, runs=2, seed=seed)
    found = search_beta(evaluate, settings)
    tried = [beta for betas in tried_rounds for beta in betas]
    assert len(tried) == len(set(tried)) <= 16
    assert 0.5 <= min(tried) <= max(tried) <= 2.0
    assert found.choice.beta in tried
    assert next_betas(found.trials, settings) == ()


def test_start_and_step():
    evaluate, tried_rounds = response(parabola(1.75))
    assert search_beta(evaluate, SearchPlan(start=(1.0, 1.25, 1.5), step=0.25)).choice.beta == 1.75
    assert tried_rounds == [(1.0, 1.25, 1.5), (1.75,), (2.0,)]


def test_an_undefined_score_counts_as_worst():
    found = search_beta(lambda betas: [[Score(math.nan if beta > 1.2 else 10 * beta, 1.0)] for beta in betas])
    assert found.choice.beta == 1.2
    assert found.trials[-1].beta == 1.3


@pytest.mark.parametrize("runs", [1, 2])
def test_if_every_score_is_undefined_the_search_fails(runs):
    with pytest.raises(ValueError, match=r"recall is defined .* none among 0\.9, "):
        search_beta(lambda betas: [[Score(math.nan)] * runs for _ in betas])


def test_an_undefined_score_is_never_chosen():
    for defined in START:  # all other betas have a run with an undefined level
        points = [
            Trial(beta, (Score(-50.0, 50.0), Score(*((-90.0, 90.0) if beta == defined else (math.nan, math.nan)))))
            for beta in START
        ]
        found = choose(points, SearchPlan())
        assert (found.beta, found.ties) == (defined, (defined,))
        assert math.isnan(found.standard_error)


def test_the_choice_says_which_values_are_tied():
    values = {1.0: (76.6, 75.6), 1.1: (76.1, 77.1), 1.2: (77.9, 75.9), 1.3: (78.0, 80.0), 1.4: (78.7, 76.7)}
    points = [Trial(beta, tuple(Score(value, 3 - beta) for value in both)) for beta, both in values.items()]
    found = choose(points, SearchPlan())
    assert found.ties == (1.2, 1.3, 1.4)
    assert points[3].mean - points[2].mean > found.standard_error  # the means themselves are further apart
    assert "(quadratic within one standard error of the highest)" in str(found)
    few = choose(points[2:], SearchPlan())
    assert not few.smoothed
    assert str(replace(few, ties=(1.2, 1.3))).endswith("(mean within one standard error of the highest)")
    equal = str(choose([Trial(beta, (Score(70.0, 1.0),)) for beta in START], SearchPlan()))
    assert "(equally good)" in equal
    assert "standard error" not in equal


def test_an_undefined_level_wins_no_tie():
    points = [Trial(beta, (Score(70.0, math.nan if beta < 1.3 else 50.0),)) for beta in START]
    assert choose(points, SearchPlan()).beta == 1.3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"bounds": (2.0, 1.0)}, "bounds"),
        ({"bounds": (-1.0, 1.0), "start": (0.5,)}, "bounds"),
        ({"bounds": (1.0,)}, "bounds"),
        ({"bounds": (0.0, 1.2), "start": (1.3,)}, "start"),
        ({"start": (-1.0,)}, "start"),
        ({"start": 1.0}, "start"),
        ({"step": 0}, "step"),
        ({"folds": 1}, "search.folds"),
        ({"folds": 10**11}, "search.folds"),
        ({"seeds": 0}, "search.seeds"),
        ({"select_on": "train"}, "select_on"),
    ],
)
def test_wrong_settings_are_refused(settings, name):
    with pytest.raises((TypeError, ValueError), match=rf"^Expected `{name}` .*\.$"):
        SearchPlan(**settings)

"""G, P and I against the paper's definitions, worked by hand, and against its own table."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import Groups
from longtail.metrics import preference_scores

THREE = Groups.from_indices(head=[0], medium=[1], tail=[2])

# The paper's table of sensitivity to beta on Places-LT: head, medium, tail, in per cent.
PLACES_LT = {
    1.1: ((84.15, 84.90, 82.74), (35.46, 28.86, 20.39)),
    1.2: ((83.30, 85.42, 83.78), (35.46, 29.69, 23.83)),
    1.3: ((81.95, 85.79, 84.96), (34.85, 29.90, 24.65)),
    1.4: ((79.61, 84.00, 87.95), (33.05, 29.58, 26.06)),
    1.5: ((77.98, 84.02, 86.48), (31.99, 29.33, 27.75)),
    1.6: ((76.87, 83.82, 87.30), (31.17, 29.68, 29.35)),
}


def test_a_case_worked_by_hand():
    # Head: trained to 80 %, tested at 60 %: a quarter of it is lost, G = 25; 20 were missing already, P = 45.
    result = preference_scores([0.8, 1.0, 0.5], [0.6, 0.9, 0.1], THREE)
    assert dict(result.gap) == pytest.approx({"head": 25, "medium": 10, "tail": 80})
    assert dict(result.score) == pytest.approx({"head": 45, "medium": 10, "tail": 130})
    assert result.level == pytest.approx(120)
    assert result.undefined == ()


def test_the_recall_of_a_group_is_averaged_before_the_ratio_is_taken():
    # The mean of the classes' own gaps would be (50 + 0) / 2 = 25; that of the group's recalls is (0.75 - 0.5) / 0.75.
    groups = Groups.from_indices(head=[0, 1], tail=[2])
    result = preference_scores([1.0, 0.5, 1.0], [0.5, 0.5, 1.0], groups)
    assert result.gap["head"] == pytest.approx(100 / 3)
    assert result.score["head"] == pytest.approx(25 + 100 / 3)
    assert result.score["tail"] == 0.0
    assert result.level == pytest.approx(25 + 100 / 3)


def test_a_single_class_without_training_recall_does_no_harm_within_its_group():
    result = preference_scores([1.0, 0.0, 0.5], [0.5, 0.0, 0.5], Groups.from_indices(head=[2], tail=[0, 1]))
    assert result.gap["tail"] == pytest.approx(50)
    assert result.undefined == ()


def test_better_on_test_than_on_training_data_is_a_negative_gap():
    result = preference_scores([0.5, 0.5, 0.5], [0.6, 0.5, 0.4], THREE)
    assert dict(result.gap) == pytest.approx({"head": -20, "medium": 0, "tail": 20})
    assert result.level == pytest.approx(40)


@pytest.mark.parametrize("beta", PLACES_LT)
def test_the_papers_table_of_places_lt(beta):
    train, test = (np.array(recalls) for recalls in PLACES_LT[beta])
    gap = 100 * (train - test) / train
    score = (100 - train) + gap
    result = preference_scores(train / 100, test / 100, THREE)
    np.testing.assert_allclose(list(result.gap.values()), gap, rtol=1e-12)
    np.testing.assert_allclose(list(result.score.values()), score, rtol=1e-12)
    assert result.level == pytest.approx(np.ptp(score), rel=1e-10)


def test_on_places_lt_the_level_is_lowest_at_beta_1_5_not_at_the_chosen_1_3():
    level = {
        beta: preference_scores(np.array(train) / 100, np.array(test) / 100, THREE).level
        for beta, (train, test) in PLACES_LT.items()
    }
    assert min(level, key=level.get) == 1.5
    # With pencil and paper: at 1.3 head 18.05 + 57.474, tail 15.04 + 70.986; at 1.5 head 22.02 + 58.977,
    # tail 13.52 + 67.912.
    assert level[1.3] == pytest.approx(10.50, abs=0.01)
    assert level[1.5] == pytest.approx(0.44, abs=0.01)
    assert sorted(level, key=level.get) == [1.5, 1.6, 1.4, 1.3, 1.2, 1.1]
    # The recall over all classes is highest at 1.3: the two goals differ.
    assert max(PLACES_LT, key=lambda b: np.dot(PLACES_LT[b][1], [131, 163, 71])) == 1.3


def test_a_class_without_a_sample_is_left_out_of_its_groups_mean():
    groups = Groups.from_indices(head=[0], tail=[1, 2])
    result = preference_scores([1.0, 0.8, math.nan], [1.0, 0.4, math.nan], groups)
    assert result.gap["tail"] == pytest.approx(50)


def test_a_class_without_a_test_sample_is_left_out_of_both_means():
    """Equal recalls of all classes that can be compared give equal scores, whichever classes are missing."""
    groups = Groups.from_indices(head=[0, 1], tail=[2, 3])
    for missing in range(4):
        for which in range(2):
            recalls = [[1.0, 0.0, 0.5, 0.5], [1.0, 0.0, 0.5, 0.5]]
            recalls[which][missing] = math.nan
            result = preference_scores(*recalls, groups)
            if missing != 0:  # without it the head has no training recall
                assert set(result.gap.values()) == {0.0}
    result = preference_scores([1.0, 0.8, 0.4, 0.2], [1.0, 0.4, 0.1, math.nan], Groups.from_indices(a=[0], b=[1, 2, 3]))
    assert result.gap["b"] == pytest.approx(100 * (0.6 - 0.25) / 0.6)
    assert result.score["b"] == pytest.approx(40 + result.gap["b"])


def test_a_group_without_training_recall_has_no_score_and_the_result_says_so():
    result = preference_scores([0.9, 0.8, 0.0], [0.8, 0.6, 0.0], THREE)
    assert result.undefined == ("tail",)
    assert list(result.gap) == list(result.score) == ["head", "medium"]
    assert math.isnan(result.level)  # without the worst group the range would flatter the model
    assert result.score["head"] == pytest.approx(10 + 100 / 9)
    assert result.gap.skipped == ()


def test_no_group_has_training_recall():
    result = preference_scores([0.0, 0.0, 0.0], [0.0, 0.1, 0.0], THREE)
    assert (dict(result.gap), dict(result.score)) == ({}, {})
    assert result.undefined == ("head", "medium", "tail")
    assert math.isnan(result.level)


def test_a_group_without_a_class_is_skipped():
    groups = Groups.from_indices(head=[0], medium=[], tail=[1])
    result = preference_scores([1.0, 0.5], [1.0, 0.25], groups)
    assert result.gap.skipped == result.score.skipped == ("medium",)
    assert result.undefined == ()
    assert result.level == pytest.approx(100)


@pytest.mark.parametrize("which", [0, 1])
def test_a_group_without_a_sample_is_skipped(which):
    recalls = [[1.0, 0.8, 0.5], [0.9, 0.6, 0.4]]
    recalls[which][2] = math.nan
    result = preference_scores(*recalls, THREE)
    assert list(result.score) == ["head", "medium"]
    assert result.score.skipped == ("tail",)
    assert result.level == pytest.approx((20 + 25) - (0 + 10))


def test_nothing_to_measure():
    result = preference_scores([math.nan] * 3, [math.nan] * 3, THREE)
    assert math.isnan(result.level)
    assert result.score.skipped == ("head", "medium", "tail")


def test_one_group_has_no_range():
    result = preference_scores([0.5, 0.7], [0.4, 0.7], Groups(("one",), (0, 0)))
    assert result.score == {"one": pytest.approx(40 + 100 * 0.05 / 0.6)}
    assert math.isnan(result.level)


@pytest.mark.parametrize("convert", [tuple, np.float32])
def test_recalls_may_come_in_any_form(convert):
    result = preference_scores(convert([1.0, 0.75, 0.5]), convert([0.75, 0.75, 0.25]), THREE)
    assert dict(result.score) == {"head": 25.0, "medium": 25.0, "tail": 100.0}


recalls = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6)


@settings(deadline=None, max_examples=60)
@given(train=recalls, test=st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=6, max_size=6), data=st.data())
def test_properties(train, test, data):
    groups = Groups(("h", "m", "t"), tuple(data.draw(st.permutations([0, 0, 1, 1, 2, 2]))))
    result = preference_scores(train, test, groups)
    assert result.level >= 0
    assert result.level == pytest.approx(max(result.score.values()) - min(result.score.values()))
    for name in groups.names:
        members = list(groups.members(name))
        r_tr, r_te = 100 * np.mean(np.array(train)[members]), 100 * np.mean(np.array(test)[members])
        assert result.gap[name] == pytest.approx(100 * (r_tr - r_te) / r_tr, abs=1e-8)
        assert result.score[name] == pytest.approx(100 - r_tr + 100 * (r_tr - r_te) / r_tr, abs=1e-8)
    # A model that treats all groups the same has no preference.
    same = preference_scores([train[0]] * 6, [test[0]] * 6, groups)
    assert same.level == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([84.15, 84.9, 82.74], [0.3, 0.2, 0.1], r"`train_recall`.*\[0, 1\], not per cent.*84\.15"),
        ([0.8, 0.8, 0.8], [0.3, 28.86, 0.1], r"`test_recall`.*\[0, 1\], not per cent.*28\.86"),
        ([0.8, 0.8, 1.01], [0.3, 0.2, 0.1], r"`train_recall`.*1\.01"),
        ([0.8, 0.8, -0.1], [0.3, 0.2, 0.1], r"`train_recall`.*-0\.1"),
        ([0.8, 0.8, math.inf], [0.3, 0.2, 0.1], "`train_recall`.*inf"),
        ([0.8, 0.8], [0.3, 0.2, 0.1], "`train_recall`.*3.*2"),
        ([0.8, 0.8, 0.8], [0.3, 0.2, 0.1, 0.1], "`test_recall`.*3.*4"),
        (0.8, [0.3, 0.2, 0.1], "`train_recall`"),
        ([0.8, 0.8, 0.8], [[0.3, 0.2, 0.1]], r"`test_recall`.*\(1, 3\)"),
    ],
)
def test_bad_input(train, test, message):
    with pytest.raises(ValueError, match=message):
        preference_scores(train, test, THREE)

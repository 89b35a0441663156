import numpy as np
import pytest
import torch

from longtail.data import long_tail_counts, long_tail_indices


@pytest.mark.parametrize(
    ("num_classes", "largest", "imbalance_factor", "total"),
    [  # the sizes that the literature and the paper's table of data sets give for CIFAR-10-LT and CIFAR-100-LT
        (10, 5000, 100, 12406),
        (10, 5000, 200, 11203),
        (100, 500, 100, 10847),
        (100, 500, 200, 9502),
    ],
)
def test_counts_of_cifar_lt(num_classes, largest, imbalance_factor, total):
    counts = long_tail_counts(num_classes, largest, imbalance_factor)
    assert counts.sum() == total
    assert counts[0] == largest
    assert counts[-1] == int(largest / imbalance_factor)


def test_no_imbalance_keeps_all():
    assert long_tail_counts(4, 7, 1).tolist() == [7, 7, 7, 7]
    assert long_tail_counts(1, 7, 50).tolist() == [7]


def test_indices_follow_the_published_protocol():
    labels = np.random.default_rng(0).integers(0, 3, 90)
    counts = [20, 10, 5]
    generator = np.random.RandomState(0)
    expected = []
    for c in range(3):
        of_class = np.where(labels == c)[0]
        generator.shuffle(of_class)
        expected.extend(of_class[: counts[c]])
    assert long_tail_indices(labels, counts).tolist() == expected


def test_smaller_subsets_are_part_of_larger_ones():
    labels = torch.arange(10).repeat(100)
    larger = set(long_tail_indices(labels, long_tail_counts(10, 100, 10)).tolist())
    smaller = set(long_tail_indices(labels, long_tail_counts(10, 100, 100)).tolist())
    assert smaller < larger


def test_too_few_examples_are_named():
    with pytest.raises(ValueError, match="at least 5 examples of class 1, but got 2"):
        long_tail_indices([0, 0, 0, 1, 1], [3, 5])


def test_an_imbalance_factor_below_one_is_refused():
    with pytest.raises(ValueError, match="imbalance_factor"):
        long_tail_counts(10, 100, 0.5)


def test_step_profile():
    assert long_tail_counts(5, 100, 10, profile="step").tolist() == [100, 100, 100, 10, 10]
    assert long_tail_counts(10, 5000, 100, profile="step").tolist() == [5000] * 5 + [50] * 5


def test_pareto_profile_is_a_power_of_the_rank():
    counts = long_tail_counts(100, 1000, 50, profile="pareto").numpy()
    assert counts[0] == 1000
    assert counts[-1] == 20
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts), 1)[0]
    assert slope == pytest.approx(-np.log(50) / np.log(100), rel=0.01)


def test_an_unknown_profile_is_refused():
    with pytest.raises(ValueError, match="`profile`"):
        long_tail_counts(3, 10, 2, profile="linear")

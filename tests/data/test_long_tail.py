import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from longtail.data import digits_lt, long_tail_counts, long_tail_indices


@pytest.mark.parametrize(
    ("num_classes", "largest", "imbalance_factor", "total"),
    [  # the sizes that the literature and the paper's table of data sets give for CIFAR-10-LT and CIFAR-100-LT
        (10, 5000, 10, 20431),
        (10, 5000, 50, 13996),
        (10, 5000, 100, 12406),
        (10, 5000, 200, 11203),
        (100, 500, 10, 19573),
        (100, 500, 50, 12608),
        (100, 500, 100, 10847),
        (100, 500, 200, 9502),
    ],
)
def test_counts_are_those_of_cifar_lt(num_classes, largest, imbalance_factor, total):
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


def test_smaller_subsets_lie_within_larger_ones():
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


def test_digits_lt_is_real_and_disjoint():
    digits = digits_lt()
    assert torch.bincount(digits.test_labels).tolist() == [50] * 10
    assert digits.counts.tolist() == torch.bincount(digits.train_labels).tolist()
    assert digits.counts[0] >= 50 * digits.counts[-1]
    train = {tuple(image.flatten().tolist()) for image in digits.train_images}
    assert not any(tuple(image.flatten().tolist()) in train for image in digits.test_images)
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1


def test_digits_lt_depends_on_its_seed_alone():
    torch.manual_seed(1)
    first = digits_lt()
    torch.manual_seed(2)
    assert torch.equal(first.train_images, digits_lt().train_images)
    other = digits_lt(subset_seed=1)
    assert not torch.equal(first.train_images, other.train_images)
    assert torch.equal(first.test_images, other.test_images)


def test_the_last_digits_are_the_test_images():
    labels = load_digits().target
    expected = np.concatenate([load_digits().images[labels == c][-50:] for c in range(10)])
    assert np.array_equal(digits_lt().test_images.squeeze(1).numpy() * 16, expected)
    with pytest.raises(ValueError, match="test_per_class"):
        digits_lt(test_per_class=0)

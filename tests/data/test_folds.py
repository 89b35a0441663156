"""Folds of the training data, class by class."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data import ArrayImages, DataSet, Split, hold_out_fold


def numbered(counts):
    """A data set whose images are their own numbers."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    pixels = torch.arange(len(labels)).view(-1, 1, 1, 1).to(torch.uint8)
    return DataSet("numbered", tuple(map(str, range(len(counts)))), Split(ArrayImages(pixels), labels[order]))


def numbers_of(split):
    return split.images.pixels.flatten().tolist()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(2, 6), st.integers(0, 3))
def test_every_fold_has_every_class_that_has_two_images(counts, folds, seed):
    data = numbered(counts)
    held = []
    for fold in range(folds):
        cut = hold_out_fold(data, fold, folds, seed)
        assert sorted(numbers_of(cut.train) + numbers_of(cut.val)) == list(range(sum(counts)))  # disjoint, complete
        held_counts = torch.bincount(cut.val.labels, minlength=len(counts)).tolist()
        for count, number in zip(counts, held_counts, strict=True):
            assert number == 0 if count == 1 else 1 <= number < count
            assert number <= -(-count // folds)
        assert cut.groups == data.groups
        held += numbers_of(cut.val)
    for c, count in enumerate(counts):
        of_class = {n for n, label in enumerate(data.train.labels.tolist()) if label == c}
        times = [held.count(n) for n in of_class]
        if count >= folds:
            assert times == [1] * count  # every image once
        elif count > 1:
            assert min(times) >= 1
            assert sum(times) == folds


def test_remainders_do_not_all_fall_into_the_first_fold():
    sizes = [len(hold_out_fold(numbered([7] * 6), fold, 3).val) for fold in range(3)]
    assert sizes == [14, 14, 14]


def test_folds_are_the_same_for_the_same_seed_and_others_for_another():
    data = numbered([40, 30])
    first, again, other = (numbers_of(hold_out_fold(data, 0, 5, seed).val) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(("fold", "folds"), [(5, 5), (-1, 5), (0, 1)])
def test_bad_folds(fold, folds):
    with pytest.raises(ValueError, match=r"^Expected `folds?` to be .*, but got .*\.$"):
        hold_out_fold(numbered([4, 3]), fold, folds)

"""Splits, data sets, held-out and long-tailed subsets, against independent formulas."""

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.classes import Groups
from longtail.data import ArrayImages, DataSet, FileImages, Split, hold_out, long_tailed


def split_of(labels, first=0):
    """Images whose four bytes are a unique number, so that each can be found again."""
    labels = torch.as_tensor(labels, dtype=torch.int64)
    numbers = np.arange(first, first + len(labels), dtype="<u4")
    return Split(ArrayImages(torch.from_numpy(numbers.view(np.uint8).reshape(-1, 1, 2, 2).copy())), labels)


def numbers_of(split):
    return split.images.pixels.numpy().reshape(len(split), 4).copy().view("<u4").flatten().tolist()


def dataset_of(counts, **others):
    labels = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(0).shuffle(labels)
    test = split_of(np.repeat(np.arange(len(counts)), 2), first=1_000_000)
    return DataSet("made", tuple(f"class {c}" for c in range(len(counts))), split_of(labels), test, **others)


@pytest.mark.parametrize(
    "pixels", [torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, 3, 4, 4).int()]
)
def test_arrays_that_are_not_raw_pixels_are_refused(pixels):
    with pytest.raises(ValueError, match=r"^Expected images to be uint8 of shape .*, but got .*\.$"):
        ArrayImages(pixels)


def test_a_subset_has_the_order_of_its_indices():
    split = split_of([0, 1, 2, 3, 4])
    for indices in ([4, 0, 2], torch.tensor([4, 0, 2]), np.array([4, 0, 2])):
        chosen = split.subset(indices)
        assert chosen.labels.tolist() == [4, 0, 2]
        assert numbers_of(chosen) == [4, 0, 2]
        assert len(chosen) == len(chosen.images) == 3
    assert len(split.subset([])) == 0


def test_subsets_share_the_images_in_memory():
    split = split_of([0, 1, 2, 3, 4])
    chosen = split.subset([4, 0, 2, -2])
    again = chosen.subset([3, 0])
    assert chosen.images.stored is again.images.stored is split.images.stored
    assert numbers_of(again) == [3, 4]
    assert torch.equal(again.images[1], split.images[4])
    for refused in (4, -5):
        with pytest.raises(IndexError):
            chosen.subset([refused])


def test_a_factor_that_would_lose_a_class_is_refused_with_the_numbers():
    """Data that is long-tailed already: the smallest class has 6, so with a factor of 10 the last would have none."""
    names = ("ant", "bee", "cat", "dog", "eel")
    data = DataSet("birds", names, split_of(np.repeat(np.arange(5), [120, 60, 30, 6, 15]).tolist()))
    said = (
        r"^Expected an imbalance factor of at most 6 for birds, .*, but got 10, which leaves no image of class 'eel'\."
    )
    with pytest.raises(ValueError, match=said):
        long_tailed(data, 10)
    assert long_tailed(data, 6).counts.tolist() == [6, 3, 2, 1, 1]


def test_images_and_labels_have_the_same_length():
    with pytest.raises(ValueError, match="a label for each of 2 images, but got 3"):
        Split(ArrayImages(torch.zeros(2, 1, 1, 1, dtype=torch.uint8)), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(("part", "wrong"), [("train", -1), ("val", 3), ("test", 1000)])
def test_a_label_out_of_range_is_named_with_its_split(part, wrong):
    splits = {"train": split_of([0, 1, 2]), "val": split_of([0]), "test": split_of([1])}
    splits[part] = split_of([0, wrong])
    with pytest.raises(ValueError, match=rf"birds to be in 0…2, but got {wrong} in {part}\.$"):
        DataSet("birds", ("a", "b", "c"), **splits)


def test_classes_and_groups_of_a_data_set():
    data = dataset_of([101, 100, 20, 19, 0])
    assert data.num_classes == 5
    assert data.counts.tolist() == [101, 100, 20, 19, 0]
    assert data.groups.index == (0, 1, 1, 2, 2)  # > 100, 20…100, < 20
    assert list(data.splits) == ["train", "test"]
    cut = Groups.from_indices(head=[4], medium=[0, 1], tail=[2, 3])
    assert dataset_of([101, 100, 20, 19, 0], cut=cut).groups == cut


def test_files_are_decoded_on_access(tmp_path):
    names = ["a b.png", "ünï/鳥.png", "missing.png"]
    (tmp_path / "ünï").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    for name, image in zip(names, pixels, strict=False):
        Image.fromarray(image).save(tmp_path / name)
    images = FileImages(tmp_path, names)
    assert len(images) == 3
    assert torch.equal(images[1], torch.from_numpy(pixels[1]).permute(2, 0, 1))
    swapped = images.subset(torch.tensor([1, 0]))
    assert swapped.names == [names[1], names[0]]
    assert swapped.path(1) == tmp_path / "a b.png"
    assert torch.equal(swapped[1], images[0])


# --- hold_out


def held(count, fraction):
    """How many of a class: the share, rounded to even as Python rounds; one at least, all but one at most."""
    return 0 if count < 2 else min(max(int(np.rint(fraction * count)), 1), count - 1)


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.99])
def test_hold_out_takes_its_share_of_each_class(fraction):
    counts = [200, 57, 10, 3, 2, 1, 0]
    data = dataset_of(counts)
    cut = hold_out(data, fraction)
    expected = [held(count, fraction) for count in counts]
    assert torch.bincount(cut.val.labels, minlength=7).tolist() == expected
    assert cut.counts.tolist() == [n - h for n, h in zip(counts, expected, strict=True)]
    assert all(left >= 1 for left, count in zip(cut.counts.tolist(), counts, strict=True) if count)


def test_hold_out_is_disjoint_complete_and_never_from_test():
    data = dataset_of([40, 20, 8, 2])
    cut = hold_out(data, 0.3)
    train, val = set(numbers_of(cut.train)), set(numbers_of(cut.val))
    assert not train & val
    assert train | val == set(numbers_of(data.train))
    assert len(train) + len(val) == len(data.train) == len(cut.train) + len(cut.val)
    assert cut.test is data.test
    of = dict(zip(numbers_of(data.train), data.train.labels.tolist(), strict=True))
    for part in (cut.train, cut.val):
        assert [of[number] for number in numbers_of(part)] == part.labels.tolist()


def test_hold_out_is_the_same_for_the_same_seed_and_another_for_another():
    data = dataset_of([40, 20, 8, 2])
    first, again, other = (numbers_of(hold_out(data, 0.3, seed=seed).val) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_hold_out_keeps_the_groups_of_the_whole_training_set():
    data = dataset_of([110, 105, 21, 10])
    cut = hold_out(data, 0.2)
    assert cut.counts.tolist() == [88, 84, 17, 8]
    assert cut.groups == data.groups


def test_hold_out_nothing():
    data = dataset_of([4, 3])
    cut = hold_out(data, 0.0)
    assert len(cut.val) == 0
    assert numbers_of(cut.train) == numbers_of(data.train)


def test_bad_arguments_of_hold_out():
    for fraction in (-0.1, 1.0):
        with pytest.raises(ValueError, match="`fraction`"):
            hold_out(dataset_of([4, 3]), fraction)
    with pytest.raises(ValueError, match="`seed`"):
        hold_out(dataset_of([4, 3]), 0.5, seed=-1)


# --- long_tailed


def profile_counts(profile, num_classes, largest, factor):
    """The three profiles by rank, each by its own formula in rational or 50-digit arithmetic."""
    from mpmath import floor, log, mp, mpf

    mp.dps = 50
    c, n, f = mpf(num_classes), mpf(largest), mpf(factor)
    tiny = mpf(10) ** -12
    if profile == "step":
        return [largest if 2 * k < num_classes else int(floor(n / f + tiny)) for k in range(num_classes)]
    if profile == "exp":
        return [int(floor(n * f ** (-k / (c - 1)) + tiny)) for k in range(num_classes)]
    return [int(floor(n * (k + 1) ** (-log(f) / log(c)) + tiny)) for k in range(num_classes)]


@pytest.mark.parametrize("profile", ["exp", "step", "pareto"])
@pytest.mark.parametrize("factor", [1, 4, 20.0])
def test_any_data_set_can_be_made_long_tailed(profile, factor):
    data = dataset_of([70, 60, 80, 65, 90])
    tail = long_tailed(data, factor, profile=profile, subset_seed=3)
    expected = profile_counts(profile, 5, 60, factor)  # as many as every class has
    assert tail.counts.tolist() == expected
    of = dict(zip(numbers_of(data.train), data.train.labels.tolist(), strict=True))
    numbers = numbers_of(tail.train)
    assert len(set(numbers)) == len(numbers) == sum(expected)
    assert [of[number] for number in numbers] == tail.train.labels.tolist()
    assert tail.test is data.test


def test_the_subset_follows_its_seed():
    data = dataset_of([50, 50, 50])
    draws = [set(numbers_of(long_tailed(data, 10, subset_seed=seed).train)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_groups_of_a_long_tail_are_cut_by_its_own_counts():
    data = dataset_of([200, 200, 200])
    assert data.groups.sizes == {"head": 3, "medium": 0, "tail": 0}
    assert long_tailed(data, 20).counts.tolist() == [200, 44, 10]
    assert long_tailed(data, 20).groups.index == (0, 1, 2)
    assert long_tailed(hold_out(data, 0.1), 18).counts.tolist() == [180, 42, 10]
    assert long_tailed(hold_out(data, 0.1), 18).groups.index == (0, 1, 2)  # not those of the balanced set


def test_a_class_without_images_cannot_be_long_tailed_and_is_named():
    with pytest.raises(ValueError, match="class"):
        long_tailed(dataset_of([5, 0, 5]), 2)


COUNTED = "counting those held out for validation"


@pytest.mark.parametrize("cut", ["auto", "100,20", "quantiles"])
def test_held_out_images_do_not_change_the_groups(cut):
    whole = dataset_of([111, 101, 30, 20, 19, 20], cut=cut)
    once = hold_out(whole, 0.2)
    assert Groups.from_counts(once.counts) != Groups.from_counts(whole.counts)
    assert hold_out(once, 0.2).groups == once.groups == whole.groups
    assert "counting" not in whole.groups_from
    assert hold_out(once, 0.2).groups_from == once.groups_from == f"{whole.groups_from}, {COUNTED}"


def test_made_from_balanced_data_the_groups_follow_the_new_counts():
    found = long_tailed(dataset_of([500] * 6), 10)  # 500…50: no tail below 20
    assert found.groups.index == (0, 0, 1, 1, 2, 2)
    assert "give no tail" in found.groups_from

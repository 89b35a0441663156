"""Class counts, the imbalance factor, and groups of classes."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses.reference import property_test, refused

from longtail import Groups, GroupValues, class_counts, imbalance_factor
from longtail.classes import cut_groups, group_bounds


class TestClassCounts:
    """`class_counts`."""

    @property_test
    @given(
        labels=st.lists(st.integers(0, 9), max_size=60),
        more=st.integers(0, 5),
        dtype=st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64]),
    )
    def test_against_numpy(self, labels: list[int], more: int, dtype: Any) -> None:
        """Lists, arrays and tensors of any integer type give the result of ``numpy.bincount``."""
        classes = max(labels, default=0) + 1 + more
        expected = np.bincount(np.array(labels, dtype=int), minlength=classes)
        for given_labels in (labels, tuple(labels), np.array(labels, dtype=dtype), torch.tensor(labels).long()):
            counts = class_counts(given_labels, classes)
            assert counts.dtype == torch.int64
            assert counts.shape == (classes,)
            assert counts.tolist() == expected.tolist()

    @pytest.mark.parametrize("labels", [torch.tensor(1), torch.eye(3).long(), np.full((2, 3), 1 / 3), [[0, 1], [2, 1]]])
    def test_labels_that_are_not_one_dimensional(self, labels: Any) -> None:
        """One-hot labels and probabilities would give counts of zeros and ones."""
        with refused(ValueError, "`labels`", "argmax", "flatten"):
            class_counts(labels, 3)

    def test_empty_labels(self) -> None:
        """Without labels every count is 0."""
        for labels in ([], np.array([], dtype=int), torch.tensor([])):
            assert class_counts(labels, 3).tolist() == [0, 0, 0]

    def test_number_of_classes_may_be_a_numpy_integer(self) -> None:
        """``labels.max() + 1`` of an array is a numpy integer."""
        labels = np.array([0, 2, 1])
        assert class_counts(labels, labels.max() + 1).tolist() == [1, 1, 1]

    @pytest.mark.parametrize("ignored", [-100, 1])
    def test_ignored_labels_are_not_counted(self, ignored: int) -> None:
        """The ignored label may be in range or not, as for the losses."""
        for labels in ([0, ignored, 2, 2], np.array([0, ignored, 2, 2]), torch.tensor([2, 0, 2, ignored])):
            assert class_counts(labels, 3, ignore_index=ignored).tolist() == [1, 0, 2]
        assert class_counts([ignored], 3, ignore_index=ignored).tolist() == [0, 0, 0]

    def test_other_negative_labels_are_refused(self) -> None:
        """Only ``ignore_index`` is ignored."""
        with refused(ValueError, "`labels`", "0…2", "-1"):
            class_counts([0, -1, 255], 3, ignore_index=255)
        with refused(TypeError, "`ignore_index`", "'255'"):
            class_counts([0, 1, 255], 3, ignore_index="255")

    def test_error_for_minus_100_names_ignore_index(self) -> None:
        """-100 is the default of the losses; the hint is not given for other labels."""
        with refused(ValueError, "but got -100; ignore_index=-100 "):
            class_counts([0, -100, 2], 3)
        with pytest.raises(ValueError, match=r"but got 3\.$"):
            class_counts([0, 3, 2], 3)

    @pytest.mark.parametrize(("label", "value"), [(3, "3"), (-100, "-100")])
    def test_labels_out_of_range(self, label: int, value: str) -> None:
        """The error names the label and the range."""
        with refused(ValueError, "`labels`", "0…2", value):
            class_counts([0, label, 2], 3)

    def test_many_labels_out_of_range_are_not_all_listed(self) -> None:
        """The error lists the first labels and their number."""
        with refused(ValueError, "`labels`", "3, 4, 5", "97 in all"):
            class_counts(range(100), 3)

    @pytest.mark.parametrize(
        ("labels", "kind"),
        [
            ([0.0, 1.0], "float64"),
            ([0.5], "float64"),
            ([float("nan")], "float64"),
            (torch.tensor([1.0]), "float32"),
            ([True, False], "bool"),
            (torch.tensor([1j]), "complex64"),
            (["cat", "dog"], ""),
            ("cat", ""),
            (None, "None"),
            ([[0, 1], [2]], ""),
        ],
        ids=str,
    )
    def test_labels_of_another_type(self, labels: Any, kind: str) -> None:
        """Labels that are not integers are refused."""
        with refused(TypeError, "`labels`", kind):
            class_counts(labels, 3)

    @pytest.mark.parametrize("number", [0, 2.0], ids=repr)
    def test_number_of_classes(self, number: Any) -> None:
        """`num_classes` is an integer >= 1."""
        with refused((ValueError, TypeError), "`num_classes`", repr(number)):
            class_counts([0], number)


class TestImbalanceFactor:
    """`imbalance_factor`: the largest count divided by the smallest."""

    @property_test
    @given(counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
    def test_against_python(self, counts: list[int]) -> None:
        """Lists, arrays and tensors give the same factor."""
        assert imbalance_factor(counts) == max(counts) / min(counts)
        assert imbalance_factor(torch.tensor(counts)) == max(counts) / min(counts)

    def test_bad_counts(self) -> None:
        """A count of 0 is refused."""
        with refused(ValueError, "`counts`", "0"):
            imbalance_factor([5, 0])
        with refused(ValueError, "`counts`", "-1"):
            imbalance_factor([5, -1])
        with refused(ValueError, "`counts`", "(0,)"):
            imbalance_factor([])


class TestCut:
    """Construction of `Groups`."""

    def test_cuts_of_the_paper(self) -> None:
        """Head has more than 100, medium 20 to 100, tail fewer than 20 examples."""
        groups = Groups.from_counts([19, 20, 100, 101, 1280, 0, 1])
        assert groups.names == ("head", "medium", "tail")
        assert groups.index == (2, 1, 1, 0, 0, 2, 2)
        assert groups.members("head") == (3, 4)
        assert groups.members("medium") == (1, 2)
        assert groups.members("tail") == (0, 5, 6)
        assert groups.sizes == {"head": 2, "medium": 2, "tail": 3}
        assert groups.num_classes == 7

    def test_other_cuts(self) -> None:
        """The groups of LVIS: more than 100, 11 to 100, at most 10 images."""
        groups = Groups.from_counts([10, 11, 100, 101], head_over=100, tail_under=11)
        assert groups.sizes == {"head": 1, "medium": 2, "tail": 1}

    def test_cuts_without_a_medium_group(self) -> None:
        """If both cuts meet, medium is empty and no class is in two groups."""
        assert Groups.from_counts([5, 10, 11], head_over=10, tail_under=11).sizes == {"head": 1, "medium": 0, "tail": 2}

    @property_test
    @given(
        counts=st.lists(st.integers(0, 300), min_size=1, max_size=40),
        tail_under=st.integers(0, 100),
        more=st.integers(-1, 100),
    )
    def test_every_class_in_one_group(self, counts: list[int], tail_under: int, more: int) -> None:
        """Every class is in exactly one group, the one that its count says."""
        head_over = max(tail_under + more, 0)
        groups = Groups.from_counts(counts, head_over, tail_under)
        assert sum(groups.sizes.values()) == groups.num_classes == len(counts)
        head, medium, tail = (set(groups.members(name)) for name in ("head", "medium", "tail"))
        assert head == {c for c, n in enumerate(counts) if n > head_over}
        assert medium == {c for c, n in enumerate(counts) if tail_under <= n <= head_over}
        assert tail == {c for c, n in enumerate(counts) if n < tail_under and n <= head_over}

    def test_groups_from_indices(self) -> None:
        """The paper groups the classes of CIFAR-100 by index; indices may be in any order."""
        groups = Groups.from_indices(head=range(35), medium=range(35, 70), tail=range(70, 100))
        assert groups.sizes == {"head": 35, "medium": 35, "tail": 30}
        mixed = Groups.from_indices(rare=[2, 0], common=np.array([1, 3]), none=torch.tensor([], dtype=torch.int64))
        assert mixed.names == ("rare", "common", "none")
        assert mixed.index == (0, 1, 0, 1)
        assert mixed.members("none") == ()
        assert mixed.sizes == {"rare": 2, "common": 2, "none": 0}

    def test_groups_are_values(self) -> None:
        """Groups can be compared, hashed, copied and pickled, but not changed."""
        one, other = Groups.from_counts([500, 50, 5]), Groups.from_indices(head=[0], medium=[1], tail=[2])
        assert one == other
        assert hash(one) == hash(other)
        assert one.means([1, 2, 3]) == other.means([1, 2, 3])
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
        with pytest.raises(AttributeError):
            one.names = ("a",)

    @pytest.mark.parametrize(
        ("groups", "words"),
        [
            ({"head": [0, 1], "tail": [1, 2]}, ["class 1 2 times"]),
            ({"head": [0, 0], "tail": [1]}, ["class 0 2 times"]),
            ({"head": [0], "tail": [2]}, ["class 1 0 times"]),
            ({"head": [-1, 0], "tail": [1]}, ["class -1"]),
            ({"head": [], "tail": []}, ["class"]),
            ({}, ["class"]),
        ],
        ids=str,
    )
    def test_wrong_indices_are_refused(self, groups: dict[str, list[int]], words: list[str]) -> None:
        """Each class must be in exactly one group."""
        with refused(ValueError, *words):
            Groups.from_indices(**groups)

    @pytest.mark.parametrize("classes", [[0.7], ["a"], None], ids=repr)
    def test_indices_of_another_type(self, classes: Any) -> None:
        """Indices are integers."""
        with refused((TypeError, ValueError), "`head`"):
            Groups.from_indices(head=classes, tail=[1])

    def test_cuts_in_the_wrong_order_are_refused(self) -> None:
        """Otherwise a class would be in head and in tail."""
        with refused(ValueError, "`tail_under`", "`head_over`", 20, 10):
            Groups.from_counts([5], head_over=10, tail_under=20)

    @pytest.mark.parametrize("cut", ["head_over", "tail_under"])
    @pytest.mark.parametrize("value", [-1, "many"], ids=repr)
    def test_cuts_that_are_not_numbers_are_refused(self, cut: str, value: Any) -> None:
        """Cuts are numbers >= 0."""
        with refused((ValueError, TypeError), f"`{cut}`", value):
            Groups.from_counts([5], **{cut: value})

    @property_test
    @given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=40))
    def test_quantiles(self, counts: list[int]) -> None:
        """Thirds of the classes by mean rank, as scipy ranks them; ties stay together, head and tail exist."""
        found, third = Groups.from_quantiles(counts), len(counts) // 3
        if len(set(counts)) == 1:
            assert found.sizes["medium"] == len(counts)
            return
        ranks = scipy.stats.rankdata([-count for count in counts]) - 0.5
        for count, rank, group in zip(counts, ranks, found.index, strict=True):
            by_rank = 0 if rank < third else 2 if rank >= 2 * third else 1
            assert group == (0 if count == max(counts) else 2 if count == min(counts) else by_rank)

    @pytest.mark.parametrize(
        ("rule", "counts", "index", "words"),
        [
            ("auto", [500, 50, 5], (0, 1, 2), "more than 100"),
            ("auto", [5000, 300, 50], (0, 1, 2), "give no tail"),
            ("auto", [90, 30, 15], (0, 1, 2), "give no head"),
            ("auto", [50, 40], (0, 2), "give no head and no tail"),
            ("auto", [50, 50], (1, 1), "more than 100"),
            ("40.5, 30", [41, 40, 29], (0, 1, 2), "more than 40.5"),
            ("quantiles", [500, 50, 5], (0, 1, 2), "thirds"),
        ],
        ids=str,
    )
    def test_cut_by_the_setting(self, rule: str, counts: list[int], index: tuple[int, ...], words: str) -> None:
        """100 and 20 where that gives a head and a tail, otherwise thirds of the classes."""
        found, how = cut_groups(rule, counts, "abc"[: len(counts)])
        assert found.index == index
        assert words in how

    def test_groups_without_test_data_are_not_the_default(self) -> None:
        """Their recall would be unknown: PlantDoc has one class with fewer than 20 images, and none in test."""
        counts = [179, 120, 90, 60, 50, 2]
        usual, thirds = (0, 0, 1, 1, 1, 2), (0, 0, 1, 1, 2, 2)
        for rule, tested, index, words in [
            ("auto", None, usual, "more than 100"),
            ("auto", range(6), usual, "more than 100"),
            ("auto", range(5), thirds, "give no tail with test data"),
            ("auto", [2, 5], thirds, "give no head with test data"),
            ("100,20", range(5), usual, "more than 100"),
        ]:
            found, how = cut_groups(rule, counts, "abcdef", tested)
            assert found.index == index
            assert words in how

    def test_cut_by_a_file(self, tmp_path: Path) -> None:
        """Classes by name or index; each in one group."""
        file = tmp_path / "groups.json"
        for content, words in [
            ({"rare": ["c"], "frequent": ["a", 1]}, ()),
            ({"rare": ["c"], "frequent": ["a"]}, ("'b'", "in none")),
            ({"rare": ["c", 0], "frequent": ["a", "b"]}, ("'a'", "twice")),
            ({"rare": ["x"]}, ("'x'",)),
            ({"rare": [True, 0, 2]}, ("True",)),
            (["a", "b", "c"], ("lists of classes by group",)),
            ({"all": ["a", "b", "c"]}, ("lists of classes by group",)),
        ]:
            file.write_text(json.dumps(content))
            if not words:
                assert cut_groups(str(file), [1, 2, 3], "abc")[0] == Groups(("rare", "frequent"), (1, 1, 0))
                continue
            with refused(ValueError, str(file), *words):
                cut_groups(str(file), [1, 2, 3], "abc")
        with refused(FileNotFoundError, "none.json"):
            cut_groups("none.json", [1, 2, 3], "abc")

    @pytest.mark.parametrize("rule", ["thirds", "100", "100,20,5", "20,100", "-1,-2", "nan,1", ""])
    def test_unknown_settings_are_refused(self, rule: str) -> None:
        """The message shows what is possible."""
        with refused(ValueError, "`groups`", "quantiles", "100,20", rule):
            group_bounds(rule)

    @pytest.mark.parametrize("counts", [[5, -1], []], ids=str)
    def test_bad_counts(self, counts: list[float]) -> None:
        """Counts are numbers >= 0, at least one."""
        with refused(ValueError, "`counts`"):
            Groups.from_counts(counts)

    @pytest.mark.parametrize(
        ("names", "index", "argument"),
        [
            ((), (0,), "`names`"),
            (("a", "a"), (0, 1), "`names`"),
            (("all", "rest"), (0, 1), "'all'"),
            (("a",), (0, 1), "`index`"),
            (("a", "b"), (0, -1), "`index`"),
            (("a",), (), "`index`"),
        ],
    )
    def test_wrong_names_or_index(self, names: tuple[str, ...], index: tuple[int, ...], argument: str) -> None:
        """Names are unique, and the index of every class is that of a name."""
        with refused(ValueError, argument):
            Groups(names, index)

    def test_fractional_index_is_refused(self) -> None:
        """The index holds integers."""
        with refused((ValueError, TypeError), "`index`", "0.5"):
            Groups(("a", "b"), (0, 0.5))

    def test_unknown_group_is_refused(self) -> None:
        """The error names the group and the known ones."""
        with refused(ValueError, "`name`", "'few'", "head, medium, tail"):
            Groups.from_counts([5]).members("few")


class TestMeans:
    """Sums and means over groups."""

    @property_test
    @given(
        index=st.lists(st.integers(0, 3), min_size=1, max_size=30),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_against_numpy(self, index: list[int], seed: int) -> None:
        """Plain, masked and weighted means equal those of numpy; empty groups are skipped."""
        rng = np.random.default_rng(seed)
        groups = Groups(("a", "b", "c", "d"), tuple(index))
        values, weights = rng.random(len(index)), rng.random(len(index)) + 0.1
        where = rng.random(len(index)) < 0.5
        member = [np.array(index) == g for g in range(4)]
        assert_allclose(groups.sums(values), [values[m].sum() for m in member], atol=1e-12)
        for keep, weight in ((None, None), (where, None), (None, weights), (where, weights)):
            means = groups.means(
                values,
                None if keep is None else torch.tensor(keep),
                weights=None if weight is None else torch.tensor(weight),
            )
            kept = [m if keep is None else m & keep for m in member]
            expected = {
                name: np.average(values[m], weights=None if weight is None else weight[m])
                for name, m in zip(groups.names, kept, strict=True)
                if m.any()
            }
            assert list(means) == list(expected)
            assert_allclose(list(means.values()), list(expected.values()))
            assert means.skipped == tuple(name for name in groups.names if name not in expected)

    def test_empty_groups_are_skipped_and_named(self) -> None:
        """The result and its text name the skipped groups."""
        means = Groups.from_counts([500, 400, 5]).means([0.9, 0.7, 0.2])
        assert dict(means) == pytest.approx({"head": 0.8, "tail": 0.2})
        assert means.skipped == ("medium",)
        assert "medium" in repr(means)
        assert "medium" not in means
        assert Groups.from_counts([500, 50, 5]).means([1, 1, 1]).skipped == ()
        assert "skipped" not in repr(Groups.from_counts([500, 50, 5]).means([1, 1, 1]))

    def test_masked_values_may_be_nan(self) -> None:
        """Values outside of `where` are not used."""
        means = Groups.from_counts([500, 500, 5]).means([0.5, float("nan"), 0.1], torch.tensor([True, False, True]))
        assert dict(means) == pytest.approx({"head": 0.5, "tail": 0.1})
        assert means.skipped == ("medium",)

    def test_group_with_zero_weight_is_skipped(self) -> None:
        """It has nothing to average."""
        means = Groups.from_counts([500, 5]).means([0.5, 0.1], weights=torch.tensor([1.0, 0.0]))
        assert means.skipped == ("medium", "tail")

    @pytest.mark.parametrize(
        "values",
        [
            (0.9, 0.5, 0.1),
            np.array([0.9, 0.5, 0.1], dtype=np.float32),
            torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64, requires_grad=True),
        ],
        ids=["tuple", "array", "tensor"],
    )
    def test_values_in_any_container(self, values: Any) -> None:
        """Tuples, arrays and tensors that need gradients are accepted."""
        means = Groups.from_counts([500, 50, 5]).means(values)
        assert dict(means) == pytest.approx({"head": 0.9, "medium": 0.5, "tail": 0.1})
        assert all(type(mean) is float for mean in means.values())

    def test_where_and_weights_in_any_container(self) -> None:
        """Lists and arrays are accepted."""
        groups = Groups.from_counts([500, 500, 5])
        assert dict(groups.means([0.9, 0.5, 0.1], [True, False, True])) == pytest.approx({"head": 0.9, "tail": 0.1})
        weighted = groups.means([0.9, 0.5, 0.1], weights=np.array([3, 1, 1]))
        assert dict(weighted) == pytest.approx({"head": 0.8, "tail": 0.1})

    def test_sums_of_rows(self) -> None:
        """Dimension 0 holds the classes; the others are kept."""
        sums = Groups.from_counts([500, 5, 400]).sums(torch.arange(6.0).reshape(3, 2))
        assert sums.tolist() == [[4.0, 6.0], [0.0, 0.0], [2.0, 3.0]]
        assert sums.dtype == torch.float64

    @pytest.mark.parametrize("values", [[0.5], 0.5, []], ids=str)
    def test_values_of_another_length(self, values: Any) -> None:
        """There must be one value per class."""
        groups = Groups.from_counts([500, 50, 5])
        shape = tuple(np.shape(values))
        with refused(ValueError, "`values`", 3, shape):
            groups.means(values)
        with refused(ValueError, "`values`", 3, shape):
            groups.sums(values)

    @pytest.mark.parametrize("length", [1, 4])
    def test_where_and_weights_of_another_length(self, length: int) -> None:
        """There must be one per class; the error names the argument."""
        groups = Groups.from_counts([500, 50, 5])
        with refused(ValueError, "`where`", 3, f"({length},)"):
            groups.means([1.0, 2.0, 3.0], torch.ones(length, dtype=torch.bool))
        with refused(ValueError, "`weights`", 3, f"({length},)"):
            groups.means([1.0, 2.0, 3.0], weights=torch.ones(length))

    def test_means_of_rows(self) -> None:
        """Means of rows are refused."""
        with refused((ValueError, TypeError), "`values`", "(3, 2)"):
            Groups.from_counts([500, 50, 5]).means(torch.ones(3, 2))

    @pytest.mark.parametrize("values", ["abc", None], ids=repr)
    def test_values_of_another_type(self, values: Any) -> None:
        """Values must be numbers."""
        with refused(TypeError, "`values`"):
            Groups.from_counts([500, 50, 5]).means(values)

    def test_result_can_be_copied(self) -> None:
        """A copy keeps the skipped groups."""
        means = GroupValues({"head": 0.5}, ("tail",))
        for twin in (copy.copy(means), copy.deepcopy(means), pickle.loads(pickle.dumps(means))):
            assert twin == means
            assert twin.skipped == ("tail",)
            assert repr(twin) == repr(means)

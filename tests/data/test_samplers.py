import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longtail.data.sampling.draws import Draws
from longtail.data.sampling.samplers import ClassAware, Instance, Progressive, SquareRoot, shard

COUNTS = [900, 300, 90, 30, 9, 1]
SAMPLERS = [Instance(), ClassAware(), ClassAware(per_class=1, length=777), SquareRoot(), Progressive(10)]


def shuffled_labels(counts, seed=0):
    return torch.tensor(np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)))


def frequencies(sampler, labels, draws, num_classes):
    return labels[torch.cat([sampler.order(labels, each) for each in draws])].bincount(minlength=num_classes).numpy()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
class TestEverySampler:
    def test_an_order_is_a_function_of_seed_and_epoch(self, sampler):
        labels = shuffled_labels(COUNTS)
        orders = [sampler.order(labels, Draws(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
        for i, order in enumerate(orders):
            assert torch.equal(order, sampler.order(labels, Draws(i // 2, i % 2)))
            assert not any(torch.equal(order, other) for other in orders[:i])

    def test_labels_of_any_type_and_classes_without_samples(self, sampler):
        labels = shuffled_labels(COUNTS)
        expected = sampler.order(labels, Draws(0, 1))
        assert expected.dtype == torch.int64
        assert expected.shape == (getattr(sampler, "length", None) or len(labels),)
        assert expected.min() >= 0
        assert expected.max() < len(labels)
        for form in (labels.tolist(), labels.numpy(), labels.to(torch.uint8)):
            assert torch.equal(sampler.order(form, Draws(0, 1)), expected)
        with_empty_classes = torch.tensor([2, 3, 7, 11, 12, 40])[labels]
        assert torch.equal(sampler.order(with_empty_classes, Draws(0, 1)), expected)
        assert set(sampler.order([5], Draws(0, 0)).tolist()) == {0}

    def test_both_halves_of_an_epoch_have_the_same_classes(self, sampler):
        labels = shuffled_labels([600, 600])
        order = labels[sampler.order(labels, Draws(0, 5))]
        half = len(order) // 2
        assert abs(order[:half].double().mean() - order[half:].double().mean()) < 0.15

    def test_bad_labels(self, sampler):
        for labels, error in (([], ValueError), ([[0, 1]], ValueError), ([0.0, float("nan")], TypeError)):
            with pytest.raises(error, match="`labels`"):
                sampler.order(labels, Draws(0, 0))

    @pytest.mark.slow
    def test_inaturalist_is_fast(self, sampler):
        weights = 1 / np.arange(1, 8143) ** 0.8
        labels = shuffled_labels(np.maximum((weights / weights.sum() * 437_513).astype(int), 2))
        began = time.perf_counter()
        sampler.order(labels, Draws(0, 0))
        assert time.perf_counter() - began < 2  # a tenth of that on an idle machine


@pytest.mark.parametrize("sampler", [ClassAware(), SquareRoot(), Progressive(1)], ids=str)
def test_negative_labels(sampler):
    with pytest.raises(ValueError, match="`labels` to be in 0…0, but got -1"):
        sampler.order([-1, 0], Draws(0, 0))


def test_pinned_orders():  # published results rest on these: a change here changes every run
    labels, draws = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2], Draws(seed=7, epoch=2)
    assert Instance().order(labels, draws).tolist() == [9, 3, 5, 4, 6, 1, 0, 7, 2, 8]
    assert ClassAware(2, 14).order(labels, draws).tolist() == [8, 9, 2, 4, 7, 5, 8, 9, 0, 1, 6, 6, 8, 9]
    assert SquareRoot().order(labels, draws).tolist() == [5, 7, 5, 7, 8, 9, 9, 5, 4, 0]
    assert Progressive(4).order(labels, draws).tolist() == [5, 7, 5, 7, 8, 9, 9, 5, 4, 0]


def test_instance_is_the_permutation():
    order = Instance().order(shuffled_labels(COUNTS), Draws(4, 5))
    assert torch.equal(order, Draws(4, 5).permutation(sum(COUNTS)))
    assert sorted(order.tolist()) == list(range(sum(COUNTS)))


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any),
    per_class=st.integers(1, 6),
    length=st.none() | st.integers(1, 200),
    seed=st.integers(0, 50),
)
def test_class_aware_structure(counts, per_class, length, seed):
    labels = shuffled_labels(counts, seed)
    order = ClassAware(per_class, length).order(labels, Draws(seed, 0))
    assert len(order) == (length or sum(counts))
    present = {c for c, count in enumerate(counts) if count}
    turns = [labels[order[i : i + per_class]].tolist() for i in range(0, len(order), per_class)]

    assert all(len(set(turn)) == 1 for turn in turns)  # a turn is one class
    classes = [turn[0] for turn in turns]
    for i in range(0, len(classes), len(present)):  # a round is every class once
        round_ = classes[i : i + len(present)]
        assert len(set(round_)) == len(round_)
        assert set(round_) <= present
        assert len(round_) == len(present) or i + len(present) > len(classes)

    for c in present:  # all samples of a class before one repeats
        visits = order[labels[order] == c].tolist()
        for i in range(0, len(visits), counts[c]):
            one_pass = visits[i : i + counts[c]]
            assert len(set(one_pass)) == len(one_pass)


def test_class_aware_sees_every_class_equally_often():
    labels = shuffled_labels(COUNTS)
    order = ClassAware(per_class=4, length=6 * 4 * 50).order(labels, Draws(0, 0))
    assert labels[order].bincount().tolist() == [200] * 6
    uses = Counter(order.tolist())
    for c, count in enumerate(COUNTS):  # and every sample of a class, to one
        of_class = [uses[i] for i in (labels == c).nonzero().flatten().tolist()]
        assert max(of_class) - min(of_class) <= 1, count


def test_class_aware_shuffles_anew():
    labels = torch.arange(5).repeat_interleave(8)
    order = ClassAware(per_class=8, length=5 * 8 * 40).order(labels, Draws(0, 0))
    rounds = labels[order].view(40, 5, 8)[:, :, 0]
    assert len({tuple(each.tolist()) for each in rounds}) > 25  # of 120 lists of classes
    passes = order[labels[order] == 3].view(40, 8)
    assert len({tuple(each.tolist()) for each in passes}) == 40  # of 40,320 lists of samples


def test_class_aware_lists_are_uniform():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    orders = torch.stack([ClassAware(2, 6).order(labels, Draws(seed, 0)) for seed in range(1500)])
    first_class = labels[orders[:, 0]]
    assert stats.chisquare(first_class.bincount(minlength=3).numpy()).pvalue > 1e-3
    first_of_class_1 = torch.tensor([order[labels[order] == 1][0] for order in orders]) - 3
    assert stats.chisquare(first_of_class_1.bincount(minlength=4).numpy()).pvalue > 1e-3


def test_square_root_frequencies():
    labels = shuffled_labels(COUNTS)
    observed = frequencies(SquareRoot(), labels, [Draws(1, epoch) for epoch in range(50)], 6)
    probability = np.sqrt(COUNTS) / np.sqrt(COUNTS).sum()
    assert stats.chisquare(observed, probability * observed.sum()).pvalue > 1e-3


@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_progressive_frequencies(epoch):
    labels = shuffled_labels(COUNTS)
    observed = frequencies(Progressive(5), labels, [Draws(seed, epoch) for seed in range(50)], 6)
    t = epoch / 4
    probability = np.array([(1 - t) * count / sum(COUNTS) + t / 6 for count in COUNTS])
    assert stats.chisquare(observed, probability * observed.sum()).pvalue > 1e-3


def test_progressive_from_a_later_epoch_on():
    labels = shuffled_labels([60, 40, 7])
    first = Progressive(3, first=3).order(labels, Draws(0, 3))
    assert torch.equal(first, Progressive(1, first=3).order(labels, Draws(0, 3)))  # instance-balanced
    half = Progressive(3, first=3).order(labels, Draws(0, 4))
    assert torch.equal(half, Progressive(9).order(labels, Draws(0, 4)))
    last = Progressive(3, first=3).order(labels, Draws(0, 5))
    assert torch.equal(last, Progressive(6).order(labels, Draws(0, 5)))  # class-balanced


def test_progressive_counts_only_classes_with_samples():
    labels = 2 * shuffled_labels([800, 200])  # class 1 is empty
    observed = frequencies(Progressive(3), labels, [Draws(seed, 2) for seed in range(20)], 3)
    assert observed[1] == 0
    assert stats.binomtest(int(observed[0]), int(observed.sum()), 0.5).pvalue > 1e-3


def test_progressive_over_one_epoch_is_instance_balanced():
    labels = shuffled_labels([800, 200])
    observed = frequencies(Progressive(1), labels, [Draws(seed, 0) for seed in range(20)], 2)
    assert stats.binomtest(int(observed[0]), int(observed.sum()), 0.8).pvalue > 1e-3


@pytest.mark.parametrize("sampler", [SquareRoot(), Progressive(3)], ids=str)
def test_within_a_class_samples_are_equally_likely(sampler):
    labels = shuffled_labels([60, 40, 7])
    picks = torch.cat([sampler.order(labels, Draws(seed, 1)) for seed in range(400)]).bincount(minlength=107)
    for c in range(3):
        assert stats.chisquare(picks[labels == c].numpy()).pvalue > 1e-3


def test_the_smallest_largest_and_boundary_words(monkeypatch):
    last, third, half = 2**64 - 1, -(-(2**64) // 3), 2**63
    labels = [0, 0, 0, 1, 1, 1]
    words = [[0, 0], [last, last], [half - 2**11, third - 1], [half, third], [half, 2 * third - 2], [0, 2 * third]]
    monkeypatch.setattr(Draws, "words", lambda *_: np.array(words, dtype=np.uint64))
    # class 1 from a half on; of three samples the second from a third on, the third from two thirds on
    assert SquareRoot().order(labels, Draws(0, 0)).tolist() == [0, 5, 0, 4, 4, 2]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ClassAware(0), "per_class"),
        (lambda: ClassAware(length=0), "length"),
        (lambda: Progressive(0), "total_epochs"),
        (lambda: Progressive(1, first=-1), "first"),
        (lambda: Progressive(5).order([0, 1], Draws(0, 5)), "draws.epoch"),
        (lambda: Progressive(5, first=3).order([0, 1], Draws(0, 2)), "draws.epoch"),
    ],
)
def test_bad_samplers(make, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        make()


sizes, worlds = st.integers(0, 60), st.integers(1, 9)


@settings(deadline=None, max_examples=80)
@given(sizes, worlds)
def test_without_padding_nothing_is_dropped_or_counted_twice(n, world):
    order = Draws(0, 0).permutation(n)
    parts = [shard(order, rank, world, pad=False) for rank in range(world)]
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@settings(deadline=None, max_examples=80)
@given(sizes, worlds)
def test_with_padding_all_ranks_have_the_same_number(n, world):
    order = Draws(0, 0).permutation(n)
    parts = [shard(order, rank, world, pad=True) for rank in range(world)]
    assert {len(part) for part in parts} == {-(-n // world)}
    visited = torch.stack(parts, dim=1).flatten().tolist()  # rank by rank in turn
    assert visited[:n] == order.tolist()
    assert visited[n:] == (order.tolist() * world)[: len(visited) - n]  # repeated from the start
    assert len(visited) - n < world


@settings(deadline=None, max_examples=80)
@given(sizes, worlds, st.integers(1, 8), st.booleans())
def test_the_ranks_kth_batches_are_the_single_process_kth_batch(n, world, batch, pad):
    order = Draws(0, 0).permutation(n)
    parts = [shard(order, rank, world, pad=pad) for rank in range(world)]
    single = order.split(batch * world) if n else ()
    for k, expected in enumerate(single):
        together = torch.cat([part[k * batch : (k + 1) * batch] for part in parts]).tolist()
        if pad and k == len(single) - 1:  # what is repeated comes with the last batch
            padding = -n % world
            assert sorted(together) == sorted(expected.tolist() + (order.tolist() * world)[:padding])
        else:
            assert sorted(together) == sorted(expected.tolist())


def test_a_ranks_draws_are_those_of_its_positions():
    draws, order = Draws(2, 3), Draws(2, 3).permutation(24)
    numbers = draws.uniforms(0, 24, 3)
    of_sample = {int(i): row for i, row in zip(order, numbers, strict=True)}
    for rank in range(2):
        part = shard(order, rank, 2, pad=True)
        for start in (0, 8, 16):  # global batches of 8, four a rank
            mine = draws.uniforms(start, start + 8, 3)[rank::2]
            for i, row in zip(part[start // 2 : start // 2 + 4], mine, strict=True):
                assert torch.equal(row, of_sample[int(i)])


def test_shard_takes_rows():
    rows = torch.arange(10).view(5, 2)
    assert shard(rows, 1, 2, pad=True).tolist() == [[2, 3], [6, 7], [0, 1]]


def test_bad_shards():
    with pytest.raises(ValueError, match="`rank` to be below `world` = 2"):
        shard(torch.arange(3), 2, 2, pad=True)
    with pytest.raises(ValueError, match="`rank`"):
        shard(torch.arange(3), -1, 2, pad=True)
    with pytest.raises(ValueError, match="`world`"):
        shard(torch.arange(3), 0, 0, pad=True)
    with pytest.raises(TypeError, match="`order`"):
        shard([0, 1], 0, 1, pad=True)

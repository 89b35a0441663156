"""EpochSampler in a DataLoader: class frequencies, ranks, epochs, and resuming."""

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from longtail.data import ClassAware, Draws, EpochSampler, Instance, Progressive, SquareRoot

COUNTS = np.array([3000, 700, 90, 11])
LABELS = torch.tensor(np.random.default_rng(0).permutation(np.repeat(np.arange(4), COUNTS)))
SAMPLERS = [Instance(), ClassAware(), ClassAware(per_class=1, length=777), SquareRoot(), Progressive(10)]


@pytest.mark.parametrize(
    ("sampler", "epoch", "shares"),
    [
        (SquareRoot(), 0, np.sqrt(COUNTS)),
        (Progressive(5), 0, COUNTS / COUNTS.sum()),
        (Progressive(5), 3, COUNTS / COUNTS.sum() / 4 + 3 / 4 / 4),
        (Progressive(5, first=2), 6, np.ones(4)),
    ],
    ids=str,
)
def test_class_frequencies(sampler, epoch, shares):
    """All ranks together draw classes with the probabilities of the formula."""
    seen = []
    for rank in range(2):
        found = EpochSampler(LABELS, sampler, rank=rank, world=2)
        found.set_epoch(epoch)
        loader = DataLoader(TensorDataset(LABELS), batch_size=100, sampler=found)
        assert len(loader) == -(-len(found) // 100)
        seen.append(torch.cat([batch for (batch,) in loader]))
    drawn = torch.cat(seen).bincount(minlength=4).numpy()
    expected = shares / shares.sum() * drawn.sum()
    assert stats.chisquare(drawn, expected).pvalue > 0.001


def test_class_aware_draws_every_class_equally_often():
    drawn = LABELS[list(EpochSampler(LABELS, ClassAware(per_class=2, length=800)))].bincount(minlength=4)
    assert drawn.tolist() == [200] * 4


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_partition_the_epoch(sampler, world):
    """Interleaved, the ranks are the epoch of one process; its first samples fill the last row."""
    parts = []
    for rank in range(world):
        part = EpochSampler(LABELS, sampler, seed=5, rank=rank, world=world)
        part.set_epoch(4)
        parts.append(list(part))
        assert len(part) == len(parts[-1])
    together = np.stack(parts, 1).reshape(-1)
    whole = sampler.order(LABELS, Draws(5, 4)).numpy()
    assert together[: len(whole)].tolist() == whole.tolist()
    assert together[len(whole) :].tolist() == whole[: len(together) - len(whole)].tolist()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_resume_yields_the_rest(sampler):
    settings = {"seed": 1, "rank": 1, "world": 2}
    first = EpochSampler(LABELS, sampler, **settings)
    first.set_epoch(2)
    loader = iter(DataLoader(TensorDataset(torch.arange(len(LABELS))), batch_size=32, sampler=first))
    for _ in range(5):
        next(loader)
    state = json.loads(json.dumps(first.state_dict()))
    rest = torch.cat([batch for (batch,) in loader]).tolist()
    second = EpochSampler(LABELS, sampler, **settings)
    second.load_state_dict(state)
    assert list(second) == rest
    assert len(list(second)) == len(second)  # the next epoch is whole
    first.set_epoch(3)
    second.set_epoch(3)
    assert list(first) == list(second)


def test_resume_with_workers_needs_the_position():
    """Workers read ahead of training, so the number of samples that were used is passed."""
    sampler = EpochSampler(LABELS, SquareRoot())
    loader = iter(DataLoader(TensorDataset(torch.arange(len(LABELS))), batch_size=10, sampler=sampler, num_workers=1))
    used = [next(loader)[0] for _ in range(3)]
    state = sampler.state_dict(position=30)
    assert sampler.state_dict()["position"] > 30
    other = EpochSampler(LABELS, SquareRoot())
    whole = list(EpochSampler(LABELS, SquareRoot()))
    other.load_state_dict(state)
    assert torch.cat(used).tolist() == whole[:30]
    assert list(other) == whole[30:]


def test_epochs_differ_and_set_epoch_starts_anew():
    sampler = EpochSampler(LABELS, Instance())
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def draw_of_rank(rank, folder):
    """What a process of two draws in epoch 3, and again from the state after five samples."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        sampler = EpochSampler(LABELS, ClassAware(length=3800), seed=4)
        sampler.set_epoch(3)
        drawn, steps = [], iter(sampler)
        drawn += [next(steps) for _ in range(5)]
        again = EpochSampler(LABELS, ClassAware(length=3800), seed=4)
        again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        drawn += list(steps)
        (folder / f"{rank}.json").write_text(json.dumps([drawn, list(again)]))
    finally:
        dist.destroy_process_group()


def test_ranks_come_from_torch_distributed(tmp_path):
    torch.multiprocessing.spawn(draw_of_rank, (tmp_path,), nprocs=2)
    (first, rest), (second, others) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    whole = EpochSampler(LABELS, ClassAware(length=3800), seed=4, rank=0, world=1)
    whole.set_epoch(3)
    expected = list(whole)
    assert sorted(first + second) == sorted(expected)
    assert first != second
    assert (rest, others) == (first[5:], second[5:])


def test_states_and_ranks_that_do_not_fit():
    state = EpochSampler(LABELS, SquareRoot(), seed=1).state_dict()
    with pytest.raises(ValueError, match="seed = 2"):
        EpochSampler(LABELS, SquareRoot(), seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="sampler = 'ClassAware"):
        EpochSampler(LABELS, ClassAware(), seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="`rank`"):
        EpochSampler(LABELS, ClassAware(), rank=2, world=2)

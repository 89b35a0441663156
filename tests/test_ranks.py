"""Processes that share a batch: alone here; two of them are in tests/test_objectives.py, with every objective."""

import torch

from longtail._ranks import Ranks

ALONE = Ranks()


def test_single_process_sends_nothing():
    rows = torch.arange(6.0).view(3, 2)
    assert (ALONE.rank, ALONE.world, ALONE.first) == (0, 1, True)
    assert Ranks.of_this_process() == ALONE
    assert ALONE.sum(rows) is rows
    assert ALONE.gather(rows) is rows
    assert [ALONE.any(flag) for flag in (False, True)] == [False, True]
    ALONE.agree([rows])
    ALONE.wait()
    assert torch.equal(rows, torch.arange(6.0).view(3, 2))


def test_only_the_first_rank_writes():
    assert [Ranks(rank, 3).first for rank in range(3)] == [True, False, False]

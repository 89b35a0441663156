"""CUDA streams are reused, no two owners have one at a time, and joined streams have waited for each other."""

import gc
import random
from collections import defaultdict

import pytest
import torch

from longtail.train import graphs
from longtail.train.graphs import join_streams, stream_for

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


class Owner:
    pass


class FakeStream:
    made = 0

    def __init__(self, device):
        FakeStream.made += 1
        self.device = device
        self.behind = {self}  # whose work so far comes before what this one is given next

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self):
        return set(self.behind)

    def wait_event(self, event):
        self.behind |= event


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(graphs, "_free", defaultdict(list))
    monkeypatch.setattr(FakeStream, "made", 0)


def test_a_stream_is_given_back_when_its_owner_is_gone():
    owner, other = Owner(), Owner()
    stream = stream_for(owner, FIRST)
    assert stream_for(other, FIRST) is not stream
    del owner
    assert stream_for(Owner(), FIRST) is stream
    assert FakeStream.made == 2


def test_an_owner_that_knows_itself_gives_its_stream_back_too():
    owner = Owner()
    owner.itself = owner
    stream = stream_for(owner, FIRST)
    del owner
    gc.collect()
    assert stream_for(Owner(), FIRST) is stream


def test_a_process_of_many_runs_has_few_streams():
    for _ in range(100):
        one, other = Owner(), Owner()
        assert stream_for(one, FIRST) is not stream_for(other, FIRST)
        del one, other
    assert FakeStream.made == 2


def test_streams_stay_on_their_device():
    owner = Owner()
    stream = stream_for(owner, FIRST)
    assert stream.device == FIRST
    del owner
    other = Owner()
    assert stream_for(other, SECOND).device == SECOND
    assert stream_for(other, FIRST) is stream


def test_an_owner_may_have_several():
    owner, other = Owner(), Owner()
    both = [stream_for(owner, FIRST), stream_for(owner, FIRST)]
    assert both[0] is not both[1]
    del owner
    assert {stream_for(other, FIRST), stream_for(other, FIRST)} == set(both)


def test_no_two_living_owners_have_one_stream():
    """Owners come and go as they like, on two devices."""
    choose, living, most = random.Random(0), {}, defaultdict(int)
    for _ in range(2000):
        if living and choose.random() < 0.5:
            del living[choose.choice(list(living))]
        else:
            owner, device = Owner(), choose.choice((FIRST, SECOND))
            living[owner] = stream_for(owner, device)
            assert living[owner].device == device
            del owner
        assert len(set(living.values())) == len(living)
        for device in (FIRST, SECOND):
            most[device] = max(most[device], sum(stream.device == device for stream in living.values()))
    assert FakeStream.made == sum(most.values())


@pytest.mark.parametrize("number", range(5))
def test_streams_that_meet_have_waited_for_all(number):
    some = [FakeStream(FIRST) for _ in range(number)]
    apart = FakeStream(FIRST)
    join_streams(some)
    assert all(stream.behind == set(some) for stream in some)
    assert apart.behind == {apart}
    assert len({id(stream.behind) for stream in some}) == number  # what one does next is no other's business

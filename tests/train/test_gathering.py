"""Batches made by one kernel."""

import pytest
import torch
from tests.interpreted import run_interpreted

from longtail.data import load
from longtail.data.augment import Compose, Cutout, Normalise, RandomCrop, RandomFlip
from longtail.data.loaders.resident import Resident
from longtail.data.sampling.batch_plan import BatchPlan
from longtail.train.gathering import Gathering, can_gather

END = Normalise((0.5,), (0.5,))


def test_the_kernels_batches_are_torchs_bit_for_bit():
    assert run_interpreted("tests.train.gather_checks") == "the same"


def test_only_views_that_it_knows():
    pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    assert can_gather(Compose((RandomCrop(8, padding=1), END)), pixels)
    assert can_gather(Compose((RandomCrop(8, padding=1), RandomFlip(), END)), pixels)
    for view in (
        END,
        Compose((END,)),
        Compose((RandomFlip(), RandomCrop(8), END)),
        Compose((RandomCrop(8), RandomFlip(), Cutout(2), END)),
    ):
        assert not can_gather(view, pixels)
    assert not can_gather(Compose((RandomCrop(8), END)), pixels.float())


@pytest.mark.gpu
def test_on_a_gpu_too():
    train = load("digits-lt").train
    view = Compose((RandomCrop(8, padding=1), RandomFlip(), END))
    loader = Resident(train, BatchPlan(train.labels, (view,), 32), "cuda")
    order, uniforms = torch.randperm(200), torch.rand(200, 3)
    made = Gathering(loader, order.cuda(), uniforms.cuda(), torch.tensor(7, device="cuda"), torch.channels_last)(48)
    chosen = order[7:55]
    assert torch.equal(made[0].cpu(), view(loader.pixels.cpu()[chosen], uniforms[7:55]))
    assert torch.equal(made[1].cpu(), train.labels[chosen])

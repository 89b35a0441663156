"""Steps that a loader feeds to CUDA graphs, on a GPU."""

import gc
import json
import warnings
from dataclasses import replace

import pytest
import torch
from tests.train.feeding import BAD, KINDS, loader_of, sizes_in, step_of, weights_of

from longtail.classes import Groups
from longtail.data import DataSet, FileImages, Split, Streaming
from longtail.train import RunFolder, Trainer, defaults, stages
from longtail.train.drivers import Fed
from longtail.train.graphs import StepGraphs


@pytest.mark.gpu
@pytest.mark.parametrize("mixup", [0.0, 0.3])
def test_steps_that_are_fed_are_the_plain_ones(mixup, photographs):
    """Two epochs, the second from its middle on, while threads load."""
    found = []
    for kind in ("fed", "eager"):
        loader, step = loader_of(photographs, "cuda"), step_of(device="cuda")
        driver = KINDS[kind](step, loader, mixup=mixup)
        sizes = []
        for epoch, start in ((0, 0), (1, 1)):
            step.set_rate(0.02 / (epoch + 1))
            assert len(list(driver.epoch(seed=1, epoch=epoch, start=start))) == 4 - start
            sizes += sizes_in(loader.plan, 1, epoch, start)
        driver.settle()
        torch.cuda.synchronize()
        found.append((weights_of(step), float(step.loss_sum), int(step.taken), int(step.first_bad)))
        assert set(sizes) == {12, 11, 4}
        assert kind == "eager" or list(driver.graphs._graphs) == [12, 4]
    (fed, loss, taken, bad), (eager, expected, number, none) = found
    assert (taken, bad) == (number, none) == (7, -1)
    assert loss == pytest.approx(expected, rel=1e-2)
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


def asking(step, change=lambda images: images):
    """Have the model make 64 MB, and ask for a value for which the host waits."""
    forward = step.model.forward

    def asks(images):
        large = images.new_ones(2**24)
        assert float(large.sum()) == 2**24
        return forward(change(images))

    step.model.forward = asks


def bytes_reserved():
    """By torch, without what it keeps for later."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # each stream has one
    torch.cuda.empty_cache()
    return torch.cuda.memory_stats()["reserved_bytes.all.current"]


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_is_taken_plainly(photographs):
    found, reserved = [], []
    for kind in ("eager", "fed"):
        before = bytes_reserved()
        step = step_of(device="cuda")
        driver = KINDS[kind](step, loader_of(photographs, "cuda"))
        asking(step)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            list(driver.epoch(seed=1, epoch=0, start=0))
        reasons = [str(warning.message) for warning in warned if "cannot be captured" in str(warning.message)]
        assert len(reasons) == (kind == "fed")
        assert not any("previous error" in reason or "()" in reason for reason in reasons)
        held = []
        for epoch in range(1, 7):
            list(driver.epoch(seed=1, epoch=epoch, start=0))
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_stats()["active_bytes.all.current"])
        assert held[-1] <= held[1]  # what loaders have used is used again
        found.append((weights_of(step), int(step.taken)))
        step.optimizer.zero_grad(set_to_none=True)
        reserved.append(bytes_reserved() - before)
    assert reserved[1] <= reserved[0] + 2**24
    (eager, number), (fed, taken) = found
    assert taken == number == 28
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_a_model_that_draws_numbers_trains_on_after_its_capture_has_failed(photographs):
    step = step_of(device="cuda")
    driver = Fed(step, loader_of(photographs, "cuda"))
    asking(step, change=lambda images: torch.nn.functional.dropout(images, 0.1))
    before = weights_of(step)
    with pytest.warns(UserWarning, match="cannot be captured"):
        list(driver.epoch(seed=1, epoch=0, start=0))
    list(driver.epoch(seed=1, epoch=1, start=0))
    torch.cuda.synchronize()
    assert (int(step.taken), int(step.first_bad)) == (8, -1)
    assert not any(torch.equal(before[name], value.cpu()) for name, value in step.model.named_parameters())


@pytest.mark.gpu
def test_a_run_from_files_is_fed(tmp_path, photographs, monkeypatch):
    """By the trainer, with an evaluation after every epoch: stopped in between, and not."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    kept = [i for i in range(40) if i != BAD]
    split = Split(FileImages(photographs.images.root, [f"{i}.jpg" for i in kept]), photographs.labels[kept])
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    data = DataSet("photographs", tuple("abcdefghij"), split, split, cut=groups)
    recipe = replace(
        defaults("imagenet-lt", "softmax"), model="resnet18", image_size=32, batch_size=8, epochs=3, device="cuda",
        lr=0.001, precision="fp32", workers=2, evaluate_every=1, compile=False, checkpoint_minutes=0.0,
    )  # fmt: skip
    made, replayed, replay = [], [], StepGraphs.replay

    class Recorded(Fed):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            made.append(type(self.loader))

    def recorded(step_graphs, size):
        replayed.append(size)
        replay(step_graphs, size)

    monkeypatch.setattr(stages, "Fed", Recorded)
    monkeypatch.setattr(StepGraphs, "replay", recorded)
    folder, whole = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "whole")
    steps = Trainer(recipe, folder, dataset=data).steps()
    for _ in range(7):
        next(steps)
    steps.close()
    assert not folder.done
    Trainer(recipe, folder, dataset=data).run()
    assert made == [Streaming, Streaming]
    assert replayed == 3 * [8, 8, 8, 8, 7]
    Trainer(recipe, whole, dataset=data).run()
    assert replayed == 6 * [8, 8, 8, 8, 7]
    assert folder.done
    losses, expected = (
        [json.loads(line)["loss"] for line in one.log_file.read_text().splitlines()] for one in (folder, whole)
    )
    assert len(losses) == 3
    assert losses == pytest.approx(expected, rel=1e-2)

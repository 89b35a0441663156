"""How the steps of an epoch are taken: one after the other, or replayed on a GPU."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.contract import METHODS, Task
from tests.train.conftest import assert_same_run, recipe_for, trained

from longtail.classes import Groups
from longtail.data import DataSet, Draws, FileImages, Plan, Resident, ResidentFiles, Split, Streaming, load
from longtail.data.augment import Compose, Normalise, RandomCrop, RandomResizedCrop
from longtail.data.samplers import ClassAware
from longtail.models import build_model
from longtail.train import RunFolder, Trainer, defaults
from longtail.train.drivers import Captured, Eager, Fed, mixed_shares
from longtail.train.step import Step, make_optimizer


def test_mixups_shares_are_data():
    shares = mixed_shares(seed=3, epoch=2, alpha=0.4, steps=4000)
    assert torch.equal(shares, mixed_shares(3, 2, 0.4, 4000))
    assert torch.equal(shares[:10], mixed_shares(3, 2, 0.4, 10))
    assert not torch.equal(shares, mixed_shares(3, 3, 0.4, 4000))
    assert 0 <= float(shares.min()) < float(shares.max()) <= 1
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)).
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(shares.var()) == pytest.approx(1 / (4 * 1.8), abs=0.005)
    uniforms = Draws(3, 2).uniforms(0, 50, 1, stream=2**24 - 1)[:, 0]
    torch.testing.assert_close(mixed_shares(3, 2, 1.0, 50), uniforms)  # Beta(1, 1) is uniform
    assert mixed_shares(3, 2, 0.0, 50) is None


def driver_of(kind, device, method="cbs", mixup=0.0):
    dataset = load("digits-lt")
    augment = Compose((RandomCrop(8, padding=1), Normalise((0.3,), (0.4,))))
    method = METHODS[method]
    knobs = method.settings({name: 16 for name in ("hidden", "projection") if name in method.knobs})
    objective = method.stages[0].objective(Task(dataset.counts, dataset.groups, 2, knobs)).to(device)
    plan = Plan(dataset.train.labels, (augment,) * len(objective.views), 48, ClassAware(1))
    loader = Resident(dataset.train, plan, device)
    projection = (16, 16) if method.projection else None
    model = build_model("small-cnn", 10, in_channels=1, projection=projection, prototypes=method.prototypes).to(device)
    optimizer = make_optimizer(model.trainable("all"), momentum=0.9, nesterov=False, weight_decay=5e-4)
    step = Step(model, objective, optimizer)
    step.set_rate(0.02)
    return (Captured if kind == "captured" else Eager)(step, loader, mixup=mixup), step


def weights_of(step):
    return {name: value.detach().cpu().clone() for name, value in step.model.state_dict().items()}


def test_an_epoch_from_the_middle_on():
    whole, one = driver_of("eager", "cpu", mixup=0.3)
    taken = 0
    for taken, _ in enumerate(whole.epoch(seed=1, epoch=4, start=0), 1):
        if taken == 3:
            break
    assert taken == 3
    list(whole.epoch(seed=1, epoch=4, start=3))
    plain, other = driver_of("eager", "cpu", mixup=0.3)
    assert len(list(plain.epoch(seed=1, epoch=4, start=0))) == 8  # 342 images in batches of 48
    assert int(one.taken) == int(other.taken) == 8
    assert all(torch.equal(value, weights_of(other)[name]) for name, value in weights_of(one).items())


@pytest.mark.gpu
@pytest.mark.parametrize("mixup", [0.0, 0.3])
@pytest.mark.parametrize("method", ["cbs", "ldam-drw", "bcl", "proco"])
def test_replayed_steps_are_the_plain_ones(method, mixup):
    """Two epochs, the last batch of each smaller, the second from its middle on; and the rate changes in between."""
    if mixup and not METHODS[method].mixes:
        pytest.skip("compares images")
    found = []
    for kind in ("captured", "eager"):
        driver, step = driver_of(kind, "cuda", method, mixup)
        for epoch, start in ((0, 0), (1, 5)):
            step.set_rate(0.02 / (epoch + 1))
            step.objective.begin_epoch(epoch)
            list(driver.epoch(seed=1, epoch=epoch, start=start))
            step.objective.end_epoch()
        driver.settle()
        torch.cuda.synchronize()
        found.append((weights_of(step), float(step.loss_sum), int(step.taken), int(step.first_bad)))
    (captured, loss, taken, bad), (eager, expected, number, none) = found
    assert (taken, bad) == (number, none) == (11, -1)
    assert loss == pytest.approx(expected, rel=1e-3)
    for name, value in eager.items():
        torch.testing.assert_close(captured[name], value, rtol=2e-2, atol=2e-3)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Forty JPEGs of ten classes, one of which is none."""
    root = tmp_path_factory.mktemp("photographs")
    names = [f"{number}.jpg" for number in range(40)]
    generator = np.random.default_rng(0)
    for number, name in enumerate(names):
        pixels = generator.integers(0, 256, (4, 5, 3), dtype=np.uint8).repeat(12, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(root / name, quality=95)
        if number == 17:
            (root / name).write_bytes(b"no picture")
    return Split(FileImages(root, names), torch.arange(40) % 10)


def fed_by(kind, how, split, mixup=0.0):
    """Steps of twelve: three that are full, one of which has lost a picture, and one of four."""
    view = Compose((RandomResizedCrop(16), Normalise((0.5,) * 3, (0.3,) * 3)))
    plan = Plan(split.labels, (view,), 12)
    if how == "resident":
        loader = ResidentFiles(split, plan, "cuda", bad_images="skip")
    else:
        loader = Streaming(split, plan, "cuda", decode_in="device", bad_images="skip")
    method = METHODS["cbs"]
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    objective = method.stages[0].objective(Task(torch.full((10,), 4), groups, 2, method.settings({}))).to("cuda")
    model = build_model("small-cnn", 10).to("cuda")
    optimizer = make_optimizer(model.trainable("all"), momentum=0.9, nesterov=False, weight_decay=5e-4)
    step = Step(model, objective, optimizer)
    return (Fed if kind == "fed" else Eager)(step, loader, mixup=mixup), step


@pytest.mark.gpu
@pytest.mark.parametrize("mixup", [0.0, 0.3])
@pytest.mark.parametrize("how", ["resident", "streaming"])
def test_steps_that_are_fed_are_the_plain_ones(how, mixup, photographs):
    """Two epochs, the second from its middle on, while threads load."""
    found = []
    for kind in ("fed", "eager"):
        driver, step = fed_by(kind, how, photographs, mixup)
        for epoch, start in ((0, 0), (1, 1)):
            step.set_rate(0.02 / (epoch + 1))
            assert len(list(driver.epoch(seed=1, epoch=epoch, start=start))) == 4 - start
        driver.settle()
        torch.cuda.synchronize()
        found.append((weights_of(step), float(step.loss_sum), int(step.taken), int(step.first_bad)))
        assert kind == "eager" or list(driver.graphs._graphs) == [12]
    (fed, loss, taken, bad), (eager, expected, number, none) = found
    assert (taken, bad) == (number, none) == (7, -1)
    assert loss == pytest.approx(expected, rel=1e-3)
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_is_taken_plainly(photographs, monkeypatch):
    found = []
    for kind in ("fed", "eager"):
        driver, step = fed_by(kind, "streaming", photographs)
        step.set_rate(0.02)
        forward = step.model.forward

        def asks(images, forward=forward):
            assert float(images.sum()) == float(images.sum())  # for which the host waits
            return forward(images)

        monkeypatch.setattr(step.model, "forward", asks)
        told = pytest.warns(UserWarning, match="cannot be captured") if kind == "fed" else nullcontext()
        with told:
            list(driver.epoch(seed=1, epoch=0, start=0))
        held = []
        for epoch in range(1, 7):
            list(driver.epoch(seed=1, epoch=epoch, start=0))
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_stats()["active_bytes.all.current"])
        assert held[-1] <= held[1]  # what loaders have used is used again
        found.append((weights_of(step), int(step.taken)))
    (fed, taken), (eager, number) = found
    assert taken == number == 28
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_a_run_from_files_is_fed(tmp_path, photographs):
    """By the trainer, with an evaluation after every epoch, and stopped in between."""
    labels = photographs.labels
    kept = [i for i in range(40) if i != 17]
    split = Split(FileImages(photographs.images.root, [f"{i}.jpg" for i in kept]), labels[kept])
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    data = DataSet("photographs", tuple("abcdefghij"), split, split, cut=groups)
    recipe = replace(
        defaults("imagenet-lt", "cbs"), model="resnet18", image_size=32, batch_size=8, epochs=3, device="cuda",
        workers=2, evaluate_every=1, compile=False, checkpoint_minutes=0.0,
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    trainer = Trainer(recipe, folder, dataset=data)
    steps = trainer.steps()
    for _ in range(7):
        next(steps)
    steps.close()
    again = Trainer(recipe, folder, dataset=data)
    again.run()
    assert folder.done
    losses = [line["loss"] for line in map(json.loads, folder.log_file.read_text().splitlines())]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


@pytest.mark.gpu
def test_a_captured_run_goes_on_where_it_was_stopped(tmp_path):
    whole, _ = trained(tmp_path / "whole", "proco", device="cuda", epochs=3)
    stopped = RunFolder(tmp_path / "stopped")
    steps = Trainer(recipe_for("proco", device="cuda", epochs=3, checkpoint_minutes=0.0), stopped).steps()
    for _ in range(8):
        next(steps)
    steps.close()
    Trainer(recipe_for("proco", device="cuda", epochs=3), stopped).run()
    first, second = (folder.result()["splits"]["test"]["recall"]["all"] for folder in (whole, stopped))
    assert first == pytest.approx(second, abs=0.05)  # cuDNN may choose other kernels


def test_a_cpu_run_does_not_depend_on_how_often_it_is_stopped(tmp_path):
    """Stopped after every third step, in a new trainer each time."""
    whole, _ = trained(tmp_path / "whole", "bcl", epochs=2)
    folder = RunFolder(tmp_path / "pieces")
    for _ in range(100):
        steps = Trainer(recipe_for("bcl", epochs=2, checkpoint_minutes=0.0), folder).steps()
        taken = sum(1 for _, _ in zip(range(3), steps, strict=False))
        steps.close()
        if taken < 3:
            break
    assert folder.done
    assert_same_run(folder, whole)

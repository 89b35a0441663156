"""How the steps of an epoch are taken: one after the other, or replayed on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tests.contract import METHODS, Task
from tests.train.conftest import assert_same_run, recipe_for, trained
from tests.train.feeding import weights_of

from longtail._ranks import Ranks
from longtail.classes import Groups
from longtail.data import BatchPlan, DataSet, Draws, FileImages, Resident, Split, Streaming, load
from longtail.data.augment import Compose, Normalise, RandomCrop
from longtail.data.sampling.samplers import ClassAware, Progressive
from longtail.methods import Objective
from longtail.models import build_model
from longtail.train import RunFolder, Trainer, stages
from longtail.train.drivers import Captured, Eager
from longtail.train.loaders import Loaders
from longtail.train.mixing import mixed_shares
from longtail.train.optimizer import make_optimizer
from longtail.train.stages import Stages
from longtail.train.step import Step


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


def driver_of(kind, device, method="cbs", mixup=0.0, sampler=None):
    dataset = load("digits-lt")
    augment = Compose((RandomCrop(8, padding=1), Normalise((0.3,), (0.4,))))
    method = METHODS[method]
    params = method.make_params({name: 16 for name in ("hidden", "projection") if name in method.parameters})
    task = Task(dataset.counts, dataset.groups, 2, method.training_params(params))
    objective = method.stages[0].objective(task).to(device)
    plan = BatchPlan(dataset.train.labels, (augment,) * len(objective.views), 48, sampler or ClassAware(1))
    loader = Resident(dataset.train, plan, device)
    projection = (16, 16) if method.projection else None
    model = build_model("small-cnn", 10, in_channels=1, projection=projection, prototypes=method.prototypes).to(device)
    optimizer = make_optimizer([{"params": model.trainable("all"), "weight_decay": 5e-4}], momentum=0.9)
    step = Step(model, objective, optimizer)
    step.set_rate(0.02)
    return (Captured if kind == "captured" else Eager)(step, loader, mixup=mixup), step


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


def test_captured_steps_settle_when_an_epoch_ends_early(gpu):
    driver, _ = driver_of("captured", "cpu")
    steps = driver.epoch(seed=1, epoch=0, start=0)
    next(steps)
    assert (gpu.usual, driver.stream) not in gpu.waits
    steps.close()
    assert gpu.waits[-1] == (gpu.usual, driver.stream)
    assert gpu.current is gpu.usual


def test_captured_steps_settle_when_their_capture_fails(gpu):
    driver, step = driver_of("captured", "cpu")
    forward, calls = step.model.forward, []

    def fails(images):
        calls.append(images)
        if len(calls) == 2:
            raise KeyError("in the second step of the warm-up")
        return forward(images)

    step.model.forward = fails
    with pytest.raises(KeyError, match="second step"):
        next(driver.epoch(seed=1, epoch=0, start=0))
    assert gpu.waits[-1] == (gpu.usual, driver.stream)


def test_nothing_is_asked_of_a_sampler_beyond_the_last_epoch(gpu):
    """A progressive one has no order there."""
    driver, _ = driver_of("captured", "cpu", sampler=Progressive(2))
    with pytest.raises(ValueError, match="in 0 … 1, but got 2"):
        list(driver.epoch(seed=1, epoch=1, start=0))
    driver.last = 1
    for epoch in range(2):
        assert len(list(driver.epoch(seed=1, epoch=epoch, start=0))) == 8
        assert driver._ahead.seed_and_epoch == (1, 1)


def test_what_a_sampler_has_beyond_an_epochs_steps_is_not_taken(gpu):
    taken = []
    for kind in ("eager", "captured"):
        driver, step = driver_of(kind, "cpu", sampler=ClassAware(1, length=1000))
        assert len(list(driver.epoch(seed=1, epoch=0, start=0))) == 8
        driver.settle()
        taken.append(weights_of(step))
    assert all(torch.equal(value, taken[1][name]) for name, value in taken[0].items())


def test_a_later_stage_makes_progress_over_its_own_epochs(tmp_path):
    recipe = recipe_for("crt", epochs=3, classifier_epochs=2, sampler="progressive")
    made = Trainer(recipe, RunFolder(tmp_path / "run")).stages
    assert made._sampler(SimpleNamespace(train="all"), 0) == Progressive(3)
    assert made._sampler(SimpleNamespace(train="all"), 1) == Progressive(2, first=3)


@pytest.mark.gpu
def test_a_progressive_sampler_ends_with_its_stage(tmp_path):
    folder, _ = trained(tmp_path / "run", "crt", device="cuda", epochs=2, classifier_epochs=2, sampler="progressive")
    assert folder.done


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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A data set of twenty files of two classes."""
    root = tmp_path_factory.mktemp("pictures")
    names = [f"{number}.png" for number in range(20)]
    for number, name in enumerate(names):
        Image.new("RGB", (24, 20), (10 * number, 100, 50)).save(root / name)
    split = Split(FileImages(root, names), torch.arange(20) % 2)
    return DataSet("pictures", ("a", "b"), split, split, cut=Groups.from_indices(head=[0], tail=[1]))


@pytest.mark.parametrize(
    ("device", "held", "accumulate", "world", "expected"),
    [
        ("cpu", Resident, 1, 1, "Eager"),
        ("cpu", Streaming, 1, 1, "Eager"),
        ("cuda", Resident, 1, 1, "Captured"),
        ("cuda", Streaming, 1, 1, "Fed"),
        ("cuda", Resident, 2, 1, "Eager"),
        ("cuda", Streaming, 2, 1, "Eager"),
        ("cuda", Resident, 1, 2, "Eager"),
        ("cuda", Streaming, 1, 2, "Eager"),
    ],
)
def test_which_driver_a_stage_has(pictures, monkeypatch, *, device, held, accumulate, world, expected):
    """All is on a CPU but what the stage thinks of its device."""
    monkeypatch.setattr(Objective, "to", lambda objective, device: objective)
    monkeypatch.setattr(stages, "DistributedDataParallel", lambda model, device_ids: model)
    for name in ("Eager", "Captured", "Fed"):
        monkeypatch.setattr(stages, name, lambda *given, name=name, **more: (name, *given, *more.items()))
    settings = {"batch_size": 4, "accumulate": accumulate, "mixup": 0.3, "augment": "imagenet", "image_size": 16}
    recipe = recipe_for("cbs", **settings)
    dataset = load("digits-lt") if held is Resident else pictures
    ranks = Ranks(0, world)
    loaders = Loaders(recipe, dataset, torch.device("cpu"), ranks)
    here = SimpleNamespace(
        recipe=recipe, dataset=dataset, device=torch.device(device), ranks=ranks, training=loaders.training
    )
    model = build_model("small-cnn", dataset.num_classes, in_channels=loaders.channels)
    running = Stages(here).start(model, 0)
    assert isinstance(running.loader, held)
    given = {"Eager": (accumulate, 0.3), "Captured": (0.3, ("last", 1)), "Fed": (0.3,)}[expected]
    assert running.driver == (expected, running.step, running.loader, *given, ("cutmix", 0.0))

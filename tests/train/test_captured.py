"""Whole runs as on a GPU that holds their images, on an emulated one: each is the run of a CPU, bit for bit."""

import json
from collections import defaultdict
from functools import partial
from operator import methodcaller
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import assert_same_run, logged, mostly_slow, recipe_for, trained
from tests.train.emulated_gpu import FakeStream

from longtail.data.augment import geometry
from longtail.methods import METHODS, Objective
from longtail.train import Fleet, NotFiniteError, RunFolder, StoppedError, Trainer
from longtail.train import fleet as fleets
from longtail.train.drivers import Captured

EACH = {
    "tau-norm": {"validation": 0.1},  # on which tau is chosen
    "crt": {"classifier_epochs": 2},
    "lws": {"classifier_epochs": 2},
    "ldam-drw": {"defer": 0.5},  # weights begin in the second epoch
}
"""What makes a method's short run tell."""
PIECES = {
    "views": ("bcl", {}),
    "statistics": ("proco", {"evaluate_every": 1}),
    "stages": ("crt", {"classifier_epochs": 2, "sampler": "progressive"}),
    "mixup": ("ldam-drw", {"defer": 0.5, "mixup": 0.3, "drop_last": True}),
}
MEMBERS = {
    "a": ("cbs", {"seed": 0, "evaluate_every": 1}),
    "b": ("proco", {"seed": 1, "evaluate_every": 2}),
    "c": ("lws", {"seed": 2, "classifier_epochs": 1}),
    "d": ("softmax", {"seed": 3, "sampler": "progressive", "mixup": 0.3}),
}


@pytest.fixture(autouse=True)
def _cut_as_on_a_gpu(monkeypatch):
    """Windows of images are cut by products: a CPU reads where they lie."""
    monkeypatch.setattr(geometry, "_uses_interpolate", lambda images, wide: False)


def as_on_gpu(trainer):
    """Have its stages choose their driver, and its measures their passes, as on a GPU; all stays on the CPU."""
    stages, loaders = trainer.stages, trainer.loaders
    there = SimpleNamespace(
        device=torch.device("cuda"),
        ranks=loaders.ranks,
        dataset=loaders.dataset,
        features=loaders.features,
        training=loaders.training,
    )

    def start(model, number):
        stages.loaders = there
        try:
            running = type(stages).start(stages, model, number)
        finally:
            stages.loaders = loaders
        assert isinstance(running.driver, Captured)
        return running

    stages.start, trainer.evaluator.replays = start, True
    return trainer


@pytest.fixture
def on_gpu(gpu, monkeypatch):
    """Makes a trainer that takes itself to be on a GPU."""
    monkeypatch.setattr(Objective, "to", lambda objective, device: objective)
    return lambda path, method, **settings: as_on_gpu(Trainer(recipe_for(method, **settings), RunFolder(path)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a run on a CPU; each is trained once."""
    known = {}

    def run(method, **settings):
        key = (method, *sorted(settings.items()))
        if key not in known:
            known[key], _ = trained(tmp_path_factory.mktemp("plain") / "run", method, **settings)
        return known[key]

    return run


@pytest.mark.parametrize("method", mostly_slow(METHODS, {"proco"}))
def test_every_method(tmp_path, gpu, on_gpu, plain, method):
    settings = {"evaluate_every": 1, **EACH.get(method, {})}
    trainer = on_gpu(tmp_path / "run", method, **settings)
    trainer.run()
    assert_same_run(trainer.folder, plain(method, **settings))
    stages, (full, rest) = len(METHODS[method].stages), divmod(len(trainer.dataset.train), 64)
    assert gpu.captured == stages * [64, rest]
    assert [size for size in gpu.replayed if size] == 2 * stages * (full * [64] + [rest])  # the others are passes


@pytest.mark.parametrize(
    "sampler", mostly_slow(["instance", "class-aware", "square-root", "progressive"], {"progressive"})
)
@pytest.mark.parametrize("method", mostly_slow(["softmax", "crt"], ["crt"]))
def test_every_sampler(tmp_path, on_gpu, plain, method, sampler):
    settings = {"sampler": sampler, "epochs": 3, **({"classifier_epochs": 1} if method == "crt" else {})}
    trainer = on_gpu(tmp_path / "run", method, **settings)
    trainer.run()
    assert_same_run(trainer.folder, plain(method, **settings))


def test_a_stage_plans_its_own_epochs(tmp_path, on_gpu, monkeypatch):
    planned, plan = defaultdict(set), Captured._plan

    def noted(driver, seed, epoch):
        planned[driver].add(epoch)
        return plan(driver, seed, epoch)

    monkeypatch.setattr(Captured, "_plan", noted)
    on_gpu(tmp_path / "run", "crt", classifier_epochs=2).run()
    assert list(planned.values()) == [{0, 1}, {2, 3}]


SETTINGS = [
    {"mixup": 0.3, "label_smoothing": 0.1, "method": "ldam-drw", "defer": 0.5},
    {"validation": 0.2, "evaluate_every": 1},
    {"batch_size": 342, "train_stats": "paper", "evaluate_every": 1},  # one batch per epoch, as large as a pass's
    {"batch_size": 341},  # a last batch of one image
    {"cutmix": 1.0, "mixup": 0.3, "ema": 0.9, "warmup_steps": 7, "evaluate_every": 1},
    {"augment": "none"},  # nothing is drawn
    {"precision": "bf16", "channels_last": True},
    {"checkpoint_minutes": 0.0, "checkpoint_epochs": 1},
]
MORE_SETTINGS = [
    {"mixup": 0.3},
    {"mixup": 0.3, "method": "crt", "classifier_epochs": 1, "drop_last": True},
    {"drop_last": True},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "method": "proco"},
    {"folds": 3, "fold": 1, "method": "tau-norm"},
    {"subset_seed": "run", "seed": 5, "imbalance": 10.0},
    {"train_stats": "paper", "evaluate_every": 1, "epochs": 3},
    {"batch_size": 57},  # all batches are full
    {"batch_size": 500},  # none is full
    {"augment": "cifar", "image_size": 6},
    {"momentum": 0.0, "weight_decay": 0.0},
    {"head": "cosine", "nesterov": True, "schedule": "steps", "milestones": (0.5,), "warmup": 0},
]


@pytest.mark.parametrize(
    "settings",
    mostly_slow(SETTINGS + MORE_SETTINGS, SETTINGS),
    ids=lambda settings: "-".join(map(str, settings)),
)
def test_every_setting(tmp_path, on_gpu, plain, settings):
    settings = {"method": "cbs", **settings}
    trainer = on_gpu(tmp_path / "run", **settings)
    trainer.run()
    assert_same_run(trainer.folder, plain(**settings))


def test_an_epochs_loss_is_its_own(tmp_path, on_gpu):
    """Nothing is learnt, and a batch is all there is: it stays the same."""
    trainer = on_gpu(tmp_path / "run", "cbs", lr=0.0, batch_size=342, augment="none", epochs=3)
    trainer.run()
    losses = [line["loss"] for line in logged(trainer.folder)]
    assert losses == pytest.approx(3 * losses[:1])


def asking(trainer):
    """Have its model ask for a value, for which the host has to wait."""
    build = trainer.stages.build

    def made(**how):
        model = build(**how)
        forward = model.forward

        def asks(images, **more):
            assert bool(images.isfinite().all())
            return forward(images, **more)

        model.forward = asks
        return model

    trainer.stages.build = made
    return trainer


def test_a_model_that_cannot_be_captured(tmp_path, gpu, on_gpu, plain):
    """Neither its steps nor its passes; each is warned of once, and taken plainly."""
    trainer = asking(on_gpu(tmp_path / "run", "cbs", evaluate_every=1))
    with pytest.warns(UserWarning, match="cannot be captured") as warned:
        trainer.run()
    assert [str(warning.message).partition(" cannot")[0] for warning in warned] == ["The step", "The forward pass"]
    assert all("not permitted when stream is capturing" in str(warning.message) for warning in warned)
    assert gpu.captured == [64]
    assert not gpu.replayed
    assert gpu.draws
    assert_same_run(trainer.folder, plain("cbs", evaluate_every=1))


@pytest.mark.parametrize("by_turns", mostly_slow([False, True], [True]))
@pytest.mark.parametrize("name", mostly_slow(PIECES, {"statistics", "stages", "mixup"}))
def test_a_run_in_pieces(tmp_path, on_gpu, plain, name, by_turns):
    """Stopped after every fourth step, in a new trainer each time; on the CPU by turns, or never."""
    method, settings = PIECES[name]
    folder, recipe = RunFolder(tmp_path / "run"), recipe_for(method, checkpoint_minutes=0.0, **settings)
    for piece in range(100):
        here = by_turns and piece % 2
        trainer = Trainer(recipe, folder) if here else on_gpu(folder.path, method, checkpoint_minutes=0.0, **settings)
        steps = trainer.steps()
        taken = sum(1 for _, _ in zip(range(4), steps, strict=False))
        steps.close()
        if taken < 4:
            break
    assert piece > 1
    assert_same_run(folder, plain(method, **settings))


@pytest.mark.parametrize(
    "case", mostly_slow([(3, (1, 3)), (6, (1, 6)), (7, (2, 1)), (12, (2, 6))], [(6, (1, 6)), (7, (2, 1))])
)
def test_a_run_that_is_stopped_continues(tmp_path, on_gpu, plain, case):
    """In the middle of an epoch, with its last step, while its recalls are queued, and with the last step of all."""
    after, where = case
    make = partial(on_gpu, tmp_path / "run", "proco", evaluate_every=1)
    trainer = make()
    with pytest.raises(StoppedError, match="epoch {} after step {}".format(*where)):  # noqa: PT012
        for _ in trainer.steps():
            trainer.stop_requested = trainer.steps_done + 1 == after
    make().run()
    assert_same_run(trainer.folder, plain("proco", evaluate_every=1))


def fleet_of(on_gpu, folder):
    return Fleet([on_gpu(folder / name, method, **settings) for name, (method, settings) in MEMBERS.items()], 3)


def test_a_fleet(tmp_path, on_gpu, plain, monkeypatch):
    met = []
    monkeypatch.setattr(fleets, "join_streams", met.append)
    fleet = fleet_of(on_gpu, tmp_path)
    fleet.run()
    assert {len(streams) for streams in met} == {1, 2, 3}
    assert not any(member.stream for member in fleet.members)
    for name, (method, settings) in MEMBERS.items():
        assert_same_run(RunFolder(tmp_path / name), plain(method, **settings))


@pytest.mark.slow
def test_a_fleet_that_is_stopped_and_finished_apart(tmp_path, on_gpu, plain, monkeypatch):
    monkeypatch.setattr(fleets, "join_streams", lambda streams: None)
    fleet = fleet_of(on_gpu, tmp_path)
    with pytest.raises(StoppedError):  # noqa: PT012 - the request comes in between
        for taken, member in enumerate(fleet.steps()):
            member.stop_requested = taken > 25
    for name, (method, settings) in MEMBERS.items():
        on_gpu(tmp_path / name, method, **settings).run()
        assert_same_run(RunFolder(tmp_path / name), plain(method, **settings))


def test_a_loss_that_is_not_finite(tmp_path, on_gpu):
    """It is seen after each step; a warm-up, whose steps see one batch, has met it before."""
    settings = {"lr": 1e12, "warmup": 0, "checkpoint_minutes": 0.0, "sampler": "class-aware"}
    found = []
    for trainer in (
        on_gpu(tmp_path / "gpu", "softmax", **settings),
        Trainer(recipe_for("softmax", **settings), RunFolder(tmp_path / "cpu")),
    ):
        with pytest.raises(NotFiniteError, match="in epoch 1, step 3"):
            trainer.run()
        assert trainer.position.step == 3
        found.append(json.loads((trainer.folder.path / "not_finite.json").read_text()))
    assert found[0] == found[1]


# --- how the emulated graphs do it


def test_a_graph_reads_memory_and_knows_nothing_of_python(gpu):
    total, given, factor = torch.zeros(3), torch.arange(3.0), 2.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=None, capture_error_mode="thread_local"):
        total += factor * given.flip(0)
    assert total.tolist() == [0, 0, 0]  # it was not done
    factor = 5.0
    given.fill_(10.0)
    with torch.cuda.stream(FakeStream(gpu)):
        graph.replay()
        graph.replay()
    assert total.tolist() == [40, 40, 40]


@pytest.mark.parametrize(
    "read",
    [
        float,
        bool,
        methodcaller("tolist"),
        methodcaller("numpy"),
        torch.nonzero,
        lambda value: value[value > 0],
        lambda value: value + torch.tensor(3.0),
    ],
)
def test_a_graph_does_not_wait_for_the_host(gpu, read):
    value = torch.ones(1)
    read(value)
    with (
        pytest.raises(RuntimeError, match="previous error during capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=None, capture_error_mode="thread_local"),
    ):
        read(value)

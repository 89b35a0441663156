"""A run's passes: in order without indices, queued and read later, and the same when they are replayed on a GPU."""

from contextlib import contextmanager

import pytest
import torch
from tests.train.conftest import assert_same_run, logged, recipe_for
from tests.train.emulated_gpu import FakeGraph

from longtail._io import read_tensors
from longtail._ranks import Ranks
from longtail.data import load
from longtail.data.sampling.batch_plan import Batch
from longtail.models import build_model, replace_head
from longtail.train import RunFolder, StoppedError, Trainer, evaluation, graphs
from longtail.train.evaluation import Evaluator, _in_order, batch_statistics
from longtail.train.graphs import ReplayedForward, forward_eval
from longtail.train.stored import NO_LABEL


@pytest.mark.parametrize("split", ["train", "test"])
def test_in_order_is_what_the_loader_gives(tmp_path, split):
    trainer = Trainer(recipe_for("cbs"), RunFolder(tmp_path / "run"))
    loader = trainer.loaders.evaluation(trainer.dataset.splits[split])
    found, expected = list(_in_order(loader)), list(loader.evaluation())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.views[0], other.views[0])


def test_recalls_of_the_log_are_those_of_the_result(tmp_path):
    folder = RunFolder(tmp_path / "run")
    trainer = Trainer(recipe_for("cbs", evaluate_every=1), folder)
    result = trainer.run()
    assert logged(folder)[-1]["recall"] == {name: result["splits"][name]["recall"] for name in ("train", "test")}
    assert not trainer.evaluator.replays  # there is nothing to wait for on a CPU


def test_recalls_in_training_mode_are_those_of_the_paper(tmp_path):
    evaluator = Trainer(recipe_for("cbs", train_stats="paper"), RunFolder(tmp_path / "run")).evaluator
    model = build_model("small-cnn", 10, in_channels=1)
    statistics = evaluator.statistics(model, "train_paper")
    right = statistics.correct.double() / statistics.samples
    assert finish(evaluator.recalls(model, 0))["train"]["all"] == pytest.approx(float(right.mean()))


def finish(generator):
    """What a generator returns, after the values that it still yields."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


def queue_on_a_cpu(trainer):
    """Have a trainer queue its passes as on a GPU: read late, and each pass in the memory of the one before."""

    @contextmanager
    def looking(model):
        memory = {}

        def overwriting(images):
            values = forward_eval(model, torch.float32, images)
            held = memory.setdefault(images.shape, tuple(value.clone() for value in values))
            for there, value in zip(held, values, strict=True):
                there.copy_(value)
            return held

        yield overwriting

    trainer.evaluator.replays, trainer.evaluator._forward = True, looking


@pytest.mark.parametrize("may_wait", [2**26, 0])
def test_a_run_whose_last_passes_were_queued_leaves_the_same(tmp_path, monkeypatch, may_wait):
    monkeypatch.setattr(evaluation, "_WAITING", may_wait)
    plain, queued = (Trainer(recipe_for("cbs", evaluate_every=1), RunFolder(tmp_path / name)) for name in "ab")
    plain.run()
    queue_on_a_cpu(queued)
    queued.run()
    assert_same_run(queued.folder, plain.folder)


def test_a_run_stopped_while_its_last_passes_are_queued_continues(tmp_path):
    plain, queued = (Trainer(recipe_for("cbs"), RunFolder(tmp_path / name)) for name in "ab")
    plain.run()
    queue_on_a_cpu(queued)
    with pytest.raises(StoppedError, match="last evaluation"):  # noqa: PT012 - which step it is shows on the way
        for _ in queued.steps():
            queued.stop_requested = queued.position.stage == 1
    assert not queued.folder.predictions_file.exists()
    Trainer(queued.recipe, queued.folder).run()
    assert_same_run(queued.folder, plain.folder)


def test_alone_every_sample_of_an_epoch_counts(tmp_path):
    evaluator = Trainer(recipe_for("cbs"), RunFolder(tmp_path / "run")).evaluator
    batches = [Batch((), torch.zeros(size, dtype=torch.int64), torch.arange(0)) for size in (5, 3)]
    assert all(a is b for a, b in zip(evaluator._counted_once(iter(batches)), batches, strict=True))


@pytest.mark.parametrize("world", [4, 5])
def test_over_ranks_every_sample_of_an_epoch_counts_once(tmp_path, world):
    """Those that fill up the last batch, so that all ranks have as many, do not count again."""
    evaluator = Trainer(recipe_for("cbs"), RunFolder(tmp_path / "run")).evaluator
    number = len(evaluator.dataset.train)
    each = -(-number // world)
    counted = 0
    for rank in range(world):
        evaluator.ranks = Ranks(rank, world)
        batches = [Batch((), torch.zeros(size, dtype=torch.int64), torch.arange(0)) for size in (7, each - 7)]
        labels = torch.cat([batch.labels for batch in evaluator._counted_once(iter(batches))])
        counts = torch.arange(each) * world + rank < number
        assert torch.equal(labels, torch.where(counts, 0, NO_LABEL))
        counted += int((labels == 0).sum())
    assert counted == number < each * world


@pytest.fixture
def replayed(monkeypatch):
    """Of a model on a CPU, with what stands for a graph of eight images in either mode."""
    monkeypatch.setattr(graphs, "stream_for", lambda owner, device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    made = ReplayedForward(build_model("small-cnn", 10), torch.float32)
    images = torch.zeros(8, 3, 16, 16)
    for training in (False, True):
        made._graphs[images.shape, images.stride(), training] = f"eight, training: {training}"
    return made


@pytest.mark.parametrize(("size", "in_evaluation", "training"), [(8, True, True), (3, True, False), (9, False, False)])
def test_which_graph_has_room(replayed, size, in_evaluation, training):
    """In evaluation mode one for as many images or more, in training mode one for exactly as many."""
    images = torch.zeros(size, 3, 16, 16)
    replayed.model.eval()
    assert replayed._graph_for(images) == ("eight, training: False" if in_evaluation else None)
    replayed.model.train()
    assert replayed._graph_for(images) == ("eight, training: True" if training else None)


OTHERS = {
    "height": torch.zeros(8, 3, 16, 16)[:, :, :12],
    "width": torch.zeros(8, 3, 16, 16)[..., :12],
    "channels": torch.zeros(8, 3, 16, 16)[:, :1],
    "strides": torch.zeros(8, 3, 16, 17)[..., :16],
    "order": torch.zeros(8, 3, 16, 16).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_a_graph_has_no_room_for_other_images(replayed, other, training):
    replayed.model.train(training)
    assert replayed._graph_for(OTHERS[other]) is None


def test_a_graph_of_the_other_mode_has_no_room(replayed):
    images = torch.zeros(8, 3, 16, 16)
    del replayed._graphs[images.shape, images.stride(), False]
    assert replayed._graph_for(images) is not None
    replayed.model.eval()
    assert replayed._graph_for(images) is None


def test_of_several_graphs_one_with_room_is_found(replayed):
    replayed.model.eval()
    large = torch.zeros(32, 3, 16, 16)
    replayed._graphs[large.shape, large.stride(), False] = "thirty-two"
    found = [replayed._graph_for(large[:size]) for size in (1, 8, 9, 32)]
    assert found == 2 * ["eight, training: False"] + 2 * ["thirty-two"]


def model_on_gpu(seed=0):
    return build_model("resnet20", 10, seed=seed).to("cuda")


def test_a_pass_is_captured_when_its_shape_comes_again_and_others_may_work_meanwhile(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "stream_for", lambda owner, device: gpu.usual)
    images = torch.randn(8, 3, 16, 16)
    looking = ReplayedForward(build_model("small-cnn", 10).eval(), torch.float32)
    first = looking(images)
    assert not looking._graphs
    monkeypatch.setattr(FakeGraph, "replay", lambda graph: gpu.replayed.append(graph.size))
    second = looking(images)
    assert len(looking._graphs) == len(gpu.replayed) == 1
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_a_replayed_pass_is_the_plain_one(precision, training):
    """Two shapes, each plain, captured and replayed; then with other weights, which a graph reads where they are.

    In evaluation mode a graph for 64 images has room for 10; cuDNN may take other kernels for them.
    """
    model = model_on_gpu()
    replayed = ReplayedForward(model, precision)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, 32, 32, generator=generator).cuda() for size in (64, 64, 10, 64, 10, 10, 64)]
    for weights in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.1 * weights)
        replayed.stream.wait_stream(torch.cuda.current_stream())
        with batch_statistics(model.train()) if training else torch.no_grad():
            model.train(training)
            found = []
            with torch.cuda.stream(replayed.stream):
                for images in batches:
                    found.append(tuple(value.clone() for value in replayed(images)))
            replayed.stream.synchronize()
            for images, values in zip(batches, found, strict=True):
                for value, expected in zip(values, forward_eval(model, precision, images), strict=True):
                    assert value.shape == expected.shape
                    assert (value - expected).abs().max() < 0.04 * expected.abs().max()
    assert len(replayed._graphs) == (2 if training else 1)


@pytest.mark.gpu
def test_a_graph_with_room_sees_each_image_alone():
    """Fewer images than a graph is for; more than it is for are captured in their turn."""
    model = model_on_gpu().eval()
    replayed = ReplayedForward(model, torch.float32)
    images = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()
    replayed.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(replayed.stream):
        sizes = [8, 8, 3, 8, 1, 32, 32, 20, 8]
        found = [replayed(images[:size])[0].clone() for size in sizes]
    replayed.stream.synchronize()
    expected = forward_eval(model, torch.float32, images)[0]
    for size, logits in zip(sizes, found, strict=True):
        assert logits.shape == (size, 10)
        assert (logits - expected[:size]).abs().max() < 0.01 * expected.abs().max()
    assert sorted(shape[0] for shape, _, _ in replayed._graphs) == [8, 32]


@pytest.mark.gpu
def test_another_head_is_another_pass():
    model = model_on_gpu()
    replayed = ReplayedForward(model, torch.float32)
    assert replayed.holds(model)
    assert not replayed.holds(model_on_gpu())
    replace_head(model, "linear", seed=1)
    assert not replayed.holds(model.to("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("train_stats", ["eval", "paper"])
def test_recalls_that_were_queued_are_the_plain_ones(tmp_path, train_stats):
    """Four models, evaluated side by side before any result is read."""
    trainers = [
        Trainer(recipe_for("cbs", device="cuda", seed=s, train_stats=train_stats), RunFolder(tmp_path / str(s)))
        for s in range(4)
    ]
    models = [build_model("small-cnn", 10, in_channels=1, seed=seed).to("cuda") for seed in range(4)]
    for epoch in range(3):
        queued = [t.evaluator.recalls(m, epoch) for t, m in zip(trainers, models, strict=True)]
        for one in queued:
            next(one)
        for trainer, model, queued_pass in zip(trainers, models, queued, strict=True):
            plain = Evaluator(trainer.loaders)
            plain.replays = False
            expected = finish(plain.recalls(model, epoch))
            found = finish(queued_pass)
            assert found.keys() == expected.keys()
            for split, recalls in expected.items():
                assert found[split] == pytest.approx(recalls, abs=0.02)  # a sample on the edge


@pytest.mark.gpu
def test_all_that_was_queued_is_the_plain_one(tmp_path):
    """The last evaluations of four models, side by side before any result is read."""
    trainers = [Trainer(recipe_for("cbs", device="cuda", seed=s), RunFolder(tmp_path / str(s))) for s in range(4)]
    models = [build_model("small-cnn", 10, in_channels=1, seed=seed).to("cuda") for seed in range(4)]
    given = {"shift": None, "change": None, "check_stopped": lambda: None}
    files = [tmp_path / f"{s}.safetensors" for s in range(4)]
    queued = [t.evaluator.final(m, 1, f, **given) for t, m, f in zip(trainers, models, files, strict=True)]
    for one in queued:
        next(one)
    assert not any(file.exists() for file in files)
    for trainer, model, file, queued_pass in zip(trainers, models, files, queued, strict=True):
        plain = Evaluator(trainer.loaders)
        plain.replays = False
        expected = finish(plain.final(model, 1, tmp_path / "plain.safetensors", **given))
        found = finish(queued_pass)
        assert found.keys() == expected.keys() == {"train", "test", "train_paper"}
        for split, statistics in expected.items():
            assert torch.equal(found[split].samples, statistics.samples)
            for name, value in statistics.tensors().items():
                torch.testing.assert_close(found[split].tensors()[name].double(), value.double(), rtol=0.02, atol=1.0)
        logits, _ = read_tensors(file)
        plainly, _ = read_tensors(tmp_path / "plain.safetensors")
        for name, value in plainly.items():
            torch.testing.assert_close(logits[name], value, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_finished_run_releases_memory(tmp_path):
    trainer = Trainer(recipe_for("cbs", device="cuda", evaluate_every=1), RunFolder(tmp_path / "run"))
    result = trainer.run()
    assert trainer.evaluator._replayed is None
    assert not trainer.evaluator._evaluation
    last = logged(trainer.folder)[-1]["recall"]
    for split in ("train", "test"):
        assert last[split] == pytest.approx(result["splits"][split]["recall"], abs=0.02)
    assert result["splits"]["test"]["samples"] == len(load("digits-lt").test)

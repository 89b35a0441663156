"""Evaluation: what is counted for the log, in order without indices, and the same when it is replayed on a GPU."""

import pytest
import torch
from tests.train.conftest import logged, recipe_for

from longtail.data import load
from longtail.data.plan import Batch
from longtail.metrics import class_statistics
from longtail.models import build_model, replace_head
from longtail.ranks import Ranks
from longtail.train import RunFolder, Trainer
from longtail.train.evaluation import NO_LABEL, as_in_training, count_hits, pass_over
from longtail.train.measuring import Measuring, _in_order
from longtail.train.replay import Replayed, look

ALONE = Ranks()


def batches_of(number, size, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        labels = torch.randint(classes, (size,), generator=generator)
        labels[torch.rand(size, generator=generator) < 0.2] = NO_LABEL
        yield Batch((torch.randn(size, classes, generator=generator),), labels, torch.arange(size))


def test_hits_are_those_of_the_class_statistics():
    found = count_hits(lambda images: (images, images), batches_of(3, 50, 7), 7, ALONE)
    batches = list(batches_of(3, 50, 7))
    expected = class_statistics(torch.cat([b.views[0] for b in batches]), torch.cat([b.labels for b in batches]))
    assert torch.equal(found.samples, expected.samples)
    assert torch.equal(found.correct, expected.correct)
    assert 0 < int(found.samples.sum()) < 150


@pytest.mark.parametrize("count", [count_hits, lambda look, batches, _, ranks: pass_over(look, batches, ranks=ranks)])
def test_nothing_to_look_at_is_refused(count):
    with pytest.raises(ValueError, match="Expected a split with a sample for every process"):
        count(lambda images: (images, images), iter(()), 3, ALONE)


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
    assert not trainer.measuring.replays  # there is nothing to wait for on a CPU


def test_recalls_in_training_mode_are_those_of_the_paper(tmp_path):
    measuring = Trainer(recipe_for("cbs", train_stats="paper"), RunFolder(tmp_path / "run")).measuring
    model = build_model("small-cnn", 10, in_channels=1)
    statistics = measuring.as_trained(model, 3)
    right = statistics.correct.double() / statistics.samples
    assert measuring.recalls(model, 3)()["train"]["all"] == pytest.approx(float(right.mean()))


def model_on_gpu(seed=0):
    return build_model("resnet20", 10, seed=seed).to("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_a_replayed_pass_is_the_plain_one(precision, training):
    """Two shapes, each plain, captured and replayed; then with other weights, which a graph reads where they are."""
    model = model_on_gpu()
    replayed = Replayed(model, precision)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, 32, 32, generator=generator).cuda() for size in (64, 64, 10, 64, 10, 10, 64)]
    for weights in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.1 * weights)
        replayed.stream.wait_stream(torch.cuda.current_stream())
        with as_in_training(model.train()) if training else torch.no_grad():
            model.train(training)
            found = []
            with torch.cuda.stream(replayed.stream):
                for images in batches:
                    found.append(tuple(value.clone() for value in replayed(images)))
            replayed.stream.synchronize()
            for images, values in zip(batches, found, strict=True):
                for value, expected in zip(values, look(model, precision, images), strict=True):
                    torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2)
    assert len(replayed._graphs) == 2


@pytest.mark.gpu
def test_another_head_is_another_pass():
    model = model_on_gpu()
    replayed = Replayed(model, torch.float32)
    assert replayed.holds(model)
    assert not replayed.holds(model_on_gpu())
    replace_head(model, "linear", seed=1)
    assert not replayed.holds(model.to("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("train_stats", ["eval", "paper"])
def test_recalls_that_were_queued_are_the_plain_ones(tmp_path, train_stats):
    """Four models, looked at side by side twice, before any is read."""
    trainers = [
        Trainer(recipe_for("cbs", device="cuda", seed=s, train_stats=train_stats), RunFolder(tmp_path / str(s)))
        for s in range(4)
    ]
    models = [build_model("small-cnn", 10, in_channels=1, seed=seed).to("cuda") for seed in range(4)]
    for epoch in range(3):
        queued = [t.measuring.recalls(m, epoch) for t, m in zip(trainers, models, strict=True)]
        for trainer, model, read in zip(trainers, models, queued, strict=True):
            plain = Measuring(trainer.loaders)
            plain.replays = False
            expected = plain.recalls(model, epoch)()
            found = read()
            assert found.keys() == expected.keys()
            for split, recalls in expected.items():
                assert found[split] == pytest.approx(recalls, abs=0.02)  # a sample on the edge


@pytest.mark.gpu
def test_a_run_lets_go_of_what_it_held(tmp_path):
    trainer = Trainer(recipe_for("cbs", device="cuda", evaluate_every=1), RunFolder(tmp_path / "run"))
    result = trainer.run()
    assert trainer.measuring._replayed is None
    assert not trainer.measuring._evaluation
    last = logged(trainer.folder)[-1]["recall"]
    for split in ("train", "test"):
        assert last[split] == pytest.approx(result["splits"][split]["recall"], abs=0.02)
    assert result["splits"]["test"]["samples"] == len(load("digits-lt").test)

"""The trainer: what a run leaves, and that nothing but what it should decides what comes out."""

import json
from functools import partial
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import assert_same_run, logged, mostly_slow, recipe_for, trained

from longtail._io import read_tensors, tensor_writer, write_json
from longtail.data import load
from longtail.metrics import class_statistics, preference_scores, recall
from longtail.models import HeadSpec, build_model
from longtail.train import RunFolder, Trainer
from longtail.train.checkpoint import latest_checkpoint
from longtail.train.evaluation import batch_statistics
from longtail.train.folder import environment
from longtail.train.measures import PostHoc
from longtail.train.stored import read_statistics

FILES = [
    *(".lock", "checkpoints", "environment.json", "log.jsonl", "model.safetensors", "predictions.safetensors"),
    *("recipe.toml", "result.json", "statistics.safetensors"),
]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A finished run."""
    folder = RunFolder(tmp_path_factory.mktemp("left") / "run")
    with folder.lock():
        Trainer(recipe_for("cbs", epochs=4, evaluate_every=2, train_stats="paper"), folder).run()
    return folder


# --- what a run leaves


def test_the_files_of_a_run(left):
    assert sorted(path.name for path in left.path.iterdir()) == FILES


def test_the_recalls_are_those_of_the_stored_logits(left):
    stored, result, groups = load_file(left.predictions_file), left.result(), load("digits-lt").groups
    for split in ("train", "test"):
        one = class_statistics(stored[f"{split}.logits"], stored[f"{split}.labels"])
        found = recall(one.correct, one.samples, groups)
        assert result["splits"][split]["recall"] == {"all": found.all, **found.groups}
        assert result["splits"][split]["recall_per_class"] == found.per_class.tolist()


def test_training_measures_are_taken_both_ways(left):
    result = left.result()
    assert sorted(result["splits"]) == ["test", "train", "train_paper"]
    assert result["splits"]["train"]["recall"] != result["splits"]["train_paper"]["recall"]
    assert result["train_stats"] == "paper"
    per_class = {name: torch.tensor(result["splits"][name]["recall_per_class"]) for name in result["splits"]}
    expected = preference_scores(per_class["train_paper"], per_class["test"], load("digits-lt").groups)
    assert result["preference_test"]["model_imbalance_level"] == pytest.approx(expected.level)
    assert result["counts"] == load("digits-lt").counts.tolist()


def test_a_batch_that_training_drops_is_measured_all_the_same(tmp_path):
    _, result = trained(tmp_path / "run", "cbs", drop_last=True, train_stats="paper")
    assert result["counts"] == load("digits-lt").counts.tolist()
    assert result["splits"]["train_paper"]["samples"] == result["splits"]["train"]["samples"] == 342


def test_no_clock_and_no_path_in_the_result(left):
    text = left.result_file.read_text()
    assert str(left.path) not in text
    assert "seconds" not in text


def test_the_log_has_a_line_an_epoch_and_recalls_every_other(left):
    lines = logged(left)
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    assert ["recall" in line for line in lines] == [False, True, False, True]
    assert [line["lr"] for line in lines] == pytest.approx([0.05, 0.1, 0.05, 0.1 * (1 - 2**-0.5) / 2])
    assert lines[3]["recall"]["test"] == left.result()["splits"]["test"]["recall"]
    assert lines[3]["loss"] < lines[0]["loss"]


def test_the_environment(left):
    found = json.loads((left.path / "environment.json").read_text())
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert environment(torch.device("cpu"), 1)["device"] == "cpu"


def test_a_model_is_what_its_file_says(left):
    tensors, card = read_tensors(left.model_file)
    head = HeadSpec(card["head"], card["head_options"])
    model = build_model(card["model"], len(card["classes"]), head=head, in_channels=card["channels"])
    model.load_state_dict(tensors)
    model.eval()
    mean, std = (torch.tensor(card[key]).view(-1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        logits = model((load("digits-lt").test.images.pixels.float() / 255 - mean) / std).logits
    torch.testing.assert_close(load_file(left.predictions_file)["test.logits"], logits, rtol=1e-5, atol=1e-5)


# --- measures as the paper took them


def test_a_pass_as_in_training_learns_nothing():
    model = build_model("small-cnn", 10, in_channels=1, projection=(16, 8))
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = 3 * torch.randn(16, 1, 8, 8) + 1
    with torch.no_grad():
        plain = model(images, project=False).logits
        with batch_statistics(model):
            as_trained = model(images, project=False).logits
        model.eval()
        assert torch.equal(model(images, project=False).logits, plain)
    assert not torch.allclose(plain, as_trained)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Normalised by the batch, as a model in training would.
    model.train()
    with torch.no_grad():
        assert torch.equal(model(images, project=False).logits, as_trained)
    assert not torch.equal(
        model.state_dict()["backbone.layers.1.running_mean"], before["backbone.layers.1.running_mean"]
    )


@pytest.mark.parametrize("method", mostly_slow(["cbs", "reslt", "bcl"], {"bcl"}))
@pytest.mark.parametrize("train_stats", ["eval", "paper"])
def test_evaluation_does_not_change_training(tmp_path, method, train_stats):
    """Recalls in every epoch, or never: the same model."""
    often, _ = trained(tmp_path / "often", method, evaluate_every=1, train_stats=train_stats)
    never, _ = trained(tmp_path / "never", method, evaluate_every=0, train_stats=train_stats)
    assert often.model_file.read_bytes() == never.model_file.read_bytes()
    assert often.result_file.read_bytes() == never.result_file.read_bytes()


def test_the_objective_is_called_at_every_epoch(tmp_path):
    """At the end ProCo has counted both contrast views of each image of the last epoch, and none of the next."""
    folder, _ = trained(tmp_path / "run", "proco")
    state = load_file(latest_checkpoint(folder.checkpoints))
    counts = load("digits-lt").counts
    assert torch.equal(state["objective.loss.statistics.mean_counts"], 2 * counts)
    assert not state["objective.loss.statistics.counts"].any()


# --- options


OPTIONS = [
    {"accumulate": 2},
    {"mixup": 0.2},
    {"precision": "bf16"},
    {"head": "cosine"},
    {"schedule": "steps", "milestones": (1,), "warmup": 0},
    {"augment": "cifar"},
    {"validation": 0.2},
]
MORE_OPTIONS = [
    {"label_smoothing": 0.1},
    {"nesterov": True},
    {"channels_last": True},
    {"model": "resnet20"},
    {"schedule": "constant", "warmup": 1},
    {"augment": "none"},
    {"train_stats": "paper"},
    {"subset_seed": "run", "seed": 3},
    {"profile": "step"},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without options."""
    return trained(tmp_path_factory.mktemp("plain") / "run", "cbs")[0]


@pytest.mark.parametrize("settings", mostly_slow(OPTIONS + MORE_OPTIONS, OPTIONS), ids=str)
def test_an_option_does_something_and_its_run_can_be_resumed(tmp_path, plain, settings):
    folder, _ = trained(tmp_path / "run", "cbs", **settings)
    if settings != {"train_stats": "paper"}:
        assert folder.predictions_file.read_bytes() != plain.predictions_file.read_bytes()
    stopped = RunFolder(tmp_path / "stopped")
    steps = Trainer(recipe_for("cbs", checkpoint_minutes=0.0, **settings), stopped).steps()
    list(islice(steps, 3))
    steps.close()
    assert latest_checkpoint(stopped.checkpoints)
    Trainer(recipe_for("cbs", **settings), stopped).run()
    assert_same_run(stopped, folder)


def test_a_compiled_model_has_one_graph_per_batch_size(tmp_path, monkeypatch):
    """342 images are five batches of 64 and one of 22; two stages, the second with another classifier."""
    sizes = []

    def backend(graph, inputs):
        sizes.append(next(one.shape[0] for one in inputs if one.ndim == 4 and one.shape[1:] == (1, 8, 8)))
        return graph.forward

    compiled = partial(torch.compile, backend=backend)
    monkeypatch.setattr(torch, "compile", compiled)
    settings = {"epochs": 2, "classifier_epochs": 2}
    folder, _ = trained(tmp_path / "compiled", "lws", compile=True, **settings)
    reference, _ = trained(tmp_path / "eager", "lws", **settings)
    assert sizes == [64, 22, 64, 22]  # plain numbers: no size that a graph would have to be asked for
    assert all(type(size) is int for size in sizes)
    ours, theirs = load_file(folder.model_file), load_file(reference.model_file)
    torch.testing.assert_close(ours, theirs)


def test_accumulation_is_the_same_batches_in_parts(tmp_path):
    """The same samples a step; only BatchNorm sees smaller batches."""
    _, whole = trained(tmp_path / "whole", "cbs", epochs=1)
    _, parts = trained(tmp_path / "parts", "cbs", epochs=1, accumulate=2)
    first, second = (logged(RunFolder(tmp_path / name))[0]["loss"] for name in ("whole", "parts"))
    assert first == pytest.approx(second, rel=0.2)
    assert whole["splits"]["train"]["samples"] == parts["splits"]["train"]["samples"]


def test_keep_is_the_number_of_checkpoints(tmp_path):
    folder, _ = trained(tmp_path / "run", "cbs", epochs=5, checkpoint_epochs=1, keep=3)
    assert sorted(path.name[:7] for path in folder.checkpoints.iterdir()) == ["0-00003", "0-00004", "0-00005"]


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected `device` to be auto, cpu or cuda, but got 'gpu'"):
        Trainer(recipe_for("cbs", device="gpu"), RunFolder(tmp_path / "run"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="Expected a GPU for `device` = cuda"):
            Trainer(recipe_for("cbs", device="cuda"), RunFolder(tmp_path / "run"))


# --- files


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_nan_and_infinity_are_null_in_json(tmp_path):
    write_json(tmp_path / "x.json", {"a": [float("nan"), float("inf"), 1.5], "b": torch.tensor([1, 2])})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, None, 1.5], "b": [1, 2]}


def test_rows_are_written_where_they_belong(tmp_path):
    shapes = {"logits": (torch.float32, (5, 2)), "labels": (torch.int64, (5,))}
    values = torch.arange(10.0).view(5, 2)
    with tensor_writer(tmp_path / "x.safetensors", shapes) as write:
        write("labels", torch.arange(5), torch.arange(5))
        for rows in (torch.tensor([0, 2, 4]), torch.tensor([1, 3])):  # as two ranks have them
            write("logits", rows, values[rows])
        assert not (tmp_path / "x.safetensors").exists()
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["logits"], values)
    assert torch.equal(found["labels"], torch.arange(5))
    assert [one.name for one in tmp_path.iterdir()] == ["x.safetensors"]


def test_statistics_come_back_as_they_were_written(left):
    statistics, classifier = read_statistics(left.statistics_file)
    assert sorted(statistics) == ["test", "train", "train_paper"]
    weight = load_file(left.model_file)["head.linear.weight"].double()
    torch.testing.assert_close(classifier.norms, weight.norm(dim=1))
    assert torch.equal(classifier.counts, load("digits-lt").counts)


@pytest.mark.parametrize("text", ["tau", "tau=x", "gamma=1", "tau=-1"])
def test_a_post_hoc_step_that_is_none_is_refused(text):
    with pytest.raises((ValueError, TypeError), match="posthoc"):
        PostHoc.parse(text)


def test_every_line_of_the_log_is_passed_to_on_log(tmp_path):
    lines = []
    trainer = Trainer(recipe_for("cbs", evaluate_every=1), RunFolder(tmp_path / "run"), on_log=lines.append)
    trainer.run()
    assert lines == [json.loads(line) for line in trainer.folder.log_file.read_text().splitlines()]


def test_evaluate_gives_the_statistics_of_the_run(tmp_path):
    """A loaded model on a split, without a trainer; also a model of torch with its own transforms."""
    import longtail
    from longtail.data import load
    from longtail.train import evaluate

    folder, _ = trained(tmp_path / "run", "cbs")
    model, split = longtail.load(folder.path), load("digits-lt").test
    stored, _ = read_statistics(folder.statistics_file)
    found = evaluate(model.train(), split, batch_size=100)
    assert torch.equal(found.correct, stored["test"].correct)
    assert torch.equal(found.samples, stored["test"].samples)
    assert model.training
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    other = evaluate(plain, split, transforms=lambda images: torch.stack(list(images)) / 255)
    expected = plain(split.images.pixels / 255).argmax(1)
    assert int(other.correct.sum()) == int((expected == split.labels).sum())

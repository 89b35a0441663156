"""Training on feature vectors: a linear model or an MLP, by every method that needs no maps, resumable, predictable."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from tests.train.conftest import assert_same_run, one_sentence, stop_and_resume

import longtail
from longtail.data import open_path
from longtail.inference import evaluate_on
from longtail.methods import METHODS
from longtail.train import RunFolder, Trainer, defaults
from longtail.train.optimizer import make_optimizer


@pytest.fixture(scope="module")
def gaussians(tmp_path_factory):
    """Write four Gaussian classes of 20 features, some large and one constant, with 400 to 8 training samples."""
    generator = np.random.default_rng(0)
    means, scale = generator.normal(size=(4, 20)), 10.0 ** generator.integers(-2, 3, 20)
    scale[3] = 0
    labels = np.concatenate([np.repeat(np.arange(4), (400, 100, 30, 8)), np.repeat(np.arange(4), 200)])
    features = (means[labels] + 1.5 * generator.normal(size=(len(labels), 20))) * scale + 5
    split = np.where(np.arange(len(labels)) < 538, "train", "test")
    path = tmp_path_factory.mktemp("gaussians") / "gaussians.npz"
    np.savez(path, features=features, labels=np.array(["ant", "bee", "cat", "dog"])[labels], split=split)
    return path


def recipe(path, method="softmax", **settings):
    """With a given weight decay, because choosing it takes four further runs."""
    return defaults(str(path), method).changed(**{"device": "cpu", "weight_decay": 0.1, **settings})


def test_linear_model_is_as_good_as_logistic_regression(gaussians, tmp_path):
    """Both have the same optimum but for regularisation; the shift by the counts is the same for both."""
    result = Trainer(recipe(gaussians, "balanced-softmax", validation=0.0), tmp_path).run()
    stored = np.load(gaussians)
    train, mean = stored["split"] == "train", stored["features"][:538].mean(0)
    std = stored["features"][:538].std(0)
    x = (stored["features"] - mean) / np.where(std > 0, std, 1)
    other = LogisticRegression(C=0.1, max_iter=1000).fit(x[train], stored["labels"][train])
    counts = [int((stored["labels"][train] == name).sum()) for name in other.classes_]
    scores = other.decision_function(x[~train]) - np.log(counts)
    expected = balanced_accuracy_score(stored["labels"][~train], other.classes_[scores.argmax(1)])
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(expected, abs=0.03)
    assert 0.6 < expected < 0.95


def test_features_are_standardised_by_the_training_split(gaussians, tmp_path):
    trainer = Trainer(recipe(gaussians, epochs=1, validation=0.0), tmp_path)
    backbone = trainer.stages.build().backbone
    rows = np.load(gaussians)["features"][:538].astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(backbone.mean, rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(backbone.std, np.where(np.arange(20) == 3, 1, rows.std(0)), rtol=1e-5)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"reslt"}))
def test_every_method_trains_on_features(gaussians, tmp_path, method):
    settings = {"epochs": 1, "model": "mlp-16", "evaluate_every": 0, "validation": 0.1, "batch_size": 64}
    settings |= {"beta": 1.5} if METHODS[method].beta else {}
    settings |= {"second_stage_epochs": 1} if "second_stage_epochs" in METHODS[method].parameters else {}
    result = Trainer(recipe(gaussians, method, **settings), tmp_path).run()
    assert result["splits"]["test"]["samples"] == 800


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_stopped_run_ends_like_an_undisturbed_one(gaussians, tmp_path, optimizer):
    settings = {"epochs": 3, "optimizer": optimizer, "model": "mlp-8", "batch_size": 64}
    reference = RunFolder(tmp_path / "reference")
    Trainer(recipe(gaussians, **settings), reference).run()
    folder = RunFolder(tmp_path / "stopped")
    stop_and_resume(recipe(gaussians, **settings), folder, 5, 4, 9)
    assert_same_run(folder, reference)


def test_adamw_is_the_published_rule():
    """Loshchilov and Hutter, 2019, algorithm 2, in float64 NumPy."""
    generator = np.random.default_rng(0)
    start = {"weight": generator.normal(size=(3, 2)), "bias": generator.normal(size=3)}
    parameters = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [{"params": [one], "weight_decay": 0.3 if one.ndim > 1 else 0.0} for one in parameters.values()]
    optimizer = make_optimizer(groups, "adamw")
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    first, second = ({name: np.zeros_like(value) for name, value in start.items()} for _ in range(2))
    for step in range(1, 6):
        for name, parameter in parameters.items():
            gradient = generator.normal(size=parameter.shape)
            parameter.grad = torch.tensor(gradient)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            decay = 0.01 * 0.3 * start[name] if name == "weight" else 0
            root = np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
            start[name] = start[name] - decay - 0.01 * first[name] / (1 - 0.9**step) / root
        optimizer.step()
    for name, parameter in parameters.items():
        np.testing.assert_allclose(parameter.detach(), start[name], rtol=1e-12)


def test_commands_on_features(run, gaussians, tmp_path):
    code, _, err = run("train", gaussians, "--method", "cbs", "--epochs", 5, "--device", "cpu", "--out", "run")
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["auto_beta"]["beta"] != 1
    code, out, _ = run("predict", "run", gaussians)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[-1]["path"].endswith("gaussians.npz:1337")
    right = [row["label"] == row["predicted"] for row in rows[538:]]
    assert np.mean(right) == pytest.approx(result["splits"]["test"]["accuracy"])
    model = longtail.load("run")
    features = np.load(gaussians)["features"]
    labels, _ = model.predict(features[-3:])
    assert [model.class_names[label] for label in labels] == [row["predicted"] for row in rows[-3:]]
    code, out, _ = run("evaluate", "run", "--data", gaussians, "--out", "again.json")
    assert code == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["splits"]["test"]["recall"] == pytest.approx(result["splits"]["test"]["recall"])
    assert run("report", "run", "--out", "report.html")[0] == 0
    assert run("data", "describe", gaussians)[0] == 0
    with pytest.raises(ValueError, match=r"\(N, 20\)"):
        model.predict(features[:, :7])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_a_table_are_taken_by_name(run, gaussians, tmp_path, suffix):
    """Their order does not matter; missing and additional ones are named; arrays have no names."""
    stored = np.load(gaussians)
    table = pd.DataFrame(stored["features"], columns=[f"F {number}" for number in range(20)])
    table = table.assign(species=stored["labels"], patient=[f"p{row // 2}" for row in range(len(table))])

    def write(name, frame):
        frame.to_csv(tmp_path / name, index=False) if suffix == "csv" else frame.to_parquet(tmp_path / name)
        return tmp_path / name

    columns = ["--label-column", "species", "--split-by", "patient"]
    file = write(f"table.{suffix}", table)
    code, _, err = run("train", file, "--epochs", 2, *columns, "--beta", 1, "--device", "cpu", "--out", "run")
    assert code == 0, err
    shuffled = table[np.random.default_rng(1).permutation(table.columns)]
    without = shuffled.drop(columns=["species", "patient"])

    def predict(frame):
        code, out, err = run("predict", "run", write(f"table.{suffix}", frame), "--all-classes")
        assert code == 0, err
        return [{key: row[key] for key in row if key != "label"} for row in csv.DictReader(io.StringIO(out))]

    expected = predict(table)
    assert predict(shuffled) == expected
    assert predict(without) == expected
    model = longtail.load("run")
    assert model.transforms.columns == tuple(f"F {number}" for number in range(20))
    probabilities = model.predict(without).probabilities
    assert model.predict(table.iloc[:, :20].to_numpy()).probabilities.equal(probabilities)
    for frame in (table, shuffled):
        write(f"new.{suffix}", frame)
        code, _, err = run("evaluate", "run", "--data", f"new.{suffix}", *columns, "--out", "metrics.json")
        assert code == 0, err
        found = json.loads((tmp_path / "metrics.json").read_text())["splits"]["test"]
        assert found["accuracy"] == np.mean(np.array([row["predicted"] for row in expected]) == stored["labels"])
    longtail.export("run", "torch.export", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "preprocessing.json").read_text())["columns"][1] == "F 1"
    wrong = write(f"wrong.{suffix}", shuffled.drop(columns=["F 3", "F 11"]).assign(height=1.0))
    code, _, err = run("predict", "run", wrong)
    assert code == 2
    assert one_sentence(err).endswith("the table lacks 'F 3', 'F 11' and also has 'height'.")
    with pytest.raises(ValueError, match="lacks 'F 3'"):
        model.predict(without.drop(columns="F 3"))
    with pytest.raises(ValueError, match="also has 'F 3'"):
        model.predict(pd.concat([without, without[["F 3"]]], axis=1))
    with pytest.raises(ValueError, match="lacks 'F 3'"):
        evaluate_on("run", open_path(wrong, label_column="species", split_by="patient"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "softmax", "--model", "resnet32"], "--model to be linear or mlp for features"),
        (["--method", "reslt"], "feature maps"),
        (["--method", "softmax", "--weights", "some.safetensors"], "--weights"),
        (["--method", "softmax", "--channels-last"], "--channels-last"),
        (["--method", "softmax", "--augment", "cifar"], "--augment"),
    ],
)
def test_what_features_cannot_do(run, gaussians, words, message):
    Path("some.safetensors").touch()
    code, _, err = run("train", gaussians, *words, "--device", "cpu", "--weight-decay", 1, "--out", "run")
    assert code == 2
    assert message in one_sentence(err)


def test_model_of_features_needs_features(run):
    code, _, err = run("train", "--data", "digits-lt", "--method", "softmax", "--model", "linear", "--device", "cpu")
    assert code == 2
    assert "--model to be a network for images" in one_sentence(err)

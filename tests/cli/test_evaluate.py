"""`longtail evaluate`: metrics from the files of a run, also after a post-hoc correction."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.cli.conftest import COLOURS, one_sentence, pictures

import longtail
from longtail.train import defaults, evaluate_run, stored, train

GROUPS = {"head": range(3), "medium": range(3, 6), "tail": range(6, 10)}


def result(folder):
    return json.loads((folder / "result.json").read_text())


def recalls(logits, labels):
    """Return the recall of each class."""
    predicted = logits.argmax(1)
    return [float((predicted[labels == c] == c).mean()) for c in range(10)]


@pytest.fixture
def copy(finished, tmp_path):
    """Return a function that copies a run, which a test can damage."""

    def make(method, **changes):
        return shutil.copytree(finished(method, **changes), tmp_path / method)

    return make


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("softmax", {"validation": 0.2}),
        ("cbs", {"train_stats": "paper"}),
        ("cbs", {"beta": "auto"}),
        ("tau-norm", {"validation": 0.2}),
        ("reslt", {}),
    ],
)
def test_evaluation_without_correction_repeats_the_result(finished, method, changes):
    folder = finished(method, **changes)
    assert evaluate_run(folder) == result(folder)


def test_adjusted_softmax_equals_logit_adjust_posthoc(finished):
    """Logits are stored before any correction, so both runs have the same."""
    found = evaluate_run(finished("softmax", validation=0.2), "adjust=1")
    other = result(finished("logit-adjust-posthoc", validation=0.2))
    for split in ("train", "val", "test"):
        expected = {name: value for name, value in other["splits"][split].items() if name != "gradient_balance"}
        assert found["splits"][split] == expected  # bit for bit
    assert found["preference_test"] == other["preference_test"]
    assert found["posthoc"] == other["posthoc"] == "adjust=1"
    assert found["without_logits"] == ["train_paper"]
    # A correction replaces the run's own.
    assert evaluate_run(finished("logit-adjust-posthoc", validation=0.2), "adjust=1")["splits"] == found["splits"]
    plain = evaluate_run(finished("logit-adjust-posthoc", validation=0.2), "adjust=0")
    before = result(finished("softmax", validation=0.2))
    assert plain["splits"]["test"]["recall"] == before["splits"]["test"]["recall"]


def tau_normalised(folder, split, tau):
    """Return stored logits divided by powers of the weights' norms, in float64, and labels."""
    stored, model = load_file(folder / "predictions.safetensors"), load_file(folder / "model.safetensors")
    weight, bias = (model[f"head.linear.{name}"].double().numpy() for name in ("weight", "bias"))
    logits = stored[f"{split}.logits"].double().numpy() - bias
    return logits / np.linalg.norm(weight, axis=1) ** tau, stored[f"{split}.labels"].numpy()


def test_tau_normalisation_follows_the_formula(finished, monkeypatch):
    folder = finished("softmax", validation=0.2)
    expected = recalls(*tau_normalised(folder, "test", 0.7))
    found = evaluate_run(folder, "tau=0.7")
    assert found["splits"]["test"]["recall_per_class"] == pytest.approx(expected, abs=1e-12)
    for name, members in GROUPS.items():
        assert found["splits"]["test"]["recall"][name] == pytest.approx(np.mean([expected[c] for c in members]))
    monkeypatch.setattr(stored, "_LOGITS", 70)  # seven rows at a time
    few = evaluate_run(folder, "tau=0.7")
    assert few["splits"]["test"]["recall"] == found["splits"]["test"]["recall"]
    assert few["splits"]["test"]["probability"] == pytest.approx(found["splits"]["test"]["probability"], rel=1e-12)


def test_strength_is_chosen_on_validation_data(run, finished, tmp_path):
    folder = finished("softmax", validation=0.2)
    every = [np.nanmean(recalls(*tau_normalised(folder, "val", k / 10))) for k in range(21)]
    best = int(np.argmax(every))  # the smallest if several are equal
    code, out, err = run("evaluate", folder, "--posthoc", "tau", "--out", tmp_path / "tau.json")
    assert (code, err) == (0, "")
    found = json.loads((tmp_path / "tau.json").read_text())
    assert found["posthoc"] == f"tau={best / 10:g}"
    assert list(found["posthoc_chosen_on_val"].values()) == pytest.approx(every)
    assert "was chosen on validation data" in out
    assert f"after {found['posthoc']}" in out
    assert found["splits"]["test"]["recall_per_class"] == recalls(*tau_normalised(folder, "test", best / 10))


def test_choice_of_the_largest_strength_is_reported(run, copy):
    folder = copy("softmax", validation=0.2)
    stored = load_file(folder / "predictions.safetensors")
    counts = torch.tensor(result(folder)["counts"]).double()
    for strength, largest in ((2.0, True), (0.7, False)):
        # Validation logits whose classes are all right after a shift of this strength only.
        labels = torch.arange(10).repeat_interleave(2)
        stored["val.labels"] = labels
        logits = 0.01 * torch.nn.functional.one_hot(labels, 10) + strength * counts.log()
        stored["val.logits"] = logits.float()
        save_file(stored, folder / "predictions.safetensors")
        code, out, err = run("evaluate", folder, "--posthoc", "adjust")
        assert (code, err) == (0, "")
        assert ("it is the largest tried" in out) == largest
        assert f"adjust={strength:g} was chosen on validation data" in out


def test_evaluate_prints_the_table_and_changes_no_file(run, finished, tmp_path):
    folder = finished("softmax", validation=0.2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = run("evaluate", folder)
    assert (code, err) == (0, "")
    assert f"{folder}: softmax on digits-lt" in out
    test = result(folder)["splits"]["test"]
    values = [test["recall"][name] for name in ("head", "medium", "tail", "all")]
    row = next(line for line in out.splitlines() if line.strip().startswith("test"))
    assert row.split() == ["test", *(f"{100 * value:.2f}" for value in (*values, test["accuracy"]))]
    assert "model imbalance level I" in out
    code, out, _ = run("evaluate", folder, "--posthoc", "adjust=0.5", "--out", tmp_path / "half.json")
    assert code == 0
    assert "their logits were not stored: train_paper" in out
    assert json.loads((tmp_path / "half.json").read_text()) == evaluate_run(folder, "adjust=0.5")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_evaluation_without_stored_training_logits(run, finished, monkeypatch):
    monkeypatch.setattr(stored, "TRAIN_LOGITS_BELOW", 1)
    folder = finished("softmax", seed=7)
    code, out, _ = run("evaluate", folder, "--posthoc", "adjust=1")
    assert code == 0
    assert "their logits were not stored: train, train_paper" in out
    assert "preference" not in out
    found = evaluate_run(folder, "adjust=1")
    assert set(found["splits"]) == {"test"}
    assert found["counts"] == result(folder)["counts"]
    assert evaluate_run(folder) == result(folder)


def test_samples_without_a_label_are_left_out(copy):
    """The samples of unreadable images have no label."""
    folder = copy("softmax", validation=0.2)
    stored = load_file(folder / "predictions.safetensors")
    for split in ("val", "test"):
        stored[f"{split}.labels"][::7] = -100
    save_file(stored, folder / "predictions.safetensors")
    found = evaluate_run(folder, "adjust")
    labels = stored["test.labels"].numpy()
    assert found["splits"]["test"]["samples"] == (labels >= 0).sum()
    counts = torch.tensor(result(folder)["counts"]).numpy()
    strength = float(found["posthoc"].removeprefix("adjust="))
    adjusted = stored["test.logits"].numpy() - strength * np.log(counts / counts.sum()).astype(np.float32)
    assert found["splits"]["test"]["recall_per_class"] == pytest.approx(recalls(adjusted, labels))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--posthoc", "tau"], "Expected validation logits in"),
        (["--posthoc", "tau=a"], "--posthoc to be like tau=0.7 or adjust=1, but got 'tau=a'."),
        (["--posthoc", "tau=-1"], "--posthoc to be a number >= 0"),
        (["--posthoc", "scale=1"], "--posthoc to be one of tau, adjust"),
        (["--out", "metrics.txt"], "--out to end in .json"),
        (["--out", "nowhere/metrics.json"], "--out to be in an existing folder"),
    ],
)
def test_wrong_arguments(run, finished, words, message):
    code, out, err = run("evaluate", finished("softmax"), *words)
    assert (code, out) == (2, "")
    assert message in one_sentence(err)


def test_run_is_not_overwritten(run, finished):
    folder = finished("softmax")
    for name in ("result.json", "environment.json"):
        code, _, err = run("evaluate", folder, "--posthoc", "adjust=1", "--out", folder / name)
        assert code == 2
        assert "--out not to overwrite a file of a run" in one_sentence(err)
    other = folder.parent / "result.json"  # not in a run's folder
    assert run("evaluate", folder, "--out", other)[0] == 0
    other.unlink()


def test_error_for_a_folder_of_runs_names_some_of_them(run, finished, tmp_path):
    source = finished("softmax")
    for name in ("b", "a", "search/cbs/c", "d"):
        shutil.copytree(source, tmp_path / "study" / name)
    (tmp_path / "study" / "other").mkdir()
    (tmp_path / "study" / "other" / "result.json").write_text("{}")  # not a run
    code, out, err = run("evaluate", tmp_path / "study")
    assert (code, out) == (2, "")
    inside = ", ".join(str(tmp_path / "study" / name) for name in ("a", "b", "d"))
    assert one_sentence(err).endswith(f"the runs are below it: {inside} and 1 more.")
    code, _, err = run("evaluate", tmp_path / "study" / "other" / "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "but there is no result.json" in err


def test_tau_needs_a_linear_classifier(run, finished):
    code, _, err = run("evaluate", finished("ldam"), "--posthoc", "tau=1")
    assert code == 2
    assert err.startswith("longtail: Expected a linear classifier")


@pytest.mark.parametrize("name", ["statistics.safetensors", "predictions.safetensors", "result.json"])
def test_damaged_or_missing_file_is_named(run, copy, name):
    folder = copy("softmax")
    content = (folder / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"\x80\x04\x95", b"[1]"):
        (folder / name).write_bytes(damaged)
        code, _, err = run("evaluate", folder, "--posthoc", "adjust=1")
        assert code == 2, damaged
        assert name in one_sentence(err)
    (folder / name).unlink()
    code, _, err = run("evaluate", folder, "--posthoc", "adjust=1")
    assert code == 2
    assert name in err


def test_another_safetensors_file_is_refused(run, copy):
    folder = copy("softmax")
    shutil.copy(folder / "model.safetensors", folder / "statistics.safetensors")
    code, _, err = run("evaluate", folder)
    assert code == 2
    assert "Expected" in err
    assert "class statistics" in err
    (folder / "result.json").write_text('{"data": "digits-lt"}')
    shutil.copy(copy("cbs") / "statistics.safetensors", folder / "statistics.safetensors")
    code, _, err = run("evaluate", folder)
    assert code == 2
    assert "to have `method`" in err


# New data


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """Return a folder of images with splits, a run on it, and its class names."""
    root = tmp_path_factory.mktemp("pets")
    for seed, part in enumerate(("train", "test")):
        for name, (number, colour) in COLOURS.items():
            for one in range(number if part == "train" else 6):
                rng = np.random.default_rng(100 * seed + one)
                noise = rng.integers(-60, 60, (8, 8, 3))  # so that some predictions are wrong
                path = root / part / name / f"{one}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.clip(noise + 0.15 * np.array(colour) + 100, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(path)
    recipe = defaults(str(root), "cbs").changed(model="small-cnn", epochs=3, batch_size=16, device="cpu")
    train(recipe, root.parent / "run")
    return root, root.parent / "run"


def test_new_data_that_is_the_test_split_repeats_its_metrics(run, pets):
    root, folder = pets
    code, out, _ = run("evaluate", folder, "--data", root, "--out", root.parent / "again.json")
    assert code == 0
    assert "cbs on pets" in out
    again, before = json.loads((root.parent / "again.json").read_text()), result(folder)
    found, expected = again["splits"]["test"], before["splits"]["test"]
    for name in ("recall", "calibration_error", "probability", "recall_per_class", "samples"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    assert again["preference_test"]["score"] == pytest.approx(before["preference_test"]["score"])
    assert 0.2 < expected["recall"]["all"] < 1


def test_part_of_new_data_is_named(run, pets, tmp_path):
    root, folder = pets
    written = ("--out", tmp_path / "part.json", "--predictions", tmp_path / "new.npz")
    code, out, _ = run("evaluate", folder, "--data", root, "--part", "train", *written)
    assert code == 0
    assert f"cbs on {root.name}, train (trained on {root.name})" in out
    found = np.load(tmp_path / "new.npz")
    assert len(found["labels"]) == sum(number for number, _ in COLOURS.values())
    right = found["logits"].argmax(1) == found["labels"]
    recall = np.mean([right[found["labels"] == c].mean() for c in range(3)])
    rows = [line.split() for line in out.splitlines()]
    measures = [f"{100 * value:.2f}" for value in (recall, right.mean())]
    assert next(row for row in rows if row[:2] == ["new", "data"])[-2:] == measures
    assert not any(row[0] == "test" for row in rows if row)
    assert json.loads((tmp_path / "part.json").read_text())["part"] == "train"


def test_classes_of_new_data_are_matched_by_name(run, pets, tmp_path):
    """New data has two of three classes, in another order; predictions are those of the model."""
    root, folder = pets
    rows = [(f"test/{name}/{one}.png", name) for name in ("red", "green") for one in range(6)]
    listed = root / "new.csv"
    listed.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    code, out, _ = run("evaluate", folder, "--data", listed, "--predictions", tmp_path / "new.npz")
    assert code == 0
    assert "no samples of blue" in out
    found = np.load(tmp_path / "new.npz")
    model = longtail.load(folder)
    names = found["classes"].tolist()
    assert names == list(model.class_names)
    assert [names[label] for label in found["labels"]] == [label for _, label in rows]
    predicted, _ = model.predict([str(root / path) for path, _ in rows])
    assert found["logits"].argmax(1).tolist() == predicted.tolist()
    assert found["paths"].tolist() == [str(root / path) for path, _ in rows]
    diagnosed = longtail.diagnose(tmp_path / "new.npz", counts=folder)
    assert diagnosed.counts.tolist() == result(folder)["counts"]
    assert diagnosed.splits["test"].predicted.tolist() == predicted.tolist()


def test_another_step_on_new_data(run, pets, tmp_path):
    """`--posthoc` replaces the step of the run, also on new data."""
    root, folder = pets
    run("evaluate", folder, "--data", root, "--posthoc", "adjust=0.5", "--out", tmp_path / "new.json")
    found, stored_run = json.loads((tmp_path / "new.json").read_text()), evaluate_run(folder, "adjust=0.5")
    assert found["splits"]["test"]["recall"] == pytest.approx(stored_run["splits"]["test"]["recall"])


def test_wrong_new_data(run, pets, tmp_path):
    root, folder = pets
    other = tmp_path / "other" / "purple"
    other.mkdir(parents=True)
    shutil.copy(root / "test" / "red" / "0.png", other)
    code, _, err = run("evaluate", folder, "--data", tmp_path / "other")
    assert code == 2
    assert "'purple'" in one_sentence(err)
    code, _, err = run("evaluate", folder, "--data", root, "--part", "val")
    assert code == 2
    assert "--part" in one_sentence(err)
    assert "train and test" in err
    red = tmp_path / "red"
    shutil.copytree(root / "test" / "red", red / "red")
    (red / "red" / "bad.png").write_bytes(b"")
    code, _, err = run("evaluate", folder, "--data", red)
    assert code == 2
    assert "bad.png" in one_sentence(err)
    code, _, err = run("evaluate", folder, "--data", red, "--bad-images", "skip")
    assert code == 0
    assert "1 of 7 images could not be read" in err


def test_flags_of_new_data_need_it(run, pets, tmp_path):
    _, folder = pets
    for words in (["--predictions", tmp_path / "x.npz"], ["--part", "val"], ["--label-column", "species"]):
        code, _, err = run("evaluate", folder, *words)
        assert code == 2
        assert f"--data with {words[0]}" in one_sentence(err)


def test_training_data_is_not_new(run, tmp_path):
    """A folder without splits, of which nothing was held out as test data."""
    pictures(tmp_path / "two", COLOURS, lambda _: (8, 8), "png")
    train(
        defaults(str(tmp_path / "two"), "softmax").changed(model="small-cnn", epochs=1, device="cpu"), tmp_path / "run"
    )
    code, _, err = run("evaluate", tmp_path / "run", "--data", tmp_path / "two")
    assert code == 2
    assert "trained on" in one_sentence(err)
    assert run("evaluate", tmp_path / "run", "--data", tmp_path / "two", "--part", "train")[0] == 0

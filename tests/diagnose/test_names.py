"""Diagnoses: classes by name or index, and the record of a run."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.diagnose.predictions import COUNTS, NAMES, make, read_predictions, write_columns

from longtail.classes import Groups
from longtail.diagnosis import diagnose
from longtail.diagnosis.inputs import read_counts
from longtail.train.recipe import Recipe, write_recipe


def summary(found):
    """The results of a diagnosis by class name, whatever the order of the classes."""
    measured = {}
    for split in found.splits:
        recalls = found.recalls[split].per_class.tolist()
        measured[split] = dict(zip(found.names, recalls, strict=True))
    counts = dict(zip(found.names, found.counts.tolist(), strict=True))
    groups = {name: {found.names[c] for c in found.groups.members(name)} for name in found.groups.names}
    shift = found.shift and (found.shift.tau, found.shift.after)
    return measured, counts, groups, shift, found.calibration, found.upwards, found.findings, found.next_steps


# Classes by name


def test_classes_by_name(tmp_path):
    labels, logits = make(0, 3)
    named = [NAMES[c] for c in labels]
    path = write_columns(tmp_path / "a.csv", named, logits)
    assert read_predictions(path, "test").labels.tolist() == labels.tolist()
    guesses = write_columns(tmp_path / "b.csv", named, predicted=[NAMES[c] for c in logits.argmax(1)])
    assert read_predictions(guesses, "test", NAMES).predicted.tolist() == logits.argmax(1).tolist()
    np.savez(tmp_path / "c.npz", labels=np.array(named), logits=logits, classes=np.array(NAMES))
    assert read_predictions(tmp_path / "c.npz", "test").labels.tolist() == labels.tolist()
    numbered = write_columns(tmp_path / "d.csv", labels, logits, names=["0", "1", "2", "3"])
    assert read_predictions(numbered, "test").labels.tolist() == labels.tolist()


@pytest.mark.parametrize(("suffix", "labelled"), [("csv", "names"), ("parquet", "indices")])
def test_counts_in_another_order_are_aligned_by_name(tmp_path, files, suffix, labelled):
    paths = {}
    for place, split in enumerate(("train", "val", "test")):
        labels, logits = make(place, 50)
        shown = [NAMES[c] for c in labels] if labelled == "names" else labels.tolist()
        paths[split] = write_columns(tmp_path / f"{split}.{suffix}", shown, logits)
    (tmp_path / "other.json").write_text(json.dumps({"fox": 5, "cat": 400, "emu": 30, "dog": 150}))
    ordered = diagnose(**paths, counts=files["counts"])
    found = diagnose(**paths, counts=tmp_path / "other.json")
    assert summary(found) == summary(ordered)
    assert found.names == ordered.names == tuple(NAMES)
    assert found.counts.tolist() == COUNTS


def test_numbered_columns_and_counts_in_any_order(tmp_path):
    labels, logits = make(0, 20)
    other = [2, 0, 3, 1]
    for suffix in ("csv", "parquet"):
        path = write_columns(tmp_path / f"a.{suffix}", labels, logits[:, other], names=[str(c) for c in other])
        found = read_predictions(path, "test")
        assert found.labels.tolist() == labels.tolist()
        np.testing.assert_allclose(found.logits.numpy(), logits, atol=1e-6)
    (tmp_path / "c.json").write_text(
        '{"10": 1, "3": 5, "0": 400, "2": 30, "1": 150, "4": 9, "5": 8, "6": 7, "7": 6, "8": 3, "9": 2}'
    )
    assert read_counts(tmp_path / "c.json")[0].tolist() == [400, 150, 30, 5, 9, 8, 7, 6, 3, 2, 1]
    # Classes 1 to 4 rather than 0 to 3: a whole number is then a name, in every format.
    for suffix in ("csv", "parquet"):
        path = write_columns(tmp_path / f"b.{suffix}", labels + 1, logits, names=["1", "2", "3", "4"])
        assert read_predictions(path, "test").labels.tolist() == labels.tolist()


def test_different_orders_are_refused(tmp_path, files):
    labels, logits = make(0, 5)
    named = [NAMES[c] for c in labels]
    train = write_columns(tmp_path / "train.csv", named, logits)
    test = write_columns(tmp_path / "test.csv", named, logits, names=NAMES[::-1])
    with pytest.raises(ValueError, match=r"the same classes in the same order, but .*train.csv and .*test.csv differ"):
        diagnose(test, train)
    # Counts may have another order, unless a file has class indices: these may mean either order.
    (tmp_path / "other.json").write_text(json.dumps({"fox": 5, "cat": 400, "emu": 30, "dog": 150}))
    with pytest.raises(ValueError, match=r"^Expected class names in .*val.npz, since .*other.json lists"):
        diagnose(train, None, files["val"], tmp_path / "other.json")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_come_from_any_file(tmp_path, suffix):
    labels, logits = make(0, 30)
    train = write_columns(tmp_path / f"train.{suffix}", [NAMES[c] for c in labels], logits, names=NAMES)
    labels, logits = make(1, 30)
    guesses = [NAMES[c] for c in logits.argmax(1)]
    test = write_columns(tmp_path / f"test.{suffix}", [NAMES[c] for c in labels], predicted=guesses)
    found = diagnose(test, train)
    assert found.names == tuple(NAMES)
    assert found.notes == ()
    expected = [np.mean(logits.argmax(1)[labels == c] == c) for c in range(4)]
    assert found.recalls["test"].per_class.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_unlisted_names_are_those_in_the_files(tmp_path, suffix):
    def write(name, labels, predicted):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "npz":
            np.savez(path, labels=np.array(labels), predicted=np.array(predicted))
            return path
        return write_columns(path, labels, predicted=predicted)

    train = write("train", ["emu"] * 30 + ["cat"] * 200 + ["-100"], ["emu"] * 15 + ["yak"] * 15 + ["cat"] * 201)
    test = write("test", ["cat", "cat", "emu", "emu"], ["cat", "emu", "cat", "cat"])
    found = diagnose(test, train)
    assert found.names == ("cat", "emu", "yak")  # yak is predicted, but never true
    assert found.counts.tolist() == [200, 30, 0]
    assert found.recalls["test"].per_class.tolist()[:2] == [0.5, 0.0]
    assert found.notes == ("The classes are the 3 names in the files, sorted.",)
    assert "The classes are the 3 names in the files" in found.report().html


def test_names_are_not_guessed_if_the_order_matters(tmp_path, files):
    train = write_columns(tmp_path / "train.csv", ["b", "a"], predicted=["b", "a"])
    test = write_columns(tmp_path / "test.csv", [0, 1], predicted=[0, 1])
    with pytest.raises(ValueError, match=r"^Expected class names in .*test.csv, as in the other files"):
        diagnose(test, train)
    (tmp_path / "list.json").write_text("[4, 2]")
    with pytest.raises(ValueError, match="to be class indices, or names that columns or --counts list, but got 'b'"):
        diagnose(train, train, counts=tmp_path / "list.json")
    np.savez(tmp_path / "scores.npz", labels=np.array(["a", "b"]), logits=np.eye(2))
    with pytest.raises(ValueError, match="to be class indices, or names that columns or --counts list, but got 'b'"):
        diagnose(tmp_path / "scores.npz", train)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_numbers_in_one_file_are_all_indices_or_all_names(tmp_path, suffix):
    """Classes called 1, 2, 3; a model that never predicts index 0 has predictions that could be names."""
    labels, predicted = [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 2, 2]
    path = tmp_path / f"some.{suffix}"
    if suffix == "npz":
        np.savez(path, labels=np.array(labels), predicted=np.array(predicted))
    elif suffix == "parquet":
        pq.write_table(pa.table({"label": labels, "predicted": predicted, "boxes": [[0.5]] * 5 + [[]]}), path)
    else:
        rows = "".join(f"{label},{one}\n" for label, one in zip(labels, predicted, strict=True))
        path.write_text(f"label,predicted\n{rows}", "utf-8")
    found = read_predictions(path, "test", ["1", "2", "3"])
    assert found.labels.tolist() == labels
    assert found.predicted.tolist() == predicted


# Predictions of a run


def test_predictions_of_a_run(finished):
    file = finished("softmax", validation=0.2) / "predictions.safetensors"
    found = diagnose(file, file, file)
    result = json.loads((file.parent / "result.json").read_text())
    for split in ("train", "val", "test"):
        recalls = found.recalls[split]
        assert {"all": recalls.all, **recalls.groups} == pytest.approx(result["splits"][split]["recall"])
    assert found.counts.tolist() == result["counts"]
    assert found.names == tuple(result["classes"])
    assert found.groups.sizes == {"head": 3, "medium": 3, "tail": 4}  # not those by count:
    assert Groups.from_counts(result["counts"]).sizes != found.groups.sizes
    assert found.groups_from == f"those of the run ({file.parent / 'result.json'})"
    assert found.notes == (f"Class names and groups come from the run ({file.parent / 'result.json'}).",)
    bounded = diagnose(file, file, groups="50,10")
    assert bounded.groups == Groups.from_counts(result["counts"], 50, 10)
    assert bounded.notes == (f"Class names come from the run ({file.parent / 'result.json'}).",)


def test_counts_of_the_run_are_the_default(finished, tmp_path):
    file = finished("softmax", validation=0.2) / "predictions.safetensors"
    result = json.loads((file.parent / "result.json").read_text())
    found = diagnose(file)
    assert found.counts.tolist() == result["counts"]
    assert found.counts_from == f"from {file.parent / 'result.json'}"
    # Counts by name, in another order, do not move the run's groups.
    order = [7, 3, 0, 9, 1, 8, 2, 6, 4, 5]
    (tmp_path / "c.json").write_text(json.dumps({result["classes"][c]: result["counts"][c] for c in order}))
    assert summary(diagnose(file, counts=tmp_path / "c.json"))[:5] == summary(found)[:5]
    # Other names replace those of the run, and its groups.
    (tmp_path / "c.json").write_text(json.dumps({f"digit {c}": result["counts"][c] for c in range(10)}))
    own = diagnose(file, counts=tmp_path / "c.json")
    assert own.names[3] == "digit 3"
    assert own.groups == Groups.from_quantiles(result["counts"])  # there is no class with more than 100 images
    assert own.notes == (f"{file.parent / 'result.json'} was not used: it has other classes.",)


@pytest.mark.parametrize("method", ["logit-adjust-posthoc", "tau-norm"])
def test_posthoc_step_of_the_run_is_applied(finished, tmp_path, method):
    folder = finished(method, validation=0.2)
    result = json.loads((folder / "result.json").read_text())
    found = diagnose(folder)
    assert f"The predictions include the post-hoc step of the run, {result['posthoc']}." in found.notes
    for split in ("train", "val", "test"):
        recalls = found.recalls[split]
        assert {"all": recalls.all, **recalls.groups} == pytest.approx(result["splits"][split]["recall"])
    for name in ("recipe.toml", "result.json", "predictions.safetensors"):  # without what the step needs
        shutil.copy(folder / name, tmp_path)
    note = f"The predictions do not include the post-hoc step of the run, {result['posthoc']}."
    assert note in diagnose(tmp_path).notes


def test_measured_beta_needs_no_further_shift(finished):
    """A run with beta = "auto" fits the shift on the same validation data."""
    found = diagnose(finished("cbs", beta="auto", validation=0.2))
    assert found.run.adjusted != 0
    assert found.shift.tau == pytest.approx(0, abs=0.011)
    assert "is less than two standard errors from zero" in " ".join(found.next_steps)


def test_run_folder_has_all_splits(finished):
    folder = finished("softmax", validation=0.2)
    file = folder / "predictions.safetensors"
    assert summary(diagnose(folder)) == summary(diagnose(file, file, file))
    assert set(diagnose(str(folder), val=file).splits) == {"train", "val", "test"}
    assert set(diagnose(finished("softmax")).splits) == {"train", "test"}
    with pytest.raises(FileNotFoundError, match=r"^Expected a finished run in .*checkpoints, but"):
        diagnose(folder / "checkpoints")


@pytest.mark.parametrize("content", ["{", '{"params": []}'])
def test_damaged_record_of_a_run_is_an_error(finished, tmp_path, content):
    for name in ("recipe.toml", "predictions.safetensors"):
        shutil.copy(finished("softmax", validation=0.2) / name, tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=r"result\.json"):
        diagnose(tmp_path)


def test_result_of_another_program_is_not_used(files):
    expected = diagnose(files["test"], files["train"])
    (files["test"].parent / "result.json").write_text("{")  # there is no recipe.toml beside it
    assert summary(diagnose(files["test"], files["train"])) == summary(expected)


def test_run_with_other_classes_is_not_used(files, finished):
    expected = summary(diagnose(files["test"], files["train"]))
    for name in ("recipe.toml", "result.json"):
        shutil.copy(finished("softmax", validation=0.2) / name, files["test"].parent)
    found = diagnose(files["test"], files["train"])
    assert summary(found) == expected  # four classes, and the run has ten
    assert found.notes[0].endswith("result.json was not used: it has other classes.")


def test_arrays_have_no_run(finished, monkeypatch):
    monkeypatch.chdir(finished("softmax", validation=0.2))
    labels = np.arange(10)
    assert diagnose({"labels": labels, "predicted": labels}, counts=[5] * 10).run is None


def test_one_file_for_two_splits_is_refused(files):
    with pytest.raises(
        ValueError, match=r"^Expected different data for each split, .* for `train` and `test` \(.*test\.npz\)\.$"
    ):
        diagnose(files["test"], files["test"])


# The method of a run


def write_run(folder, method, params, **result):
    """The record of a run, with what a diagnosis needs."""
    (folder / "recipe.toml").write_text(
        write_recipe(Recipe.from_settings({"method": method, **params}, unknown_methods=True))
    )
    usual = {"data": "mine", "method": method, "params": params, "seed": 0, "epochs": [1], "reported": "last epoch"}
    usual |= {"posthoc": None, "posthoc_chosen_on_val": {}, "train_stats": "eval", "splits": {}}
    usual |= {"classes": NAMES, "counts": COUNTS}
    if "auto_beta" in result:
        result["auto_beta"] |= {"validation": True, "pilots": 0, "trace": []}
    (folder / "result.json").write_text(json.dumps({**usual, **result}), "utf-8")


def _in_run(folder, method, params, *, ahead=False, val=None, more=None):
    """Advice for predictions in the folder of a run, whose tail is behind or ahead of the head."""
    labels, logits = make(0, 400, bias=-1.5 if ahead else 0.9)
    np.savez(folder / "predictions.npz", labels=labels, logits=logits)
    groups = {"head": [0, 1], "medium": [2], "tail": [3]}
    write_run(folder, method, params, groups=groups, **(more or {}))
    found = diagnose(folder / "predictions.npz", val=val)
    return found.next_steps[1] if val is None else (found.next_steps[1], found.shift.tau)


@pytest.mark.parametrize(
    ("method", "params", "loss", "search"),
    [
        ("cbs", {"beta": 1.5}, "CBS (beta = 1.5)", "cbs"),
        ("balanced-softmax", {}, "Balanced Softmax (beta = 1)", "cbs"),
        ("logit-adjust", {"tau": 0.5}, "Logit adjustment (tau = 0.5)", None),
        ("proco", {"beta": 1.2}, "ProCo (beta = 1.2)", "proco"),
    ],
)
def test_run_with_a_shift_should_change_its_strength(tmp_path, method, params, loss, search):
    param = loss.split("(")[1].split(" ")[0]
    for ahead, direction in ((False, "higher"), (True, "lower")):
        text = _in_run(tmp_path, method, params, ahead=ahead)
        assert f"The model was trained with {loss}: try a {direction} {param}, chosen on validation data" in text
        assert "replace" not in text
        assert (f"`longtail study beta --data … --method {search}` searches for it." in text) == (search is not None)
        assert ("the tail is ahead of the head by " in text) == ahead


def test_counts_of_a_run_say_how_its_predictions_were_trained(tmp_path):
    (tmp_path / "run").mkdir()
    beside = _in_run(tmp_path / "run", "cbs", {"beta": 1.5})
    (tmp_path / "run" / "predictions.npz").rename(tmp_path / "new.npz")
    found = diagnose(tmp_path / "new.npz", counts=tmp_path / "run")
    assert found.next_steps[1] == beside
    assert "The model was trained with CBS (beta = 1.5): try a higher beta" in beside
    assert found.groups.members("tail") == (3,)


def test_beta_that_was_measured_is_not_to_be_chosen_again(tmp_path):
    more = {"posthoc": "adjust=0.24", "auto_beta": {"beta": 1.24, "measured": 1.28, "std_error": 0.1}}
    text = _in_run(tmp_path, "cbs", {"beta": "auto"}, more=more)
    assert text == (
        "The errors go to frequent classes. The model was trained with CBS, and its beta, 1.24, was measured on "
        "held-out data, so another one can gain little: try more data, augmentation or a pretrained model."
    )
    unmeasured = {"auto_beta": {"beta": 1.0, "problem": "too few samples"}}
    assert "try a higher beta" in _in_run(tmp_path, "cbs", {"beta": "auto"}, more=unmeasured)


def test_a_post_hoc_step_that_puts_the_tail_ahead_is_named(tmp_path):
    more = {"posthoc": "adjust=0.24", "auto_beta": {"beta": 1.24, "measured": 1.28, "std_error": 0.1}}
    text = _in_run(tmp_path, "cbs", {"beta": "auto"}, ahead=True, more=more)
    assert "prefers rare classes too much" in text
    assert f"`longtail evaluate {tmp_path} --posthoc adjust=0`" in text
    assert "more data" not in text


def test_an_unknown_step_of_the_run_is_not_counted_as_part_of_the_predictions(files):
    more = {"posthoc": "adjust=0.24", "auto_beta": {"beta": 1.24, "measured": 1.28, "std_error": 0.1}}
    text, tau = _in_run(files["val"].parent, "cbs", {"beta": "auto"}, val=files["val"], more=more)
    assert f"use beta = {1 + tau:.2f}, and 0.24 more if the predictions include the run's post-hoc step." in text


def test_training_recall_of_the_run_says_that_it_is_underfitted(tmp_path):
    labels = np.arange(40) % 4
    np.savez(tmp_path / "new.npz", labels=labels, predicted=labels * 0)
    for learnt in (0.25, 0.9):
        groups, splits = {"head": [0, 1], "tail": [2, 3]}, {"train": {"recall": {"all": learnt}}}
        write_run(tmp_path, "cbs", {}, groups=groups, splits=splits)
        headline = diagnose(tmp_path / "new.npz").headline
        assert headline.startswith("Train for longer first: ") == (learnt < 0.5)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("softmax", {}),
        ("ldam", {"max_margin": 0.5}),
        ("cbs", {"beta": 0.0}),
        ("mine", {"beta": 1.5}),  # an unknown method
    ],
)
def test_run_without_a_shift_should_use_one(tmp_path, method, params):
    text = _in_run(tmp_path, method, params)
    assert "Train again with the loss ClassBalancedSoftmaxLoss(counts, beta=1.0)" in text
    assert "Lower what favours them" in _in_run(tmp_path, method, params, ahead=True)


@pytest.mark.parametrize(
    ("method", "params", "beta", "said"),
    [
        ("cbs", {"beta": 1.5}, 1.5, "CBS (beta = 1.5): to train again without a post-hoc shift, use beta = {:.2f}."),
        ("balanced-softmax", {}, 1.0, "without a post-hoc shift, use ClassBalancedSoftmaxLoss(counts, beta={:.2f})."),
        ("softmax", {}, 0.0, "replace a plain cross entropy by ClassBalancedSoftmaxLoss(counts, beta={:.2f}), or add"),
    ],
)
def test_fitted_shift_is_added_to_that_of_the_run(files, method, params, beta, said):
    text, tau = _in_run(files["val"].parent, method, params, val=files["val"])
    assert tau > 0.5
    assert said.format(beta + tau) in text

"""Diagnoses: what is found, how a shift is chosen, and what the page shows."""

import inspect
import json
import math
import re

import numpy as np
import pytest
import torch
from tests.diagnose.predictions import COUNTS, make, write_columns

import longtail
from longtail import adjust_logits
from longtail.classes import Groups
from longtail.diagnose import diagnose
from longtail.diagnose.shift import _error
from longtail.metrics import preference_scores, recall
from longtail.study.figures.style import SPLITS

# Findings and advice


def test_signature_of_the_package_is_that_of_the_function():
    names = ["test", "train", "val", "counts", "head_over", "tail_under"]
    assert list(inspect.signature(longtail.diagnose).parameters) == names


def test_measures_are_those_of_the_library(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    groups = Groups.from_counts(COUNTS)
    assert found.groups == groups
    recalls = {}
    for split in ("train", "test"):
        with np.load(files[split]) as file:
            labels, predicted = torch.from_numpy(file["labels"]), torch.from_numpy(file["logits"]).argmax(1)
        right = torch.bincount(labels[labels == predicted], minlength=4)
        recalls[split] = recall(right, torch.bincount(labels, minlength=4), groups)
        assert found.recall_of(split).groups == recalls[split].groups
    expected = preference_scores(recalls["train"].per_class, recalls["test"].per_class, groups)
    assert found.preference.level == pytest.approx(expected.level)
    assert found.upwards > 90


def test_groups_are_thirds_if_all_classes_would_be_in_one(tmp_path, files):
    (tmp_path / "many.json").write_text("[900, 800, 700, 600]")
    found = diagnose(files["test"], counts=tmp_path / "many.json")
    assert found.groups.sizes == {"head": 1, "medium": 1, "tail": 2}
    assert found.groups_from.startswith("thirds of the classes by frequency")
    asked = diagnose(files["test"], counts=tmp_path / "many.json", head_over=750, tail_under=650)
    assert asked.groups.sizes == {"head": 2, "medium": 1, "tail": 1}


@pytest.mark.parametrize(
    ("counts", "asked", "advice"),
    [
        (
            COUNTS,
            {"head_over": 1000, "tail_under": 1},
            "numbers between 5 and 400, or to neither for the defaults",
        ),
        ([50] * 4, {}, "each has 50 training samples."),
    ],
)
def test_one_group_is_not_compared(tmp_path, files, counts, asked, advice):
    (tmp_path / "c.json").write_text(json.dumps(counts))
    found = diagnose(files["test"], files["train"], counts=tmp_path / "c.json", **asked)
    assert found.groups.sizes == {"head": 0, "medium": 4, "tail": 0}
    text = " ".join(found.next_steps)
    assert "All classes are in one group, the medium, so rare and frequent classes cannot be compared: " in text
    assert advice in text
    page = found.report().html
    for shown in (" ".join(found.findings), text, page):
        assert "behind the" not in shown
        assert "can gain little" not in shown
        assert "than the medium" not in shown
    assert "Model imbalance level I" not in page


def test_group_without_test_data_is_not_compared(tmp_path, files):
    labels, logits = make(0, 20)
    np.savez(tmp_path / "some.npz", labels=labels[labels != 3], logits=logits[labels != 3])
    text = " ".join(diagnose(tmp_path / "some.npz", counts=files["counts"]).next_steps)
    assert "There are no test samples of the tail" in text
    assert "can gain little" not in text


def test_shift_is_chosen_on_validation_data_and_helps_the_tail(files):
    found = diagnose(files["test"], files["train"], files["val"], files["counts"])
    shift = found.shift
    assert 0.5 <= shift.strength <= 1.2  # the logits were made with 0.9 log N too much
    assert shift.change("test", "tail") > 10
    assert shift.change("test", "head") < 0
    with np.load(files["test"]) as file:
        labels, logits = torch.from_numpy(file["labels"]), torch.from_numpy(file["logits"])
    predicted = adjust_logits(logits, COUNTS, shift.strength).argmax(1)
    by_class = [100 * float((predicted[labels == c] == c).double().mean()) for c in range(4)]
    assert shift.after["test"]["all"] == pytest.approx(sum(by_class) / 4)
    assert shift.after["test"]["tail"] == pytest.approx(by_class[3])
    text = found.next_steps[0]
    assert f"τ = {shift.strength:g}, chosen on 1,600 validation samples" in text
    assert re.search(r"tail by \+\d+\.\d points, head by -\d+\.\d points", text)


def test_largest_strength_is_named(tmp_path, files):
    inside = diagnose(files["test"], val=files["val"], counts=files["counts"])
    assert "the largest" not in inside.next_steps[0]
    for place, name in enumerate(("val", "test")):
        labels, logits = make(place, 300, bias=4.0, separation=1.5)
        np.savez(tmp_path / f"{name}.npz", labels=labels, logits=logits)
    found = diagnose(tmp_path / "test.npz", val=tmp_path / "val.npz", counts=files["counts"])
    assert 0 < found.shift.strength <= found.shift.best == 2
    assert "τ = 2, the largest strength that was tried, has the highest recall" in found.next_steps[0]


def test_test_data_is_not_used_to_choose_the_shift(files, tmp_path):
    first = diagnose(files["test"], counts=files["counts"], val=files["val"]).shift
    labels, logits = make(7, 50, bias=-2.0)
    np.savez(tmp_path / "other.npz", labels=labels, logits=logits)
    second = diagnose(tmp_path / "other.npz", counts=files["counts"], val=files["val"])
    assert second.shift.strength == first.strength
    assert second.shift.trace == first.trace
    assert second.shift.change("test", "all") < 0
    assert "That is worse than before" in second.next_steps[0]


def test_no_shift_without_validation_data(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    assert found.shift is None
    assert found.next_steps[0].startswith("Without validation data, no post-hoc shift was chosen")
    page = found.report().html
    assert "τ =" not in page
    assert "adjust_logits" not in page


def test_one_sample_does_not_choose_a_shift(tmp_path, files):
    labels = np.array([0] * 40 + [1] * 40 + [2] * 10 + [3])
    logits = np.zeros((len(labels), 4)) + 0.01 * np.log(COUNTS)
    logits[np.arange(len(labels)), labels] += 9
    logits[-1] = [0.5 + np.log(COUNTS)[0], 0, 0, np.log(COUNTS)[3]]  # one sample, which a shift of more than 0.5 wins
    np.savez(tmp_path / "val.npz", labels=labels, logits=logits)
    found = diagnose(files["test"], counts=files["counts"], val=tmp_path / "val.npz")
    assert found.shift.strength == 0
    assert found.shift.best > 0
    assert found.shift.lead == pytest.approx(25)
    assert (
        f"gains 25.0 points, which is within two standard errors ({2 * found.shift.error:.1f})" in found.next_steps[0]
    )


def test_standard_error_by_hand():
    labels = torch.tensor([0] * 4 + [1])
    one = torch.tensor([True, True, True, False, True])
    other = torch.tensor([True, True, False, True, False])
    # class 0 has 4: one right alone, one wrong alone, p = q = 1.5 / 5.5, variance 2p / 4; class 1: p = 0.6, q = 0.2
    expected = 100 * math.sqrt(2 * 1.5 / 5.5 / 4 + (0.6 + 0.2 - 0.4**2)) / 2
    assert _error(labels, one, other, 2) == pytest.approx(expected)


def test_predicted_classes_are_enough_for_a_report(tmp_path, files):
    labels, logits = make(0, 20)
    path = write_columns(tmp_path / "only.csv", labels, predicted=logits.argmax(1))
    val = write_columns(tmp_path / "val.csv", labels, predicted=logits.argmax(1))
    found = diagnose(path, counts=files["counts"], val=val)
    assert found.shift is None
    assert f"{val} and {path} have only predicted labels." in found.next_steps[0]
    assert f"{path} has only predicted labels." in diagnose(path, counts=files["counts"]).next_steps[0]
    text = found.report().html
    assert "calibration" not in text
    assert "the generalisation gap and imbalance level are unknown" in text
    assert text.count("<svg") == 1


def test_classes_without_samples_are_named(tmp_path, files):
    labels, logits = make(0, 20)
    np.savez(tmp_path / "some.npz", labels=labels[labels != 2], logits=logits[labels != 2])
    (tmp_path / "c.json").write_text(json.dumps({"cat": 400, "dog": 150, "emu": 30, "fox": 0}))
    found = diagnose(tmp_path / "some.npz", counts=tmp_path / "c.json", val=files["val"])
    text = found.report().html
    assert "1 class without test samples (left out of all means): emu." in text
    assert "1 class without training samples: fox." in text


def test_errors_within_the_tail_get_other_advice(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 50)
    predicted = labels.copy()
    rare = labels >= 4
    predicted[rare] = np.where(generator.random(rare.sum()) < 0.5, labels[rare], 9 - labels[rare])  # 4 and 5 swapped
    (tmp_path / "c.json").write_text("[900, 800, 700, 600, 5, 5]")
    path = write_columns(tmp_path / "a.csv", labels, predicted=predicted)
    found = diagnose(path, counts=tmp_path / "c.json")
    assert found.upwards == 0
    assert "Only 0 % of the errors on the tail go to more frequent classes" in " ".join(found.next_steps)
    even = diagnose(write_columns(tmp_path / "b.csv", labels, predicted=labels), counts=tmp_path / "c.json")
    assert "The tail is not behind the head" in " ".join(even.next_steps)
    assert "recall is 0.0 points higher on the tail" in " ".join(even.findings)


def test_validation_data_must_not_be_the_test_data(files):
    with pytest.raises(
        ValueError, match=r"^Expected different data for each split, but got the same predictions for `val` and `test`"
    ):
        diagnose(files["test"], counts=files["counts"], val=files["test"])


# The page


def test_splits_have_the_same_colours_in_all_figures(files):
    drawings = diagnose(files["test"], files["train"], counts=files["counts"]).report().drawings
    lines = {line.get_label(): line.get_color() for line in drawings["class-recall"].figure.axes[0].get_lines()}
    assert lines == {split: SPLITS[split].color for split in ("test", "training")}


def test_arrays_are_like_files_and_names_are_escaped(files):
    arrays = {}
    for split in ("train", "test"):
        with np.load(files[split]) as file:
            arrays[split] = {"labels": torch.from_numpy(file["labels"]), "logits": file["logits"]}
    found = diagnose(**arrays, counts=dict(zip(["<b>", "dog", "emu", "fox"], COUNTS, strict=True)))
    expected = diagnose(files["test"], files["train"], counts=files["counts"])
    assert repr(found) == str(expected) == "\n".join([*expected.findings, *expected.notes, *expected.next_steps])
    page = found.report().html
    assert "&lt;b&gt;" in page
    assert "<b><" not in page
    assert f"<dt>Tail recall</dt><dd><strong>{100 * found.recall_of('test').groups['tail']:.1f}\u00a0%" in page
    with pytest.raises(ValueError, match="the same predictions for `train` and `test`"):
        diagnose(arrays["test"], arrays["test"])

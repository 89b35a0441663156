"""Diagnoses: what is found, how a shift is chosen, and what the page shows."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from tests.diagnose.predictions import COUNTS, make, write_columns

import longtail
from longtail import fit_shift
from longtail.classes import Groups
from longtail.diagnosis import diagnose
from longtail.metrics import preference_scores, recall

# Findings and advice


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
        assert found.recalls[split].groups == recalls[split].groups
    expected = preference_scores(recalls["train"].per_class, recalls["test"].per_class, groups)
    assert found.preference.level == pytest.approx(expected.level)
    assert found.upwards > 90


def test_groups_are_thirds_if_all_classes_would_be_in_one(tmp_path, files):
    (tmp_path / "many.json").write_text("[900, 800, 700, 600]")
    found = diagnose(files["test"], counts=tmp_path / "many.json")
    assert found.groups.sizes == {"head": 1, "medium": 1, "tail": 2}
    assert found.groups_from.startswith("thirds of the classes by training samples")
    asked = diagnose(files["test"], counts=tmp_path / "many.json", groups="750,650")
    assert asked.groups.sizes == {"head": 2, "medium": 1, "tail": 1}


@pytest.mark.parametrize(
    ("counts", "asked", "advice"),
    [
        (
            COUNTS,
            {"groups": "1000,1"},
            "use --groups quantiles, or two numbers between 5 and 400",
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
    text = " ".join(diagnose(tmp_path / "some.npz", counts=files["counts"], groups="100,20").next_steps)
    assert "There are no test samples of the tail" in text
    assert "can gain little" not in text


def gaussian(seed, samples, s, classes=10, separation=2.0, *, counts=None):
    """Predictions ``log balanced posterior + s log N`` for unit Gaussians around orthogonal means, and counts."""
    counts = np.geomspace(500, 5, classes).round().astype(int) if counts is None else np.array(counts)
    labels = np.repeat(np.arange(classes), samples)
    x = np.random.default_rng(seed).normal(size=(len(labels), classes))
    x[np.arange(len(labels)), labels] += separation
    return {"labels": labels, "logits": separation * x + s * np.log(counts)}, counts.tolist()


def recall_by_hand(split, counts, tau):
    predicted = (split["logits"] - tau * np.log(counts)).argmax(1)
    return 100 * np.mean([np.mean(predicted[split["labels"] == c] == c) for c in range(len(counts))])


@pytest.mark.parametrize(("classes", "samples", "s"), [(10, 60, 0.8), (10, 60, -0.5), (300, 2, 1.0), (3, 100, 0.9)])
def test_known_shift_is_found_and_measured(classes, samples, s):
    separation = 3.5 if classes > 10 else 2.0
    (val, counts), (test, _) = (gaussian(seed, samples, s, classes, separation) for seed in (3, 4))
    found = diagnose(test, val=val, counts=counts)
    shift = found.shift
    assert shift.recommended
    assert shift.tau == pytest.approx(s, abs=3 * shift.std_error)
    assert shift.std_error < 0.1
    for name, split in (("val", val), ("test", test)):
        assert shift.before[name]["all"] == pytest.approx(recall_by_hand(split, counts, 0))
        assert shift.after[name]["all"] == pytest.approx(recall_by_hand(split, counts, shift.tau))
    text = " ".join(found.next_steps)
    assert f"adjust_logits(logits, counts, tau={shift.tau:g})`, fitted on {classes * samples} validation" in text
    assert ("prefers rare classes" in text) == (s < 0)
    assert ("lower the beta" if s < 0 else f"ClassBalancedSoftmaxLoss(counts, beta={shift.tau:.2f})") in text
    assert re.search(r"tail by [+-]\d+\.\d points, head by [+-]\d+\.\d points", text)
    page = found.report()
    assert f"tau={shift.tau:g})  # then argmax" in page.html
    line = page.drawings["shift"].figure.axes[0].get_lines()[0].get_xdata()
    assert min(line) < min(0, shift.tau)
    assert max(line) > max(0, shift.tau)


def test_shift_is_the_optimum_of_scipy(files):
    with np.load(files["val"]) as file:
        labels, z = file["labels"], file["logits"].astype(np.float64)

    def loss(theta):  # 400 samples of every class, so that weights are equal
        u = theta[0] * z - theta[1] * np.log(COUNTS)
        return np.mean(logsumexp(u, axis=1) - u[np.arange(len(u)), labels])

    a, b = minimize(loss, [1.0, 0.0]).x
    found = diagnose(files["test"], val=files["val"], counts=files["counts"]).shift
    assert found.delta == pytest.approx(b / a, abs=0.001)


def test_recommended_shift_is_that_of_the_fit():
    """With few samples tau is clearly smaller than the estimate."""
    (val, counts), (test, _) = (gaussian(seed, 8, 0.3) for seed in (0, 1))
    fit = fit_shift(val["logits"], val["labels"], counts)
    assert 2 * fit.std_error < fit.delta < 4 * fit.std_error
    shift = diagnose(test, val=val, counts=counts).shift
    assert shift.tau == pytest.approx(fit.tau, abs=0.005)
    assert (shift.delta, shift.clear) == (fit.delta, True)


def advice(val, test, counts):
    found = diagnose(test, val=val, counts=counts)
    assert found.correction == ""
    assert "adjust_logits" not in found.report().html
    return " ".join(found.next_steps)


def test_no_shift_is_recommended_without_evidence():
    (val, counts), (test, _) = (gaussian(seed, 50, 0.0) for seed in (1, 2))
    assert "is less than two standard errors from zero" in advice(val, test, counts)  # a balanced model
    (val, counts), (test, _) = (gaussian(seed, 50, 0.0, counts=[70] * 10) for seed in (1, 2))
    assert "the classes of the held-out data all have the same count" in advice(val, test, counts)
    (val, counts), (test, _) = (gaussian(seed, 50, 0.0, separation=20.0) for seed in (1, 2))
    assert "All validation samples are classified correctly" in advice(val, test, counts)
    constant = {"labels": val["labels"], "logits": np.ones((500, 10))}
    assert "no better than guessing" in advice(constant, test, counts)
    for seed in (0, 1, 12, 13):  # scores without information, with and without log N; a fit alone accepts 12 and 13
        val, test = ({"labels": np.repeat(np.arange(10), 50)} for _ in range(2))
        for split in (val, test):
            noise = np.random.default_rng([seed, split is val]).normal(size=(500, 10))
            split["logits"] = noise + (seed % 2) * np.log(counts := gaussian(0, 1, 0)[1])
        assert re.fullmatch(r"The scores predict .* no better than guessing, .*", advice(val, test, counts))


@pytest.mark.parametrize(("samples", "mistaken_for", "too_much"), [(200, 9, True), (2, 9, False), (200, 5, False)])
def test_a_model_that_prefers_rare_classes_is_told_so(samples, mistaken_for, too_much):
    """Half of the most frequent class is mistaken; not by chance, and not for a class that is not in the tail."""
    train, counts = gaussian(2, 60, 0.0, separation=9.0)
    labels = np.repeat(np.arange(10), samples)
    predicted = np.where(np.arange(len(labels)) < samples / 2, mistaken_for, labels)
    found = diagnose({"labels": labels, "predicted": predicted}, train, counts=counts)
    assert found.gap == pytest.approx(-1 / 8)
    steps = " ".join(found.next_steps)
    assert ("prefers rare classes too much" in steps) == ("Lower what favours them" in steps) == too_much
    assert "more data" not in steps


def test_shift_must_raise_the_recall_on_validation_data():
    """A clear shift that changes no prediction is not recommended."""
    (val, counts), (test, _) = (gaussian(seed, 3000, 0.0, 3, 2.0) for seed in (1, 2))
    keep = np.abs(np.diff(np.sort(val["logits"], 1)[:, -2:])).ravel() > 2  # no sample near a decision boundary
    val = {"labels": val["labels"][keep], "logits": val["logits"][keep]}
    val["logits"] += 0.2 * np.log(counts)
    found = diagnose(test, val=val, counts=counts)
    assert found.shift.clear
    assert found.shift.change("val", "all") <= 0
    assert "does not raise recall over all classes there" in found.next_steps[0]


def test_tail_that_is_behind_a_balanced_model_needs_no_shift():
    """Rare classes are harder, and the logits are the balanced posterior: a shift cannot help, more data can."""
    sizes = np.geomspace(500, 5, 10).round().astype(int)
    splits = []
    for seed in (0, 1):
        labels = np.repeat(np.arange(10), 400)
        hard = np.linspace(4.0, 1.0, 10)
        x = np.random.default_rng(seed).normal(size=(4000, 10))
        x[np.arange(4000), labels] += hard[labels]
        splits.append({"labels": labels, "logits": hard * x - hard**2 / 2})
    found = diagnose(splits[0], val=splits[1], counts=sizes.tolist())
    assert found.gap > 0.05
    assert abs(found.shift.tau) < 2 * found.shift.std_error
    assert "The fitted shift is small, so a shift in the loss helps the tail little." in found.next_steps[1]


def test_classes_without_training_samples_are_left_out_of_the_fit_and_masked():
    (val, counts), (test, _) = (gaussian(seed, 60, 0.8) for seed in (3, 4))
    some = val["labels"] != 9
    without = diagnose(test, val={name: values[some] for name, values in val.items()}, counts=counts)
    assert "1 class without validation samples (left out of the fit): class 9." in without.report().html
    expected = without.shift
    shift = (found := diagnose(test, val=val, counts=[*counts[:9], 0])).shift
    assert (shift.tau, shift.samples, shift.left_out) == (expected.tau, 540, 60)
    by_hand = (test["logits"] - shift.tau * np.log([*counts[:9], 1]))[:, :9].argmax(1)
    recalls = [np.mean(by_hand[test["labels"] == c] == c) for c in range(10)]
    assert shift.after["test"]["all"] == pytest.approx(100 * np.mean(recalls))
    assert "60 samples of classes without training samples are left out)" in found.next_steps[0]
    assert 'zero_counts="mask")' in found.next_steps[0]


def test_rounded_probabilities_give_nearly_the_shift_of_exact_ones():
    (val, counts), (test, _) = (gaussian(seed, 20, 1.0, 100) for seed in (0, 1))
    found = {}
    for digits in (3, 12):
        rounded = [softmax(one["logits"], 1).round(digits) for one in (val, test)]
        for one, scores in zip((val, test), rounded, strict=True):
            one["probabilities"] = scores / scores.sum(1, keepdims=True)
        without_logits = [{name: one[name] for name in ("labels", "probabilities")} for one in (val, test)]
        found[digits] = diagnose(without_logits[1], val=without_logits[0], counts=counts).shift
    assert found[12].delta == pytest.approx(1.0, abs=3 * found[12].std_error)
    assert found[3].delta == pytest.approx(1.0, abs=0.2)  # 46 % of the probabilities are 0; as 1e-30 they give 3.8
    assert found[3].change("test", "all") > 0.9 * found[12].change("test", "all")


@pytest.mark.parametrize("digits", [2, 12])
def test_correction_of_probabilities_runs_on_probabilities(digits):
    """The line of code gives the predictions that were measured; zeros ask for an estimator that smooths them."""
    (val, counts), (test, _) = (gaussian(seed, 60, 0.8) for seed in (3, 4))
    splits = []
    for one in (val, test):
        rounded = softmax(one["logits"], 1).round(digits)
        splits.append(
            {"labels": one["labels"], "probabilities": (rounded / rounded.sum(1, keepdims=True)).astype(np.float32)}
        )
    found = diagnose(splits[1], val=splits[0], counts=counts)
    names = {"longtail": longtail, "numpy": np, "probabilities": splits[1]["probabilities"], "counts": counts}
    right = eval(found.correction, names).argmax(1).numpy() == test["labels"]
    recalls = [100 * right[test["labels"] == c].mean() for c in range(10)]
    assert np.mean(recalls) == pytest.approx(found.shift.after["test"]["all"])
    assert found.correction in found.next_steps[0]
    assert f"logits = {found.correction}" in found.report().html
    assert ("PriorAdjustedClassifier" in found.next_steps[1]) == (digits == 2)


def test_masked_logits_do_not_prevent_a_fit():
    (val, counts), (test, _) = (gaussian(seed, 60, 0.8) for seed in (3, 4))
    expected = diagnose(test, val=val, counts=counts).shift.tau
    lowest = val["logits"].argmin(1)
    val["logits"][np.arange(600), lowest] = np.where(lowest == val["labels"], val["logits"].min(1), -np.inf)
    assert diagnose(test, val=val, counts=counts).shift.tau == pytest.approx(expected, abs=0.05)


def test_confidence_is_compared_with_accuracy():
    (wrong, counts), (right, _) = (gaussian(0, 60, s) for s in (0.8, 0.0))
    rare = wrong["labels"] >= np.sum(np.array(counts) >= 20)
    p = softmax(wrong["logits"], 1)[rare]
    accuracy = np.mean(p.argmax(1) == wrong["labels"][rare])
    text = (
        f"mean probability of {100 * p.max(1).mean():.1f} %, and {100 * accuracy:.1f} % of the predictions are right."
    )
    assert diagnose(wrong, counts=counts).findings[-1].endswith(text)
    assert "Probabilities" not in " ".join(diagnose(right, counts=counts).findings)  # the true posterior


def test_test_data_is_not_used_to_choose_the_shift():
    (val, counts), (test, _), (other, _) = (gaussian(seed, 60, s) for seed, s in ((0, 0.8), (1, 0.8), (2, -2.0)))
    first, second = (diagnose(one, val=val, counts=counts) for one in (test, other))
    assert second.correction == first.correction
    assert second.shift.change("test", "all") < 0
    assert "lower on test data than before" in second.next_steps[0]
    assert "lower on test data" not in first.next_steps[0]


def test_no_shift_without_validation_data(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    assert found.shift is None
    assert found.next_steps[0].startswith("Without validation data, no post-hoc shift was chosen")
    assert "hold out a tenth of every class before training" in found.next_steps[0]
    page = found.report().html
    assert "τ =" not in page
    assert "adjust_logits" not in page


def test_predicted_classes_are_enough_for_a_report(tmp_path, files):
    labels, logits = make(0, 20)
    path = write_columns(tmp_path / "only.csv", labels, predicted=logits.argmax(1))
    val = write_columns(tmp_path / "val.csv", labels, predicted=logits.argmax(1))
    found = diagnose(path, counts=files["counts"], val=val)
    assert found.shift is None
    assert f"{val} and {path} have only predicted labels;" in found.next_steps[0]
    assert f"{path} has only predicted labels;" in diagnose(path, counts=files["counts"]).next_steps[0]
    text = found.report().html
    assert "calibration" not in text
    assert "the generalisation gap and imbalance level are unknown" in text
    assert text.count("<svg") == 2  # recall per class, and the heat map


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
    assert "recall is the same on the tail and the head" in " ".join(even.findings)


def test_validation_data_must_not_be_the_test_data(files):
    with pytest.raises(
        ValueError, match=r"^Expected different data for each split, but got the same predictions for `val` and `test`"
    ):
        diagnose(files["test"], counts=files["counts"], val=files["test"])


# The page


def test_recall_per_class_has_a_panel_per_split(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    panels = found.report().drawings["class-recall"].figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["test", "training"]
    for axes, split in zip(panels, ("test", "train"), strict=True):
        order = sorted(range(len(COUNTS)), key=lambda c: -COUNTS[c])
        expected = [100 * float(found.recalls[split].per_class[c]) for c in order]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)


def test_a_model_that_learnt_little_is_trained_for_longer_first():
    labels = torch.arange(40) % 4
    guess = {"labels": labels, "predicted": torch.zeros(40, dtype=torch.int64)}
    found = diagnose(guess, {"labels": labels[:39], "predicted": guess["predicted"][:39]}, counts=[9, 5, 3, 1])
    assert found.headline == found.next_steps[0]
    assert "is only 25.0 %, and 3 of 4 classes are never predicted" in found.headline
    assert found.headline in found.report().html.replace("\u00a0", " ")


def test_arrays_are_like_files_and_names_are_escaped(files):
    arrays = {}
    for split in ("train", "test"):
        with np.load(files[split]) as file:
            arrays[split] = {"labels": torch.from_numpy(file["labels"]), "logits": file["logits"]}
    found = diagnose(**arrays, counts=dict(zip(["<b>", "dog", "emu", "fox"], COUNTS, strict=True)))
    expected = diagnose(files["test"], files["train"], counts=files["counts"])
    assert repr(found) == str(expected)
    assert all(f"- {line}" in str(found) for line in [*found.findings, *found.notes, *found.next_steps])
    page = found.report().html
    assert "&lt;b&gt;" in page
    assert "<b><" not in page
    assert f"<dt>Tail recall</dt><dd><strong>{100 * found.recalls['test'].groups['tail']:.1f}\u00a0%" in page
    with pytest.raises(ValueError, match="the same predictions for `train` and `test`"):
        diagnose(arrays["test"], arrays["test"])
    with pytest.raises(TypeError, match=r"^Expected `test` to be a file, .* a mapping .* of type tuple\.$"):
        diagnose(([0, 1], [[1.0, 0.0], [0.0, 1.0]]), counts=[5, 1])


def test_worst_classes_are_explained():
    labels = np.repeat(np.arange(9), 10)
    predicted = np.where((labels < 3) | (labels == 8), 4, labels)  # classes 0, 1, 2 and 8 are never recognised
    found = diagnose({"labels": labels, "predicted": predicted}, counts=[90, 80, 70, 60, 50, 40, 30, 20, 10])
    page = found.report()
    assert page.content["classes"].worst == [8, 2, 1]
    assert "3 of 9 classes: the lowest recalls on test data, all below the mean over the classes. Of" in page.html


def test_errors_that_go_to_more_frequent_classes_are_compared_with_chance():
    """Tail: classes of 20 and 10 samples among four; of the rarest, all other classes are more frequent."""
    labels, predicted = [0, 0, 1, 1, 2, 2, 2, 3, 3], [0, 0, 1, 1, 3, 0, 1, 2, 0]
    groups = Groups.from_indices(head=[0, 1], tail=[2, 3])
    found = diagnose(
        {"labels": labels, "predicted": predicted}, counts=dict(zip("abcd", (400, 200, 20, 10), strict=True))
    )
    found = replace(found, groups=groups)
    assert found.upwards == pytest.approx(100 * 4 / 5)
    assert found.upwards_by_chance == pytest.approx(100 * (3 * 2 / 3 + 2) / 5)
    assert any("80 % of the errors on tail classes" in line and "(80 % if" in line for line in found.findings)


def test_a_folder_of_runs_is_not_a_run(tmp_path, finished):
    shutil.copytree(finished("softmax"), tmp_path / "runs" / "one")
    with pytest.raises(FileNotFoundError, match="the runs are below it"):
        diagnose(tmp_path / "runs")

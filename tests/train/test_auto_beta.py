"""beta = "auto": train with beta 1, measure the rest on held-out data, subtract it."""

import json
import math
import re
import shutil
import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from tests.train.conftest import assert_same_run, logged, recipe_for, trained

import longtail
from longtail.data import ArrayImages, DataSet, Split, load
from longtail.study import Results
from longtail.train import RunFolder, StoppedError, Trainer
from longtail.train.measures import PostHoc
from longtail.train.pilots import describe_beta, pilots_needed

EPOCHS = 8


def fit_by_scipy(parts, counts):
    """b / a and 1 / a at the minimum of the class-balanced cross entropy of a z - b log N."""
    logits, labels = (np.concatenate(one) for one in zip(*parts, strict=True))
    weights = 1 / np.bincount(labels, minlength=len(counts))[labels]

    def loss(theta):
        u = theta[0] * logits.astype(float) - theta[1] * np.log(counts)
        return weights @ (logsumexp(u, axis=1) - u[np.arange(len(u)), labels])

    a, b = minimize(loss, [0.5, 0.1], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}).x
    return b / a, 1 / a


def held_out(folder):
    stored = load_file(folder.predictions_file)
    return stored["val.logits"].numpy(), stored["val.labels"].numpy()


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    torch.set_num_threads(1)
    return trained(tmp_path_factory.mktemp("auto") / "run", "cbs", beta="auto", imbalance=50, epochs=EPOCHS)


def test_the_model_is_that_of_balanced_softmax(auto, tmp_path):
    folder, _ = auto
    other, _ = trained(tmp_path / "run", "balanced-softmax", imbalance=50, epochs=EPOCHS)
    ours, theirs = load_file(folder.model_file), load_file(other.model_file)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def check_beta(found, delta):
    """A part of delta is added to 1, at most delta shrunk by its standard error; tests/test_beta.py says which."""
    error = found["std_error"]
    assert found["measured"] == pytest.approx(1 + delta, abs=1e-5)
    assert 0 < (found["beta"] - 1) / delta <= max(0, 1 - (error / delta) ** 2) + 1e-5


def test_beta_is_measured_on_the_held_out_images_of_pilots(auto):
    folder, result = auto
    found = result["auto_beta"]
    pilots = [RunFolder(folder.path / f"pilot{number}") for number in range(found["pilots"])]
    assert not (folder.path / f"pilot{len(pilots)}").exists()
    counts = load("digits-lt", imbalance=50).counts
    parts = [held_out(pilot) for pilot in pilots]
    held = np.bincount(parts[0][1], minlength=10)
    delta, temperature = fit_by_scipy(parts, counts.numpy() - held)
    check_beta(found, delta)
    assert found["temperature"] == pytest.approx(temperature, abs=1e-5)
    posthoc = PostHoc.parse(result["posthoc"])
    assert (posthoc.kind, posthoc.strength) == ("adjust", pytest.approx(found["beta"] - 1, abs=1e-9))


def test_the_effect_on_held_out_images_is_reported(auto):
    folder, result = auto
    found = result["auto_beta"]
    logits, labels = map(np.concatenate, zip(*(held_out(folder.pilot(n)) for n in range(found["pilots"])), strict=True))
    shift = np.log(load("digits-lt", imbalance=50).counts.numpy() - np.bincount(held_out(folder.pilot(0))[1]))
    for place, tau in enumerate((0, found["beta"] - 1)):
        predicted = (logits - tau * shift).argmax(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes without held-out images are predicted
            assert found["held_out"]["recall"][place] == pytest.approx(balanced_accuracy_score(labels, predicted))
        assert found["held_out"]["accuracy"][place] == pytest.approx(accuracy_score(labels, predicted))
    text = describe_beta(found | {"held_out": {"recall": [0.5, 0.489], "accuracy": [0.7, 0.6]}})
    assert "from 50.0 to 48.9 %" in text
    assert "before you use it" in text
    assert "before you use it" not in describe_beta(
        found | {"held_out": {"recall": [0.5, 0.6], "accuracy": [0.7, 0.6]}}
    )


def test_the_measured_shift_is_subtracted(auto):
    folder, result = auto
    stored, counts = load_file(folder.predictions_file), load("digits-lt", imbalance=50).counts
    delta = result["auto_beta"]["beta"] - 1
    predicted = (stored["test.logits"].double() - delta * counts.double().log()).argmax(1)
    recalls = [float((predicted[stored["test.labels"] == c] == c).double().mean()) for c in range(10)]
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(sum(recalls) / 10, abs=1e-9)
    assert not math.isclose(delta, 0, abs_tol=0.01)
    images = load("digits-lt", imbalance=50).test.images.pixels
    found = longtail.load(folder.path).predict(images)
    assert torch.equal(found.labels, predicted)
    shifted = stored["test.logits"].double() - delta * counts.double().log()
    expected = (shifted / result["auto_beta"]["temperature"]).softmax(1)
    torch.testing.assert_close(found.probabilities.double(), expected, rtol=1e-4, atol=1e-5)
    right = expected.amax(1).mean() - (predicted == stored["test.labels"]).double().mean()
    error = result["splits"]["test"]["calibration_error"]["all"]
    assert abs(float(right)) <= error + 1e-6  # that of the same probabilities: it bounds the mean difference


def test_a_run_without_a_temperature_keeps_its_probabilities(auto, tmp_path):
    """Runs of earlier versions have none."""
    folder, result = auto
    shutil.copytree(folder.path, tmp_path / "run", ignore=shutil.ignore_patterns("pilot*"))
    auto_beta = {name: value for name, value in result["auto_beta"].items() if name != "temperature"}
    (tmp_path / "run" / "result.json").write_text(json.dumps({**result, "auto_beta": auto_beta}), "utf-8")
    old, new = longtail.load(tmp_path / "run"), longtail.load(folder.path)
    logits = torch.randn(4, 10)
    scaled = old.after_training(logits) / new.posthoc.temperature
    torch.testing.assert_close(new.after_training(logits), scaled)
    assert old.posthoc.temperature == 1 != new.posthoc.temperature


def test_a_large_validation_split_needs_no_pilot(tmp_path):
    folder, result = trained(tmp_path / "run", "cbs", beta="auto", imbalance=10, epochs=4, validation=0.6)
    assert result["auto_beta"]["pilots"] == 0
    assert not list(folder.path.glob("pilot*"))
    counts = load("digits-lt", imbalance=10).counts.numpy()
    logits, labels = held_out(folder)
    delta, _ = fit_by_scipy([(logits, labels)], counts - np.bincount(labels, minlength=10))
    check_beta(result["auto_beta"], delta)


def test_a_small_validation_split_is_pooled_with_pilots(tmp_path):
    folder, result = trained(tmp_path / "run", "cbs", beta="auto", imbalance=50, epochs=4, validation=0.2)
    found = result["auto_beta"]
    assert (found["validation"], found["pilots"]) == (True, 5)
    counts = load("digits-lt", imbalance=50).counts.numpy()
    parts = [held_out(one) for one in (folder, *folder.pilots)]
    assert len(parts) == 6
    delta, _ = fit_by_scipy(parts, counts - np.bincount(parts[0][1], minlength=10))
    check_beta(found, delta)


def test_the_trace_is_in_the_log_and_in_the_result(tmp_path):
    folder, result = trained(
        tmp_path / "run", "cbs", beta="auto", imbalance=10, epochs=4, validation=0.6, evaluate_every=2
    )
    lines = [line["auto_beta"] for line in logged(folder) if "auto_beta" in line]
    assert [one["epoch"] for one in result["auto_beta"]["trace"]] == [2, 4]
    assert [{"epoch": epoch, **line} for epoch, line in zip((2, 4), lines, strict=True)] == result["auto_beta"]["trace"]
    assert result["auto_beta"]["trace"][-1]["beta"] == result["auto_beta"]["beta"]


@pytest.mark.parametrize(
    ("counts", "why", "pilots"), [([9, 9, 9], "same count", 0), ([9, 9, 1], "same count", 0), ([30, 3], "misclass", 5)]
)
def test_beta_is_1_if_it_cannot_be_measured(tmp_path, counts, why, pilots):
    """Grey squares, one shade per class, are easy: no held-out image is misclassified."""
    labels = torch.repeat_interleave(torch.tensor(counts))
    pixels = (80 * labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    split = Split(ArrayImages(pixels), labels)
    dataset = DataSet("squares", tuple("abc"[: len(counts)]), split, split)
    recipe = recipe_for("cbs", beta="auto").changed(imbalance=None, batch_size=8, epochs=5, lr=0.01)
    result = Trainer(recipe, tmp_path / "run", dataset=dataset).run()
    assert result["auto_beta"]["beta"] == 1
    assert result["auto_beta"]["pilots"] == pilots
    assert why in result["auto_beta"]["problem"]
    assert result["posthoc"] is None


@pytest.mark.parametrize("counts", [[5000, 500, 50], [700, 300, 200, 40, 11], [60, 30, 2, 1]])
def test_pilots_give_a_slope_the_certainty_of_a_hundred_even_samples(counts):
    """The variance of a weighted mean of class means, the weights being those of a regression slope."""
    n = np.array([count for count in counts if count > 1], float)
    held = np.where(n < 10, 1, n / 10)
    weights = np.log(n) - np.log(n).mean()
    even = (weights**2 / (100 / len(n))).sum()
    pilots = next((k for k in range(1, 5) if (weights**2 / (k * held)).sum() <= even), 5)
    assert pilots_needed(torch.tensor(counts)) == pilots
    assert pilots_needed(torch.tensor(counts), torch.full((len(counts),), math.ceil(100 / len(n)))) == 0


def test_a_validation_split_without_a_class_is_not_enough():
    counts = torch.tensor([400, 120, 40])
    assert pilots_needed(counts, torch.tensor([200, 200, 200])) == 0
    assert pilots_needed(counts, torch.tensor([200, 200, 0])) == pilots_needed(counts)


def test_only_pilots_are_pilots(auto, tmp_path):
    folder, _ = auto
    shutil.copytree(folder.path, tmp_path / "run")
    shutil.copy(folder.recipe_file, tmp_path)
    assert len(Results.read(tmp_path)) == 1
    assert all(one.is_pilot for one in folder.pilots)


def test_other_images_are_refused_before_a_pilot_is_used(tmp_path):
    digits = load("digits-lt", imbalance=50)
    recipe = recipe_for("cbs", beta="auto").changed(imbalance=None)
    trainer = Trainer(recipe, tmp_path / "run", dataset=digits)
    steps = trainer.steps()
    while len(trainer.pilots) < 2:
        next(steps)
    steps.close()
    fewer = replace(digits, train=digits.train.subset(torch.arange(1, len(digits.train))))
    with pytest.raises(ValueError, match="other images"):
        Trainer(recipe, tmp_path / "run", dataset=fewer).run()


def _stop_after(trainer, steps):
    for number, _ in enumerate(trainer.steps()):
        trainer.stop_requested = number == steps


def test_a_stopped_pilot_continues(auto, tmp_path):
    folder, _ = auto
    recipe = recipe_for("cbs", beta="auto", imbalance=50, epochs=EPOCHS)
    for steps in (3, 60):
        trainer = Trainer(recipe, tmp_path / "run")
        with pytest.raises(StoppedError):
            _stop_after(trainer, steps)
        assert trainer.folder.begun
    Trainer(trainer.folder.recipe(), trainer.folder).run()
    assert_same_run(trainer.folder, folder)


def test_progress_counts_the_pilots(tmp_path):
    trainer = Trainer(recipe_for("cbs", beta="auto", imbalance=10), tmp_path / "run")
    assert trainer.epochs_total == 2 * (1 + pilots_needed(trainer.dataset.counts))
    done = [trainer.steps_done for _ in trainer.steps()]
    assert done == sorted(done)
    assert trainer.steps_done == trainer.steps_total
    assert trainer.epochs_done == trainer.epochs_total


def test_a_study_reads_the_run_and_not_its_pilots(auto):
    folder, result = auto
    results = Results.read(folder.path.parent)
    assert len(results) == 1
    assert "CBS (β auto)" in str(results.table())
    assert f"β = {result['auto_beta']['beta']:.2f}" in results.table().caption


def test_a_report_draws_the_measured_beta_over_epochs(tmp_path, monkeypatch):
    settings = {"beta": "auto", "imbalance": 10, "epochs": 6, "validation": 0.6, "evaluate_every": 1}
    _, result = trained(tmp_path / "run", "cbs", **settings)
    drawn = []
    monkeypatch.setattr("longtail.report.drawings.beta_traces", lambda traces: drawn.extend(traces) or plt.figure())
    made = Results.read(tmp_path).report(tmp_path / "report.html")
    points = [point for point in result["auto_beta"]["trace"] if "std_error" in point]
    assert len(points) > 1
    expected = tuple([point[name] for point in points] for name in ("epoch", "measured", "std_error"))
    assert drawn == [expected]
    assert f"shrunk towards 1: {result['auto_beta']['beta']:.2f}." in made.read_text(encoding="utf-8")


@pytest.mark.parametrize(("validation", "pilots"), [(True, 0), (True, 5), (False, 5)])
def test_the_caption_of_the_measured_beta_says_on_what_data(auto, tmp_path, validation, pilots):
    shutil.copytree(auto[0].path, tmp_path / "run")
    trace = [{"epoch": epoch, "beta": 1.6, "measured": 2.0, "std_error": 0.2} for epoch in (1, 2)]
    result = auto[1] | {
        "auto_beta": auto[1]["auto_beta"] | {"validation": validation, "pilots": pilots, "trace": trace}
    }
    (tmp_path / "run" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = Results.read(tmp_path).report(tmp_path / "report.html").read_text(encoding="utf-8")
    during, after = re.search(r"The β that held-out data needs(.*?)After training(.*?)\d", page, re.DOTALL).groups()
    assert ("the validation split" in during, "the first pilot" in during) == (validation, not validation)
    assert ("the validation split" in after, "of the pilots" in after) == (validation, pilots > 0)

"""Two processes train one model, end to end, over gloo on a CPU: as torchrun starts them."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import assert_same_run, logged, mostly_slow, one_sentence, recipe_for
from tests.train.warm import until

from longtail import fit_shift
from longtail._io import read_tensors
from longtail._ranks import Ranks
from longtail.data import load
from longtail.methods import METHODS
from longtail.metrics import class_statistics, recall
from longtail.models import build_model
from longtail.train import RunFolder, Trainer
from longtail.train.checkpoint import latest_checkpoint
from longtail.train.stored import read_statistics

SHORT = ("--data", "digits-lt", "--epochs", 2)
NEVER = ("--evaluate-every", 0)  # which would have the ranks agree on their statistics before the end


def splits():
    return load("digits-lt").splits


def check_what_is_left(folder):
    """Every row is labelled once, every sample counted once, and the logits are those of the model that was saved."""
    dataset, result = load("digits-lt"), folder.result()
    stored = load_file(folder.predictions_file)
    statistics, _ = read_statistics(folder.statistics_file)
    assert sorted(result["splits"]) == ["test", "train", "train_paper"]
    for name, split in splits().items():
        assert torch.equal(stored[f"{name}.labels"], split.labels)
        counts = torch.bincount(split.labels, minlength=10)
        assert torch.equal(statistics[name].samples, counts)
        again = class_statistics(stored[f"{name}.logits"], split.labels)
        assert torch.equal(statistics[name].correct, again.correct)
        found = recall(again.correct, again.samples, dataset.groups)
        assert result["splits"][name]["recall"] == {"all": found.all, **found.groups}
    assert torch.equal(statistics["train_paper"].samples, dataset.counts)
    tensors, card = read_tensors(folder.model_file)
    projection = (64, 32) if any(key.startswith("projector") for key in tensors) else None
    model = build_model(card["model"], 10, in_channels=1, projection=projection)
    model.load_state_dict(tensors)
    model.eval()
    mean, std = (torch.tensor(card[key]).view(-1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        images = (dataset.test.images.pixels.float() / 255 - mean) / std
        logits = model(images, project=False).logits
    torch.testing.assert_close(stored["test.logits"], logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_torchrun(tmp_path):
    folder = RunFolder(tmp_path / "run")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [
        "-m",
        "longtail",
        "train",
        *map(str, SHORT),
        "--evaluate-every",
        "1",
        "--method",
        "proco",
        "--out",
        str(folder.path),
    ]
    done = subprocess.run(
        [*command, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("recall %") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    check_what_is_left(folder)
    assert logged(folder)[-1]["recall"]["test"] == folder.result()["splits"]["test"]["recall"]
    assert json.loads((folder.path / "environment.json").read_text())["world"] == 2


@pytest.mark.slow
def test_torchrun_trains_every_method(tmp_path):
    """One command trains all registered methods one after the other; both ranks see the whole data set once."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "longtail", "train", *map(str, SHORT), *map(str, NEVER), "--method", *METHODS]
    done = subprocess.run(
        [*command, *arguments, "--out", str(tmp_path / "runs")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folders = [RunFolder(path) for path in (tmp_path / "runs").iterdir()]
    assert sorted(folder.recipe().method for folder in folders) == sorted(METHODS)
    for folder in folders:
        result, name = folder.result(), folder.path.name
        assert json.loads((folder.path / "environment.json").read_text())["world"] == 2, name
        samples = [split["samples"] for key, split in result["splits"].items() if key in {"train", "val"}]
        assert sum(samples) == int(load("digits-lt").counts.sum()), name
        assert result["splits"]["train"]["recall"]["head"] > 0.3, name  # it learns: by chance 0.1
        assert all(torch.tensor(line["loss"]).isfinite() for line in logged(folder)), name


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("two") / "run")
    for rank in warm.start_two("train", *SHORT, *NEVER, "--method", "balanced-softmax", "--out", folder.path):
        assert rank.wait().code == 0, rank.said
    return folder


def test_what_two_ranks_leave(undisturbed):
    check_what_is_left(undisturbed)
    # The loss that is logged is that of the whole batch: near log 10 at first, not half of it.
    assert logged(undisturbed)[0]["loss"] > 1.2


def test_both_ranks_stop_if_one_receives_the_signal(warm, undisturbed, tmp_path):
    folder = RunFolder(tmp_path / "run")
    often = ("--checkpoint-minutes", 0)
    ranks = warm.start_two("train", *SHORT, *NEVER, *often, "--method", "balanced-softmax", "--out", folder.path)
    until(lambda: any(rank.over for rank in ranks) or latest_checkpoint(folder.checkpoints))
    ranks[1].send(signal.SIGTERM)
    assert [rank.wait().code for rank in ranks] == [143, 143]
    assert "Stopped; resume with the same command." in one_sentence(ranks[0].said)
    assert ranks[1].said == ""
    assert not folder.done
    for rank in warm.start_two("train", *SHORT, *NEVER, "--method", "balanced-softmax", "--out", folder.path):
        assert rank.wait().code == 0, rank.said
    assert_same_run(folder, undisturbed)


def test_a_strength_that_is_chosen_is_one_for_all_ranks(warm, tmp_path):
    folder = RunFolder(tmp_path / "run")
    arguments = ("--method", "tau-norm", "--validation", 0.1, "--out", folder.path)
    for rank in warm.start_two("train", *SHORT, *arguments):
        assert rank.wait().code == 0, rank.said
    result = folder.result()
    tried = result["posthoc_chosen_on_val"]
    assert len(tried) == 21
    best = max(tried.values())
    assert result["posthoc"] == next(strength for strength, value in tried.items() if value == best)
    assert result["splits"]["val"]["recall"]["all"] == pytest.approx(best, abs=1e-12)
    # 307 training images: the last batch is filled up with one that is there already, which counts once all the same.
    statistics, classifier = read_statistics(folder.statistics_file)
    assert int(classifier.counts.sum()) == 307
    for name in ("train", "train_paper"):
        assert torch.equal(statistics[name].samples, classifier.counts)


@pytest.mark.parametrize("validation", mostly_slow([0, 0.2], {0.2}))
def test_a_measured_beta_is_one_for_all_ranks(warm, tmp_path, validation):
    folder = RunFolder(tmp_path / "run")
    for rank in warm.start_two("train", *SHORT, "--method", "cbs", "--validation", validation, "--out", folder.path):
        assert rank.wait().code == 0, rank.said
    result, stored = folder.result(), load_file(folder.predictions_file)
    found = result["auto_beta"]
    assert found["pilots"] == 5
    counts = load("digits-lt").counts - (torch.bincount(stored["val.labels"], minlength=10) if validation else 0)
    logits = stored["test.logits"].double() - (found["beta"] - 1) * counts.log()
    again = class_statistics(logits, stored["test.labels"])
    statistics, _ = read_statistics(folder.statistics_file)
    assert torch.equal(statistics["test"].correct, again.correct)
    parts = [load_file(one.predictions_file) for one in ([folder] if validation else []) + folder.pilots]
    logits, labels = (torch.cat([part[name] for part in parts]) for name in ("val.logits", "val.labels"))
    held = torch.bincount(parts[0]["val.labels"], minlength=10)
    fit = fit_shift(logits, labels, load("digits-lt").counts - held)
    assert (found["beta"], found["measured"]) == pytest.approx((1 + fit.tau, 1 + fit.delta), abs=1e-9)


def test_not_finite_on_two_ranks(warm, tmp_path):
    folder = RunFolder(tmp_path / "run")
    ranks = warm.start_two("train", *SHORT, "--method", "balanced-softmax", "--lr", 1e30, "--out", folder.path)
    assert [rank.wait().code for rank in ranks] == [1, 1]
    assert "epoch 1, step 2" in one_sentence(ranks[0].said)
    assert ranks[1].said == ""
    found = json.loads((folder.path / "not_finite.json").read_text())
    assert len(found["labels"]) == 64  # the whole batch's, not this rank's


@pytest.mark.parametrize(
    "other",
    mostly_slow(["nothing", "an older checkpoint", "a finished run", "other settings"], ["an older checkpoint"]),
)
def test_two_disks_are_refused_on_both_ranks(warm, tmp_path, other):
    """A stopped run on the first machine; on the second, whose disk is another, something else."""
    disks = tmp_path / "first", tmp_path / "second"
    for disk in disks:
        disk.mkdir()
    folder = RunFolder(disks[0] / "run")
    trainer = Trainer(recipe_for("cbs", checkpoint_epochs=1, keep=9), folder)
    steps = trainer.steps()
    until(lambda: next(steps, None) or trainer.epochs_done)
    steps.close()
    if other != "nothing":
        there = RunFolder(shutil.copytree(folder.path, disks[1] / "run"))
        if other == "an older checkpoint":
            latest_checkpoint(there.checkpoints).rename(there.checkpoints / "0-00000-0000001.safetensors")
        elif other == "a finished run":
            there.result_file.write_text("{}")
        else:
            there.recipe_file.write_text(there.recipe_file.read_text().replace("lr = 0.1", "lr = 0.2"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ranks = warm.start_two("train", "--resume", "run", cwds=disks)
    assert [rank.wait().code for rank in ranks] == [2, 2]
    assert all("all processes to see the same files in run" in one_sentence(rank.said) for rank in ranks)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_two_disks_are_refused_for_a_command_that_goes_on(warm, tmp_path):
    """One of two runs is done on the first disk: each rank would have other runs to do."""
    disks = tmp_path / "first", tmp_path / "second"
    arguments = ("train", *SHORT, "--method", "cbs", "--beta", "1.0", "1.5", "--out", "runs")
    for disk in disks:
        disk.mkdir()
    for rank in warm.start_two(*arguments, cwds=disks):
        assert rank.wait().code == 0, rank.said
    assert not (disks[1] / "runs").exists()  # the first rank writes
    ranks = warm.start_two(*arguments, cwds=disks)
    assert [rank.wait().code for rank in ranks] == [2, 2]
    assert all("a disk that all processes share" in one_sentence(rank.said) for rank in ranks)


def test_a_trainer_refuses_two_disks(tmp_path, monkeypatch):
    """From Python too, where no command has checked before."""
    monkeypatch.setattr(Ranks, "same", lambda *_: False)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ValueError, match="a disk that all processes share"):
        Trainer(recipe_for("cbs"), folder, ranks=Ranks(0, 2)).run()
    assert not folder.path.exists()


def test_a_folder_that_is_taken_is_refused_on_both_ranks(warm, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        ranks = warm.start_two("train", *SHORT, "--method", "balanced-softmax", "--out", folder.path)
        assert [rank.wait().code for rank in ranks] == [2, 2]
    assert one_sentence(ranks[0].said) == f"Expected {folder.path} to be free, but another process is training there."
    assert one_sentence(ranks[1].said) == "Expected free run folders, but the first process could not lock one."
    assert not folder.begun


def test_a_batch_that_cannot_be_shared_is_refused(warm, tmp_path):
    ranks = warm.start_two(
        "train", *SHORT, "--method", "balanced-softmax", "--batch-size", 63, "--out", tmp_path / "run"
    )
    assert [rank.wait().code for rank in ranks] == [2, 2]
    assert "Expected --batch-size to be divisible by 2 processes" in one_sentence(ranks[0].said)

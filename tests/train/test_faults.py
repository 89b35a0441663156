"""What may go wrong while a run is under way, by the real thing: killed, stopped, without room, twice, not finite.

`test_chaos.py` kills commands at random moments.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from tests.train.conftest import assert_same_run, bytes_left, is_locked, one_sentence, recipe_for, trained
from tests.train.warm import ROOT, until

from longtail._io import write_tensors
from longtail.data import DataSet, Draws, from_dataset, load
from longtail.train import Fleet, NotFiniteError, RunFolder, StoppedError, Trainer, defaults
from longtail.train.checkpoint import Position, _is_reached, latest_checkpoint

CHAOS = int(os.environ.get("LONGTAIL_CHAOS", "0"))
EPOCHS = 6
ARGUMENTS = {
    # ProCo's objective has state; cRT has two stages; beta of CBS is measured by pilots.
    # Checkpoints come every 50 ms, in the middle of epochs.
    "proco": ("--method", "proco", "--epochs", EPOCHS),
    "crt": ("--method", "crt", "--epochs", EPOCHS, "--classifier-epochs", 2),
    "cbs": ("--method", "cbs", "--epochs", 3),
}
OFTEN = ("--evaluate-every", 3, "--checkpoint-epochs", 2)


def command(method, folder, minutes=0.05 / 60):
    return (
        "train",
        "--data",
        "digits-lt",
        *ARGUMENTS[method],
        *OFTEN,
        "--checkpoint-minutes",
        minutes,
        "--out",
        folder,
    )


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    """For each method a run that nothing happened to, and how long it took."""
    made = {}

    def make(method):
        if method not in made:
            folder = RunFolder(tmp_path_factory.mktemp("undisturbed") / method)
            began = time.monotonic()
            assert warm.run(*command(method, folder.path)).code == 0
            made[method] = (folder, time.monotonic() - began)
        return made[method]

    return make


def finish(warm, folder, command):
    """Resume what was killed; a run that had not even begun is started again."""
    last = warm.run("train", "--resume", folder.path) if folder.begun else warm.run(*command)
    assert last.code == 0, last.said


def caught(warm, folder, process, red_handed):
    """Kill a run in the act: as soon as the act is seen, and again where it was over by then."""
    for _ in range(30):
        until(lambda process=process: process.over or red_handed())
        process.send(signal.SIGKILL)
        process.wait()
        assert process.code == -signal.SIGKILL, "the run was over before it was caught"
        if red_handed():
            return
        process = warm.start("train", "--resume", folder.path)
    raise AssertionError("never caught in the act")


def newest(folder):
    return latest_checkpoint(folder.checkpoints)


# --- killed


def test_killed_while_a_checkpoint_is_written(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("proco")
    folder = RunFolder(tmp_path / "run")
    process = warm.start(*command("proco", folder.path, minutes=0))  # after every step
    caught(warm, folder, process, lambda: list(folder.checkpoints.glob(".*.part")))
    assert newest(folder) is None or load_file(newest(folder))
    finish(warm, folder, ())
    assert_same_run(folder, reference)


def test_killed_in_the_last_evaluation(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("crt")
    folder = RunFolder(tmp_path / "run")
    process = warm.start(*command("crt", folder.path))
    caught(warm, folder, process, lambda: list(folder.path.glob(".predictions*.part")))
    assert not folder.done
    assert not folder.predictions_file.exists()
    finish(warm, folder, ())
    assert_same_run(folder, reference)


@pytest.mark.slow
def test_killed_with_several_runs_under_way(warm, tmp_path):
    """The same command goes on with them, with what they had logged, and begins the one that had to wait."""
    values = ("--beta", 1.0, 1.5, "--seed", 0, 1)
    some = ("train", "--data", "digits-lt", "--method", "cbs", *values, "--epochs", 8, "--device", "cpu")
    assert warm.run(*some, "--together", 1, "--out", tmp_path / "undisturbed").code == 0
    references = [RunFolder(path) for path in (tmp_path / "undisturbed").iterdir()]
    folders = [RunFolder(tmp_path / "killed" / reference.path.name) for reference in references]
    often = (*some, "--together", 3, "--checkpoint-minutes", 0, "--out", tmp_path / "killed")

    def under_way():
        return [one for one in folders if not one.done and (newest(one) or Path()).name >= "0-00001"]

    process = warm.start(*often)
    until(lambda: process.over or len(under_way()) > 1, pause=0.001)
    process.send(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL, process.said
    first_epochs = {one.log_file: one.log_file.read_bytes().split(b"\n")[0] for one in under_way()}
    assert len(first_epochs) > 1
    again = warm.run(*often)
    assert again.code == 0, again.said
    assert {file: file.read_bytes().split(b"\n")[0] for file in first_epochs} == first_epochs
    assert len(references) == 4
    for folder, reference in zip(folders, references, strict=True):
        assert_same_run(folder, reference)


# --- stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stopped_by_sigterm_or_sighup(warm, undisturbed, tmp_path, number):
    reference, _ = undisturbed("proco")
    folder = RunFolder(tmp_path / "run")
    process = warm.start(*command("proco", folder.path))
    until(lambda: process.over or newest(folder))
    process.send(number)
    process.wait()
    assert process.code == 128 + number
    assert f"`longtail train --resume {folder.path}`" in one_sentence(process.said)
    assert process.printed == ""
    assert not folder.done
    assert warm.run("train", "--resume", folder.path).code == 0
    assert_same_run(folder, reference)


def test_stopped_by_ctrl_c(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("crt")
    folder = RunFolder(tmp_path / "run")
    process = warm.start(*command("crt", folder.path))
    until(lambda: process.over or newest(folder), pause=0.001)
    process.send(signal.SIGINT, group=True)
    assert process.wait().code == 130
    assert process.printed == ""
    assert f"`longtail train --resume {folder.path}`" in one_sentence(process.said)
    assert warm.run(*command("crt", folder.path)).code == 0  # the same command continues
    assert_same_run(folder, reference)


# --- two at once


def test_a_second_process_is_refused_and_a_lock_dies_with_its_process(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("proco")
    folder = RunFolder(tmp_path / "run")
    first = warm.start(*command("proco", folder.path))
    until(lambda: first.over or newest(folder))
    first.send(signal.SIGSTOP)  # it holds still, but lives
    assert not first.over
    second = warm.run("train", "--resume", folder.path)
    assert second.code == 2
    assert one_sentence(second.said) == f"Expected {folder.path} to be free, but another process is training there."
    with pytest.raises(BlockingIOError, match="to be free, but another process is training there"):
        Trainer(folder.recipe(), folder).run()  # from Python
    first.send(signal.SIGKILL)
    first.wait()
    assert warm.run("train", "--resume", folder.path).code == 0
    assert_same_run(folder, reference)


def test_a_trainer_holds_the_lock_while_it_trains(tmp_path):
    folder = RunFolder(tmp_path / "run")
    steps = Trainer(recipe_for("cbs"), folder).steps()
    next(steps)
    assert is_locked(folder)
    steps.close()
    assert not is_locked(folder)
    Trainer(recipe_for("cbs"), folder).run()
    assert not is_locked(folder)


def test_a_trainer_that_fails_leaves_no_lock(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(NotFiniteError):
        Trainer(recipe_for("cbs", lr=1e30), folder).run()
    assert not is_locked(folder)


def test_a_process_that_has_the_lock_may_train(tmp_path, monkeypatch):
    """However its folder is called, and in whatever order the locks are left."""
    monkeypatch.chdir(tmp_path)
    with RunFolder("run").lock():
        steps = Trainer(recipe_for("cbs"), RunFolder(tmp_path / "run")).steps()
        next(steps)
    assert is_locked(RunFolder("run"))
    assert sum(1 for _ in steps)
    assert not is_locked(RunFolder("run"))
    assert RunFolder("run").done


def test_a_fleet_holds_the_locks_of_those_that_train(tmp_path):
    folders = [RunFolder(tmp_path / name) for name in "ab"]
    steps = Fleet([Trainer(recipe_for("cbs"), folder) for folder in folders], together=2).steps()
    next(steps)
    next(steps)
    assert all(is_locked(folder) for folder in folders)
    assert sum(1 for _ in steps)
    assert not any(is_locked(folder) for folder in folders)


@pytest.mark.slow
def test_a_lock_is_not_held_on_by_workers_of_a_killed_process(warm, tmp_path):
    """They live a few seconds longer, until they see that nobody wants their images."""
    from PIL import Image

    for name, colour in (("a", "red"), ("b", "blue")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (80 + number, 70), colour).save(tmp_path / "photos" / name / f"{number}.jpg")
    folder = RunFolder(tmp_path / "run")
    settings = ("--model", "timm:resnet10t", "--image-size", 32, "--epochs", 200, "--workers", 2, "--precision", "fp32")
    often = ("--checkpoint-minutes", 0, "--evaluate-every", 0, "--batch-size", 2)
    process = warm.start(
        "train", tmp_path / "photos", "--method", "balanced-softmax", *settings, *often, "--out", folder.path
    )
    until(lambda: process.over or (newest(folder) and len(children_of(process)) == 2))
    process.send(signal.SIGSTOP)
    children = children_of(process)
    process.send(signal.SIGKILL)
    process.wait()
    assert children, process.said
    assert all(Path(f"/proc/{child}").exists() for child in children)
    with folder.lock():
        pass
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def children_of(process):
    try:
        tasks = [one / "children" for one in Path(f"/proc/{process.pid}/task").iterdir()]
        return [int(child) for children in tasks for child in children.read_text().split()]
    except FileNotFoundError:  # it ended meanwhile
        return []


# --- no room


def test_no_room_for_a_checkpoint(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("proco")
    folder = RunFolder(tmp_path / "run")
    process = warm.start(*command("proco", folder.path))
    until(lambda: process.over or newest(folder))
    process.send(signal.SIGTERM)
    assert process.wait().code == 143
    good = newest(folder)
    content = good.read_bytes()
    failed = warm.run("train", "--resume", folder.path, largest_file=len(content) // 2)
    assert failed.code == 1
    assert "free disk space" in one_sentence(failed.said)
    assert "File too large" in failed.said
    assert f"resume with `longtail train --resume {folder.path}`" in failed.said
    assert newest(folder) == good
    assert good.read_bytes() == content
    assert not list(folder.path.rglob("*.part"))
    assert warm.run("train", "--resume", folder.path).code == 0
    assert_same_run(folder, reference)


def test_no_room_for_the_predictions(warm, undisturbed, tmp_path):
    reference, _ = undisturbed("crt")
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(reference.path, folder.path)
    for name in bytes_left(reference):
        (folder.path / name).unlink()
    failed = warm.run("train", "--resume", folder.path, largest_file=20_000)  # logits and labels are 40 kB
    assert failed.code == 1
    assert "free disk space" in one_sentence(failed.said)
    assert not folder.done
    assert not list(folder.path.rglob("*.part"))
    assert warm.run("train", "--resume", folder.path).code == 0
    assert_same_run(folder, reference)


_FULL_DISK = """
set -e
mount -t tmpfs -o size=500k none "$1"
shift
code=0
"$@" --out "$FOLDER/run" || code=$?
ls -A "$FOLDER/run/checkpoints"
echo "code $code"
mount -o remount,size=50m "$FOLDER"
"$PYTHON" -m longtail train --resume "$FOLDER/run" > /dev/null
cp -r "$FOLDER/run" "$RESULT"
"""


@pytest.mark.skipif(not CHAOS, reason="make chaos: a separate file system and two cold starts")
def test_a_full_disk(undisturbed, tmp_path):
    """A file system of 500 kB, in a separate name space: two checkpoints fit, the third does not."""
    disk, result = tmp_path / "disk", tmp_path / "result"
    disk.mkdir()
    reference, _ = undisturbed("proco")
    arguments = [*map(str, command("proco", "x"))][:-2]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", _FULL_DISK, "sh", disk, sys.executable, "-m", "longtail", *arguments],
        env=os.environ | {"FOLDER": str(disk), "RESULT": str(result), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    left, code = done.stdout.strip().rsplit("\n", 1)
    assert code == "code 1"
    assert left
    assert ".part" not in left
    assert "No space left on device" in one_sentence(done.stderr)
    assert_same_run(RunFolder(result), reference)


# --- not finite


def test_a_loss_that_is_not_finite_ends_the_run(run, tmp_path):
    code, out, err = run("train", "--data", "digits-lt", "--method", "balanced-softmax", "--lr", 1e30, "--out", "run")
    assert code == 1
    assert out == ""
    said = one_sentence(err)
    found = json.loads((tmp_path / "run" / "not_finite.json").read_text())
    # At first the model is fine; the first step, at half of 1e30 in the warm-up of two epochs, ruins it.
    assert (found["stage"], found["epoch"], found["step"]) == (0, 0, 1)
    assert found["lr"] == pytest.approx(5e29)
    assert "epoch 1, step 2, at learning rate 5e+29" in said
    assert "not_finite.json" in said
    train = load("digits-lt").train
    second = Draws(0, 0).permutation(len(train))[64:128]
    assert found["samples"] == second.tolist()
    assert found["labels"] == train.labels[second].tolist()
    assert not (tmp_path / "run" / "result.json").exists()
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_last_step_that_ruins_the_model_ends_the_run(run, tmp_path):
    """Its own loss was taken before it, and there is none after it."""
    line = [
        "train",
        "--data",
        "digits-lt",
        "--method",
        "balanced-softmax",
        "--lr",
        1e30,
        "--batch-size",
        800,
        "--epochs",
        1,
    ]
    code, _, err = run(*line, "--warmup", 0, "--out", "run")
    assert code == 1
    said = one_sentence(err)
    assert "finite logits of the trained model" in said
    assert "1e+30" in said
    assert not RunFolder(tmp_path / "run").done


# --- checkpoints that do not belong


def stopped_run(path, recipe, dataset=None):
    """A run that was stopped in its first epoch."""
    folder = RunFolder(path)
    trainer = Trainer(recipe, folder, dataset=dataset)
    trainer.stop_requested = True
    with pytest.raises(StoppedError, match=r"Stopped in epoch 1 after step 1\."):
        trainer.run()
    assert newest(folder)
    return folder


@pytest.fixture
def stopped(tmp_path):
    return stopped_run(tmp_path / "run", recipe_for("cbs"))


def change(folder, **settings):
    text = folder.recipe_file.read_text()
    for name, value in settings.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
        text = "\n".join([*lines, f"{name} = {value}"]) + "\n"
    folder.recipe_file.write_text(text)


def drop(folder, *names):
    lines = folder.recipe_file.read_text().splitlines()
    folder.recipe_file.write_text("\n".join(line for line in lines if line.split(" = ")[0] not in names) + "\n")


def refused(run, folder):
    before = {path: path.read_bytes() for path in folder.checkpoints.iterdir()}
    code, out, err = run("train", "--resume", folder.path)
    assert code == 2
    assert out == ""
    assert {path: path.read_bytes() for path in folder.checkpoints.iterdir()} == before
    assert not folder.done
    return one_sentence(err)


@pytest.mark.parametrize("share", [0, 0.0001, 0.3, 0.999])
def test_a_checkpoint_that_was_cut_short_is_refused(run, stopped, share):
    path = newest(stopped)
    os.truncate(path, int(path.stat().st_size * share))
    said = refused(run, stopped)
    assert said.startswith(f"Expected {path} to be a whole safetensors file, but it is damaged")
    assert said.endswith("; delete it to continue from the start.")


def test_without_a_damaged_checkpoint_a_run_continues_from_the_one_before(run, stopped):
    good, bad = newest(stopped), stopped.checkpoints / "0-00001-0000000.safetensors"
    bad.write_bytes(good.read_bytes()[:1000])
    assert refused(run, stopped).endswith(f"; delete it to continue from {good.name}.")
    bad.unlink()
    assert run("train", "--resume", stopped.path)[0] == 0


def test_a_checkpoint_that_is_another_file_is_refused(run, stopped, tmp_path):
    shutil.copy(tmp_path / "run" / "recipe.toml", newest(stopped))
    assert "damaged" in refused(run, stopped)
    write_tensors(newest(stopped), {"x": torch.zeros(2)}, {})
    assert "to be a checkpoint, but it is another safetensors file; delete it" in refused(run, stopped)


def position(**changed):
    return lambda metadata: metadata["position"].update(changed)


@pytest.mark.parametrize(
    "change_metadata",
    [
        position(epoch=1),
        position(step=1_000_000),
        position(log_length=7),
        lambda metadata: metadata.update(position=3),
        lambda metadata: metadata.pop("counts"),
        lambda metadata: metadata.update(stage=1),
        lambda metadata: metadata.pop("checksum"),
        lambda metadata: metadata.pop("data"),
        lambda _: [],
    ],
)
def test_a_checkpoint_with_other_metadata_is_refused(run, stopped, change_metadata):
    path = newest(stopped)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = json.loads(file.metadata()["longtail"]), load_file(path)
    write_tensors(path, tensors, metadata if change_metadata(metadata) is None else [])
    assert str(path) in refused(run, stopped)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.999])
def test_a_checkpoint_with_a_changed_bit_is_refused(run, stopped, place):
    path = newest(stopped)
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    said = refused(run, stopped)
    assert said.endswith("; delete it to continue from the start.") or "Expected a checkpoint of" in said


def test_a_checkpoint_of_another_name_is_refused(run, stopped):
    newest(stopped).rename(stopped.checkpoints / "0-00001-0000000.safetensors")
    assert "0-00001-0000000.safetensors to be that of its name and of the recipe, but it is 0-0-1" in refused(
        run, stopped
    )


def test_positions_are_those_of_the_training_loop():
    epochs, steps = [2, 1], 3
    reached = {
        (stage, epoch, step) for stage, n in enumerate(epochs) for epoch in range(n) for step in range(steps + 1)
    }
    reached |= {(stage, n, 0) for stage, n in enumerate(epochs)}
    for place in product(range(4), range(4), range(5)):
        assert _is_reached(Position(*place), epochs, steps) == (place in reached)


@pytest.mark.parametrize("change_log", [Path.unlink, lambda log: os.truncate(log, log.stat().st_size - 9)])
def test_a_log_that_is_shorter_than_the_checkpoint_says_is_refused(run, tmp_path, change_log):
    trainer = Trainer(recipe_for("cbs", checkpoint_epochs=1), tmp_path / "run")
    for _ in trainer.steps():
        trainer.stop_requested = trainer.position.epoch == 1
        if trainer.stop_requested:
            break
    folder = trainer.folder
    whole = folder.log_file.read_bytes()
    change_log(folder.log_file)
    said = refused(run, folder)
    assert str(folder.log_file) in said
    assert str(newest(folder)) in said
    folder.log_file.write_bytes(whole + b"what is after the checkpoint")
    assert run("train", "--resume", folder.path)[0] == 0
    assert [json.loads(line)["epoch"] for line in folder.log_file.read_text().splitlines()] == [0, 1]


def pictures(root, side):
    """Two classes, fifteen images each, of which two are held out."""
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for number in range(15):
            Image.new("RGB", (side, side), (number, 99, 0)).save(root / name / f"{number:02}.png")
    return root


@pytest.mark.parametrize(
    ("side", "what"),
    [(16, "removed"), (16, "renamed, so that it is another"), (16, "replaced"), (80, "removed"), (80, "renamed")],
)
def test_a_checkpoint_of_other_images_is_refused(run, tmp_path, side, what):
    """Their number in each class, without those that are held out, may be the same."""
    root = pictures(tmp_path / "pictures", side)
    small = {"model": "small-cnn", "epochs": 2, "batch_size": 8, "image_size": 16, "workers": 0, "device": "cpu"}
    folder = stopped_run(tmp_path / "run", replace(defaults(str(root), "balanced-softmax", small=side == 16), **small))
    first = root / "b" / "00.png"
    if what == "removed":
        first.unlink()
    elif what == "replaced":
        Image.new("RGB", (side, side), (200, 0, 0)).save(first)
    else:
        first.rename(root / "b" / "99.png")
    assert "some were added, removed, renamed or replaced" in refused(run, folder)


def test_a_checkpoint_of_other_samples_of_a_data_set_from_python_is_refused(tmp_path):
    """Their labels are the same."""
    pixels = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 3, 80, 80)
    samples = [(pixels[place], place % 2) for place in range(40)]
    train = from_dataset(samples)
    some, others = (DataSet("mine", ("a", "b"), train.subset(range(begin, begin + 20))) for begin in (0, 20))
    small = {"model": "small-cnn", "epochs": 2, "batch_size": 8, "image_size": 16, "workers": 0, "device": "cpu"}
    recipe = replace(defaults("mine", "balanced-softmax", small=False), **small)
    folder = stopped_run(tmp_path / "run", recipe, some)
    with pytest.raises(ValueError, match="some were added, removed, renamed or replaced"):
        Trainer(recipe, folder, dataset=others).run()
    assert Trainer(recipe, folder, dataset=some).run()["data"] == "mine"


def test_a_run_continues_after_its_images_have_moved(run, tmp_path):
    root = pictures(tmp_path / "one" / "pictures", 80)
    small = {"model": "small-cnn", "epochs": 2, "batch_size": 8, "image_size": 16, "workers": 0, "device": "cpu"}
    folder = stopped_run(tmp_path / "run", replace(defaults(str(root), "balanced-softmax"), **small))
    root.rename(tmp_path / "pictures")
    change(folder, data=f'"{tmp_path / "pictures"}"')
    code, _, err = run("train", "--resume", folder.path)
    assert (code, err) == (0, "")


def test_a_checkpoint_of_other_data_is_refused(run, stopped):
    drop(stopped, "imbalance")
    change(stopped, data='"digits"')
    assert "Expected a checkpoint of digits in" in refused(run, stopped)


def test_a_checkpoint_with_other_class_counts_is_refused(own):
    folder, mine, go_on = own
    fewer = replace(mine, train=mine.train.subset(torch.arange(1, len(mine.train))))
    with pytest.raises(ValueError, match=r"to have the counts of mine now"):
        go_on(fewer)
    go_on(mine)
    assert folder.done


def test_a_checkpoint_of_other_classes_is_refused(own):
    folder, mine, go_on = own
    names = (*mine.class_names[:3], "three", *mine.class_names[4:])
    with pytest.raises(ValueError, match=r"to have the classes of mine now"):
        go_on(replace(mine, class_names=names))
    go_on(mine)
    assert folder.done


@pytest.fixture
def own(tmp_path):
    """A stopped run on own data, the data, and a function that continues with given data."""
    recipe = replace(
        defaults("mine", "balanced-softmax", small=True), model="small-cnn", epochs=1, device="cpu", validation=0.0
    )
    mine = replace(load("digits-lt"), name="mine")
    folder = stopped_run(tmp_path / "run", recipe, mine)
    return folder, mine, lambda data: Trainer(recipe, folder, dataset=data).run()


def test_a_checkpoint_of_another_method_is_refused(run, stopped):
    drop(stopped, "beta")
    change(stopped, method='"balanced-softmax"')
    assert "--method (cbs there, balanced-softmax here)" in refused(run, stopped)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": '"resnet20"'}, "--model (small-cnn there, resnet20 here)"),
        ({"beta": 1.2}, "--beta (1.5 there, 1.2 here)"),
        ({"subset_seed": 1}, "--subset-seed (0 there, 1 here)"),  # the same counts, of other images
        ({"epochs": 3}, "--epochs (2 there, 3 here)"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(run, stopped, settings, said):
    change(stopped, **settings)
    assert refused(run, stopped) == f"Expected {newest(stopped)} to be of this run, but it differs in {said}."


@pytest.mark.parametrize(
    ("settings", "other"), [({"folds": 5, "fold": 1}, {"fold": 2}), ({"validation": 0.2}, {"validation": 0.2001})]
)
def test_a_checkpoint_of_another_part_of_the_data_is_refused(run, tmp_path, settings, other):
    """Another fold, or another part held out, may well have the same class counts."""
    folder = stopped_run(tmp_path / "run", recipe_for("cbs", **settings))
    change(folder, **other)
    assert f"but it differs in --{next(iter(other))} (" in refused(run, folder)


# --- a folder that holds another run


@pytest.mark.parametrize("done", [False, True])
def test_a_trainer_refuses_a_folder_of_another_run(stopped, done):
    if done:
        Trainer(recipe_for("cbs"), stopped).run()
    before = {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file()}
    other = recipe_for("cbs", lr=0.9, batch_size=32, device="auto")
    with pytest.raises(ValueError, match="hold this run") as caught:
        Trainer(other, stopped, device=torch.device("cpu")).run()
    assert str(caught.value) == (
        f"Expected {stopped.path} to hold this run, but its recipe.toml differs in `batch_size` (64 there, 32 here), "
        "`lr` (0.1 there, 0.9 here); choose another folder with --out, or delete this one."
    )
    with pytest.raises(ValueError, match=r"`method` \(cbs there, softmax here\)"):
        Fleet([Trainer(recipe_for("softmax"), stopped)]).run()
    assert {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file()} == before


def test_housekeeping_settings_may_change_when_a_run_continues(stopped, tmp_path):
    """Its record keeps the settings that it began with."""
    reference = trained(tmp_path / "reference", "cbs")[0]
    before = stopped.recipe_file.read_bytes()
    housekeeping = {"device": "auto", "workers": 0, "checkpoint_epochs": 1, "checkpoint_minutes": 1.0, "keep": 5}
    again = Trainer(recipe_for("cbs", **housekeeping, root="elsewhere"), stopped, device=torch.device("cpu"))
    again.run()
    assert_same_run(stopped, reference)
    assert stopped.recipe_file.read_bytes() == before


def test_a_finished_run_says_so(run, stopped):
    assert run("train", "--resume", stopped.path)[0] == 0
    result = stopped.result_file.read_bytes()
    code, out, err = run("train", "--resume", stopped.path)
    assert code == 0
    assert err.strip() == f"{stopped.path} is finished."
    assert "recall %" in out
    assert stopped.result_file.read_bytes() == result


@pytest.mark.parametrize("arguments", [[], ["nowhere"]])
def test_nothing_to_resume(run, arguments):
    code, _, err = run("train", "--resume", *arguments)
    assert code == 2
    one_sentence(err)


def test_chaos_is_a_target_of_the_makefile():
    assert "\nchaos:" in (ROOT / "Makefile").read_text()

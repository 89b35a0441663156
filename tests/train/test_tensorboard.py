"""TensorBoard's files, read back: the log's numbers, each once, whatever happened to the run."""

import json
import sys

import pytest

from longtail.train import RunFolder, StoppedError, Trainer, defaults
from longtail.train.loggers import TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own


def recipe_for(method, **settings):
    return defaults("digits-lt", method).changed(device="cpu", **settings)


def read(folder):
    """Every scalar by name: its steps and values, as TensorBoard shows them, and how many there are."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}, {
        name: len(events.Scalars(name)) for name in events.Tags()["scalars"]
    }


def log(folder):
    return [json.loads(line) for line in folder.log_file.read_text().splitlines()]


def expected(folder):
    """The same numbers from the log."""
    found = {}
    for number, line in enumerate(log(folder), 1):
        for name in ("loss", "lr", "images_per_second"):
            found.setdefault(name, {})[number] = pytest.approx(line[name], rel=1e-6)
        for split, recalls in line.get("recall", {}).items():
            for group, value in recalls.items():
                found.setdefault(f"recall/{split}/{group}", {})[number] = pytest.approx(value, rel=1e-6)
    return found


def test_the_numbers_are_the_logs(tmp_path):
    folder = RunFolder(tmp_path)
    recipe = recipe_for("crt", tensorboard=True, evaluate_every=2, epochs=3, classifier_epochs=2)
    Trainer(recipe, folder).run()
    found, _ = read(folder)
    assert found == expected(folder)
    assert set(found["loss"]) == {1, 2, 3, 4, 5}  # over both stages
    assert set(found["recall/test/tail"]) == {2, 5}


def test_a_resumed_run_has_every_step_once(tmp_path):
    folder = RunFolder(tmp_path)
    recipe = recipe_for("cbs", tensorboard=True, evaluate_every=1, epochs=5, checkpoint_epochs=2)
    steps = Trainer(recipe, folder).steps()
    for _ in steps:
        if len(log(folder) if folder.log_file.exists() else []) == 3:  # one epoch after the checkpoint
            break
    steps.close()
    assert set(read(folder)[0]["loss"]) == {1, 2, 3}
    Trainer(recipe, folder).run()
    found, times = read(folder)
    assert found == expected(folder)
    assert set(times.values()) == {5}


def test_a_run_that_was_asked_to_stop(tmp_path):
    folder = RunFolder(tmp_path)
    recipe = recipe_for("cbs", tensorboard=True, evaluate_every=0, epochs=3)
    trainer = Trainer(recipe, folder)
    with pytest.raises(StoppedError):  # noqa: PT012 - the request comes in between
        for _ in trainer.steps():
            trainer.stop_requested = bool(trainer.live)
    Trainer(recipe, folder).run()
    found, times = read(folder)
    assert found == expected(folder)
    assert times["loss"] == 3


def test_without_it_nothing_is_written(tmp_path):
    folder = RunFolder(tmp_path)
    Trainer(recipe_for("cbs", epochs=1), folder).run()
    assert not (tmp_path / "tensorboard").exists()


def test_a_package_that_is_missing_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"longtail\[tensorboard\]"):
        TensorBoard(RunFolder(tmp_path), recipe_for("cbs"))
    with pytest.raises(ImportError, match=r"longtail\[tensorboard\]"):
        Trainer(recipe_for("cbs", tensorboard=True), RunFolder(tmp_path))
    assert not list(tmp_path.iterdir())

"""Weights & Biases and MLflow, offline: their files have the numbers of the log, and nothing is written elsewhere."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.conftest import mostly_slow

from longtail.train import RunFolder, Trainer, defaults
from longtail.train.loggers import scalars

BLOCK, HEADER = 32768, 7


def recipe_for(method, **settings):
    return defaults("digits-lt", method).changed(device="cpu", **settings)


def log(folder):
    return [json.loads(line) for line in folder.log_file.read_text().splitlines()]


def expected(folder):
    """The numbers of the log: value by step for each name."""
    found = {}
    for number, line in enumerate(log(folder), 1):
        for name, value in scalars(line).items():
            found.setdefault(name, {})[number] = pytest.approx(value)
    return found


def records(file):
    """The records of a W&B file: LevelDB's log format after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in {1, 4}:  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wandb_history(folder):
    """Value by step for each name, the configuration, and the summary of the only offline run."""
    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    found, config, summary = {}, {}, {}
    for record in records(file):
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name in values.keys() - {"_step", "_timestamp", "_runtime"}:
            steps = found.setdefault(name, {})
            assert values["_step"] not in steps
            steps[values["_step"]] = values[name]
    return found, config, summary


def mlflow_history(folder, monkeypatch):
    """Value by step for each name, the parameters, and the final metrics of the only run."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder.path / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("longtail").experiment_id])
    history = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        history[name] = {point.step: point.value for point in points}
        assert len(history[name]) == len(points)
    final = {name: next(iter(history.pop(name).values())) for name in list(history) if name.startswith("final/")}
    return history, run.data.params, final, run.info.status


@pytest.fixture(
    scope="module",
    params=mostly_slow([3, 5], {3}),  # killed an epoch after a checkpoint, stopped in the last evaluation
)
def resumed(request, tmp_path_factory):
    """A run of two stages that was killed or stopped after some epochs, and then finished, in a process each."""
    epochs = request.param
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("work") / "run"
    script = f"""
import warnings
warnings.simplefilter("ignore")
import os, socket, sys
refused = socket.socket.connect
def connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost"):
        raise SystemExit(f"connected to {{address}}")
    return refused(self, address)
socket.socket.connect = connect
from longtail.train import StoppedError, Trainer, defaults
recipe = defaults("digits-lt", "crt").changed(
    device="cpu", epochs=3, classifier_epochs=2, evaluate_every=1, checkpoint_epochs=2, wandb=True, mlflow=True
)
trainer = Trainer(recipe, {str(folder)!r})
def on_log(line):
    trainer.stop_requested = {{stop}} and trainer.folder.epochs_logged == 5  # no step is left
trainer.on_log = on_log
try:
    for _ in trainer.steps():
        if {{stop}} and trainer.folder.epochs_logged == {epochs}:
            os._exit(9)
except StoppedError as error:
    sys.exit(9 if "last evaluation" in str(error) else 1)
"""
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp")}
    (home / "tmp").mkdir()
    for stop, code in ((True, 9), (False, 0)):
        words = [sys.executable, "-c", script.replace("{stop}", str(stop))]
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=_with(environment), timeout=200)
        assert done.returncode == code, done.stderr
        if stop:
            assert len(log(RunFolder(folder))) == epochs
    left = [path for path in home.rglob("*") if path.is_file()]
    return RunFolder(folder), left, done


def _with(more):
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **more}


def test_wandb_has_every_step_of_a_resumed_run_once(resumed):
    folder, _, _ = resumed
    found, config, summary = wandb_history(folder)
    assert {name: found[name] for name in expected(folder)} == expected(folder)
    assert set(found["loss"]) == {1, 2, 3, 4, 5}
    assert config["method"] == "crt"
    assert summary["final/test/recall/tail"] == folder.result()["splits"]["test"]["recall"]["tail"]


def test_mlflow_has_every_step_of_a_resumed_run_once(resumed, monkeypatch):
    folder, _, _ = resumed
    found, parameters, final, status = mlflow_history(folder, monkeypatch)
    assert found == expected(folder)
    assert parameters["classifier_epochs"] == "2"
    assert final["final/test/recall/tail"] == folder.result()["splits"]["test"]["recall"]["tail"]
    assert status == "FINISHED"


def test_nothing_is_written_outside_the_run_folder_or_printed(resumed):
    folder, left, done = resumed
    assert left == []
    assert {path.name for path in folder.path.parent.iterdir()} == {"run"}
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package_is_named_before_anything_is_trained(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"longtail\[{name}\]"):
        Trainer(recipe_for("cbs", **{name: True}), RunFolder(tmp_path))
    assert not list(tmp_path.iterdir())

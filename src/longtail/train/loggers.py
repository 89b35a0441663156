"""The log of a run as files of TensorBoard, Weights & Biases and MLflow, in its folder and without a network."""

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from longtail._io import import_extra
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of the log by name.

    Example:
        >>> scalars({"stage": 0, "epoch": 4, "loss": 0.5, "recall": {"test": {"tail": 0.25}}})
        {'loss': 0.5, 'recall/test/tail': 0.25}
    """
    found = {name: line.get(name) for name in ("loss", "lr", "images_per_second")}
    for split, recalls in line.get("recall", {}).items():
        found |= {f"recall/{split}/{group}": value for group, value in recalls.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _measures(result: Mapping[str, Any]) -> dict[str, float]:
    """The recalls and the accuracy of a finished run by name."""
    found: dict[str, float | None] = {}
    for split, one in result["splits"].items():
        found |= {f"final/{split}/recall/{group}": value for group, value in one["recall"].items()}
        found[f"final/{split}/accuracy"] = one.get("accuracy")
    return {name: float(value) for name, value in found.items() if value is not None}


class Logger:
    """Where the log of a run also goes; a resumed run writes its files again from its log.

    An epoch is counted from 1 over all stages.

    Args:
        folder: the run folder.
        recipe: of the run.
        package: the package that writes the files, and the module of it that is imported.
        settings: environment variables that the package reads.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, package: str, module: str = "", **settings: str) -> None:
        self.folder, self.recipe, self._settings = folder, recipe, settings
        with _environment(**settings):
            self._library = import_extra(module or package, package)
        self._run: Any = None

    def add(self, epoch: int, line: Mapping[str, Any]) -> None:
        """Write a line of the log."""
        self._replay(epoch - 1)
        self._write(scalars(line), epoch)

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Finish the files; ``result`` has the measures of the run, ``None`` if it is not finished."""
        if result is not None:  # also if it was resumed after its last epoch and no line was added
            self._replay(self.folder.epochs_logged)
        if self._run is not None:
            self._end(None if result is None else _measures(result))

    def _replay(self, epochs: int) -> None:
        if self._run is None:
            with _environment(**self._settings):
                self._run = self._begin()
            for epoch, line in enumerate(self.folder.log_lines()[:epochs], 1):
                self._write(scalars(line), epoch)

    def _begin(self) -> Any: ...
    def _write(self, numbers: Mapping[str, float], epoch: int) -> None: ...
    def _end(self, measures: Mapping[str, float] | None) -> None: ...


class TensorBoard(Logger):
    """Writes to the folder ``tensorboard`` of a run."""

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        super().__init__(folder, recipe, "tensorboard", "torch.utils.tensorboard")

    def _begin(self) -> Any:
        place = self.folder.path / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        return self._library.SummaryWriter(str(place))

    def _write(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self._run.add_scalar(name, value, epoch)
        self._run.flush()

    def _end(self, measures: Mapping[str, float] | None) -> None:  # noqa: ARG002 - the log has the same measures
        self._run.close()


class WeightsAndBiases(Logger):
    """Writes an offline run to the folder ``wandb`` of a run; ``wandb sync FOLDER/wandb/offline-run-*`` uploads it."""

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        places = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
        inside = dict.fromkeys(places, str((folder.path / "wandb").absolute()))
        super().__init__(folder, recipe, "wandb", WANDB_MODE="offline", WANDB_ERROR_REPORTING="false", **inside)

    def _begin(self) -> Any:
        place = f"{socket.gethostname()}:{self.folder.path.resolve()}"
        name = hashlib.sha256(place.encode("utf-8", "replace") + self.folder.recipe_file.read_bytes()).hexdigest()[:16]
        for old in (self.folder.path / "wandb").glob(f"offline-run-*-{name}"):
            shutil.rmtree(old)
        return self._library.init(
            mode="offline",
            dir=str(self.folder.path.absolute()),
            project="longtail",
            name=self.recipe.label,
            id=name,  # the same for a resumed run
            config=self.recipe.settings(),
            reinit="create_new",  # runs of a fleet are open at the same time
            settings=self._library.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )

    def _write(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log(numbers, step=epoch)

    def _end(self, measures: Mapping[str, float] | None) -> None:
        self._run.summary.update(measures or {})
        self._run.finish(exit_code=0 if measures is not None else 1)


class MLflow(Logger):
    """Writes to the folder ``mlflow`` of a run, a tracking store.

    ``mlflow ui --backend-store-uri FOLDER/mlflow`` shows it, with ``MLFLOW_ALLOW_FILE_STORE=true`` for MLflow 3.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        super().__init__(folder, recipe, "mlflow", MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")

    def _begin(self) -> Any:
        store = (self.folder.path / "mlflow").absolute()
        shutil.rmtree(store, ignore_errors=True)
        self._client = self._library.MlflowClient(tracking_uri=store.as_uri())
        experiment = self._client.create_experiment("longtail")
        run = self._client.create_run(experiment, run_name=self.recipe.label).info.run_id
        for name, value in self.recipe.settings().items():
            self._client.log_param(run, name, value)
        return run

    def _write(self, numbers: Mapping[str, float], epoch: int) -> None:
        metric = self._library.entities.Metric
        self._client.log_batch(self._run, [metric(name, value, epoch, epoch) for name, value in numbers.items()])

    def _end(self, measures: Mapping[str, float] | None) -> None:
        if measures is not None:
            self._write(measures, self.folder.epochs_logged)
        self._client.set_terminated(self._run, "FINISHED" if measures is not None else "KILLED")


LOGGERS: dict[str, type[TensorBoard | WeightsAndBiases | MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""Loggers by the setting of a recipe that turns them on."""


def open_loggers(recipe: Recipe, folder: RunFolder) -> list[Logger]:
    """The loggers that a recipe turns on; an error names a package that is missing. Nothing is written yet."""
    return [logger(folder, recipe) for name, logger in LOGGERS.items() if getattr(recipe, name)]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name)
        os.environ.update(before)

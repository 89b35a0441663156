"""The tasks of a study on Ray, and the functions that they run."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from longtail._io import stop_signals, write_bytes
from longtail._program import sentence_of
from longtail._registry import load_plugins
from longtail.models import SMALL_MODELS, is_feature_model
from longtail.study.conduct import More, Outcome, done_of
from longtail.study.execute import execute
from longtail.study.planning import PlannedRun, StudyPlan
from longtail.study.study import OnProgress, Progress, Study, run_studies
from longtail.train.cache import cache_folder
from longtail.train.fleet import TOGETHER
from longtail.train.recipe import Recipe
from longtail.train.trainer import StoppedError

__all__ = ["RETRIES", "Crew", "cause_of"]

RETRIES = 10
"""How often a task is started again whose process or node died."""
_WATCH_SECONDS = 1.0
_STOP_SECONDS = 60.0
_NOT_SENT = {".lock", ".lease"}


@dataclass(eq=False)
class Crew:
    """The tasks that work on studies."""

    ray: Any
    studies: Sequence[Study]
    options: dict[str, Any]
    workers: int | None
    fit: int
    together: int | None
    on_progress: OnProgress | None

    def share(self, runs: Sequence[PlannedRun], more: More) -> Outcome:
        """Let workers share the folder, and wait for them."""
        runs = list(runs)
        progress, errors = Progress(runs), list[str]()
        number = 0 if len(done_of(runs)) == len(runs) else self._number(len(runs))
        plans = [(replace(study.plan), study.command) for study in self.studies]  # replaced: without what it keeps
        tasks = [self._start(_work, plans, self.together) for _ in range(number)]
        for ref in self._ended(tasks):
            if ref is not None:
                _, error = self._result(ref)
                errors += [error] if error else []
            runs += progress.add(more())
            self._show(progress)
        failed = {str(run.path): run.folder.failure() for run in runs if run.folder.failure_file.exists()}
        done = done_of(runs)
        failed = {path: why for path, why in failed.items() if path not in {str(run.path) for run in done}}
        left = [run for run in runs if run not in done and str(run.path) not in failed]
        if left and errors:
            raise ValueError(errors[0])
        return Outcome(tuple(done), failed, tuple(left))

    def hand_out(self, runs: Sequence[PlannedRun], more: More) -> Outcome:
        """Give every task some runs, and write the folders that it sends back."""
        runs = list(runs)
        progress, failed, elsewhere = Progress(runs), dict[str, str](), list[PlannedRun]()
        waiting = deque(run for run in runs if not run.folder.done)
        given: dict[Any, tuple[list[PlannedRun], ExitStack]] = {}
        tasks: list[Any] = []

        def fill() -> None:
            while waiting and len(tasks) < self._number(len(runs)):
                with ExitStack() as claims:
                    chunk: list[PlannedRun] = []
                    while waiting and len(chunk) < self._size(waiting[0]):
                        run = waiting.popleft()
                        try:
                            claims.enter_context(run.folder.lock())
                            chunk.append(run)
                        except BlockingIOError:
                            elsewhere.append(run)
                    if chunk:
                        tasks.append(self._start(_train, [run.recipe.settings() for run in chunk], self.together))
                        given[tasks[-1]] = chunk, claims.pop_all()

        fill()
        try:
            for ref in self._ended(tasks):
                if ref is not None:
                    chunk, claims = given.pop(ref)
                    found, error = self._result(ref)
                    with claims:
                        for run, one in zip(chunk, [error] * len(chunk) if error else found, strict=True):
                            failed |= _store(run, one)
                new = progress.add(more())
                runs += new
                waiting.extendleft(run for run in reversed(new) if not run.folder.done)
                fill()
                self._show(progress)
        finally:
            for _, claims in given.values():
                claims.close()
        return Outcome(tuple(done_of(runs)), failed, tuple(elsewhere))

    def _ended(self, tasks: list[Any]) -> Iterator[Any]:
        """Yield each task that ended, and ``None`` every second; when this process is stopped, they save and end."""
        received: list[int] = []
        with stop_signals(received.append):  # an exception inside Ray would be lost
            try:
                while tasks:
                    ready, tasks[:] = self.ray.wait(tasks, timeout=_WATCH_SECONDS)
                    if received:
                        raise StoppedError(f"Stopped by signal {received[0]}.")
                    yield from ready or [None]
            finally:
                for ref in tasks:
                    self.ray.cancel(ref)
                if tasks:
                    self.ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_SECONDS)

    def _result(self, ref: Any) -> tuple[Any, str]:
        """What a task returned, or its error as one sentence."""
        try:
            return self.ray.get(ref), ""
        except self.ray.exceptions.RayError as error:
            return None, cause_of(error)

    def _number(self, runs: int) -> int:
        return self.workers or min(self.fit, max(runs, 1))

    def _size(self, run: PlannedRun) -> int:
        """How many runs a task gets: those that a GPU trains at a time."""
        small = run.recipe.model in SMALL_MODELS or is_feature_model(run.recipe.model)
        return self.together or (TOGETHER if small and self.options["num_gpus"] else 1)

    def _start(self, function: Callable[..., Any], *arguments: Any) -> Any:
        plugins = os.environ.get("LONGTAIL_PLUGINS", "")
        return self.ray.remote(**self.options)(function).remote(str(Path.cwd()), plugins, *arguments)

    def _show(self, progress: Progress) -> None:
        progress.update()
        if self.on_progress is not None:
            self.on_progress(progress)


def cause_of(error: Exception) -> str:
    """An error of a task as one sentence."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return sentence_of(cause)
    said = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return f"Expected the processes of Ray to live, but one ended {RETRIES + 1} times: {said}."


def _store(run: PlannedRun, found: dict[str, bytes] | str) -> dict[str, str]:
    """Write a run folder that was sent, the result last; or record why the run failed, and return that."""
    if isinstance(found, str):
        run.folder.fail(found)
        return {str(run.path): found}
    for name in sorted(found, key=lambda name: name == "result.json"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(run.path / name, found[name])
    return {}


# In the processes of Ray


def _begin(here: str, plugins: str) -> None:
    with suppress(FileNotFoundError):  # the node does not share it
        os.chdir(here)
    os.environ["LONGTAIL_PLUGINS"] = plugins
    load_plugins()


def _work(here: str, plugins: str, plans: Sequence[tuple[StudyPlan, str]], together: int | None) -> None:
    """Work on studies whose folders are shared."""
    _begin(here, plugins)
    with _leaving():
        run_studies([Study(plan, command=command) for plan, command in plans], together, join=True)


def _train(
    here: str, plugins: str, recipes: Sequence[dict[str, Any]], together: int | None
) -> list[dict[str, bytes] | str]:
    """Train runs in a temporary folder; returns the files of each, or why it failed."""
    _begin(here, plugins)
    with TemporaryDirectory() as place, _leaving():
        runs = [
            PlannedRun(Recipe.from_settings(settings), Path(place) / str(number))
            for number, settings in enumerate(recipes)
        ]
        cache_folder(Path(place)).mkdir()  # the runs share it, and it is not sent back
        outcome = execute(runs, together=together)
        return [outcome.failed.get(str(run.path)) or _files(run.path) for run in runs]


def _files(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in _NOT_SENT)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@contextmanager
def _leaving() -> Iterator[None]:
    """End the process when it was stopped, so that Ray starts the task elsewhere unless we cancelled it."""
    try:
        yield
    except StoppedError:
        raise SystemExit(1) from None

"""Ray: the workers of a study as tasks of a Ray cluster.

Where all nodes see the folder of the study, every task is a worker as ``longtail study --join`` is. Otherwise this
process hands out the runs, and the tasks send their run folders back.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from longtail._checks import check_integer, check_number
from longtail._io import import_extra, stop_signals, write_bytes
from longtail._program import sentence_of
from longtail._registry import load_plugins
from longtail.models import is_small
from longtail.study.conduct import More, OnRound, Outcome, done_of
from longtail.study.execute import execute
from longtail.study.planning import PlannedRun, StudyPlan
from longtail.study.results import Results
from longtail.study.study import OnProgress, Progress, Study, run_studies
from longtail.train.cache import cache_folder
from longtail.train.fleet import TOGETHER
from longtail.train.recipe import Recipe
from longtail.train.trainer import StoppedError

__all__ = ["run_on_ray"]

_RETRIES = 10
"""How often a task is started again whose process or node died."""
_WATCH_SECONDS = 1.0
_STOP_SECONDS = 60.0
_NOT_SENT = {".lock", ".lease"}


def run_on_ray(
    studies: Sequence[Study],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    together: int | None = None,
    on_progress: OnProgress | None = None,
    on_round: OnRound | None = None,
) -> list[Results]:
    """Run studies on a Ray cluster, and return their results.

    A task whose process or node dies is started again, up to ten times, and continues from the last checkpoint. Without
    a shared file system it starts its runs again.

    Args:
        studies: the studies.
        address: of a cluster that runs, or ``"auto"``; default: one that runs, else a new one on this machine.
        workers: how many tasks; default: as many as fit, but not more than there are runs.
        gpus_per_worker: default: 1 if the cluster has GPUs, else 0. 0.5 puts two workers on a GPU.
        together: as for :meth:`Study.run <longtail.study.Study.run>`, and so are the others.
        on_progress: see above.
        on_round: see above.

    Example:
        >>> (results,) = run_on_ray([Study.from_toml("plan.toml")], address="auto")  # doctest: +SKIP
    """
    if workers is not None:
        check_integer("workers", workers, minimum=1)
    if gpus_per_worker is not None:
        check_number("gpus_per_worker", gpus_per_worker, minimum=0)
    with _cluster(address) as ray:
        fit, gpus = _room(ray.cluster_resources(), gpus_per_worker, given=workers is not None)
        shared = _is_shared(ray, [study.plan for study in studies])
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": _RETRIES, "scheduling_strategy": "SPREAD"}
        crew = _Crew(ray, studies, options, workers, fit, together, on_progress)
        train = crew.share if shared else crew.hand_out
        return run_studies(studies, together, on_progress, on_round, train, join=shared)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine, without dashboard and usage statistics."""
    ray = import_extra("ray", "ray")
    if ray.is_initialized():  # by the user
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, include_dashboard=False, logging_level="error")
    except (ConnectionError, ValueError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"Expected a Ray cluster at {address or 'this machine'}, but got: {said}.") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(resources: dict[str, float], gpus: float | None, *, given: bool) -> tuple[int, float]:
    """How many workers fit into a cluster, and the GPUs of each; nodes may join later if the number is given."""
    there = resources.get("GPU", 0.0)
    each = min(1.0, there) if gpus is None else gpus
    fit = int(there / each) if each else int(resources.get("CPU", 0))
    if fit < 1 and not given:
        raise ValueError(
            f"Expected a Ray cluster with room for a worker with {each:g} GPUs, but it has {there:g}; change "
            "--gpus-per-worker, or give --workers if nodes join later."
        )
    return fit, each


def _is_shared(ray: Any, plans: Sequence[StudyPlan]) -> bool:
    """Whether all nodes see the folders of the studies; raises an error if a node has another version of longtail."""
    name, place = f".shared-{uuid4().hex}", import_extra("ray.util.scheduling_strategies", "ray")
    with ExitStack() as stack:
        for plan in plans:
            Path(plan.out).mkdir(parents=True, exist_ok=True)
            file = Path(plan.out) / name
            file.touch()
            stack.callback(file.unlink, missing_ok=True)
        nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        check = ray.remote(num_cpus=0)(_sees)
        checks = [
            check.options(scheduling_strategy=place.NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                str(Path.cwd()), [str(Path(plan.out) / name) for plan in plans]
            )
            for node in nodes
        ]
        seen = []
        for host, ref in zip(nodes.values(), checks, strict=True):
            try:
                found, version = ray.get(ref)
            except ray.exceptions.RayError as error:
                raise ValueError(f"Expected longtail on {host}, a node of Ray, but got: {_cause_of(error)}") from None
            own = metadata.version("longtail")
            if version != own:
                raise ValueError(f"Expected longtail {own} on {host}, a node of Ray, but got {version}.")
            seen.append(found)
        return all(seen)


def _sees(here: str, files: Sequence[str]) -> tuple[bool, str]:
    shared = Path(here).is_dir() and all((Path(here) / file).exists() for file in files)
    return shared, metadata.version("longtail")


@dataclass(eq=False)
class _Crew:
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
        """Send runs to tasks, and write the run folders that they return."""
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
            return None, _cause_of(error)

    def _number(self, runs: int) -> int:
        return self.workers or min(self.fit, max(runs, 1))

    def _size(self, run: PlannedRun) -> int:
        """How many runs a task gets: those that a GPU trains at a time."""
        small = is_small(run.recipe.model)
        return self.together or (TOGETHER if small and self.options["num_gpus"] else 1)

    def _start(self, function: Callable[..., Any], *arguments: Any) -> Any:
        plugins = os.environ.get("LONGTAIL_PLUGINS", "")
        return self.ray.remote(**self.options)(function).remote(str(Path.cwd()), plugins, *arguments)

    def _show(self, progress: Progress) -> None:
        progress.update()
        if self.on_progress is not None:
            self.on_progress(progress)


def _cause_of(error: Exception) -> str:
    """An error of a task as one sentence."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return sentence_of(cause)
    said = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return f"A worker process of Ray ended {_RETRIES + 1} times: {said}."


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

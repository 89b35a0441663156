"""File operations and time of large studies: 10,000 runs, 200 workers, a file system that answers after 5 ms.

``finished`` makes the folders of 10,000 finished runs from real small ones, whose seeds and numbers it changes, and
measures planning, status, resuming and tables. ``workers`` lets workers share a study which is not begun, in virtual
time (``virtual.py``): claims, records, progress and tables are those of the package, but a run is a pause that leaves a
real result. Every call of ``os`` and ``open`` that names a file of the study is counted, and takes longer by the
latency.

    python benchmarks/scale.py [--runs 10000] [--workers 200] [--latency 0.005] [--only finished] [--out FILE]
"""

import argparse
import builtins
import io
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from record import save
from virtual import FILES, Machine, Simulation

from longtail._ranks import Ranks
from longtail.study import Study
from longtail.study import execute as executing
from longtail.study.conduct import known_runs
from longtail.study.planning import PlannedRun, StudyPlan, make_plan
from longtail.study.results import Results
from longtail.study.study import run_studies
from longtail.study.workers import status
from longtail.train.folder import RunFolder, lock_folders
from longtail.train.recipe import write_recipe

METHODS = ["softmax", "balanced-softmax", "cbs:beta=1.25", "cbs:beta=1.5", "focal"]
REAL = 8  # seeds that are really trained


class Files:
    """Counts the operations on files below a folder, and makes each of them take longer."""

    def __init__(self, folder: Path, latency: float) -> None:
        self.folder, self.latency = str(folder), latency
        self.counts: Counter[str] = Counter()
        self._guard = threading.Lock()

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(self.folder):
                with self._guard:
                    self.counts[name] += 1
                if self.latency:
                    time.sleep(self.latency)
            return call(path, *args, **options)

        return wrapped

    @contextmanager
    def watched(self) -> Iterator[Counter[str]]:
        """Yield the counts of the operations in the block."""
        places = [(os, name) for name in FILES] + [(io, "open"), (builtins, "open")]
        before = [getattr(module, name) for module, name in places]
        self.counts.clear()
        for (module, name), call in zip(places, before, strict=True):
            setattr(module, name, self._wrap(name, call))
        try:
            yield self.counts
        finally:
            for (module, name), call in zip(places, before, strict=True):
                setattr(module, name, call)


def content(out: Path, runs: int) -> dict[str, Any]:
    """The plan of a study: two imbalance factors, five methods, and as many seeds as are needed."""
    recipe = {"epochs": 1, "device": "cpu", "evaluate_every": 0}
    return {
        "data": "digits-lt",
        "imbalance": [10, 50],
        "methods": METHODS,
        "seeds": runs // (2 * len(METHODS)),
        "out": str(out),
        "recipe": recipe,
    }


def fill(plan: StudyPlan, real: list[PlannedRun]) -> None:
    """Make the folders of all runs from those that were trained."""
    trained = {(run.recipe.imbalance, run.recipe.method, run.recipe.beta, run.recipe.seed): run for run in real}
    for run in plan.runs():
        recipe = run.recipe
        source = trained[recipe.imbalance, recipe.method, recipe.beta, recipe.seed % REAL]
        if source.path == run.path:
            continue
        shutil.copytree(source.path, run.path, copy_function=os.link)
        for name in ("recipe.toml", "result.json"):
            (run.path / name).unlink()
        (run.path / "recipe.toml").write_text(write_recipe(replace(source.folder.recipe(), seed=recipe.seed)))
        result = json.loads(source.folder.result_file.read_text())
        (run.path / "result.json").write_text(json.dumps({**result, "seed": recipe.seed}, indent=1))


def finished(folder: Path, runs: int, latency: float) -> dict[str, Any]:
    """Measure a study that is done."""
    out = folder / "finished"
    real = make_plan({**content(out, runs), "seeds": REAL})
    Study(real).run()
    fill(make_plan(content(out, runs), to_run=False), real.runs())
    print(f"{len(list(out.glob('*/result.json')))} finished runs", flush=True)
    found: dict[str, Any] = {}

    def measure(name: str, call: Callable[[], Any]) -> Any:
        files = Files(out, latency)
        begin, used = time.perf_counter(), time.process_time()
        with files.watched() as counts:
            value = call()
        found[name] = {
            "seconds": round(time.perf_counter() - begin, 2),
            "cpu_seconds": round(time.process_time() - used, 2),
            "operations_per_run": round(sum(counts.values()) / runs, 2),
            "operations": dict(counts.most_common()),
        }
        print(f"latency {1000 * latency:g} ms, {name}: {found[name]}", flush=True)
        return value

    plan = measure("plan", lambda: make_plan(content(out, runs)))
    state = measure("status", lambda: status([plan], known_runs([plan])))
    assert state["done"] == runs
    results = measure("resume, first", lambda: Study(plan).work())
    assert len(results.runs) == runs
    measure("resume, again", lambda: Study(plan).work())
    measure("tables", lambda: Results.read(out).save_tables(folder / "tables"))
    shutil.rmtree(out)
    return found


class Pause:
    """Takes the place of a trainer: holds, begins, logs and finishes a run as one does, but only waits in between."""

    seconds, result, stream, dataset = 1.0, "", None, None
    moments: ClassVar[defaultdict[int, list[float]]] = defaultdict(list)
    """When each thread began and finished runs."""

    def __init__(self, recipe: Any, folder: RunFolder, *, device: torch.device) -> None:
        self.recipe, self.folder, self.device = recipe, folder, device
        self.ranks, self.stop_requested = Ranks.of_this_process(), False

    def steps(self) -> Iterator[None]:
        """Wait, half a second at a time."""
        moments = self.moments[threading.get_ident()]
        with lock_folders([self.folder], self.ranks):
            self.folder.begin(self.recipe, self.device, 1)
            moments.append(time.monotonic())
            end = time.monotonic() + self.seconds
            while (left := end - time.monotonic()) > 0:
                yield
                time.sleep(min(0.5, left))
            self.folder.log({"loss": 0.0})
            (self.folder.path / "result.json").write_text(self.result)
            moments.append(time.monotonic())


def workers(folder: Path, runs: int, number: int, latency: float, seconds: float) -> dict[str, Any]:
    """Let workers share a study, each on a machine of its own."""
    out = folder / "shared"
    (one,) = make_plan({**content(folder / "one", runs), "imbalance": [10], "methods": ["softmax"], "seeds": 1}).runs()
    executing.execute([one])
    Pause.seconds, Pause.result = seconds, one.folder.result_file.read_text()
    plan = make_plan(content(out, runs))  # one for all of them: 200 do not fit into memory
    executing.Trainer = Pause  # type: ignore[misc,assignment]
    os.environ["LONGTAIL_CLAIMS"] = "lease"
    simulation, spans = Simulation(out, latency), list[tuple[float, list[float], float]]()

    def work() -> None:
        began = time.monotonic()
        run_studies([Study(plan)], 1, join=True, read=False)
        spans.append((began, Pause.moments.pop(threading.get_ident(), []), time.monotonic()))

    for place in range(number):
        simulation.add(Machine(place), work, after=place * latency)
    real, used = time.monotonic(), time.process_time()
    simulation.run()
    done = len(list(out.glob("*/result.json")))
    last = max(moments[-1] for _, moments, _ in spans if moments)
    found = {
        "workers": number,
        "runs": done,
        "seconds_per_run": seconds,
        "failed_workers": simulation.errors,
        "seconds": round(max(end for *_, end in spans), 1),
        "ideal_seconds": round(runs * seconds / number, 1),
        "operations_per_run": round(sum(simulation.counts.values()) / done, 1),
        "operations": dict(simulation.counts.most_common()),
        "first_claim_seconds": round(statistics.median(m[0] - began for began, m, _ in spans if m), 1),
        "end_seconds": {
            name: round(of(end - last for *_, end in spans), 1)
            for name, of in (("median", statistics.median), ("last", max))
        },
        "trained": sum(len(moments) // 2 for _, moments, _ in spans),
        "simulated_in": {
            "seconds": round(time.monotonic() - real, 1),
            "cpu_seconds": round(time.process_time() - used, 1),
        },
    }
    print(f"workers: {found}", flush=True)
    shutil.rmtree(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.005)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run, for the workers")
    parser.add_argument("--only", choices=("finished", "workers"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if given.only != "workers":
            for name, latency in (("finished", 0.0), ("finished_with_latency", given.latency)):
                parts[name] = {"runs": given.runs, "latency_seconds": latency, **finished(folder, given.runs, latency)}
                save(given.out, parts)
        if given.only != "finished":
            parts["shared"] = workers(folder, given.runs, given.workers, given.latency, given.seconds)
            save(given.out, parts)


if __name__ == "__main__":
    main()

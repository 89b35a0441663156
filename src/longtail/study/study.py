"""Studies: a plan is trained, recorded and compared."""

import shlex
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longtail._claims import claim, claim_kind, forget_claim
from longtail._io import map_files
from longtail._program import program
from longtail._progress import phase
from longtail.data import data_title
from longtail.study.conduct import More, OnRound, Outcome, Searches, Train, conduct, describe_plans, done_of
from longtail.study.execute import WorkOn, devices, execute, stop_with_parent
from longtail.study.planning import PlannedRun, StudyPlan, make_plan, read_plan, takes_beta
from longtail.study.record import Choice, StudyRecord, missing_of, now, read_studies, write_study
from longtail.study.rendering import save
from longtail.study.results import Results
from longtail.study.runs import Run, read_run
from longtail.study.search import trace_table
from longtail.study.workers import Worker, live_workers

OnProgress = Callable[["Progress"], None]


class Study:
    """Methods on data sets with several seeds, trained and compared.

    Finished runs are skipped, and a stopped study continues where it was.

    Args:
        plan: what to run, as plain data (see :func:`~longtail.study.planning.make_plan`) or as a ``StudyPlan``.
        command: the command that repeats the study, for captions.

    Example:
        >>> study = Study({"data": "digits-lt", "methods": ["softmax", "cbs"], "seeds": 3})
        >>> [run.path.name for run in study.plan.runs()][:2]
        ['digits-lt-50-softmax-seed0', 'digits-lt-50-softmax-seed1']
        >>> results = study.run()  # doctest: +SKIP
    """

    def __init__(self, plan: StudyPlan | Mapping[str, Any], *, command: str = "") -> None:
        self.plan = plan if isinstance(plan, StudyPlan) else make_plan(plan)
        self.command = command

    @classmethod
    def from_toml(cls, path: Path | str, **options: Any) -> "Study":
        """Return the study of a plan in a TOML file; ``options`` as for the class."""
        return cls(read_plan(path), **{"command": f"{program()} study {shlex.quote(str(path))}", **options})

    def __repr__(self) -> str:
        return f"Study({str(self.plan.out)!r}, {len(self.plan.runs())} runs)"

    def describe(self) -> str:
        """Return which runs are done and which are left."""
        return describe_plans([self.plan])

    def run(
        self,
        together: int | None = None,
        on_progress: OnProgress | None = None,
        on_round: OnRound | None = None,
        train: Train | None = None,
    ) -> Results:
        """Train what is not done, write the tables and the record, and return the results.

        Args:
            together: runs at a time on a device; default: as many as fit.
            on_progress: called about twice per second.
            on_round: called with data set, imbalance and method, and the betas that a search tries next.
            train: trains the runs instead of the devices of this machine; see :func:`~longtail.study.conduct.conduct`.

        Returns:
            the results; ``results.outcome`` has what failed.
        """
        (results,) = run_studies([self], together, on_progress, on_round, train)
        return results

    def work(
        self, together: int | None = None, on_progress: OnProgress | None = None, on_round: OnRound | None = None
    ) -> Results:
        """Share the study with any number of other workers, on this machine or others, and return all results.

        A worker claims a run when it has room for one, and continues what a worker that ended has left. It ends when
        everything is done; the last one writes the tables. Arguments as for :meth:`run`.
        """
        (results,) = run_studies([self], together, on_progress, on_round, join=True)
        return results

    def search(
        self,
        together: int | None = None,
        on_progress: OnProgress | None = None,
        on_round: OnRound | None = None,
        train: Train | None = None,
    ) -> tuple[Searches, Outcome]:
        """Run only the plan's searches for beta, write their tables, and return them; arguments as for :meth:`run`."""
        with Worker([self.plan]) as worker:
            work = partial(_work_on, [replace(self.plan)], self.command, together, worker.began, searches_only=True)
            trained = train or _train_here(together, on_progress, worker, work)
            (searches,), outcome = conduct(
                [self.plan], trained, on_round=on_round, searches_only=True, command=self.command
            )
        _save_searches(searches, self.command)
        return searches, outcome

    def _record(self, searches: Searches, **more: Any) -> StudyRecord:
        plan = self.plan
        planned = plan.runs({key: one.beta for key, one in searches.items()})
        found = {key: searches[key].beta if key in searches else None for key in plan.searches}
        return StudyRecord(
            command=self.command,
            reference=plan.reference,
            planned=[self._name(run.path) for run in planned],
            selected=self._selected(searches),
            searches={f"{data_title(key[0], key[1])} {key[2]}": beta for key, beta in found.items()},
            **more,
        )

    def _name(self, path: Path | str) -> str:
        return Path(path).relative_to(self.plan.out).as_posix()

    def _selected(self, searches: Searches) -> dict[str, list[Choice]]:
        """How the beta of each run is chosen."""
        found: dict[str, list[Choice]] = {}
        for run, key, beta in self.plan.combinations({key: one.beta for key, one in searches.items()}):
            if run.recipe.beta is not None:
                of_recipe = beta == "recipe" and takes_beta(key[2])
                choice = searches[key].selected if beta == "search" else Choice("recipe" if of_recipe else "given")
                choices = found.setdefault(self._name(run.path), [])
                choices += [] if choice in choices else [choice]
        return found

    def _begin(self, *, join: bool) -> None:
        """Record the study before its first run, unless another worker did."""
        out, record = Path(self.plan.out), self._record({})

        def is_known() -> bool:
            return any(one.covers(record) and (join or one.command == record.command) for one in read_studies(out))

        with _held(out, is_known) as held:
            if held:
                write_study(out, record)

    def _finish(self, searches: Searches, outcome: Outcome, worker: Worker, *, read: bool) -> Results:
        """Record the outcome of the runs, and write the tables, unless another worker did or will."""
        out, record = Path(self.plan.out), self._record(searches)
        missing = missing_of(out, [record], worker.done)

        def is_written() -> bool:
            ended = [one for one in read_studies(out) if one.ended and one.covers(record) and not one.failed]
            return worker.joins and not missing and bool(ended) and (out / "tables").is_dir()

        with phase("Comparing the methods and writing the tables"), _held(out, is_written) as held:
            worker.leave(out)
            others = worker.joins and missing and bool(live_workers(out))
            write = held and not others  # if runs are missing, the last worker writes what there is
            return self._written(record, searches, outcome, missing, write=write, read=write or read)

    def _written(
        self, record: StudyRecord, searches: Searches, outcome: Outcome, missing: str, *, write: bool, read: bool
    ) -> Results:
        out = Path(self.plan.out)
        own = {out / name for name in record.planned}
        below = [self.plan.search_folder(key) for key in self.plan.searches]
        failed = {
            self._name(path): why
            for path, why in outcome.failed.items()
            if Path(path) in own or any(Path(path).is_relative_to(folder) for folder in below)
        }
        if write:
            write_study(out, replace(record, failed=failed))
        everything = Results.read(out) if outcome.done and read else None  # of all studies in the folder
        runs = {} if everything is None else {run.path: run for run in everything.runs}
        results = Results(
            tuple(runs[one.path] for one in outcome.done if one.path in own and one.path in runs),
            (out,),
            self.plan.reference,
            missing=missing,
            outcome=outcome,
            searches=searches,
        )
        if write:
            _save_searches(searches, self.command)
            if claim_kind(out) == "lease":
                trials = [run.path for one in searches.values() for cell in one.cells for run in cell.runs]
                map_files(forget_claim, [*trials, *(run.path for run in outcome.done)])
            if everything is not None and results.runs:
                everything.save_tables(out / "tables")
            write_study(out, replace(record, failed=failed, ended=now()))  # last: a killed process has not ended it
        return results


def run_studies(
    studies: Sequence[Study],
    together: int | None = None,
    on_progress: OnProgress | None = None,
    on_round: OnRound | None = None,
    train: Train | None = None,
    *,
    join: bool = False,
    read: bool = True,
) -> list[Results]:
    """Run several studies together, which is faster than one after the other; arguments as for :meth:`Study.run`.

    With ``join``, the studies are shared with other workers, as by :meth:`Study.work`. Without ``read``, the results
    have no runs if another worker has written the tables: hundreds of workers that read all results at the end are a
    burden for a file system.
    """
    plans = [study.plan for study in studies]
    command = "; ".join(dict.fromkeys(study.command for study in studies if study.command))
    with Worker(plans, joins=join) as worker:
        work = partial(_work_on, [replace(plan) for plan in plans], command, together, worker.began)
        trained = train or _train_here(together, on_progress, worker, work)

        def recorded(runs: Sequence[PlannedRun], more: More) -> Outcome:
            for study in studies:
                study._begin(join=join)
            return trained(runs, more)

        searches, outcome = conduct(plans, recorded, on_round=on_round, command=command, spread=join)
        return [
            study._finish(of_plan, outcome, worker, read=read) for study, of_plan in zip(studies, searches, strict=True)
        ]


@contextmanager
def _held(out: Path, over: Callable[[], bool]) -> Iterator[bool]:
    """Hold the folder of a study while its record or its tables are written; another process takes seconds.

    Yields whether it is held: not if another worker did the same, which ``over`` tells. So workers do not queue for it.
    """
    out.mkdir(parents=True, exist_ok=True)
    held, pause = False, 0.2
    with ExitStack() as stack:
        while not held and not over():
            try:
                stack.enter_context(claim(out, "the folder of the study is in use"))
                held = True
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        yield held and not over()


_LONGEST_PAUSE = 5.0


def _train_here(together: int | None, on_progress: OnProgress | None, worker: Worker, work: WorkOn) -> Train:
    """Return the function that trains on the devices of this machine and reports progress.

    Several devices have a process each, which does ``work``.
    """

    def train(runs: Sequence[PlannedRun], more: More) -> Outcome:
        progress = Progress(runs, worker)
        several = len(devices([run for run in runs if run.path not in worker.done])) > 1

        def watch() -> None:
            if several:
                worker.see_processes()
            progress.update()
            if on_progress is not None:
                on_progress(progress)

        def joining() -> Sequence[PlannedRun]:
            return progress.add(more())

        return execute(runs, together=together, watch=watch, more=joining, worker=worker, work=work)

    return train


def _work_on(
    plans: Sequence[StudyPlan],
    command: str,
    together: int | None,
    began: float,
    device: torch.device,
    *,
    searches_only: bool = False,
) -> dict[str, str]:
    """Work on plans on one device, together with other processes, and return why runs failed."""
    with Worker(plans, joins=True, began=began) as worker:

        def train(runs: Sequence[PlannedRun], more: More) -> Outcome:
            return execute(runs, together=together, on=[device], watch=stop_with_parent, more=more, worker=worker)

        _, outcome = conduct(plans, train, command=command, searches_only=searches_only, spread=True)
    return outcome.failed


def _save_searches(searches: Searches, command: str) -> None:
    for searched in searches.values():
        folder = searched.cells[0].runs[0].path.parent
        save(trace_table(searched, command), folder, "trace")
        save(searched.sensitivity(command), folder, "sensitivity")


class Progress:
    """Progress of a study.

    Args:
        runs: all runs, done or not.
        worker: the process that trains them; default: all runs that are not done count as running.
    """

    def __init__(self, runs: Sequence[PlannedRun], worker: Worker | None = None) -> None:
        self.runs: list[PlannedRun] = []
        self.finished: dict[Path, int] = {}
        """Finished runs, and their epochs; their results stay on disk."""
        self.news: list[Run] = []
        """The runs that finished here since the last update."""
        self._worker = worker
        self._epochs: dict[Path, int] = {}
        self._left: dict[Path, PlannedRun] = {}
        """Runs that are not known to be done."""
        self._place, self._checked = 0, 0.0
        self.add(runs)

    def add(self, runs: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
        """Add runs that joined the others, and return them."""
        self.runs += runs
        self._epochs |= {run.path: sum(run.recipe.stage_epochs) for run in runs}
        self._left |= {run.path: run for run in runs}
        self._count(runs)
        return runs

    def update(self) -> None:
        """Check which runs finished: those that were trained here, and some of the others in turn."""
        found = self._count(self._here())
        joins = self._worker is not None and self._worker.joins
        if time.monotonic() - self._checked > (_OTHERS_SECONDS if joins else 0):
            left = list(self._left.values())
            self._place = 0 if self._place >= len(left) else self._place
            others = self._count(left[self._place :][:_SOME])
            found += [] if joins else others
            self._place, self._checked = self._place + _SOME, time.monotonic()
        self.news = [read_run(path) for path in found]

    def epochs(self) -> tuple[int, int]:
        """Return how many epochs are done, and how many there are."""
        done = sum(self.finished.values())
        for run in list(self._left.values()) if self._worker is None else self._here():
            self._epochs[run.path] = _epochs(run)
            logged = sum(folder.epochs_logged for folder in (run.folder, *run.folder.pilots))
            done += min(logged, self._epochs[run.path])
        return done, sum((self._epochs | self.finished).values()) + self._pilots_to_come()

    def _pilots_to_come(self) -> int:
        """Epochs of pilots of runs that have not begun: each has as many as a run on the same data that has begun."""
        pilots: dict[Hashable, int] = {}
        waiting: list[tuple[int, Hashable]] = []
        for run in self.runs:
            recipe = run.recipe
            if recipe.has_pilots and not recipe.folds:
                auto = recipe.spec.is_auto(recipe.params)
                data = (recipe.data, recipe.imbalance, recipe.validation, recipe.test, recipe.weight_decay, auto)
                own = sum(recipe.stage_epochs)
                epochs = self.finished.get(run.path, self._epochs[run.path])
                pilots[data] = max(pilots.get(data, 0), epochs // own - 1)
                waiting += [] if epochs > own or run.path in self.finished else [(own, data)]
        return sum(own * pilots[data] for own, data in waiting)

    def _here(self) -> list[PlannedRun]:
        """Runs that were trained here and are not known to be done."""
        if self._worker is None:
            return []
        return [self._left[path] for path in sorted({*self._worker.running, *self._worker.trained} & self._left.keys())]

    def _count(self, runs: Sequence[PlannedRun]) -> list[Path]:
        """Count runs that finished, and return their folders."""
        done = done_of if self._worker is None else self._worker.done_of
        new = {run.path: _epochs(run) for run in done(runs)}
        self.finished |= new
        self._left = {path: run for path, run in self._left.items() if path not in new} if new else self._left
        return list(new)


_SOME, _OTHERS_SECONDS = 256, 10.0  # runs that are checked together; seconds between checks of the runs of others


def _epochs(run: PlannedRun) -> int:
    pilots = len(run.folder.pilots) if run.recipe.has_pilots else 0
    return sum(run.recipe.stage_epochs) * (1 + pilots)

"""How a study looks in a terminal while it works, and when it is done."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from longtail.cli.show import TOLD_SECONDS, Pace, bar_line, clock
from longtail.study.captions import NO_DATA
from longtail.study.execute import epochs_done, epochs_of
from longtail.study.plan import Planned
from longtail.study.runs import HELD_WORDS, Held, Run, method_title, read_run
from longtail.study.stats import summarise

__all__ = ["Progress"]


class Progress:
    """A live table of the runs and a bar; where there is no terminal a line for each that ends, and one now and then.

    Args:
        runs: all of them, done or not.
        console: where it is shown.
        title: of the table.
    """

    def __init__(self, runs: Sequence[Planned], console: Console, title: str) -> None:
        self.runs, self.console, self.title = list(runs), console, title
        self.finished: dict[str, Run] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if sys.stderr.isatty() else None
        self._told = time.monotonic()
        self._pace = Pace()
        self._look(self.runs, tell=False)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self) -> None:
        """Look at the folders again and show them."""
        self._look(self.runs, tell=self._live is None)
        if self._live is None and time.monotonic() - self._told <= TOLD_SECONDS:
            return
        epochs, total = self._epochs(self.runs)
        self._pace.add(epochs)
        left, done = self._pace.left(total - epochs), f"{len(self.finished)}/{len(self.runs)} runs done"
        if self._live is not None:
            self._live.update(Group(self.table(), bar_line(done, epochs, total, left)), refresh=True)
        else:
            known = "" if left is None else f", {clock(left)} left"
            self._tell(f"{done}, {epochs:,}/{total:,} epochs{known}")

    def joined_by(self, runs: Sequence[Planned]) -> Sequence[Planned]:
        """Show these too."""
        self.runs += runs
        self._pace = Pace()  # some of theirs may be done
        self._look(runs, tell=False)
        return runs

    def _look(self, runs: Sequence[Planned], *, tell: bool) -> None:
        for run in runs:
            if str(run.path) not in self.finished and run.folder.done:
                found = self.finished[str(run.path)] = read_run(run.path)
                if tell:
                    self._tell(f"{len(self.finished)}/{len(self.runs)} {run.path.name}: {_recall_of(found)}")

    def _tell(self, line: str) -> None:
        self._told = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)

    def table(self) -> Table:
        """What is done and what it says so far."""
        shown = Table(title=self.title, box=box.SIMPLE_HEAD, header_style="bold")
        for name in ("Data", "Method"):
            shown.add_column(name)
        for name in ("runs", "epochs", "recall so far"):
            shown.add_column(name, justify="right")
        for (data, method), runs in self._cells().items():
            done = [self.finished[str(run.path)] for run in runs if str(run.path) in self.finished]
            epochs, total = self._epochs(runs)
            known = [run.recall(part=part) for run in done if (part := _told_on(run)) is not None]
            recall = str(summarise(known)) if known else ""
            recall += " (validation)" if any(_told_on(run) == "val" for run in done) else ""
            shown.add_row(data, method, f"{len(done)}/{len(runs)}", f"{epochs:,}/{total:,}", recall)
        return shown

    def _epochs(self, runs: Sequence[Planned]) -> tuple[int, int]:
        """How many are done, and how many there will be."""
        totals = [epochs_of(run.recipe) for run in runs]
        over = (str(run.path) in self.finished for run in runs)
        done = (t if o else min(epochs_done(run), t) for run, t, o in zip(runs, totals, over, strict=True))
        return sum(done), sum(totals)

    def _cells(self) -> dict[tuple[str, str], list[Planned]]:
        found: dict[tuple[str, str], list[Planned]] = {}
        for run in self.runs:
            made = Run(run.path, run.recipe, {})
            beta = "" if run.recipe.beta is None else f" (β = {run.recipe.beta:g})"
            folds = f", {run.recipe.folds} folds" if run.recipe.folds else ""
            found.setdefault((made.data, method_title(made.method) + beta + folds), []).append(run)
        return found


def _told_on(run: Run) -> Held | None:
    """What a run is told of: on folds, by which a search chooses, the fold that was held out."""
    return "val" if run.recipe.folds else run.held_out


def _recall_of(run: Run) -> str:
    """What a run says, in words."""
    part = _told_on(run)
    if part is None:
        return f"done; {NO_DATA}"
    where = "" if part == "test" else f" on {HELD_WORDS[part]}"
    return f"recall {run.recall(part=part):.2f}{where}"

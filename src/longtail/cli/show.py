"""Progress and results of training in a terminal."""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from longtail._program import printable, some_of
from longtail._progress import Phase, listening
from longtail.train.measures import predicted_classes, why_no_level
from longtail.train.pilots import describe_beta, describe_decay

if TYPE_CHECKING:
    from longtail.train.fleet import Fleet
    from longtail.train.folder import RunFolder
    from longtail.train.trainer import Trainer


class SafeConsole(Console):
    """A console that prints control characters as escapes: names of classes and files may hold anything."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object, without control characters but those of rich."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


console = SafeConsole()
progress_console = SafeConsole(stderr=True)

LOG_SECONDS = 30.0  # between two lines when the output is not a terminal
_SPEED_SECONDS = 600.0  # window of the speed, long enough to include an evaluation
_NAME = 36  # characters of a run's name, so that a line has at most 80
_NAMED = 5  # absent classes that are named
_EASIER = 0.03  # difference of recalls that is worth a hint
_LONG = 1.0  # seconds of a phase that is worth a line in a log


class Phases:
    """What a command does: live lines in a terminal, else a line per long phase, and how far it is every 30 seconds.

    Args:
        to: where to show it.
    """

    def __init__(self, to: Console = progress_console) -> None:
        self.console = to
        self.bar = progress_bar(console=to)
        self.phase = ""
        self.is_live = to.file.isatty() and not to.quiet
        self._live: Live | None = None
        self._timer: threading.Timer | None = None
        self._stack = ExitStack()
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        self._stack.enter_context(listening(self._show, self.line))
        self._update("")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._stop_timer()
        if self._live is not None:
            self._live.stop()

    def __rich__(self) -> RenderableType:
        """Return the bar, if there is one, and the phase."""
        text = Text(self.phase, no_wrap=True, overflow="ellipsis")
        return Group(self.bar.get_renderable(), text) if self.bar.tasks else Spinner("dots", text)

    def line(self, text: str) -> None:
        """Print a line."""
        self._printed = time.monotonic()
        print_line(text, self.console)

    @property
    def is_time_for_a_line(self) -> bool:
        """Whether nothing was printed for 30 seconds, where there is no terminal."""
        return not self.is_live and time.monotonic() - self._printed > LOG_SECONDS

    def _show(self, phase: Phase) -> None:
        if phase.over:
            self._stop_timer()
            self._update("")
        elif not self.is_live:
            if self._timer is None and phase.in_logs and not self.console.quiet:
                self._timer = threading.Timer(_LONG, self.line, (phase.text,))
                self._timer.daemon = True
                self._timer.start()
            elif phase.total is not None and phase.in_logs and self.is_time_for_a_line:
                self.line(f"{phase.text}: {phase.done:,} of {phase.total:,}")
        elif phase.total is None or phase.done:  # not before processes are started
            self._update(phase.text if phase.total is None else f"{phase.text}: {phase.done / phase.total:.0%}")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _update(self, phase: str) -> None:
        self.phase = phase
        shown = self.is_live and bool(phase or self.bar.tasks)
        if shown and self._live is None:
            self._live = Live(self, console=self.console, transient=True, refresh_per_second=2)
            self._live.start(refresh=True)
        elif not shown and self._live is not None:
            self._live.stop()
            self._live = None


class TrainingView(Phases):
    """Progress of a fleet: two live lines in a terminal, else a line every 30 seconds."""

    def __init__(self, to: Console = progress_console) -> None:
        super().__init__(to)
        self.fleet: Fleet | None = None
        self.name = ""
        self._begun: list[Trainer] = []
        self._task = self.bar.add_task("", total=None)
        self._updated = -1.0

    def __call__(self, fleet: "Fleet", member: "Trainer") -> None:
        """Count a training step."""
        if self.fleet is None:
            self._start(fleet)
        if member not in self._begun:
            self._begun.append(member)
            if member.steps_done > 1:  # steps of an earlier process say nothing about the speed
                self.bar.reset(self._task, **self._steps())
        now = time.monotonic()
        if now - self._updated >= 1:
            self.bar.update(self._task, **self._steps())
            self._updated = now
        if self.is_time_for_a_line:
            self.line(str(self))

    def _start(self, fleet: "Fleet") -> None:
        self.fleet, number = fleet, len(fleet.members)
        label = fleet.members[0].recipe.label if number == 1 else f"{number} runs"
        self.name = label if len(label) <= _NAME else label[: _NAME - 1] + "…"
        self.bar.reset(self._task, description=self.name, **self._steps())

    def __rich__(self) -> Group:
        """Return progress and remaining time, and a line with epoch, loss and speed."""
        self.bar.update(self._task, **self._steps())
        return Group(self.bar.get_renderable(), Text(self._details(), no_wrap=True, overflow="ellipsis"))

    def __str__(self) -> str:
        """Return everything on one line, for a log."""
        task = self.bar.tasks[0]
        return f"{self.name}  {int(task.percentage)}%{time_left(task.time_remaining, '  ')}  {self._details()}"

    def _members(self) -> "list[Trainer]":
        if self.fleet is None:
            return []
        failed = [member for member, _ in self.fleet.failures]
        return [member for member in self.fleet.members if member not in failed]

    def _steps(self) -> dict[str, Any]:
        members = self._members()
        done, total = (sum(getattr(one, name) for one in members) for name in ("steps_done", "steps_total"))
        return {"completed": done, "total": total}

    def _details(self) -> str:
        if self.phase or self.fleet is None:
            return self.phase or "starting"
        members, number = self._members(), len(self.fleet.members)
        running = [one for one in self._begun if one in members and one.steps_done < one.steps_total]
        finished, failed = sum(member.folder.done for member in members), len(self.fleet.failures)
        parts = [f"{finished} of {number} done"] if number > 1 else []
        parts += [f"{failed} failed"] if failed else []
        if not running:
            return "  ".join([*parts, "evaluating"])
        one, epochs = running[0], running[0].epochs_total
        parts.append(f"epoch {min(one.epochs_done + 1, epochs)}/{epochs}")
        live = one.live
        if live.get("loss") is not None:
            parts.append(f"loss {live['loss']:{'.3f' if abs(live['loss']) < 1000 else '.3g'}}")
        if "lr" in live:
            parts.append(f"lr {live['lr']:.3g}")
        speed = sum(member.live.get("images_per_second", 0) for member in running)
        if speed:
            parts.append(f"{speed:,.0f} images/s")
        return "  ".join(parts)


def progress_bar(**options: Any) -> Progress:
    """Return a bar with the remaining time; ``options`` are rich's."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TaskProgressColumn())
    options = {"speed_estimate_period": _SPEED_SECONDS, "get_time": time.monotonic, **options}
    return Progress(*columns, TimeRemainingColumn(), "left", **options)


def time_left(seconds: float | None, before: str = ", ") -> str:
    """Return the remaining time as the end of a line; nothing before it is known."""
    return "" if seconds is None else f"{before}{timedelta(seconds=round(seconds))} left"


def print_line(line: str, to: Console = console, style: str | None = None) -> None:
    """Print text without markup or wrapping."""
    to.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def print_unreadable(skipped: Mapping[str, str], number: int) -> None:
    """Print how many of a number of images could not be read, and why the first ones could not."""
    if skipped:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(skipped.items())[:_NAMED])
        more = "; …" if len(skipped) > _NAMED else ""
        print_line(f"{len(skipped):,} of {number:,} images could not be read: {reasons}{more}", progress_console)


def show_result(folder: "RunFolder") -> None:
    """Print the recalls and the imbalance level of a run."""
    result = folder.result()
    print_line(f"{folder.path}: {result['method']} on {result['data']}", style="bold")
    show_measures(result)


def show_measures(result: dict[str, Any]) -> None:
    """Print recall and accuracy on every split, and the preference scores on test, or else validation data."""
    groups = [name for name, members in result["groups"].items() if members]
    table = Table(*map(escape, ("recall %", *groups, "all", "accuracy")), box=None, header_style="bold")
    test = "new data" if "trained_on" in result else "test"
    names = {"train": "train", "train_paper": "train, training mode", "val": "val", "test": test}
    recalls_of = {split: found["recall"] for split, found in result["splits"].items()}
    if recalls_of.get("train_paper") == recalls_of.get("train"):  # the network is frozen
        recalls_of.pop("train_paper", None)
    for split, shown in names.items():
        if split in recalls_of:
            cells = [recalls_of[split].get(name) for name in [*groups, "all"]]
            cells.append(result["splits"][split].get("accuracy"))
            table.add_row(shown, *("-" if cell is None else f"{100 * cell:.2f}" for cell in cells))
    preference, where = result.get("preference_test"), ""
    if preference is None:
        preference, where = result.get("preference_val"), " on val"
    if preference is not None:
        scores = [preference["score"].get(name) for name in groups]
        table.add_row(f"preference P{where}", *("-" if score is None else f"{score:.2f}" for score in scores))
    console.print(table)
    if "groups_from" in result:
        print_line(f"groups: {result['groups_from']}")
    for split, share in result.get("held_out", {}).items():
        samples = result["splits"].get(split, {}).get("samples", 0)
        words = "as test" if split == "test" else "for validation"
        print_line(f"{split}: {100 * share:g} % of each class held out {words}, {samples:,} samples")
    classes = result.get("classes", ())
    for split in ("val", "test"):
        absent = [classes[c] for c in result["splits"].get(split, {}).get("absent_classes") or ()]
        if absent:
            present = f"{len(classes) - len(absent)} of {len(classes)} classes"
            print_line(f"{names[split]}: all is over {present}; no samples of {some_of(absent, _NAMED)}")
        said = predicted_classes(result, split) if classes else ""
        if said:
            print_line(f"{names[split]}: the model {said}")
    if _looks_easier(result):
        print_line(
            "Recall on validation data is clearly higher than on test data. If images come in series (frames of a "
            "video, photographs of the same object), keep each series on one side with --split-by."
        )
    if preference is not None:
        why = why_no_level(result, "val" if where else "test")
        mode = "training mode, as in the paper" if result["train_stats"] == "paper" else "evaluation mode"
        shown = (
            f"undefined: {why}" if why else f"{preference['model_imbalance_level']:.2f} (training recalls in {mode})"
        )
        print_line(f"model imbalance level I{where} {shown}")
    _show_choices(result)


def _looks_easier(result: dict[str, Any]) -> bool:
    """Whether validation data held out from training data has a higher recall than test data, not by chance."""
    splits = [result["splits"].get(split) for split in ("val", "test")]
    if None in splits or set(result.get("held_out", {})) != {"val"}:
        return False
    errors = [  # of each class, in the mean over the classes
        (high - low) / (2 * 1.96 * len(split["recall_low"]))
        for split in splits
        for low, high in zip(split.get("recall_low", ()), split.get("recall_high", ()), strict=False)
        if low is not None and high is not None
    ]
    val, test = (split["recall"].get("all") for split in splits)
    return bool(errors and val is not None and test is not None) and val - test > max(_EASIER, 2 * math.hypot(*errors))


def _show_choices(result: dict[str, Any]) -> None:
    """Print what was chosen on held-out data: the epoch, beta."""
    if "best" in result:
        best = result["best"]
        chosen = f"weights of epoch {best['epoch']} of {best['epochs_trained']}, the best on validation data"
        print_line(f"{chosen}; recall on val is therefore optimistic")
    if "auto_weight_decay" in result:
        print_line(describe_decay(result["auto_weight_decay"]))
    if "auto_beta" in result:
        of_the_run = {"held_out"} if "trained_on" in result else ()  # its effect there, not on the new data
        print_line(describe_beta({name: one for name, one in result["auto_beta"].items() if name not in of_the_run}))
    elif result.get("posthoc"):
        print_line(f"after {result['posthoc']}")

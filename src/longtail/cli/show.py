"""Progress and results of training in a terminal."""

import time
from collections import deque
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.trainer import Trainer

__all__ = ["LOG_SECONDS", "Pace", "Status", "bar_line", "clock", "print_line", "show_measures", "show_result"]

console = Console()

LOG_SECONDS = 60.0  # between two lines when the output is not a terminal
_NAME = 36  # characters of a run's name, so that a line has at most 80
_NAMED = 5  # absent classes that are named
_PACE_SECONDS = 600.0  # window of the speed, long enough to include an evaluation


class Pace:
    """The recent speed of some work."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> None:
        """Record how much is done; a smaller number than before starts again."""
        now = time.monotonic()
        if self._times and done < self._times[-1][1]:
            self._times.clear()
        if not self._times or (done > self._times[-1][1] and now - self._times[-1][0] >= 1):
            self._times.append((now, done))
            if len(self._times) > 2 and now - self._times[0][0] > _PACE_SECONDS:
                self._times.popleft()

    def left(self, remaining: int) -> float | None:
        """Return the seconds that the remaining work will take; ``None`` before the speed is known."""
        if len(self._times) < 2:
            return None
        (began, first), (now, last) = self._times[0], self._times[-1]
        return remaining * (now - began) / (last - first)


def bar_line(name: str, done: int, total: int, left: float | None) -> Table:
    """Return a line with a name, a bar, a percentage and the remaining time."""
    line = Table.grid(padding=(0, 1), pad_edge=False)
    for _ in range(4):
        line.add_column(no_wrap=True)
    bar = ProgressBar(total, done, width=20)
    line.add_row(Text(name), bar, f"{100 * done // max(total, 1):3d}%", Text(f"{clock(left)} left", style="cyan"))
    return line


class Status:
    """Two lines about training: progress and remaining time, then epoch, loss and speed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        number = len(fleet.members)
        label = fleet.members[0].recipe.label if number == 1 else f"{number} runs"
        self.name = label if len(label) <= _NAME else label[: _NAME - 1] + "…"
        self._taken = 0
        self._begun: list[Trainer] = []
        self._pace = Pace()

    def step(self, member: Trainer) -> None:
        """Count a training step."""
        self._taken += 1
        if member not in self._begun:
            self._begun.append(member)
        self._pace.add(self._taken)

    def __rich__(self) -> Group:
        """Return both lines, for a terminal."""
        done, total, left = self._progress()
        return Group(bar_line(self.name, done, total, left), Text(self._details(), no_wrap=True, overflow="ellipsis"))

    def __str__(self) -> str:
        """Return everything on one line, for a log."""
        done, total, left = self._progress()
        return f"{self.name}  {100 * done // max(total, 1)}%  {clock(left)} left  {self._details()}"

    def _members(self) -> list[Trainer]:
        failed = [member for member, _ in self.fleet.failures]
        return [member for member in self.fleet.members if member not in failed]

    def _progress(self) -> tuple[int, int, float | None]:
        done = sum(member.steps_done for member in self._members())
        total = sum(member.steps_total for member in self._members())
        return done, total, self._pace.left(total - done)

    def _details(self) -> str:
        members = self._members()
        running = [one for one in self._begun if one in members and one.steps_done < one.steps_total]
        finished, failed = sum(member.folder.done for member in members), len(self.fleet.failures)
        parts = [f"{finished} of {len(self.fleet.members)} done"] if len(self.fleet.members) > 1 else []
        parts += [f"{failed} failed"] if failed else []
        if not running:
            return "  ".join([*parts, "evaluating" if self._begun else "starting"])
        one, epochs = running[0], sum(running[0].epochs)
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


def clock(seconds: float | None) -> str:
    """Return a duration as hours, minutes and seconds."""
    if seconds is None:
        return "-:--:--"
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def print_line(line: str) -> None:
    """Print a line without markup or wrapping."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_result(folder: RunFolder, result: dict[str, Any] | None = None) -> None:
    """Print the recalls and the imbalance level of a run, or those of ``result`` if given."""
    result = folder.result() if result is None else result
    title = f"{folder.path}: {result['method']} on {result['data']}"
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    show_measures(result)


def show_measures(result: dict[str, Any]) -> None:
    """Print the recall of each group on every split, and the preference scores on test, or else validation data."""
    groups = [name for name, members in result["groups"].items() if members]
    table = Table("recall %", *groups, "all", box=None, header_style="bold")
    names = {"train": "train", "train_paper": "train, training mode", "val": "val", "test": "test"}
    for split, shown in names.items():
        if split in result["splits"]:
            recalls = result["splits"][split]["recall"]
            cells = [recalls.get(name) for name in [*groups, "all"]]
            table.add_row(shown, *("-" if cell is None else f"{100 * cell:.2f}" for cell in cells))
    preference, where = result.get("preference_test"), ""
    if preference is None:
        preference, where = result.get("preference_val"), " on val"
    if preference is not None:
        scores = [preference["score"].get(name) for name in groups]
        table.add_row(f"preference P{where}", *("-" if score is None else f"{score:.2f}" for score in scores), "")
    console.print(table)
    for split in ("val", "test"):
        _print_absent(result, split)
    if preference is not None:
        level = preference["model_imbalance_level"]
        shown_level = "undefined" if level is None else f"{level:.2f}"
        mode = "training mode, as in the paper" if result["train_stats"] == "paper" else "evaluation mode"
        print_line(f"model imbalance level I{where} {shown_level} (training recalls in {mode})")
    if result.get("posthoc"):
        print_line(f"after {result['posthoc']}")


def _print_absent(result: dict[str, Any], split: str) -> None:
    absent = result["splits"].get(split, {}).get("absent_classes")
    if absent:
        classes = result["classes"]
        named = ", ".join(classes[c] for c in absent[:_NAMED])
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        present = len(classes) - len(absent)
        print_line(f"{split}: all is over {present} of {len(classes)} classes; no samples of {named}{more}")

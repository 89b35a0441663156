"""How training and its results look in a terminal."""

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

__all__ = ["TOLD_SECONDS", "Pace", "Status", "bar_line", "clock", "show_measures", "show_result"]

console = Console()

_NAME = 36  # characters of a run's name, so that its line has no more than 80
_NAMED = 5  # absent classes that are named
TOLD_SECONDS = 60.0  # from one line of a log to the next
_PACE_SECONDS = 600.0  # over which the pace is taken: an evaluation now and then should be among them


class Pace:
    """How fast something goes, by what was done lately."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> None:
        """Note how much is done by now; where it is less than before, it begins again."""
        now = time.monotonic()
        if self._times and done < self._times[-1][1]:
            self._times.clear()
        if not self._times or (done > self._times[-1][1] and now - self._times[-1][0] >= 1):
            self._times.append((now, done))
            if len(self._times) > 2 and now - self._times[0][0] > _PACE_SECONDS:
                self._times.popleft()

    def left(self, still: int) -> float | None:
        """Seconds that so much more will take, once some was done."""
        if len(self._times) < 2:
            return None
        (began, first), (now, last) = self._times[0], self._times[-1]
        return still * (now - began) / (last - first)


def bar_line(name: str, done: int, total: int, left: float | None) -> Table:
    """A name, a bar, a share and the time that is left."""
    line = Table.grid(padding=(0, 1), pad_edge=False)
    for _ in range(4):
        line.add_column(no_wrap=True)
    bar = ProgressBar(total, done, width=20)
    line.add_row(Text(name), bar, f"{100 * done // max(total, 1):3d}%", Text(f"{clock(left)} left", style="cyan"))
    return line


class Status:
    """Two lines about training: how far it is and how long it will take, and how it goes.

    Args:
        fleet: what is trained.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        number = len(fleet.members)
        label = fleet.members[0].recipe.label if number == 1 else f"{number} runs"
        self.name = label if len(label) <= _NAME else label[: _NAME - 1] + "…"
        self._taken = 0
        self._begun: list[Trainer] = []
        self._pace = Pace()

    def step(self, member: Trainer) -> None:
        """Count a step that was taken."""
        self._taken += 1
        if member not in self._begun:
            self._begun.append(member)
        self._pace.add(self._taken)

    @property
    def members(self) -> list[Trainer]:
        """Those that have not failed."""
        failed = [member for member, _ in self.fleet.failures]
        return [member for member in self.fleet.members if member not in failed]

    @property
    def left(self) -> float | None:
        """Seconds that all steps that are left will take, once steps were taken."""
        return self._pace.left(sum(member.steps_total - member.steps_done for member in self.members))

    def __rich__(self) -> Group:
        """The lines, as it is now."""
        total = sum(member.steps_total for member in self.members)
        done = sum(member.steps_done for member in self.members)
        return Group(
            bar_line(self.name, done, total, self.left), Text(self._how_it_goes(), no_wrap=True, overflow="ellipsis")
        )

    def __str__(self) -> str:
        """All of it in a line, for a log."""
        total = sum(member.steps_total for member in self.members)
        done = sum(member.steps_done for member in self.members)
        return f"{self.name}  {100 * done // max(total, 1)}%  {clock(self.left)} left  {self._how_it_goes()}"

    def _how_it_goes(self) -> str:
        members = self.members
        running = [one for one in self._begun if one in members and one.steps_done < one.steps_total]
        over, failed = sum(member.folder.done for member in members), len(self.fleet.failures)
        parts = [f"{over} of {len(self.fleet.members)} done"] if len(self.fleet.members) > 1 else []
        parts += [f"{failed} failed"] if failed else []
        if not running:
            return "  ".join([*parts, "measuring" if self._begun else "starting"])
        one, epochs = running[0], sum(running[0].epochs)
        parts.append(f"epoch {min(one.epochs_done + 1, epochs)}/{epochs}")
        live = one.live
        if live.get("loss") is not None:
            parts.append(f"loss {live['loss']:{'.3f' if abs(live['loss']) < 1000 else '.3g'}}")
        if "lr" in live:
            parts.append(f"lr {live['lr']:.3g}")
        pace = sum(member.live.get("images_per_second", 0) for member in running)
        if pace:
            parts.append(f"{pace:,.0f} images/s")
        return "  ".join(parts)


def clock(seconds: float | None) -> str:
    """A time as hours, minutes and seconds."""
    if seconds is None:
        return "-:--:--"
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def show_result(folder: RunFolder, result: dict[str, Any] | None = None) -> None:
    """A run's recalls and its imbalance level; those of ``result``, where one is given."""
    result = folder.result() if result is None else result
    title = f"{folder.path}: {result['method']} on {result['data']}"
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    show_measures(result)


def show_measures(result: dict[str, Any]) -> None:
    """Recall of each group on every split, and the preference scores: on test data, or else on validation data."""
    groups = [name for name, members in result["groups"].items() if members]
    table = Table("recall %", *groups, "all", box=None, header_style="bold")
    names = {"train": "train", "train_paper": "train, as in training", "val": "val", "test": "test"}
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
        _tell_absent(result, split)
    if preference is not None:
        level = preference["model_imbalance_level"]
        shown_level = "undefined" if level is None else f"{level:.2f}"
        taken = "as the paper took them" if result["train_stats"] == "paper" else "in evaluation mode"
        _tell(f"model imbalance level I{where} {shown_level} (training recalls {taken})")
    if result.get("posthoc"):
        _tell(f"after {result['posthoc']}")


def _tell_absent(result: dict[str, Any], split: str) -> None:
    """Which classes a split has no image of: its recalls are over the others."""
    absent = result["splits"].get(split, {}).get("absent_classes")
    if absent:
        classes = result["classes"]
        named = ", ".join(classes[c] for c in absent[:_NAMED])
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        _tell(f"{split}: all is over {len(classes) - len(absent)} of {len(classes)} classes, without {named}{more}")


def _tell(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)

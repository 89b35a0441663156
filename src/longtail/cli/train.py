"""``longtail train``: one run, several at once, or one that goes on."""

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longtail.cli.show import show_result
from longtail.data import CATALOG
from longtail.ranks import Ranks
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.loading import is_small
from longtail.train.recipe import Recipe, check_fields, defaults, read_recipe
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer, pick_device

__all__ = ["run"]

USAGE = """usage: longtail train [RECIPE.toml | FOLDER | LIST] [--data NAME] [--method NAME] [--FIELD VALUE …]
       longtail train --resume RUN …

Train a model and leave a run folder. Several values of a field, as in `--beta 1.0 1.5 --seed 0 1 2`, are several runs,
`--together N` of them at a time (default: 12 on a GPU). `--out DIR` names the folder of one run, or where the folders
of several go (default: runs).
"""


def run(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    given = list(arguments)
    together = _take(given, "--together")
    if given[:1] == ["--resume"]:
        if not given[1:]:
            raise ValueError("Expected a run folder after --resume, but got none.")
        folders = [RunFolder(path) for path in given[1:]]
        runs = [(folder.recipe(), folder) for folder in folders]
    else:
        runs = _asked_for(given)
    with _ranks() as ranks:
        code = _train(runs, ranks, _number("--together", together))
    if ranks.world > 1:
        _leave(code)
    return code


def _asked_for(given: list[str]) -> list[tuple[Recipe, RunFolder]]:
    """The runs that a command line describes, and their folders."""
    out = _take(given, "--out")
    recipes = [_parse(one) for one in _spread(given)]
    if len(recipes) == 1:
        folders = [Path(out) if out else Path("runs") / recipes[0].label]
    else:
        folders = [Path(out or "runs") / _told_apart(recipe, recipes) for recipe in recipes]
    runs = []
    for recipe, path in zip(recipes, folders, strict=True):
        folder = RunFolder(path)
        if folder.begun and not folder.done and len(recipes) == 1:
            raise ValueError(
                f"Expected a new run, but {path} holds one; `longtail train --resume {path}` goes on with it."
            )
        if folder.begun and folder.recipe() != _resolved(recipe):
            raise ValueError(
                f"Expected {path} to hold this run, but its recipe.toml differs in {_difference(folder, recipe)}."
            )
        runs.append((recipe, folder))
    return runs


def _resolved(recipe: Recipe) -> Recipe:
    return Recipe(**{**asdict(recipe), **recipe.knobs})


def _difference(folder: RunFolder, recipe: Recipe) -> str:
    theirs, ours = asdict(folder.recipe()), asdict(_resolved(recipe))
    return ", ".join(
        f"`{name}` ({theirs[name]} there, {ours[name]} here)" for name in ours if theirs[name] != ours[name]
    )


def _told_apart(recipe: Recipe, recipes: Sequence[Recipe]) -> str:
    """A run's name: its label, and what else differs among the runs."""
    differing = [f.name for f in fields(Recipe) if len({getattr(one, f.name) for one in recipes}) > 1]
    shown = {"data", "imbalance", "method", "balance", "beta", "tau", "seed"}
    more = [f"{name}{getattr(recipe, name)}" for name in differing if name not in shown]
    return "-".join([recipe.label, *more])


def _take(given: list[str], flag: str) -> str | None:
    """The value of a flag, which is removed."""
    for place, word in enumerate(given):
        if word == flag and place + 1 < len(given):
            value = given[place + 1]
            del given[place : place + 2]
            return value
        if word.startswith(f"{flag}="):
            del given[place]
            return word.removeprefix(f"{flag}=")
    return None


def _spread(given: list[str]) -> list[list[str]]:
    """A command line with several values of a field as several command lines."""
    parts: list[list[list[str]]] = []
    place = 0
    while place < len(given):
        word = given[place]
        values: list[str] = []
        while word.startswith("--") and place + 1 + len(values) < len(given):
            value = given[place + 1 + len(values)]
            if value.startswith("--"):
                break
            values.append(value)
        if len(values) > 1 and word != "--milestones":
            parts.append([[word, value] for value in values])
        else:
            parts.append([[word, *values]])
        place += 1 + len(values)
    return [[word for part in chosen for word in part] for chosen in product(*parts)]


def _parse(given: list[str]) -> Recipe:
    """A recipe from a command line: the data set's own, then a file's settings, then the flags."""
    rest = list(given)
    settings: dict[str, Any] = {}
    if rest and not rest[0].startswith("-"):
        first = rest.pop(0)
        settings = read_recipe(first) if first.endswith(".toml") else {"data": first}
    data, method, imbalance = (_peek(rest, f"--{name}") for name in ("data", "method", "imbalance"))
    data = data or settings.get("data", "cifar10-lt")
    method = method or settings.get("method", "cbs")
    factor = imbalance or settings.get("imbalance")
    try:
        factor = None if factor is None else float(factor)
    except ValueError:
        raise ValueError(f"Expected `imbalance` to be a number, but got {imbalance!r}.") from None
    small = data not in CATALOG and is_small(data)
    base = asdict(defaults(data, method, factor, small=small)) | settings | {"data": data, "method": method}
    default = _Unchecked(**check_fields(base, "the recipe"))
    parsed = tyro.cli(_Unchecked, default=default, args=rest, prog="longtail train", description=USAGE)
    return Recipe(**asdict(parsed))


@dataclass(frozen=True)
class _Unchecked(Recipe):
    """A recipe while it is parsed: checked once, when all is known, and by us, in one sentence."""

    def __post_init__(self) -> None:
        """Not yet."""


def _peek(given: list[str], flag: str) -> str | None:
    return _take(list(given), flag)


@contextmanager
def _ranks() -> Iterator[Ranks]:
    """The processes that torchrun started; one otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks.of_this_process()
    finally:
        torch.distributed.destroy_process_group()


def _leave(code: int) -> NoReturn:
    """End the process at once: torch keeps gloo's threads once DDP was made, and they may abort an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _number(flag: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise ValueError(f"Expected a whole number after {flag}, but got {text!r}.")
    return None if text is None else int(text)


def _train(runs: list[tuple[Recipe, RunFolder]], ranks: Ranks, together: int | None) -> int:
    console = Console(stderr=True, quiet=not ranks.first)
    waiting = [(recipe, folder) for recipe, folder in runs if not folder.done]
    for _, folder in runs:
        if folder.done:
            console.print(f"{folder.path} is done already.", highlight=False, markup=False, soft_wrap=True)
    with ExitStack() as stack:
        if ranks.first:
            for _, folder in waiting:
                stack.enter_context(folder.lock())
        local = int(os.environ.get("LOCAL_RANK", "0"))
        members = [
            Trainer(recipe, folder, ranks=ranks, device=pick_device(recipe.device, local)) for recipe, folder in waiting
        ]
        with _heeding_signals(members) as asked:
            try:
                _drive(Fleet(members, together), console)
            except StoppedError:
                _say(f"Stopped; {_how_to_go_on(members)}.", ranks)
                return 128 + (asked[0] if asked else signal.SIGTERM)  # of several processes one may have been asked
            except NotFiniteError as error:
                _say(str(error), ranks)
                return 1
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                room = f"Expected room to save, but there was none ({error.strerror})"
                _say(f"{room}; once there is, {_how_to_go_on(members)}.", ranks)
                return 1
    if ranks.first:
        for _, folder in runs:
            show_result(folder)
    return 0


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _say(sentence: str, ranks: Ranks) -> None:
    if ranks.first:
        sys.stderr.write(f"longtail: {sentence}\n")


def _how_to_go_on(members: Sequence[Trainer]) -> str:
    left = [member.folder for member in members if not member.folder.done]
    if not all(folder.begun for folder in left):
        return "the same command goes on"
    return f"`longtail train --resume {' '.join(str(folder.path) for folder in left)}` goes on"


@contextmanager
def _heeding_signals(members: Sequence[Trainer]) -> Iterator[list[int]]:
    """Have SIGTERM and Ctrl-C ask the trainers to save and stop; which of them it was."""
    asked: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        asked.append(number)
        for member in members:
            member.stop_asked = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drive(fleet: Fleet, console: Console) -> None:
    """Train all members, with one bar."""
    members = fleet.members
    if not members:
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs  {task.fields[shown]}"),
        TimeRemainingColumn(),
    )
    total = sum(sum(member.epochs) for member in members)
    name = members[0].recipe.label if len(members) == 1 else f"{len(members)} runs"
    refreshed = 0.0
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=total, shown="")
        for _ in fleet.steps():
            if time.monotonic() - refreshed > 0.2:
                line = next((m.last_line for m in members if m.last_line), {})
                shown = (
                    f"loss {line['loss']:.3f}  lr {line['lr']:.3g}  {line['images_per_second']:,.0f} images/s"
                    if line
                    else ""
                )
                bar.update(task, completed=sum(member.epochs_done for member in members), shown=shown)
                refreshed = time.monotonic()

"""``longtail train``: one run, several at once, or one that goes on."""

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import NoReturn

import torch
from rich.console import Console
from rich.live import Live

from longtail.cli import check_interrupted, sentence_of
from longtail.cli.show import TOLD_SECONDS, Status, show_result
from longtail.cli.train_line import asked_for, read_line, resume_command, resumed, show_help
from longtail.data.loaders.decode import UnreadableImageError
from longtail.ranks import Ranks
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder, lock_folders
from longtail.train.recipe import Recipe, pick_device
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = ["run"]


def run(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    if {"-h", "--help"} & set(arguments):
        show_help([word for word in arguments if word not in {"-h", "--help"}])
    line = read_line(arguments)
    together = _number("--together", line.together)
    with _ranks() as ranks:
        runs = asked_for(line, ranks) if line.resume is None else resumed(line, ranks)
        _tell_done(runs, ranks, elsewhere=line.resume is None and len(runs) == 1)
        code = _train(runs, ranks, together)
    if ranks.world > 1:
        _leave(code)
    return code


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
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise ValueError(f"Expected a whole number > 0 after {flag}, but got {text!r}.")
    return None if text is None else int(text)


def _tell_done(runs: list[tuple[Recipe, RunFolder]], ranks: Ranks, *, elsewhere: bool) -> None:
    more = "; `--out FOLDER` repeats it elsewhere" if elsewhere else ""
    for _, folder in runs:
        if folder.done and ranks.first:
            sys.stderr.write(f"{folder.path} is done already{more}.\n")


def _train(runs: list[tuple[Recipe, RunFolder]], ranks: Ranks, together: int | None) -> int:
    console = Console(stderr=True, quiet=not ranks.first)
    waiting = [(recipe, folder) for recipe, folder in runs if not folder.done]
    with lock_folders([folder for _, folder in waiting], ranks):
        local = int(os.environ.get("LOCAL_RANK", "0"))
        members = [
            Trainer(recipe, folder, ranks=ranks, device=pick_device(recipe.device, local)) for recipe, folder in waiting
        ]
        fleet = Fleet(members, together)
        with _heeding_signals(members) as asked:
            try:
                _drive(fleet, console)
            except StoppedError:
                _tell_failures(fleet, ranks, raising=False)
                _say(f"Stopped; {_how_to_go_on(members, ranks)}.", ranks)
                return 128 + (asked[0] if asked else signal.SIGTERM)  # of several processes one may have been asked
            except OSError as error:  # of one of several processes
                if not _is_no_room(error):
                    raise
                _say_no_room(error, members, ranks)
                return 1
    if ranks.first:
        for _, folder in runs:
            if folder.done:
                show_result(folder)
        for member in members:
            _tell_left_out(member, ranks)
    return _tell_failures(fleet, ranks)


def _tell_failures(fleet: Fleet, ranks: Ranks, *, raising: bool = True) -> int:
    """Say what went wrong with members, a sentence each; the exit code. What nobody foresaw is raised."""
    full = [(member, error) for member, error in fleet.failures if _is_no_room(error)]
    if full:
        _say_no_room(full[0][1], [member for member, _ in full], ranks)
    others = [(member, error) for member, error in fleet.failures if not _is_no_room(error)]
    for member, error in others:
        if isinstance(error, UnreadableImageError):
            error = error.with_hint()  # noqa: PLW2901
        if raising and len(fleet.members) == 1 and not isinstance(error, NotFiniteError):
            raise error
        named = str(member.folder.path) in str(error)
        _say(sentence_of(error) if named else f"{member.folder.path} failed: {sentence_of(error)}", ranks)
    unforeseen = [error for _, error in others if not isinstance(error, NotFiniteError | ValueError | OSError)]
    if unforeseen and raising:
        raise unforeseen[0]
    return 1 if fleet.failures else 0


def _is_no_room(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _say_no_room(error: Exception, members: Sequence[Trainer], ranks: Ranks) -> None:
    why = error.strerror if isinstance(error, OSError) else error
    room = f"Expected room to save, but there was none ({why})"
    _say(f"{room}; once there is, {_how_to_go_on(members, ranks)}.", ranks)


def _tell_left_out(member: Trainer, ranks: Ranks) -> None:
    left_out = sorted(member.loaders.unreadable)
    if left_out:
        said = ", ".join(left_out[:_NAMED]) + (", …" if len(left_out) > _NAMED else "")
        where = f"{member.folder.unreadable_file} says why"
        images = f"{len(left_out)} image{'' if len(left_out) == 1 else 's'}"
        _say(f"Left out {images} that could not be read ({said}); {where}.", ranks)


_NAMED = 5  # files that are named


def _say(sentence: str, ranks: Ranks) -> None:
    if ranks.first:
        sys.stderr.write(f"longtail: {sentence}\n")


def _how_to_go_on(members: Sequence[Trainer], ranks: Ranks) -> str:
    left = [member.folder for member in members if not member.folder.done]
    if not all(folder.begun for folder in left):
        return "the same command goes on"
    return f"{resume_command(left, ranks)} goes on"


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
        check_interrupted()
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drive(fleet: Fleet, console: Console) -> None:
    """Train all members, and show how it goes to whoever looks: in a terminal always, in a file now and then."""
    if not fleet.members:
        return
    status = Status(fleet)
    watched = console.file.isatty() and not console.quiet
    with Live(status, console=console, transient=True, refresh_per_second=2) if watched else nullcontext():
        told = time.monotonic()
        for member in fleet.steps():
            status.step(member)
            if not watched and time.monotonic() - told > TOLD_SECONDS:
                console.print(str(status), highlight=False, markup=False, soft_wrap=True)
                told = time.monotonic()

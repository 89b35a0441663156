"""``longtail train``: train one run, several together, or resume them."""

import argparse
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from rich.live import Live

from longtail._io import stop_signals
from longtail._program import program
from longtail._registry import load_plugins, nearest
from longtail.cli import check_interrupted, sentence_of
from longtail.cli.parsing import Parser, add_settings, positive_integer, read_settings
from longtail.cli.show import LOG_SECONDS, Status, show_result
from longtail.data import CATALOG
from longtail.data.loaders.decode import UnreadableImageError
from longtail.methods import METHODS, find_method
from longtail.ranks import Ranks
from longtail.study.captions import some_of
from longtail.train.dataset import HELD_OUT, is_small, lacks_validation
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder, check_same_folders, lock_folders
from longtail.train.recipe import Recipe, defaults, pick_device, read_recipe, setting_types
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = ["make_recipes", "read_recipes", "run"]

_ABOUT = """Train a model and write a run folder. Several values of a flag, as in
`--beta 1.0 1.5 --seed 0 1 2`, train several runs. `none` unsets a setting of a
file or of the data set's recipe; `--no-nesterov` switches a setting off.

`longtail train --resume RUN` resumes a stopped run. Only --device, --workers,
--root and --together can be combined with it."""

_PER_MACHINE = ("device", "root", "workers")  # settings that may change on resume
_NAMED = 5  # skipped files that are named

Planned = list[tuple[Recipe, RunFolder]]


def run(words: Sequence[str]) -> int:
    """Parse, train, print."""
    load_plugins()
    given = _parser(words).read(words)
    settings = read_settings(given)
    if given.source is not None and "data" in settings and not given.source.endswith(".toml"):
        raise ValueError(f"Expected one data set, but got {given.source} and --data {settings['data'][0]}.")
    for name in ("method", "model", "head", "device"):
        *others, last = settings.get(name, [None])
        if others and last is not None and last not in METHODS and Path(last).exists():
            raise ValueError(f"Expected data before the flags, but got {last} after --{name}.")
    with _ranks() as ranks:
        runs = _new(given, settings, ranks) if given.resume is None else _resumed(given, settings, ranks)
        for _, folder in runs:
            if folder.done and ranks.first:
                again = "; choose another folder with --out" if given.resume is None and len(runs) == 1 else ""
                sys.stderr.write(f"{folder.path} is finished{again}.\n")
        code = _train(runs, ranks, given.together)
    if ranks.world > 1:
        _exit(code)
    return code


def _parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser; ``--help`` shows the defaults of the data set and method that are given with it."""
    parser = Parser("longtail train", _ABOUT, usage="[DATA] [--FLAG VALUE …]")
    parser.add_argument(
        "source", nargs="?", metavar="DATA", help="a recipe (.toml), a folder of class folders, or a list of images"
    )
    parser.flag("--out", "folder of the run, or of several runs (default: runs)", metavar="DIR")
    parser.flag(
        "--together", "runs at a time (default: 12 small models on a GPU, else 1)", type=positive_integer, metavar="N"
    )
    parser.flag("--resume", "folders of runs to resume", nargs="+", metavar="RUN")
    defaults_: dict[str, Any] = {}
    if {"-h", "--help"} & set(words):
        try:
            defaults_ = read_recipes([word for word in words if word not in {"-h", "--help"}])[0][0].settings()
        except (ValueError, OSError):
            defaults_ = Recipe().settings()
    add_settings(parser, defaults_)
    return parser


# From settings to runs


def read_recipes(words: Sequence[str]) -> tuple[list[Recipe], list[str]]:
    """Return the recipes of a command line, and notes about what was changed."""
    given = _parser().read(words)
    return make_recipes(given.source, read_settings(given))


def _new(given: argparse.Namespace, settings: Mapping[str, list[Any]], ranks: Ranks) -> Planned:
    """Return the runs of a command line and their folders."""
    recipes, notes = make_recipes(given.source, settings)
    if len(recipes) == 1:
        paths = [Path(given.out) if given.out else Path("runs") / recipes[0].label]
    else:
        paths = [Path(given.out or "runs") / _distinct_label(recipe, recipes) for recipe in recipes]
    _check_distinct(recipes, paths)
    folders = [RunFolder(path) for path in paths]
    check_same_folders(folders, ranks)
    for recipe, folder in zip(recipes, folders, strict=True):
        folder.check(recipe)
        if folder.begun and not folder.done and len(recipes) == 1:
            command = _resume_command([folder], ranks)
            raise ValueError(f"Expected a new run, but {folder.path} has an unfinished one; resume it with {command}.")
    if ranks.first:
        sys.stderr.write("".join(f"longtail: {note}\n" for note in notes))
    return list(zip(recipes, folders, strict=True))


def make_recipes(source: str | None, settings: Mapping[str, list[Any]]) -> tuple[list[Recipe], list[str]]:
    """Return a recipe for each combination of values, and notes about what was changed.

    Args:
        source: a recipe file, the user's data, or nothing.
        settings: the values of each setting.
    """
    written: dict[str, Any] = {}
    if source is not None:
        written = read_recipe(source) if source.endswith(".toml") else {"data": source}
    recipes: list[Recipe] = []
    notes: dict[str, None] = {}  # each once
    for values in product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        dropped = _unused_params(written, chosen)
        if dropped:
            named = ", ".join(f"`{name}`" for name in dropped)
            notes[f"Ignored {named} of {source}: {chosen['method']} has no such parameter."] = None
        kept = {name: value for name, value in written.items() if name not in dropped}
        if any(name in written and chosen.get(name, written[name]) != written[name] for name in ("data", "method")):
            kept = {name: value for name, value in kept.items() if value is not None}  # the new recipe decides
        recipe = _recipe(kept, chosen)
        if "validation" not in {**kept, **chosen} and lacks_validation(recipe):
            recipe = recipe.changed(validation=HELD_OUT)
            what = f"{HELD_OUT:.0%} of the training data of {recipe.data} to choose `tau` of {recipe.method}"
            notes[f"Holding out {what}; change it with --validation or --tau."] = None
        recipes.append(recipe)
    return recipes, list(notes)


def _recipe(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> Recipe:
    """Return the data set's recipe, changed by the settings of a file and then by flags."""
    settings = {"data": "cifar10-lt", "method": "cbs", **written, **chosen}
    data = settings["data"]
    if data not in CATALOG and not Path(data).exists():
        near = nearest(data, CATALOG)
        raise ValueError(f"Expected a data set that `longtail data list` shows, or a path, but got {data!r}{near}.")
    small = data not in CATALOG and is_small(data)
    return defaults(data, settings["method"], settings.get("imbalance"), small=small).changed(**settings)


def _unused_params(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a file's method that the method of the command line does not have."""
    if chosen.get("method", written.get("method")) == written.get("method") or "method" not in written:
        return []
    old, new = find_method(written["method"]).parameters, find_method(chosen["method"]).parameters
    return [name for name in old if written.get(name) is not None and name not in new]


def _resumed(given: argparse.Namespace, settings: Mapping[str, list[Any]], ranks: Ranks) -> Planned:
    """Return the runs to resume, with the settings of this machine."""
    other = [f"--{name.replace('_', '-')}" for name in settings if name not in _PER_MACHINE]
    other += [] if given.out is None else ["--out"]
    other += [] if given.source is None else [given.source]
    if other:
        raise ValueError(
            "Expected only run folders, --device, --root, --workers and --together with --resume, because a run keeps "
            f"its settings, but got {other[0]}."
        )
    several = [name for name, values in settings.items() if len(values) > 1]
    if several:
        raise ValueError(f"Expected one value after --{several[0]} with --resume, but got several.")
    here = {name: values[0] for name, values in settings.items()}
    folders = [RunFolder(path) for path in given.resume]
    for folder in folders:
        inside = [] if folder.begun else [str(file.parent) for file in sorted(folder.path.glob("*/recipe.toml"))]
        if inside:
            raise ValueError(f"Expected a run in {folder.path}, but the runs are below it: {some_of(inside)}.")
    check_same_folders(folders, ranks)
    recipes = [folder.recipe() for folder in folders]
    _check_distinct(recipes, [folder.path for folder in folders])
    return [(recipe.changed(**here), folder) for recipe, folder in zip(recipes, folders, strict=True)]


def _resume_command(folders: Sequence[RunFolder], ranks: Ranks) -> str:
    rest = f"train --resume {' '.join(str(folder.path) for folder in folders)}"
    if ranks.world == 1:
        return f"`{program()} {rest}`"
    return f"`torchrun … -m {program()} {rest}` and the same flags of torchrun"


def _check_distinct(recipes: Sequence[Recipe], folders: Sequence[Path]) -> None:
    seen: dict[Path, Recipe] = {}
    for recipe, path in zip(recipes, folders, strict=True):
        before = seen.setdefault(path.resolve(), recipe)
        if before is recipe:
            continue
        if before == recipe:
            raise ValueError(f"Expected different runs, but got {path} twice.")
        raise ValueError(f"Expected a folder for each run, but two different runs would go to {path}.")


def _distinct_label(recipe: Recipe, recipes: Sequence[Recipe]) -> str:
    """Return the label of a run, with the settings that differ among runs of the same label."""
    settings = [one.settings() for one in recipes if one.label == recipe.label]
    differing = [name for name in setting_types() if len({one.get(name) for one in settings}) > 1]
    more = [f"{name}{recipe.settings()[name]}".replace("/", "_") for name in differing if name != "data"]
    return "-".join([recipe.label, *more])


# Training


@contextmanager
def _ranks() -> Iterator[Ranks]:
    """Yield the processes that torchrun started, or this process alone."""
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


def _exit(code: int) -> NoReturn:
    """Leave without cleaning up: after DDP, torch keeps gloo threads that may abort an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(runs: Planned, ranks: Ranks, together: int | None) -> int:
    waiting = [(recipe, folder) for recipe, folder in runs if not folder.done]
    with lock_folders([folder for _, folder in waiting], ranks):
        local = int(os.environ.get("LOCAL_RANK", "0"))
        members = [
            Trainer(recipe, folder, ranks=ranks, device=pick_device(recipe.device, local)) for recipe, folder in waiting
        ]
        fleet = Fleet(members, together)
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            for member in members:
                member.stop_requested = True

        with stop_signals(stop):
            check_interrupted()
            try:
                _drive(fleet, Console(stderr=True, quiet=not ranks.first))
            except StoppedError:
                _report_failures(fleet, ranks, raising=False)
                _warn(f"Stopped; resume with {_how_to_resume(members, ranks)}.", ranks)
                return 128 + (received[0] if received else signal.SIGTERM)  # another rank may have got the signal
            except OSError as error:
                if not _is_disk_full(error):
                    raise
                _warn_disk_full(error, members, ranks)
                return 1
    if ranks.first:
        for _, folder in runs:
            if folder.done:
                show_result(folder)
        for member in members:
            _report_skipped(member, ranks)
    return _report_failures(fleet, ranks)


def _drive(fleet: Fleet, console: Console) -> None:
    """Train all members; show the status live in a terminal, and one line per minute in a log."""
    if not fleet.members:
        return
    status = Status(fleet)
    live = console.file.isatty() and not console.quiet
    with Live(status, console=console, transient=True, refresh_per_second=2) if live else nullcontext():
        printed = time.monotonic()
        for member in fleet.steps():
            status.step(member)
            if not live and time.monotonic() - printed > LOG_SECONDS:
                console.print(str(status), highlight=False, markup=False, soft_wrap=True)
                printed = time.monotonic()


def _report_failures(fleet: Fleet, ranks: Ranks, *, raising: bool = True) -> int:
    """Print one sentence per failed member and return the exit code; an unexpected error is raised."""
    full = [(member, error) for member, error in fleet.failures if _is_disk_full(error)]
    if full:
        _warn_disk_full(full[0][1], [member for member, _ in full], ranks)
    others = [(member, error) for member, error in fleet.failures if not _is_disk_full(error)]
    for member, error in others:
        if isinstance(error, UnreadableImageError):
            error = error.with_hint()  # noqa: PLW2901
        if raising and len(fleet.members) == 1 and not isinstance(error, NotFiniteError):
            raise error
        named = str(member.folder.path) in str(error)
        _warn(sentence_of(error) if named else f"{member.folder.path} failed: {sentence_of(error)}", ranks)
    unexpected = [error for _, error in others if not isinstance(error, NotFiniteError | ValueError | OSError)]
    if unexpected and raising:
        raise unexpected[0]
    return 1 if fleet.failures else 0


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", None), errno.EFBIG}


def _warn_disk_full(error: Exception, members: Sequence[Trainer], ranks: Ranks) -> None:
    why = error.strerror if isinstance(error, OSError) else error
    resume = _how_to_resume(members, ranks)
    _warn(f"Expected room on the disk to save the run, but got: {why}; free some and resume with {resume}.", ranks)


def _how_to_resume(members: Sequence[Trainer], ranks: Ranks) -> str:
    left = [member.folder for member in members if not member.folder.done]
    return _resume_command(left, ranks) if all(folder.begun for folder in left) else "the same command"


def _report_skipped(member: Trainer, ranks: Ranks) -> None:
    skipped = sorted(member.loaders.unreadable)
    if skipped:
        named = ", ".join(skipped[:_NAMED]) + (", …" if len(skipped) > _NAMED else "")
        images = f"{len(skipped)} image{'' if len(skipped) == 1 else 's'}"
        _warn(f"Skipped {images} that could not be read ({named}); see {member.folder.unreadable_file}.", ranks)


def _warn(sentence: str, ranks: Ranks) -> None:
    if ranks.first:
        sys.stderr.write(f"longtail: {sentence}\n")

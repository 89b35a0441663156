"""``longtail train``: one run, several at once, or one that goes on."""

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from types import FrameType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import torch
import tyro
from rich.console import Console
from rich.live import Live

from longtail.cli.show import Status, show_result
from longtail.data import CATALOG
from longtail.methods import METHODS, find_method
from longtail.ranks import Ranks
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.loading import is_small
from longtail.train.recipe import Recipe, check_fields, defaults, read_recipe
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer, pick_device

__all__ = ["run"]

USAGE = """usage: longtail train [RECIPE.toml | FOLDER | LIST] [--data NAME] [--method NAME] [--FIELD VALUE …]
       longtail train --resume RUN … [--device NAME] [--workers N] [--root DIR]

Train a model and leave a run folder. Several values of a field, as in `--beta 1.0 1.5 --seed 0 1 2`, are several runs,
`--together N` of them at a time (default: 12 on a GPU). `--out DIR` names the folder of one run, or where the folders
of several go (default: runs).
"""

_OWN = ("out", "together", "resume")  # flags that are no settings of a recipe
_ELSEWHERE = ("device", "root", "workers")  # what another machine may have otherwise


def run(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    if {"-h", "--help"} & set(arguments):
        _help([word for word in arguments if word not in {"-h", "--help"}])
    line = _read(arguments)
    runs = _asked_for(line) if line.resume is None else _resumed(line)
    with _ranks() as ranks:
        code = _train(runs, ranks, _number("--together", line.together))
    if ranks.world > 1:
        _leave(code)
    return code


# The command line


@dataclass
class _Line:
    """A command line that was read."""

    source: str | None = None
    """A recipe's file, or one's own data."""
    settings: dict[str, list[Any]] = field(default_factory=dict)
    """The values of each field."""
    out: str | None = None
    together: str | None = None
    resume: list[str] | None = None

    def add_source(self, word: str) -> None:
        """Take a word that belongs to no flag."""
        if self.source is not None:
            raise ValueError(f"Expected one recipe, folder or list, but got {self.source} and {word}.")
        self.source = word


def _read(given: Sequence[str]) -> _Line:
    """The flags with their values, each value of the type that its field has."""
    line, rest = _Line(), list(given)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            line.add_source(word)
            continue
        flag, attached, value = word.partition("=")
        name, on = _meant(flag)
        switch = name not in _OWN and _HINTS[name] is bool
        values = [value] if attached else []
        while rest and not attached and not _is_flag(rest[0]) and (not switch or rest[0].lower() in _SWITCH):
            values.append(rest.pop(0))
        if switch:
            found = [_converted(name, one) for one in values] if on else [False]
            line.settings[name] = found or [True]
        elif name == "resume":
            line.resume = [*(line.resume or []), *values]
        else:
            if len(values) > 1 and line.source is None and _is_source(name, values[-1]):
                line.add_source(values.pop())
            _put(line, name, flag, values)
    if line.source is not None and not line.source.endswith(".toml") and "data" in line.settings:
        raise ValueError(f"Expected one data set, but got {line.source} and --data {line.settings['data'][0]}.")
    return line


def _put(line: _Line, name: str, flag: str, values: list[str]) -> None:
    if name == "milestones":  # several values are one setting
        line.settings[name] = [tuple(_converted(name, one) for one in values)]
        return
    if not values:
        raise ValueError(f"Expected a value after {flag}, but got none.")
    if name not in _OWN:
        line.settings[name] = [_converted(name, one) for one in values]
        return
    if len(values) > 1:
        raise ValueError(f"Expected one value after {flag}, but got {', '.join(values)}.")
    setattr(line, name, values[0])


_HINTS = get_type_hints(Recipe)
_SWITCH = {"true": True, "false": False}


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def _meant(flag: str) -> tuple[str, bool]:
    """The field, or flag of our own, that is meant, and whether to switch it on; both - and _ join words."""
    name = flag.removeprefix("--").replace("-", "_")
    if flag.startswith("--"):
        if name in _OWN or name in _HINTS:
            return name, True
        if _HINTS.get(name.removeprefix("no_")) is bool:
            return name.removeprefix("no_"), False
    near = get_close_matches(name, [*_OWN, *_HINTS], n=1)
    nearest = f"; the nearest is --{near[0].replace('_', '-')}" if near else ""
    raise ValueError(f"Expected a flag that `longtail train --help` shows, but got {flag}{nearest}.")


def _converted(name: str, text: str) -> Any:
    """A value as its field has it."""
    hint = _HINTS[name]
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    for kind in kinds:
        try:
            return _as(get_args(kind)[0] if get_origin(kind) is tuple else kind, text)
        except (ValueError, KeyError):
            continue
    several = f"; several values have a space between them, as in --{name.replace('_', '-')} 1 2" if "," in text else ""
    try:
        check_fields({name: text}, "the command line")
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix('.')}{several}.") from None
    return text


def _as(kind: Any, text: str) -> Any:
    if get_origin(kind) is Literal:
        return {str(one): one for one in get_args(kind)}[text]
    if kind is NoneType:
        return {"none": None}[text.lower()]
    return _SWITCH[text.lower()] if kind is bool else kind(text)


def _is_source(name: str, word: str) -> bool:
    """Whether the last of a flag's values is meant to be the recipe or the data, as in `--method cbs photos`."""
    if word.endswith(".toml") or name in {"out", "together"}:
        return True
    if name in {"data", "root", "weights"} or not (word in CATALOG or Path(word).exists()):
        return False
    if name == "method":
        return word not in METHODS
    if str in {_HINTS[name], *get_args(_HINTS[name])}:
        return word in CATALOG or Path(word).is_dir()
    try:
        _converted(name, word)
    except ValueError:
        return True
    return False


def _help(given: Sequence[str]) -> NoReturn:
    """What there is to set, with what it is unless set."""
    try:
        default = _parse(given)
    except (ValueError, OSError):
        default = Recipe()
    tyro.cli(Recipe, default=default, args=["--help"], prog="longtail train", description=USAGE)
    raise SystemExit(0)


# From a command line to runs


def _asked_for(line: _Line) -> list[tuple[Recipe, RunFolder]]:
    """The runs that a command line describes, and their folders."""
    recipes, left_out = _recipes(line)
    if len(recipes) == 1:
        folders = [Path(line.out) if line.out else Path("runs") / recipes[0].label]
    else:
        folders = [Path(line.out or "runs") / _told_apart(recipe, recipes) for recipe in recipes]
    _check_apart(recipes, folders)
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
    for sentence in left_out:
        _say(sentence, Ranks(int(os.environ.get("RANK", "0"))))
    return runs


def _resumed(line: _Line) -> list[tuple[Recipe, RunFolder]]:
    """The runs that are to go on, with what is otherwise on this machine."""
    if not line.resume:
        raise ValueError("Expected a run folder after --resume, but got none.")
    other = [f"--{name.replace('_', '-')}" for name in line.settings if name not in _ELSEWHERE]
    other += [] if line.out is None else ["--out"]
    other += [] if line.source is None else [line.source]
    if other:
        raise ValueError(
            "Expected no more than run folders, --device, --root, --workers and --together with --resume, because a "
            f"run goes on with its own settings, but got {other[0]}."
        )
    several = [name for name, values in line.settings.items() if len(values) > 1]
    if several:
        raise ValueError(f"Expected one value after --{several[0]} with --resume, but got several.")
    here = {name: values[0] for name, values in line.settings.items()}
    folders = [_Resumed(path) for path in line.resume]
    _check_apart([folder.recipe() for folder in folders], [folder.path for folder in folders])
    return [(replace(folder.recipe(), **here), folder) for folder in folders]


class _Resumed(RunFolder):
    """A run that goes on, elsewhere perhaps: its record keeps the settings that it began with."""

    def begin(self, recipe: Recipe, device: torch.device, world: int) -> None:  # noqa: ARG002 - as it was begun
        """Write down what is to be run, and where."""
        super().begin(self.recipe(), device, world)


def _check_apart(recipes: Sequence[Recipe], folders: Sequence[Path]) -> None:
    """Two runs cannot be in one folder."""
    seen: dict[Path, Recipe] = {}
    for recipe, path in zip(recipes, folders, strict=True):
        before = seen.setdefault(path.absolute(), recipe)
        if before is recipe:
            continue
        if before == recipe:
            raise ValueError(f"Expected runs that differ, but got {path} twice.")
        raise ValueError(f"Expected a folder for each run, but two of them would go to {path}.")


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


def _parse(given: Sequence[str]) -> Recipe:
    """The recipe of a command line; of several, the first."""
    return _recipes(_read(given))[0][0]


def _recipes(line: _Line) -> tuple[list[Recipe], list[str]]:
    """A recipe for each choice among the values, and sentences that say what was left out of a file."""
    source = line.source
    written: dict[str, Any] = {}
    if source is not None:
        written = read_recipe(source) if source.endswith(".toml") else {"data": source}
    recipes: list[Recipe] = []
    left_out: dict[str, None] = {}  # each once
    for values in product(*line.settings.values()):
        chosen = dict(zip(line.settings, values, strict=True))
        unfit = _unfit(written, chosen)
        if unfit:
            told = ", ".join(f"`{name}`" for name in unfit)
            left_out[f"Left out {told} of {source}, which {chosen['method']} does not take."] = None
        recipes.append(_recipe({name: value for name, value in written.items() if name not in unfit}, chosen))
    return recipes, list(left_out)


def _recipe(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> Recipe:
    """A recipe: the data set's own, then a file's settings, then the flags."""
    settings = {"data": "cifar10-lt", "method": "cbs", **written, **chosen}
    data = settings["data"]
    small = data not in CATALOG and is_small(data)
    base = asdict(defaults(data, settings["method"], settings.get("imbalance"), small=small))
    return Recipe(**{**base, **settings})


def _unfit(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """The knobs of a file's method that the method of the command line does not take."""
    if chosen.get("method", written.get("method")) == written.get("method") or "method" not in written:
        return []
    old, new = find_method(written["method"]).knobs, find_method(chosen["method"]).knobs
    unfit = [name for name in old if name in written and name not in new]
    if "beta" in written and "beta" in new and "balance" in new and "balance" not in old:
        unfit += [] if chosen.get("balance", new["balance"].default) == "cbs" else ["beta"]
    return unfit


# Training


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
    """Train all members, and show how it goes to whoever looks."""
    if not fleet.members:
        return
    status = Status(fleet.members)
    watched = console.file.isatty() and not console.quiet
    with Live(status, console=console, transient=True, refresh_per_second=2) if watched else nullcontext():
        for member in fleet.steps():
            status.step(member)

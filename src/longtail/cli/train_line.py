"""The command line of ``longtail train``: words become recipes and run folders."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import tyro

from longtail._checks import nearest
from longtail._program import program
from longtail.cli.parsing import DEFAULT
from longtail.data import CATALOG
from longtail.methods import METHODS, find_method
from longtail.methods.params import parse_setting
from longtail.ranks import Ranks
from longtail.study.captions import some_of
from longtail.train.folder import RunFolder, check_same_folders
from longtail.train.loading import HELD_OUT, is_small, lacks_validation
from longtail.train.recipe import (
    Recipe,
    check_settings,
    defaults,
    read_recipe,
    setting_help,
    setting_types,
)

__all__ = ["Line", "asked_for", "parse", "read_line", "recipes_of", "resume_command", "resumed", "show_help", "unfit"]

_ABOUT = """Train a model and leave a run folder. Several values of a flag, as in `--beta 1.0 1.5 --seed 0 1 2`, are
several runs; `none` unsets what a file or the data set's recipe has set.

A run that was stopped goes on by `longtail train --resume RUN`; only --device, --workers, --root and --together may be
beside it.
"""

_OWN = {
    "out": ("DIR", "folder of one run, or where the folders of several go (default: runs)"),
    "together": ("N", "runs at a time (default: 12 small models on a GPU, else 1)"),
    "resume": ("RUN …", "folders of runs that are to go on"),
}
"""Flags that are no settings of a recipe, with what is expected after them and their help."""
_ELSEWHERE = ("device", "root", "workers")  # what another machine may have otherwise


@dataclass
class Line:
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


def read_line(given: Sequence[str]) -> Line:
    """The flags with their values, each value of the type that its field has."""
    line, rest = Line(), list(given)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            line.add_source(word)
            continue
        flag, attached, value = word.partition("=")
        name, on = _meant(flag)
        switch = name not in _OWN and setting_types()[name] is bool
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


def _put(line: Line, name: str, flag: str, values: list[str]) -> None:
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


_SWITCH = {"true": True, "false": False}


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def _meant(flag: str) -> tuple[str, bool]:
    """The field, or flag of our own, that is meant, and whether to switch it on; both - and _ join words."""
    name = flag.removeprefix("--").replace("-", "_")
    if flag.startswith("--"):
        if name in _OWN or name in setting_types():
            return name, True
        if setting_types().get(name.removeprefix("no_")) is bool:
            return name.removeprefix("no_"), False
    near = nearest(flag, (f"--{one.replace('_', '-')}" for one in (*_OWN, *setting_types())))
    raise ValueError(f"Expected a flag that `longtail train --help` shows, but got {flag}{near}.")


def _converted(name: str, text: str) -> Any:
    """A value as its field has it."""
    value = parse_setting(text, setting_types()[name])
    try:
        check_settings({name: (value,) if name == "milestones" else value}, "the command line")
    except ValueError as error:
        several = f"; several values have a space between them, as in --{name.replace('_', '-')} 1 2"
        raise ValueError(f"{str(error).removesuffix('.')}{several if ',' in text else ''}.") from None
    return value


def _is_source(name: str, word: str) -> bool:
    """Whether the last of a flag's values is meant to be the recipe or the data, as in `--method cbs photos`."""
    if word.endswith(".toml") or name in {"out", "together"}:
        return True
    if name in {"data", "root", "weights"} or not (word in CATALOG or Path(word).exists()):
        return False
    if name == "method":
        return word not in METHODS
    if str in {setting_types()[name], *get_args(setting_types()[name])}:
        return word in CATALOG or Path(word).is_dir()
    try:
        _converted(name, word)
    except ValueError:
        return True
    return False


def show_help(given: Sequence[str]) -> NoReturn:
    """What there is to set, with what it is unless set."""
    try:
        default = parse(given)
    except (ValueError, OSError):
        default = Recipe()
    values = default.settings()
    settings = [
        (name, Annotated[hint, DEFAULT, *([tyro.conf.arg(help=help_)] if help_ else [])], values.get(name))
        for name, hint in setting_types().items()
        for help_ in [setting_help(name)]
    ]
    own = [
        (name, Annotated[str | None, DEFAULT, tyro.conf.arg(metavar=metavar, help=told)], None)
        for name, (metavar, told) in _OWN.items()
    ]
    settings.append(("params", Annotated[Any, tyro.conf.Suppress], None))
    shown = make_dataclass("shown", [*settings, *own], bases=(Recipe,), frozen=True)  # its texts are Recipe's
    prog = "longtail train [RECIPE.toml | FOLDER | LIST]"
    tyro.cli(shown, args=["--help"], prog=prog, description=_ABOUT, config=(tyro.conf.DisallowNone,))
    raise SystemExit(0)


# From a command line to runs


def asked_for(line: Line, ranks: Ranks) -> list[tuple[Recipe, RunFolder]]:
    """The runs that a command line describes, and their folders."""
    recipes, left_out = recipes_of(line)
    if len(recipes) == 1:
        paths = [Path(line.out) if line.out else Path("runs") / recipes[0].label]
    else:
        paths = [Path(line.out or "runs") / _told_apart(recipe, recipes) for recipe in recipes]
    _check_apart(recipes, paths)
    folders = [RunFolder(path) for path in paths]
    check_same_folders(folders, ranks)
    for recipe, folder in zip(recipes, folders, strict=True):
        folder.check(recipe)
        if folder.begun and not folder.done and len(recipes) == 1:
            on = resume_command([folder], ranks)
            raise ValueError(f"Expected a new run, but {folder.path} holds one; {on} goes on with it.")
    if ranks.first:
        sys.stderr.write("".join(f"longtail: {sentence}\n" for sentence in left_out))
    return list(zip(recipes, folders, strict=True))


def resumed(line: Line, ranks: Ranks) -> list[tuple[Recipe, RunFolder]]:
    """The runs that are to go on, with what is otherwise on this machine."""
    if not line.resume:
        raise ValueError(
            "Expected run folders after --resume, but got none. The command that began several runs goes on with them "
            "as it stands, without --resume."
        )
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
    folders = [RunFolder(path) for path in line.resume]
    for folder in folders:
        inside = [] if folder.begun else [str(file.parent) for file in sorted(folder.path.glob("*/recipe.toml"))]
        if inside:
            raise ValueError(
                f"Expected a run in {folder.path}, but it has none of its own; those below it are {some_of(inside)}."
            )
    check_same_folders(folders, ranks)
    recipes = [folder.recipe() for folder in folders]
    _check_apart(recipes, [folder.path for folder in folders])
    return [(recipe.changed(**here), folder) for recipe, folder in zip(recipes, folders, strict=True)]


def resume_command(folders: Sequence[RunFolder], ranks: Ranks) -> str:
    """What goes on with runs, as part of a sentence."""
    begin, rest = program(), f"train --resume {' '.join(str(folder.path) for folder in folders)}"
    if ranks.world == 1:
        return f"`{begin} {rest}`"
    file = begin.removeprefix("python ") if begin.startswith("python ") else f"-m {begin}"
    return f"`torchrun … {file} {rest}`, with torchrun's flags as they were,"


def _check_apart(recipes: Sequence[Recipe], folders: Sequence[Path]) -> None:
    """Two runs cannot be in one folder."""
    seen: dict[Path, Recipe] = {}
    for recipe, path in zip(recipes, folders, strict=True):
        before = seen.setdefault(path.resolve(), recipe)
        if before is recipe:
            continue
        if before == recipe:
            raise ValueError(f"Expected runs that differ, but got {path} twice.")
        raise ValueError(f"Expected a folder for each run, but two of them would go to {path}.")


def _told_apart(recipe: Recipe, recipes: Sequence[Recipe]) -> str:
    """A run's name: its label, and what else differs among the runs that would have the same."""
    namesakes = [one for one in recipes if one.label == recipe.label]
    settings = [one.settings() for one in namesakes]
    differing = [name for name in setting_types() if len({one.get(name) for one in settings}) > 1]
    more = [f"{name}{recipe.settings()[name]}".replace("/", "_") for name in differing if name != "data"]
    return "-".join([recipe.label, *more])


def parse(given: Sequence[str]) -> Recipe:
    """The recipe of a command line; of several, the first."""
    return recipes_of(read_line(given))[0][0]


def recipes_of(line: Line) -> tuple[list[Recipe], list[str]]:
    """A recipe for each choice among the values, and sentences that say what was left out of a file, or held out."""
    source = line.source
    written: dict[str, Any] = {}
    if source is not None:
        written = read_recipe(source) if source.endswith(".toml") else {"data": source}
    recipes: list[Recipe] = []
    left_out: dict[str, None] = {}  # each once
    for values in product(*line.settings.values()):
        chosen = dict(zip(line.settings, values, strict=True))
        dropped = unfit(written, chosen)
        if dropped:
            told = ", ".join(f"`{name}`" for name in dropped)
            left_out[f"Left out {told} of {source}, which {chosen['method']} does not take."] = None
        left = {name: value for name, value in written.items() if name not in dropped}
        if any(name in written and chosen.get(name, written[name]) != written[name] for name in ("data", "method")):
            left = {name: value for name, value in left.items() if value is not None}  # open again
        recipe = _recipe(left, chosen)
        if "validation" not in {**left, **chosen} and lacks_validation(recipe):
            recipe = recipe.changed(validation=HELD_OUT)
            told = f"{recipe.data}'s training data to choose `tau` of {recipe.method} on"
            left_out[f"Held out {HELD_OUT:.0%} of {told}; --validation or --tau says otherwise."] = None
        recipes.append(recipe)
    return recipes, list(left_out)


def _recipe(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> Recipe:
    """A recipe: the data set's own, then a file's settings, then the flags."""
    settings = {"data": "cifar10-lt", "method": "cbs", **written, **chosen}
    data = settings["data"]
    if data not in CATALOG and not Path(data).exists():
        near = nearest(data, CATALOG)
        raise ValueError(f"Expected a data set that `longtail data list` shows, or a path, but got {data!r}{near}.")
    small = data not in CATALOG and is_small(data)
    return defaults(data, settings["method"], settings.get("imbalance"), small=small).changed(**settings)


def unfit(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """The parameters of a file's method that the method of the command line does not have."""
    if chosen.get("method", written.get("method")) == written.get("method") or "method" not in written:
        return []
    old, new = find_method(written["method"]).parameters, find_method(chosen["method"]).parameters
    return [name for name in old if written.get(name) is not None and name not in new]


# Training

"""``longtail train``: train one run, several together, or resume them."""

import argparse
import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from longtail._io import read_json
from longtail._program import count, printable, program, sentence_of, some_of
from longtail._registry import load_plugins
from longtail.cli import check_interrupted
from longtail.cli.parsing import TOGETHER_HELP, Parser, add_settings, positive_integer, read_settings
from longtail.cli.show import Phases, SafeConsole, TrainingView, print_line, show_result
from longtail.methods import METHODS, find_method
from longtail.train.dataset import data_notes
from longtail.train.folder import RunFolder
from longtail.train.launch import FailedRunsError, describe_fit, make_recipe, resume, run_folders, train
from longtail.train.recipe import Recipe, name_in_label, read_recipe, settings_of_data
from longtail.train.trainer import NotFiniteError, StoppedError

_ABOUT = """Train a model and write a run folder. Several values of a flag, as in
`--beta 1.0 1.5 --seed 0 1 2`, train several runs. `none` unsets a setting of a
file or of the data set's recipe; `--no-nesterov` switches a setting off.
Finished runs are skipped; after a stop, the same command continues.

`longtail train --resume RUN` resumes a stopped run. --device, --workers, --root,
--together and settings of logs and checkpoints can be changed with it."""

_NO_DATA = "\n\nDefaults that depend on the data are shown by `longtail train DATA --help`."
_NAMED = 5  # skipped files that are named
_DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def run(words: Sequence[str]) -> int:
    """Parse, train, print."""
    load_plugins()
    parser = _parser(words)
    given = parser.read(words)
    of_file = given.source is not None and given.source.endswith(".toml")  # its settings are no flags
    with nullcontext() if of_file else parser.errors_name_flags():
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    settings = read_settings(given)
    _check_order(given, settings)
    if given.resume is None:
        with Phases(SafeConsole(stderr=True, quiet=not _is_first())):
            recipes, notes = make_recipes(given.source, settings, given.out or "runs")
        folders = run_folders(recipes, given.out)
        start = partial(train, recipes, given.out)
        notes += data_notes(recipe for recipe, folder in zip(recipes, folders, strict=True) if not folder.done)
        for note in notes:
            _warn(note)
        if _is_first():
            for line in dict.fromkeys(filter(None, map(describe_fit, recipes))):
                print_line(line)
    else:
        folders = [RunFolder(path) for path in given.resume]
        start = partial(resume, folders, **_settings_here(given, settings))
    waiting = [folder for folder in folders if not folder.done]
    check_interrupted()
    code = _train(partial(start, together=given.together), waiting)
    if _is_first() and code <= 1:
        for folder in folders:
            if folder not in waiting:
                again = "; choose another folder with --out" if given.resume is None and len(folders) == 1 else ""
                sys.stderr.write(printable(f"{folder.path} is finished{again}.\n"))
            if folder.done:
                show_result(folder)
        for folder in waiting:
            _report_skipped(folder)
    if _world() > 1:
        _exit(code)
    return code


def _train(start: Callable[..., list[RunFolder]], waiting: Sequence[RunFolder]) -> int:
    """Train, print what went wrong, and return the exit code."""
    try:
        with TrainingView(SafeConsole(stderr=True, quiet=not _is_first())) as view:
            start(on_step=view)
        return 0
    except FailedRunsError as error:
        _report_failures(error.failures, waiting)
    except NotFiniteError as error:
        _warn(str(error))
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _warn_disk_full(error, waiting)
    except StoppedError as stopped:
        for path, why in stopped.failed.items():
            _warn(why if path in why else f"{path} failed: {why}")
        _warn(f"Stopped; resume with {_how_to_resume(waiting)}.")
        return 128 + (stopped.signal or signal.SIGTERM)  # another rank may have got the signal
    return 1


def _parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser; ``--help`` shows the defaults of the data set and method that are given with it."""
    defaults_, of = _shown_defaults(words) if {"-h", "--help"} & set(words) else ({}, "")
    parser = Parser("longtail train", _ABOUT + of, usage="[DATA] [--FLAG VALUE …]")
    parser.add_argument(
        "source",
        nargs="?",
        metavar="DATA",
        help="a recipe (.toml), a folder of class folders, a list of images, or features",
    )
    parser.flag("--out", "folder of the run, or of several runs (default: runs)", metavar="DIR")
    add_settings(parser, defaults_, common=True)
    parser.flag("--resume", "folders of runs to resume", nargs="+", metavar="RUN")
    parser.flag("--together", TOGETHER_HELP, type=positive_integer, metavar="N")
    add_settings(parser, defaults_)
    return parser


def _shown_defaults(words: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the defaults that the help shows, and a sentence that says of what; no image is decoded for it."""
    given = _parser().read(word for word in words if word not in {"-h", "--help"})
    settings = {name: values[0] for name, values in read_settings(given).items()}
    if given.source is None and "data" not in settings:
        return Recipe().settings() | dict.fromkeys(settings_of_data()), _NO_DATA
    try:
        one_each = {name: [value] for name, value in settings.items()}
        (recipe,), _ = make_recipes(given.source, one_each, quick=True)
    except (ValueError, OSError, ImportError):  # the command itself will say what is wrong
        return Recipe().settings() | dict.fromkeys(settings_of_data()), _NO_DATA
    shown = name_in_label(recipe.data)
    return recipe.settings(), f"\n\nDefaults are those of {recipe.method} on {shown}."


# From settings to recipes


def _check_order(given: argparse.Namespace, settings: Mapping[str, list[Any]]) -> None:
    if given.source is not None and "data" in settings and not given.source.endswith(".toml"):
        raise ValueError(f"Expected one data set, but got {given.source} and --data {settings['data'][0]}.")
    for name in ("method", "model", "head", "device"):
        *others, last = settings.get(name, [None])
        if others and last is not None and last not in METHODS and Path(last).exists():
            raise ValueError(f"Expected data before the flags, but got {last} after --{name}.")


def read_recipes(words: Sequence[str]) -> tuple[list[Recipe], list[str]]:
    """Return the recipes of a command line, and notes about what was changed."""
    given = _parser().read(words)
    return make_recipes(given.source, read_settings(given))


def make_recipes(
    source: str | None, settings: Mapping[str, list[Any]], out: str | None = None, *, quick: bool = False
) -> tuple[list[Recipe], list[str]]:
    """Return a recipe for each combination of values, and notes about what was changed.

    Args:
        source: a recipe file, the user's data, or nothing.
        settings: the values of each setting.
        out: the folder of the runs, where images may be cached.
        quick: look only at some of the user's images.
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
        recipe = make_recipe({**kept, **chosen}, out, quick=quick)
        if "validation" not in {**kept, **chosen} and recipe.usual_validation:
            what = f"{recipe.validation:.0%} of the training data of {recipe.data} to choose `tau` of {recipe.method}"
            notes[f"Holding out {what}; change it with --validation or --tau."] = None
        recipes.append(recipe)
    return recipes, list(notes)


def _unused_params(written: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a file's method that the method of the command line does not have."""
    if chosen.get("method", written.get("method")) == written.get("method") or "method" not in written:
        return []
    old, new = find_method(written["method"]).parameters, find_method(chosen["method"]).parameters
    return [name for name in old if written.get(name) is not None and name not in new]


def _settings_here(given: argparse.Namespace, settings: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the settings that are changed on resume; :func:`resume` refuses those that say what is trained."""
    for flag, value in {"--out": given.out, "data": given.source}.items():
        if value is not None:
            raise ValueError(f"Expected no {flag} with --resume, because a run keeps its settings, but got {value}.")
    several = [name for name, values in settings.items() if len(values) > 1]
    if several:
        raise ValueError(f"Expected one value after --{several[0]} with --resume, but got several.")
    return {name: values[0] for name, values in settings.items()}


# What is printed


def _report_failures(failures: Sequence[tuple[RunFolder, Exception]], waiting: Sequence[RunFolder]) -> None:
    """Print one sentence per failed run; an unexpected error is raised."""
    full = [error for _, error in failures if isinstance(error, OSError) and error.errno in _DISK_FULL]
    if full:
        _warn_disk_full(full[0], waiting)
    for folder, error in failures:
        if error not in full:
            sentence = sentence_of(error)
            _warn(sentence if str(folder.path) in sentence else f"{folder.path} failed: {sentence}")
    for _, error in failures:
        if not isinstance(error, NotFiniteError | ValueError | OSError):
            raise error


def _warn_disk_full(error: OSError, waiting: Sequence[RunFolder]) -> None:
    resumed = _how_to_resume(waiting)
    _warn(f"Expected free disk space to save the run, but got: {error.strerror}; free some and resume with {resumed}.")


def _how_to_resume(waiting: Sequence[RunFolder]) -> str:
    left = [folder for folder in waiting if not folder.done]
    if not left or not all(folder.begun for folder in left) or _world() > 1:
        return "the same command"
    return f"`{program()} train --resume {shlex.join(str(folder.path) for folder in left)}`"


def _report_skipped(folder: RunFolder) -> None:
    skipped = sorted(read_json(folder.unreadable_file, {str: str})) if folder.unreadable_file.exists() else []
    if skipped:
        images, named = count(len(skipped), "image"), some_of(skipped, _NAMED)
        _warn(f"Skipped {images} that could not be read ({named}); see {folder.unreadable_file}.")


def _warn(sentence: str) -> None:
    if _is_first():
        sys.stderr.write(printable(f"longtail: {sentence}\n"))


# Several processes


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _exit(code: int) -> NoReturn:
    """Leave without cleaning up: after DDP, torch keeps gloo threads that may abort an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Training of one run or many in one call: what `longtail train` does."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longtail._claims import LOCK_FILE
from longtail._ranks import Ranks
from longtail.data import CATALOG, DataSet
from longtail.models import check_name
from longtail.train.cache import cache_folder
from longtail.train.fitting import describe_settings
from longtail.train.fleet import Fleet, stoppable
from longtail.train.folder import RunFolder, check_same_folders, lock_folders
from longtail.train.own import listed_images, measure_path
from longtail.train.recipe import OPENING, Recipe, defaults, pick_device, setting_types
from longtail.train.trainer import StoppedError, Trainer

OnStep = Callable[[Fleet, Trainer], None]
OnLog = Callable[[RunFolder, dict[str, Any]], None]


class FailedRunsError(RuntimeError):
    """Some of several runs failed; the others are finished."""

    def __init__(self, failures: Sequence[tuple[RunFolder, Exception]]) -> None:
        super().__init__("; ".join(f"{folder.path} failed: {error}" for folder, error in failures))
        self.failures = list(failures)
        """The folders of the failed runs, and their errors."""


def make_recipe(settings: Mapping[str, Any], out: Path | str | None = None, *, quick: bool = False) -> Recipe:
    """The recipe of a data set, changed by settings; ``data`` may be the path of your own images.

    Args:
        settings: values by name.
        out: the folder of the runs; the pixels of small images are cached there.
        quick: read only some of the images, as for a help text.

    Example:
        >>> make_recipe({"data": "digits-lt", "method": "cbs", "epochs": 3}).epochs
        3
    """
    given = {"data": Recipe.data, "method": Recipe.method, **settings}
    if given.get("model") is not None:
        check_name(given["model"])  # before images are read
    if given.get("weights") is not None and not Path(given["weights"]).exists():
        raise FileNotFoundError(f"Expected weights in {given['weights']}, but there is no such file.")
    opening = {name: given[name] for name in OPENING if name in given}
    cache = None if out is None or given.get("cache") is False else cache_folder(out)
    images = None if given["data"] in CATALOG else measure_path(given["data"], cache, quick=quick, **opening)
    made = defaults(given["data"], given["method"], given.get("imbalance"), images=images, given=given, **opening)
    return made.changed(**given)


_MANY = 100_000  # images seen in all epochs, beyond which a CPU may need hours


def describe_fit(recipe: Recipe) -> str:
    """One line about the data and the settings that fit it; nothing for a data set by name with a recipe of its own."""
    own = recipe.data not in CATALOG
    images = measure_path(recipe.data, **recipe.opening) if own else listed_images(recipe.data)
    if images is None:
        return ""
    text, seen = describe_settings(images, recipe.settings()), images.training(recipe.settings()) * recipe.epochs
    if seen < _MANY or images.features or recipe.train == "head" or pick_device(recipe.device).type != "cpu":
        return text
    return (
        f"{text} Without a GPU this may take hours ({seen:,} images seen): `--recipe probe` with `--pretrained` or "
        "`--weights FILE` takes minutes, and `longtail study --dry-run` estimates the time."
    )


def train(
    recipes: Recipe | Sequence[Recipe],
    out: Path | str | None = None,
    *,
    dataset: DataSet | None = None,
    together: int | None = None,
    on_step: OnStep | None = None,
    on_log: OnLog | None = None,
) -> list[RunFolder]:
    """Train runs and return their folders; this is what `longtail train` calls.

    Finished runs are skipped, and stopped runs continue. Small models are trained together on a GPU. Under torchrun,
    all processes train each run together. A stop signal saves the runs and raises :class:`StoppedError`; a run that
    fails does not stop the others.

    Args:
        recipes: one recipe, or one per run.
        out: the folder of a single run, or the parent of several; default: ``runs``, with a folder per run.
        dataset: what to train on; default: the data set that each recipe names.
        together: how many runs to train at a time; default: as many as :class:`Fleet` takes.
        on_step: called after every step with the fleet and the trainer that took it.
        on_log: called with the run folder and every line of its log.

    Raises:
        FailedRunsError: some of several runs failed. The error of a single run is raised as it is.

    Example:
        >>> recipe = defaults("digits-lt", "cbs").changed(epochs=1, device="cpu")
        >>> folders = train([recipe.changed(seed=seed) for seed in range(3)], "runs")  # doctest: +SKIP
        >>> folders[0].result()["splits"]["test"]["recall"]["all"]  # doctest: +SKIP
    """
    several = [recipes] if isinstance(recipes, Recipe) else list(recipes)
    if len(several) > 1 and any(one.train == "head" and one.cache for one in several):
        cache_folder(out).mkdir(parents=True, exist_ok=True)  # they share features
    return _train(run_folders(several, out), lambda: several, together, on_step, on_log, dataset=dataset)


def resume(
    folders: Sequence[RunFolder | Path | str],
    *,
    together: int | None = None,
    on_step: OnStep | None = None,
    on_log: OnLog | None = None,
    **settings: Any,
) -> list[RunFolder]:
    """Finish runs with the recipes in their folders; arguments as for :func:`train`.

    ``settings`` may change only how a run is executed and kept: those in
    :data:`longtail.train.recipe.HOUSEKEEPING`.
    """
    found = [RunFolder(folder) for folder in folders]

    def recipes() -> list[Recipe]:
        return [folder.recipe().changed(**settings) for folder in found]

    return _train(found, recipes, together, on_step, on_log)


def run_folders(recipes: Sequence[Recipe], out: Path | str | None = None) -> list[RunFolder]:
    """The folders of runs: ``out`` itself for a single run, else one in ``out`` for each, named by what differs."""
    if len(recipes) == 1 and out is not None:
        return [RunFolder(out)]
    return [RunFolder(Path(out or "runs") / _distinct_label(recipe, recipes)) for recipe in recipes]


def _distinct_label(recipe: Recipe, recipes: Sequence[Recipe]) -> str:
    """The label of a run, with the settings that differ among runs of the same label."""
    settings = [one.settings() for one in recipes if one.label == recipe.label]
    differing = [name for name in setting_types() if len({one.get(name) for one in settings}) > 1]
    more = [f"{name}{recipe.settings()[name]}".replace("/", "_") for name in differing if name != "data"]
    return "-".join([recipe.label, *more])


def _train(
    folders: list[RunFolder],
    read_recipes: Callable[[], list[Recipe]],
    together: int | None,
    on_step: OnStep | None,
    on_log: OnLog | None,
    *,
    dataset: DataSet | None = None,
) -> list[RunFolder]:
    members: list[Trainer] = []
    with ExitStack() as stack:
        ranks = stack.enter_context(_process_group())
        check_same_folders(folders, ranks)  # first: an error of one process alone would leave the others waiting
        runs = list(zip(read_recipes(), folders, strict=True))
        for recipe, folder in runs:
            folder.check(recipe)
            check_name(recipe.model)
        waiting = [(recipe, folder) for recipe, folder in runs if not folder.done]
        stack.enter_context(_removed_if_nothing_began([folder for _, folder in waiting if not folder.path.exists()]))
        for _, folder in waiting:  # raise before anything is trained; a run is locked again while it is trained
            with lock_folders([folder], ranks):
                pass
        with stoppable(members) as received:
            local = int(os.environ.get("LOCAL_RANK", "0"))
            members += [
                Trainer(
                    recipe,
                    folder,
                    ranks=ranks,
                    device=pick_device(recipe.device, local),
                    dataset=dataset,
                    on_log=None if on_log is None else partial(on_log, folder),
                )
                for recipe, folder in waiting
            ]
            if received:  # the exception was lost, for example inside an import
                raise StoppedError("Stopped before the first step.")
            fleet = Fleet(members, together)
            try:
                for member in fleet.steps():
                    if on_step is not None:
                        on_step(fleet, member)
            except StoppedError as stopped:
                stopped.failed |= {str(member.folder.path): str(error) for member, error in fleet.failures}
                raise
        if fleet.failures and len(runs) == 1:
            raise fleet.failures[0][1]
    if fleet.failures:
        raise FailedRunsError([(member.folder, error) for member, error in fleet.failures])
    return folders


@contextmanager
def _removed_if_nothing_began(folders: Sequence[RunFolder]) -> Iterator[None]:
    """Remove folders that were made for runs with wrong settings or without their data."""
    try:
        yield
    except (ValueError, ImportError, FileNotFoundError):
        for folder in (one for run in folders if not run.begun for one in (*run.pilots, run)):
            with suppress(OSError):  # it holds something else, or another process removed it
                (folder.path / LOCK_FILE).unlink(missing_ok=True)
                folder.path.rmdir()
        raise


@contextmanager
def _process_group() -> Iterator[Ranks]:
    """The processes that torchrun started, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or torch.distributed.is_initialized():
        yield Ranks.of_this_process()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks.of_this_process()
    finally:
        torch.distributed.destroy_process_group()

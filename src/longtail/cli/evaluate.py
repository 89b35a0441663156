"""``longtail evaluate``: the metrics of a finished run, recomputed, after a post-hoc correction, or on new data."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail._io import new_file, write_json
from longtail._registry import load_plugins
from longtail.cli.parsing import Parser, add_opening, add_reading, check_folder_of
from longtail.cli.show import print_line, print_unreadable, show_measures
from longtail.data import CATALOG, DataSet, FileImages, load
from longtail.inference import Evaluation, evaluate_on
from longtail.train.folder import RunFolder
from longtail.train.own import open_own
from longtail.train.recipe import OPENING, Recipe, pick_device
from longtail.train.stored import evaluate_run


def run(words: Sequence[str]) -> int:
    """Parse, compute, print."""
    parser = Parser(
        "longtail evaluate",
        "Recompute all metrics of a finished run from its files, or compute them on new labelled data. Nothing is\n"
        "trained and the run is not changed.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.flag(
        "--data",
        "new data: a folder of class folders, a list of images, features, or a data set by name",
        metavar="DATA",
    )
    parser.flag("--part", "its split (default: test, or all images if it has no splits)", metavar="NAME")
    add_opening(parser)
    parser.flag(
        "--posthoc",
        "tau=0.7 is tau-normalisation, adjust=1 is logit adjustment; without a number the strength is chosen on the "
        "run's validation data",
        metavar="STEP",
    )
    parser.flag("--out", "also write the metrics to this file", type=Path, metavar="FILE.json")
    parser.flag(
        "--predictions",
        "write logits, labels and paths of --data, as `longtail diagnose` reads them",
        type=Path,
        metavar="FILE.npz",
    )
    add_reading(parser)
    given = parser.read(words)
    load_plugins()
    if given.out is not None:
        _check_out(given.out)
    if given.data is None:
        for name in ("part", "predictions", *OPENING):
            if getattr(given, name) != getattr(Recipe, name, None):
                raise ValueError(f"Expected --data with --{name.replace('_', '-')}, but got none.")
    with parser.errors_name_flags():
        result = evaluate_run(given.run, given.posthoc) if given.data is None else _on_new_data(given)
    part = "" if result.get("part", "all") == "all" else f", {result['part']}"
    what = f"{result['method']} on {result['data']}{part}"
    more = f" (trained on {result['trained_on']})" if "trained_on" in result else ""
    print_line(f"{given.run}: {what}{more}", style="bold")
    show_measures(result)
    _explain_step(result)
    if given.out is not None:
        write_json(given.out, result)
        print_line(f"Metrics: {given.out}")
    if given.predictions is not None:
        print_line(f"Predictions: {given.predictions}")
    return 0


def _on_new_data(given: argparse.Namespace) -> dict[str, Any]:
    if given.predictions is not None:
        check_folder_of("--predictions", given.predictions)
        if given.predictions.suffix != ".npz":
            raise ValueError(f"Expected --predictions to end in .npz, but got {given.predictions}.")
    skipped: dict[str, str] = {}
    found = evaluate_on(
        given.run,
        _open(given, RunFolder(given.run).recipe()),
        given.part,
        posthoc=given.posthoc,
        device=pick_device(given.device),
        batch_size=given.batch_size,
        workers=given.workers,
        unreadable=skipped if given.bad_images == "skip" else None,
    )
    print_unreadable(skipped, len(found.split) + len(skipped))
    if given.predictions is not None:
        _write(given.predictions, found)
    return found.result


def _open(given: argparse.Namespace, recipe: Recipe) -> DataSet:
    if given.data in CATALOG:
        return load(given.data, recipe.root)
    found = open_own(given.data, **{name: getattr(given, name) for name in OPENING})
    if given.part is None and found.test is None and Path(given.data).resolve() == Path(recipe.data).resolve():
        raise ValueError(
            f"Expected --data to be new, but {given.data} is what the run was trained on; `--part train` evaluates it."
        )
    return found


def _write(path: Path, found: Evaluation) -> None:
    images, classes = found.split.images, found.result["classes"]
    arrays = {"labels": found.split.labels.numpy(), "logits": found.logits.numpy(), "classes": np.array(classes)}
    if isinstance(images, FileImages):
        arrays["paths"] = np.array([str(images.path(place)) for place in range(len(images))])
    with new_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _explain_step(result: dict[str, Any]) -> None:
    """Print how the strength of a post-hoc step was chosen, and what could not be measured."""
    chosen = result["posthoc_chosen_on_val"]
    if chosen:
        step = result["posthoc"]
        best = f"{100 * chosen[step]:.2f}"
        line = f"{step} was chosen on validation data: the best recall of {len(chosen)} strengths, {best}"
        if step == list(chosen)[-1]:
            line += f"; it is the largest tried, so a larger one may be better: --posthoc {step.split('=')[0]}=…"
        print_line(line)
    if result.get("without_logits"):
        print_line(f"not measured, because their logits were not stored: {', '.join(result['without_logits'])}")


def _check_out(out: Path) -> None:
    if out.suffix != ".json":
        raise ValueError(f"Expected --out to end in .json, but got {out}.")
    check_folder_of("--out", out)
    if RunFolder(out.parent).begun and out.name in {"result.json", "environment.json"}:
        raise ValueError(f"Expected --out not to overwrite a file of a run, but got {out}.")

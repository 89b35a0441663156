"""Run folders kept small: what a table needs, without weights, predictions and checkpoints."""

from dataclasses import replace
from pathlib import Path

from longtail._io import write_text
from longtail.study.runs import SEARCH_FILE
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe, write_recipe
from reproduction.balanced import BALANCED_FILE
from reproduction.redrawn import REDRAWN_FILE
from reproduction.untrained import UNTRAINED_FILE

__all__ = ["KEPT", "keep"]

KEPT = ("environment.json", "log.jsonl", BALANCED_FILE, REDRAWN_FILE, UNTRAINED_FILE, "result.json")
"""Files of a run that are kept beside its recipe; the result, which says that the run is done, comes last."""


def keep(source: Path, target: Path) -> int:
    """Copy the small files of all finished runs below a folder, and of its searches for beta.

    The recipe's data folder becomes the usual one again, since where data lay does not matter to anybody else. Runs on
    folds, of which there are many, are kept without their logs. What is kept counts as done where it is copied back.
    Where another run was kept under the same name, nothing of that one stays.

    Returns:
        how many runs were copied.
    """
    results = sorted(source.rglob("result.json")) if source.is_dir() else []
    for result in results:
        folder = target / result.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(folder, result)
        recipe = RunFolder(result.parent).recipe()
        if recipe.root == Recipe().root:
            _copy(result.parent / "recipe.toml", folder)
        else:
            write_text(folder / "recipe.toml", write_recipe(replace(recipe, root=Recipe().root)))
        for name in KEPT:
            if not (recipe.folds and name == "log.jsonl"):
                _copy(result.parent / name, folder)
    for search in sorted(source.rglob(SEARCH_FILE)) if results else []:
        (target / search.parent.relative_to(source)).mkdir(parents=True, exist_ok=True)
        _copy(search, target / search.parent.relative_to(source))
    return len(results)


def _make_room(folder: Path, result: Path) -> None:
    """Remove the files of another run, one with another result; what a model was asked since stays with its run."""
    kept = folder / result.name
    if kept.exists() and kept.read_bytes() != result.read_bytes():
        for file in folder.iterdir():
            if file.is_file():
                file.unlink()


def _copy(file: Path, folder: Path) -> None:
    if file.exists():
        write_text(folder / file.name, file.read_text(encoding="utf-8"))

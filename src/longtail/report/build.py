"""A report from folders of finished runs. It reads files only: no model is loaded or trained."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail._io import read_json
from longtail._program import count, program, some_of
from longtail.methods import METHODS
from longtail.models import is_feature_model
from longtail.report.class_results import ClassResults, count_predictions
from longtail.report.data_results import (
    DataResults,
    comparisons,
    facts,
    headline_cards,
    limits,
    mean_per_class,
    split_by_data,
)
from longtail.report.drawings import (
    beta_drawing,
    curve_drawings,
    curves_caption,
    measured_beta_drawings,
    method_drawings,
)
from longtail.report.mistakes import images_of_mistakes, read_predicted
from longtail.report.page import Column, Grid, Report, grid_from_table, slug
from longtail.study.captions import Recorded, recorded_for
from longtail.study.comparisons import check_reference
from longtail.study.figures.style import Drawing
from longtail.study.record import Choice, read_search
from longtail.study.runs import SEARCH_FILE, Cell, Run, group_runs, method_title, one_cell, read_runs
from longtail.study.tables import measures_table, recall_table
from longtail.train.folder import RunFolder
from longtail.train.recipe import HOUSEKEEPING
from longtail.train.stored import read_statistics

_Search = tuple[dict[str, Any], list[Cell]]
"""The record of a search for beta, and its cells, each with another beta."""


def report(
    *folders: Path | str, runs: Sequence[Run] | None = None, reference: str | None = None, command: str = ""
) -> Report:
    """Return the report of all finished runs in folders and below them.

    Args:
        folders: any folders with runs; the record of ``longtail study`` is used if there is one.
        runs: the runs to report on (default: all in the folders).
        reference: the method that others are tested against (default: that of the study, or Balanced Softmax, or
            softmax).
        command: the command that makes the report, for its last section.

    Example:
        >>> from longtail.report import report
        >>> report("runs/demo").write("report.html")  # doctest: +SKIP
    """
    runs = read_runs(*folders) if runs is None else runs
    all_runs = read_runs(*folders, searches=True)
    searches = _searches(folders, all_runs)
    if not runs and not searches:
        raise ValueError(f"Expected finished runs in {', '.join(map(str, folders))}, but there are none.")
    record, cells = recorded_for(folders, runs), group_runs(runs)
    if reference is not None:
        check_reference(reference, cells)
        record = replace(record, references={run.path: [reference] for run in runs})
    all_results = split_by_data(cells, record)
    drawings: dict[str, Drawing] = {}
    content: dict[str, Any] = {
        **_heading(all_results, runs or all_runs),
        "results": [_results_content(one, f"d{place}", drawings) for place, one in enumerate(all_results)],
        "limits": limits(all_results, record, _unfinished(folders, record)) if all_results else [],
        "searches": [_search_content(one, drawings) for one in searches],
        "commands_of_runs": _commands(all_results, searches, record, command),
        "settings_of_runs": {
            f"Settings of {one.name}": settings_grid(one, f"settings-{place}") for place, one in enumerate(all_results)
        },
    }
    versions = versions_grid(runs or all_runs)
    if versions is not None:
        content["settings_of_runs"]["Machine and versions"] = versions
    return Report("report.html", content, drawings)


def _heading(all_results: Sequence[DataResults], runs: Sequence[Run]) -> dict[str, str]:
    data = list(dict.fromkeys([*(one.cells[0].data for one in all_results), *(run.data for run in runs)]))
    titles = list(dict.fromkeys(method_title(cell.method) for one in all_results for cell in one.cells))
    methods = f"{len(titles)} methods" if len(titles) > 1 else titles[0] if titles else "Search for β"
    subtitle = f"{count(len(runs), 'run')}. Recall of a class is the share of its samples that are recognised; "
    subtitle += "recall of a group, or over all classes, is the mean over its classes."
    names = [Path(name).name or name for name in data]  # of own data, without the folders above
    return {"title": f"{methods} on {some_of(names)}", "subtitle": subtitle}


def _add(drawings: dict[str, Drawing], new: Sequence[Drawing], prefix: str) -> list[str]:
    """Add figures under unique names, and return the names."""
    names = []
    for drawing in new:
        name = f"{slug(prefix)}-{drawing.name}"
        while name in drawings:
            name += "-2"
        drawings[name] = drawing
        names.append(name)
    return names


def _results_content(results: DataResults, prefix: str, drawings: dict[str, Drawing]) -> dict[str, Any]:
    """The content of the sections about one data set."""
    record, selected = results.record, results.record.selected(results.cells)
    recalls = recall_table(results.cells, reference=record.reference, selected=selected)
    measures = measures_table(results.cells, selected=selected, about=False)
    measures = replace(measures, caption=measures.caption + results.warning())
    betas = _several_betas(results)
    figures = [*method_drawings(results), *([beta_drawing(betas, selected=record.selected(betas))] if betas else [])]
    figures += measured_beta_drawings(results)
    classes = _class_results(results)
    heat_map = None if classes is None else classes.confusion()
    return {
        "name": results.name,
        "cards": headline_cards(results),
        "facts": facts(results),
        "decision": str(results.decision),
        "tests": comparisons(results),
        "recall_grid": grid_from_table(recalls, f"{prefix}-recall"),
        "measures_grid": grid_from_table(measures, f"{prefix}-measures"),
        "figures": _add(drawings, sorted(figures, key=lambda one: one.wide), results.name),
        "curves": _add(drawings, curve_drawings(results), results.name),
        "curves_caption": curves_caption(results) + results.warning(),
        "classes": classes,
        "confusion": _add(drawings, [] if heat_map is None else [heat_map], results.name),
    }


def _several_betas(results: DataResults) -> list[Cell]:
    """Cells of one method with three betas or more."""
    found: dict[str, dict[float, Cell]] = {}
    for cell in results.cells:
        if cell.beta is not None:
            found.setdefault(cell.method, {}).setdefault(cell.beta, cell)
    return next((list(betas.values()) for betas in found.values() if len(betas) > 2), [])


def _class_results(results: DataResults) -> ClassResults | None:
    """The classes under the main methods, and the errors of the best; ``None`` if recall per class is unknown."""
    best, split, on = results.best, results.split, results.on
    title, cells = results.titles[best], list(dict.fromkeys([*results.main, best]))
    recalls = {results.titles[cell]: mean_per_class(cell, split, "recall_per_class") for cell in cells}
    recalls = {name: [100 * value for value in values] for name, values in recalls.items() if values}
    if title not in recalls:
        return None
    predicted = [one for run in best.runs if (one := read_predicted(run, split)) is not None]
    samples, precision = _samples_and_precision(best, split)
    mean = f", mean over {len(best.runs)} runs" if len(best.runs) > 1 else ""
    caption = f"Recall in per cent on {on} data{mean}{'; the best of each row in bold' if len(recalls) > 1 else ''}."
    caption += f" Precision: {title}." if precision else ""
    together = f", {len(predicted)} runs together" if len(predicted) > 1 else ""
    unit = "sample" if is_feature_model(best.recipe.model) else "image"
    found = ClassResults(
        names=results.class_names,
        counts=results.counts,
        groups=results.groups,
        recalls=recalls,
        focus=title,
        predictions=count_predictions((one.labels, one.classes) for one in predicted) if predicted else None,
        samples=samples,
        precision=precision,
        runs=len(best.runs),
        unit=unit,
        split=on,
        caption=caption + results.warning(),
        mistakes_caption=f"Per cent of the {on} {unit}s of each class with {title}{together}.{results.warning()}",
    )
    if not found.worst:
        return found
    run = best.runs[0]
    examples, no_examples = images_of_mistakes(run, predicted[0] if predicted else None, split, found.worst)
    examples_title = f"Most confident mistakes ({on} images, seed {run.recipe.seed}) and the predictions:"
    return replace(found, examples=examples, examples_title=examples_title, no_examples=no_examples)


def _samples_and_precision(cell: Cell, split: str) -> tuple[list[int], list[float]]:
    """Images per class in a split, and precision over the runs of a cell; empty if the statistics were not kept."""
    files = [RunFolder(run.path).statistics_file for run in cell.runs]
    found = [one for file in files if file.exists() and (one := read_statistics(file)[0].get(split)) is not None]
    if len(found) < len(files):
        return [], []
    predicted, correct = sum(one.predicted for one in found), sum(one.correct for one in found)
    return found[-1].samples.tolist(), (100 * correct.double() / predicted).tolist()  # type: ignore[union-attr]


def _searches(folders: Sequence[Path | str], runs: Sequence[Run]) -> list[_Search]:
    found = []
    for file in sorted({file.resolve() for path in map(Path, folders) for file in path.rglob(SEARCH_FILE)}):
        by_beta: dict[float, list[Run]] = {}
        for run in runs:
            if run.path.resolve().parent == file.parent and run.beta is not None:
                by_beta.setdefault(run.beta, []).append(run)
        if len(by_beta) > 1:
            cells = [one_cell(same_beta, over_folds=True) for same_beta in by_beta.values()]
            found.append((read_search(file), cells))
    return found


def _search_content(search: _Search, drawings: dict[str, Drawing]) -> dict[str, str]:
    record, cells = search
    chosen, name = record.get("beta"), f"{cells[0].data}, {method_title(cells[0].method)}"
    choice = Choice.of_search(record)
    drawn = beta_drawing(cells, chosen=chosen, select_on=choice.select_on or "val", selected=str(choice))
    drawing = replace(drawn, title=name)
    (figure,) = _add(drawings, [drawing], name)
    return {"text": f"{name}: {record.get('choice', f'beta = {chosen}')}. {choice}.", "figure": figure}


def _unfinished(folders: Sequence[Path | str], record: Recorded) -> list[str]:
    failed = {Path(name).name for name in record.failed}
    begun = (file.parent for path in map(Path, folders) for file in path.rglob("recipe.toml"))
    begun = (path for path in begun if RunFolder(path).has_trained and not RunFolder(path).is_pilot)
    return sorted(path.name for path in begun if not (path / "result.json").exists() and path.name not in failed)


def _commands(
    all_results: Sequence[DataResults], searches: Sequence[_Search], record: Recorded, command: str
) -> list[str]:
    """The commands of studies and searches, those that repeat all other runs, and the command of the report."""
    lines = [*record.commands, *(str(search.get("command", "")) for search, _ in searches)]
    for cell in (cell for results in all_results for cell in results.cells):
        alone = [run for run in cell.runs if run.path in record.unrecorded]
        lines += [repeat_command(one_cell(alone))] if alone else []
    return list(dict.fromkeys(line for line in [*lines, command] if line))


_LEFT_OUT = frozenset({"seed"}) | HOUSEKEEPING


def repeat_command(cell: Cell) -> str:
    """Return the command that trains the runs of a cell again, from the recipe in their folder."""
    seeds = dict.fromkeys(str(seed) for seed in cell.seeds)
    words = shlex.join(["train", str(cell.runs[0].path / "recipe.toml"), "--seed", *seeds])
    if cell.method in METHODS:
        return f"{program()} {words}"
    return f"longtail --plugin FILE.py {words}  # FILE.py registers {cell.method}"


def settings_grid(results: DataResults, name: str) -> Grid:
    """Return all settings; where methods differ, the value of each."""
    recipes = {title: cell.recipe.settings() for cell, title in results.titles.items()}
    rows = {}
    for key in dict.fromkeys(name for recipe in recipes.values() for name in recipe if name not in _LEFT_OUT):
        values: dict[str, list[str]] = {}
        for title, recipe in recipes.items():
            values.setdefault(_text(recipe.get(key)), []).append(title)
        if len(values) == 1 or key == "method":
            rows[key] = ", ".join(values)
        else:
            rows[key] = "; ".join(f"{value}: {', '.join(titles)}" for value, titles in values.items())
    shown = {key: text if len(text) <= 300 else text[:299] + "…" for key, text in rows.items() if text != "–"}
    return _two_columns(name, "Setting", shown, "All settings, including defaults.")


def versions_grid(runs: Sequence[Run]) -> Grid | None:
    """Return the machines and versions of the runs; ``None`` if they were not recorded."""
    found: dict[str, Counter[str]] = {}
    for file in (run.path / "environment.json" for run in runs):
        about = read_json(file, {"versions?": dict}) if file.exists() else {}
        facts = {key: about.get(key) for key in ("device", "python", "system")} | about.get("versions", {})
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, Counter())[str(value)] += 1
    rows = {
        key: "; ".join(f"{value} ({count(n, 'run')})" if len(numbers) > 1 else value for value, n in numbers.items())
        for key, numbers in found.items()
    }
    return _two_columns("versions", "Component", rows) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "–" if value is None else str(value)


def _two_columns(name: str, title: str, rows: Mapping[str, str], caption: str = "") -> Grid:
    return Grid(name, "", [Column(title), Column("Value")], list(rows.items()), caption)

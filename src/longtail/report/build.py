"""A report from folders of finished runs. It reads files only: no model is loaded or trained."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longtail.report.classes import ClassView, class_grid, confusion_blocks, worst_cards, worst_classes
from longtail.report.drawings import beta_drawing, curve_drawings, part_drawings
from longtail.report.page import (
    Block,
    Cards,
    Commands,
    Folded,
    Gallery,
    Page,
    Picture,
    Prose,
    Report,
    Section,
    from_table,
    picture,
    slug,
)
from longtail.report.parts import Part, mean_of, parts_of
from longtail.report.predictions import Confusions, open_pictures, predicted_by
from longtail.report.settings import environment_grid, repeat_command, settings_grid
from longtail.report.summary import cards_of, limits, points_of
from longtail.study.captions import Recorded, count, recorded_for
from longtail.study.comparisons import check_reference
from longtail.study.figures import Drawing
from longtail.study.runs import Cell, Run, group_runs, method_title, one_cell, read_runs
from longtail.study.tables import level_table, recall_table
from longtail.train.folder import RunFolder
from longtail.train.stored import read_statistics

Search = tuple[dict[str, Any], list[Cell]]
"""The record of a search for beta, and its cells, each with another beta."""


def report(*folders: Path | str, reference: str | None = None, command: str = "") -> Report:
    """Return the report of all finished runs in folders and below them.

    Args:
        folders: any folders with runs; the record of ``longtail study`` is used if there is one.
        reference: the method that others are tested against (default: that of the study, or Balanced Softmax, or
            softmax).
        command: the command that makes the report, for its last section.

    Example:
        >>> from longtail.report import report
        >>> report("runs/demo").write("report.html")  # doctest: +SKIP
    """
    everything, main = read_runs(*folders, searches=True), read_runs(*folders)
    searches = _searches(folders, everything)
    if not main and not searches:
        raise ValueError(f"Expected finished runs in {', '.join(map(str, folders))}, but there are none.")
    record, cells = recorded_for(folders, main), group_runs(main)
    if reference is not None:
        check_reference(reference, cells)
        record = replace(record, references={run.path: [reference] for run in main})
    builder = _Builder(folders, parts_of(cells), main or everything, searches, record, command)
    return Report(builder.page(), builder.drawings)


@dataclass(frozen=True, eq=False)
class _Builder:
    folders: Sequence[Path | str]
    parts: Sequence[Part]
    runs: Sequence[Run]
    searches: Sequence[Search]
    record: Recorded
    command: str
    drawings: dict[str, Drawing] = field(default_factory=dict)

    def page(self) -> Page:
        sections = [self._summary()] if self.parts else []
        for place, part in enumerate(self.parts):
            prefix, before = f"d{place}", "" if len(self.parts) == 1 else f"{part.name}: "
            sections += [
                *self._results(part, prefix, before),
                *_class_sections(part, prefix, before, self.record.selected(part.cells)),
            ]
        sections += [self._searches()] if self.searches else []
        sections.append(self._settings())
        names = list(dict.fromkeys([*(part.cells[0].data for part in self.parts), *(run.data for run in self.runs)]))
        titles = list(dict.fromkeys(method_title(cell.method) for part in self.parts for cell in part.cells))
        what = f"{len(titles)} methods" if len(titles) > 1 else titles[0] if titles else "Search for β"
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        subtitle = f"{count(len(self.runs), 'run')}. Recall is the share of the images of a class that are recognised, "
        subtitle += "as a mean over classes. Head, medium and tail are the frequent, middle and rare classes."
        return Page(f"{what} on {shown}", subtitle, sections, "Made by longtail report. This file needs no network.")

    def _picture(self, drawing: Drawing, name: str, title: str | None = None) -> Picture:
        while name in self.drawings:
            name += "-2"
        self.drawings[name] = drawing
        return picture(drawing, name, title)

    def _summary(self) -> Section:
        record, alone = self.record, len(self.parts) == 1
        cells = [cell for part in self.parts for cell in part.cells]
        blocks: list[Block] = []
        for part in self.parts:
            cards = cards_of(part) if alone else []
            points = points_of(part, record.reference, record.alternative)
            blocks += [*([Cards(cards)] if cards else []), Prose(points, "list", "" if alone else part.name)]
        failed = {Path(name).name for name in record.failed}
        unfinished = sorted(
            found.parent.name
            for path in map(Path, self.folders)
            for found in path.rglob("recipe.toml")
            if not (found.parent / "result.json").exists() and found.parent.name not in failed
        )
        notes = limits(self.parts, unfinished, record.selected(cells), record.failed, record.missing)
        return Section("summary", "Summary", [*blocks, *([Prose(notes, "notes")] if notes else [])])

    def _results(self, part: Part, prefix: str, before: str) -> list[Section]:
        record, selected = self.record, self.record.selected(part.cells)
        recalls = recall_table(
            part.cells, reference=record.reference, alternative=record.alternative, selected=selected
        )
        tables: list[Block] = [from_table(part.without_data(recalls), f"{prefix}-recall")]
        if any(not math.isnan(part.level(cell).mean) for cell in part.cells):
            levels = part.without_data(level_table(part.cells, selected=selected))
            tables.append(Folded("Model imbalance level as a table", [from_table(levels, f"{prefix}-level")]))
        reference = record.reference(part.cells)
        drawn = part_drawings(part, reference=reference, alternative=record.alternative, selected=selected)
        betas = _several_betas(part)
        drawn += [beta_drawing(betas, selected=record.selected(betas))] if betas else []
        figures: list[Block] = [Gallery([self._picture(one, f"{slug(part.name)}-{one.name}") for one in drawn])]
        curves = [self._picture(one, f"{slug(part.name)}-{one.name}", "") for one in curve_drawings(part, selected)]
        if len(curves) > 3:
            figures.append(Folded(f"Recall over epochs ({len(curves)} figures)", [Gallery(curves)]))
        elif curves:
            figures.append(Gallery(curves))
        short = "Results" if not before else part.name
        return [
            Section(f"{prefix}-methods", f"{before}Results", tables, short),
            Section(f"{prefix}-figures", f"{before}Figures", figures, "Figures", listed=not before),
        ]

    def _searches(self) -> Section:
        blocks: list[Block] = []
        pictures = []
        for found, cells in self.searches:
            chosen, name = found.get("beta"), f"{cells[0].data}, {method_title(cells[0].method)}"
            on = "TEST data" if found.get("select_on") == "test" else "validation data"
            selected = str(found.get("selected") or f"β chosen on {on}")
            blocks.append(Prose([f"{name}: {found.get('choice', f'beta = {chosen}')}. {selected}."]))
            drawing = replace(beta_drawing(cells, chosen=chosen, chosen_on=on, selected=selected), title=name)
            pictures.append(self._picture(drawing, f"{slug(name)}-beta"))
        return Section("beta", "Search for β", [*blocks, Gallery(pictures)], "β")

    def _settings(self) -> Section:
        lines = [*self.record.commands, *(str(one["command"]) for one, _ in self.searches if one.get("command"))]
        for part in self.parts:
            for cell in part.cells:
                alone = [run for run in cell.runs if run.path in self.record.unrecorded]
                lines += [repeat_command(one_cell(alone))] if alone else []
        lines += [self.command] if self.command else []
        blocks: list[Block] = [Commands(list(dict.fromkeys(lines)))] if lines else []
        for place, part in enumerate(self.parts):
            blocks.append(Folded(f"Settings of {part.name}", [settings_grid(part, f"settings-{place}")]))
        versions = environment_grid(self.runs)
        blocks += [Folded("Machine and versions", [versions])] if versions is not None else []
        return Section("how", "Commands and settings", blocks, "Commands")


def _several_betas(part: Part) -> list[Cell]:
    """Cells of one method with three betas or more."""
    found: dict[str, dict[float, Cell]] = {}
    for cell in part.cells:
        if cell.recipe.beta is not None:
            found.setdefault(cell.method, {}).setdefault(cell.recipe.beta, cell)
    return next((list(betas.values()) for betas in found.values() if len(betas) > 2), [])


def _class_sections(part: Part, prefix: str, before: str, selected: str) -> list[Section]:
    warning = f" {selected}." if "TEST" in selected else ""
    focus, split = part.best, part.split
    title = part.title(focus)
    cells = list(dict.fromkeys([*part.main(), focus]))
    recalls = {part.title(cell): [100 * v for v in mean_of(cell, split, "recall_per_class")] for cell in cells}
    recalls = {name: values for name, values in recalls.items() if values}
    if title not in recalls:
        return []
    samples, precision = _counts(focus, split)
    view = ClassView(part.class_names, part.counts, part.groups, recalls, title, samples, precision, split=part.on)
    predicted = [found for run in focus.runs if (found := predicted_by(run, split)) is not None]
    confusions = Confusions(len(view.names), predicted) if predicted else None
    worst: list[Block] = []
    runs = f", mean over {len(focus.runs)} runs" if len(focus.runs) > 1 else ""
    if worst_classes(view):
        pictures, first = open_pictures(focus.runs[0]), predicted[0] if predicted else None
        worst.append(Prose([f"The classes with the lowest recall on {part.on} data with {title}{runs}."]))
        worst.append(worst_cards(view, confusions, lambda c: pictures.mistakes(first, c)))
        worst += [Prose([pictures.why_not])] if pictures.why_not else []
    else:
        worst.append(worst_cards(view, confusions))
    tail = list(part.groups)[-1]
    if confusions is not None:
        caption = f"Per cent of the {part.on} images of each class with {title}"
        caption += f", {len(predicted)} runs together." if len(predicted) > 1 else "."
        mistaken = confusion_blocks(view, confusions, f"{prefix}-taken-table", caption + warning)
    else:
        mistaken = [Prose(["Unknown: these runs did not keep their predictions (predictions.safetensors)."])]
    caption = f"Recall in per cent on {part.on} data{runs}" + (
        "; the best of each row in bold." if len(recalls) > 1 else "."
    )
    caption += f" Precision: {title}." if precision else ""
    grid = class_grid(view, f"{prefix}-classes-table", caption + warning)
    sections: list[tuple[str, str, list[Block], str]] = [
        ("worst", "Worst classes", worst, "Worst"),
        ("taken", f"What {tail} classes are mistaken for", mistaken, "Mistakes"),
        ("classes", "All classes", [grid], "Classes"),
    ]
    return [Section(f"{prefix}-{n}", f"{before}{t}", blocks, s, listed=not before) for n, t, blocks, s in sections]


def _counts(cell: Cell, split: str) -> tuple[list[int], list[float]]:
    """Images per class in a split, and precision over the runs of a cell; empty if the statistics were not kept."""
    files = [RunFolder(run.path).statistics_file for run in cell.runs]
    found = [read_statistics(file)[0].get(split) if file.exists() else None for file in files]
    known = [one for one in found if one is not None]
    if len(known) < len(files):
        return [], []
    predicted, correct = sum(one.predicted for one in known), sum(one.correct for one in known)
    return known[-1].samples.tolist(), (100 * correct.double() / predicted).tolist()  # type: ignore[union-attr]


def _searches(folders: Sequence[Path | str], runs: Sequence[Run]) -> list[Search]:
    """The searches for beta below the folders."""
    found = []
    for file in sorted({file.resolve() for path in map(Path, folders) for file in path.rglob("beta.json")}):
        of_beta: dict[float, list[Run]] = {}
        for run in runs:
            if run.path.resolve().parent == file.parent and run.recipe.beta is not None:
                of_beta.setdefault(run.recipe.beta, []).append(run)
        if len(of_beta) > 1:
            cells = [one_cell(of_one, over_folds=True) for of_one in of_beta.values()]
            found.append((json.loads(file.read_text(encoding="utf-8")), cells))
    return found

"""A report from folders of runs: one page, and the figures as files beside it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longtail._io import write_text
from longtail.report.classes import ClassView, class_grid, confusion_grid, worst_cards, worst_classes
from longtail.report.drawings import beta_drawing, curve_drawings, overview_drawings, part_drawings
from longtail.report.images import open_pictures
from longtail.report.page import (
    Block,
    Commands,
    Folded,
    Gallery,
    Notes,
    Page,
    Picture,
    Prose,
    Section,
    Stats,
    from_table,
    many,
    render,
    slug,
)
from longtail.report.parts import Part, mean_of, parts_of
from longtail.report.predictions import Confusions, predicted_by
from longtail.report.settings import environments, repeat_command, settings_grid
from longtail.report.summary import cards_of, caveats, points_of
from longtail.study.captions import Recorded, recorded_for, with_selected
from longtail.study.comparisons import check_reference
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.writing import inline_svg, save_figure
from longtail.study.runs import Cell, Run, group_runs, method_title, one_cell, read_runs
from longtail.study.tables import level_table, recall_table
from longtail.train.evaluation import read_statistics
from longtail.train.folder import RunFolder

__all__ = ["Report", "report_of_runs", "write_report"]


@dataclass(frozen=True, eq=False)
class Report:
    """A page, and the figures in it by the names of their files."""

    page: Page
    drawings: dict[str, Drawing]


def write_report(report: Report, out: Path | str, figures: Path | str | None = None) -> Path:
    """Write a report as one HTML file; with ``figures``, its figures as files there too."""
    out = Path(out)
    if out.suffix != ".html":
        raise ValueError(f"Expected `out` to end in .html, but got {out}.")
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected `out` to be in a folder that is there, but got {out}.")
    if figures is not None:
        for name, drawing in report.drawings.items():
            save_figure(drawing.figure, Path(figures) / name)
    write_text(out, render(report.page))
    return out


def report_of_runs(*paths: Path | str, reference: str | None = None, command: str = "") -> Report:
    """The report of all finished runs in folders and below them.

    Args:
        paths: folders; where one was written by ``longtail study``, what that wrote down is used.
        reference: the method that others are tested against (default: the study's, or Balanced Softmax, or softmax).
        command: what made the report, for its last section.
    """
    everything, main = read_runs(*paths, searches=True), read_runs(*paths)
    searches = _searches(paths, everything)
    if not main and not searches:
        raise ValueError(f"Expected finished runs in {', '.join(map(str, paths))}, but there are none.")
    told = recorded_for(paths, main)
    cells = group_runs(main)
    if reference is not None:
        check_reference(reference, cells)
        told = replace(told, references={run.path: [reference] for run in main})
    parts = parts_of(cells)
    drawings: dict[str, Drawing] = {}
    sections: list[Section] = []
    if parts:
        sections.append(_summary(parts, paths, told, drawings))
        for place, part in enumerate(parts):
            sections += _sections(part, f"d{place}", told, drawings, alone=len(parts) == 1)
    if searches:
        sections.append(_beta_section(searches, drawings))
    sections.append(_how(parts, main or everything, searches, told, command))
    return Report(_page(parts, main or everything, sections), drawings)


def _page(parts: Sequence[Part], runs: Sequence[Run], sections: Sequence[Section]) -> Page:
    names = list(dict.fromkeys([*(part.cells[0].data for part in parts), *(run.data for run in runs)]))
    titles = list(dict.fromkeys(method_title(cell.method) for part in parts for cell in part.cells))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    what = f"{len(titles)} methods" if len(titles) > 1 else titles[0] if titles else "The search for β"
    subtitle = f"{many(len(runs), 'run')}. Recall is the mean over classes of the per cent that is recognised; head, "
    subtitle += "medium and tail are the frequent, the middling and the rare classes."
    footer = ("Made by longtail report. This page is one file: it loads nothing, and needs no network.",)
    return Page(f"{what} on {shown}", subtitle, sections, footer)


def _picture(drawing: Drawing, name: str, drawings: dict[str, Drawing]) -> Picture:
    while name in drawings:
        name += "-too"
    drawings[name] = drawing
    svg = inline_svg(drawing.figure, name, f"{drawing.title}. {drawing.caption}")
    return Picture(svg, drawing.caption, drawing.title)


def _summary(
    parts: Sequence[Part],
    paths: Sequence[Path | str],
    told: Recorded,
    drawings: dict[str, Drawing],
) -> Section:
    blocks: list[Block] = []
    cells = [cell for part in parts for cell in part.cells]
    if len(parts) == 1:
        cards = cards_of(parts[0])
        points = points_of(parts[0], told.reference, told.alternative)
        blocks += [*([Stats(cards)] if cards else []), Prose(points, points=True)]
    else:
        for part in parts:
            points = points_of(part, told.reference, told.alternative)
            blocks.append(Prose(points, points=True, title=part.name))
        pictures = [_picture(one, one.name, drawings) for one in overview_drawings(parts, told.selected(cells))]
        blocks += [Gallery(pictures)] if pictures else []
    failed = {Path(name).name for name in told.failed}
    unfinished = sorted(
        found.parent.name
        for path in map(Path, paths)
        for found in path.rglob("recipe.toml")
        if not (found.parent / "result.json").exists() and found.parent.name not in failed
    )
    notes = caveats(parts, unfinished, told.selected(cells), told.failed, told.missing)
    return Section("summary", "Summary", [*blocks, *([Notes(notes)] if notes else [])])


def _sections(part: Part, prefix: str, told: Recorded, drawings: dict[str, Drawing], *, alone: bool) -> list[Section]:
    """Tables and figures, and the classes, of one data set."""
    of = "" if alone else f"{part.name}: "
    selected = told.selected(part.cells)
    recalls = recall_table(part.cells, reference=told.reference, alternative=told.alternative, selected=selected)
    tables: list[Block] = [from_table(part.alone(recalls), f"{prefix}-recall")]
    if any(not math.isnan(part.level(cell).mean) for cell in part.cells):
        tables.append(
            Folded(
                "Model imbalance level as a table",
                [from_table(part.alone(level_table(part.cells, selected=selected)), f"{prefix}-level")],
            )
        )
    betas = _many_betas(part)
    against = told.reference(part.cells)
    drawn = part_drawings(part, reference=against, alternative=told.alternative, selected=selected)
    drawn += [beta_drawing(betas, selected=told.selected(betas))] if betas else []
    pictures = [_picture(one, f"{slug(part.name)}-{one.name}", drawings) for one in drawn]
    curves = [
        replace(_picture(one, f"{slug(part.name)}-{one.name}", drawings), title="")  # the figure has it
        for one in curve_drawings(part, selected)
    ]
    figures: list[Block] = [Gallery(pictures)]
    if curves:
        figures.append(
            Folded(f"Recall over epochs ({len(curves)} figures)", [Gallery(curves)])
            if len(curves) > 3
            else Gallery(curves)
        )
    methods = Section(f"{prefix}-methods", f"{of}Methods", tables, short="Methods" if alone else part.name)
    shown = Section(f"{prefix}-figures", f"{of}Figures", figures, short="Figures", listed=alone)
    return [methods, shown, *_class_sections(part, prefix, of, selected)]


def _many_betas(part: Part) -> list[Cell]:
    """Cells of one method with three betas or more."""
    found: dict[str, dict[float, Cell]] = {}
    for cell in part.cells:
        if cell.recipe.beta is not None:
            found.setdefault(cell.method, {}).setdefault(cell.recipe.beta, cell)
    return next((list(betas.values()) for betas in found.values() if len(betas) > 2), [])


def _class_sections(part: Part, prefix: str, of: str, selected: str) -> list[Section]:
    focus = part.best
    title = part.title(focus)
    cells = list(dict.fromkeys([*part.main(), focus]))
    recalls = {part.title(cell): [100 * v for v in mean_of(cell, part.split, "recall_per_class")] for cell in cells}
    recalls = {name: values for name, values in recalls.items() if values}
    if title not in recalls:
        return []
    samples, precision = _counts(focus, part.split)
    view = ClassView(part.class_names, part.counts, part.groups, recalls, title, samples, precision, split=part.on)
    predicted = [found for run in focus.runs if (found := predicted_by(run, part.split)) is not None]
    taken = Confusions(len(view.names), predicted) if predicted else None
    pictures = open_pictures(focus.runs[0]) if worst_classes(view) else None

    def examples(c: int) -> Any:
        return ("", []) if pictures is None else pictures.mistakes(predicted[0] if predicted else None, c)

    runs = f", mean over {len(focus.runs)} runs" if len(focus.runs) > 1 else ""
    worst: list[Block] = [
        Prose(
            [
                f"Lowest recall on {part.on} data under {title}, the method with the highest recall over all "
                f"classes{runs}."
            ]
        )
    ]
    worst.append(worst_cards(view, taken, examples))
    if pictures is not None and pictures.why_not:
        worst.append(Prose([pictures.why_not]))
    caption = (
        f"Recall on {part.on} data{runs}; the best of each row in bold."
        if len(recalls) > 1
        else f"Recall on {part.on} data{runs}."
    )
    caption += f" Precision: of {title}." if precision else ""
    caption = with_selected(caption, cells, selected)
    grid = class_grid(view, f"{prefix}-classes-table", "Every class", caption)
    sections = [Section(f"{prefix}-worst", f"{of}The worst classes", worst, short="Worst", listed=not of)]
    tail = list(part.groups)[-1]
    shown: list[Block]
    if taken is not None:
        note = f"Per cent of the {part.on} images of each class, {title}" + (
            f", {len(predicted)} runs together." if len(predicted) > 1 else "."
        )
        note = with_selected(note, [focus], selected)
        shown = confusion_grid(view, taken, f"{prefix}-taken-table", f"{tail.capitalize()} classes", note)
    else:
        shown = [Prose(["Not known: these runs did not keep their predictions (predictions.safetensors)."])]
    sections.append(
        Section(f"{prefix}-taken", f"{of}What {tail} classes are taken for", shown, short="Taken for", listed=not of)
    )
    sections.append(Section(f"{prefix}-classes", f"{of}Classes", [grid], short="Classes", listed=not of))
    return sections


def _counts(cell: Cell, split: str) -> tuple[list[int], list[float]]:
    """Images of each class in a split, and its precision over a cell's runs; empty where statistics are gone."""
    predicted, correct, samples = None, None, None
    for run in cell.runs:
        file = RunFolder(run.path).statistics_file
        if not file.exists():
            return [], []
        found = read_statistics(file)[0].get(split)
        if found is None:
            return [], []
        samples = found.samples
        predicted = found.predicted if predicted is None else predicted + found.predicted
        correct = found.correct if correct is None else correct + found.correct
    if samples is None or predicted is None or correct is None:
        return [], []
    return samples.tolist(), (100 * correct.double() / predicted).tolist()


def _searches(paths: Sequence[Path | str], runs: Sequence[Run]) -> list[tuple[dict[str, Any], list[Cell]]]:
    """Searches for beta below the folders: what was written down of each, and its cells, a beta each."""
    found = []
    for file in sorted({file.resolve() for path in map(Path, paths) for file in path.rglob("beta.json")}):
        record = json.loads(file.read_text(encoding="utf-8"))
        of_beta: dict[float, list[Run]] = {}
        for run in runs:
            if run.path.resolve().parent == file.parent and run.recipe.beta is not None:
                of_beta.setdefault(run.recipe.beta, []).append(run)
        if len(of_beta) > 1:
            found.append((record, [one_cell(of_one, over_folds=True) for of_one in of_beta.values()]))
    return found


def _beta_section(searches: Sequence[tuple[dict[str, Any], list[Cell]]], drawings: dict[str, Drawing]) -> Section:
    blocks: list[Block] = []
    pictures = []
    for record, cells in searches:
        chosen, name = record.get("beta"), f"{cells[0].data}, {cells[0].title.partition(' (')[0]}"
        on = "TEST data" if record.get("select_on") == "test" else "validation data"
        selected = str(record.get("selected") or f"β chosen on {on}")
        blocks.append(Prose([f"{name}: {record.get('choice', f'beta = {chosen}')}. {selected}."]))
        drawing = replace(beta_drawing(cells, chosen=chosen, chosen_on=on, selected=selected), title=name)
        pictures.append(_picture(drawing, f"{slug(name)}-beta", drawings))
    return Section("beta", "The search for β", [*blocks, Gallery(pictures)], short="β")


def _how(
    parts: Sequence[Part],
    runs: Sequence[Run],
    searches: Sequence[tuple[dict[str, Any], list[Cell]]],
    told: Recorded,
    command: str,
) -> Section:
    blocks: list[Block] = []
    lines = [*told.commands, *(str(record["command"]) for record, _ in searches if record.get("command"))]
    alone = [[run for run in cell.runs if run.path in told.unrecorded] for part in parts for cell in part.cells]
    lines += [repeat_command(one_cell(of_cell)) for of_cell in alone if of_cell]
    lines += [command] if command else []
    blocks += [Prose(["To repeat it:"]), Commands(list(dict.fromkeys(lines)))] if lines else []
    for place, part in enumerate(parts):
        grid = settings_grid(part, f"settings-{place}", told.selected(part.cells))
        blocks.append(Folded(f"Settings of {part.name}", [grid]))
    about = environments(runs)
    if about is not None:
        blocks.append(Folded("Machine and versions", [about]))
    return Section("how", "Settings, and how to repeat it", blocks, short="Repeat")

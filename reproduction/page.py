"""The page of results: DIR/README.md with its figures, and the table and figure of the repository's README."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from longtail._io import write_text
from longtail.data import CATALOG
from longtail.study.captions import numbers
from longtail.study.figures.style import Drawing, save_figure
from longtail.study.planning import read_plan
from longtail.study.runs import Run
from reproduction.collection import Collection, PlanState, all_runs, collect, keep, state_of
from reproduction.overview import METHODS, NATURAL, Recalls, before_and_after, overview, overview_table
from reproduction.sections import Section, sections_of

__all__ = ["BEGIN", "END", "page_text", "readme_text", "with_results", "write_page"]

BEGIN = "<!-- results: made by `make results-page` -->"
END = "<!-- results: end -->"

README_FIGURE = "docs/images/before_after"
"""Beside the README; without the suffix."""

_INTRO = """# Results

{answer}This page has every method, the tests, and the paper's numbers beside ours.

All numbers are from the last epoch. {chosen} Captions state what the runs of a table have in common, how β was chosen
and how training-set measures were taken. One run has no SD. `python -m reproduction page` writes this page from the
runs in this folder (settings, logs and results, without weights)."""

_REPEAT = """## To repeat it

```
{commands}
```

Several plans in one command are trained together, which uses a GPU better. Flags select a part of a plan, such as
`--imbalance 100 --methods cbs --seeds 0 1`. `timeout -s TERM 500 longtail study …` trains for a limited time: running
models are saved, and the same command continues. `longtail study` skips the runs of this folder if they are copied
first: `mkdir -p runs && cp -rn {folders} runs/`. `python -m reproduction measure RUNS` needs the weights."""


def write_page(files: Sequence[Path | str], out: Path, readme: Path | None = None) -> list[str]:
    """Keep the small files of the plans' finished runs below ``out``, and write its README.md about them.

    Args:
        files: plans.
        out: the folder of results.
        readme: a file whose part between two marks is written from the same runs.

    Returns:
        what was done, in sentences.
    """
    if readme is not None and not readme.is_file():
        raise FileNotFoundError(f"Expected `readme` to be an existing file, but got {readme}.")
    done = []
    for plan in [read_plan(file, to_run=False) for file in files]:
        target = out / Path(plan.out).name
        done.append(f"{keep(Path(plan.out), target)} runs of {plan.out} kept in {target}.")
    states = [state_of(file, out) for file in files]
    runs = collect(states)
    sections = sections_of(runs)
    _draw([drawing for _, _, drawings in sections for drawing in drawings], out / "figures")
    command = shlex.join(["python", "-m", "reproduction", "page", *map(str, files), "--out", str(out)])
    write_text(out / "README.md", page_text(states, sections, out, command))
    done.append(f"Page: {out / 'README.md'}")
    if readme is not None:
        write_text(readme, with_results(readme.read_text(encoding="utf-8"), runs, out))
        recalls = overview(runs, out / "natural.csv")
        if recalls:
            save_figure(before_and_after(recalls), readme.parent / README_FIGURE, ("png",))
        done.append(f"Results in {readme}.")
    return [*done, *(f"Missing of {one.file}: {one.describe_missing()}." for one in states if not one.is_complete)]


def _draw(drawings: Sequence[Drawing], folder: Path) -> None:
    """Write figures as PNG, and remove outdated ones."""
    for drawing in drawings:
        save_figure(drawing.figure, folder / drawing.name, ("png",))
    for file in folder.glob("*.png"):
        if file.stem not in {drawing.name for drawing in drawings}:
            file.unlink()


def page_text(states: Sequence[PlanState], sections: Sequence[Section], out: Path, command: str) -> str:
    """The page, in Markdown."""
    on_test = [one.file.name for one in states if one.plan.searches and one.plan.search.select_on == "test"]
    chosen = f"β was chosen on TEST data in {', '.join(on_test)}." if on_test else "Nothing was chosen on test data."
    blocks = [_INTRO.format(answer=_answer(overview(collect(states), out / "natural.csv")), chosen=chosen)]
    for title, texts, drawings in sections:
        blocks.append(f"## {title}")
        blocks += [text for text in texts if text]
        blocks += [f"![{one.title}](figures/{one.name}.png)\n\n{one.caption}" for one in drawings]
    notes = out / "notes.md"
    blocks += [notes.read_text(encoding="utf-8").strip()] if notes.exists() else []
    blocks += [_overview(states, out), _machines(all_runs(states))]
    folders = " ".join(str(one.folder) for one in states if one.folder.is_dir())
    downloads = sorted({command for one in states for data in one.plan.data for command in _download(data)})
    studies = [shlex.join(["longtail", "study", str(one.file)]) for one in states]
    blocks.append(_REPEAT.format(commands="\n".join([*downloads, *studies, command]), folders=folders))
    return "\n\n".join(blocks) + "\n"


def _answer(recalls: Recalls) -> str:
    """What CBS changes on CIFAR-10-LT with the largest imbalance, as a sentence; empty without such runs."""
    data = [name for name in recalls if name not in NATURAL.values()]
    if not data:
        return ""
    softmax, balanced, cbs = (f"{recalls[data[-1]][method]['all']:.1f}" for method in METHODS)
    return (
        f"CBS raises recall over all classes on {data[-1]} from {softmax} (softmax) and {balanced} per cent (Balanced "
        f"Softmax) to {cbs} per cent. "
    )


def _download(data: str) -> list[str]:
    """The command that downloads a data set, if there is one."""
    return re.findall("`(longtail data get [^`]+)`", CATALOG[data].steps) if data in CATALOG else []


def _overview(states: Iterable[PlanState], out: Path) -> str:
    """The number of finished and missing runs and searches of each plan."""
    lines = ["## Plans", "", "| Plan | runs | of | searches for β | of |", "| --- | ---: | ---: | ---: | ---: |"]
    notes, cells = [], []
    for one in states:
        inside = one.file.is_relative_to(out)
        name = f"[{one.file.name}]({one.file.relative_to(out).as_posix()})" if inside else f"`{one.file}`"
        total = f"{len(one.runs) + len(one.missing)}{' and more' if one.open_searches else ''}"
        lines.append(f"| {name} | {len(one.runs)} | {total} | {len(one.found)} | {len(one.plan.searches)} |")
        if not one.is_complete:
            parts = [f"{len(one.missing)} runs"] if one.missing else []
            parts += [f"{len(one.open_searches)} searches for β, and their runs"] if one.open_searches else []
            notes.append(f"- Missing of {one.file.name}: {'; '.join(parts)}. `longtail study {one.file}` runs them.")
            cells += [
                f"| {cell} | {numbers(there) or 'none'} | {numbers(missing) or '-'} |"
                for cell, (there, missing) in one.seeds().items()
            ]
        differing = one.other_settings()
        if differing:
            notes.append(f"- Runs of {one.file.name} differ from the plan (“here”) in {', '.join(differing)}.")
    if cells:
        notes += ["", "Seeds of incomplete plans:", "", "| | finished | missing |", "| --- | --- | --- |", *cells]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _machines(runs: Sequence[Run]) -> str:
    found: Counter[str] = Counter()
    for run in runs:
        file = run.path / "environment.json"
        about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        found[f"{about.get('device', 'unknown')}, torch {about.get('versions', {}).get('torch', 'unknown')}"] += 1
    if not found:
        return "There are no runs yet."
    return "Machines: " + "; ".join(f"{place} ({number} runs)" for place, number in sorted(found.items())) + "."


# --- The table in the repository's README


def with_results(text: str, runs: Collection, out: Path) -> str:
    """A README whose part between the two marks is replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"Expected the lines {BEGIN} and {END} in `readme`, once each and in this order.")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{before}{BEGIN}\n{readme_text(runs, out)}\n{after}"


def readme_text(runs: Collection, out: Path) -> str:
    """The table, in Markdown."""
    recalls = overview(runs, out / "natural.csv")
    return overview_table(recalls, runs) if recalls else "No runs yet."

"""The page about the plans' runs: DIR/README.md, its figures beside it, and the part of the repository's README."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from longtail._io import write_text
from longtail.data import CATALOG
from longtail.study.captions import numbers
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.writing import save_figure
from longtail.study.plan import read_plan
from longtail.study.runs import Run
from reproduction.keeping import keep
from reproduction.material import material_of
from reproduction.readme import with_results
from reproduction.sections import Section, sections_of
from reproduction.standing import Standing, all_runs, standing_of

__all__ = ["page_text", "write_page"]

_INTRO = """# Results

`python -m reproduction page` writes this page from the runs in this folder (settings, logs and results, without
weights). All numbers are from the last epoch. {chosen} Captions state what the runs of a table have in common, how beta
was chosen and how training-set measures were taken. Every row states its number of runs; one run has no SD."""

_REPEAT = """## To repeat it

```
{commands}
```

Several plans in one command are trained together, which fills a GPU better.

A part of a plan is run by flags beside it, such as `--imbalance 100 --methods cbs --seeds 0 1`, for as long as there is
time by `timeout -s TERM 500 longtail study …`: what is under way is saved, and the same command goes on. Runs that are
here count as done where they are copied first: `mkdir -p runs && cp -rn {folders} runs/`."""


def write_page(files: Sequence[Path | str], out: Path, readme: Path | None = None) -> list[str]:
    """Keep the small files of the plans' finished runs below ``out``, and write its README.md about all that are there.

    Args:
        files: plans.
        out: the folder of results.
        readme: a file whose part between two marks is made from the same runs.

    Returns:
        what was done, in sentences.
    """
    if readme is not None and not readme.is_file():
        raise FileNotFoundError(f"Expected a file {readme} whose part is to be made, but there is none.")
    plans = [read_plan(file, to_run=False) for file in files]
    told = []
    for plan in plans:
        copied = keep(Path(plan.out), out / Path(plan.out).name)
        told.append(f"{copied} runs of {plan.out} kept in {out / Path(plan.out).name}.")
    standings = [standing_of(file, out) for file in files]
    material = material_of(standings)
    sections = sections_of(material)
    _draw([drawing for _, _, drawings in sections for drawing in drawings], out / "figures")
    command = shlex.join(["python", "-m", "reproduction", "page", *map(str, files), "--out", str(out)])
    write_text(out / "README.md", page_text(standings, sections, out, command))
    told.append(f"Page: {out / 'README.md'}")
    if readme is not None:
        write_text(readme, with_results(readme.read_text(encoding="utf-8"), material, out))
        told.append(f"Results in {readme}.")
    told += [f"Missing of {one.file}: {one.lacks()}." for one in standings if not one.whole]
    return told


def _draw(drawings: Sequence[Drawing], folder: Path) -> None:
    """Write figures as PNG; those of another time are removed."""
    for drawing in drawings:
        save_figure(drawing.figure, folder / drawing.name, ("png",))
    for file in folder.glob("*.png"):
        if file.stem not in {drawing.name for drawing in drawings}:
            file.unlink()


def page_text(standings: Sequence[Standing], sections: Sequence[Section], out: Path, command: str) -> str:
    """The page, in Markdown; ``command`` made it."""
    blocks = [_INTRO.format(chosen=_how_chosen(standings))]
    blocks += [_what_is_there(standings, out), _made_on(all_runs(standings))]
    for title, texts, drawings in sections:
        blocks.append(f"## {title}")
        blocks += [text for text in texts if text]
        blocks += [f"![{one.title}](figures/{one.name}.png)\n\n{one.caption}" for one in drawings]
    notes = out / "notes.md"
    blocks += [notes.read_text(encoding="utf-8").strip()] if notes.exists() else []
    folders = " ".join(str(one.folder) for one in standings if one.folder.is_dir())
    fetched = sorted({match for one in standings for data in one.plan.data for match in _fetching(data)})
    commands = "\n".join([*fetched, *(shlex.join(["longtail", "study", str(one.file)]) for one in standings), command])
    blocks.append(_REPEAT.format(commands=commands, folders=folders))
    return "\n\n".join(blocks) + "\n"


def _how_chosen(standings: Iterable[Standing]) -> str:
    on_test = [one.file.name for one in standings if one.plan.searches and one.plan.search.select_on == "test"]
    return f"β was chosen on TEST data in {', '.join(on_test)}." if on_test else "Nothing was chosen on test data."


def _fetching(data: str) -> list[str]:
    """The command that fetches a data set, where there is one."""
    return re.findall("`(longtail data get [^`]+)`", CATALOG[data].steps) if data in CATALOG else []


def _plan_named(file: Path, out: Path) -> str:
    """A plan's name, with a link where it lies below the page."""
    inside = file.is_relative_to(out)
    return f"[{file.name}]({file.relative_to(out).as_posix()})" if inside else f"`{file}`"


def _what_is_there(standings: Iterable[Standing], out: Path) -> str:
    lines = [
        "## What is there",
        "",
        "| Plan | runs | of | searches for β | of |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    notes, cells = [], []
    for one in standings:
        number, searches = len(one.runs), len(one.plan.searches)
        later = " and more" if one.open_searches else ""
        lines.append(
            f"| {_plan_named(one.file, out)} | {number} | {number + len(one.missing)}{later} "
            f"| {len(one.found)} | {searches} |"
        )
        if not one.whole:
            parts = [f"{len(one.missing)} runs"] if one.missing else []
            parts += [f"{len(one.open_searches)} searches for β, and their runs"] if one.open_searches else []
            notes.append(f"- Missing of {one.file.name}: {'; '.join(parts)}. `longtail study {one.file}` runs it.")
            cells += [
                f"| {name} | {numbers(there) or 'none'} | {numbers(lacking) or '-'} |"
                for name, (there, lacking) in one.seeds().items()
            ]
        differing = one.other_settings()
        if differing:
            notes.append(f"- Runs of {one.file.name} differ from the plan (“here”) in {', '.join(differing)}.")
    if cells:
        notes += [
            "",
            "Seeds of the plans that are not whole:",
            "",
            "| | there | missing |",
            "| --- | --- | --- |",
            *cells,
        ]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _made_on(runs: Sequence[Run]) -> str:
    found: Counter[str] = Counter()
    for run in runs:
        file = run.path / "environment.json"
        about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        found[f"{about.get('device', 'unknown')}, torch {about.get('versions', {}).get('torch', 'unknown')}"] += 1
    if not found:
        return "No run is there yet."
    return "Made on: " + "; ".join(f"{place} ({number} runs)" for place, number in sorted(found.items())) + "."

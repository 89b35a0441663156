"""``longtail study``: a plan of runs, the search for beta, tables of what is there, and the paper's tests."""

import json
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from longtail.cli.study_view import Progress
from longtail.study.comparisons import compare_cells
from longtail.study.execute import Outcome, devices, estimate, execute
from longtail.study.plan import Plan, Planned, SearchPlan
from longtail.study.plan_reading import make_plan, read_plan
from longtail.study.runs import Cell, Run, group_runs, read_runs
from longtail.study.searching import Searched, folds_of, search_with_runs, trace_table
from longtail.study.significance_text import significance_page
from longtail.study.table import FORMATS, Table, to_rich, write
from longtail.study.tables import (
    by_data,
    find_cell,
    gradient_table,
    level_table,
    paper_table,
    recall_table,
    shift_table,
)
from longtail.train.files import write_json, write_text
from longtail.train.trainer import StoppedError

__all__ = ["run"]

USAGE = """usage: longtail study PLAN.toml [--dry-run] [FLAGS]
       longtail study --data NAME … --methods NAME … --seeds N [--imbalance N …] [--betas B …] [FLAGS]
       longtail study beta --data NAME [--imbalance N] [--method NAME] [SEARCH FLAGS]
       longtail study table RUNS … [--format terminal|markdown|latex|csv] [--what recall|level|gradient|shift|paper]
       longtail study paper [--out docs/significance.md]

Run methods on data sets with several seeds, and compare them. What is done is skipped; after a stop the same command
goes on. A plan is TOML with the same names: data, imbalance, methods, betas, seeds, out, reference, and the tables
[recipe] and [search].

  --data NAME …         data sets that `longtail data list` shows, or paths
  --imbalance N …       imbalance factors, for data sets that are made long-tailed here
  --methods NAME …      that `longtail methods` shows; bcl+cbs is BCL with CBS as its balanced part
  --betas B …           of CBS: numbers, `recipe` (the data set's recipe, the default) or `search`
  --seeds N | N N …     how many seeds, or which
  --out DIR             where the run folders go (default: runs/study)
  --reference NAME      the method that others are tested against (default: balanced-softmax)
  --one-sided           test as the paper did, for `greater` only
  --beside WHAT         rows from elsewhere: nothing, quoted (CAL, DisA; the default) or paper
  --together N          runs at a time on a device (default: 12 on a GPU, 1 elsewhere)
  --dry-run             say what would be run and how long it takes, and stop
  --FIELD VALUE …       any setting of `longtail train`, for all runs

The search for beta starts with 1.0, 1.1, 1.2, 1.3 and goes outwards until it is beyond the peak:

  --folds N             cross-validation folds (default: 5, or none where the data set has validation data)
  --search-seeds N      seeds a fold (default: 1)
  --criterion WHAT      all (default), level, or weights of groups as in head=1,tail=2
  --start B …  --step B  --bounds LOW HIGH  --ahead N (steps outwards at a time)
  --select-on val|test  `test` looks at test data, and every caption says so
"""

_PLAN = ("data", "imbalance", "methods", "betas", "seeds", "out", "reference")
_LISTS = {"data", "imbalance", "methods", "betas", "start", "bounds", "milestones"}
_SEARCH = {field.name: field.name for field in fields(SearchPlan)} | {"search_seeds": "seeds"}
del _SEARCH["seeds"]

console = Console()
progress_console = Console(stderr=True)


def run(arguments: Sequence[str]) -> int:
    """Parse, run, print."""
    given = list(arguments)
    if not given or "--help" in given or "-h" in given:
        console.print(USAGE, highlight=False, markup=False, soft_wrap=True)
        return 0
    command = f"longtail study {shlex.join(given)}"
    commands = {"beta": _beta, "table": _table, "paper": _paper}
    try:
        if given[0] in commands:
            return commands[given[0]](given[1:], command)
        return _study(given, command)
    except StoppedError:
        progress_console.print("Stopped; the same command goes on.", highlight=False)
        return 130


# The command line


def _flags(given: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """What stands alone, and each flag with its values."""
    alone: list[str] = []
    found: dict[str, list[str]] = {}
    values = alone
    for word in given:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            values = found[name.replace("-", "_")] = []  # given twice, the last counts
            if sign:
                values.append(value)
        else:
            values.append(word)
    return alone, found


def _value(text: str) -> Any:
    """A value as TOML has it; anything else is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _values(name: str, texts: Sequence[str]) -> Any:
    if not texts:
        return True
    found = [_value(text) for text in texts]
    return found if len(found) > 1 or name in _LISTS else found[0]


def _content(found: dict[str, list[str]]) -> dict[str, Any]:
    """Flags as the content of a plan."""
    content: dict[str, Any] = {"recipe": {}, "search": {}}
    for name, texts in found.items():
        if name in _PLAN:
            content[name] = list(texts) if name in {"data", "methods"} else _values(name, texts)
        elif name in _SEARCH:
            content["search"][_SEARCH[name]] = _values(name, texts)
        elif name.startswith("no_") and not texts:
            content["recipe"][name.removeprefix("no_")] = False
        else:
            content["recipe"][name] = _values(name, texts)
    return content


def _number(flag: str, found: dict[str, list[str]]) -> int | None:
    texts = found.pop(flag, None)
    if texts is None:
        return None
    if len(texts) != 1 or not texts[0].isdecimal() or not int(texts[0]):
        raise ValueError(f"Expected a whole number > 0 after --{flag}, but got {' '.join(texts)!r}.")
    return int(texts[0])


def _one(flag: str, found: dict[str, list[str]], choices: Sequence[str]) -> str:
    texts = found.pop(flag, [choices[0]])
    if len(texts) != 1 or texts[0] not in choices:
        raise ValueError(f"Expected --{flag} to be one of {', '.join(choices)}, but got {' '.join(texts)!r}.")
    return texts[0]


def _switch(flag: str, found: dict[str, list[str]]) -> bool:
    texts = found.pop(flag, None)
    if texts:
        raise ValueError(f"Expected nothing after --{flag.replace('_', '-')}, but got {texts[0]!r}.")
    return texts is not None


# A plan


def _study(given: Sequence[str], command: str) -> int:
    alone, found = _flags(given)
    together, dry = _number("together", found), _switch("dry_run", found)
    one_sided, beside = _switch("one_sided", found), _one("beside", found, ("quoted", "nothing", "paper"))
    if len(alone) > 1 or (alone and not alone[0].endswith(".toml")):
        raise ValueError(f"Expected a plan that ends in .toml, or flags, but got {alone[-1]!r}.")
    content = _content(found)
    plan = read_plan(alone[0], content) if alone else make_plan(content)
    if dry:
        return _dry_run(plan, together)
    searched: dict[tuple[str, float | None, str], Searched] = {}
    for data, imbalance, method in plan.searches:
        searched[data, imbalance, method] = _search(plan, data, imbalance, method, together)
    runs = plan.runs({place: one.beta for place, one in searched.items()})
    outcome = _train(runs, together, "The study")
    _results(plan, searched, command, one_sided=one_sided, beside=beside, outcome=outcome)
    return _told(outcome)


def _dry_run(plan: Plan, together: int | None) -> int:
    runs = plan.runs()
    done = sum(run.folder.done for run in runs)
    console.print(f"{len(runs)} runs, {done} of them done, in {plan.out}:", highlight=False)
    for run in runs:
        state = "done" if run.folder.done else "begun" if run.folder.begun else "to do"
        console.print(f"  {state:<6} {run.path.name}", highlight=False, soft_wrap=True)
    for data, imbalance, method in plan.searches:
        folds = max(folds_of(plan.base(data, imbalance, method), plan.search), 1)
        each = folds * plan.search.seeds
        least = len(plan.search.start) * each
        name = data if imbalance is None else f"{data} {imbalance:g}"
        console.print(
            f"  and a search for the beta of {method} on {name}: {least} runs or more, {each} a beta, then "
            f"{len(plan.seeds)} runs with the beta that it finds",
            highlight=False,
            soft_wrap=True,
        )
    if not runs:
        console.print("How long a search takes is not known beforehand.", highlight=False)
        return 0
    places = devices(runs)
    at_a_time = (together or (12 if places[0].type == "cuda" else 1)) * len(places)
    console.print(str(estimate(runs, plan.out, at_a_time)), highlight=False, soft_wrap=True)
    return 0


def _train(runs: Sequence[Planned], together: int | None, title: str) -> Outcome:
    with Progress(runs, progress_console, title) as view:
        return execute(runs, together=together, watch=view)


def _told(outcome: Outcome) -> int:
    for path, error in outcome.failed.items():
        progress_console.print(f"{path} failed: {error}", highlight=False, markup=False, soft_wrap=True)
    for one in outcome.elsewhere:
        progress_console.print(f"{one.path} is being trained by another process.", highlight=False, soft_wrap=True)
    return 1 if outcome.failed or outcome.elsewhere else 0


def _results(
    plan: Plan,
    searched: dict[tuple[str, float | None, str], Searched],
    command: str,
    *,
    one_sided: bool,
    beside: str,
    outcome: Outcome,
) -> None:
    """The tables, in the terminal and as files; what a report needs to know, in study.json."""
    cells = group_runs(Run(one.path, one.folder.recipe(), one.folder.result()) for one in outcome.done)
    if not cells:
        return
    selected = _selected(plan, searched)
    alternative = "greater" if one_sided else "two-sided"
    recalls = recall_table(
        cells,
        reference=plan.reference,
        beside=beside,  # type: ignore[arg-type]
        alternative=alternative,  # type: ignore[arg-type]
        selected=selected,
        command=command,
    )
    levels = level_table(cells, selected=selected, command=command)
    for name, table in {"recall": recalls, "level": levels}.items():
        console.print(to_rich(table))
        _save(table, Path(plan.out) / "tables", name)
    sentences = _sentences(cells, plan.reference, one_sided=one_sided)
    for text in sentences:
        console.print(text, highlight=False, soft_wrap=True)
    write_json(
        Path(plan.out) / "study.json",
        {
            "command": command,
            "reference": plan.reference,
            "alternative": alternative,
            "selected": selected,
            "runs": [str(one.path.relative_to(plan.out)) for one in outcome.done],
            "failed": outcome.failed,
            "betas": {" ".join(map(str, place)): one.beta for place, one in searched.items()},
            "sentences": sentences,
        },
    )


def _selected(plan: Plan, searched: dict[tuple[str, float | None, str], Searched]) -> str:
    parts = []
    if searched:
        betas = [f"{one.cells[0].data} {one.beta:g}" for one in searched.values()]
        parts.append(f"{next(iter(searched.values())).selected}: {', '.join(betas)}")
    if any("cbs" in method for method in plan.methods):
        parts += ["β of the data set's recipe" if "recipe" in plan.betas else ""]
        parts += ["β as given" if any(not isinstance(beta, str) for beta in plan.betas) else ""]
    return "; ".join(part for part in parts if part)


def _sentences(cells: Sequence[Cell], reference: str, *, one_sided: bool) -> list[str]:
    found = []
    for data, of_data in by_data(cells).items():
        against = find_cell(of_data, reference)
        if against is None or len(of_data) < 2:
            continue
        tested = compare_cells(of_data, against, alternative="greater" if one_sided else "two-sided")
        found += [f"{data}, recall over all classes: {one}" for one in tested]
    return found


def _save(table: Table, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for form, suffix in {"markdown": "md", "latex": "tex", "csv": "csv"}.items():
        write_text(folder / f"{name}.{suffix}", write(table, form))


# The search for beta


def _search(plan: Plan, data: str, imbalance: float | None, method: str, together: int | None) -> Searched:
    base = plan.base(data, imbalance, method)
    out = Path(plan.out) / "search" / "-".join([Path(data).name, *([f"{imbalance:g}"] if imbalance else []), method])

    def train(runs: Sequence[Planned]) -> None:
        outcome = _train(runs, together, f"The search for β of {method} on {data}")
        if outcome.failed or outcome.elsewhere:
            _told(outcome)
            raise ValueError(f"Expected all runs of a search to finish, but those in {out} did not.")

    def on_round(betas: tuple[float, ...]) -> None:
        progress_console.print(f"{data}, {method}: trying β = {', '.join(f'{b:g}' for b in betas)}", highlight=False)

    return search_with_runs(base, plan.search, out, train, on_round=on_round)


def _beta(given: Sequence[str], command: str) -> int:
    alone, found = _flags(given)
    if alone:
        raise ValueError(f"Expected flags after `longtail study beta`, but got {alone[0]!r}.")
    together = _number("together", found)
    method = found.pop("method", ["cbs"])
    content = {"out": "runs/beta", **_content(found), "methods": list(method), "betas": ["search"], "seeds": 1}
    plan = make_plan(content)
    for data, imbalance, name in plan.searches:
        searched = _search(plan, data, imbalance, name, together)
        folder, trace = searched.cells[0].runs[0].path.parent, trace_table(searched, command)
        console.print(to_rich(trace))
        console.print(to_rich(searched.sensitivity(command, wide=False)))
        _save(trace, folder, "trace")
        _save(searched.sensitivity(command), folder, "sensitivity")
        console.print(f"{searched.cells[0].data}: {searched.found.choice}", highlight=False, soft_wrap=True)
    return 0


# What is there already


def _table(given: Sequence[str], command: str) -> int:
    alone, found = _flags(given)
    form = _one("format", found, ("terminal", *FORMATS))
    one_sided, beside = _switch("one_sided", found), _one("beside", found, ("quoted", "nothing", "paper"))
    reference = found.pop("reference", ["balanced-softmax"])[0]
    recalls = partial(
        recall_table,
        reference=reference,
        beside=beside,  # type: ignore[arg-type]
        alternative="greater" if one_sided else "two-sided",
    )
    tables: dict[str, Callable[..., Table]] = {
        "recall": recalls,
        "level": level_table,
        "gradient": gradient_table,
        "shift": shift_table,
        "paper": paper_table,
    }
    what = _one("what", found, tuple(tables))
    if found:
        raise ValueError(f"Expected the flags that `longtail study --help` shows, but got --{next(iter(found))}.")
    if not alone:
        raise ValueError("Expected folders of runs, but got none.")
    runs = read_runs(*alone)
    if not runs:
        raise ValueError(f"Expected finished runs in {', '.join(alone)}, but there are none.")
    told = _told_before(alone)
    table = tables[what](group_runs(runs), selected=told.get("selected", ""), command=told.get("command", command))
    if form == "terminal":
        console.print(to_rich(table))
    else:
        console.file.write(write(table, form))
    return 0


def _told_before(folders: Sequence[str]) -> dict[str, str]:
    """How a study's runs were made, where there is one study."""
    file = Path(folders[0]) / "study.json"
    return json.loads(file.read_text(encoding="utf-8")) if len(folders) == 1 and file.exists() else {}


def _paper(given: Sequence[str], _: str) -> int:
    alone, found = _flags(given)
    out = found.pop("out", [""])
    if alone or found or len(out) != 1:
        raise ValueError("Expected nothing but --out FILE after `longtail study paper`, but got more.")
    if out[0]:
        write_text(Path(out[0]), significance_page())
    else:
        console.file.write(significance_page())
    return 0

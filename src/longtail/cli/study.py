"""``longtail study``: plans of runs and the search for beta, carried out; its other commands are in study_tables.py."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from longtail._program import program
from longtail.cli.study_ahead import dry_run
from longtail.cli.study_flags import is_given, number_after, plan_content, split_flags
from longtail.cli.study_tables import save_table, table
from longtail.cli.study_view import Progress
from longtail.study.captions import NO_DATA, measured_on, told_of
from longtail.study.comparisons import contrasts_of
from longtail.study.conduct import Found, More, Place, conduct, search_folder
from longtail.study.execute import Outcome, execute
from longtail.study.plan import Plan, Planned
from longtail.study.plan_reading import make_plan, read_plan
from longtail.study.record import StudyRecord, missing_of, now, read_studies, write_study
from longtail.study.runs import Cell, Run, by_data, data_title, group_runs, held_out, read_run
from longtail.study.searching import trace_table
from longtail.study.stats import Alternative
from longtail.study.table import show
from longtail.study.tables import level_table, recall_table
from longtail.train.trainer import StoppedError

__all__ = ["run"]

USAGE = """usage: longtail study PLAN.toml … [--dry-run] [FLAGS]
       longtail study --data NAME … --methods NAME … --seeds N [--imbalance N …] [--betas B …] [FLAGS]
       longtail study beta --data NAME [--imbalance N] [--method NAME] [--dry-run] [SEARCH FLAGS]
       longtail study table RUNS … [--format terminal|markdown|latex|csv] [--what recall|level]

Run methods on data sets with several seeds, and compare them. What is done is skipped; after a stop the same command
goes on. A plan is TOML with the same names: data, imbalance, methods, betas, seeds, out, reference, and the tables
[recipe] and [search]. Several plans are trained together; flags beside them count for all.

  --data NAME …         data sets that `longtail data list` shows, or paths
  --imbalance N …       imbalance factors, for data sets that are made long-tailed here
  --methods NAME …      that `longtail methods` shows; with parameters as in bcl:beta=1.8
  --betas B …           of CBS: numbers, `recipe` (the data set's recipe, the default) or `search`
  --seeds N | N N …     how many seeds, or which
  --out DIR             where the run folders go (default: runs/study)
  --reference NAME      the method that others are tested against (default: balanced-softmax, or the first method)
  --one-sided           test as the paper did, for `greater` only
  --together N          runs at a time on a device (default: 12 small models on a GPU, else 1)
  --dry-run             say what would be run and about how long it takes, going by finished runs or a few steps
  --FIELD VALUE …       any setting of `longtail train`, for all runs

The search for beta starts with 1.0, 1.1, 1.2, 1.3 and goes outwards until it is beyond the peak:

  --folds N             cross-validation folds (default: 5, or none where the data set has validation data of its own
                        or --validation is another than its recipe's)
  --search-seeds N      seeds a fold (default: 1)
  --criterion WHAT      all (default), level, or weights of groups as in head=1,tail=2
  --start B …  --step B  --bounds LOW HIGH  --ahead N (steps outwards at a time)
  --select-on val|test  `test` looks at test data, and every caption says so

`table` shows runs as their study tested them; --reference NAME, --one-sided and --no-one-sided say otherwise.
"""

console = Console()
progress_console = Console(stderr=True)


def run(arguments: Sequence[str]) -> int:
    """Parse, run, print."""
    given = list(arguments)
    if not given or "--help" in given or "-h" in given:
        console.print(USAGE, highlight=False, markup=False, soft_wrap=True)
        return 0
    command = f"{program()} study {shlex.join(given)}"
    try:
        return _COMMANDS.get(given[0], _study)(given[1:] if given[0] in _COMMANDS else given, command)
    except StoppedError as stopped:
        _tell_failed(stopped.failed)
        progress_console.print("Stopped; the same command goes on.", highlight=False)
        return 130


def _study(given: Sequence[str], command: str) -> int:
    alone, found = split_flags(given)
    together, dry = number_after("together", found), is_given("dry_run", found)
    one_sided = is_given("one_sided", found)
    wrong = [name for name in alone if not name.endswith(".toml")]
    if wrong:
        raise ValueError(f"Expected a plan that ends in .toml, {', '.join(_COMMANDS)}, or flags, but got {wrong[0]!r}.")
    if len(alone) > 1 and "out" in found:
        raise ValueError("Expected no --out beside several plans, which say each where their runs go, but got one.")
    content = plan_content(found)
    plans = _read_plans(alone, content) if alone else [make_plan(content)]
    if dry:
        dry_run(plans, together)
        return 0

    def begin() -> None:
        for plan in plans:
            write_study(Path(plan.out), _begun(plan, command, {}, one_sided=one_sided))

    searched, outcome = _conduct(plans, together, command, begin)
    for plan, of_plan in zip(plans, searched, strict=True):
        _show_searches(of_plan, command)
        _results(plan, of_plan, command, one_sided=one_sided, outcome=outcome)
    return _told(outcome)


def _read_plans(names: Sequence[str], content: dict[str, Any]) -> list[Plan]:
    """All plans; what is wrong with any of them is told at once."""
    plans, wrong = [], []
    for name in names:
        try:
            plans.append(read_plan(name, content))
        except ValueError as error:
            wrong.append(str(error) if len(names) == 1 else f"{name}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong))
    return plans


def _conduct(
    plans: Sequence[Plan],
    together: int | None,
    command: str,
    begin: Callable[[], None] = lambda: None,
    *,
    searches_only: bool = False,
) -> tuple[list[Found], Outcome]:
    """Carry out plans; ``begin`` is called when nothing is in the way of the first run."""

    def train(runs: Sequence[Planned], more: More) -> Outcome:
        begin()
        with Progress(runs, progress_console, "The search for β" if searches_only else "The study") as view:
            return execute(runs, together=together, watch=view, more=lambda: view.joined_by(more()))

    def on_round(place: Place, betas: Sequence[float]) -> None:
        data, imbalance, method = place
        tried = ", ".join(f"{beta:g}" for beta in betas)
        progress_console.print(f"{data_title(data, imbalance)}, {method}: trying β = {tried}", highlight=False)

    return conduct(plans, train, on_round=on_round, searches_only=searches_only, command=command)


def _tell_failed(failed: Mapping[str, str]) -> None:
    for path, error in failed.items():
        progress_console.print(f"{path} failed: {error}", highlight=False, markup=False, soft_wrap=True)


def _told(outcome: Outcome) -> int:
    _tell_failed(outcome.failed)
    for one in outcome.elsewhere:
        progress_console.print(f"{one.path} is being trained by another process.", highlight=False, soft_wrap=True)
    for sentence in outcome.unsearched:
        progress_console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.failed or outcome.elsewhere or outcome.unsearched else 0


def _results(
    plan: Plan,
    searched: Found,
    command: str,
    *,
    one_sided: bool,
    outcome: Outcome,
) -> None:
    """The tables, in the terminal and as files; what a report needs to know, in study.json."""
    record = replace(_begun(plan, command, searched, one_sided=one_sided), ended=now())
    out = Path(plan.out)
    done = [one for one in outcome.done if one.path.is_relative_to(out) and _name(plan, one.path) in record.planned]
    searches = [search_folder(plan, place) for place in plan.searches]
    failed = {
        _name(plan, Path(path)): why
        for path, why in outcome.failed.items()
        if Path(path).is_relative_to(out)
        and (_name(plan, Path(path)) in record.planned or any(map(Path(path).is_relative_to, searches)))
    }
    record = replace(record, done=[_name(plan, one.path) for one in done], failed=failed)
    write_study(out, record)
    runs = [read_run(one.path) for one in done]
    if not runs:
        return
    cells, told = group_runs(runs), told_of([out], runs)
    commands = "; ".join(told.commands)
    recalls = recall_table(
        cells,
        reference=plan.reference,
        alternative=record.alternative,
        selected=told.selected,
        command=commands,
    )
    missing = missing_of(out, [record])
    levels = level_table(cells, selected=told.selected(cells), command=commands)
    for name, table_of in {"recall": recalls, "level": levels}.items():
        made = replace(table_of, caption=f"{missing}. {table_of.caption}") if missing else table_of
        save_table(made, out / "tables", name)
        show(made, console)
    sentences = _sentences(cells, plan.reference, record.alternative)
    for text in sentences:
        console.print(text, highlight=False, soft_wrap=True)
    write_study(out, replace(record, sentences=sentences))
    _tell_where(out / "tables", plan)


def _tell_where(tables: Path, plan: Plan) -> None:
    out = shlex.quote(plan.out)
    text = f"Tables: {tables}; `longtail report {out}` makes a page of it."
    if len(read_studies(Path(plan.out))) > 1:  # whose tables had the same names
        others = f"of all in {plan.out}: `longtail study table {out}`, `longtail report {out}`"
        text = f"Tables of this study: {tables}; {others}."
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _begun(plan: Plan, command: str, searched: Found, *, one_sided: bool) -> StudyRecord:
    """What is known of a study before its first run, and with what its searches found after the last."""
    planned = plan.runs({place: one.beta for place, one in searched.items()})
    searches = {place: searched[place].beta if place in searched else None for place in plan.searches}
    return StudyRecord(
        command=command,
        reference=plan.reference,
        alternative="greater" if one_sided else "two-sided",
        planned=[_name(plan, run.path) for run in planned],
        selected=_selected(plan, searched),
        searches={f"{data_title(place[0], place[1])} {place[2]}": beta for place, beta in searches.items()},
        began=now(),
    )


def _name(plan: Plan, path: Path) -> str:
    return path.relative_to(plan.out).as_posix()


def _selected(plan: Plan, searched: Found) -> dict[str, list[str]]:
    """How the beta of each run is chosen."""
    found: dict[str, list[str]] = {}

    def add(part: Plan, way: str) -> None:
        for run in part.runs():
            if run.recipe.beta is not None:
                found.setdefault(_name(plan, run.path), []).append(way)

    for (data, imbalance, method), one in searched.items():
        factor = () if imbalance is None else (imbalance,)
        add(replace(plan, data=(data,), imbalance=factor, methods=(method,), betas=(one.beta,)), one.selected)
    for beta in plan.betas:
        if beta != "search":
            way = "β of the data set's recipe" if isinstance(beta, str) else "β as given"
            add(replace(plan, betas=(beta,)), way)
    return found


def _sentences(cells: Sequence[Cell], reference: str, alternative: Alternative) -> list[str]:
    """What was found on each data set, a sentence a method; and what was not tested."""
    found = []
    for data, of_data in by_data(cells).items():
        part = held_out(of_data)
        if part is None:
            found.append(f"{data}: not compared, {NO_DATA}.")
            continue
        on = "" if part == "test" else f" on {measured_on(of_data)}"
        tested = contrasts_of(of_data, reference, partial(Run.recall, part=part), alternative=alternative)
        found += [f"{data}, recall over all classes{on}: {one}" for one in tested.contrasts]
        found += tested.without
    return found


def _beta(given: Sequence[str], command: str) -> int:
    alone, found = split_flags(given)
    if alone:
        raise ValueError(f"Expected flags after `longtail study beta`, but got {alone[0]!r}.")
    for flag, instead in {"methods": "--method", "betas": "--start", "seeds": "--search-seeds"}.items():
        if flag in found:
            raise ValueError(f"Expected {instead} after `longtail study beta`, but got --{flag}.")
    together, dry = number_after("together", found), is_given("dry_run", found)
    method = found.pop("method", ["cbs"])
    content = {"out": "runs/beta", **plan_content(found), "methods": list(method), "betas": ["search"], "seeds": 1}
    plan = make_plan(content)
    if dry:
        dry_run([plan], together, searches_only=True)
        return 0
    (searches,), outcome = _conduct([plan], together, command, searches_only=True)
    _show_searches(searches, command)
    if searches:
        _tell_where(Path(plan.out) / "search", plan)
    return _told(outcome)


def _show_searches(searches: Found, command: str) -> None:
    """The trace of each search, how recall depends on beta, and what was chosen; the tables beside its runs too."""
    for searched in searches.values():
        folder, trace = searched.cells[0].runs[0].path.parent, trace_table(searched, command)
        show(trace, console)
        show(searched.sensitivity(command, wide=False), console)
        save_table(trace, folder, "trace")
        save_table(searched.sensitivity(command), folder, "sensitivity")
        console.print(f"{searched.cells[0].data}: {searched.found.choice}", highlight=False, soft_wrap=True)


_COMMANDS: dict[str, Callable[[Sequence[str], str], int]] = {"beta": _beta, "table": table}

"""``longtail study``: run a plan and compare its methods, search for beta, show tables of finished runs."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable

from longtail._checks import nearest
from longtail._program import program
from longtail.cli.show import TOLD_SECONDS, Pace, bar_line, clock
from longtail.methods.params import parse_setting
from longtail.study.captions import NO_DATA
from longtail.study.conduct import Outcome, Searches
from longtail.study.estimate import describe
from longtail.study.plan import SearchKey, StudyPlan, make_plan, read_plan
from longtail.study.record import read_studies
from longtail.study.rendering import FORMATS, show, write
from longtail.study.results import Results
from longtail.study.runs import HELD_WORDS, Held, Run, data_title
from longtail.study.search import trace_table
from longtail.study.search_rule import SearchPlan
from longtail.study.stats import Alternative, summarise
from longtail.study.study import Progress, Study, run_studies
from longtail.train.recipe import setting_types
from longtail.train.trainer import StoppedError

__all__ = ["run"]

USAGE = """usage: longtail study PLAN.toml … [--dry-run] [FLAGS]
       longtail study --data NAME … --methods NAME … --seeds N [--imbalance N …] [--betas B …] [FLAGS]
       longtail study beta --data NAME [--imbalance N] [--method NAME] [--dry-run] [SEARCH FLAGS]
       longtail study table RUNS … [--format terminal|markdown|latex|csv|html] [--what recall|level]

Run methods on data sets with several seeds, and compare them. Finished runs are skipped; after a stop, the same command
continues. A plan is a TOML file with the same names: data, imbalance, methods, betas, seeds, out, reference, and the
tables [recipe] and [search]. Several plans are trained together; flags apply to all of them.

  --data NAME …         data sets that `longtail data list` shows, or paths
  --imbalance N …       imbalance factors, for data sets that are made long-tailed here
  --methods NAME …      methods that `longtail methods` shows, with parameters as in bcl:beta=1.8
  --betas B …           for methods with a beta: numbers, `recipe` (of the data set, the default) or `search`
  --seeds N | N N …     the number of seeds, or the seeds
  --out DIR             folder of the runs (default: runs/study)
  --reference NAME      the method that others are tested against (default: balanced-softmax, or the first method)
  --one-sided           one-sided tests (`greater`), as in the paper
  --together N          runs at a time on a device (default: 12 small models on a GPU, else 1)
  --dry-run             show what would be run and about how long it takes
  --FIELD VALUE …       any setting of `longtail train`, for all runs

The search for beta starts with 1.0, 1.1, 1.2, 1.3 and goes outwards until it is past the peak:

  --folds N             cross-validation folds (default: 5, or none if the data set has a validation split or
                        --validation differs from its recipe)
  --search-seeds N      seeds per fold (default: 1)
  --criterion WHAT      all (default), level, or weights of groups as in head=1,tail=2
  --start B …  --step B  --bounds LOW HIGH  --ahead N (steps outwards per round)
  --select-on val|test  `test` chooses on test data, and every caption says so

`table` tests runs as their study did, unless --reference NAME, --one-sided or --no-one-sided is given.
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
    commands = {"beta": _beta, "table": _table}
    try:
        return commands.get(given[0], _study)(given[1:] if given[0] in commands else given, command)
    except StoppedError as stopped:
        _print_failed(stopped.failed)
        progress_console.print("Stopped; the same command continues.", highlight=False)
        return 130


def _study(given: Sequence[str], command: str) -> int:
    names, flags = _split(given)
    together, dry = _number("together", flags), _is_given("dry_run", flags)
    alternative: Alternative = "greater" if _is_given("one_sided", flags) else "two-sided"
    wrong = [name for name in names if not name.endswith(".toml")]
    if wrong:
        raise ValueError(f"Expected a plan that ends in .toml, `beta`, `table`, or flags, but got {wrong[0]!r}.")
    if len(names) > 1 and "out" in flags:
        raise ValueError("Expected no --out with several plans, which have their own folders, but got one.")
    content = _content(flags)
    plans = _read_plans(names, content) if names else [make_plan(content)]
    if dry:
        _print(describe(plans, together))
        return 0
    studies = [Study(plan, alternative=alternative, command=command) for plan in plans]
    with View("The study") as view:
        found = run_studies(studies, together, view, _print_round)
    for plan, results in zip(plans, found, strict=True):
        _print_searches(results.searches, command)
        if results.runs:
            for what in ("recall", "level"):
                show(results.table(what), console)
            _print("\n".join(results.sentences()))
            _print_where(Path(plan.out) / "tables", plan)
    return _exit_code(found[0].outcome)


def _beta(given: Sequence[str], command: str) -> int:
    names, flags = _split(given)
    if names:
        raise ValueError(f"Expected flags after `longtail study beta`, but got {names[0]!r}.")
    for flag, instead in {"methods": "--method", "betas": "--start", "seeds": "--search-seeds"}.items():
        if flag in flags:
            raise ValueError(f"Expected {instead} after `longtail study beta`, but got --{flag}.")
    together, dry = _number("together", flags), _is_given("dry_run", flags)
    methods = flags.pop("method", ["cbs"])
    plan = make_plan({"out": "runs/beta", **_content(flags), "methods": methods, "betas": ["search"], "seeds": 1})
    if dry:
        _print(describe([plan], together, searches_only=True))
        return 0
    with View("The search for β") as view:
        searches, outcome = Study(plan, command=command).search(together, view, _print_round)
    _print_searches(searches, command)
    if searches:
        _print_where(Path(plan.out) / "search", plan)
    return _exit_code(outcome)


def _table(given: Sequence[str], command: str) -> int:
    folders, flags = _split(given)
    form, what = _choice("format", flags, ("terminal", *FORMATS)), _choice("what", flags, ("recall", "level"))
    reference = flags.pop("reference", None)
    if reference is not None and len(reference) != 1:
        raise ValueError(f"Expected a method after --reference, but got {' '.join(reference) or 'nothing'}.")
    one_sided, two_sided = _is_given("one_sided", flags), _is_given("no_one_sided", flags)
    if flags:
        raise ValueError(f"Expected the flags that `longtail study --help` shows, but got --{next(iter(flags))}.")
    results = Results.read(*folders, reference=reference[0] if reference else None)
    if one_sided or two_sided:
        results = replace(results, alternative="greater" if one_sided else "two-sided")
    if reference or results.alternative or results.recorded.unrecorded:
        results = replace(results, command=command)
    table = results.table(what)
    if form == "terminal":
        show(table, console)
    else:
        console.file.write(write(table, form))
    return 0


# Flags


_PLAN = {field.name: field.name for field in fields(StudyPlan) if field.name not in {"recipe", "search"}}
_SEARCH = {field.name: field.name for field in fields(SearchPlan) if field.name != "seeds"} | {"search_seeds": "seeds"}
_LISTS = {"data", "methods", "imbalance", "betas", "start", "bounds", "milestones"}


def _split(given: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words without a flag, and each flag with its values."""
    alone: list[str] = []
    flags: dict[str, list[str]] = {}
    values = alone
    for word in given:
        if not word.startswith("--"):
            values.append(word)
            continue
        flag, sign, value = word[2:].partition("=")
        name = flag.replace("-", "_")
        if name in flags:
            raise ValueError(f"Expected --{flag} once, with all its values, but it was given twice.")
        values = flags[name] = [value] if sign else []
    return alone, flags


def _content(flags: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return flags as the content of a plan."""
    switches = {name for name, kind in setting_types().items() if kind is bool}
    known = {*_PLAN, *_SEARCH, *setting_types(), "together", "dry_run", "one_sided"}
    content: dict[str, Any] = {"recipe": {}, "search": {}}
    for name, texts in flags.items():
        flag, off = f"--{name.replace('_', '-')}", name.startswith("no_") and name.removeprefix("no_") in switches
        if name not in known and not off:
            near = nearest(flag, (f"--{one.replace('_', '-')}" for one in sorted(known)))
            raise ValueError(f"Expected a flag that `longtail study --help` shows, but got {flag}{near}.")
        if not texts and name not in switches and not off:
            raise ValueError(f"Expected a value after {flag}, but got nothing.")
        if len(texts) > 1 and name not in _LISTS | {"seeds"}:
            raise ValueError(f"Expected one value after {flag}, but got {' '.join(texts)}.")
        value: Any = [_value(name, text) for text in texts]
        value = value if len(texts) > 1 or name in _LISTS else value[0] if texts else not off
        if name in _PLAN:
            content[name] = texts[0] if name in {"out", "reference"} else value
        elif name in _SEARCH:
            content["search"][_SEARCH[name]] = value
        else:
            content["recipe"][name.removeprefix("no_") if off else name] = value
    return content


def _value(name: str, text: str) -> Any:
    if name in {"data", "methods"}:
        return text
    return parse_setting(text, int | float if name in {**_PLAN, **_SEARCH} else setting_types()[name])


def _number(flag: str, flags: dict[str, list[str]]) -> int | None:
    texts = flags.pop(flag, None)
    if texts is None:
        return None
    if len(texts) != 1 or not texts[0].isdecimal() or not int(texts[0]):
        raise ValueError(f"Expected an integer >= 1 after --{flag}, but got {' '.join(texts) or 'nothing'}.")
    return int(texts[0])


def _choice(flag: str, flags: dict[str, list[str]], choices: Sequence[str]) -> str:
    texts = flags.pop(flag, [choices[0]])
    if len(texts) != 1 or texts[0] not in choices:
        got = " ".join(texts) or "nothing"
        raise ValueError(f"Expected --{flag} to be one of {', '.join(choices)}, but got {got}.")
    return texts[0]


def _is_given(flag: str, flags: dict[str, list[str]]) -> bool:
    texts = flags.pop(flag, None)
    if texts:
        raise ValueError(f"Expected nothing after --{flag.replace('_', '-')}, but got {texts[0]!r}.")
    return texts is not None


def _read_plans(names: Sequence[str], content: dict[str, Any]) -> list[StudyPlan]:
    """Return all plans; the problems of all of them are reported together."""
    plans, wrong = [], []
    for name in names:
        try:
            plans.append(read_plan(name, content))
        except ValueError as error:
            wrong.append(str(error) if len(names) == 1 else f"{name}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong))
    return plans


# Output


def _print(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_round(key: SearchKey, betas: Sequence[float]) -> None:
    tried = ", ".join(f"{beta:g}" for beta in betas)
    progress_console.print(f"{data_title(key[0], key[1])}, {key[2]}: trying β = {tried}", highlight=False)


def _print_failed(failed: Mapping[str, str]) -> None:
    for path, error in failed.items():
        progress_console.print(f"{path} failed: {error}", highlight=False, markup=False, soft_wrap=True)


def _print_searches(searches: Searches, command: str) -> None:
    for searched in searches.values():
        show(trace_table(searched, command), console)
        show(searched.sensitivity(command, wide=False), console)
        _print(f"{searched.cells[0].data}: {searched.found.choice}")


def _print_where(tables: Path, plan: StudyPlan) -> None:
    out = shlex.quote(plan.out)
    text = f"Tables: {tables}; `longtail report {out}` makes a page of it."
    if len(read_studies(Path(plan.out))) > 1:
        others = f"of all studies in {plan.out}: `longtail study table {out}`, `longtail report {out}`"
        text = f"Tables of this study: {tables}; {others}."
    _print(text)


def _exit_code(outcome: Outcome | None) -> int:
    if outcome is None:
        return 0
    _print_failed(outcome.failed)
    for line in [
        *(f"{one.path} is being trained by another process." for one in outcome.elsewhere),
        *outcome.unfinished,
    ]:
        progress_console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.failed or outcome.elsewhere or outcome.unfinished else 0


class View:
    """Progress as a live table with a bar; without a terminal, one line per finished run and one per minute."""

    def __init__(self, title: str, console: Console = progress_console) -> None:
        self.title, self.console = title, console
        self._live = Live(console=console, auto_refresh=False, transient=True) if sys.stderr.isatty() else None
        self._printed = time.monotonic()
        self._pace, self._runs = Pace(), 0

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the progress."""
        total_runs, finished = len(progress.runs), len(progress.finished)
        if self._live is None:
            for place, run in enumerate(progress.news, finished - len(progress.news) + 1):
                self._line(f"{place}/{total_runs} {run.path.name}: {_recall(run)}")
            if time.monotonic() - self._printed <= TOLD_SECONDS:
                return
        if self._runs != total_runs:  # some epochs of the runs that joined may be done
            self._pace, self._runs = Pace(), total_runs
        epochs, total = progress.epochs()
        self._pace.add(epochs)
        left, done = self._pace.left(total - epochs), f"{finished}/{total_runs} runs done"
        if self._live is not None:
            self._live.update(Group(self.table(progress), bar_line(done, epochs, total, left)), refresh=True)
        else:
            self._line(f"{done}, {epochs:,}/{total:,} epochs" + ("" if left is None else f", {clock(left)} left"))

    def _line(self, text: str) -> None:
        self._printed = time.monotonic()
        self.console.print(text, highlight=False, soft_wrap=True)

    def table(self, progress: Progress) -> RichTable:
        """Return what is done and the recall so far."""
        shown = RichTable(title=self.title, box=box.SIMPLE_HEAD, header_style="bold")
        for name in ("Data", "Method"):
            shown.add_column(name)
        for name in ("runs", "epochs", "recall so far"):
            shown.add_column(name, justify="right")
        for (data, method), runs in progress.cells().items():
            done = [progress.finished[run.path] for run in runs if run.path in progress.finished]
            epochs, total = progress.epochs(runs)
            known = [run.recall(part=part) for run in done if (part := _measured_on(run)) is not None]
            recall = str(summarise(known)) if known else ""
            recall += " (validation)" if any(_measured_on(run) == "val" for run in done) else ""
            shown.add_row(data, method, f"{len(done)}/{len(runs)}", f"{epochs:,}/{total:,}", recall)
        return shown


def _measured_on(run: Run) -> Held | None:
    """The held-out fold for runs on folds, which a search chooses by; else test data."""
    return "val" if run.recipe.folds else run.held_out


def _recall(run: Run) -> str:
    part = _measured_on(run)
    if part is None:
        return f"done; {NO_DATA}"
    return f"recall {run.recall(part=part):.2f}" + ("" if part == "test" else f" on {HELD_WORDS[part]}")

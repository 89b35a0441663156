"""``longtail study``: run a plan and compare its methods, search for beta, show tables of finished runs."""

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from longtail._io import write_text
from longtail._program import printable, program
from longtail._registry import load_plugins
from longtail.cli.launch import add_launch, read_launch, submit_to_slurm, with_sbatch
from longtail.cli.parsing import TOGETHER_HELP, Parser, add_settings, positive_integer, read_settings
from longtail.cli.show import Phases, console, print_line, progress_console, time_left
from longtail.data import data_title
from longtail.integrations.ray import run_on_ray
from longtail.methods import default_reference, parse_method
from longtail.methods.params import parse_setting
from longtail.study.captions import NO_DATA
from longtail.study.conduct import Outcome, Searches, describe_plans, known_runs
from longtail.study.decision import ENOUGH_SEEDS
from longtail.study.estimate import estimate
from longtail.study.planning import SearchKey, StudyPlan, make_plan, read_plan, write_plan
from longtail.study.record import read_studies
from longtail.study.rendering import FORMATS, print_table
from longtail.study.results import Results
from longtail.study.runs import HELD_WORDS, Run
from longtail.study.search import trace_table
from longtail.study.study import Progress, Study, run_studies
from longtail.study.workers import describe_status, status
from longtail.train.dataset import data_notes
from longtail.train.launch import describe_fit
from longtail.train.recipe import write_recipe
from longtail.train.trainer import StoppedError

_ABOUT = """Train methods on data sets with several seeds, and compare them. Finished runs are skipped; after a stop,
the same command continues.

  longtail study --data NAME … --methods NAME … [--seeds N] [--imbalance N …] [--betas B …]
  longtail study PLAN.toml … [--dry-run]      plans with the same names and the tables [recipe] and [search]
  longtail study PLAN.toml … --join           share the study with other workers, on this machine or others
  longtail study PLAN.toml … --on slurm --workers 8 --time 4:00:00    or --on ray: workers on a cluster
  longtail study PLAN.toml … --status         what is done, what runs where, what failed
  longtail study beta --data NAME             only search for beta
  longtail study table RUNS …                 tables of finished runs"""


def run(words: Sequence[str]) -> int:
    """Parse, run, print."""
    load_plugins()
    commands = {"beta": _beta, "table": _table}
    try:
        with Phases():
            if words and words[0] in commands:
                return commands[words[0]](words[1:], f"{program()} study {shlex.join(words)}")
            return _study(words or ["--help"])
    except StoppedError as stopped:
        for path, error in stopped.failed.items():
            print_line(f"{path} failed: {error}", progress_console)
        print_line("Stopped; the same command continues.", progress_console)
        return 130


def _study(words: Sequence[str]) -> int:
    parser = _parser(
        "longtail study",
        _ABOUT,
        "[PLAN.toml …] [--FLAG VALUE …]",
        ("methods", "as `longtail methods` shows them, with parameters as in bcl:beta=1.8", _SEVERAL),
        ("seeds", "the number of seeds, or the seeds (default: 3; a plan names its own)", _SEVERAL),
        ("betas", "for methods with a beta: numbers, auto, recipe (of the data set) or search", _SEVERAL),
        ("reference", "the method that others are tested against", {"metavar": "NAME"}),
    )
    parser.flag("--join", "work on the study together with other processes that do the same", action="store_true")
    parser.flag("--status", "show what is done, running, waiting and failed", action="store_true")
    parser.flag("--json", "with --status: as JSON", action="store_true")
    parser.flag("--commands", "print a command for each run that is not done", action="store_true")
    parser.add_argument("plans", nargs="*", metavar="PLAN.toml", help="plans; flags apply to all of them")
    add_launch(parser)
    given = parser.read(with_sbatch(words))
    with nullcontext() if given.plans else parser.errors_name_flags():  # the settings of a plan are no flags
        return _run_study(given)


def _run_study(given: argparse.Namespace) -> int:
    launch = read_launch(given)
    wrong = [name for name in given.plans if not name.endswith(".toml")]
    if wrong:
        raise ValueError(f"Expected a plan that ends in .toml, `beta`, `table`, or flags, but got {wrong[0]!r}.")
    if len(given.plans) > 1 and given.out is not None:
        raise ValueError("Expected no --out with several plans, which have their own folders, but got one.")
    content = _content(given)
    if given.dry_run or given.status:  # nothing is written
        content["recipe"]["cache"] = False
    slurm = launch is not None and launch.on == "slurm"
    if slurm:  # this machine may have no GPU
        _read_plans(given, {**content, "recipe": {**content["recipe"], "device": "auto"}})
    plans = _read_plans(given, content, to_run=not slurm)
    if given.dry_run:
        print_line(describe_plans(plans, estimate=partial(estimate, together=given.together, from_start=True)))
        return 0
    if given.status:
        state = status(plans, known_runs(plans))
        console.file.write((json.dumps(state, indent=1) if given.json else printable(describe_status(state))) + "\n")
        return 0
    if given.commands:
        return _print_commands(plans)
    if launch and slurm:
        return submit_to_slurm(launch, plans, given.together)
    _print_notes(plans)
    fits = (describe_fit(run.recipe) for plan in plans for run in plan.runs())
    for line in dict.fromkeys(filter(None, fits)):
        print_line(line)
    commands = {f"{program()} study {shlex.quote(str(write_plan(plan)))}": plan for plan in plans}
    return _run([Study(plan, command=command) for command, plan in commands.items()], given, launch)


def _read_plans(given: argparse.Namespace, content: dict[str, Any], *, to_run: bool = True) -> list[StudyPlan]:
    """Return the plans of a command line, checked if they will be run here."""
    found = [read_plan(name, content, to_run=to_run) for name in given.plans]
    return found or [make_plan({"seeds": 3, **content}, to_run=to_run)]


def _run(studies: Sequence[Study], given: argparse.Namespace, launch: argparse.Namespace | None) -> int:
    """Train studies, and print their results."""
    with View() as view:
        if launch:
            found = run_on_ray(
                studies,
                address=launch.address,
                workers=launch.workers,
                gpus_per_worker=launch.gpus,
                together=given.together,
                on_progress=view,
                on_round=_print_round,
            )
        else:
            found = run_studies(studies, given.together, view, _print_round, join=given.join, read=not given.join)
    for study, results in zip(studies, found, strict=True):
        _print_results(study.plan, results, study.command)
    return _exit_code(found[0].outcome)


def _print_results(plan: StudyPlan, results: Results, command: str) -> None:
    _print_searches(results.searches, command)
    for searched in results.searches.values():
        print_line(f"{searched.cells[0].data}: {searched.choice.reason}")
    if results.runs:
        print_table(results.table("recall"), console)
        print_table(results.table("measures", about=False), console)
        for sentence in results.sentences():
            print_line(sentence)
        _print_where(Path(plan.out) / "tables", plan)
        for data, decision in results.decisions().items():
            print_line(f"{data}: {decision}")
    elif results.outcome and results.outcome.done:
        tables = Path(plan.out) / "tables"
        where = f"tables: {tables}" if tables.is_dir() else "another worker writes the tables"
        print_line(f"{len(results.outcome.done)} runs are done; {where}.")


def _print_commands(plans: Sequence[StudyPlan]) -> int:
    """Print a command for each run that is not done, and write the recipes that they read."""
    for run in known_runs(plans):
        if not run.folder.done:
            if not run.folder.begun:
                run.path.mkdir(parents=True, exist_ok=True)
                write_text(run.folder.recipe_file, write_recipe(run.recipe))
            words = [str(run.folder.recipe_file), "--out", str(run.path)]
            console.file.write(f"{program()} train {shlex.join(words)}\n")
    if any(plan.searches for plan in plans):
        print_line("Searches for beta have more runs; run this command again when these are done.", progress_console)
    return 0


def _beta(words: Sequence[str], command: str) -> int:
    about = "Search for the beta of a method on held-out training data."
    method = ("method", "methods with a beta", {"default": ["cbs"], **_SEVERAL})
    parser = _parser("longtail study beta", about, "--data NAME [--FLAG VALUE …]", method)
    given = parser.read(words)
    with parser.errors_name_flags():
        return _search_beta(given, command)


def _search_beta(given: argparse.Namespace, command: str) -> int:
    content = _content(given) | {"methods": given.method, "betas": ["search"], "seeds": 1}
    content.setdefault("out", "runs/beta")
    if given.dry_run:  # nothing is written
        content["recipe"]["cache"] = False
    plan = make_plan(content)
    if given.dry_run:
        print_line(
            describe_plans(
                [plan], searches_only=True, estimate=partial(estimate, together=given.together, from_start=True)
            )
        )
        return 0
    _print_notes([plan])
    with View() as view:
        searches, outcome = Study(plan, command=command).search(given.together, view, _print_round)
    _print_searches(searches, command)
    if searches:
        _print_where(Path(plan.out) / "search", plan)
    for key, searched in searches.items():
        print_line(f"{searched.cells[0].data}: {searched.choice.reason}")
        file = write_plan(_next_plan(plan, key, searched.beta), plan.search_folder(key) / "test.toml")
        print_line(f"Next, test it with {ENOUGH_SEEDS} seeds: {program()} study {shlex.quote(str(file))}")
    return _exit_code(outcome)


def _next_plan(plan: StudyPlan, key: SearchKey, beta: float) -> StudyPlan:
    """Return the plan that compares the beta of a search with the usual reference, with the same settings."""
    data, imbalance, method = key
    reference = default_reference(())
    chosen = f"{method}{',' if ':' in method else ':'}{parse_method(method)[0].beta}={beta:g}"
    return replace(
        plan,
        data=(data,),
        imbalance=() if imbalance is None else (imbalance,),
        methods=(reference, chosen),
        betas=("recipe",),
        seeds=tuple(range(ENOUGH_SEEDS)),
        out=StudyPlan.out,
        reference=reference,
    )


def _table(words: Sequence[str], command: str) -> int:
    parser = Parser("longtail study table", "Show a table of finished runs, tested as their study did.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders of runs")
    parser.flag("--what", "recall, or other measures", choices=("recall", "measures"), default="recall")
    parser.flag("--format", "of the output", choices=("terminal", *FORMATS), default="terminal")
    parser.flag("--reference", "test against another method", metavar="NAME")
    given = parser.read(words)
    results = Results.read(*given.runs, reference=given.reference)
    if given.reference or results.recorded.unrecorded:
        results = replace(results, command=command)
    table = results.table(given.what)
    if given.format == "terminal":
        print_table(table, console)
    else:
        console.file.write(FORMATS[given.format](table))
    return 0


# Flags

_SEVERAL: dict[str, Any] = {"nargs": "+", "metavar": "VALUE"}
_PLAN = ("data", "imbalance", "methods", "betas", "seeds", "out", "reference")
_SEARCH = {
    "folds": (int, "cross-validation folds (default: 5, or none with validation data)"),
    "search_seeds": (int, "seeds per fold (default: 1)"),
    "start": (float, "the first betas (default: 1.0 1.1 1.2 1.3)"),
    "step": (float, "step outwards until past the peak (default: 0.1)"),
    "bounds": (float, "smallest and largest beta (default: 0 3)"),
    "select_on": (str, "val (default); test chooses on test data, and every caption says so"),
}
_PLAN_SETTINGS = frozenset({"data", "imbalance", "method", "seed", "folds", "fold"})
"""Settings of a recipe that the plan determines."""


def _parser(prog: str, description: str, usage: str, *flags: tuple[str, str, dict[str, Any]]) -> Parser:
    """Return a parser with these flags, and those of a plan, of a search and of recipes."""
    parser = Parser(prog, description, usage=usage)
    parser.flag("--data", "data sets that `longtail data list` shows, or paths", **_SEVERAL)
    for name, help, options in flags:
        parser.flag(f"--{name}", help, **options)
    parser.flag("--imbalance", "imbalance factors, for data sets that are made long-tailed here", **_SEVERAL)
    parser.flag("--out", "folder of the runs (default: runs/study, runs/beta)", metavar="DIR")
    add_settings(parser, {}, _PLAN_SETTINGS, common=True)
    parser.flag("--dry-run", "show what would be run and how long it would take", action="store_true")
    parser.flag("--together", TOGETHER_HELP, type=positive_integer, metavar="N")
    group = parser.add_argument_group("search for beta")
    for name, (kind, help) in _SEARCH.items():
        several: dict[str, Any] = {"nargs": "+"} if name in {"start", "bounds"} else {}
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=help, metavar="VALUE", **several)
    add_settings(parser, {}, leave_out=_PLAN_SETTINGS)
    return parser


def _content(given: argparse.Namespace) -> dict[str, Any]:
    """Return flags as the content of a plan."""
    numbers = {"imbalance", "betas", "seeds"}
    content: dict[str, Any] = {}
    for name in _PLAN:
        value = getattr(given, name, None)
        if value is not None:
            content[name] = [parse_setting(text, int | float) for text in value] if name in numbers else value
    if len(content.get("seeds", ())) == 1:
        content["seeds"] = content["seeds"][0]
    search = {name: value for name in _SEARCH if (value := getattr(given, name)) is not None}
    content["search"] = {("seeds" if name == "search_seeds" else name): value for name, value in search.items()}
    settings = read_settings(given, several=False, leave_out=_PLAN_SETTINGS)
    content["recipe"] = {name: values[0] for name, values in settings.items()}
    return content


# Output


def _print_notes(plans: Sequence[StudyPlan]) -> None:
    """Print what should be known about own data before it is trained on."""
    to_run = [plan for plan in plans if plan.searches or not all(run.folder.done for run in plan.runs())]
    bases = [plan.base(*place, plan.methods[0]) for plan in to_run for place in plan.places]
    for note in data_notes(bases):
        print_line(note, progress_console)


def _print_round(key: SearchKey, betas: Sequence[float]) -> None:
    tried = ", ".join(f"{beta:g}" for beta in betas)
    print_line(f"{data_title(key[0], key[1])}, {key[2]}: trying β = {tried}", progress_console)


def _print_searches(searches: Searches, command: str) -> None:
    for searched in searches.values():
        print_table(trace_table(searched, command), console)
        print_table(searched.sensitivity(command), console)


def _print_where(tables: Path, plan: StudyPlan) -> None:
    out = shlex.quote(plan.out)
    of = f" of all studies in {plan.out}" if len(read_studies(Path(plan.out))) > 1 else ""
    print_line(f"Tables{of}: {tables}; `longtail report {out}` writes an HTML report.")


def _exit_code(outcome: Outcome | None) -> int:
    if outcome is None:
        return 0
    left = [f"{path} failed: {error}" for path, error in outcome.failed.items()]
    left += [f"{one.path} is being trained by another process." for one in outcome.elsewhere]
    left += outcome.unfinished
    for line in left:
        print_line(line, progress_console)
    return 1 if left else 0


class View(Phases):
    """A line per finished run, and a progress bar; without a terminal, a line every 30 seconds instead of the bar."""

    def __init__(self, to: Console = progress_console) -> None:
        super().__init__(to)
        self._task = self.bar.add_task("starting", total=None)

    def __call__(self, progress: Progress) -> None:
        """Show the progress."""
        finished, total = len(progress.finished), len(progress.runs)
        for place, run in enumerate(progress.news, finished - len(progress.news) + 1):
            self.line(f"{place}/{total} {run.path.name}: {_recall(run)}")
        (epochs, of), done = progress.epochs(), f"{finished}/{total} runs done"
        self.bar.update(self._task, description=done, completed=epochs, total=of)
        if self.is_time_for_a_line:
            self.line(f"{done}, {epochs:,}/{of:,} epochs{time_left(self.bar.tasks[0].time_remaining)}")


def _recall(run: Run) -> str:
    part = "val" if run.recipe.folds else run.held_out  # a search chooses by the fold
    if part is None:
        return f"done; {NO_DATA}"
    return f"recall {run.recall(part=part):.2f}" + ("" if part == "test" else f" on {HELD_WORDS[part]}")

"""Plans from TOML files and command lines: all that is wrong with one is found before the first run, told at once."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from longtail.data import CATALOG, long_tail_counts
from longtail.data.datasets.long_tail import Profile
from longtail.methods import METHODS, parse_method
from longtail.models import check_name
from longtail.study.beta import START, wrong_settings
from longtail.study.criteria import Criterion
from longtail.study.plan import (
    BETA_WORDS,
    Plan,
    Planned,
    SearchPlan,
    is_here,
    parameter_names,
    takes_beta,
    takes_imbalance,
)
from longtail.train.device import pick_device
from longtail.train.recipe import Recipe, differing_settings, setting_types, settings_of

__all__ = ["PlanError", "find_problems", "make_plan", "read_plan"]


class PlanError(ValueError):
    """A plan that cannot be run, with everything that is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(problems[0])
            return
        listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__(f"Expected a plan that can be run, but found {len(problems)} things wrong with it:{listed}")


def make_plan(content: Mapping[str, Any], *, to_run: bool = True) -> Plan:
    """A plan from plain data, as a TOML file or a command line has it; all that is wrong is refused at once.

    Args:
        content: ``data``, ``methods``, ``seeds`` (a number of seeds, or a list of them), ``imbalance``, ``betas``,
            ``out``, ``reference``, and the tables ``recipe`` and ``search``.
        to_run: whether it is to be run here; what is only looked at needs no data.

    Example:
        >>> plan = make_plan({"data": "digits-lt", "imbalance": [10, 50], "methods": ["softmax", "cbs"], "seeds": 2})
        >>> [str(run.path) for run in plan.runs()][:3]
        ['runs/study/digits-lt-10-softmax-seed0', 'runs/study/digits-lt-10-softmax-seed1',
         'runs/study/digits-lt-10-cbs-beta1.5-seed0']
    """
    problems = []
    unknown = sorted(content.keys() - {one.name for one in fields(Plan)})
    problems += [f"Expected the keys of a plan, but got `{name}`." for name in unknown]
    search = dict(content.get("search", {}))
    strange = sorted(search.keys() - {one.name for one in fields(SearchPlan)})
    problems += [f"Expected the settings of a search, but got `{name}`." for name in strange]
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in dict(content.get("recipe", {})).items()}
    known: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in search.items() if name not in strange
    }
    if "start" not in known and "bounds" in known:
        known["start"] = _start_within(known["bounds"])
    seeds = content.get("seeds", ())
    plan = Plan(
        data=tuple(_listed(content.get("data", ()))),
        methods=tuple(_listed(content.get("methods", ()))),
        seeds=tuple(range(seeds)) if _is_number_of_seeds(seeds) else tuple(_listed(seeds)),
        imbalance=tuple(_listed(content.get("imbalance", ()))),
        betas=tuple(_listed(content.get("betas", ("recipe",)))),
        out=str(content.get("out", "runs/study")),
        reference=str(content.get("reference") or _usual_reference(content)),
        recipe=settings,
        search=SearchPlan(**known),
    )
    problems += find_problems(plan) if to_run else []
    if problems:
        raise PlanError(problems)
    return plan


def _is_number_of_seeds(seeds: Any) -> bool:
    return isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 0


def _start_within(bounds: Any) -> tuple[float, ...]:
    """The usual start as far as it lies within bounds; all of it where none does, which is then refused."""
    try:
        low, high = bounds
        return tuple(beta for beta in START if low <= beta <= high) or START
    except (TypeError, ValueError):  # bounds that are none are told with all else
        return START


def _usual_reference(content: Mapping[str, Any]) -> str:
    """Balanced Softmax; where it is not among the methods, the first of them."""
    methods = [str(method) for method in _listed(content.get("methods", ()))]
    return "balanced-softmax" if "balanced-softmax" in methods or not methods else methods[0]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def read_plan(path: Path | str, given: Mapping[str, Any] | None = None, *, to_run: bool = True) -> Plan:
    """A plan from a TOML file, with what a command line gives beside it; ``to_run`` as in :func:`make_plan`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a plan in {path}, but there is no such file.")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected {path} to be TOML, but it is not: {error}.") from error
    more = dict(given or {})
    for name in ("recipe", "search"):
        content[name] = {**content.get(name, {}), **more.pop(name, {})}
    return make_plan({**content, **more}, to_run=to_run)


def find_problems(plan: Plan) -> list[str]:
    """Everything that is wrong with a plan, one sentence each."""
    found = [*_wrong_data(plan), *_wrong_methods(plan), *_wrong_betas(plan), *_wrong_seeds(plan.seeds)]
    if plan.reference not in {*plan.methods, "balanced-softmax"}:
        found.append(f"Expected `reference` to be one of the plan's methods, but got {plan.reference!r}.")
    found += _wrong_search(plan.search)
    methods = [method for method in plan.methods if not _wrong_methods(replace(plan, methods=(method,)))]
    places = [place for place in plan.places if is_here(place[0], plan.recipe)]
    found += _wrong_recipes(plan, places or [("digits-lt", None)], methods or ["softmax"])
    return found or _other_runs(plan.runs())


def _wrong_search(search: SearchPlan) -> list[str]:
    wrong = wrong_settings(search.start, search.step, search.bounds, ahead=search.ahead)
    found = [str(error) for error in wrong]
    try:
        Criterion.parse(search.criterion)
    except (TypeError, ValueError) as error:
        found.append(str(error))
    if search.folds is not None and (not isinstance(search.folds, int) or search.folds < 0 or search.folds == 1):
        found.append(f"Expected `folds` of the search to be 0 or two and more, but got {search.folds!r}.")
    if not isinstance(search.seeds, int) or search.seeds < 1:
        found.append(f"Expected `seeds` of the search to be an integer >= 1, but got {search.seeds!r}.")
    if search.select_on not in {"val", "test"}:
        found.append(f"Expected `select_on` to be val or test, but got {search.select_on!r}.")
    return found


def _wrong_data(plan: Plan) -> list[str]:
    found = [] if plan.data else ["Expected a data set, but got none."]
    for name in plan.data:
        if is_here(name, plan.recipe):
            continue
        if name in CATALOG:
            root = Path(str(plan.recipe.get("root", "data")))
            missing = next(file for file in CATALOG[name].files if not (root / file).exists())
            found.append(f"Expected {root / missing} for {name}, but it is not there; {CATALOG[name].steps}")
        else:
            found.append(f"Expected a data set that `longtail data list` shows, or a path, but got {name!r}.")
    for factor in plan.imbalance:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            found.append(f"Expected `imbalance` to be a number >= 1, but got {factor!r}.")
        elif empty := [name for name in plan.data if _leaves_none(name, factor, plan.recipe.get("profile", "exp"))]:
            found.append(f"Expected `imbalance` to leave {empty[0]} an image of each class, but got {factor:g}.")
    if plan.imbalance and plan.data and not any(map(takes_imbalance, plan.data)):
        found.append(f"Expected `imbalance` for a data set that is made long-tailed here, but got {plan.data[0]}.")
    return found


def _leaves_none(data: str, factor: float, profile: Any) -> bool:
    """Whether a class of a data set would be without training images."""
    if not takes_imbalance(data) or profile not in get_args(Profile):
        return False
    known = CATALOG[data]
    base = known.train_range
    return base is not None and not bool(long_tail_counts(known.num_classes, base[0], factor, profile=profile).all())


def _wrong_methods(plan: Plan) -> list[str]:
    found = [] if plan.methods else ["Expected a method, but got none."]
    for method in plan.methods:
        try:
            parse_method(method)
        except ValueError as error:
            found.append(str(error))
    return found


def _wrong_betas(plan: Plan) -> list[str]:
    found = [] if plan.betas else ["Expected a beta, or no `betas` at all, but got an empty list."]
    for beta in plan.betas:
        if isinstance(beta, str):
            if beta not in BETA_WORDS:
                found.append(f"Expected `betas` to be numbers, `recipe` or `search`, but got {beta!r}.")
        elif isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < math.inf:
            found.append(f"Expected `betas` to be numbers >= 0, but got {beta!r}.")
    if tuple(plan.betas) != ("recipe",) and not _wrong_methods(plan) and not any(map(takes_beta, plan.methods)):
        known = ", ".join(method.name for method in METHODS.values() if method.beta is not None)
        found.append(f"Expected `betas` with a method that has a beta ({known}), but got none.")
    return found


def _wrong_seeds(seeds: Sequence[Any]) -> list[str]:
    found = [] if seeds else ["Expected at least one seed, but got none."]
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            found.append(f"Expected `seeds` to be integers >= 0, but got {seed!r}.")
    if len(set(map(str, seeds))) < len(seeds):
        found.append(f"Expected each seed once, but got {', '.join(map(str, seeds))}.")
    return found


def _wrong_recipes(plan: Plan, places: Sequence[tuple[str, float | None]], methods: Sequence[str]) -> list[str]:
    """What the recipes themselves refuse, each sentence once: first each setting alone, then all together."""
    found: dict[str, None] = {}
    known = setting_types().keys()
    taken = ("data", "imbalance", "method", "beta", "seed", "folds", "fold")
    good: dict[str, Any] = {}
    for name, value in plan.recipe.items():
        if name not in known or name in taken:
            why = "the plan itself says" if name in taken else "no recipe has"
            found[f"Expected the settings of a recipe, but got `{name}`, which {why}."] = None
        elif name in parameter_names():
            wrong = _wrong_knob(name, value, methods)
            found |= dict.fromkeys(wrong)
            good |= {} if wrong else {name: value}
        else:
            try:
                pick_device(replace(Recipe(), **{name: value}).device)
                if name == "model":
                    _check_model(value)
            except (TypeError, ValueError, ImportError) as error:
                found[str(error)] = None
            else:
                good[name] = value
    sound = replace(plan, recipe=good, seeds=(0,))
    for data, imbalance in places:
        factor = imbalance if isinstance(imbalance, int | float) and imbalance >= 1 else None
        for method in methods:
            try:
                recipe = sound.base(data, factor, method)
            except (TypeError, ValueError, OSError) as error:
                found[str(error)] = None
                continue
            held = recipe.validation or (data in CATALOG and "val" in CATALOG[data].sizes)
            if recipe.spec.chooses_tau(recipe.params) and not held:
                found[
                    f"Expected `tau` for {method}, or validation data to choose it on (`validation` = 0.1 holds some "
                    f"out), but {data} has none."
                ] = None
    return list(found)


def _check_model(name: str) -> None:
    """Refuse a network that there is not, by the name that a plan has for it."""
    try:
        check_name(name)
    except ValueError as error:
        raise ValueError(str(error).replace("`name`", "`model`", 1)) from error


def _wrong_knob(name: str, value: Any, methods: Sequence[str]) -> list[str]:
    """What the methods that take a knob say of its value; one of them must take it."""
    known = [parse_method(method)[0].parameters for method in methods]
    taking = [parameters[name] for parameters in known if name in parameters]
    if not taking:
        return [f"Expected a method that takes `{name}`, but none of {', '.join(methods)} does."]
    try:
        for parameter in taking:
            parameter.check(value)
    except ValueError as error:
        return [str(error)]
    return []


def _other_runs(planned: Sequence[Planned]) -> list[str]:
    """Folders that hold other runs."""
    found = []
    for one in planned:
        differing = (
            differing_settings(settings_of(one.folder.recipe()), settings_of(one.recipe)) if one.folder.begun else []
        )
        if differing:
            other = f"it differs in {', '.join(differing)}; --out names another folder"
            found.append(f"Expected {one.path} to hold this run, but {other}.")
    return found

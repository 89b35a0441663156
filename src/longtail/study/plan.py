"""The plan of a study: data sets x imbalance x methods x betas x seeds, as recipes and their folders.

A plan is made from plain data (:func:`make_plan`) or a TOML file (:func:`read_plan`). Everything that is wrong with it
is reported at once, before the first run.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from longtail.data import CATALOG, long_tail_counts
from longtail.data.datasets.long_tail import Profile
from longtail.methods import METHODS, parse_method
from longtail.models import check_name
from longtail.study.search_rule import START, SearchPlan, problem_of
from longtail.train.dataset import is_small
from longtail.train.folder import RunFolder
from longtail.train.recipe import (
    Recipe,
    defaults,
    differing_settings,
    name_in_label,
    pick_device,
    setting_types,
    settings_of,
)

SearchKey = tuple[str, float | None, str]
"""Data set, imbalance factor and method of a search for beta."""


class PlanError(ValueError):
    """A plan that cannot be run, with everything that is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(problems[0])
            return
        listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__(f"Expected a plan that can be run, but found {len(problems)} problems:{listed}")


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan."""

    recipe: Recipe
    path: Path

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.path)


@dataclass(frozen=True)
class StudyPlan:
    """What a study runs; :func:`make_plan` makes one and checks it."""

    data: tuple[str, ...]
    methods: tuple[str, ...]
    """``name``, or ``name:parameter=value,…``"""
    seeds: tuple[int, ...]
    imbalance: tuple[float, ...] = ()
    betas: tuple[float | str, ...] = ("recipe",)
    """Numbers, ``"recipe"`` (the data set's recipe) or ``"search"``; for methods with a beta."""
    out: str = "runs/study"
    reference: str = "balanced-softmax"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Settings for all runs, by name."""
    search: SearchPlan = field(default_factory=SearchPlan)

    def __post_init__(self) -> None:
        named: dict[str, str] = {}
        for data in self.data:
            other = named.setdefault(name_in_label(data), data)
            if other != data:
                raise ValueError(
                    f"Expected `data` to have different names, because runs are stored by name, but got {other} and "
                    f"{data}; rename one, or make two studies."
                )

    @property
    def places(self) -> list[tuple[str, float | None]]:
        """Data sets with their imbalance factors."""
        return [
            (name, factor)
            for name in self.data
            for factor in ((self.imbalance if takes_imbalance(name) else ()) or (None,))
        ]

    def base(self, data: str, imbalance: float | None, method: str, beta: float | None = None) -> Recipe:
        """Return the recipe of a method on a data set, with the plan's settings, for the first seed."""
        known, given = parse_method(method)
        made = defaults(data, known.name, imbalance, small=data not in CATALOG and is_small(data))
        others = _parameter_names() - known.parameters.keys()
        settings = {name: value for name, value in self.recipe.items() if name not in others} | given
        if known.beta is not None and beta is not None:
            settings[known.beta] = beta
        return made.changed(**settings, seed=self.seeds[0] if self.seeds else 0)

    def runs(self, found: Mapping[SearchKey, float] | None = None) -> list[PlannedRun]:
        """Return the runs, each once.

        Args:
            found: betas that searches found; the runs with a beta that is not found yet are left out.
        """
        return list({run.path: run for run, _, _ in self.combinations(found)}.values())

    def combinations(
        self, found: Mapping[SearchKey, float] | None = None
    ) -> Iterator[tuple[PlannedRun, SearchKey, float | str]]:
        """Yield each run with its place and method, and the plan's beta; two betas may give the same run."""
        for data, imbalance in self.places:
            for method in self.methods:
                for beta in self.betas if takes_beta(method) else ("recipe",):
                    key = (data, imbalance, method)
                    value = (found or {}).get(key) if beta == "search" else beta
                    if value is None:
                        continue
                    base = self.base(*key, None if isinstance(value, str) else value)
                    label, _, _ = base.label.rpartition("seed")
                    for seed in self.seeds:
                        yield PlannedRun(replace(base, seed=seed), Path(self.out) / f"{label}seed{seed}"), key, beta

    @property
    def searches(self) -> list[SearchKey]:
        """The searches for beta."""
        if "search" not in self.betas:
            return []
        return [(*place, method) for place in self.places for method in self.methods if takes_beta(method)]

    def search_folder(self, key: SearchKey) -> Path:
        """Return the folder of the runs of a search."""
        data, imbalance, method = key
        name = method.replace(":", "-").replace(",", "-").replace("=", "")
        parts = [Path(data).name, *([f"{imbalance:g}"] if imbalance else []), name]
        return Path(self.out) / "search" / "-".join(parts)


def takes_beta(method: str) -> bool:
    """Whether the betas of a plan apply to a method: it has a beta that is not given with it.

    Example:
        >>> takes_beta("cbs"), takes_beta("bcl:beta=1.8"), takes_beta("softmax")
        (True, False, False)
    """
    known, given = parse_method(method)
    return known.beta is not None and known.beta not in given


def _parameter_names() -> frozenset[str]:
    """Settings that only some methods have; a plan gives them to those methods."""
    return frozenset(name for method in METHODS.values() for name in method.parameters)


def takes_imbalance(data: str) -> bool:
    """Whether a data set is made long-tailed by us, with any imbalance factor."""
    return data in CATALOG and CATALOG[data].imbalance is not None


def make_plan(content: Mapping[str, Any], *, to_run: bool = True) -> StudyPlan:
    """Return the plan in plain data, as a TOML file or a command line has it.

    Args:
        content: ``data``, ``methods``, ``seeds`` (a number of seeds, or a list of them), ``imbalance``, ``betas``,
            ``out``, ``reference``, and the tables ``recipe`` and ``search``.
        to_run: whether the plan will be run here; otherwise it is not checked, and needs no data.

    Raises:
        PlanError: with everything that is wrong.

    Example:
        >>> plan = make_plan({"data": "digits-lt", "imbalance": [10, 50], "methods": ["softmax", "cbs"], "seeds": 2})
        >>> [str(run.path) for run in plan.runs()][:3]
        ['runs/study/digits-lt-10-softmax-seed0', 'runs/study/digits-lt-10-softmax-seed1',
         'runs/study/digits-lt-10-cbs-beta1.5-seed0']
    """
    unknown = sorted(content.keys() - {one.name for one in fields(StudyPlan)})
    problems = [f"Expected the keys of a plan, but got `{name}`." for name in unknown]
    search: dict[str, Any]
    settings: dict[str, Any]
    search, settings = (
        {name: tuple(v) if isinstance(v, list) else v for name, v in dict(content.get(table, {})).items()}
        for table in ("search", "recipe")
    )
    for name in sorted(search.keys() - {one.name for one in fields(SearchPlan)}):
        problems.append(f"Expected the settings of a search, but got `{name}`.")
        del search[name]
    if "start" not in search and "bounds" in search:
        search["start"] = _start_within(search["bounds"])
    seeds = content.get("seeds", ())
    counted = isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 0
    methods = tuple(_listed(content.get("methods", ())))
    usual = "balanced-softmax" if "balanced-softmax" in methods or not methods else methods[0]
    plan = StudyPlan(
        data=tuple(_listed(content.get("data", ()))),
        methods=methods,
        seeds=tuple(range(seeds)) if counted else tuple(_listed(seeds)),
        imbalance=tuple(_listed(content.get("imbalance", ()))),
        betas=tuple(_listed(content.get("betas", ("recipe",)))),
        out=str(content.get("out", "runs/study")),
        reference=str(content.get("reference") or usual),
        recipe=settings,
        search=SearchPlan(**search),
    )
    problems += find_problems(plan) if to_run else []
    if problems:
        raise PlanError(problems)
    return plan


def read_plan(path: Path | str, given: Mapping[str, Any] | None = None, *, to_run: bool = True) -> StudyPlan:
    """Return the plan in a TOML file, with the settings in ``given`` instead of the file's; see :func:`make_plan`."""
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


def _start_within(bounds: Any) -> tuple[float, ...]:
    """The default start within bounds; all of it if none is, which is then a problem of the plan."""
    try:
        low, high = bounds
        return tuple(beta for beta in START if low <= beta <= high) or START
    except (TypeError, ValueError):
        return START


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def find_problems(plan: StudyPlan) -> list[str]:
    """Return everything that is wrong with a plan, one sentence each."""
    wrong_methods = {method: problem_of(partial(parse_method, str(method))) for method in plan.methods}
    found = [*_wrong_data(plan)]
    found += [] if plan.methods else ["Expected `methods` to have a method, but got none."]
    found += [problem for problems in wrong_methods.values() for problem in problems]
    methods = [method for method, problems in wrong_methods.items() if not problems]
    found += [*_wrong_betas(plan.betas, methods), *_wrong_seeds(plan.seeds)]
    if plan.reference not in {*plan.methods, "balanced-softmax"}:
        found.append(f"Expected `reference` to be one of the plan's methods, but got {plan.reference!r}.")
    found += plan.search.problems()
    places = [place for place in plan.places if is_here(place[0], plan.recipe)]
    found += _wrong_recipes(plan, places or [("digits-lt", None)], methods or ["softmax"])
    return found or [problem for run in plan.runs() for problem in _other_run(run)]


def is_here(data: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a data set is on this machine."""
    if data in CATALOG:
        return CATALOG[data].is_here(Path(str(recipe.get("root", "data"))))
    return Path(data).exists()


def _wrong_data(plan: StudyPlan) -> Iterator[str]:
    if not plan.data:
        yield "Expected `data` to have a data set, but got none."
    for name in plan.data:
        if is_here(name, plan.recipe):
            continue
        if name in CATALOG:
            root = Path(str(plan.recipe.get("root", "data")))
            missing = next(file for file in CATALOG[name].files if not (root / file).exists())
            yield f"Expected {root / missing} for {name}, but it does not exist; {CATALOG[name].steps}"
        else:
            yield f"Expected `data` to be a data set that `longtail data list` shows, or a path, but got {name!r}."
    for factor in plan.imbalance:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            yield f"Expected `imbalance` to be a number >= 1, but got {factor!r}."
        elif empty := [name for name in plan.data if _leaves_none(name, factor, plan.recipe.get("profile", "exp"))]:
            yield f"Expected `imbalance` to leave {empty[0]} an image of each class, but got {factor:g}."
    if plan.imbalance and plan.data and not any(map(takes_imbalance, plan.data)):
        yield f"Expected `imbalance` with a data set that takes an imbalance factor, but got {plan.data[0]}."


def _leaves_none(data: str, factor: float, profile: Any) -> bool:
    """Whether a class of a data set would have no training images."""
    if not takes_imbalance(data) or profile not in get_args(Profile):
        return False
    known = CATALOG[data]
    base = known.train_range
    return base is not None and not bool(long_tail_counts(known.num_classes, base[0], factor, profile=profile).all())


def _wrong_betas(betas: Sequence[Any], methods: Sequence[str]) -> Iterator[str]:
    if not betas:
        yield "Expected `betas` to have a beta, but got an empty list."
    for beta in betas:
        if isinstance(beta, str):
            if beta not in {"recipe", "search"}:
                yield f"Expected `betas` to be numbers, `recipe` or `search`, but got {beta!r}."
        elif isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < math.inf:
            yield f"Expected `betas` to be numbers >= 0, but got {beta!r}."
    if tuple(betas) != ("recipe",) and methods and not any(map(takes_beta, methods)):
        known = ", ".join(method.name for method in METHODS.values() if method.beta is not None)
        yield f"Expected `betas` with a method that has a beta ({known}), but got none."


def _wrong_seeds(seeds: Sequence[Any]) -> Iterator[str]:
    if not seeds:
        yield "Expected `seeds` to have at least one seed, but got none."
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            yield f"Expected `seeds` to be integers >= 0, but got {seed!r}."
    if len(set(map(str, seeds))) < len(seeds):
        yield f"Expected `seeds` to be different, but got {', '.join(map(str, seeds))}."


def _wrong_recipes(plan: StudyPlan, places: Sequence[tuple[str, float | None]], methods: Sequence[str]) -> list[str]:
    """What the recipes refuse, each sentence once: first each setting alone, then all together."""
    found: dict[str, None] = {}
    good: dict[str, Any] = {}
    for name, value in plan.recipe.items():
        wrong = list(_wrong_setting(name, value, methods))
        found |= dict.fromkeys(wrong)
        good |= {} if wrong else {name: value}
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


def _wrong_setting(name: str, value: Any, methods: Sequence[str]) -> Iterator[str]:
    known = [parse_method(method)[0] for method in methods]
    if name in {"data", "imbalance", "method", "seed", "folds", "fold"} or name in {one.beta for one in known}:
        yield f"Expected the settings of a recipe, but got `{name}`, which the plan itself sets."
        return
    try:
        if name in _parameter_names():
            having = [one.parameters[name] for one in known if name in one.parameters]
            if not having:
                yield f"Expected a method that has `{name}`, but none of {', '.join(methods)} has it."
            for parameter in having:
                parameter.check(value)
        elif name not in setting_types():
            yield f"Expected the settings of a recipe, but got `{name}`."
        else:
            pick_device(Recipe().changed(**{name: value}).device)
            if name == "model":
                check_name(value)
    except (TypeError, ValueError, ImportError) as error:
        yield str(error).replace("`name`", "`model`", 1)


def _other_run(run: PlannedRun) -> Iterator[str]:
    """A problem if the folder of a run holds another run."""
    if run.folder.begun:
        differing = differing_settings(settings_of(run.folder.recipe()), settings_of(run.recipe))
        if differing:
            yield (
                f"Expected {run.path} to hold this run, but it differs in {', '.join(differing)}; choose another "
                "folder with --out."
            )

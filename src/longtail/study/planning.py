"""The plan of a study: data sets x imbalance x methods x betas x seeds, as recipes and their folders.

A plan is made from plain data (:func:`make_plan`) or a TOML file (:func:`read_plan`), and checked before the first run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from longtail._checks import check_integer, check_number
from longtail._io import import_extra, map_files, read_toml, reading, write_text
from longtail.data import CATALOG
from longtail.methods import AUTO, METHODS, default_reference, parse_method
from longtail.models import check_name
from longtail.study.search_rule import SearchPlan
from longtail.train.folder import RunFolder
from longtail.train.launch import make_recipe
from longtail.train.recipe import Recipe, check_settings, name_in_label, parameter_names, pick_device

SearchKey = tuple[str, float | None, str]
"""Data set, imbalance factor and method of a search for beta."""


_MOST_SEEDS = 10_000
_MOST_PLANS = 1000


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
    """Numbers, ``"auto"``, ``"recipe"`` (the data set's recipe) or ``"search"``; for methods with a beta."""
    out: str = "runs/study"
    reference: str = ""
    """The method that others are tested against."""
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

    def base(self, data: str, imbalance: float | None, method: str, beta: float | str | None = None) -> Recipe:
        """Return the recipe of a method on a data set, with the plan's settings, for the first seed."""
        known, given = parse_method(method)
        others = parameter_names() - known.parameters.keys()
        settings = {name: value for name, value in self.recipe.items() if name not in others} | given
        settings |= {"data": data, "method": known.name, "seed": self.seeds[0] if self.seeds else 0}
        settings |= {} if imbalance is None else {"imbalance": imbalance}
        if known.beta is not None and beta is not None:
            settings[known.beta] = beta
        return make_recipe(settings, self.out)

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
                    for run in () if value is None else self._seeds_of(key, value):
                        yield run, key, beta

    def _seeds_of(self, key: SearchKey, beta: float | str) -> list[PlannedRun]:
        """The runs of a method with a beta, made once: a plan of thousands of runs is gone through several times."""
        if (key, beta) not in self._made:
            base = self.base(*key, None if beta == "recipe" else beta)
            label, _, _ = base.label.rpartition("seed")
            self._made[key, beta] = [
                PlannedRun(base.with_seed(seed), Path(self.out) / f"{label}seed{seed}") for seed in self.seeds
            ]
        return self._made[key, beta]

    @cached_property
    def _made(self) -> dict[tuple[SearchKey, float | str], list[PlannedRun]]:
        return {}

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
        parts = [name_in_label(data), *([f"{imbalance:g}"] if imbalance else []), name]
        return Path(self.out) / "search" / "-".join(parts)


def takes_beta(method: str) -> bool:
    """Whether the betas of a plan apply to a method: it has a beta that is not given with it.

    Example:
        >>> takes_beta("cbs"), takes_beta("bcl:beta=1.8"), takes_beta("softmax")
        (True, False, False)
    """
    known, given = parse_method(method)
    return known.beta is not None and known.beta not in given


def takes_imbalance(data: str) -> bool:
    """Whether a data set can be made long-tailed here, with any imbalance factor: your own, and some by name."""
    return data not in CATALOG or CATALOG[data].imbalance is not None


def make_plan(content: Mapping[str, Any], *, to_run: bool = True) -> StudyPlan:
    """Return the plan in plain data, as a TOML file or a command line has it.

    Args:
        content: ``data``, ``methods``, ``seeds`` (a number of seeds, or a list of them), ``imbalance``, ``betas``,
            ``out``, ``reference``, and the tables ``recipe`` and ``search``.
        to_run: whether the plan will be run here; otherwise it is not checked, and needs no data.

    Example:
        >>> plan = make_plan({"data": "digits-lt", "imbalance": [10, 50], "methods": ["softmax", "cbs"], "seeds": 2})
        >>> [str(run.path) for run in plan.runs()][:3]
        ['runs/study/digits-lt-10-softmax-seed0', 'runs/study/digits-lt-10-softmax-seed1',
         'runs/study/digits-lt-10-cbs-beta-auto-seed0']
    """
    recipe, search = check_settings(_table(content, "recipe"), "[recipe]"), _table(content, "search")
    for given, known, what in ((content, StudyPlan, "keys of a plan"), (search, SearchPlan, "settings of a search")):
        for name in sorted(given.keys() - {one.name for one in fields(known)}):
            raise ValueError(f"Expected the {what}, but got `{name}`.")
    seeds, methods = content.get("seeds", ()), tuple(map(str, _listed(content.get("methods", ()))))
    counted = isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 0
    if counted and seeds > _MOST_SEEDS:
        raise ValueError(f"Expected `seeds` to be at most {_MOST_SEEDS:,} seeds, but got {seeds:,}; give a list.")
    plan = StudyPlan(
        data=tuple(map(str, _listed(content.get("data", ())))),
        methods=methods,
        seeds=tuple(range(seeds)) if counted else tuple(_listed(seeds)),
        imbalance=tuple(_listed(content.get("imbalance", ()))),
        betas=tuple(_listed(content.get("betas", ("recipe",)))),
        out=str(content.get("out", "runs/study")),
        reference=str(content.get("reference") or default_reference(methods)),
        recipe=recipe,
        search=SearchPlan(**search),
    )
    if to_run:
        _check(plan)
    return plan


def read_plan(path: Path | str, given: Mapping[str, Any] | None = None, *, to_run: bool = True) -> StudyPlan:
    """Return the plan in a TOML file, with the settings in ``given`` instead of the file's; see :func:`make_plan`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a plan in {path}, but there is no such file.")
    content, more = read_toml(path), dict(given or {})
    with reading(path, "a plan"):
        for name in more.keys() & {"recipe", "search"}:
            if isinstance(content.get(name, {}), Mapping):
                content[name] = {**content.get(name, {}), **more.pop(name)}
        return make_plan({**content, **more}, to_run=to_run)


def write_plan(plan: StudyPlan, file: Path | None = None) -> Path:
    """Write a plan as TOML, which :func:`read_plan` reads, and return the file.

    Args:
        plan: the plan.
        file: default: ``plan.toml`` in the folder of the plan, or ``plan2.toml`` and so on if other plans are there.
    """
    content = asdict(plan)
    content["recipe"] = {name: "none" if value is None else value for name, value in plan.recipe.items()}
    content["search"] = {name: value for name, value in content["search"].items() if value is not None}
    text = str(import_extra("tomli_w", "train").dumps(content))
    files = (Path(plan.out) / f"plan{number}.toml" for number in ("", *range(2, _MOST_PLANS)))
    file = file or next(one for one in files if not one.exists() or one.read_text(encoding="utf-8") == text)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return file


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of settings, whose lists become tuples."""
    found = content.get(name, {})
    if not isinstance(found, Mapping):
        raise TypeError(f"Expected `{name}` to be a table of settings, but got {found!r}.")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check(plan: StudyPlan) -> None:
    """Raise an error if a plan cannot be run here."""
    for name in ("data", "methods", "betas", "seeds"):
        if not getattr(plan, name):
            raise ValueError(f"Expected `{name}` to have at least one value, but got none.")
    _check_data(plan)
    for seed in plan.seeds:
        check_integer("seeds", seed, minimum=0)
    if len(set(plan.seeds)) < len(plan.seeds):
        raise ValueError(f"Expected `seeds` to be different, but got {', '.join(map(str, plan.seeds))}.")
    for beta in plan.betas:
        if isinstance(beta, str) and beta not in {AUTO, "recipe", "search"}:
            raise ValueError(f"Expected `betas` to be numbers, `auto`, `recipe` or `search`, but got {beta!r}.")
        if not isinstance(beta, str):
            check_number("betas", beta)
    if plan.betas != ("recipe",) and not any(map(takes_beta, plan.methods)):
        known = ", ".join(method.name for method in METHODS.values() if method.beta is not None)
        raise ValueError(f"Expected `betas` with a method that has a beta ({known}), but got none.")
    parse_method(plan.reference)
    _check_recipe(plan)
    if RunFolder(plan.out).begun:
        raise ValueError(f"Expected `out` to be the folder of a study, but {plan.out} is a run folder.")
    map_files(lambda run: run.folder.check(run.recipe), plan.runs())


def _check_data(plan: StudyPlan) -> None:
    for name in plan.data:
        missing = CATALOG[name].missing(Path(str(plan.recipe.get("root", "data")))) if name in CATALOG else ""
        if name not in CATALOG and not Path(name).exists():
            missing = f"Expected `data` to be a data set that `longtail data list` shows, or a path, but got {name!r}."
        if missing:
            raise ValueError(missing)
    made = [name for name in plan.data if takes_imbalance(name)]
    if plan.imbalance and not made:
        raise ValueError(f"Expected `imbalance` with a data set that takes one, but got {plan.data[0]}.")
    for factor in plan.imbalance:
        check_number("imbalance", factor, minimum=1)
        for name in CATALOG.keys() & made:
            counts = CATALOG[name].train_counts(factor, plan.recipe.get("profile", "exp"))
            if counts is not None and not counts.all():
                raise ValueError(f"Expected `imbalance` to leave {name} an image of each class, but got {factor:g}.")


def _check_recipe(plan: StudyPlan) -> None:
    """Raise an error if a setting is the plan's own or belongs to no method of the plan, or if a recipe is wrong."""
    methods = [parse_method(method)[0] for method in plan.methods]
    for name in plan.recipe:
        if name in {"data", "imbalance", "method", "seed", "folds", "fold", *(one.beta for one in methods)}:
            raise ValueError(f"Expected the settings of a recipe, but got `{name}`, which the plan itself sets.")
        if name in parameter_names() and not any(name in one.parameters for one in methods):
            raise ValueError(
                f"Expected a method that has `{name}`, but none of {', '.join(one.name for one in methods)} has it."
            )
    for data, imbalance in plan.places:
        for method in plan.methods:
            recipe = plan.base(data, imbalance, method)
    pick_device(recipe.device)
    check_name(recipe.model)

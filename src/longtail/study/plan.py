"""A plan: data sets x imbalance x methods x betas x seeds, as recipes and their folders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail.data import CATALOG
from longtail.methods import METHODS, parse_method
from longtail.study.beta import START, Settings
from longtail.train.folder import RunFolder
from longtail.train.loading import is_small
from longtail.train.recipe import Recipe, defaults, name_in_label

__all__ = ["BETA_WORDS", "Plan", "Planned", "SearchPlan"]

BETA_WORDS = ("recipe", "search")
"""Betas by word: the data set's recipe's (the authors', where they have one), and what a search finds."""


@dataclass(frozen=True)
class Planned:
    """A run of a plan."""

    recipe: Recipe
    path: Path

    @property
    def folder(self) -> RunFolder:
        """Where it is kept."""
        return RunFolder(self.path)


@dataclass(frozen=True)
class SearchPlan:
    """How betas are searched for."""

    folds: int | None = None
    """folds of the training data; default: 5, or none where the data set has validation data of its own"""
    seeds: int = 1
    """seeds a fold"""
    criterion: str = "all"
    """recall over `all` classes, imbalance `level`, or weights of groups as in `head=1,tail=2`"""
    select_on: str = "val"
    """`val`; `test` looks at test data, and every caption says so"""
    start: tuple[float, ...] = START
    step: float = 0.1
    bounds: tuple[float, float] = (0.0, 3.0)
    ahead: int = 1
    """steps outwards to be trained together"""

    @property
    def settings(self) -> Settings:
        """Of the pure search."""
        return Settings(self.start, self.step, self.bounds, ahead=self.ahead)


@dataclass(frozen=True)
class Plan:
    """What a study runs; :mod:`longtail.study.plan_reading` makes one, checked."""

    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    imbalance: tuple[float, ...] = ()
    betas: tuple[float | str, ...] = ("recipe",)
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
                    f"Expected data sets whose names differ, since runs are kept under them, but got {other} and "
                    f"{data}: rename one, or make two studies of them."
                )

    @property
    def places(self) -> list[tuple[str, float | None]]:
        """Data sets with their imbalance factors."""
        found: list[tuple[str, float | None]] = []
        for name in self.data:
            found += (
                [(name, factor) for factor in self.imbalance]
                if self.imbalance and takes_imbalance(name)
                else [(name, None)]
            )
        return found

    def base(self, data: str, imbalance: float | None, method: str, beta: float | None = None) -> Recipe:
        """The recipe of a method on a data set, with the plan's settings, for the first seed."""
        known, given = parse_method(method)
        made = defaults(data, known.name, imbalance, small=data not in CATALOG and is_small(data))
        others = parameter_names() - known.parameters.keys()
        settings = {field: value for field, value in self.recipe.items() if field not in others} | given
        if known.beta is not None and beta is not None:
            settings[known.beta] = beta
        return made.changed(**settings, seed=self.seeds[0] if self.seeds else 0)

    def runs(self, searched: Mapping[tuple[str, float | None, str], float] | None = None) -> list[Planned]:
        """The runs, each once; those whose beta is yet to be searched for are left out unless ``searched`` has it."""
        found: dict[Path, Planned] = {}
        for data, imbalance in self.places:
            for method in self.methods:
                for beta in self.betas if takes_beta(method) else ("recipe",):
                    value = (searched or {}).get((data, imbalance, method)) if beta == "search" else beta
                    if value is None:
                        continue
                    base = self.base(data, imbalance, method, None if isinstance(value, str) else value)
                    for seed in self.seeds:
                        recipe = base.changed(seed=seed)
                        path = Path(self.out) / recipe.label
                        found[path] = Planned(recipe, path)
        return list(found.values())

    @property
    def searches(self) -> list[tuple[str, float | None, str]]:
        """Data set, imbalance factor and method of each search for beta."""
        if "search" not in self.betas:
            return []
        return [(*place, method) for place in self.places for method in self.methods if takes_beta(method)]


def takes_beta(method: str) -> bool:
    """Whether a method has a beta that is not given with it.

    Example:
        >>> takes_beta("cbs"), takes_beta("bcl:beta=1.8"), takes_beta("softmax")
        (True, False, False)
    """
    known, given = parse_method(method)
    return known.beta is not None and known.beta not in given


def parameter_names() -> frozenset[str]:
    """Settings that only some methods take; in a plan, the methods that have them take them."""
    return frozenset(name for method in METHODS.values() for name in method.parameters)


def takes_imbalance(data: str) -> bool:
    """Whether a data set is made long-tailed here."""
    return data in CATALOG and CATALOG[data].imbalance is not None


def is_here(data: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a data set is on this machine."""
    if data in CATALOG:
        return CATALOG[data].is_here(Path(str(recipe.get("root", "data"))))
    return Path(data).exists()

"""A method is data: a row of stages, each an objective, a head, a sampler and what is trained, and a post-hoc step."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from longtail._checks import check_number, nearest
from longtail.classes import Groups
from longtail.data.sampling.samplers import ClassAware, Instance, Sampler
from longtail.knobs import Knob
from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    LossOptions,
    ProCoLoss,
    branches_from_counts,
    branches_from_groups,
    effective_number_weights,
)
from longtail.losses._common import Loss
from longtail.objectives import (
    BalancedContrastive,
    DeferredWeights,
    Objective,
    ProbabilisticContrastive,
    ResLT,
    SupervisedLoss,
)

__all__ = ["BUILT_IN", "METHODS", "Knob", "Method", "Stage", "Task", "find_method", "register"]


@dataclass(frozen=True)
class Task:
    """What an objective is made from."""

    counts: Tensor
    """Training images of each class, ``(C,)``."""
    groups: Groups
    """Head, medium and tail."""
    epochs: int
    """Of the stage."""
    knobs: Mapping[str, Any]
    """The method's settings by name, all of them."""
    seed: int = 0
    """The run's."""
    label_smoothing: float = 0.0

    @property
    def options(self) -> LossOptions:
        """Those of a loss of each sample."""
        return {"reduction": "none", "label_smoothing": self.label_smoothing, "check_labels": False}


@dataclass(frozen=True)
class Stage:
    """A part of training: what changes between parts, and nothing else."""

    objective: Callable[[Task], Objective]
    head: str = "linear"
    sampler: Callable[[Mapping[str, Any]], Sampler] = field(default=lambda _: Instance())
    instance: bool = True
    """Whether the sampler is the plain one."""
    train: Literal["all", "classifier"] = "all"
    """``"classifier"`` freezes the backbone's weights; its BatchNorm statistics still move."""
    reinit: bool = False
    """Begin with a new classifier."""
    epochs: str | None = None
    """The knob that says how many epochs the stage has; default: the recipe's."""
    lr: str | None = None
    """The knob that says its learning rate, which then goes down as a cosine; default: the recipe's schedule."""


@dataclass(frozen=True)
class Method:
    """A method by name."""

    name: str
    summary: str
    reference: str
    stages: tuple[Stage, ...]
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    posthoc: Literal["tau", "adjust"] | None = None
    """What is done to the logits after training; its strength is the knob ``tau``."""
    mixes: bool = True
    """Whether a sample's loss is its own: then samples can be mixed, and a batch cut into micro-batches."""
    projection: bool = False
    """Whether the model needs a projection head."""
    prototypes: bool = False
    """Whether it needs class prototypes."""

    @property
    def takes_any_head(self) -> bool:
        """Whether the classifier may be another than the method's: all its stages take a linear one as any other."""
        return self.posthoc != "tau" and all(stage.head == "linear" for stage in self.stages)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All its knobs: those given, the others at their defaults.

        A knob of another method is refused, and so is a value that makes no sense.
        """
        for name in given:
            if name not in self.knobs:
                known = ", ".join(f"`{knob}`" for knob in self.knobs) or "none"
                raise ValueError(f"Expected the knobs of {self.name} ({known}), but got `{name}`.")
            self.knobs[name].check(name, given[name])
        return {name: given.get(name, knob.default) for name, knob in self.knobs.items()}


def _softmax(task: Task, weight: Tensor | None = None) -> Loss:
    """A shift of zero is plain softmax."""
    options: LossOptions = {**task.options, "weight": weight}
    return ClassBalancedSoftmaxLoss(task.counts, beta=0.0, zero_counts="one", **options)


def _balanced(task: Task) -> Loss:
    """The classifier's loss that ``balance`` asks for."""
    beta = balance_beta(task.knobs["balance"], task.knobs["beta"])
    return ClassBalancedSoftmaxLoss(task.counts, beta=beta, zero_counts="mask", **task.options)


def balance_beta(balance: str, beta: float | None) -> float:
    """The shift's factor that a balanced part stands for.

    Example:
        >>> balance_beta("balanced-softmax", None), balance_beta("cbs", 1.2)
        (1.0, 1.2)
    """
    fixed = {"softmax": 0.0, "balanced-softmax": 1.0}
    if balance in fixed:
        if beta is not None:
            raise ValueError(f"Expected `beta` beside balance 'cbs' only, but got {beta} beside {balance!r}.")
        return fixed[balance]
    if balance != "cbs":
        raise ValueError(f"Expected `balance` to be one of {', '.join(_BALANCED)}, but got {balance!r}.")
    return _DEFAULT_BETA if beta is None else check_number("beta", beta)


def _plain(task: Task) -> Objective:
    return SupervisedLoss(_softmax(task))


def _ldam(task: Task, weight: Tensor | None = None) -> Loss:
    options: LossOptions = {**task.options, "weight": weight}
    return LDAMLoss(task.counts, task.knobs["max_margin"], task.knobs["scale"], zero_counts="mask", **options)


def _proco(task: Task) -> Objective:
    knobs = task.knobs
    contrast = ProCoLoss(
        task.counts,
        knobs["projection"],
        beta=balance_beta(knobs["balance"], knobs["beta"]),
        temperature=knobs["temperature"],
        seed=task.seed,
        reduction="sum",
        check_labels=False,
    )
    return ProbabilisticContrastive(_balanced(task), contrast, knobs["classifier_weight"], knobs["contrast_weight"])


def _reslt(task: Task) -> Objective:
    """Branches see what the data set's groups say, unless their first classes are named."""
    knobs, classes = task.knobs, len(task.counts)
    sees = branches_from_groups(task.groups)
    if knobs["tail_from"] is not None and knobs["medium_from"] is None:
        raise ValueError(f"Expected `medium_from` beside `tail_from` = {knobs['tail_from']}, but got none.")
    if knobs["medium_from"] is not None:
        starts = [knobs["medium_from"], *([knobs["tail_from"]] if knobs["tail_from"] is not None else [])]
        sees = branches_from_counts(task.counts, *(classes - start for start in starts))
    if len(sees) < knobs["branches"]:
        raise ValueError(f"Expected {knobs['branches']} branches of classes, but got {len(sees)}.")
    return ResLT(sees[: knobs["branches"]], knobs["alpha"], task.label_smoothing)


def _class_aware(knobs: Mapping[str, Any]) -> Sampler:
    return ClassAware(knobs["per_class"])


_DEFAULT_BETA = 1.5
_BALANCED = ("softmax", "balanced-softmax", "cbs")
_BETA = Knob(_DEFAULT_BETA, "exponent of the class counts in the shift; 0 is softmax, 1 Balanced Softmax", at_least=0)
_GIVEN_TAU = Knob(None, "strength, chosen on validation data unless given", at_least=0)
_PER_CLASS = Knob(4, "samples of a class in a row", whole=True, at_least=1)
_CLASSIFIER = {
    "per_class": _PER_CLASS,
    "classifier_epochs": Knob(10, "epochs of the second stage", whole=True, at_least=1),
    "classifier_lr": Knob(0.1, "its learning rate, which goes down as a cosine", above=0),
}
_MARGIN = {
    "max_margin": Knob(0.5, "margin of the rarest class (the paper's large data sets: 0.3)", at_least=0),
    "scale": Knob(30.0, "what cosines are multiplied with", above=0),
}
_EFFECTIVE = Knob(0.9999, "b of the effective numbers (1 - b) / (1 - b^N_c)", at_least=0, below=1)


def _contrastive(classifier_weight: float, contrast_weight: float) -> dict[str, Knob]:
    return {
        "balance": Knob("balanced-softmax", "the balanced part: softmax, balanced-softmax or cbs", choices=_BALANCED),
        "beta": Knob(None, "beta of the balanced part, with balance cbs", at_least=0),
        "temperature": Knob(0.1, "of the similarities (large data sets: 0.07)", above=0),
        "classifier_weight": Knob(classifier_weight, "how much the classifier's loss counts", at_least=0),
        "contrast_weight": Knob(contrast_weight, "how much the contrastive loss counts", at_least=0),
        "hidden": Knob(512, "hidden width of the projection head (large data sets: 2048)", whole=True, at_least=1),
        "projection": Knob(128, "its output width (large data sets: 1024)", whole=True, at_least=2),
    }


_ROWS = (
    Method("softmax", "plain cross entropy", "Bridle, Neurocomputing 1990", (Stage(_plain),)),
    Method(
        "focal",
        "cross entropy that leaves out what is easy",
        "Lin et al., ICCV 2017",
        (Stage(lambda task: SupervisedLoss(FocalLoss(task.knobs["gamma"], **task.options))),),
        {"gamma": Knob(2.0, "how strongly easy samples are left out (LDAM's repository: 1)", at_least=0)},
    ),
    Method(
        "tau-norm",
        "softmax, then each class's weight over a power of its norm",
        "Kang et al., ICLR 2020",
        (Stage(_plain),),
        {"tau": _GIVEN_TAU},
        posthoc="tau",
    ),
    Method(
        "logit-adjust",
        "cross entropy of logits shifted by tau times the log prior",
        "Menon et al., ICLR 2021",
        (
            Stage(
                lambda task: SupervisedLoss(
                    LogitAdjustedLoss(task.counts, tau=task.knobs["tau"], zero_counts="mask", **task.options)
                )
            ),
        ),
        {"tau": Knob(1.0, "strength of the shift", at_least=0)},
    ),
    Method(
        "logit-adjust-posthoc",
        "softmax, then tau times the log prior off the logits (the paper's Adjust logit)",
        "Menon et al., ICLR 2021",
        (Stage(_plain),),
        {"tau": Knob(1.0, "strength of the adjustment", at_least=0)},
        posthoc="adjust",
    ),
    Method(
        "reslt",
        "branches for all, for medium and tail, and for tail classes, summed",
        "Cui et al., TPAMI 2022",
        (Stage(_reslt, head="reslt"),),
        {
            "alpha": Knob(0.99, "how much the branches count beside their sum", at_least=0, at_most=1),
            "branches": Knob(3, "3, or 2 as on iNaturalist", whole=True, at_least=2, at_most=3),
            "medium_from": Knob(
                None, "how many classes, most frequent first, the second branch leaves out", whole=True, at_least=0
            ),
            "tail_from": Knob(
                None, "how many the third leaves out; default: both as the data set's groups", whole=True, at_least=0
            ),
        },
    ),
    Method(
        "crt",
        "softmax, then a new classifier on balanced classes",
        "Kang et al., ICLR 2020",
        (
            Stage(_plain),
            Stage(
                _plain,
                sampler=_class_aware,
                train="classifier",
                reinit=True,
                epochs="classifier_epochs",
                lr="classifier_lr",
            ),
        ),
        _CLASSIFIER,
    ),
    Method(
        "lws",
        "softmax, then one scale a class on balanced classes",
        "Kang et al., ICLR 2020",
        (
            Stage(_plain),
            Stage(
                _plain,
                head="class-scaled",
                sampler=_class_aware,
                train="classifier",
                epochs="classifier_epochs",
                lr="classifier_lr",
            ),
        ),
        _CLASSIFIER,
    ),
    Method(
        "ldam",
        "cosine classifier with margins that grow as classes get rarer",
        "Cao et al., NeurIPS 2019",
        (Stage(lambda task: SupervisedLoss(_ldam(task), task.knobs["scale"]), head="cosine"),),
        _MARGIN,
    ),
    Method(
        "ldam-drw",
        "LDAM, with class weights in the last epochs",
        "Cao et al., NeurIPS 2019",
        (
            Stage(
                lambda task: DeferredWeights(
                    lambda weight: _ldam(task, weight),
                    task.counts,
                    task.knobs["effective_b"],
                    round(task.knobs["defer"] * task.epochs),
                    task.knobs["scale"],
                ),
                head="cosine",
            ),
        ),
        {
            **_MARGIN,
            "effective_b": _EFFECTIVE,
            "defer": Knob(0.8, "share of the epochs before the weights begin", at_least=0, at_most=1),
        },
    ),
    Method(
        "balanced-softmax",
        "cross entropy of logits shifted by log N_c",
        "Ren et al., NeurIPS 2020",
        (Stage(lambda task: SupervisedLoss(BalancedSoftmaxLoss(task.counts, zero_counts="mask", **task.options))),),
    ),
    Method(
        "cbs",
        "Class-Balanced Softmax: cross entropy of logits shifted by beta log N_c",
        "the paper",
        (
            Stage(
                lambda task: SupervisedLoss(
                    ClassBalancedSoftmaxLoss(task.counts, beta=task.knobs["beta"], zero_counts="mask", **task.options)
                )
            ),
        ),
        {"beta": _BETA},
    ),
    Method(
        "class-balanced-sampling",
        "softmax on batches in which classes are equally frequent",
        "Shen et al., ECCV 2016",
        (Stage(_plain, sampler=_class_aware, instance=False),),
        {"per_class": _PER_CLASS},
    ),
    Method(
        "class-balanced-weights",
        "softmax with classes weighted by their effective numbers",
        "Cui et al., CVPR 2019",
        (
            Stage(
                lambda task: SupervisedLoss(
                    _softmax(task, effective_number_weights(task.counts, task.knobs["effective_b"]))
                )
            ),
        ),
        {"effective_b": _EFFECTIVE},
    ),
    Method(
        "bcl",
        "balanced classifier, and contrast in which classes weigh the same",
        "Zhu et al., CVPR 2022",
        (
            Stage(
                lambda task: BalancedContrastive(
                    _balanced(task),
                    task.knobs["temperature"],
                    task.knobs["classifier_weight"],
                    task.knobs["contrast_weight"],
                )
            ),
        ),
        _contrastive(2.0, 0.6),
        mixes=False,
        projection=True,
        prototypes=True,
    ),
    Method(
        "proco",
        "balanced classifier, and contrast with a distribution a class",
        "Du et al., TPAMI 2024",
        (Stage(_proco),),
        _contrastive(1.0, 1.0),
        mixes=False,
        projection=True,
    ),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}
BUILT_IN = frozenset(METHODS)
"""All methods by name; ``longtail methods`` shows them. Add a row to add one, or :func:`register` one of your own."""


def register(method: Method) -> Method:
    """Add a method of your own to :data:`METHODS`, for this process; ``docs/new_method.md`` makes one.

    Args:
        method: its name must be free, and fit for a folder's. Its knobs are fields of a recipe: other numbers are
            constants of your own.

    Returns:
        ``method``.

    Example:
        >>> mine = Method("my-softmax", "softmax of my own", "", (Stage(_plain),))
        >>> register(mine) is find_method("my-softmax")
        True
        >>> del METHODS["my-softmax"]
    """
    if method.name in METHODS:
        raise ValueError(f"Expected `method` to have a name that none has yet, but got {method.name!r}.")
    if not re.fullmatch(r"\w[\w.-]*", method.name):
        raise ValueError(
            f"Expected `method` to have a name of letters, digits, '-', '_' and '.', but got {method.name!r}."
        )
    needed = {"hidden": method.projection, "projection": method.projection, "tau": method.posthoc is not None}
    missing = [name for name, wanted in needed.items() if wanted and name not in method.knobs]
    if missing:
        raise ValueError(f"Expected {method.name} to have the knob `{missing[0]}`, which its model or step needs.")
    METHODS[method.name] = method
    return method


def find_method(name: str) -> Method:
    """A method by name.

    Example:
        >>> find_method("cbs").settings({"beta": 1.2})
        {'beta': 1.2}
    """
    if name not in METHODS:
        hint = nearest(name, METHODS) or "; one's own is known to the file that adds it"
        raise ValueError(f"Expected `method` to be one of {', '.join(METHODS)}, but got {name!r}{hint}.")
    return METHODS[name]

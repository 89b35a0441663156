"""A method as data: title, parameters, stages, head, beta and post-hoc step. Nothing else knows a method by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, make_dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from torch import Tensor

from longtail._registry import Registry
from longtail.classes import Groups
from longtail.data.sampling.samplers import Sampler
from longtail.losses import Loss, LossOptions
from longtail.methods.objective import Objective, SupervisedLoss
from longtail.methods.params import NoParams, Parameter, UnknownParams, parameters_of, parse_setting
from longtail.models import HeadSpec

AUTO = "auto"
"""The value of a beta that is measured on held-out data."""


@dataclass(frozen=True)
class Task:
    """What an objective is made from."""

    counts: Tensor
    """Training images per class, ``(C,)``."""
    groups: Groups
    """Head, medium and tail."""
    epochs: int
    """Epochs of the stage."""
    params: Any
    """The method's parameters, an instance of its dataclass."""
    seed: int = 0
    """Seed of the run."""
    label_smoothing: float = 0.0

    @property
    def options(self) -> LossOptions:
        """Keyword arguments for a loss inside a :class:`SupervisedLoss`."""
        return {"reduction": "none", "label_smoothing": self.label_smoothing, "check_labels": False}


@dataclass(frozen=True)
class Stage:
    """One stage of training: what it optimises, with which head and sampler, and which weights it trains."""

    objective: Callable[[Task], Objective]
    head: HeadSpec | Callable[[Any], HeadSpec] = HeadSpec("linear")  # noqa: RUF009 - immutable
    """The classifier, or a function that makes it from the parameters."""
    sampler: Callable[[Any], Sampler] | None = None
    """A function that makes the sampler from the parameters; default: every image once per epoch."""
    train: Literal["all", "classifier"] = "all"
    """``"classifier"`` freezes the weights of the backbone; its BatchNorm statistics are still updated."""
    reinit: bool = False
    """Whether the stage starts with a new classifier."""
    epochs: str | None = None
    """The parameter that sets the number of epochs; default: the recipe's."""
    lr: str | None = None
    """The parameter that sets the learning rate, with a cosine schedule; default: the recipe's rate and schedule."""

    def head_of(self, params: Any) -> HeadSpec:
        """The classifier of this stage."""
        return self.head if isinstance(self.head, HeadSpec) else self.head(params)


@dataclass(frozen=True)
class Method:
    """A method. Everything that depends on it (flags, recipe, tables, advice) is derived from these fields."""

    name: str
    title: str
    """What tables call it."""
    summary: str
    reference: str
    stages: tuple[Stage, ...]
    params: type = NoParams
    """A frozen dataclass whose fields are made with :func:`param <longtail.methods.param>`."""
    beta: str | None = None
    """The parameter that ``study --betas`` varies and searches for. If its type allows ``"auto"``, beta can be measured
    on held-out data."""
    shift: str | float | None = None
    """b where the loss adds ``b * log N_c`` to the logits: a number, or the name of the parameter."""
    posthoc: str | None = None
    """A step after training: ``"tau"`` (tau-normalisation), ``"adjust"`` (logit adjustment) or a registered one."""
    tau: str | None = None
    """The parameter that is the strength of the post-hoc step; its value ``None`` chooses it on validation data."""
    mixes: bool = True
    """Whether the loss of a sample depends on that sample only: then mixup and micro-batches are possible."""
    projection: Callable[[Any], tuple[int, int]] | None = None
    """Hidden and output width of a projection head, from the parameters; ``None``: no projection head."""
    prototypes: bool = False
    """Whether the model has class prototypes."""
    label_of: Callable[[Any], str] | None = None
    """The label for given parameters; default: the title, and beta where the method has one."""

    def __post_init__(self) -> None:
        if (self.posthoc is None) != (self.tau is None):
            raise ValueError(f"Expected `posthoc` and `tau` of {self.name} together, but got one of them.")
        used = [("beta", self.beta), ("tau", self.tau)]
        used += [("shift", self.shift)] if isinstance(self.shift, str) else []
        used += [("stages", name) for stage in self.stages for name in (stage.epochs, stage.lr)]
        for role, name in used:
            if name is not None and name not in self.parameters:
                raise ValueError(f"Expected {self.name} to have the parameter `{name}`, which its `{role}` uses.")

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by name, with type, default, help and bounds."""
        return parameters_of(self.params)

    @property
    def identifying(self) -> set[str]:
        """The parameters that are always part of a run's label: beta, the shift's factor, the post-hoc strength."""
        return {name for name in (self.beta, self.shift, self.tau) if isinstance(name, str)}

    def make_params(self, settings: Mapping[str, Any]) -> Any:
        """The parameters: the given ones, checked, and the defaults of the others.

        Example:
            >>> METHODS["cbs"].make_params({"beta": 1.2})
            CBSParams(beta=1.2)
        """
        unknown = [name for name in settings if name not in self.parameters]
        if unknown:
            known = ", ".join(f"`{name}`" for name in self.parameters) or "none"
            raise ValueError(f"Expected the parameters of {self.name} ({known}), but got `{unknown[0]}`.")
        given = {n: v for n, v in settings.items() if v is not None or self.parameters[n].may_be_none}
        for name, value in given.items():
            self.parameters[name].check(value)
        return self.params(**given)

    def values(self, params: Any) -> dict[str, Any]:
        """The parameters as a flat dictionary."""
        return asdict(params)

    def beta_of(self, params: Any) -> float | None:
        """The value of beta; ``None`` if the method has no beta, or measures it."""
        return None if self.beta is None or self.is_auto(params) else getattr(params, self.beta)

    def is_auto(self, params: Any) -> bool:
        """Whether beta is measured on held-out data."""
        return self.beta is not None and getattr(params, self.beta) == AUTO

    def training_params(self, params: Any) -> Any:
        """The parameters to train with: a beta that will be measured is 1 until then."""
        return replace(params, **{str(self.beta): 1.0}) if self.is_auto(params) else params

    def tau_of(self, params: Any) -> float | None:
        """The strength of the post-hoc step; ``None`` if the method has no such step, or chooses it."""
        return None if self.tau is None else getattr(params, self.tau)

    def chooses_tau(self, params: Any) -> bool:
        """Whether the post-hoc step needs validation data, because its strength is not given."""
        return self.posthoc is not None and self.tau_of(params) is None

    def label(self, params: Any) -> str:
        """What a table calls the method with these parameters.

        Example:
            >>> METHODS["cbs"].label(METHODS["cbs"].make_params({"beta": 1.8}))
            'CBS (β = 1.8)'
        """
        if self.label_of is not None:
            return self.label_of(params)
        if self.is_auto(params):
            return f"{self.title} (β auto)"
        beta = self.beta_of(params)
        return self.title if beta is None else f"{self.title} (β = {beta:g})"

    def shift_factor(self, params: Any) -> float | None:
        """b where the loss adds ``b * log N_c`` to the logits; ``None`` if the loss has no such shift."""
        used = self.training_params(params)
        return float(getattr(used, self.shift)) if isinstance(self.shift, str) else self.shift

    @property
    def takes_any_head(self) -> bool:
        """Whether the recipe may choose another classifier: every stage has a linear one."""
        return self.posthoc != "tau" and all(stage.head == HeadSpec("linear") for stage in self.stages)


METHODS: Registry[Method] = Registry("method")
"""All methods by name, in the order of ``longtail methods``."""

_SETTINGS: set[str] = set()  # names of the settings that every recipe has


def reserve_settings(names: Iterable[str]) -> None:
    """Refuse parameters of methods with these names, those of the settings of every recipe."""
    _SETTINGS.update(names)
    for method in METHODS.values():
        _check_names(method)


def _check_names(method: Method) -> None:
    for name in method.parameters:
        if name in _SETTINGS:
            raise ValueError(f"Expected parameters of {method.name} not named like a setting, but got `{name}`.")


def register_method(method: Method) -> Method:
    """Add a method for this process and return it; ``docs/new_method.md`` shows how.

    Its name must be new. Its parameters become settings of a recipe and flags of the command line, so they must not
    have the name of a setting that every recipe has.
    """
    _check_names(method)
    return METHODS.register(method.name, method)


def register_loss(
    name: str,
    factory: Callable[[Task], Loss],
    *,
    title: str,
    summary: str = "",
    reference: str = "",
    params: type = NoParams,
    beta: str | None = None,
    shift: str | float | None = None,
) -> Method:
    """Add a method that trains a linear classifier in one stage on a loss.

    Args:
        name: name of the method.
        factory: makes the loss from ``task.counts`` and ``task.params``; pass it ``**task.options``.
        title: what tables call the method.
        summary: one line for ``longtail methods``.
        reference: the publication.
        params: a frozen dataclass whose fields are made with :func:`param <longtail.methods.param>`.
        beta: the parameter that ``study --betas`` varies.
        shift: b if the loss adds ``b * log N_c`` to the logits: a number, or the name of the parameter.
    """
    stage = Stage(lambda task: SupervisedLoss(factory(task)))
    return register_method(Method(name, title, summary, reference, (stage,), params, beta, shift))


def find_method(name: str) -> Method:
    """The method with this name.

    Example:
        >>> find_method("cbs").title
        'CBS'
    """
    return METHODS.find(name)


def parse_method(text: str) -> tuple[Method, dict[str, Any]]:
    """A method and the parameters that are given with it, as in a study's plan.

    Example:
        >>> method, settings = parse_method("bcl:beta=1.8,temperature=0.07")
        >>> method.title, settings
        ('BCL', {'beta': 1.8, 'temperature': 0.07})
    """
    name, _, rest = text.partition(":")
    method = find_method(name)
    settings: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key in settings:
            raise ValueError(f"Expected `method` to be NAME or NAME:PARAMETER=VALUE,…, but got {text!r}.")
        known = method.parameters.get(key)
        settings[key] = value if known is None else parse_setting(value, known.hint)
    method.make_params(settings)
    return method, settings


def unknown_method(name: str, settings: Mapping[str, Any]) -> tuple[Method, UnknownParams]:
    """A stand-in for a method that is not registered here, so that its finished runs can be read; it has no beta."""
    kind = _unknown_params(tuple(settings))
    return Method(name, name, "", "", (), kind), kind(**settings)


@cache
def _unknown_params(names: tuple[str, ...]) -> type:
    return make_dataclass("UnknownParams", [(name, Any, None) for name in names], bases=(UnknownParams,), frozen=True)

"""A recipe: every setting of a run, flat as the command line is."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from longtail._checks import check_integer, check_number
from longtail._gpu import is_checked
from longtail.data import CATALOG
from longtail.data.datasets.long_tail import Profile
from longtail.methods import find_method
from longtail.models import CIFAR_RESNETS, HEADS
from longtail.train.schedules import Schedule
from longtail.train.views import Family

__all__ = [
    "HOUSEKEEPING",
    "Recipe",
    "defaults",
    "differing_settings",
    "name_in_label",
    "read_recipe",
    "resolved",
    "settings_of",
    "with_precision",
    "write_recipe",
]

HOUSEKEEPING = frozenset(
    {"root", "device", "workers", "evaluate_every", "checkpoint_epochs", "checkpoint_minutes", "keep", "tensorboard"}
)
"""Settings that say where and how a run is kept, not what is trained: a run may go on with others."""

_NONE = "none"  # what a file says for None, as the command line does

Sampling = Literal["instance", "class-aware", "square-root", "progressive"]


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run. Fields that stay ``None`` are chosen by the data set's recipe or by the method."""

    data: str = "cifar10-lt"
    """a data set that `longtail data list` shows, or a path: a folder of class folders, or a list of images"""
    root: str = "data"
    """the data folder, for data sets by name"""
    imbalance: float | None = None
    """imbalance factor of a data set that is made long-tailed here"""
    profile: Profile = "exp"
    """how class counts fall: exp, step or pareto"""
    subset_seed: int | Literal["run"] = 0
    """chooses the long-tailed subset: 0 as in the literature, `run`: the run's own seed, as the paper's authors did"""
    validation: float = 0.0
    """share of each class's training images to hold out for validation, where the data set brings none"""
    folds: int = 0
    """cross-validation: into how many folds training images are dealt, class by class; 0: none"""
    fold: int = 0
    """which of the folds is for validation"""

    method: str = "cbs"
    """a method that `longtail methods` shows"""
    beta: float | None = None
    """of cbs: exponent of the class counts; 0 is softmax, 1 Balanced Softmax"""
    tau: float | None = None
    """of tau-norm and logit adjustment: strength"""
    gamma: float | None = None
    """of focal"""
    max_margin: float | None = None
    """of ldam"""
    scale: float | None = None
    """of ldam: what cosines are multiplied with"""
    effective_b: float | None = None
    """of class-balanced-weights and ldam-drw: b of the effective numbers"""
    defer: float | None = None
    """of ldam-drw: share of the epochs before the weights begin"""
    alpha: float | None = None
    """of reslt: how much the branches count"""
    branches: int | None = None
    """of reslt: 3 or 2"""
    medium_from: int | None = None
    """of reslt: how many classes, most frequent first, the second branch leaves out; default: the data set's groups"""
    tail_from: int | None = None
    """of reslt: how many the third branch leaves out"""
    per_class: int | None = None
    """of class-aware sampling: samples of a class in a row"""
    classifier_epochs: int | None = None
    """of crt and lws: epochs of the second stage"""
    classifier_lr: float | None = None
    """of crt and lws: its learning rate"""
    balance: str | None = None
    """of bcl and proco: the balanced part: softmax, balanced-softmax or cbs"""
    temperature: float | None = None
    """of bcl and proco"""
    classifier_weight: float | None = None
    """of bcl and proco: how much the classifier's loss counts"""
    contrast_weight: float | None = None
    """of bcl and proco: how much the contrastive loss counts"""
    hidden: int | None = None
    """of bcl and proco: hidden width of the projection head"""
    projection: int | None = None
    """of bcl and proco: its output width"""

    model: str = "resnet32"
    """resnet20/32/44/56 are CIFAR's; any torchvision or timm model by name"""
    pretrained: bool = False
    """begin with the model's published ImageNet weights, and normalise images as they expect"""
    weights: str | None = None
    """begin with the backbone in this file (safetensors)"""
    head: str | None = None
    """the classifier; default: the method's"""
    sampler: Sampling | None = None
    """which samples an epoch visits; default: the method's"""
    correct_twice: bool = False
    """allow a re-balancing sampler together with a shifted loss"""

    augment: Family = "cifar"
    """the family of augmentations: cifar, imagenet, imagenet-plain (no colour), shift (small grey images), none"""
    image_size: int | None = None
    """side of the images that the model sees; default: as they are, or 224 for files"""
    mixup: float = 0.0
    """alpha of mixup; 0 is none"""
    label_smoothing: float = 0.0
    """how much of a target is spread evenly over the classes"""

    epochs: int = 200
    batch_size: int = 128
    """samples of a step, over all ranks and micro-batches"""
    accumulate: int = 1
    """micro-batches of a step"""
    drop_last: bool = False
    """leave out a last batch that is not full"""
    lr: float = 0.1
    schedule: Schedule = "steps"
    """steps, cosine or constant"""
    milestones: tuple[float, ...] = (0.8, 0.9)
    """epochs at which `steps` decays; below 1, shares of all epochs"""
    decay: float = 0.1
    """what it multiplies with"""
    warmup: int = 5
    """epochs of warm-up"""
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4

    seed: int = 0
    device: str = "auto"
    """auto (CUDA where there is one, else the CPU), cpu, cuda, cuda:1"""
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """of the forward pass; auto: bf16, channels_last, where our kernels were checked, else fp32"""
    channels_last: bool = False
    kernels: Literal["auto", "torch", "triton"] = "auto"
    """of CIFAR's ResNets in bf16 on a GPU: torch's, or ours in Triton; auto: ours where they were checked"""
    compile: bool = False
    """torch.compile the model"""
    workers: int = 4
    """processes or threads that read files, at most as many as there are cores"""
    loading: Literal["streaming", "resident"] = "streaming"
    """image files: read in every epoch, or held on the device, shrunk to a short side of 256"""
    bad_images: Literal["error", "skip"] = "error"
    """an image that cannot be read stops the run, or is left out and listed in `unreadable.json`; class counts that a
    loss takes still have it"""

    train_stats: Literal["eval", "paper"] = "eval"
    """how training-set measures are taken; paper: training mode, augmented, as its authors did"""
    evaluate_every: int = 10
    """epochs between recalls on train and test in the log; 0: at the end only"""
    checkpoint_epochs: int = 10
    """epochs between checkpoints"""
    checkpoint_minutes: float = 10.0
    """minutes between checkpoints"""
    keep: int = 2
    """checkpoints that are kept"""
    tensorboard: bool = False
    """write TensorBoard's files too"""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            _check_type(name, getattr(self, name), hint)
        for name in ("epochs", "batch_size", "accumulate", "keep"):
            check_integer(name, getattr(self, name), minimum=1)
        for name in ("folds", "fold", "seed", "evaluate_every", "checkpoint_epochs", "workers", "warmup"):
            check_integer(name, getattr(self, name), minimum=0)
        for name in ("lr", "decay", "weight_decay", "mixup", "label_smoothing", "checkpoint_minutes"):
            check_number(name, getattr(self, name))
        check_number("momentum", self.momentum, below=1.0)
        check_number("validation", self.validation, below=1.0)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"Expected `accumulate` to divide `batch_size` = {self.batch_size}, but got {self.accumulate}."
            )
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ValueError(
                f"Expected `folds` to be two or more and `fold` one of them, but got {self.folds} and {self.fold}."
            )
        if self.folds and self.validation:
            raise ValueError(f"Expected `validation` or `folds`, not both, but got {self.validation} and {self.folds}.")
        if self.pretrained and self.weights:
            raise ValueError(f"Expected `pretrained` or `weights`, not both, but got {self.weights!r} beside it.")
        self._check_method()

    def _check_method(self) -> None:
        """Refuse settings that the method does not take."""
        method = find_method(self.method)
        method.settings(self.given)
        unknown = [name for name in method.knobs if name not in _knobs()]
        if unknown:
            raise ValueError(
                f"Expected the knobs of {self.method} to be fields of a recipe, but got `{unknown[0]}`; make it a "
                "constant of the method's file."
            )
        if self.label_smoothing > 1:
            raise ValueError(f"Expected `label_smoothing` to be in [0, 1], but got {self.label_smoothing}.")
        if self.accumulate > 1 and not method.mixes:
            raise ValueError(
                f"Expected one micro-batch with {self.method}, which compares the images of a batch, "
                f"but got `accumulate` = {self.accumulate}."
            )
        if self.head is not None:
            HEADS.find(self.head)
        if self.head is not None and not method.takes_any_head:
            raise ValueError(f"Expected no `head` with {self.method}, which has its own, but got {self.head!r}.")
        if self.sampler == "instance" and not method.stages[0].instance:
            raise ValueError(f"Expected no `sampler` with {self.method}, which is one, but got 'instance'.")
        if self.mixup and not method.mixes:
            raise ValueError(f"Expected no `mixup` with {self.method}, which compares images, but got {self.mixup}.")

    @property
    def given(self) -> dict[str, Any]:
        """The knobs that are set."""
        return {name: getattr(self, name) for name in _knobs() if getattr(self, name) is not None}

    @property
    def knobs(self) -> dict[str, Any]:
        """All knobs of the method."""
        return find_method(self.method).settings(self.given)

    @property
    def label(self) -> str:
        """A name for the run, of what most often differs."""
        factor = f"{self.imbalance:g}" if self.imbalance else ""
        parts = [name_in_label(self.data), factor, self.method, self.balance or ""]
        parts += [f"{name}{getattr(self, name):g}" for name in ("beta", "tau") if getattr(self, name) is not None]
        return "-".join([part for part in parts if part] + [f"seed{self.seed}"])


def name_in_label(data: str) -> str:
    """What a run's label calls its data: a folder or a list by its name alone.

    Example:
        >>> name_in_label("pictures/pets"), name_in_label("cifar10-lt")
        ('pets', 'cifar10-lt')
    """
    return Path(data).name if "/" in data or "." in data else data


def _check_type(name: str, value: Any, hint: Any) -> None:
    """A setting must be what its annotation says; a file may say anything."""
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    if not any(_is(value, kind) for kind in kinds):
        wanted = " or ".join(_told(kind) for kind in kinds if kind is not NoneType)
        raise ValueError(f"Expected `{name}` to be {wanted}, but got {value!r}.")


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(one, get_args(kind)[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _told(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return "a list of numbers"
    return {int: "an integer", float: "a number", str: "a text", bool: "true or false"}[kind]


def _knobs() -> tuple[str, ...]:
    names = [field.name for field in fields(Recipe)]
    return tuple(names[names.index("method") + 1 : names.index("model")])


def check_fields(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings as a recipe takes them, ``none`` as ``None``; a name that it does not know is refused."""
    known = {field.name for field in fields(Recipe)}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise ValueError(f"Expected the settings of a recipe in {where}, but got `{unknown[0]}`.")
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    hints = get_type_hints(Recipe)
    for name, value in found.items():
        if value == _NONE and NoneType in get_args(hints[name]):
            found[name] = None
        _check_type(name, found[name], hints[name])
    return found


def _shipped(name: str) -> dict[str, Any]:
    """A data set's recipe; one that is made long-tailed here may share that of the whole."""
    folder = resources.files("longtail").joinpath("recipes")
    file = folder.joinpath(f"{name}.toml")
    if not file.is_file():
        file = folder.joinpath(f"{name.removesuffix('-lt')}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def defaults(data: str, method: str, imbalance: float | None = None, *, small: bool = False) -> Recipe:
    """The recipe that ships with a data set, for one method.

    Args:
        data: a data set by name, or the path of one's own.
        method: a method by name; a data set's recipe may say more about some.
        imbalance: settings may depend on it.
        small: of one's own data: images are small, and all of one size.

    Example:
        >>> defaults("cifar10-lt", "cbs", 100).beta
        1.8
    """
    find_method(method)
    own = "own-small" if small else "own"
    content = _shipped(data if data in CATALOG else own)
    settings: dict[str, Any] = {name: value for name, value in content.items() if not isinstance(value, dict)}
    special = content.get("method", {}).get(method, {})
    settings |= {name: value for name, value in special.items() if not isinstance(value, dict)}
    if imbalance is None and CATALOG.get(data) and CATALOG[data].imbalance is not None:
        imbalance = CATALOG[data].imbalance
    if imbalance is not None:
        settings |= special.get("imbalance", {}).get(f"{imbalance:g}", {})
        settings["imbalance"] = float(imbalance)
    return Recipe(**check_fields({**settings, "data": data, "method": method}, f"the recipe of {data}"))


def read_recipe(path: Path | str) -> dict[str, Any]:
    """The settings that a TOML file names."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a recipe in {path}, but there is no such file.")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected {path} to be TOML, but it is not: {error}.") from error
    return check_fields(content, str(path))


def write_recipe(recipe: Recipe) -> str:
    """A recipe as TOML, all settings resolved: reading it gives the same run.

    What is ``None`` is written as ``none``, so that no data set's recipe fills it in; knobs of other methods are left
    out.
    """
    import tomli_w  # noqa: PLC0415 - an extra

    others = set(_knobs()) - recipe.knobs.keys()
    settings = {name: value for name, value in asdict(resolved(recipe)).items() if name not in others}
    return tomli_w.dumps({name: _NONE if value is None else value for name, value in settings.items()})


# Two recipes side by side


def resolved(recipe: Recipe) -> Recipe:
    """Every knob of the method said."""
    return replace(recipe, **recipe.knobs)


def with_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """The precision said, if that was left to the device.

    Example:
        >>> with_precision(Recipe(precision="auto"), torch.device("cpu")).precision
        'fp32'
    """
    if recipe.precision != "auto":
        return recipe
    ours = recipe.model in CIFAR_RESNETS and not recipe.compile and recipe.kernels != "torch" and is_checked(device)
    return replace(recipe, precision="bf16", channels_last=True) if ours else replace(recipe, precision="fp32")


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All settings that say what is trained; milestones as shares of the epochs, however they were given."""
    settings = {name: value for name, value in asdict(resolved(recipe)).items() if name not in HOUSEKEEPING}
    return settings | {"milestones": [m if m < 1 else m / recipe.epochs for m in recipe.milestones]}


def differing_settings(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Settings in which a run that is there differs from one that is wanted, each with both values.

    A precision that is left to the device is any that the run has.

    Example:
        >>> differing_settings(settings_of(Recipe(lr=0.1, device="cpu")), settings_of(Recipe(lr=0.2)))
        ['`lr` (0.1 there, 0.2 here)']
    """
    left_open = {"precision", "channels_last"} if here.get("precision") == "auto" else set()
    both = [name for name in here if name in there and name not in left_open]
    return [f"`{name}` ({there[name]} there, {here[name]} here)" for name in both if there[name] != here[name]]

"""A recipe: every setting of a run. Outside it is flat, as the command line and `recipe.toml` are."""

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Union, get_args

import torch

from longtail._io import import_extra, read_toml, reading
from longtail.classes import group_bounds
from longtail.data import CATALOG, is_features
from longtail.data.datasets.features import GROUP, has_groups
from longtail.data.datasets.long_tail import Profile
from longtail.data.datasets.own import base_name
from longtail.kernels import checked_for
from longtail.methods import METHODS, Method, UnknownParams, find_method, unknown_method
from longtail.methods.base import reserve_settings
from longtail.methods.params import Parameter, check_type, param, parameters_of
from longtail.models import HEADS
from longtail.train.fitting import fitting_settings
from longtail.train.optimizer import SCHEDULES
from longtail.train.own import OwnImages, check_no_texts, listed_images, measure_path

HOUSEKEEPING = frozenset(
    {
        *("root", "device", "workers", "cache", "evaluate_every", "checkpoint_epochs", "checkpoint_minutes", "keep"),
        *("tensorboard", "wandb", "mlflow"),
    }
)
"""Settings that say where and how a run is kept, not what is trained: a run may continue with other values."""

OPENING = ("image_root", "path_column", "label_column", "split_by")
"""Settings that say how your own data is opened: options of :func:`longtail.data.open_path`."""

HELD_OUT = 0.1
"""The fraction of the training data on which the strength of a post-hoc step is chosen by default."""

_FILES = resources.files("longtail").joinpath("recipes")
_NONE = "none"  # how a file and the command line write None

Family = Literal["cifar", "imagenet", "imagenet-plain", "shift", "none"]
"""Families of augmentations."""
Sampling = Literal["instance", "class-aware", "square-root", "progressive"]
Named = Literal["finetune", "probe", "lora"]
"""Recipes for pretrained networks, which replace settings of the data set's."""


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run: fields that all methods have, and the parameters of the method.

    Use :func:`defaults` for the recipe of a data set and :meth:`changed` to change settings by name, parameters
    included.

    Example:
        >>> recipe = defaults("cifar10-lt", "cbs", 100).changed(beta=1.5, epochs=10)
        >>> recipe.beta, recipe.params, recipe.epochs
        (1.5, CBSParams(beta=1.5), 10)
    """

    data: str = param(
        "cifar10-lt",
        "a data set that `longtail data list` shows, or a path: a folder of class folders, or a list of images",
    )
    root: str = param("data", "the data folder, for data sets by name")
    image_root: str | None = param(
        None, "your own list: the folder that its paths are relative to; default: the folder of the list"
    )
    path_column: str = param("path", "your own list: the column with the paths of images")
    label_column: str = param("label", "your own list: the column with the labels")
    split_by: str | None = param(
        None,
        "your own data: images with the same value in this column of the list (patient, video) are never split between "
        "training, validation and test data; of class folders `folder`, the folders directly below them, or a pattern "
        "of file names such as '(patient[0-9]+)_'; default: an array `group` of a file of features, if it has one",
    )
    test: float = param(
        0.0,
        "fraction of the images of each class to hold out as test data, if the data has no test split",
        at_least=0,
        below=1,
    )
    test_seed: int | Literal["run"] = param(
        0,
        "chooses the test data: the same for every seed, or `run`: different test data for each seed",
        at_least=0,
        below=2**32,
    )
    imbalance: float | None = param(None, "imbalance factor of a data set that is made long-tailed here")
    profile: Profile = param("exp", "shape of the class counts: exp, step or pareto")
    subset_seed: int | Literal["run"] = param(
        0,
        "seed of the long-tailed subset: 0 as in the literature, `run`: that of the run, as the paper's authors did",
        at_least=0,
        below=2**32,
    )
    validation: float = param(
        0.0,
        "fraction of the training images of each class to hold out, if the data set has no validation split; default: "
        "0.1 for methods that choose a strength on validation data, else 0",
        at_least=0,
        below=1,
    )
    folds: int = param(0, "number of cross-validation folds, stratified by class; 0: none", at_least=0)
    fold: int = param(0, "the fold that is held out for validation", at_least=0)
    groups: str = param(
        "auto",
        "head, medium and tail: 100,20 (head has more training images per class, tail fewer), quantiles (thirds of the "
        "classes), or a JSON file with the classes of each group; auto: the usual ones of the data set, or 100,20, or "
        "quantiles if that gives no head or no tail with test data",
    )

    recipe: Named | None = param(
        None,
        "settings for a pretrained network: finetune (all weights), probe (a classifier on frozen features), lora; use "
        "`weights` or `pretrained` with it",
    )
    method: str = param("cbs", "a method that `longtail methods` shows")
    params: Any = None
    """the parameters of the method, an instance of its dataclass"""

    model: str = param(
        "resnet32",
        "resnet20, 32, 44 or 56 (the CIFAR networks), or any torchvision or timm model; for features linear, mlp or "
        "mlp-256-128",
    )
    pretrained: bool = param(False, "start from the published ImageNet weights of the model, with their normalisation")
    weights: str | None = param(
        None,
        "start from the backbone in this file (safetensors, or torch.save with tensors only), or in a folder with one",
    )
    train: Literal["all", "head", "norm", "lora", "adapter"] = param(
        "all",
        "what is trained: all; head (the backbone is frozen, and its features are computed once, without "
        "augmentation); norm (head and norm layers); lora (head and low-rank changes of linear layers); adapter (head "
        "and a narrow MLP beside that of each transformer block)",
    )
    rank: int = param(8, "with train = lora or adapter: rank of the changes, width of the narrow MLPs", at_least=1)
    drop_path: float | None = param(
        None, "probability of skipping a residual branch; default: the network's", at_least=0, below=1
    )
    head: str | None = param(
        None, "the classifier: linear, cosine, class-scaled, reslt or a registered one; default: the method's"
    )
    head_init: str = param(
        "random",
        "how a linear or cosine head starts: random; means (predicts the class with the nearest mean); or a file, .npz "
        "with `features` and `classes`: predicts the class with the nearest embedding, for example of its name",
    )
    sampler: Sampling | None = param(None, "which samples an epoch visits; default: the method's")
    correct_twice: bool = param(False, "allow a re-balancing sampler with a loss that corrects for class counts")

    augment: Family = param(
        "cifar",
        "the family of augmentations: cifar, imagenet, imagenet-plain (no colour), shift (small grey images), none",
    )
    image_size: int | None = param(
        None,
        "side of the images that the model sees; default: that of the images, or 224 for files",
        at_least=1,
        at_most=8192,
    )
    mixup: float = param(0.0, "alpha of mixup; 0: no mixup", at_least=0)
    cutmix: float = param(
        0.0, "alpha of CutMix; 0: no CutMix; with mixup each step has one of the two at random", at_least=0
    )
    label_smoothing: float = param(0.0, "label smoothing, as in nn.CrossEntropyLoss", at_least=0, at_most=1)

    epochs: int = param(200, "passes over the training data", at_least=1)
    batch_size: int = param(128, "samples per step, over all ranks and micro-batches", at_least=1)
    accumulate: int = param(1, "micro-batches per step", at_least=1)
    drop_last: bool = param(False, "drop the last batch of an epoch if it is not full")
    lr: float = param(0.1, "peak learning rate", at_least=0)
    schedule: str = param("steps", "schedule of the learning rate: steps, cosine, constant or a registered one")
    milestones: tuple[float, ...] = param(
        (0.8, 0.9), "epochs at which `steps` decays; values below 1 are fractions of all epochs"
    )
    decay: float = param(0.1, "factor at each milestone", at_least=0)
    warmup: int = param(5, "epochs of warm-up", at_least=0)
    warmup_steps: int = param(0, "steps of warm-up, instead of epochs; 0: `warmup` epochs", at_least=0)
    optimizer: str = param("sgd", "sgd, adamw, or one of timm's, for example lion, lamb or adamp")
    momentum: float = param(0.9, "momentum of SGD, and of timm optimisers that support it", at_least=0, below=1)
    nesterov: bool = param(False, "Nesterov momentum")
    weight_decay: float | Literal["auto"] = param(
        5e-4,
        "weight decay; with SGD also applied to biases and norms; auto: of 0.01, 0.1, 1 and 3 the one with the highest "
        "recall over all classes on validation data, each tried in a run of its own",
        at_least=0,
    )

    backbone_lr: float = param(
        1.0, "learning rate of the backbone as a fraction of `lr`, which the head has", at_least=0
    )
    layer_decay: float = param(
        1.0,
        "factor of the learning rate from each layer to the one before it; 0.75 is usual for ViTs",
        at_least=0,
        at_most=1,
    )
    clip_grad: float = param(0.0, "largest norm of the gradient; 0: any", at_least=0)
    ema: float = param(
        0.0,
        "decay of a moving average of the weights, for example 0.9998, which is then evaluated and saved; 0: none",
        at_least=0,
        below=1,
    )

    seed: int = param(0, "seed of weights, sample order and augmentation", at_least=0, below=2**32)
    device: str = param("auto", "auto (CUDA if available, else the CPU), cpu, cuda, cuda:1")
    precision: Literal["auto", "fp32", "bf16"] = param(
        "fp32",
        "precision of the forward pass; auto: bf16 with channels_last on a GPU, for small images only where our "
        "kernels were verified; fp32 with channels_last on a CPU; else fp32",
    )
    channels_last: bool = param(False, "memory format of images and weights")
    kernels: Literal["auto", "torch", "triton"] = param(
        "auto",
        "kernels for the CIFAR ResNets in bf16 on a GPU: torch, or ours in Triton; auto: ours where they were verified",
    )
    compile: bool = param(False, "torch.compile the model")
    workers: int = param(4, "processes or threads that read files, at most one per core", at_least=0)
    cache: bool = param(
        True,
        "keep the pixels of small image files, and the features of a frozen backbone, in the folder `image-cache` of "
        "the runs",
    )
    bad_images: Literal["error", "skip"] = param(
        "error",
        "an unreadable image stops the run (error), or is skipped and listed in `unreadable.json` (skip); "
        "the class counts of the loss still include it",
    )

    best_epoch: bool = param(
        False, "use the weights of the epoch with the best recall over all classes on validation data, not of the last"
    )
    patience: int = param(
        0, "with best_epoch, stop after this many epochs without a better one; 0: train all epochs", at_least=0
    )
    train_stats: Literal["eval", "paper"] = param(
        "eval", "how training-set measures are computed; paper: in training mode, with augmentation, as its authors did"
    )
    evaluate_every: int = param(10, "epochs between evaluations in the log; 0: only at the end", at_least=0)
    checkpoint_epochs: int = param(10, "epochs between checkpoints", at_least=0)
    checkpoint_minutes: float = param(10.0, "minutes between checkpoints", at_least=0)
    keep: int = param(2, "number of checkpoints to keep", at_least=1)
    tensorboard: bool = param(False, "also write TensorBoard files")
    wandb: bool = param(False, "also write an offline run of Weights & Biases, which `wandb sync` uploads")
    mlflow: bool = param(False, "also write a local MLflow store")

    def __post_init__(self) -> None:
        for name, parameter in _fields().items():
            parameter.check(getattr(self, name))
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"Expected `accumulate` to divide `batch_size` = {self.batch_size}, but got {self.accumulate}."
            )
        group_bounds(self.groups)
        for name in OPENING if self.data in CATALOG else ():
            if getattr(self, name) != getattr(Recipe, name):
                raise ValueError(
                    f"Expected no `{name}` for {self.data}, a data set by name, but got {getattr(self, name)!r}."
                )
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ValueError(
                f"Expected `folds` to be two or more and `fold` one of them, but got {self.folds} and {self.fold}."
            )
        if self.folds and self.validation:
            raise ValueError(f"Expected `validation` or `folds`, not both, but got {self.validation} and {self.folds}.")
        if self.head_init not in {"random", "means"} and not Path(self.head_init).suffix:
            raise ValueError(
                f"Expected `head_init` to be random, means or a file of embeddings, but got {self.head_init!r}."
            )
        if self.patience and not self.best_epoch:
            raise ValueError(f"Expected `best_epoch` with `patience` = {self.patience}, but it is off.")
        if self.optimizer == "adamw" and self.lr >= 0.1:
            raise ValueError(f"Expected `lr` below 0.1 with adamw, for example 0.001, but got {self.lr:g}.")
        if self.pretrained and self.weights:
            raise ValueError(f"Expected `pretrained` or `weights`, not both, but got {self.weights!r} and pretrained.")
        if not isinstance(self.params, UnknownParams):
            self._check_method(find_method(self.method))

    def _check_method(self, method: Method) -> None:
        if self.params is None:
            object.__setattr__(self, "params", method.params())
        if type(self.params) is not method.params:
            wanted = f"the parameters of {self.method}, {method.params.__name__}"
            raise TypeError(f"Expected `params` to be {wanted}, but got {self.params!r}; `changed` sets them by name.")
        for name, parameter in method.parameters.items():
            parameter.check(getattr(self.params, name))
        for name, off in (("accumulate", 1), ("mixup", 0), ("cutmix", 0)):
            value = getattr(self, name)
            if value != off and not method.mixes:
                why = "which compares the images of a batch"
                raise ValueError(f"Expected `{name}` = {off} with {self.method}, {why}, but got {value}.")
        SCHEDULES.find(self.schedule)
        if self.head is not None:
            HEADS.find(self.head)
        if self.head is not None and not method.takes_any_head:
            raise ValueError(f"Expected no `head` with {self.method}, which has its own, but got {self.head!r}.")
        if self.sampler == "instance" and method.stages[0].sampler is not None:
            raise ValueError(f"Expected no `sampler` with {self.method}, which has its own, but got 'instance'.")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, unknown_methods: bool = False) -> "Recipe":
        """The recipe with these settings, fields and parameters in one flat mapping; others have their defaults.

        Args:
            settings: values by name.
            unknown_methods: whether the method may be one that is not registered here. Such a recipe can be read and
                compared but not trained.
        """
        flat: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
        }
        own = {name: flat.pop(name) for name in _fields() if name in flat}
        name = own.get("method", cls.method)
        check_type("method", name, str)
        if unknown_methods and name not in METHODS:
            return cls(**own, params=unknown_method(name, flat)[1])
        method = find_method(name)
        for unknown in flat.keys() - method.parameters.keys() - _all_parameters().keys():
            raise ValueError(f"Expected the settings of a recipe, but got `{unknown}`.")
        made = cls(**own, params=method.make_params(flat))
        return made if "validation" in own else replace(made, validation=made.usual_validation)

    def settings(self) -> dict[str, Any]:
        """All settings by name: fields, and the method's parameters after `method`."""
        found: dict[str, Any] = {}
        for one in fields(self):
            found |= self.spec.values(self.params) if one.name == "params" else {one.name: getattr(self, one.name)}
        return found

    def changed(self, **settings: Any) -> "Recipe":
        """A copy with other settings, by name.

        The parameters of another method, and parameters that are set to ``None`` but cannot be ``None``, are those of
        the data set's recipe. ``validation`` follows the method and its parameters unless it was set to another value.
        """
        kept = self.settings()
        if self.validation == self.usual_validation:
            del kept["validation"]
        if settings.get("method", self.method) != self.method:
            kept = {name: value for name, value in kept.items() if name in _fields()}
        if settings.get("folds"):
            kept["validation"] = 0.0  # folds replace it
        new = {**kept, **settings}
        unknown = isinstance(self.params, UnknownParams)
        if not unknown and isinstance(new["method"], str):
            method = find_method(new["method"])
            lacking = [
                n for n, p in method.parameters.items() if new.get(n) is None and not (n in new and p.may_be_none)
            ]
            if lacking:
                opening = {name: new[name] for name in OPENING}
                usual = usual_recipe(
                    self, method=method.name, data=new["data"], imbalance=new["imbalance"], **opening
                ).params
                new |= {name: getattr(usual, name) for name in lacking}
        return type(self).from_settings(new, unknown_methods=unknown)

    def with_seed(self, seed: int) -> "Recipe":
        """A copy with another seed, quickly: the other settings are not checked again."""
        _fields()["seed"].check(seed)
        made = copy(self)
        object.__setattr__(made, "seed", seed)
        return made

    @property
    def opening(self) -> dict[str, Any]:
        """How your own data is opened: options of :func:`longtail.data.open_path`."""
        return {name: getattr(self, name) for name in OPENING}

    @property
    def usual_validation(self) -> float:
        """The fraction to hold out if nothing else is chosen: some if the method chooses a strength on it."""
        entry = CATALOG.get(self.data)
        lacks = entry is not None and "val" not in entry.sizes and not self.folds
        return HELD_OUT if lacks and self.spec.chooses_tau(self.params) else 0.0

    @property
    def has_pilots(self) -> bool:
        """Whether pilots may be trained before the run: to choose the weight decay, or to measure beta."""
        return self.weight_decay == "auto" or self.spec.is_auto(self.params)

    @property
    def spec(self) -> Method:
        """The method."""
        if isinstance(self.params, UnknownParams):
            return unknown_method(self.method, vars(self.params))[0]
        return find_method(self.method)

    @property
    def beta(self) -> float | None:
        """The value of the method's beta; ``None`` if it has none."""
        return self.spec.beta_of(self.params)

    @property
    def stage_epochs(self) -> list[int]:
        """The epochs of each stage of the method."""
        return [self.epochs if one.epochs is None else getattr(self.params, one.epochs) for one in self.spec.stages]

    @property
    def label(self) -> str:
        """A name for the run: data, imbalance, method, parameters, seed.

        Beta and the like are always part of it, other parameters where they differ from the data set's recipe.
        """
        parts = [name_in_label(self.data), *([f"{self.imbalance:g}"] if self.imbalance else []), self.method]
        usual: dict[str, Any] = {}
        if not isinstance(self.params, UnknownParams):
            usual = self.spec.values(usual_recipe(self, method=self.method).params)
        for name, value in self.spec.values(self.params).items():
            if value is not None and (name in self.spec.identifying or value != usual.get(name)):
                parts.append(f"{name}{value:g}" if isinstance(value, int | float) else f"{name}-{value}")
        return "-".join([*parts, f"seed{self.seed}"]).replace("/", "_")


def name_in_label(data: str) -> str:
    """What a run's label calls its data: a folder or a list by its name alone.

    Example:
        >>> name_in_label("pictures/pets"), name_in_label("pictures/pets/a/.."), name_in_label("cifar10-lt")
        ('pets', 'pets', 'cifar10-lt')
    """
    return base_name(data) if "/" in data or "." in data else data


# Settings by name


@cache
def _fields() -> dict[str, Parameter]:
    return {name: one for name, one in parameters_of(Recipe).items() if name != "params"}


reserve_settings((*_fields(), "params"))


def _all_parameters() -> dict[str, list[str]]:
    # With the methods that have each.
    found: dict[str, list[str]] = {}
    for method in METHODS.values():
        for name in method.parameters:
            found.setdefault(name, []).append(method.name)
    return found


def parameter_names() -> frozenset[str]:
    """Settings that only some methods have."""
    return frozenset(_all_parameters())


def setting_types() -> dict[str, Any]:
    """The type of every setting: fields of a recipe, and parameters of all registered methods after `method`.

    A parameter of several methods has the types of all of them, and may be ``None``, which stands for its default.
    """
    found: dict[str, Any] = {}
    for name, field in _fields().items():
        found[name] = field.hint
        if name == "method":
            for parameter, methods in _all_parameters().items():
                found[parameter] = Union[*(METHODS[one].parameters[parameter].hint for one in methods), None]
    return found


def setting_help(name: str) -> str:
    """Return the help text of a setting; that of a method's parameter names the methods that have it."""
    methods = _all_parameters().get(name, [])
    if methods:
        texts: dict[str, list[str]] = {}
        for method in methods:
            texts.setdefault(METHODS[method].parameters[name].help, []).append(method)
        return "; ".join(f"{text} ({', '.join(sharing)})" for text, sharing in texts.items())
    return _fields()[name].help


def check_settings(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings from a file, with ``none`` as ``None`` and lists as tuples; unknown names and types raise an error."""
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    hints = setting_types()
    method = found.get("method", Recipe.method)
    unknown_method = isinstance(method, str) and method not in METHODS
    for name, value in found.items():
        if name not in hints and not unknown_method:
            raise ValueError(f"Expected the settings of a recipe in {where}, but got `{name}`.")
        hint = hints.get(name, Any)
        if value == _NONE and (hint is Any or NoneType in get_args(hint)):
            found[name] = None
        if not unknown_method:
            check_type(name, found[name], hint)
    return found


# Recipes in files


def _shipped(name: str) -> dict[str, Any]:
    """The recipe of a data set; one that is made long-tailed here may share that of the whole data set."""
    entry = CATALOG.get(name)
    if entry is not None and entry.recipe is not None:
        return dict(entry.recipe)
    return _first_file(name, name.removesuffix("-lt"), "own")


def settings_of_data() -> set[str]:
    """Settings whose defaults depend on the data set: those that its recipe or its entry in the catalog may have."""
    files = [file for file in _FILES.iterdir() if file.name.removesuffix(".toml") not in get_args(Named)]
    recipes = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    return {"data", "imbalance", "beta"} | {name for one in recipes for name in one if name != "method"}


def _first_file(*names: str) -> dict[str, Any]:
    """The content of the first of our recipes that exists."""
    files = (_FILES.joinpath(f"{name}.toml") for name in names)
    return tomllib.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))


def defaults(
    data: str,
    method: str | None,
    imbalance: float | None = None,
    *,
    small: bool | None = None,
    images: OwnImages | None = None,
    given: Mapping[str, Any] | None = None,
    **opening: Any,
) -> Recipe:
    """The recipe that ships with a data set, for one method; else one that fits the number and the size of the images.

    Args:
        data: a data set by name, or the path of your own.
        method: a method by name; the recipe may have special settings for it. ``None``: without special settings.
        imbalance: the recipe may have special settings for it.
        small: of your own data: images are small, and all have one size. If ``data`` is only a name, because you pass
            a ``dataset`` to the trainer, give this or ``images``; with this alone, nothing is fitted.
        images: what the settings for your own data fit; default: read from the files by :func:`measure_path`.
        given: settings that you will change afterwards; the others for your own data fit them, and ``recipe`` names a
            recipe for pretrained networks.
        **opening: of your own data: options of :func:`longtail.data.open_path`, which are settings of the recipe.

    Example:
        >>> defaults("cifar10-lt", "cbs", 100).beta
        1.8
    """
    if method is not None:
        find_method(method)
    check_no_texts(data)
    given = given or {}
    check_type("recipe", given.get("recipe"), Named | None)
    named = {} if given.get("recipe") is None else {"recipe": given["recipe"], **_first_file(given["recipe"])}
    own = "features" if data not in CATALOG and (is_features(data) if images is None else images.features) else "own"
    if own == "features" and "split_by" not in opening and has_groups(data):
        opening = {**opening, "split_by": GROUP}
    fits = listed_images(data)
    if data not in CATALOG and small is None:
        fits = measure_path(data, **opening) if images is None else images
    fitted: dict[str, Any] = {}
    if fits is not None:
        wanted = {name: value for name, value in named.items() if name in {"train", "optimizer"}}
        fitted = fitting_settings(fits, {**wanted, **given})
        small = fits.small or fitted.get("augment") == "cifar"
    content = _shipped(data if data in CATALOG and fits is None else "own-small" if small else own)
    # What a data set's recipe says about a method is for the network and optimiser of that recipe.
    special = (named or content).get("method", {}).get(method, {})
    if imbalance is None and data in CATALOG:
        imbalance = CATALOG[data].imbalance
    settings: dict[str, Any] = {**_flat(content), **_flat(named), **fitted, **_flat(special)}  # later ones win
    if imbalance is not None:
        settings |= {**special.get("imbalance", {}).get(f"{imbalance:g}", {}), "imbalance": float(imbalance)}
    settings |= {**opening, "data": data} if method is None else {**opening, "data": data, "method": method}
    return Recipe.from_settings(check_settings(settings, f"the recipe of {data}"))


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a table in a file, without the tables in it."""
    return {name: value for name, value in content.items() if not isinstance(value, dict)}


def usual_recipe(
    recipe: Recipe, *, method: str | None, data: str | None = None, imbalance: float | None = None, **opening: Any
) -> Recipe:
    """The recipe that ships with the data set of another recipe, or with other data, for a method.

    For the same images, the augmentation says whether they are small, so they are not read.
    """
    data, imbalance = (recipe.data, recipe.imbalance) if data is None else (data, imbalance)
    known = data not in CATALOG and data == recipe.data
    small = recipe.augment in {"cifar", "shift"} if known else None
    return defaults(data, method, imbalance, small=small, given={"recipe": recipe.recipe}, **opening)


def read_recipe(path: Path | str) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        content = read_toml(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise FileNotFoundError(f"Expected a recipe in {path}, but there is no such file.") from None
    with reading(path, "a recipe"):
        return check_settings(content, str(path))


def recipe_in(path: Path) -> Recipe:
    """The recipe in the file of a run, also of a method that is not registered here.

    The files of a study differ in the seed only, so what is the same is parsed once.
    """
    with suppress(OSError, ValueError):
        text = path.read_text(encoding="utf-8")
        seeds = _SEED.findall(text)
        if len(seeds) == 1:
            return _parsed(_SEED.sub("", text), frozenset(METHODS)).with_seed(int(seeds[0]))
    return Recipe.from_settings(read_recipe(path), unknown_methods=True)  # raises errors that name the file


_SEED = re.compile(r"^seed = (\d+)$", re.MULTILINE)


@lru_cache(maxsize=256)
def _parsed(text: str, _: frozenset[str]) -> Recipe:
    return Recipe.from_settings(check_settings(tomllib.loads(text), "a recipe"), unknown_methods=True)


def write_recipe(recipe: Recipe) -> str:
    """A recipe as TOML, all settings resolved: reading it gives the same run.

    ``None`` is written as ``none``, so that the recipe of a data set does not fill it in.
    """
    settings = {name: _NONE if value is None else value for name, value in recipe.settings().items()}
    return str(import_extra("tomli_w", "train").dumps(settings))


def with_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe with the precision that ``auto`` stands for on a device."""
    if recipe.precision != "auto":
        return recipe
    ours = not recipe.compile and recipe.kernels != "torch" and checked_for(recipe.model, device)
    large = recipe.augment in {"imagenet", "imagenet-plain"}
    if ours or (large and device.type == "cuda"):
        return replace(recipe, precision="bf16", channels_last=True)
    # The convolutions of a CPU are up to three times faster with it, but not on the smallest images.
    last = recipe.channels_last or (device.type == "cpu" and (large or recipe.augment == "cifar"))
    return replace(recipe, precision="fp32", channels_last=last)


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device for the name in a recipe. Call it before anything else uses CUDA.

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"``: CUDA if torch finds it, else the CPU. Apple's
            ``"mps"`` raises an error: it has no float64, which sums and measures need.
        local_rank: the GPU that ``"auto"`` takes.
    """
    # The number of queues of a GPU, read when CUDA starts. With the default of 8, streams share queues, and loading and
    # the other members of a fleet wait behind a step.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if name == "auto":
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        why = ", which has no float64" if name.startswith("mps") else ""
        raise ValueError(f"Expected `device` to be auto, cpu or cuda, but got {name!r}{why}.")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"Expected a GPU for `device` = {name}, but torch finds none.")
    return torch.device(name)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All settings that say what is trained, with milestones as fractions of the epochs."""
    settings = {name: value for name, value in recipe.settings().items() if name not in HOUSEKEEPING}
    return settings | {"milestones": [m if m < 1 else m / recipe.epochs for m in recipe.milestones]}


def differing_settings(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Settings in which an existing run differs from a new one, each with both values.

    A precision of ``auto`` agrees with every precision.

    Example:
        >>> differing_settings(settings_of(Recipe(lr=0.1, device="cpu")), settings_of(Recipe(lr=0.2)))
        ['`lr` (0.1 there, 0.2 here)']
    """
    ignored = {"precision", "channels_last"} if here.get("precision") == "auto" else set()
    both = [name for name in here if name in there and name not in ignored]
    return [f"`{name}` ({there[name]} there, {here[name]} here)" for name in both if there[name] != here[name]]

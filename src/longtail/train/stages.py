"""The stages of a method for one run: model, head, sampler, objective, optimiser, learning rate and driver."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from longtail.data import FeatureVectors, Resident
from longtail.data.sampling.samplers import ClassAware, Instance, Progressive, Sampler, SquareRoot
from longtail.kernels import use_kernels
from longtail.methods import Objective, Stage, Task
from longtail.models import (
    Backbone,
    FeatureNet,
    HeadSpec,
    Model,
    build_model,
    check_takes,
    is_feature_model,
    is_small,
    replace_head,
)
from longtail.models.tuning import add_adapters, add_lora, check_means, merge_lora, use_class_means
from longtail.train.drivers import Captured, Driver, Eager, Fed
from longtail.train.frozen import Sample, class_means, embeddings_as_means, frozen_features, read_class_embeddings
from longtail.train.loaders import Loader, Loaders
from longtail.train.optimizer import CAPTURED, check_optimizer, learning_rate, make_optimizer, parameter_groups
from longtail.train.pilots import DECAYS
from longtail.train.step import Step
from longtail.train.weights import MovingAverage


@dataclass(frozen=True, eq=False)
class Running:
    """A stage that has started."""

    stage: Stage
    objective: Objective
    loader: Loader
    step: Step
    driver: Driver
    epochs: int
    first_epoch: int
    """Epochs of the stages before: every epoch of a run has its own random draws."""
    rate: Callable[..., float]
    """The learning rate at an epoch, and at a ``step`` of the stage."""


class Stages:
    """Builds the model and the stages of a run.

    Args:
        loaders: of the splits.
        cache: the folder where features of a frozen backbone are kept; ``None``: nowhere.
    """

    def __init__(self, loaders: Loaders, cache: Path | None = None) -> None:
        self.loaders, self.recipe, self.cache = loaders, loaders.recipe, cache
        self.sample: Sample | None = None
        """Instead of the features of all images, those of a few: to measure how long a run takes."""
        self.weight_decay = DECAYS[0] if self.recipe.weight_decay == "auto" else float(self.recipe.weight_decay)
        """That of the recipe, or what was chosen."""
        self._frozen: Backbone | None = None
        self.method = self.recipe.spec
        self.params = self.method.training_params(self.recipe.params)
        self.epochs = self.recipe.stage_epochs
        self.precision = torch.bfloat16 if self.recipe.precision == "bf16" else torch.float32
        check_optimizer(self.recipe.optimizer)
        self._check_settings()
        twice = self.recipe.sampler not in {None, "instance"} and not self.recipe.correct_twice
        if twice and self._objective(self.method.stages[0], self.epochs[0]).rebalances:
            raise ValueError(
                f"Expected `sampler` to be instance with {self.recipe.method}, whose loss corrects for class counts "
                f"already, but got {self.recipe.sampler}; `correct_twice` allows it."
            )

    @property
    def _reads_features(self) -> bool:
        """Whether the trained model reads feature vectors, which have no memory format of images."""
        return bool(self.loaders.features) or isinstance(self.loaders.dataset.train.images, FeatureVectors)

    def head(self, stage: Stage) -> HeadSpec:
        """The classifier of a stage: the recipe's instead of a linear one, else the method's."""
        own = stage.head_of(self.params)
        return HeadSpec(self.recipe.head) if self.recipe.head is not None and own == HeadSpec("linear") else own

    def _check_settings(self) -> None:
        """Raise an error for settings of the model that do not fit the data or each other."""
        recipe = self.recipe
        features = isinstance(self.loaders.dataset.train.images, FeatureVectors)
        if is_feature_model(recipe.model) != features:
            kind, wanted = ("features", "linear or mlp") if features else ("images", "a network")
            raise ValueError(f"Expected `model` to be {wanted} for {kind}, but got {recipe.model}.")
        if features:
            of_images = {"pretrained": False, "weights": None, "channels_last": False, "image_size": None}
            self._check_off("for features", **of_images, augment="none", cutmix=0, drop_path=None)
        if (recipe.train != "all" or recipe.recipe) and not (recipe.weights or recipe.pretrained):
            why = f"`recipe` = {recipe.recipe}" if recipe.recipe else f"`train` = {recipe.train}"
            raise ValueError(
                f"Expected `weights` or `pretrained` with {why}, which starts from a trained network, but got neither."
            )
        if recipe.train == "head":
            why = "with `train` = head, whose features are computed once"
            self._check_off(why, mixup=0, cutmix=0, drop_path=None, backbone_lr=1, layer_decay=1)

    def _check_off(self, why: str, **settings: Any) -> None:
        """Raise an error for settings that do not have these values."""
        for name, off in settings.items():
            if getattr(self.recipe, name) != off:
                raise ValueError(f"Expected `{name}` = {off} {why}, but got {getattr(self.recipe, name)}.")

    def build(self, *, fresh: bool = True) -> Model:
        """The model of the first stage, on the device.

        Args:
            fresh: whether the run starts; the head of a run that continues comes from its checkpoint.
        """
        method, recipe, train = self.method, self.recipe, self.loaders.dataset.train.images
        model = build_model(
            recipe.model,
            self.loaders.dataset.num_classes,
            head=self.head(method.stages[0]),
            in_channels=self.loaders.channels,
            pretrained=recipe.weights or recipe.pretrained,
            projection=None if method.projection is None else method.projection(self.params),
            prototypes=method.prototypes,
            image_size=self.loaders.image_size,
            drop_path=recipe.drop_path,
            seed=recipe.seed,
        )
        embeddings = self._class_embeddings(model) if fresh else None
        if recipe.train == "head" and model.head.wants_maps:
            raise ValueError(
                f"Expected a method whose head reads features with `train` = head, but {recipe.method} reads maps; "
                "train norm or all instead."
            )
        if isinstance(model.backbone, FeatureNet) and isinstance(train, FeatureVectors):
            model.backbone.standardise(train.pixels)
        elif not recipe.compile:
            use_kernels(model, self.loaders.device, self.precision, recipe.kernels)
        model = model.to(self.loaders.device)
        if not is_small(recipe.model):
            check_takes(model, recipe.model, self.loaders.channels, self.loaders.image_size)
        model = model.to(memory_format=torch.channels_last) if recipe.channels_last else model
        if recipe.train == "head":
            self._freeze(model)
        if fresh:
            self._start_head(model, embeddings)
        if recipe.train in {"lora", "adapter"}:
            (add_lora if recipe.train == "lora" else add_adapters)(model, recipe.rank, seed=recipe.seed)
            model.fixed_statistics = True
        return model

    def _class_embeddings(self, model: Model) -> Tensor | None:
        """An embedding of each class with which the head starts, if ``head_init`` is a file."""
        init = self.recipe.head_init
        if init != "random":
            check_means(model.head, init)
        if init in {"random", "means"}:
            return None
        return read_class_embeddings(init, self.loaders.dataset.class_names, model.backbone)

    def _start_head(self, model: Model, embeddings: Tensor | None) -> None:
        if embeddings is not None:
            use_class_means(model.head, embeddings_as_means(model.backbone, embeddings.to(self.loaders.device)))
        elif self.recipe.head_init == "means":
            use_class_means(model.head, class_means(model.backbone, self.loaders))

    def _freeze(self, model: Model) -> None:
        """Replace the backbone by its features, standardised, which the loaders yield from now on."""
        self._frozen = model.backbone
        if not self.loaders.features:
            self.loaders.features.update(frozen_features(model.backbone, self.loaders, self.cache, self.sample))
        vectors = self.loaders.features[self.loaders.dataset.train].images
        assert isinstance(vectors, FeatureVectors)
        scaler = FeatureNet(model.backbone.num_features)
        scaler.standardise(vectors.pixels)
        model.backbone = scaler.to(self.loaders.device)

    def merge(self, model: Model) -> None:
        """Make the trained model a plain one, for evaluation."""
        if self.recipe.train == "lora":
            merge_lora(model)

    def complete(self, model: Model) -> None:
        """Give a model that was trained on the features of a frozen backbone that backbone again, for use on images."""
        if self._frozen is not None:
            assert isinstance(model.backbone, FeatureNet)
            model.scaler = model.backbone
            model.backbone = self._frozen

    def change_head(self, model: Model, number: int) -> None:
        """Give the model the classifier with which a later stage starts."""
        stage = self.method.stages[number]
        replace_head(model, self.head(stage), seed=self.recipe.seed + number, keep_weights=not stage.reinit)

    def start(self, model: Model, number: int) -> Running:
        """All parts of a stage, ready for its first step."""
        recipe, stage, epochs = self.recipe, self.method.stages[number], self.epochs[number]
        device, ranks = self.loaders.device, self.loaders.ranks
        objective = self._objective(stage, epochs).to(device)
        objective.ranks = ranks
        loader = self.loaders.training(objective.views, self._sampler(stage, number), drop_last=recipe.drop_last)
        groups = parameter_groups(
            model,
            model.trainable(stage.train if stage.train == "classifier" else recipe.train),
            weight_decay=self.weight_decay,
            decay_all=recipe.optimizer == "sgd",
            backbone_lr=recipe.backbone_lr,
            layer_decay=recipe.layer_decay,
        )
        optimizer = make_optimizer(groups, recipe.optimizer, momentum=recipe.momentum, nesterov=recipe.nesterov)
        wrapped: nn.Module = model
        if recipe.compile:
            # One graph for full batches and one for the last: torch would make the second one dynamic, and slower, and
            # then use it for full batches too. Where images are skipped, there are too many sizes for that.
            wrapped = torch.compile(wrapped, dynamic=False if recipe.bad_images == "error" else None)  # type: ignore[assignment]
        if ranks.world > 1:
            wrapped = DistributedDataParallel(wrapped, device_ids=[device] if device.type == "cuda" else None)
        step = Step(
            wrapped,
            objective,
            optimizer,
            precision=self.precision,
            channels_last=recipe.channels_last and not self._reads_features,
            clip_grad=recipe.clip_grad,
            ema=MovingAverage(model, recipe.ema) if recipe.ema else None,
        )
        captured = device.type == "cuda" and ranks.world == 1 and recipe.optimizer in CAPTURED
        if not captured or recipe.accumulate > 1:
            driver: Driver = Eager(step, loader, recipe.accumulate, recipe.mixup, cutmix=recipe.cutmix)
        elif isinstance(loader, Resident):
            last = sum(self.epochs[: number + 1]) - 1
            driver = Captured(step, loader, recipe.mixup, last=last, cutmix=recipe.cutmix)
        else:
            driver = Fed(step, loader, recipe.mixup, cutmix=recipe.cutmix)
        first_epoch = sum(self.epochs[:number])
        return Running(stage, objective, loader, step, driver, epochs, first_epoch, self._rate(stage, epochs))

    def _rate(self, stage: Stage, epochs: int) -> Callable[..., float]:
        if stage.lr is not None:
            return partial(learning_rate, lr=getattr(self.params, stage.lr), epochs=epochs, schedule="cosine")
        names = ("lr", "schedule", "milestones", "decay", "warmup", "warmup_steps")
        return partial(learning_rate, epochs=epochs, **{name: getattr(self.recipe, name) for name in names})

    def _sampler(self, stage: Stage, number: int) -> Sampler:
        chosen = self.recipe.sampler
        if chosen is None or stage.train == "classifier":  # a second stage is defined by its sampler
            return Instance() if stage.sampler is None else stage.sampler(self.params)
        if chosen == "class-aware":
            own = [one.sampler(self.params) for one in self.recipe.spec.stages if one.sampler is not None]
            return next((sampler for sampler in own if isinstance(sampler, ClassAware)), ClassAware())
        if chosen == "progressive":
            return Progressive(self.epochs[number], first=sum(self.epochs[:number]))
        return SquareRoot() if chosen == "square-root" else Instance()

    def _objective(self, stage: Stage, epochs: int) -> Objective:
        recipe, dataset = self.recipe, self.loaders.dataset
        return stage.objective(
            Task(dataset.counts, dataset.groups, epochs, self.params, recipe.seed, recipe.label_smoothing)
        )

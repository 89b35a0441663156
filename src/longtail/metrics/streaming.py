"""Streaming metrics over batches and ranks. They need torchmetrics (``longtail[metrics]``)."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail._checks import as_vector, check_integer, describe
from longtail.classes import Groups
from longtail.metrics.statistics import ClassStatistics, class_statistics


class ClassStatisticsMetric(Metric):
    """Gathers :class:`ClassStatistics <longtail.metrics.ClassStatistics>` over batches and ranks in one pass.

    Every measure is a function of what :meth:`compute` returns. Memory grows with the number of classes, not of
    samples. A CUDA graph can hold :meth:`update`, which never waits for the GPU; capture it again after ``reset``.

    Args:
        num_classes: how many classes there are.
        num_features: the width of the features, to gather the gradient of the classifier's weight too.
        shift: the shift of the loss whose gradient is gathered, ``(C,)``; default: plain softmax.
        bins: number of confidence bins, for calibration.
        ignore_index: samples with this label are left out.
        check_labels: check that labels are in range; default: on for CPU tensors only.
        **kwargs: those of ``torchmetrics.Metric``.

    Example:
        >>> from longtail import Groups
        >>> from longtail.metrics import ClassStatisticsMetric, recall
        >>> metric = ClassStatisticsMetric(num_classes=2)
        >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[3.0, 0.0]]), torch.tensor([1]))
        >>> statistics = metric.compute()
        >>> recall(statistics.correct, statistics.samples, Groups.from_indices(head=[0], tail=[1])).groups
        {'head': 1.0, 'tail': 0.5}
    """

    shift: Tensor | None
    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        num_classes: int,
        *,
        num_features: int | None = None,
        shift: Tensor | None = None,
        bins: int = 15,
        ignore_index: int = -100,
        check_labels: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_integer("num_classes", num_classes, minimum=1)
        self.num_features = None if num_features is None else check_integer("num_features", num_features, minimum=1)
        if shift is not None:
            if not isinstance(shift, Tensor):
                raise TypeError(f"Expected `shift` to be a tensor, but got {describe(shift)}.")
            shift = as_vector("shift", shift, num_classes).to(torch.float32)
        self.bins = bins
        self.ignore_index = ignore_index
        self.check_labels = check_labels
        self.register_buffer("shift", shift, persistent=False)
        # The statistics of an empty batch have the shapes and types of the state.
        features = None if num_features is None else torch.zeros(0, num_features)
        empty = class_statistics(
            torch.zeros(0, num_classes), torch.zeros(0, dtype=torch.int64), features, shift=None, bins=bins
        )
        self._names = list(empty.tensors())
        for name, zeros in empty.tensors().items():
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor, features: Tensor | None = None) -> None:
        """Add a batch: plain ``logits`` ``(N, C, …)``, class indices ``(N, …)``, ``features`` if ``num_features``."""
        if (features is None) != (self.num_features is None):
            raise ValueError(
                "Expected `features` exactly if `num_features` was given, but got "
                f"num_features={self.num_features} and " + ("no features." if features is None else "features.")
            )
        for name, tensor, width in (("logits", logits, self.num_classes), ("features", features, self.num_features)):
            _check_width(name, tensor, width)
        batch = class_statistics(
            logits,
            target,
            features,
            shift=self.shift,
            bins=self.bins,
            ignore_index=self.ignore_index,
            check_labels=self.check_labels,
        )
        for name, value in batch.tensors().items():
            getattr(self, name).add_(value)  # in place, so that a captured update adds up when it is replayed

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        kept = {name: getattr(self, name) for name in ("shift", *self._names)}
        zeros = dict(self._defaults)
        super()._apply(fn, *args, **kwargs)
        for name, value in kept.items():  # a model that contains the metric moves it, but must not round it
            moved = getattr(self, name)
            if moved is not None and moved.dtype != value.dtype and (name == "shift" or not self._dtype_convert):
                setattr(self, name, value.to(moved.device))
        if not self._dtype_convert:
            for name, value in zeros.items():
                assert isinstance(value, Tensor)
                self._defaults[name] = value.to(getattr(self, name).device)
        return self

    def compute(self) -> ClassStatistics:
        """Return the statistics of all batches of all ranks."""
        return ClassStatistics(**{name: getattr(self, name).clone() for name in self._names})


class GroupRecallMetric(Metric):
    """Recall over all classes and of each group, as a flat dictionary for loggers such as Lightning's ``log_dict``.

    Args:
        groups: head, medium and tail, or any other groups.
        ignore_index: samples with this label are left out.
        check_labels: check that labels are in range; default: on for CPU tensors only.
        **kwargs: those of ``torchmetrics.Metric``.

    Example:
        >>> from longtail import Groups
        >>> from longtail.metrics import GroupRecallMetric
        >>> metric = GroupRecallMetric(Groups.from_indices(head=[0], tail=[1]))
        >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1]))
        >>> metric.compute()
        {'recall': tensor(0.7500), 'recall_head': tensor(1.), 'recall_tail': tensor(0.5000)}
    """

    samples: Tensor
    correct: Tensor
    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    def __init__(
        self, groups: Groups, *, ignore_index: int = -100, check_labels: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.groups = groups
        self.ignore_index = check_integer("ignore_index", ignore_index)
        self.check_labels = check_labels
        for name in ("samples", "correct"):
            self.add_state(name, torch.zeros(groups.num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch: plain ``logits`` ``(N, C, …)`` and class indices ``(N, …)``."""
        _check_width("logits", logits, self.groups.num_classes)
        batch = class_statistics(logits, target, bins=1, ignore_index=self.ignore_index, check_labels=self.check_labels)
        self.samples += batch.samples
        self.correct += batch.correct

    def compute(self) -> dict[str, Tensor]:
        """Return ``recall`` and ``recall_<group>`` as float32 scalars: means over classes, NaN without a sample."""
        per_class = self.correct / self.samples  # NaN for a class without a sample, which the means leave out
        values = {"recall": per_class.nanmean()}
        for name in self.groups.names:
            members = self.groups.members(name)
            if members:
                values[f"recall_{name}"] = per_class[list(members)].nanmean()
        return values


def _check_width(name: str, tensor: Tensor | None, width: int | None) -> None:
    if isinstance(tensor, Tensor) and tensor.ndim > 1 and tensor.shape[1] != width:
        raise ValueError(f"Expected `{name}` to be {width} wide in dimension 1, but got shape {tuple(tensor.shape)}.")

"""Class statistics: one pass over a split gives everything that the measures need."""

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import Vector, as_tensor, check_integer, describe
from longtail.classes import class_counts
from longtail.losses._common import check_batch


class ClassStatistics:
    """Sums over the samples of one split, one row per class. Add those of batches and ranks with ``a + b``.

    Memory depends on the number of classes, not of samples. Rows are *true* classes, except in ``predicted`` and
    ``probability_sum``. Without logits there are only the first three sums (:meth:`from_predictions`).

    Example:
        >>> first = class_statistics(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        >>> first + class_statistics(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([1, 1]))
        ClassStatistics(2 classes, 3 samples)
    """

    samples: Tensor
    """Samples of the class, int64 ``(C,)``."""
    correct: Tensor
    """Correctly predicted samples of the class, int64 ``(C,)``."""
    predicted: Tensor
    """Samples of any class that are predicted as this class, int64 ``(C,)``."""
    probability_sum: Tensor
    """Sum of p(y=c | n) over all samples n, ``(C,)``."""
    target_probability_sum: Tensor
    """Sum of p(y=c | n) over the samples n of the class, ``(C,)``."""
    bin_samples: Tensor
    """Samples of the class by confidence, in equal bins of (0, 1], int64 ``(C, bins)``."""
    bin_correct: Tensor
    """Correctly predicted ones, int64 ``(C, bins)``."""
    bin_confidence: Tensor
    """Sum of their confidences, ``(C, bins)``."""
    bias_reward: Tensor
    """Reward in the gradient of the classifier's bias, ``(C,)``."""
    bias_penalty: Tensor
    """Penalty in it, ``(C,)``."""
    weight_reward: Tensor | None = None
    """Reward in the gradient of the classifier's weight, ``(C, D)``, if features were given."""
    weight_penalty: Tensor | None = None
    """Penalty in it, ``(C, D)``."""

    # Not a dataclass, because torchmetrics squeezes one-element vectors in dataclasses that a metric returns.
    def __init__(self, **sums: Tensor) -> None:
        known, needed = ClassStatistics.__annotations__.keys(), {"samples", "correct", "predicted"}
        wrong = sorted(needed - sums.keys() | sums.keys() - known)
        if wrong:
            raise TypeError(f"Expected the sums of class statistics, but `{wrong[0]}` is missing or unknown.")
        vars(self).update(sums)

    @classmethod
    def from_predictions(cls, labels: Vector, predicted: Vector, num_classes: int) -> "ClassStatistics":
        """Return only ``samples``, ``correct`` and ``predicted``, from true and predicted classes, both ``(N,)``.

        Example:
            >>> found = ClassStatistics.from_predictions([0, 0, 1], [0, 1, 1], num_classes=2)
            >>> found.samples, found.correct, found.predicted
            (tensor([2, 1]), tensor([1, 1]), tensor([1, 2]))
        """
        labels, predicted = as_tensor("labels", labels), as_tensor("predicted", predicted)
        sums = {"samples": labels, "correct": labels[labels == predicted], "predicted": predicted}
        return cls(**{name: class_counts(classes, num_classes) for name, classes in sums.items()})

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.samples.numel()

    @property
    def accuracy(self) -> float:
        """The share of the samples that are correctly predicted."""
        return int(self.correct.sum()) / int(self.samples.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name; those of the weight only if features were given."""
        return dict(vars(self))

    def __add__(self, other: "ClassStatistics") -> "ClassStatistics":
        if not isinstance(other, ClassStatistics):
            return NotImplemented
        mine, theirs = self.tensors(), other.tensors()
        shapes = [{name: tuple(value.shape) for name, value in sums.items()} for sums in (mine, theirs)]
        for name in sorted(shapes[0].keys() | shapes[1].keys()):
            if shapes[0].get(name) != shapes[1].get(name):
                raise ValueError(
                    f"Expected statistics of the same classes, bins and features, but got `{name}` of shapes "
                    f"{shapes[0].get(name)} and {shapes[1].get(name)}."
                )
        return ClassStatistics(**{name: value + theirs[name] for name, value in mine.items()})

    def __repr__(self) -> str:
        return f"ClassStatistics({self.num_classes} classes, {int(self.samples.sum())} samples)"


@torch.no_grad()
def class_statistics(
    logits: Tensor,
    target: Tensor,
    features: Tensor | None = None,
    *,
    shift: Tensor | None = None,
    bins: int = 15,
    ignore_index: int = -100,
    check_labels: bool | None = None,
) -> ClassStatistics:
    """Return the class statistics of one batch. Add those of all batches, or use
    :class:`ClassStatisticsMetric <longtail.metrics.ClassStatisticsMetric>`, which also gathers over ranks.

    Args:
        logits: plain logits, shape ``(N, C)`` or ``(N, C, d1, …)``. A sample whose softmax is NaN counts as predicted
            wrongly.
        target: class indices, shape ``(N,)`` or ``(N, d1, …)``.
        features: input of the classifier, shape ``(N, D)`` or ``(N, D, d1, …)``, for the gradient of its weight.
        shift: the shift of the loss whose gradient is measured, shape ``(C,)``; default: plain softmax. Everything
            else uses the plain logits.
        bins: number of confidence bins, for calibration.
        ignore_index: samples with this label are left out.
        check_labels: check that labels are in range; default: on for CPU tensors only.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> statistics = class_statistics(logits, torch.tensor([0, 1, 1]))
        >>> statistics.correct, statistics.samples
        (tensor([1, 1]), tensor([1, 2]))
    """
    bins = check_integer("bins", bins, minimum=1)
    _check_batch(logits, target, features, shift)
    label = check_batch(
        logits, target, logits.shape[1], of="logits", ignore_index=ignore_index, check_labels=check_labels
    ).flatten()
    valid = label != ignore_index
    label = label.where(valid, 0)
    z, num_classes, dtype = _rows(logits, valid), logits.shape[1], wide(logits.device)

    def by_class(values: Tensor, index: Tensor = label, length: int = num_classes) -> Tensor:
        return torch.zeros(length, dtype=values.dtype, device=z.device).index_add_(0, index, values)

    p = F.softmax(z, 1)
    prediction = z.argmax(1)
    confidence = p.gather(1, prediction[:, None]).squeeze(1)
    predicts = valid & ~confidence.isnan()
    right = ((prediction == label) & predicts).long()
    counted = valid.long()
    cell = label * bins + (confidence * bins).ceil().long().clamp(1, bins) - 1
    gradient = p if shift is None else F.softmax(z + shift, 1)
    others = gradient.scatter(1, label[:, None], 0.0) * valid[:, None]
    bias_reward, bias_penalty = _reward_and_penalty(others, label)
    found = ClassStatistics(
        samples=by_class(counted),
        correct=by_class(right),
        predicted=by_class(predicts.long(), prediction),
        probability_sum=(p * valid[:, None]).sum(0, dtype=dtype),
        target_probability_sum=by_class(p.gather(1, label[:, None]).squeeze(1).to(dtype) * valid),
        bin_samples=by_class(counted, cell, num_classes * bins).view(num_classes, bins),
        bin_correct=by_class(right, cell, num_classes * bins).view(num_classes, bins),
        bin_confidence=by_class(confidence.to(dtype) * valid, cell, num_classes * bins).view(num_classes, bins),
        bias_reward=bias_reward,
        bias_penalty=bias_penalty,
    )
    if features is not None:
        found.weight_reward, found.weight_penalty = _reward_and_penalty(others, label, _rows(features, valid))
    return found


def _check_batch(logits: Tensor, target: Tensor, features: Tensor | None, shift: Tensor | None) -> None:
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ValueError(f"Expected `logits` of shape (N, C) or (N, C, d1, …), but got {describe(logits)}.")
    if isinstance(target, Tensor) and target.is_floating_point():
        raise TypeError(f"Expected `target` to hold class indices, but got dtype {target.dtype}.")
    for name, tensor in (("shift", shift), ("features", features)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"Expected `{name}` to be a tensor, but got {describe(tensor)}.")
        if tensor is not None and tensor.device != logits.device:
            raise ValueError(
                f"Expected `logits` and `{name}` on one device, but got {logits.device} and {tensor.device}."
            )
    if shift is not None and shift.shape != logits.shape[1:2]:
        raise ValueError(f"Expected `shift` to have shape ({logits.shape[1]},), but got {tuple(shift.shape)}.")
    if features is not None and (
        features.ndim != logits.ndim or features.shape[2:] != logits.shape[2:] or len(features) != len(logits)
    ):
        raise ValueError(
            f"Expected `features` of shape (N, D, …) beside logits of shape {tuple(logits.shape)}, "
            f"but got {tuple(features.shape)}."
        )


def _rows(values: Tensor, valid: Tensor) -> Tensor:
    """``(N, C, d1, …)`` as ``(N * d1 * …, C)``, at least float32; ignored rows are 0, because NaN times 0 is NaN."""
    rows = values.movedim(1, -1).reshape(-1, values.shape[1])
    return rows.to(torch.promote_types(values.dtype, torch.float32)).masked_fill(~valid[:, None], 0.0)


def _reward_and_penalty(others: Tensor, label: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Reward and penalty of a batch of rows, ``(C,)``, or ``(C, D)`` with features; float64.

    ``others`` has the probabilities of each row for classes other than its own. 1 - p of a sample's own class is their
    sum, which is precise when p is close to 1, as it is once a network fits its training data.
    """
    missed = others.sum(1)
    dtype = wide(label.device)
    rows = missed if features is None else missed[:, None] * features
    reward = torch.zeros(others.shape[1], *rows.shape[1:], dtype=dtype, device=label.device)
    reward.index_add_(0, label, rows.to(dtype))
    if features is None:
        return reward, others.sum(0, dtype=dtype)
    with torch.autocast(label.device.type, enabled=False):  # float64 also avoids TF32
        return reward, others.T.to(dtype) @ features.to(dtype)


def wide(device: torch.device) -> torch.dtype:
    """Return the dtype for sums: float64, except on MPS, which does not have it."""
    return torch.float32 if device.type == "mps" else torch.float64

"""What all losses share: the options of ``F.cross_entropy``, the checks, and leaving classes out of the softmax."""

from collections.abc import Callable
from typing import Any, Literal, Self, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import (
    ZeroCounts,
    as_vector,
    check_choice,
    check_integer,
    check_logits,
    check_number,
    class_dim,
    shown,
    told,
    training_counts,
)

Reduction = Literal["none", "mean", "sum"]


class LossOptions(TypedDict, total=False):
    """Keyword options that every loss takes: those of ``F.cross_entropy``, as it means them, and ``check_labels``."""

    weight: Tensor | None
    """What each class weighs, shape ``(C,)``; default: all the same."""
    ignore_index: int
    """Samples with this label are left out; default: -100."""
    reduction: Reduction
    """``"mean"`` (default), ``"sum"`` or ``"none"``."""
    label_smoothing: float
    """How much of a target is spread evenly over the classes, in [0, 1]; default: 0."""
    check_labels: bool | None
    """Check each batch's labels. Default: on for CPU tensors; off for others, where it would wait for the device, and
    under ``torch.compile`` and ``torch.func``'s transforms (``vmap``, ``grad``), where values are not to be read."""


class Loss(nn.Module):
    """A loss with the options of ``F.cross_entropy``; what it holds in floating point keeps its precision."""

    weight: Tensor | None

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__()
        check_options(**options)
        self.register_buffer("weight", options.pop("weight", None))
        self._options = options

    @property
    def options(self) -> LossOptions:
        """The options, as the loss's function takes them."""
        return {**self._options, "weight": self.weight}

    def extra_repr(self) -> str:
        """What differs from the defaults."""
        options: dict[str, Any] = {**self._options}
        if self.weight is not None:
            options["weight"] = f"({self.weight.numel()} classes)"
        return ", ".join(f"{name}={value}" for name, value in options.items())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.to(device)` moves the buffers, but `.half()` must not round them: a shift of 30 would be off by 0.01.
        kept = {name: buffer for name, buffer in self.named_buffers(recurse=False) if buffer.is_floating_point()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            if not buffer.is_meta:
                setattr(self, name, buffer.to(getattr(self, name).device))
        return self


class CountedLoss(Loss):
    """A loss that is made from class counts: they are its state, and what it derives from them follows them."""

    counts: Tensor
    present: Tensor | None

    def __init__(self, counts: object, zero_counts: ZeroCounts, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.zero_counts: ZeroCounts = zero_counts
        self.register_buffer("counts", training_counts(counts, zero_counts).clone())  # theirs may change
        if self.weight is not None:
            as_vector("weight", self.weight, self.counts.numel())
        self.register_buffer("present", None, persistent=False)
        self.register_load_state_dict_post_hook(_counts_loaded)  # type: ignore[no-untyped-call]

    def read_counts(self) -> None:
        """Derive from ``counts`` what the loss needs: at construction, and when other counts were loaded."""
        self.counts = training_counts(self.counts, self.zero_counts)
        self.present = None if self.counts.all() else self.counts.nonzero().flatten()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}counts" in state_dict:
            training_counts(state_dict[f"{prefix}counts"], self.zero_counts)  # refused before anything is changed
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Number of classes, the loss's own knobs, and options that differ from the defaults."""
        knobs = self.knobs() + ([f"zero_counts={self.zero_counts}"] if self.zero_counts != "error" else [])
        return ", ".join(filter(None, [f"{self.counts.numel()} classes", *knobs, super().extra_repr()]))

    def knobs(self) -> list[str]:
        """The loss's own settings, for its ``repr``."""
        return []


def _counts_loaded(loss: nn.Module, _: object) -> None:
    assert isinstance(loss, CountedLoss)
    loss.read_counts()


def check_options(**options: Unpack[LossOptions]) -> None:
    """Refuse options that ``F.cross_entropy`` would refuse, or worse, at the first batch."""
    unknown = sorted(options.keys() - LossOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"Expected the options {', '.join(LossOptions.__annotations__)}, but got `{unknown[0]}`.")
    check_choice("reduction", options.get("reduction", "mean"), Reduction)
    smoothing = check_number("label_smoothing", options.get("label_smoothing", 0.0))
    if smoothing > 1:
        raise ValueError(f"Expected `label_smoothing` to be in [0, 1], but got {smoothing}.")
    check_integer("ignore_index", options.get("ignore_index", -100))
    weight = options.get("weight")
    if weight is not None and (not isinstance(weight, Tensor) or weight.ndim != 1 or not weight.is_floating_point()):
        raise TypeError(
            f"Expected `weight` to be a floating-point tensor with one entry a class, but got {told(weight)}."
        )


def check_batch(
    logits: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    of: str,
    held: Tensor | None = None,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Refuse logits and targets that do not fit together, and labels out of range where that costs no waiting.

    Args:
        logits: the batch's logits.
        target: its labels or class probabilities.
        num_classes: how many classes the loss knows.
        of: the argument that the loss knows them from.
        held: what the loss holds; it must be on the same device.
        options: the loss's options.

    Returns:
        the target, class indices as int64.
    """
    check_logits(logits, num_classes, of=of)
    if not isinstance(target, Tensor) or target.dtype == torch.bool or target.is_complex():
        raise TypeError(
            f"Expected `target` to be a tensor of class indices or of class probabilities, but got {told(target)}."
        )
    weight = options.get("weight")
    if weight is not None and weight.numel() != num_classes:
        raise ValueError(f"Expected `weight` to have {num_classes} classes, but got {weight.numel()}.")
    for name, tensor in (("`target`", target), ("`weight`", weight), ("the loss", held)):
        if tensor is not None and tensor.device != logits.device:
            advice = f"; move it with .to({str(logits.device)!r})" if tensor is held else ""
            raise ValueError(
                f"Expected `logits` and {name} on one device, but got {logits.device} and {tensor.device}{advice}."
            )
    dim = class_dim(logits)
    expected = logits.shape if target.is_floating_point() else logits.shape[:dim] + logits.shape[dim + 1 :]
    if target.shape != expected:
        kind = "probabilities" if target.is_floating_point() else "indices"
        raise ValueError(
            f"Expected `target` of class {kind} to have shape {tuple(expected)} beside logits of shape "
            f"{tuple(logits.shape)}, but got {tuple(target.shape)}."
        )
    if target.is_floating_point():
        if options.get("ignore_index", -100) >= 0:
            raise ValueError(
                "Expected no `ignore_index` beside class probabilities, where it has no meaning, "
                f"but got {options['ignore_index']}."
            )
        return target
    target = target.long()  # before anything is compared: -100 would be 156 in uint8
    if target.numel() and reads_labels(target, options.get("check_labels")):
        low, high = target.aminmax()
        if low < 0 or high >= num_classes:
            _refuse_labels(target, num_classes, options.get("ignore_index", -100))
    return target


def _refuse_labels(target: Tensor, num_classes: int, ignore_index: int) -> None:
    """Refuse labels out of range that are not to be ignored."""
    wrong = ((target < 0) | (target >= num_classes)) & (target != ignore_index)
    if wrong.any():
        raise ValueError(
            f"Expected `target` to be in 0…{num_classes - 1} or `ignore_index`, "
            f"but got {shown(sorted(set(target[wrong].tolist())))}."
        )


def reads_labels(target: Tensor, check_labels: bool | None) -> bool:
    """Whether this batch's labels are checked: by default on the CPU, where nothing has to be waited for."""
    if check_labels is None:
        plain = not torch.compiler.is_compiling() and torch.func.debug_unwrap(target) is target  # not in a transform
        return plain and target.device.type == "cpu"
    return check_labels


def cross_entropy(logits: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """``F.cross_entropy`` under our options, with targets and weights in the types that it wants."""
    given, ignore_index = options.get("weight"), options.get("ignore_index", -100)
    reduction, smoothing = options.get("reduction", "mean"), options.get("label_smoothing", 0.0)
    weight = None if given is None else given.to(logits.dtype)
    labels = not target.is_floating_point()
    # torch 2.11 waits for the GPU in this one combination, so we divide by the weight of the labels ourselves.
    by_hand = labels and smoothing > 0 and reduction == "mean" and weight is not None
    loss = F.cross_entropy(
        logits,
        target if labels else target.to(logits.dtype),
        weight=weight,
        ignore_index=ignore_index,
        reduction="none" if by_hand else reduction,
        label_smoothing=smoothing,
    )
    if weight is not None and by_hand:
        ignored = target == ignore_index
        own = weight.gather(0, target.masked_fill(ignored, 0).flatten()).view(target.shape)  # vmap takes one label, too
        return loss.sum() / own.masked_fill(ignored, 0.0).sum()
    return loss


def present_classes(vector: Tensor) -> Tensor | None:
    """The classes for which ``vector`` has a value, or ``None`` where it has one for all. Reads values."""
    finite = vector.isfinite()
    return None if finite.all() else finite.nonzero().flatten()


def leave_out(
    logits: Tensor, target: Tensor, present: Tensor, **options: Unpack[LossOptions]
) -> tuple[Tensor, Tensor, LossOptions]:
    """The same loss over the classes ``present`` alone: logits, targets and weights without the others.

    Args:
        logits: logits of all classes.
        target: indices or probabilities over all classes.
        present: the classes that stay, ascending.
        options: the loss's options.

    Returns:
        logits, target and options of the smaller problem.
    """
    dim = class_dim(logits)
    num_classes = logits.shape[dim]
    position = torch.full((num_classes,), present.numel(), device=present.device)  # of no class: out of range
    position[present] = torch.arange(present.numel(), device=present.device)
    ignore_index = options.get("ignore_index", -100)
    if target.is_floating_point():
        kept = target.index_select(dim, present)
        absent = target.sum(dim) - kept.sum(dim) > 1e-4
        target = kept
    else:
        ignored = target == ignore_index
        # gather, not indexing, which would take -1 for the last class
        target = position.gather(0, target.masked_fill(ignored, 0).flatten()).view(target.shape)
        absent = (target == present.numel()) & ~ignored
        target = target.masked_fill(ignored, -100)
    if reads_labels(target, options.get("check_labels")) and absent.any():
        raise ValueError(
            f"Expected `target` to name classes with training examples, but {int(absent.sum())} of them are of "
            "classes with a count of 0."
        )
    weight = options.get("weight")
    smaller: LossOptions = {**options, "ignore_index": -100, "weight": None if weight is None else weight[present]}
    return logits.index_select(dim, present), target, smaller

"""What all losses share: the options of ``F.cross_entropy``, the checks, and leaving classes out of the softmax."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, Self, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import (
    ZeroCounts,
    as_vector,
    check_choice,
    check_fraction,
    check_integer,
    check_logits,
    class_dim,
    describe,
    shown,
    training_counts,
)

Reduction = Literal["none", "mean", "sum"]


class LossOptions(TypedDict, total=False):
    """Keyword options of every loss: those of ``F.cross_entropy``, with the same meaning, and ``check_labels``."""

    weight: Tensor | None
    """Weight per class, shape ``(C,)``; default: all the same."""
    ignore_index: int
    """Samples with this label are left out; default: -100."""
    reduction: Reduction
    """``"mean"`` (default), ``"sum"`` or ``"none"``."""
    label_smoothing: float
    """How much of a target is spread evenly over the classes, in [0, 1]; default: 0."""
    check_labels: bool | None
    """Check the labels of each batch. Default: on for CPU tensors; off for others, where it would wait for the device,
    and under ``torch.compile`` and the transforms of ``torch.func`` (``vmap``, ``grad``), which cannot read values."""


_DEFAULTS: LossOptions = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0, "check_labels": None}


class KeepsValues(nn.Module):
    """A module whose buffers keep their values: ``.to(device)`` moves them, ``.half()`` does not change them."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            moved = self._buffers[name]
            if tensor is not None and moved is not None and not tensor.is_meta:
                self._buffers[name] = tensor.to(moved.device)
        return self


class Loss(KeepsValues, nn.CrossEntropyLoss):
    """Base class of losses of logits and targets, with the options of ``nn.CrossEntropyLoss`` as attributes.

    A loss declares what it does in three properties: :attr:`logit_shift`, :attr:`is_pure_shift`, :attr:`rebalances`.
    By default there is no shift, and no rebalancing except by class weights. A subclass of a softmax loss that
    overrides ``forward`` is not a pure shift unless it says so.

    ``.to(device)`` moves the tensors of a loss; ``.half()`` and ``.to_empty()`` leave their values as they are: a shift
    of 30 in half precision would be off by 0.01.
    """

    weight: Tensor | None
    _shown: tuple[str, ...] = ()
    """The parameters, numbers, that ``repr`` shows."""

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        check_options(**options)
        check_labels = options.pop("check_labels", None)
        super().__init__(**options)  # type: ignore[misc]  # check_labels is gone
        self.check_labels = check_labels

    @property
    def logit_shift(self) -> Tensor | None:
        """What the loss adds to the logits, shape ``(C,)``; ``None`` if it does something else."""
        return None

    @property
    def is_pure_shift(self) -> bool:
        """Whether the loss is exactly the cross entropy of logits + :attr:`logit_shift`, without weights or smoothing.

        Rewards and penalties of :class:`ClassStatistics <longtail.metrics.ClassStatistics>` are its gradient then.
        """
        return False

    @property
    def rebalances(self) -> bool:
        """Whether the loss corrects for class counts in any way. A sampler that does so too would correct twice."""
        return self.weight is not None or shifts(self.logit_shift)

    @property
    def options(self) -> LossOptions:
        """The options as keyword arguments of the loss's function."""
        return {
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "reduction": self.reduction,  # type: ignore[typeddict-item]  # torch declares a string
            "label_smoothing": self.label_smoothing,
            "check_labels": self.check_labels,
        }

    def extra_repr(self) -> str:
        """Parameters of the loss, and options that differ from the defaults."""
        shown = {name: f"{getattr(self, name):g}" for name in self._shown}
        for name, default in {"zero_counts": "error", **_DEFAULTS}.items():
            if getattr(self, name, default) != default:
                shown[name] = str(getattr(self, name))
        if self.weight is not None:
            shown["weight"] = f"({self.weight.numel()} classes)"
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class CountedLoss(Loss):
    """A loss made from class counts, which are its state. They change only when a state dict is loaded.

    What a subclass derives from the counts in :meth:`read_counts` is not a buffer, because libraries such as
    Transformers overwrite buffers that are missing in a checkpoint.
    """

    counts: Tensor
    present: Tensor | None

    def __init__(self, counts: object, zero_counts: ZeroCounts, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.zero_counts: ZeroCounts = zero_counts
        self.register_buffer("counts", training_counts(counts, zero_counts).clone())  # the caller may change theirs
        if self.weight is not None:
            as_vector("weight", self.weight, self.counts.numel())

    def read_counts(self) -> None:
        """Derive from ``counts`` what the loss needs; called at construction, after loading and after a move."""
        self.present = None if self.counts.all() else self.counts.nonzero().flatten()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "counts":
            super().__setattr__(name, value)
        elif getattr(value, "_is_hf_initialized", False):  # `from_pretrained` of Transformers assigns what it loads
            self._set_counts(training_counts(value, self.zero_counts))
        else:  # it also assigns uninitialised memory to buffers that the checkpoint lacks
            if not isinstance(value, Tensor) or not torch.equal(value.to(self.counts), self.counts):
                warnings.warn(
                    "Assigning `counts` has no effect: the loss keeps its counts; make another loss for other counts.",
                    stacklevel=2,
                )
            self._set_counts(self.counts.to(getattr(value, "device", self.counts.device)))

    def _set_counts(self, counts: Tensor) -> None:
        self._buffers["counts"] = counts
        self.read_counts()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.counts
        super()._apply(fn, recurse)
        if self.counts.device != before.device and not self.counts.is_meta and not before.is_meta:
            self.read_counts()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}counts" in state_dict:
            loaded = training_counts(state_dict[f"{prefix}counts"], self.zero_counts)  # raises before anything changes
            state_dict = {**state_dict, f"{prefix}counts": loaded}
            if loaded.shape == self.counts.shape:
                self._set_counts(loaded.to(self.counts.device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Number of classes, parameters of the loss, and options that differ from the defaults."""
        return ", ".join(filter(None, [f"{self.counts.numel()} classes", super().extra_repr()]))


def shifts(shift: Tensor | None) -> bool:
    """Return whether a shift differs from zero; -inf masks a class that has no examples, which corrects nothing."""
    return shift is not None and bool(shift[shift.isfinite()].any())


def check_options(**options: Unpack[LossOptions]) -> None:
    """Raise for options that ``F.cross_entropy`` would refuse, or misread, at the first batch."""
    unknown = sorted(options.keys() - LossOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"Expected the options {', '.join(LossOptions.__annotations__)}, but got `{unknown[0]}`.")
    check_choice("reduction", options.get("reduction", "mean"), Reduction)
    check_fraction("label_smoothing", options.get("label_smoothing", 0.0))
    check_integer("ignore_index", options.get("ignore_index", -100))
    weight = options.get("weight")
    if weight is not None and (not isinstance(weight, Tensor) or weight.ndim != 1 or not weight.is_floating_point()):
        raise TypeError(
            f"Expected `weight` to be a floating-point tensor with one entry per class, but got {describe(weight)}."
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
    """Check that logits and targets fit together, and the labels' range if that needs no waiting; labels as int64.

    ``of`` is the argument that gives the number of classes, ``held`` a tensor of the loss, for its device.
    """
    check_logits(logits, num_classes, of=of)
    if not isinstance(target, Tensor) or target.dtype == torch.bool or target.is_complex():
        raise TypeError(
            f"Expected `target` to be a tensor of class indices or of class probabilities, but got {describe(target)}."
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
                "Expected no `ignore_index` with class probabilities, where it has no meaning, "
                f"but got {options['ignore_index']}."
            )
        return target
    target = target.long()  # before anything is compared: -100 would be 156 in uint8
    if target.numel() and reads_labels(target, options.get("check_labels")):
        low, high = target.aminmax()
        if low < 0 or high >= num_classes:
            check_label_range("target", target, num_classes, options.get("ignore_index", -100))
    return target


def check_label_range(name: str, labels: Tensor, below: int, ignore_index: int | None = None) -> None:
    """Raise unless all ``labels`` are in 0…``below`` - 1 or ``ignore_index``. Reads values."""
    wrong = (labels < 0) | (labels >= below)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    if wrong.any():
        allowed = f"0…{below - 1}" + ("" if ignore_index is None else " or `ignore_index`")
        found = shown(sorted(set(labels[wrong].tolist())))
        raise ValueError(f"Expected `{name}` to be in {allowed}, but got {found}.")


def reads_labels(target: Tensor, check_labels: bool | None) -> bool:
    """Return whether to check the labels of this batch: by default on the CPU, where this waits for nothing."""
    if check_labels is None:
        return not torch.compiler.is_compiling() and not _in_transform(target) and target.device.type == "cpu"
    return check_labels


def _in_transform(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to a transform of ``torch.func``, where its values cannot be read."""
    unwrap: Callable[[Tensor], Tensor] | None = getattr(torch.func, "debug_unwrap", None)
    if unwrap is not None:
        return unwrap(tensor) is not tensor
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))  # before torch 2.8


def cross_entropy(logits: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """Return ``F.cross_entropy`` under our options, with targets and weights in the required types."""
    given, ignore_index = options.get("weight"), options.get("ignore_index", -100)
    reduction, smoothing = options.get("reduction", "mean"), options.get("label_smoothing", 0.0)
    weight = None if given is None else given.to(logits.dtype)
    labels = not target.is_floating_point()
    # torch 2.11 waits for the GPU in this one combination, so we divide by the weight of the labels ourselves.
    own_mean = labels and smoothing > 0 and reduction == "mean" and weight is not None
    loss = F.cross_entropy(
        logits,
        target if labels else target.to(logits.dtype),
        weight=weight,
        ignore_index=ignore_index,
        reduction="none" if own_mean else reduction,
        label_smoothing=smoothing,
    )
    if weight is not None and own_mean:
        ignored = target == ignore_index
        own = weight.gather(0, target.masked_fill(ignored, 0).flatten()).view(target.shape)  # works under vmap, too
        return loss.sum() / own.masked_fill(ignored, 0.0).sum()
    return loss


def present_classes(vector: Tensor) -> Tensor | None:
    """Return the classes whose entry of ``vector`` is finite, or ``None`` if all are. Reads values."""
    finite = vector.isfinite()
    return None if finite.all() else finite.nonzero().flatten()


def leave_out(
    logits: Tensor, target: Tensor, present: Tensor, **options: Unpack[LossOptions]
) -> tuple[Tensor, Tensor, LossOptions]:
    """Return logits, target and options of the same loss over the classes ``present``, ascending, alone."""
    dim = class_dim(logits)
    num_classes = logits.shape[dim]
    position = torch.full((num_classes,), present.numel(), device=present.device)  # out of range: an absent class
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

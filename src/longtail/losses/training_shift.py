r"""Class-Balanced Softmax under a loss that cannot be replaced: a hook that shifts a layer's output in training."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from longtail._checks import Vector, as_counts, check_integer, check_number, describe, shown
from longtail.losses.softmax import scaled_log_counts


def shift_in_training(
    layer: nn.Module, counts: Vector, *, beta: float, neutral: Iterable[int] = (), dim: int | None = None
) -> "TrainingShift":
    r"""Add the shift of Class-Balanced Softmax to the output of a classifier layer, in training mode only.

    It puts :class:`ClassBalancedSoftmaxLoss <longtail.losses.ClassBalancedSoftmaxLoss>` under a model that computes its
    softmax cross entropy itself, e.g. a detector of torchvision or a model of Transformers. In evaluation mode the
    output is unchanged, so predictions, exported models and evaluation losses are plain.

    Without ``neutral``, the shift is :math:`a_c = \beta \log N_c` minus its mean, as in the loss. A neutral class, such
    as the background of a detector, has the shift 0. Then the constant matters, and it is chosen such that the neutral
    classes keep their total probability. The shift takes the prior of class c from :math:`N_c` to
    :math:`N_c e^{-a_c} \propto N_c^{1 - \beta}`; the sum over the other classes stays the same with

    .. math:: a_c = \beta \log N_c + \log \sum_d N_d^{1 - \beta} - \log \sum_d N_d

    For ``beta=1`` this is :math:`\log(N_c / \bar N)` with the mean count :math:`\bar N`. A shift of mean zero would
    divide the probability of the foreground by the ratio of the arithmetic to the geometric mean of its counts.

    The hook adds no parameter, buffer or key of the state dict, and follows the layer to any device. A deep copy of the
    layer has its own hook. The shifted logits are at least float32, as in the loss. Add the hook before
    ``torch.compile``.

    Args:
        layer: the layer that computes the logits, e.g. ``nn.Linear`` or ``nn.Conv2d``; the loss must be a softmax cross
            entropy.
        counts: training examples (boxes, pixels) per class, shape ``(C,)``, > 0; those of neutral classes are not used.
        beta: how strongly to shift, >= 0.
        neutral: classes whose logits are not shifted.
        dim: the dimension of the classes in the output; default: the last for ``nn.Linear``, otherwise 1.

    Returns:
        the hook, with the methods ``set_beta(beta)`` and ``remove()``. :class:`AutoBeta <longtail.AutoBeta>` accepts it
        in place of a loss.

    Example:
        >>> layer, x = nn.Linear(4, 3), torch.randn(8, 4)
        >>> hook = shift_in_training(layer, [500, 50, 5], beta=1.0)
        >>> (layer(x) - layer.eval()(x))[0]
        tensor([ 2.3026,  0.0000, -2.3026], grad_fn=<SelectBackward0>)
        >>> hook.remove()
        >>> shift_in_training(layer, [0, 600, 200], beta=1.0, neutral=[0]).logit_shift  # log(600 / 400), log(200 / 400)
        tensor([ 0.0000,  0.4055, -0.6931])
    """
    if not isinstance(layer, nn.Module):
        raise TypeError(f"Expected `layer` to be an nn.Module, but got {describe(layer)}.")
    if any(isinstance(hook, TrainingShift) for hook in layer._forward_hooks.values()):
        raise ValueError("Expected a `layer` without a shift, but it has one; remove() it first or use set_beta.")
    if dim is None:
        dim = -1 if isinstance(layer, nn.Linear) else 1
    hook = TrainingShift(counts, beta, neutral, check_integer("dim", dim))
    hook._handle = layer.register_forward_hook(hook)
    return hook


class TrainingShift:
    """The hook that :func:`shift_in_training` adds to a layer."""

    _handle: torch.utils.hooks.RemovableHandle

    def __init__(self, counts: Vector, beta: float, neutral: Iterable[int], dim: int) -> None:
        self.counts = as_counts(counts, fractions=True).detach().cpu().clone()
        """Training examples per class, 0 for a neutral class."""
        self.dim = dim
        """The dimension of the classes."""
        classes = self.counts.numel()
        self.neutral = tuple(sorted({check_integer("neutral", c, minimum=0) for c in neutral}))
        """The classes that are not shifted."""
        if self.neutral and (self.neutral[-1] >= classes or len(self.neutral) == classes):
            raise ValueError(f"Expected `neutral` to name some of {classes} classes, but got {shown([*self.neutral])}.")
        self.counts[list(self.neutral)] = 0
        empty = [c for c in (self.counts == 0).nonzero().flatten().tolist() if c not in self.neutral]
        if empty:
            advice = "count such a class as one, or make it neutral"
            raise ValueError(
                f"Expected `counts` to be above 0 in every class, but got 0 for class {shown(empty)}; {advice}."
            )
        self._shift = torch.zeros(classes, device="cpu")
        self._here = self._shift  # where the layer is
        self.set_beta(beta)

    @property
    def beta(self) -> float:
        """How strongly the logits are shifted."""
        return float(self._beta)

    @property
    def logit_shift(self) -> Tensor:
        """What is added to the logits, float32 ``(C,)`` on the CPU."""
        return self._shift

    def set_beta(self, beta: float | Tensor) -> None:
        """Change beta, and the shift in place, so that a captured CUDA graph and a compiled layer use the new value."""
        beta = check_number("beta", float(beta) if isinstance(beta, Tensor) else beta)
        shift = _neutral_shift(self.counts, beta) if self.neutral else scaled_log_counts(self.counts, beta)
        if not shift.isfinite().all():
            raise ValueError(f"Expected `beta` to give a finite shift, but got {beta:g}.")
        self._beta = beta
        self._shift.copy_(shift)
        self._here.copy_(shift)

    def remove(self) -> None:
        """Take the hook off its layer."""
        self._handle.remove()

    def __call__(self, layer: nn.Module, _: object, logits: Tensor) -> Tensor:
        """Return the output of ``layer``, shifted in training mode."""
        if not layer.training:
            return logits
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise TypeError(f"Expected `layer` to return a tensor of logits, but got {describe(logits)}.")
        if not -logits.ndim <= self.dim < logits.ndim or logits.shape[self.dim] != self._shift.numel():
            raise ValueError(
                f"Expected `layer` to return logits with {self._shift.numel()} classes in dimension {self.dim}, but "
                f"got shape {tuple(logits.shape)}; `dim` says which dimension has the classes."
            )
        if self._here.device != logits.device:
            self._here = self._shift.to(logits.device)  # kept, because copying in each step would wait for the device
        behind = logits.ndim - 1 - self.dim % logits.ndim
        return logits + self._here.view(-1, *[1] * behind)  # half + float32 is float32

    def __repr__(self) -> str:
        neutral = f", neutral={list(self.neutral)}" if self.neutral else ""
        return f"TrainingShift({self.counts.numel()} classes, beta={self.beta:g}{neutral})"


def _neutral_shift(counts: Tensor, beta: float) -> Tensor:
    """Return the shift, in float64, that leaves classes with a count of 0 and their total probability as they are."""
    others = counts > 0
    log_counts = counts[others].double().log()
    constant = ((1 - beta) * log_counts).logsumexp(0) - log_counts.logsumexp(0)
    shift = torch.zeros(counts.shape, dtype=torch.float64, device="cpu")
    shift[others] = beta * log_counts + constant
    return shift

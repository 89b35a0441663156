r"""Softmax, Balanced Softmax, Class-Balanced Softmax and logit adjustment: one shifted cross entropy, several names.

All of them are the cross entropy of :math:`z_c + a_c` and differ in the shift :math:`a`. Adding a constant to
:math:`a` changes nothing, so shifts have mean zero, because small numbers round less.

Prediction uses the plain :math:`z`: ``logits.argmax(1)``.
"""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import (
    Vector,
    ZeroCounts,
    along_classes,
    as_distribution,
    check_logits,
    check_number,
    training_counts,
)
from longtail.losses._common import (
    CountedLoss,
    LossOptions,
    check_batch,
    check_options,
    cross_entropy,
    leave_out,
    present_classes,
)


def class_shift(counts: Vector, beta: float, *, zero_counts: ZeroCounts = "error") -> Tensor:
    r"""Return the shift of Class-Balanced Softmax, :math:`a_c = \beta \log N_c`, minus its mean over the classes.

    Args:
        counts: training examples per class, shape ``(C,)``. They may be fractional, e.g. sums of sample weights.
        beta: how strongly to shift, >= 0.
        zero_counts: how to treat a class without examples: ``"error"``, ``"mask"`` (a shift of -inf leaves it out of
            the softmax) or ``"one"`` (as if it had one example).

    Returns:
        float32 shift of shape ``(C,)``, for :func:`shifted_linear` and :func:`longtail.metrics.class_statistics`.

    Example:
        >>> class_shift([1000, 100], beta=1.0)
        tensor([ 1.1513, -1.1513])
    """
    beta = check_number("beta", beta)
    counts = training_counts(counts, zero_counts)
    shift = scaled_log_counts(counts.cpu(), beta).to(torch.float32)
    if not shift[counts.cpu() > 0].isfinite().all():
        raise ValueError(f"Expected `beta` to give a finite shift, but got {beta:g}.")
    return shift.to(counts.device)


def scaled_log_counts(counts: Tensor, beta: float | Tensor) -> Tensor:
    """Return ``beta`` log N minus its mean, in float64; -inf for a class without examples. Reads nothing back."""
    log_counts, present = counts.double().log(), counts > 0
    mean = log_counts.where(present, 0.0).sum() / present.sum()
    return (beta * (log_counts - mean)).where(present, -torch.inf)


def prior_shift(p_hat: Vector, p: Vector) -> Tensor:
    r"""Return the shift of the paper's general form, :math:`a_c = \log \hat p(y=c) / p(y=c)`, minus its mean.

    Args:
        p_hat: class probabilities of the trained model, shape ``(C,)``, up to a constant factor.
        p: class probabilities of the desired model, likewise.

    Returns:
        float32 shift of shape ``(C,)``.

    Example:
        >>> prior_shift([0.8, 0.2], [0.5, 0.5])
        tensor([ 0.6931, -0.6931])
    """
    trained, wanted = as_distribution("p_hat", p_hat), as_distribution("p", p)
    if trained.shape != wanted.shape:
        raise ValueError(f"Expected `p_hat` and `p` of one length, but got {trained.numel()} and {wanted.numel()}.")
    shift = trained.log() - wanted.log()
    return (shift - shift.mean()).to(p_hat.device if isinstance(p_hat, Tensor) else "cpu", torch.float32)


def shifted_linear(features: Tensor, weight: Tensor, bias: Tensor | None, shift: Tensor) -> Tensor:
    r"""Return logits with the shift inside the product, :math:`W h + (b + a)`: a shifted loss at almost no cost.

    ``F.cross_entropy(shifted_linear(h, W, b, shift), y)`` equals the shifted loss of ``F.linear(h, W, b)``, but no
    second array of logits is made, which matters with many classes (``benchmarks/loss.py``). The parameters do not
    change, so weight decay acts on :math:`b`, never on the shift. Predict with ``F.linear(h, W, b)``. In half
    precision :math:`b + a` is rounded like the logits, whereas the loss adds the shift in float32.

    Args:
        features: shape ``(..., D)``.
        weight: the classifier's weight, shape ``(C, D)``.
        bias: its bias, shape ``(C,)``, or ``None``.
        shift: shape ``(C,)``, from :func:`class_shift`, :func:`prior_shift` or a loss's ``logit_shift``.

    Returns:
        shifted logits of shape ``(..., C)``, for ``F.cross_entropy``. They are -inf for a masked class, which does not
        work with label smoothing: use the loss then.

    Example:
        >>> head, h, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 0, 1, 0, 0])
        >>> loss = ClassBalancedSoftmaxLoss([500, 50, 5], beta=1.5)
        >>> logits = shifted_linear(h, head.weight, head.bias, loss.logit_shift)
        >>> torch.allclose(torch.nn.functional.cross_entropy(logits, y), loss(head(h), y), atol=1e-5)
        True
    """
    if shift.shape != weight.shape[:1] or (bias is not None and bias.shape != shift.shape):
        raise ValueError(  # a bias or a shift of one entry would broadcast
            f"Expected `bias` and `shift` with {weight.shape[0]} classes, as `weight` has, but got "
            f"{tuple(bias.shape) if bias is not None else 'no bias'} and {tuple(shift.shape)}."
        )
    shifted = shift if bias is None else bias + shift
    return F.linear(features, weight, shifted if shifted.dtype == weight.dtype else shifted.to(weight.dtype))


def _shifted_cross_entropy(
    logits: Tensor, target: Tensor, shift: Tensor, present: Tensor | None, *, of: str, **options: Unpack[LossOptions]
) -> Tensor:
    """Cross entropy of ``logits + shift`` over the classes ``present`` (``None``: all), in at least float32."""
    target = check_batch(logits, target, shift.numel(), of=of, held=shift, **options)
    if present is not None:
        logits, target, options = leave_out(logits, target, present, **options)
        shift = shift[present]
    return cross_entropy(logits + along_classes(shift, logits), target, **options)  # half + float32 is float32


def class_balanced_softmax(
    logits: Tensor,
    target: Tensor,
    counts: Vector,
    *,
    beta: float,
    zero_counts: ZeroCounts = "error",
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""Class-Balanced Softmax (CBS): the cross entropy of :math:`z_c + \beta \log N_c`.

    .. math:: l_n = -\log \frac{N_y^\beta e^{z_{ny}}}{\sum_d N_d^\beta e^{z_{nd}}}

    During training the shift makes head classes easier, so the plain logits :math:`z`, which are used for prediction,
    have to favour the tail. ``beta=0`` is softmax cross entropy and ``beta=1`` Balanced Softmax; above 1 it also
    compensates for the larger generalisation gap of the tail. It equals logit adjustment in the loss
    (:class:`LogitAdjustedLoss`) with ``tau = beta``: the logits differ by a constant.
    It is *not* the class-balanced loss of Cui et al. (2019), which weights samples by the effective number of their
    class: see :func:`effective_number_weights <longtail.losses.effective_number_weights>`.

    Each call reads ``counts``. In a training loop use :class:`ClassBalancedSoftmaxLoss`, which reads them once.

    Args:
        logits: plain logits :math:`z`, shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        target: class indices, shape ``()``, ``(N,)`` or ``(N, d1, …)``, or class probabilities of the logits' shape.
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        beta: how strongly to shift, >= 0. There is no default, because 1 would silently be Balanced Softmax.
        zero_counts: how to treat a class without examples: ``"error"``, ``"mask"`` it out of the softmax, or count it
            as ``"one"``.
        **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing`` as in ``F.cross_entropy``, and
            ``check_labels``; see :class:`LossOptions <longtail.losses.LossOptions>`.

    Returns:
        the loss, float32 (float64 for float64 logits); a scalar unless ``reduction="none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
        >>> class_balanced_softmax(logits, torch.tensor([0, 2]), [500, 50, 5], beta=1.5)
        tensor(3.2200)
    """
    check_options(**options)
    shift = class_shift(counts, beta, zero_counts=zero_counts)
    check_logits(logits, shift.numel())
    shift = shift.to(logits.device)
    return _shifted_cross_entropy(logits, target, shift, present_classes(shift), of="counts", **options)


class ClassBalancedSoftmaxLoss(CountedLoss):
    r"""Class-Balanced Softmax (CBS): the cross entropy of :math:`z_c + \beta \log N_c`.

    To use it, change one line of a training loop: replace ``nn.CrossEntropyLoss()`` by
    ``ClassBalancedSoftmaxLoss(counts, beta=1.5)``, and predict with ``logits.argmax(1)`` as before.
    :func:`class_balanced_softmax` explains the arguments and the relation to similar losses.

    The ``counts`` are its state; ``logit_shift`` is computed from them once, in float32, and stays so under
    ``.half()`` and autocast. On CUDA it reads nothing back, so a captured graph can contain the loss.
    :class:`AutoBeta <longtail.AutoBeta>` finds beta during training.

    Example:
        >>> loss = ClassBalancedSoftmaxLoss([500, 50, 5], beta=1.5)
        >>> loss
        ClassBalancedSoftmaxLoss(3 classes, beta=1.5)
        >>> loss(torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]]), torch.tensor([0, 2]))
        tensor(3.2200)
    """

    _beta: float | Tensor
    _shift: Tensor
    _sized_by = "counts"  # the argument that messages name
    _beta_varies = True
    _shown: tuple[str, ...] = ("beta",)

    def __init__(
        self, counts: Vector, *, beta: float, zero_counts: ZeroCounts = "error", **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(counts, zero_counts, **options)
        self._beta = check_number("beta", beta)
        self.read_counts()

    @property
    def beta(self) -> float:
        """How strongly the logits are shifted; :meth:`set_beta` changes it."""
        return float(self._beta)

    def set_beta(self, beta: float | Tensor) -> None:
        """Change beta, and the shift in place, so that a captured CUDA graph and a compiled loss use the new value.

        Beta is not part of the state dict. A tensor is not read back: nothing waits for its device, or checks it.
        """
        if not self._beta_varies:
            raise TypeError(
                f"Expected a loss whose beta may change, but got {type(self).__name__}; use ClassBalancedSoftmaxLoss."
            )
        if isinstance(beta, Tensor):
            self._beta = beta.detach().clone()
            self._shift.copy_(scaled_log_counts(self.counts, self._beta.to(self.counts.device)))
        else:
            self._shift.copy_(class_shift(self.counts, beta, zero_counts=self.zero_counts))
            self._beta = float(beta)

    @property
    def logit_shift(self) -> Tensor:
        """:math:`\\beta \\log N_c` minus its mean, float32 ``(C,)``; -inf for a masked class."""
        return self._shift

    @property
    def is_pure_shift(self) -> bool:
        """Whether there are no weights, no smoothing and no other ``forward``, see :class:`Loss`."""
        own = type(self).forward is ClassBalancedSoftmaxLoss.forward
        return own and self.weight is None and not self.label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of plain ``logits``, shape ``(N, C, …)``, and ``target``, indices or probabilities."""
        return _shifted_cross_entropy(logits, target, self.logit_shift, self.present, of=self._sized_by, **self.options)

    def read_counts(self) -> None:
        """Compute the shift from the counts, in place unless the loss was moved."""
        super().read_counts()
        shift = class_shift(self.counts, self.beta, zero_counts=self.zero_counts)
        old: Tensor = getattr(self, "_shift", shift)
        self._shift = old.copy_(shift) if (old.shape, old.device) == (shift.shape, shift.device) else shift


class BalancedSoftmaxLoss(ClassBalancedSoftmaxLoss):
    r"""Balanced Softmax (Ren et al., 2020): the cross entropy of :math:`z_c + \log N_c`.

    :class:`ClassBalancedSoftmaxLoss` with ``beta=1``; the other arguments are the same.

    Example:
        >>> loss = BalancedSoftmaxLoss([500, 50, 5])
        >>> loss(torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]]), torch.tensor([0, 2]))
        tensor(2.1085)
    """

    _beta_varies = False
    _shown = ()

    def __init__(self, counts: Vector, *, zero_counts: ZeroCounts = "error", **options: Unpack[LossOptions]) -> None:
        super().__init__(counts, beta=1.0, zero_counts=zero_counts, **options)


class LogitAdjustedLoss(ClassBalancedSoftmaxLoss):
    r"""Logit adjustment in the loss (Menon et al., 2021): the cross entropy of :math:`z_c + \tau \log \pi_c`.

    With the class prior :math:`\pi_c = N_c / N` this is :class:`ClassBalancedSoftmaxLoss` with ``beta = tau``; the
    other arguments are the same. For logit adjustment after training see :func:`longtail.posthoc.adjust_logits`.

    Example:
        >>> LogitAdjustedLoss([500, 50, 5], tau=1.0)
        LogitAdjustedLoss(3 classes, tau=1)
    """

    _shown = ("tau",)

    def __init__(
        self, counts: Vector, *, tau: float, zero_counts: ZeroCounts = "error", **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(counts, beta=check_number("tau", tau), zero_counts=zero_counts, **options)

    @property
    def tau(self) -> float:
        """How strongly the logits are adjusted."""
        return self.beta


class PriorShiftedSoftmaxLoss(ClassBalancedSoftmaxLoss):
    r"""The paper's general form (theorem "two priors"): the cross entropy of :math:`z_c + \log \hat p(y=c) / p(y=c)`.

    A model trained on it has the class probabilities :math:`\hat p`; its plain logits are those of a model with
    :math:`p`. With :math:`\hat p_c \propto N_c^{1 + \beta^{ib}}` and :math:`p_c \propto N_c^{1 + \beta^{b}}` it is
    :class:`ClassBalancedSoftmaxLoss` with :math:`\beta = \beta^{ib} - \beta^{b}`.

    Args:
        p_hat: class probabilities of the trained model, shape ``(C,)``, > 0, up to a constant factor.
        p: class probabilities of the desired model, likewise.
        **options: as in :func:`class_balanced_softmax`.

    Its state, ``counts``, are the ratios :math:`\hat p_c / p_c` up to a factor; the shift is derived from them.

    Example:
        >>> loss = PriorShiftedSoftmaxLoss(p_hat=[0.9, 0.1], p=[0.5, 0.5])
        >>> loss(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        tensor(0.7506)
    """

    _sized_by = "p_hat"
    _beta_varies = False
    _shown = ()

    def __init__(self, p_hat: Vector, p: Vector, **options: Unpack[LossOptions]) -> None:
        super().__init__(prior_shift(p_hat, p).exp(), beta=1.0, **options)

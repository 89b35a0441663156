"""Probabilistic contrastive learning (ProCo): contrast with one distribution per class instead of samples."""

from collections.abc import Callable
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longtail._checks import Vector, ZeroCounts, check_integer, check_number
from longtail.losses._common import CountedLoss, LossOptions, shifts
from longtail.losses._embeddings import (
    at_least_float32,
    check_features,
    check_row_labels,
    check_temperature,
    full_precision,
)
from longtail.losses.bessel import ERROR, log_bessel
from longtail.losses.softmax import _shifted_cross_entropy, class_shift

_MAX_KAPPA = 1e5  # as in the authors' code


class _LogRatio(torch.autograd.Function):
    """From cosines to logits, computed in float64; saves one number per cosine for the backward pass."""

    @staticmethod
    def forward(ctx: Any, cosines: Tensor, kappa: Tensor, temperature: float, order: float) -> Tensor:
        # ||kappa mu + z / T||² = kappa² + 2 kappa cos / T + 1 / T², below 0 by rounding only
        factor = kappa * (2 / temperature)
        square = torch.addcmul(kappa.square() + temperature**-2, cosines.double(), factor).clamp_(min=0.0)
        # kappa is one more row: in a small batch the number of kernel launches matters, not their size
        square = torch.cat([kappa.square().expand(*square.shape[:-2], 1, -1), square], dim=-2)
        wanted = ctx.needs_input_grad[0]
        error = ERROR if cosines.dtype == torch.float64 else 20 * ERROR  # logits in float32 are exact to 1e-6
        value, ratio = log_bessel(square, order, slope=wanted, error=error)
        if wanted:
            assert ratio is not None
            ctx.save_for_backward((ratio[..., 1:, :] * (0.5 * factor)).to(cosines.dtype))
        return (value[..., 1:, :] - value[..., :1, :]).to(cosines.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None


def proco_logits(features: Tensor, mu: Tensor, kappa: Tensor, temperature: float) -> Tensor:
    r"""Return the logits of ProCo: the log of the expected similarity of a feature to samples of each class.

    .. math:: z_{nc} = \log C_p(\kappa_c) - \log C_p\big(\|\kappa_c \mu_c + f_n / T\|\big)
                     = \log \mathrm{E}_{g \sim \mathrm{vMF}(\mu_c, \kappa_c)} \, e^{f_n \cdot g / T}

    The norm needs only one product of features and directions,
    :math:`\|\kappa \mu + f / T\|^2 = \kappa^2 + 2 \kappa \mu \cdot f / T + 1 / T^2`, so nothing has the shape
    ``(N, C, p)``, and :math:`C_p` costs the same in any dimension (:mod:`longtail.losses.bessel`). The steps between
    cosines and logits use float64, in which the difference of two numbers near 1e5 keeps 10 digits. In float32 a logit
    is then within 3e-7 / T of the formula, which is the rounding of the product (terms of the expansion below 2e-7 are
    left out; with float64 features, below 1e-8).

    The formula assumes that features and directions have length 1, so the gradient has no component along a feature.
    After a normalisation, which removes that component, it is the gradient of the formula above.

    Args:
        features: normalised, shape ``(N, p)`` or ``(views, N, p)``.
        mu: mean directions, normalised, shape ``(C, p)``, or ``(views, C, p)`` with one set per view.
        kappa: concentrations >= 0, shape ``(C,)`` or ``(views, C)``; no gradient flows to them.
        temperature: :math:`T`, above 0. The authors use 0.1 on CIFAR-LT, 0.07 on larger data sets.

    Returns:
        logits of shape ``(N, C)`` or ``(views, N, C)``, float32 (float64 for float64 features), once differentiable.

    Example:
        >>> features = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
        >>> proco_logits(features, torch.eye(3), torch.tensor([0.0, 50.0, 50.0]), temperature=0.5)
        tensor([[0.5952, 0.0392, 0.0392],
                [0.5952, 1.2008, 1.5822]])
    """
    temperature = check_temperature(temperature)
    check_features("features", features, ndim=None)
    check_features("mu", mu, like=features, ndim=None)
    if features.ndim > 3 or (mu.ndim > 2 and mu.shape[:-2] != features.shape[:-2]):
        raise ValueError(
            "Expected `features` of shape (N, p) or (views, N, p) and `mu` of shape (C, p) or one per view, "
            f"but got {tuple(features.shape)} and {tuple(mu.shape)}."
        )
    check_features("kappa", kappa.unsqueeze(-2) if isinstance(kappa, Tensor) else kappa, ndim=None)
    if kappa.shape != mu.shape[:-1]:
        raise ValueError(
            f"Expected `kappa` to have shape {tuple(mu.shape[:-1])}, as `mu` has classes, but got {tuple(kappa.shape)}."
        )
    check_integer("the number of features", features.shape[-1], minimum=2)
    features = at_least_float32(features)
    with full_precision(features):
        cosines = features @ mu.to(features.dtype).mT
    concentration = kappa.detach().double().unsqueeze(-2)
    logits: Tensor = _LogRatio.apply(cosines, concentration, temperature, features.shape[-1] / 2 - 1)
    return logits


class VonMisesFisherStatistics(nn.Module):
    r"""One von Mises-Fisher distribution per class, from the features of this epoch so far and of the last epoch.

    Let :math:`\bar f_c` be the mean of the features of a class over both epochs, and :math:`R_c` its length. Then

    .. math:: \mu_c = \bar f_c / R_c, \qquad \kappa_c = \frac{p R_c}{1 - R_c^2} \le 10^5

    This follows the authors' repository (LeapLabTHU/ProCo, ``loss/proco.py``), which runs two estimators: one over the
    current epoch, and one that starts from the result of the last epoch. The loss uses the second one, updated with the
    features of the current view. All features have the same weight, and the first feature of a class replaces its
    initial mean, a random direction of length 0.9. One detail differs: for a class without a sample in a whole epoch
    they draw a new random direction; here its last mean stays until the class is seen again.

    The state is ``mean`` and ``mean_counts`` of the last epoch (at first the random directions and 0), and ``sums`` and
    ``counts`` of the current epoch. They are updated in place, without waiting for a GPU, and additions always have the
    same order. They are float32; ``.half()`` does not change this, ``.double()`` does.

    Args:
        num_classes: :math:`C`.
        dim: :math:`p`, the dimension of the features, at least 2.
        seed: seed of the initial directions.

    Example:
        >>> statistics = VonMisesFisherStatistics(num_classes=2, dim=3)
        >>> statistics.update(torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]]), torch.tensor([1, 1]))
        >>> mu, kappa = statistics.estimate()
        >>> mu[1], kappa
        (tensor([0.8944, 0.4472, 0.0000]), tensor([14.2105, 13.4164], dtype=torch.float64))
        >>> statistics.end_epoch()
    """

    mean: Tensor
    mean_counts: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, dim: int, *, seed: int = 0) -> None:
        super().__init__()
        num_classes = check_integer("num_classes", num_classes, minimum=1)
        dim = check_integer("dim", dim, minimum=2)
        generator = torch.Generator("cpu").manual_seed(check_integer("seed", seed))
        start = torch.randn(num_classes, dim, dtype=torch.float64, generator=generator, device="cpu")
        start = (0.9 * start / start.norm(dim=1, keepdim=True)).float()
        self.register_buffer("mean", start)
        self.register_buffer("mean_counts", torch.zeros(num_classes, dtype=torch.int64, device="cpu"))
        self.register_buffer("sums", torch.zeros_like(start))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.int64, device="cpu"))

    @torch.no_grad()
    def update(
        self, features: Tensor, labels: Tensor, *, ignore_index: int = -100, check_labels: bool | None = None
    ) -> None:
        """Add the features of a batch.

        Args:
            features: normalised, shape ``(N, p)``. On several ranks pass the features of all ranks to each rank.
            labels: their classes, shape ``(N,)``.
            ignore_index: features with this label are not counted.
            check_labels: check the labels; default: on the CPU.
        """
        check_features("features", features, like=self.sums)
        classes = self.sums.shape[0]
        labels = check_row_labels("labels", labels, features, classes, check_labels, ignore_index=ignore_index)
        kept = labels != ignore_index
        index = labels.masked_fill(~kept, 0)
        # On a GPU, index_add_ of several rows per class has a different order of additions each time. So the rows of
        # the batch are summed class by class in a product, and one row per class is added to the sums.
        same = (index.unsqueeze(1) == index) & kept
        first = kept & ~same.tril(-1).any(1)
        with full_precision(features):
            rows = same.to(self.sums.dtype) @ features.to(self.sums.dtype)
        self.sums.index_add_(0, index, rows * first.unsqueeze(1))
        self.counts.index_add_(0, index, same.sum(1) * first)

    @torch.no_grad()
    def estimate(self) -> tuple[Tensor, Tensor]:
        """Return mean directions, shape ``(C, p)``, and concentrations, float64 of shape ``(C,)``."""
        number = self.mean_counts + self.counts
        before = self.mean_counts.where(number > 0, 1).to(self.mean.dtype)  # 1: the mean itself
        mean = torch.addcmul(self.sums, self.mean, before.unsqueeze(1)).div_(number.clamp(min=1).unsqueeze(1))
        length = torch.linalg.vector_norm(mean, dim=1, dtype=torch.float64)
        kappa = mean.shape[1] * length / (1 - length.square()).clamp(min=1e-300)  # R may round above 1
        mu = mean.div_(length.clamp(min=1e-12).to(mean.dtype).unsqueeze(1))
        return mu, kappa.clamp(max=_MAX_KAPPA)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Start a new epoch. A class without a sample in the last one keeps its mean, with a count of 0."""
        seen = self.counts > 0
        mean = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        self.mean.copy_(mean.where(seen.unsqueeze(1), self.mean))
        self.mean_counts.copy_(self.counts)
        self.sums.zero_()
        self.counts.zero_()

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.sums.shape[0]} classes, {self.sums.shape[1]} dimensions"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` must not round sums over an epoch; `.double()` may widen them.
        kept = {name: buffer for name, buffer in self.named_buffers(recurse=False) if buffer.is_floating_point()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            moved: Tensor = getattr(self, name)
            if moved.dtype.itemsize < buffer.dtype.itemsize and not buffer.is_meta:
                setattr(self, name, buffer.to(moved.device))
        return self


class ProCoLoss(CountedLoss):
    r"""Probabilistic contrastive learning (Du et al., 2024), with the class distributions that it estimates.

    .. math:: l_n = \frac1V \sum_v -\log \frac{e^{z^v_{ny} + a_y}}{\sum_c e^{z^v_{nc} + a_c}},
              \qquad a_c = \beta \log N_c

    with the logits :math:`z` of :func:`proco_logits`. For each view in turn, as in the authors' code: add its features
    to the statistics (:class:`VonMisesFisherStatistics`; in training mode only), estimate the distributions, and
    compute the loss of this view with them. Call :meth:`end_epoch` after each epoch. Train on the loss of the
    classifier plus this one, both with the same shift; predict with the classifier alone.

    Args:
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        dim: :math:`p`, the dimension of the features. The authors use 128 on CIFAR-LT, 1024 on larger data sets.
        beta: the shift is :math:`\beta \log N_c`; the authors use 1, other values give CBS, 0 is no shift.
        temperature: above 0.
        seed: seed of the initial directions.
        zero_counts: ``"error"``, ``"mask"`` or ``"one"``, for a class without examples.
        **options: see :class:`LossOptions <longtail.losses.LossOptions>`. For a batch on several ranks add the sums of
            ``reduction="sum"`` and divide by the number of all samples.

    Example:
        >>> loss = ProCoLoss([500, 50, 5], dim=16, beta=1.5)
        >>> views = torch.nn.functional.normalize(torch.randn(2, 8, 16), dim=-1)
        >>> loss(views, torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])).shape
        torch.Size([])
        >>> loss.end_epoch()
    """

    _shift: Tensor
    _shown = ("beta", "temperature")

    def __init__(
        self,
        counts: Vector,
        dim: int,
        *,
        beta: float,
        temperature: float = 0.1,
        seed: int = 0,
        zero_counts: ZeroCounts = "error",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(counts, zero_counts, **options)
        self._beta = check_number("beta", beta)
        self.temperature = check_temperature(temperature)
        self.read_counts()
        self.statistics = VonMisesFisherStatistics(self.counts.numel(), dim, seed=seed)
        self.statistics.to(self.counts.device)

    @property
    def beta(self) -> float:
        """How strongly the logits are shifted. Read-only: make another loss for another beta."""
        return self._beta

    @property
    def rebalances(self) -> bool:
        """By its shift or by class weights. It shifts its own logits, not the classifier's."""
        return super().rebalances or shifts(self._shift)

    def forward(
        self, features: Tensor, target: Tensor, *, keys: Tensor | None = None, key_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of normalised ``features``, shape ``(views, N, p)``, and ``target``, indices of shape ``(N,)``.

        Args:
            features: the features whose loss is computed.
            target: their classes.
            keys: the features to add to the statistics, shape ``(views, K, p)``: those of all ranks. Default:
                ``features``.
            key_labels: their classes, shape ``(K,)``.
        """
        check_features("features", features, ndim=3)
        views = features.shape[0]
        check_row_labels("target", target, features[0], self.counts.numel(), False)
        if (keys is None) != (key_labels is None):
            raise ValueError("Expected `keys` and `key_labels` together, but got one of them.")
        if keys is None or key_labels is None:
            keys, key_labels = features, target
        elif check_features("keys", keys, like=features, ndim=3).shape[0] != views:
            raise ValueError(f"Expected `keys` to have {views} views, as `features` has, but got {keys.shape[0]}.")
        if self.training:
            estimates = []
            for view in keys:
                self.statistics.update(view, key_labels, ignore_index=self.ignore_index, check_labels=self.check_labels)
                estimates.append(self.statistics.estimate())
            mu, kappa = (torch.stack(tensors) for tensors in zip(*estimates, strict=True))
        else:
            mu, kappa = self.statistics.estimate()
        logits = proco_logits(features, mu, kappa, self.temperature).flatten(0, 1)
        loss = _shifted_cross_entropy(
            logits, target.repeat(views), self._shift, self.present, of="counts", **self.options
        )
        if self.reduction == "none":
            return loss.view(views, -1).mean(0)
        return loss / views if self.reduction == "sum" else loss  # a mean over all views is that of their means

    def end_epoch(self) -> None:
        """Start a new epoch of the statistics."""
        self.statistics.end_epoch()

    def read_counts(self) -> None:
        """Compute the shift from the counts."""
        super().read_counts()
        self._shift = class_shift(self.counts, self.beta, zero_counts=self.zero_counts)

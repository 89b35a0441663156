r"""Finding beta: the additional shift that makes a classifier treat all classes alike, estimated on held-out data.

Class-Balanced Softmax trains on :math:`z_c + \beta \log N_c`. Its beta is right if no additional shift of the plain
logits :math:`z` helps on held-out data in which every class counts the same. :func:`fit_shift` estimates the shift that
would help, which is added to beta, or subtracted from the logits of the trained model. :class:`AutoBeta` adds it during
training.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail._checks import (
    Vector,
    along_classes,
    as_counts,
    as_distribution,
    as_tensor,
    as_vector,
    check_logits,
    check_number,
    describe,
    shown,
)
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.losses._common import check_label_range
from longtail.losses.softmax import scaled_log_counts
from longtail.ranks import Ranks

__all__ = ["AutoBeta", "BetaUpdate", "ShiftFit", "fit_shift"]

_STEPS = 60  # at most; four to ten are usual
_ELEMENTS = 2**19  # of the logits that are worked on together: 4 MB in float64
_HUGE = 1.0  # a standard error of delta beyond which a fit is of no use
_ERRORS = 10  # misclassified samples that a fit needs: fewer are fitted by accident, with a small standard error


class ShiftFit(NamedTuple):
    r"""The additional shift estimated on held-out data, from :func:`fit_shift`.

    A balanced posterior is estimated by :math:`\mathrm{softmax}((z - \delta \log N) / T)`.
    """

    delta: float
    """What to add to beta, or to subtract as ``delta * log N`` from the logits of the trained model."""
    temperature: float
    """T, by which logits are divided."""
    std_error: float
    """Standard error of delta for other held-out data of the same size."""
    steps: int
    """Newton steps taken."""
    problem: str | None
    """Why delta must not be used; ``None`` if it may be."""


def fit_shift(
    logits: Vector,
    labels: Vector,
    counts: Vector,
    *,
    target_prior: Vector | None = None,
    sample_weight: Vector | None = None,
) -> ShiftFit:
    r"""Return the additional shift :math:`\delta \log N_c` of a classifier's logits, estimated on held-out data.

    Minimises the cross entropy of :math:`\mathrm{softmax}(a z - b \log N)` over :math:`a` and :math:`b`, every class
    weighted alike, and returns :math:`\delta = b / a` and :math:`T = 1 / a`. The problem is convex. At
    :math:`\delta = 0` the mean prediction over the classes has no slope against :math:`\log N`. The standard error is
    a sandwich estimate, because rows are weighted, for samples drawn class by class, with the delta method.

    Classes without a held-out sample are left out of the softmax: in its denominator they would only be penalised.

    Args:
        logits: plain logits of held-out samples, shape ``(M, C)``, a tensor or an array.
        labels: their classes, shape ``(M,)``.
        counts: **training** examples per class, shape ``(C,)``; a constant factor changes nothing.
        target_prior: class frequencies where the model will be used, up to a factor; default: all the same.
        sample_weight: how much each sample counts among those of its class, shape ``(M,)``; default: all the same.

    Returns:
        the fit, computed in float64. Its ``problem`` says why delta is not to be used, for example because all classes
        have the same count, because some logits are not finite, or because the samples are too few.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1]).repeat(10)
        >>> logits = torch.tensor([[3., 0.], [2., 0.], [1., 0.], [2., 0.], [1., 0.], [0., 1.]]).repeat(10, 1)
        >>> fit = fit_shift(logits, labels, counts=[100, 10])
        >>> round(fit.delta, 2), fit.problem
        (0.62, None)
    """
    counts = as_counts(counts, fractions=True)
    logits, labels = _check_rows(logits, labels, counts.numel())
    if not len(logits):
        raise ValueError(f"Expected `logits` of shape (M, C) with M >= 1, but got shape {tuple(logits.shape)}.")
    unseen = torch.unique(labels[counts.to(labels.device)[labels] == 0]).tolist()
    if unseen:
        raise ValueError(f"Expected `counts` above 0 for every class in `labels`, but got 0 for class {shown(unseen)}.")
    prior = torch.ones_like(counts) if target_prior is None else target_prior
    prior = as_distribution("target_prior", prior, counts.numel(), zeros=True).to(logits.device)
    if not bool(prior[labels].any()):
        raise ValueError("Expected `target_prior` above 0 for a class in `labels`, but got 0 for all of them.")
    if sample_weight is not None:
        sample_weight = as_distribution("sample_weight", sample_weight).to(logits.device)
        if len(sample_weight) != len(labels):
            raise ValueError(f"Expected `sample_weight` to have {len(labels)} rows, but got {len(sample_weight)}.")
    return _HeldOut(labels, counts, prior, sample_weight=sample_weight).fit(logits)


def _check_rows(logits: object, labels: object, num_classes: int) -> tuple[Tensor, Tensor]:
    """Logits of shape (M, C), and int64 labels of their rows."""
    logits = as_tensor("logits", logits)
    check_logits(logits, num_classes)
    if logits.ndim != 2:
        raise ValueError(f"Expected `logits` of shape (M, C), but got shape {tuple(logits.shape)}.")
    labels = as_vector("labels", labels).to(logits.device) if len(logits) else logits.new_empty(0, dtype=torch.int64)
    if labels.is_floating_point() or len(labels) != len(logits):
        raise ValueError(
            f"Expected `labels` to be {len(logits)} class indices, one per row of `logits`, but got {describe(labels)}."
        )
    labels = labels.long()
    check_label_range("labels", labels, num_classes)
    return logits, labels


class _HeldOut:
    """The labels of held-out data with everything that does not depend on the logits.

    Args:
        labels: int64 ``(M,)``.
        counts: training examples per class.
        prior: weight per class.
        reduce: sums a tensor over the processes that share the data.
        sample_weight: weight per sample within its class, float64 ``(M,)``; default: all the same.
    """

    def __init__(
        self,
        labels: Tensor,
        counts: Tensor,
        prior: Tensor,
        reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
        sample_weight: Tensor | None = None,
    ) -> None:
        device = labels.device
        samples = reduce(torch.bincount(labels, minlength=counts.numel())).double()
        totals = samples
        if sample_weight is not None:
            totals = reduce(torch.bincount(labels, sample_weight, minlength=counts.numel()))
        weights = torch.where(samples > 0, prior.to(device).double(), 0.0)
        self.present = (weights > 0).nonzero().flatten()
        """Classes with held-out samples."""
        self.samples = samples[self.present]
        log_counts = counts.to(device).double()[self.present].log()
        self.log_counts = log_counts - log_counts.mean()
        self.rows = torch.isin(labels, self.present).nonzero().flatten()
        place = torch.zeros(counts.numel(), dtype=torch.int64, device=device)
        place[self.present] = torch.arange(len(self.present), device=device)
        self.labels = place[labels[self.rows]]
        self.shares = (weights / weights.sum())[self.present]
        self.weights = (weights / totals / weights.sum())[labels[self.rows]]
        if sample_weight is not None:
            self.weights = self.weights * sample_weight[self.rows]
        self.reduce = reduce

    def fit(self, logits: Tensor) -> ShiftFit:
        """The shift that these logits need."""
        z = logits[:, self.present][self.rows].double()
        z = z - z.mean(1, keepdim=True)
        problem = None
        if len(self.present) < 2:
            problem = "only one class has held-out samples"
        elif not bool(self.log_counts.abs().max() > 1e-9):
            problem = "the classes of the held-out data all have the same count, so no shift by it can help"
        elif bool(self.reduce((~z.isfinite()).sum()) > 0):
            problem = "some logits are infinite or NaN"
        if problem is not None:
            return ShiftFit(math.nan, math.nan, math.inf, 0, problem)
        theta, hessian, steps = self._minimize(z)
        inverse = torch.linalg.inv_ex(hessian).inverse
        gradients, wrong = self._gradients(z, theta)
        before = (z.argmax(1) != self.labels).sum()
        # misclassified without the shift or with it, whichever are more
        wrong = torch.maximum(self.reduce(before.to(wrong)), self.reduce(wrong))
        delta = theta[1] / theta[0]
        slope = torch.stack([-delta, torch.ones_like(delta)]) / theta[0]
        covariance = inverse @ self._spread(gradients) @ inverse
        error = float((slope @ covariance @ slope).clamp(min=0).sqrt())
        if wrong < _ERRORS:
            problem = f"fewer than {_ERRORS} held-out samples are misclassified, too few to measure the shift"
        elif not theta[0] > 0 or math.isnan(error):  # NaN: the logits of each row are all the same
            problem = "the logits do not predict the held-out labels"
        elif error >= _HUGE:
            problem = f"its standard error, {error:.2g}, is too large: more held-out samples are needed"
        return ShiftFit(float(delta), 1 / float(theta[0]), error, steps, problem)

    def _minimize(self, z: Tensor) -> tuple[Tensor, Tensor, int]:
        """a and b by damped Newton steps (Levenberg-Marquardt), the Hessian there, and the number of steps."""
        scale = (self.reduce(self.weights @ z.square().mean(1))).sqrt().clamp(min=1e-300)
        theta = torch.stack([1 / scale, torch.zeros_like(scale)])
        at, damping, taken = self._sums(z, theta), 0.0, 0
        for _ in range(_STEPS):
            gradient, hessian = at[1:3], _square(at[3:6])
            ridge = damping * torch.diag(hessian.diagonal().clamp(min=1e-300))
            step = torch.linalg.solve_ex(hessian + ridge, gradient).result
            step = torch.where(step.isfinite(), step, 0.0)
            tried = self._sums(z, theta - step)
            better = bool(tried[0] < at[0])
            promised = float(gradient @ step / at[0].clamp(min=1e-300))  # twice the decrease, relative to the loss
            done = promised < (1e-20 if better else 1e-10) or bool(at[0] < 1e-10)
            if better:
                theta, at, taken = theta - step, tried, taken + 1
                damping = damping / 10 if damping > 1e-3 else 0.0
            else:
                damping = max(10 * damping, 1e-2)
            if done:
                break
        return theta, _square(at[3:6]), taken

    def _sums(self, z: Tensor, theta: Tensor) -> Tensor:
        """Loss, gradient (2) and Hessian (3), weighted and summed over all samples."""
        total = z.new_zeros(6)
        for rows, u, top in self._parts(z, theta):
            part, labels, ell = z[rows], self.labels[rows, None], self.log_counts
            e = torch.exp(u - top)
            norm = e.sum(1)
            ez = e * part
            mean_z, mean_l = ez.sum(1) / norm, e @ ell / norm
            values = [
                norm.log() - (u.gather(1, labels) - top).squeeze(1),
                mean_z - part.gather(1, labels).squeeze(1),
                ell[labels.squeeze(1)] - mean_l,
                torch.linalg.vecdot(ez, part) / norm - mean_z.square(),
                mean_z * mean_l - ez @ ell / norm,
                e @ ell.square() / norm - mean_l.square(),
            ]
            total = total + self.weights[rows] @ torch.stack(values, 1)
        return self.reduce(total)

    def _gradients(self, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each sample, ``(M, 2)``, and the number of samples that are misclassified or tied."""
        found, wrong = [z.new_zeros(0, 2)], z.new_zeros(())
        for rows, u, top in self._parts(z, theta):
            labels, p = self.labels[rows], torch.softmax(u, 1)
            own = torch.stack([z[rows].gather(1, labels[:, None]).squeeze(1), -self.log_counts[labels]], 1)
            found.append(torch.stack([(p * z[rows]).sum(1), -(p @ self.log_counts)], 1) - own)
            first = (u.gather(1, labels[:, None]) == top).squeeze(1) & ((u == top).sum(1) == 1)
            wrong = wrong + (~first).sum()
        return torch.cat(found), wrong

    def _parts(self, z: Tensor, theta: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows with their logits a z - b log N and the maximum of these; on a CPU, as many as fit into its cache."""
        step = max(1, _ELEMENTS // z.shape[1] if z.device.type == "cpu" else len(z))
        for begin in range(0, len(z), step):
            u = theta[0] * z[begin : begin + step] - theta[1] * self.log_counts
            yield slice(begin, begin + step), u, u.amax(1, keepdim=True)

    def _spread(self, gradients: Tensor) -> Tensor:
        """The covariance of the weighted gradient, ``(2, 2)``: samples vary within their class, weights are fixed."""
        weighted = self.weights[:, None] * gradients
        sums = self.reduce(weighted.new_zeros(len(self.present), 2).index_add_(0, self.labels, weighted))
        samples = self.samples[self.labels, None]
        means = self.weights[:, None] * (sums / self.shares[:, None])[self.labels]
        centred = torch.where(samples > 1, weighted - means, weighted)
        freedom = torch.where(samples > 1, samples / (samples - 1), 1.0)  # a single sample shows no variance
        return self.reduce((freedom * centred).T @ centred)


def _square(upper: Tensor) -> Tensor:
    """The symmetric matrix of ``(aa, ab, bb)``."""
    return upper[[0, 1, 1, 2]].view(2, 2)


class BetaUpdate(NamedTuple):
    """One call of :meth:`AutoBeta.update`."""

    beta: float
    """Afterwards."""
    delta: float
    """The additional shift measured on held-out data, of a model trained with the beta before."""
    std_error: float
    """Of delta."""
    moved: bool
    """Whether beta changed."""
    problem: str | None
    """Why the measurement was not used; ``None`` if it was, or if delta is within its standard error."""


class AutoBeta(nn.Module):
    r"""Moves the beta of a loss during training until held-out data show no need of another.

    .. math:: \beta \leftarrow \max(0, \beta + g \, \delta) \quad \text{if } |\delta| > \mathrm{SE}(\delta)

    with the additional shift :math:`\delta` of :func:`fit_shift`. Beta rests while delta is within its standard error.
    A measurement with a problem, for example NaN logits, changes nothing; :attr:`trace` has the reason.

    Call :meth:`update` every one or two epochs, but not in the first few, whose logits say little. Predict with
    ``logits.argmax(1)`` as before. A network follows beta slowly when its learning rate is small; therefore, after
    training, call :meth:`update` once more, and predict with :meth:`adjust`, which subtracts what beta still lacks.
    With ``gain=0`` beta stays and is only corrected by :meth:`adjust`, which is what our trainer does.

    The state dict holds beta, the trace and the counts, so a resumed run continues exactly. The shift of the loss
    changes in place, so captured CUDA graphs and compiled losses use it. Under ``torch.distributed`` every rank calls
    :meth:`update` with its part of the held-out data, and all ranks get the same beta.

    Args:
        loss: :class:`ClassBalancedSoftmaxLoss <longtail.losses.ClassBalancedSoftmaxLoss>`, ``LogitAdjustedLoss`` or
            another loss with ``beta``, ``set_beta`` and ``counts``. Its beta is the start, for example 1.
        gain: which part of delta is added to beta, >= 0.

    Example:
        >>> loss = ClassBalancedSoftmaxLoss([100, 10], beta=1.0)
        >>> auto = AutoBeta(loss)
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1]).repeat(10)  # of held-out data
        >>> logits = torch.tensor([[3., 0.], [2., 0.], [1., 0.], [2., 0.], [1., 0.], [0., 1.]]).repeat(10, 1)
        >>> auto.update(logits, labels)
        >>> auto.trace[-1].moved, round(loss.beta, 2)
        (True, 1.31)
    """

    def __init__(self, loss: ClassBalancedSoftmaxLoss, *, gain: float = 0.5) -> None:
        super().__init__()
        if not callable(getattr(loss, "set_beta", None)):
            raise TypeError(f"Expected `loss` to be a ClassBalancedSoftmaxLoss, but got {describe(loss)}.")
        loss.set_beta(loss.beta)  # raises if its beta is fixed
        self.loss = loss
        self.gain = check_number("gain", gain)
        self.trace: list[BetaUpdate] = []
        """All updates, the oldest first."""

    @property
    def beta(self) -> float:
        """The beta of the loss."""
        return self.loss.beta

    @property
    def delta(self) -> float:
        """The shift measured by the last update; 0 if there was none, or if it had a problem."""
        return self.trace[-1].delta if self.trace and self.trace[-1].problem is None else 0.0

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Measure delta on held-out data, and move beta if delta exceeds its standard error.

        Args:
            logits: plain logits of held-out samples, shape ``(M, C)``.
            labels: their classes, shape ``(M,)``.
        """
        counts, before = self.loss.counts, self.beta
        logits, labels = _check_rows(logits, labels, counts.numel())
        fit = _HeldOut(labels, counts, counts > 0, Ranks.of_this_process().sum).fit(logits)
        if fit.problem is None and abs(fit.delta) > fit.std_error:
            self.loss.set_beta(max(0.0, before + self.gain * fit.delta))
        self.trace.append(BetaUpdate(self.beta, fit.delta, fit.std_error, self.beta != before, fit.problem))

    def adjust(self, logits: Tensor) -> Tensor:
        r"""Return :math:`z_c - \delta \log N_c`, up to a constant: the shift that the last update found missing.

        Args:
            logits: plain logits of the model that was measured last, shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        """
        counts = self.loss.counts
        check_logits(logits, counts.numel())
        shift = scaled_log_counts(counts, -self.delta)
        return logits + along_classes(shift.to(logits.device, torch.float32), logits)

    def extra_repr(self) -> str:
        """The gain."""
        return f"gain={self.gain:g}"

    def get_extra_state(self) -> dict[str, Any]:
        """Beta and the trace as plain data, for the state dict."""
        return {"beta": self.beta, "trace": [tuple(one) for one in self.trace]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Set the trace, and the beta of the loss."""
        self.trace = [BetaUpdate(*one) for one in state["trace"]]
        self.loss.set_beta(state["beta"])

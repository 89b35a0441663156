r"""Finding beta: the additional shift that makes a classifier treat all classes alike, estimated on held-out data.

Class-Balanced Softmax trains on :math:`z_c + \beta \log N_c`. Its beta is right if no additional shift of the plain
logits :math:`z` helps on held-out data in which all classes have equal weight. :func:`fit_shift` estimates the shift
that would help, which is added to beta, or subtracted from the logits of the trained model. :class:`AutoBeta` adds it
during training.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
    check_no_probabilities,
    check_number,
    describe,
    shown,
)
from longtail._ranks import Ranks
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.losses._common import KeepsValues, check_label_range
from longtail.losses.softmax import scaled_log_counts

__all__ = ["AutoBeta", "BetaUpdate", "ShiftFit", "fit_shift"]

_STEPS = 60  # at most; four to ten are usual
_ELEMENTS = 2**19  # of the logits that are worked on together: 4 MB in float64
_HUGE = 1.0  # a standard error of delta beyond which a fit is of no use
_ERRORS = 10  # misclassified samples that a fit needs: fewer are fitted by accident, with a small standard error
_ACCURACY = 0.05  # what a point of accuracy is worth in points of recall over all classes
_OUTLIER = 50.0  # times the median size of a row of logits, beyond which a row is named if the fit fails
_GRID = 32  # strengths among which tau is chosen
_TRACE = 1000  # updates that AutoBeta keeps
NO_SKILL = "the logits do not predict the held-out labels"
"""A problem of a fit."""
_PROBLEMS = (  # in the order of HeldOut.problems
    "only one class has held-out samples",
    "the classes of the held-out data all have the same count, so no shift by it can help",
    "some logits are infinite or NaN",
    f"fewer than {_ERRORS} held-out samples are misclassified, too few to measure the shift",
    NO_SKILL,
    "its standard error, {:.2g}, is too large: more held-out samples are needed",
)


class ShiftFit(NamedTuple):
    r"""The additional shift estimated on held-out data, from :func:`fit_shift`.

    A balanced posterior is estimated by :math:`\mathrm{softmax}((z - \delta \log N) / T)`.
    """

    delta: float
    """The estimate; :attr:`tau` is what to use."""
    tau: float
    """What to add to beta, or the strength for :func:`adjust_logits <longtail.adjust_logits>`; 0 after a problem."""
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

    :math:`\tau` is between 0 and :math:`\delta`, in two steps. :math:`\delta` is shrunk by its standard error, to
    :math:`\delta \max(0, 1 - \mathrm{SE}^2 / \delta^2)`, the positive-part James-Stein estimate. The last part of a
    shift may lower accuracy a lot for hardly any recall, so :math:`\tau` is where expected recall over all classes plus
    0.05 times expected accuracy is highest, for accuracy on data with the class frequencies of the training data. Both
    are expected by the fitted posterior of the held-out rows.

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
        >>> round(fit.delta, 2), round(fit.std_error, 2), round(fit.tau, 2), fit.problem
        (0.62, 0.06, 0.44, None)
    """
    counts = as_counts(counts, fractions=True)
    logits = as_tensor("logits", logits)
    check_logits(logits, counts.numel())
    if logits.ndim != 2 or not len(logits):
        raise ValueError(f"Expected `logits` of shape (M, C) with M >= 1, but got shape {tuple(logits.shape)}.")
    check_no_probabilities(logits)
    labels = as_vector("labels", labels).to(logits.device)
    if labels.is_floating_point() or len(labels) != len(logits):
        raise ValueError(
            f"Expected `labels` to be {len(logits)} class indices, one per row of `logits`, but got {describe(labels)}."
        )
    labels = labels.long()
    check_label_range("labels", labels, counts.numel())
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
    held_out = HeldOut(labels, counts, prior, sample_weight=sample_weight)
    return held_out.describe(held_out.fit(logits), logits)


class Solution(NamedTuple):
    """The optimum as tensors on the device of the logits; reading none of them costs no waiting."""

    theta: Tensor
    """a and b."""
    covariance: Tensor
    """Of a and b, ``(2, 2)``."""
    steps: Tensor
    wrong: Tensor
    """Number of misclassified samples, with or without the shift, whichever is larger."""
    finite: Tensor

    @property
    def delta(self) -> Tensor:
        """b / a."""
        return self.theta[1] / self.theta[0]

    @property
    def std_error(self) -> Tensor:
        """Standard error of delta."""
        slope = torch.stack([-self.delta, torch.ones_like(self.delta)]) / self.theta[0]
        return (slope @ self.covariance @ slope).clamp(min=0).sqrt()

    @property
    def usable(self) -> Tensor:
        """Whether delta may be used."""
        return self.finite & (self.wrong >= _ERRORS) & (self.theta[0] > 0) & (self.std_error < _HUGE)


class HeldOut:
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
        seen = counts.to(device).double()[self.present]
        self.frequencies = seen / seen.sum()
        """Of the training data, among the classes with held-out samples."""
        self.log_counts = seen.log() - seen.log().mean()
        self.rows = torch.isin(labels, self.present).nonzero().flatten()
        place = torch.zeros(counts.numel(), dtype=torch.int64, device=device)
        place[self.present] = torch.arange(len(self.present), device=device)
        self.labels = place[labels[self.rows]]
        self.shares = (weights / weights.sum())[self.present]
        self.weights = (weights / totals / weights.sum())[labels[self.rows]]
        if sample_weight is not None:
            self.weights = self.weights * sample_weight[self.rows]
        self.reduce = reduce
        self.determined = len(self.present) > 1 and bool(self.log_counts.abs().max() > 1e-9)
        """Whether there are several classes, and their counts differ."""

    def fit(self, logits: Tensor, start: Tensor | None = None, steps: int = _STEPS) -> Solution:
        """Damped Newton steps (Levenberg-Marquardt). On a CPU they end at convergence; elsewhere nothing is read."""
        z = self._of_present(logits)
        finite = self.reduce((~z.isfinite()).sum()) == 0
        scale = (self.reduce(self.weights @ z.square().mean(1))).sqrt().clamp(min=1e-300)
        theta = torch.stack([1 / scale, torch.zeros_like(scale)]) if start is None else start
        at = self._sums(z, theta)
        damping, taken, done = torch.zeros_like(scale), torch.zeros_like(scale), ~finite
        for _ in range(steps):
            gradient, hessian = at[1:3], _square(at[3:6])
            ridge = damping * torch.diag(hessian.diagonal().clamp(min=1e-300))
            step = torch.linalg.solve_ex(hessian + ridge, gradient).result
            step = torch.where(step.isfinite(), step, 0.0)
            tried = self._sums(z, theta - step)
            better = (tried[0] < at[0]) & ~done
            promised = gradient @ step / at[0].clamp(min=1e-300)  # twice the decrease, relative to the loss
            done = done | (~better & (promised < 1e-10)) | (promised < 1e-20) | (at[0] < 1e-10)
            theta, at = torch.where(better, theta - step, theta), torch.where(better, tried, at)
            damping = torch.where(
                better, torch.where(damping > 1e-3, damping / 10, 0.0), (10 * damping).clamp(min=1e-2)
            )
            taken = taken + better
            if done.device.type == "cpu" and done:
                break
        inverse = torch.linalg.inv_ex(_square(at[3:6])).inverse
        gradients, wrong = self._gradients(z, theta)
        before = (z.argmax(1) != self.labels).sum()
        wrong = torch.maximum(self.reduce(before.to(wrong)), self.reduce(wrong))
        return Solution(theta, inverse @ self._spread(gradients) @ inverse, taken, wrong, finite)

    def problems(self, found: Solution) -> Tensor:
        """Which of ``_PROBLEMS`` the fit has, as booleans on the device."""
        few, equal = (torch.full_like(found.finite, flag) for flag in (len(self.present) < 2, not self.determined))
        useless = ~(found.theta[0] > 0) | found.std_error.isnan()  # NaN: the logits of each row are all the same
        return torch.stack([few, equal, ~found.finite, found.wrong < _ERRORS, useless, ~(found.std_error < _HUGE)])

    def describe(self, found: Solution, logits: Tensor) -> ShiftFit:
        """The fit in numbers, with what is wrong with it, or else with tau; waits for the device."""
        delta, error = float(found.delta), float(found.std_error)
        there = self.problems(found).tolist()
        problem = _PROBLEMS[there.index(True)].format(error) if any(there) else None
        if problem is not None and any(there[-2:]):
            sizes = self._of_present(logits).abs().amax(1)
            outliers = int((sizes > _OUTLIER * sizes.median()).sum())
            if outliers:
                problem = f"{outliers} of {len(sizes)} rows of logits are {_OUTLIER:g} times as large as the median"
        if not (self.determined and bool(found.finite)):
            return ShiftFit(math.nan, 0.0, math.nan, math.inf, 0, problem)
        shrunk = delta - error**2 / delta if problem is None and abs(delta) > error else 0.0
        tau = self._strength(logits, found.theta[0], shrunk) if shrunk else 0.0
        return ShiftFit(delta, tau, 1 / float(found.theta[0]), error, int(found.steps), problem)

    def _strength(self, logits: Tensor, a: Tensor, most: float) -> float:
        """The strength from 0 to ``most`` with the highest expected recall and, with a small weight, accuracy."""
        z = self._of_present(logits)
        strengths = torch.linspace(0, most, _GRID + 1, dtype=torch.float64, device=z.device)
        worth = 1 + _ACCURACY * self.frequencies / self.shares
        total = torch.zeros_like(strengths)
        for rows, u, _ in self._parts(z, torch.stack([a, a * most])):
            right = torch.softmax(u, 1) * worth * self.weights[rows, None]
            for i, strength in enumerate(strengths):
                predicted = (z[rows] - strength * self.log_counts).argmax(1, keepdim=True)
                total[i] += right.gather(1, predicted).sum()
        return float(strengths[total.argmax()])

    def _of_present(self, logits: Tensor) -> Tensor:
        """Logits of the rows and classes that are used, in float64, with mean zero per row."""
        z = logits if len(self.present) == logits.shape[1] else logits[:, self.present]
        z = (z if len(self.rows) == len(z) else z[self.rows]).double()
        return z - z.mean(1, keepdim=True)

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
    return torch.stack([upper[0], upper[1], upper[1], upper[2]]).view(2, 2)  # an index would be copied to the device


class BetaUpdate(NamedTuple):
    """One call of :meth:`AutoBeta.update`."""

    beta: float
    """Beta after the update."""
    delta: float
    """The additional shift measured on held-out data, of a model trained with the beta before."""
    std_error: float
    """Standard error of delta."""
    moved: bool
    """Whether beta changed."""
    problem: str | None
    """Why the measurement was not used; ``None`` if it was, or if delta is within its standard error."""


class AutoBeta(KeepsValues):
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

    beta: Tensor
    _rows: Tensor

    def __init__(self, loss: ClassBalancedSoftmaxLoss, *, gain: float = 0.5) -> None:
        super().__init__()
        if not callable(getattr(loss, "set_beta", None)):
            raise TypeError(f"Expected `loss` to be a ClassBalancedSoftmaxLoss, but got {describe(loss)}.")
        loss.set_beta(loss.beta)  # raises if its beta is fixed
        self.loss = loss
        self.gain = check_number("gain", gain)
        beta = torch.tensor(loss.beta, dtype=torch.float64, device=loss.counts.device)
        self.register_buffer("beta", beta)
        self.register_buffer("_rows", beta.new_full((_TRACE, len(BetaUpdate._fields)), math.nan))
        self.register_load_state_dict_post_hook(_apply_beta)  # type: ignore[no-untyped-call]
        self._seen: tuple[Tensor, int, torch.device] | None = None
        self._held_out: HeldOut | None = None

    @property
    def delta(self) -> Tensor:
        """The shift measured by the last update; 0 if there was none, or if it had a problem."""
        return self._rows[-1, 1].where(self._rows[-1, 4] == len(_PROBLEMS), 0.0)

    @property
    def trace(self) -> list[BetaUpdate]:
        """The last 1000 updates, the oldest first. On a GPU this waits for the device."""
        reasons = (*_PROBLEMS, None)
        return [
            BetaUpdate(beta, delta, error, bool(moved), (reason := reasons[int(code)]) and reason.format(error))
            for beta, delta, error, moved, code in self._rows[~self._rows[:, 0].isnan()].tolist()
        ]

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Measure delta on held-out data, and move beta if delta exceeds its standard error.

        Args:
            logits: plain logits of held-out samples, shape ``(M, C)``.
            labels: their classes, shape ``(M,)``. Pass the same tensor each time: it is examined once, and nothing else
                waits for a GPU.
        """
        held_out = self._examine(logits, labels)
        if held_out.determined:
            found = held_out.fit(logits)
        else:
            none = logits.new_full((2, 2), math.nan, dtype=torch.float64)
            found = Solution(none[0], none, none[0, 0], none[0, 0], none[0, 0].isnan())
        problems = held_out.problems(found)
        code = torch.cat([problems, torch.ones_like(problems[:1])]).int().argmax()  # the first one
        measured = torch.stack([found.delta, found.std_error, code.double()])
        Ranks.of_this_process().agree([measured])
        delta, error, code = measured.to(self.beta.device)
        moves = (code == len(_PROBLEMS)) & (delta.abs() > error)
        beta = (self.beta + self.gain * delta).clamp(min=0).where(moves, self.beta)
        row = torch.stack([beta, delta, error, (beta != self.beta).double(), code])
        self._rows.copy_(torch.cat([self._rows[1:], row[None]]))
        self.beta.copy_(beta)
        self.loss.set_beta(self.beta)

    def adjust(self, logits: Tensor) -> Tensor:
        r"""Return :math:`z_c - \delta \log N_c`, up to a constant: the shift that the last update found missing.

        Args:
            logits: plain logits of the model that was measured last, shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        """
        counts = self.loss.counts
        check_logits(logits, counts.numel())
        shift = scaled_log_counts(counts, -self.delta.to(counts.device))
        return logits + along_classes(shift.to(logits.device, torch.float32), logits)

    def extra_repr(self) -> str:
        """The gain."""
        return f"gain={self.gain:g}"

    def _examine(self, logits: Tensor, labels: Tensor) -> HeldOut:
        """The labels with what depends on them alone, from the last call if they are the same tensor."""
        counts = self.loss.counts
        check_logits(logits, counts.numel())
        if logits.ndim != 2:
            raise ValueError(f"Expected `logits` of shape (M, C), but got shape {tuple(logits.shape)}.")
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != logits.shape[:1]:
            raise ValueError(
                f"Expected `labels` to be a tensor of {len(logits)} class indices, one per row of `logits`, but got "
                f"{describe(labels)}."
            )
        version = -1 if labels.is_inference() else labels._version  # of what may be changed in place
        if (
            self._held_out is None
            or self._seen is None
            or self._seen[0] is not labels
            or self._seen[1:] != (version, logits.device)
            or version < 0
        ):
            indices = labels.to(logits.device, torch.int64)
            check_label_range("labels", indices, counts.numel())
            self._held_out = HeldOut(indices, counts, counts > 0, Ranks.of_this_process().sum)
            self._seen = labels, version, logits.device
        return self._held_out


def _apply_beta(auto: nn.Module, _: object) -> None:
    """Set the loss to the beta that was loaded, after the counts of the loss."""
    assert isinstance(auto, AutoBeta)
    auto._held_out = None  # the counts may be others
    auto.loss.set_beta(auto.beta)

r"""scikit-learn estimators for long-tailed data. They need the extra ``sklearn``.

:class:`PriorAdjustedClassifier` corrects any classifier with ``predict_proba``. :class:`LongTailClassifier` trains a
linear or MLP classifier with Class-Balanced Softmax. Both measure beta on data that was held out of training, with
:func:`longtail.fit_shift`, and predict as if every class were equally frequent.

Cross entropy with a free intercept absorbs every shift :math:`\beta \log N`, so logistic regression trained with
Class-Balanced Softmax is ordinary logistic regression with the intercept minus :math:`\beta \log N`. Therefore one fit
per fold measures beta, and no fit is repeated for another beta.
"""

import itertools
import math
import numbers
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.utils import Tags, _safe_indexing, assert_all_finite, check_random_state, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)
from torch import Tensor, nn

from longtail._checks import Vector, as_counts, as_distribution, by_class, check_integer, check_number, describe, shown
from longtail.beta import ShiftFit, fit_shift
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.posthoc import adjust_logits

__all__ = ["LongTailClassifier", "PriorAdjustedClassifier"]

Array: TypeAlias = np.ndarray[Any, Any]
Beta: TypeAlias = float | Literal["auto"]

_MISSING = {"None", "nan", "<NA>", "NaT"}  # values of pandas that are no label
_SMOOTHING = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # tried where an estimator predicts probabilities of zero
_STRENGTHS = (3.0, 10.0, 30.0, 100.0)  # C of a linear LongTailClassifier
_MLP_STRENGTH = 0.1  # and of an MLP, whose features are longer
_ENOUGH = 10_000  # held-out rows after which LongTailClassifier trains no further folds


class _BalancedPosterior(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators do with the logits of their model: find beta, and predict for balanced classes."""

    _trained_with = 0.0  # the beta that the logits of the model are corrected for already

    def predict(self, X: Any) -> Array:
        """Return the most likely class of each row if every class is equally frequent.

        Args:
            X: features, as for ``fit``.
        """
        best = self._balanced(X).argmax(1).numpy()
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any, prior: Vector | None = None) -> Array:
        """Return class probabilities, shape ``(M, C)``, for classes as frequent as ``prior`` says.

        Args:
            X: features, as for ``fit``.
            prior: class frequencies where the model is used, up to a factor: in the order of ``classes_``, or by label
                as ``y.value_counts()`` has them; default: all the same. ``predict`` always uses the default.
        """
        logits = self._balanced(X)
        logits = logits / self.temperature_
        if prior is not None:
            frequencies = as_distribution(
                "prior", by_class("prior", prior, self.classes_.tolist()), len(self.classes_), zeros=True
            )
            logits = logits + frequencies.log()
        return torch.softmax(logits, 1).numpy()

    def _balanced(self, X: Any) -> Tensor:
        """Logits minus what beta still requires, float64."""
        check_is_fitted(self)
        tau = self.beta_ - self._trained_with
        return adjust_logits(self._logits(X), self.counts_, tau, zero_counts="mask")

    def _logits(self, X: Any) -> Tensor:
        raise NotImplementedError

    def _examine(self, y: Any, sample_weight: Any, X: Any) -> tuple[Array, Array, Array]:
        """Set ``classes_`` and return labels, class indices and weights."""
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        labels = y.tolist() if y.dtype.kind == "O" else []
        missing = [row for row, label in enumerate(labels) if not isinstance(label, str) and str(label) in _MISSING]
        if missing:
            raise ValueError(
                f"Expected a label in every row of `y`, but {len(missing)} have none, first row {missing[0]}."
            )
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = self.classes_[np.bincount(codes, weights) > 0]
        if len(used) < 2:
            raise ValueError(
                f"Expected `y` to have two or more classes with a sample_weight above 0, but got one class: {used}."
            )
        return y, codes, weights

    def _assess(self, logits: Tensor, codes: Array, weights: Array) -> tuple[ShiftFit, float]:
        """The shift of held-out logits, and the cross entropy with it, every class weighted alike."""
        if not len(codes):
            return _NO_FOLD, math.inf
        shift = fit_shift(logits, codes, self.counts_, sample_weight=weights)
        delta, temperature = (1 - self._trained_with, 1.0) if shift.problem else (shift.delta, shift.temperature)
        present = np.isin(np.arange(len(self.classes_)), codes)
        z = adjust_logits(logits, np.where(present, self.counts_, 0), delta, zero_counts="mask") / temperature
        losses = nn.functional.cross_entropy(z, torch.from_numpy(codes), reduction="none").numpy()
        return shift, float(np.average(losses, weights=weights / np.bincount(codes, weights)[codes]))

    def _use_beta(self, beta: float, shift: ShiftFit | None = None) -> None:
        self.beta_, self.temperature_, self.shift_ = beta, 1.0, shift

    def _use_shift(self, shift: ShiftFit) -> None:
        """Set beta to what was measured, or to 1 with a warning."""
        self._use_beta(1.0, shift)
        if shift.problem is None:
            self.beta_, self.temperature_ = self._trained_with + shift.delta, shift.temperature
        elif np.ptp(self.counts_[self.counts_ > 0]) > 0:  # otherwise all betas are the same
            warnings.warn(
                f"beta could not be measured: {shift.problem}; beta = 1 is used, which is right for a model that fits "
                "the class frequencies of its training data",
                UserWarning,
                stacklevel=3,
            )


class PriorAdjustedClassifier(MetaEstimatorMixin, _BalancedPosterior):  # type: ignore[misc]
    r"""Any classifier with ``predict_proba``, corrected for rare classes: :math:`\log p_c - \beta \log N_c`.

    ``fit`` predicts every training row with a model that was not trained on it (cross-validation), measures beta and a
    temperature on these predictions with :func:`longtail.fit_shift`, and fits the estimator on all rows. The
    estimator itself does not change, so its plain predictions remain available as ``estimator_``.

    A model that is trained already is passed as ``FrozenEstimator(model)``, with the ``counts`` of its training data;
    ``fit`` then takes held-out data.

    Probabilities of zero, as forests and nearest neighbours have, say only that few neighbours were counted, and a
    shift cannot correct them. They become :math:`p_c + \varepsilon / C`, with the epsilon whose corrected predictions
    have the lowest cross entropy on the held-out rows, every class weighted alike. A class without held-out rows is not
    smoothed but scaled, to :math:`p_c + \varepsilon p_c`, with a warning: a zero stays zero.

    Args:
        estimator: a classifier with ``predict_proba``, or a ``FrozenEstimator`` of a fitted one.
        beta: how much of log N to subtract, or ``"auto"``. A number needs no cross-validation.
        cv: number of folds, a scikit-learn splitter, or an iterable of splits. With a number, folds are stratified, in
            the order of the rows (and keep ``groups`` together); a class with a single row is in every training part
            and in no held-out one.
        counts: training examples per class, in the order of ``classes_`` or by label, as ``y.value_counts()`` has them;
            default: those of ``y``, or the sums of ``sample_weight``. Needed for a ``FrozenEstimator``.
        smoothing: epsilon, or ``"auto"``: measured if a held-out probability is zero, otherwise 0.
        n_jobs: folds fitted at the same time, as in scikit-learn.

    Attributes:
        classes_: labels.
        counts_: training examples per class.
        beta_: the beta used. 1, with a warning, if it could not be measured.
        shift_: what was measured, a :class:`longtail.ShiftFit` with the standard error of beta and, in ``problem``, why
            it was not used; ``None`` if beta was given.
        temperature_: by which the logits are divided for ``predict_proba``; 1 if beta was given.
        smoothing_: the epsilon used.
        estimator_: the estimator, fitted on all rows.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = make_classification(2000, weights=[0.95], flip_y=0.05, random_state=0)
        >>> model = PriorAdjustedClassifier(LogisticRegression()).fit(X, y)
        >>> round(model.beta_, 1)
        0.9
    """

    def __init__(
        self,
        estimator: Any,
        *,
        beta: Beta = "auto",
        cv: Any = 5,
        counts: Vector | None = None,
        smoothing: Beta = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.beta = beta
        self.cv = cv
        self.counts = counts
        self.smoothing = smoothing
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Measure beta and fit the estimator; a frozen estimator is only measured.

        Args:
            X: features, whatever the estimator accepts.
            y: labels.
            sample_weight: weight per row. The count of a class is the sum of its weights.
            groups: rows of the same group are held out together, for example images of the same patient.
        """
        beta = None if _is_auto("beta", self.beta) else check_number("beta", self.beta, minimum=-math.inf)
        epsilon = None if _is_auto("smoothing", self.smoothing) else check_number("smoothing", self.smoothing)
        if not hasattr(self.estimator, "predict_proba"):
            raise ValueError(
                f"Expected `estimator` to have predict_proba, but got {describe(self.estimator)}; "
                "CalibratedClassifierCV adds it."
            )
        frozen = isinstance(self.estimator, FrozenEstimator)
        if sample_weight is not None and not frozen and not has_fit_parameter(self.estimator, "sample_weight"):
            raise ValueError(f"Expected an `estimator` with sample_weight in fit, but got {describe(self.estimator)}.")
        X, y, groups = indexable(X, y, groups)
        y, codes, weights = self._examine(y, sample_weight, X)
        given = None if sample_weight is None else weights
        if frozen:
            codes = self._frozen_codes(y)
            self.estimator_ = self.estimator
        else:
            self.estimator_ = self._fit_rows(X, y, given, np.flatnonzero(weights > 0))
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        number = len(self.classes_)
        self.counts_ = np.bincount(codes, weights, minlength=number)
        if self.counts is not None:
            self.counts_ = as_counts(by_class("counts", self.counts, self.classes_), number, fractions=True).numpy()
        self.smoothing_, self._smooth = epsilon or 0.0, np.ones(number, bool)
        if beta is not None:
            self._use_beta(beta)
            return self
        if frozen:
            rows = np.flatnonzero(weights > 0)
            found = self._probabilities(self.estimator_, _safe_indexing(X, rows))
        else:
            folds = list(_folds(self.cv, X, codes, weights, groups))
            parts = Parallel(n_jobs=self.n_jobs)(delayed(self._predict_fold)(X, y, given, fold) for fold in folds)
            rows = np.concatenate([np.empty(0, int), *(test for _, test in folds)])
            found = np.concatenate([np.empty((0, number)), *parts])
        tried: Sequence[float] = (self.smoothing_,)
        if epsilon is None and (found == 0).any():
            tried, self._smooth = _SMOOTHING, np.isin(np.arange(number), codes[rows])
        assessed = [self._assess(_smoothed(found, each, self._smooth), codes[rows], weights[rows]) for each in tried]
        best = int(np.argmin([loss for _, loss in assessed]))
        self.smoothing_ = tried[best]
        self._use_shift(assessed[best][0])
        absent = self.classes_[~self._smooth & (self.counts_ > 0)].tolist()
        if absent:
            warnings.warn(
                f"no held-out rows of {shown(absent)}: probabilities of these classes are not smoothed, so zeros stay "
                "zeros; hold out rows of every class if you can",
                UserWarning,
                stacklevel=2,
            )
        return self

    def _logits(self, X: Any) -> Tensor:
        return _smoothed(self._probabilities(self.estimator_, X), self.smoothing_, self._smooth)

    def _fit_rows(self, X: Any, y: Array, weights: Array | None, rows: Array) -> Any:
        """A clone of the estimator, fitted on some rows."""
        options = {} if weights is None else {"sample_weight": weights[rows]}
        return clone(self.estimator).fit(_safe_indexing(X, rows), y[rows], **options)

    def _predict_fold(self, X: Any, y: Array, weights: Array | None, fold: tuple[Array, Array]) -> Array:
        """Probabilities of the held-out rows of a fold."""
        return self._probabilities(self._fit_rows(X, y, weights, fold[0]), _safe_indexing(X, fold[1]))

    def _probabilities(self, estimator: Any, X: Any) -> Array:
        """Predicted probabilities, ``(M, C)``; a class that the estimator has not seen gets the smallest of the row."""
        known = np.asarray(estimator.predict_proba(X), np.float64)
        found = np.repeat(known.min(1, keepdims=True), len(self.classes_), 1)
        found[:, np.searchsorted(self.classes_, estimator.classes_)] = known
        return found

    def _frozen_codes(self, y: Array) -> Array:
        """Set ``classes_`` to those of the frozen estimator, and return indices into them."""
        if self.counts is None:
            raise ValueError(
                "Expected `counts`, the training examples per class, with a FrozenEstimator, but got None; "
                "`fit` has only held-out data to count."
            )
        self.classes_ = np.unique(self.estimator.classes_)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"Expected `y` to have classes of the frozen estimator, but got {shown(unknown.tolist())}."
            )
        return np.searchsorted(self.classes_, y)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


class LongTailClassifier(_BalancedPosterior):
    r"""A linear or MLP classifier of features, trained with Class-Balanced Softmax.

    The linear one (``hidden=()``) minimises :math:`\sum_i w_i L_i + \lVert W \rVert^2 / (2 C)` by L-BFGS, like
    ``LogisticRegression``, with a free intercept. The MLP minimises the same loss by AdamW in minibatches, with a
    learning rate that falls to zero along a cosine.

    Features are centred and divided by one number inside, so that their unit does not matter. Each keeps its relative
    scale, which was better for pixels and sentence features than equal variances; put a ``StandardScaler`` before it if
    features have different units.

    Args:
        hidden: units per hidden layer, for example ``(256,)``; ``()`` is a linear classifier.
        beta: beta of Class-Balanced Softmax, or ``"auto"``: training uses beta 1, and what held-out rows still need is
            subtracted.
        C: inverse strength of the penalty on weights; biases have none. ``"auto"``: for a linear classifier that of 3,
            10, 30 and 100 with the lowest cross entropy on the held-out rows, every class weighted alike; 0.1 for an
            MLP.
        cv: folds, as in :class:`PriorAdjustedClassifier`. No further ones are trained once 10,000 rows were held
            out.
        max_iter: L-BFGS iterations of the linear classifier.
        tol: largest gradient at which L-BFGS stops.
        epochs: epochs of the MLP.
        learning_rate: initial learning rate of the MLP.
        batch_size: rows per step of the MLP.
        random_state: seed of the MLP. The linear classifier uses no random numbers.
        device: where to train and predict.

    ``classes_``, ``counts_``, ``beta_``, ``shift_`` and ``temperature_`` are as in :class:`PriorAdjustedClassifier`;
    ``shift_.delta`` is ``beta_ - 1``.

    Attributes:
        C_: the C used.
        model_: the trained ``nn.Module``; it maps features to logits of beta 1.
        n_iter_: L-BFGS iterations or epochs of the final fit.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(2000, weights=[0.95], flip_y=0.05, random_state=0)
        >>> model = LongTailClassifier().fit(X, y)
        >>> model.predict_proba(X[:2], prior=[0.95, 0.05]).shape
        (2, 2)
    """

    _trained_with = 1.0

    def __init__(
        self,
        hidden: Sequence[int] = (),
        *,
        beta: Beta = "auto",
        C: Beta = "auto",
        cv: Any = 5,
        max_iter: int = 200,
        tol: float = 1e-4,
        epochs: int = 50,
        learning_rate: float = 3e-3,
        batch_size: int = 128,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.hidden = hidden
        self.beta = beta
        self.C = C
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train on all rows, and measure beta on models that are trained without some of them.

        Args:
            X: features, ``(N, D)``, dense. float32 is trained in float32, anything else in float64.
            y: labels.
            sample_weight: weight per row. The count of a class is the sum of its weights.
            groups: rows of the same group are held out together, for example images of the same patient.
        """
        beta = None if _is_auto("beta", self.beta) else check_number("beta", self.beta, minimum=-math.inf)
        if not isinstance(self.hidden, list | tuple):
            raise ValueError(f"Expected `hidden` to be units per layer as (256,), but got {describe(self.hidden)}.")
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), force_writeable=True)
        _, codes, weights = self._examine(y, sample_weight, X)
        self.counts_ = np.bincount(codes, weights)
        if _is_auto("C", self.C):
            strengths = (_MLP_STRENGTH,) if self.hidden else _STRENGTHS
        else:
            strengths = (check_number("C", self.C, minimum=1e-300),)
        data = _Data(X, codes, weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shift, start = None, None
        self.C_ = strengths[0]
        if beta is None or len(strengths) > 1:
            folds = _folds(self.cv, X, codes, weights, groups)
            self.C_, shift, start = self._measure(data, folds, seed, strengths)
        self.model_, self.n_iter_ = self._train(data.take(weights > 0), seed, self.C_, start)
        if not self.hidden and self.n_iter_ >= self.max_iter:
            warnings.warn(
                f"L-BFGS stopped after max_iter={self.max_iter} iterations, before the gradient fell below tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        if beta is not None:
            self._use_beta(beta)
        elif shift is not None:
            self._use_shift(shift)
        return self

    def _measure(
        self, data: "_Data", folds: Iterator[tuple[Array, Array]], seed: int, strengths: Sequence[float]
    ) -> tuple[float, ShiftFit, "_Head | None"]:
        """The best C, the shift that held-out rows still need with it, and a head to start from."""
        rows, logits = np.empty(0, int), [torch.empty(0, len(self.classes_), dtype=torch.float64) for _ in strengths]
        best, shift, heads = 0, _NO_FOLD, list["_Head | None"]()
        for train, test in folds:
            known, new = data.take(train), data.take(test)
            absent = np.isin(np.arange(len(self.classes_)), known.codes, invert=True)
            rows, heads = np.append(rows, test), [None]
            for number, strength in enumerate(strengths):  # each starts from the one before
                head, _ = self._train(known, seed, strength, heads[-1])
                found = self._apply(head, new.x)
                found[:, absent] = found[:, ~absent].amin(1, keepdim=True)
                logits[number] = torch.cat([logits[number], found])
                heads.append(head)
            assessed = [self._assess(each, data.codes[rows], data.weights[rows]) for each in logits]
            best = int(np.argmin([loss for _, loss in assessed]))
            shift = assessed[best][0]
            if len(rows) >= _ENOUGH:
                break
        return strengths[best], shift, heads[best + 1] if heads else None

    def _logits(self, X: Any) -> Tensor:
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32), force_writeable=True)
        return self._apply(self.model_, X)

    def _apply(self, model: "_Head", X: Array) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(torch.from_numpy(X).to(self.device, model.mean.dtype))
        return logits.double().cpu()

    def _train(self, data: "_Data", seed: int, strength: float, start: "_Head | None") -> tuple["_Head", int]:
        """A head trained with beta 1, and its number of iterations or epochs."""
        x, labels, w = (torch.from_numpy(array).to(self.device) for array in data)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
            head = _Head(x, w, self.hidden, len(self.classes_))
        if start is not None and not self.hidden:
            head.layers.load_state_dict(start.layers.state_dict())
        counts = np.bincount(data.codes, data.weights, minlength=len(self.classes_))
        criterion = ClassBalancedSoftmaxLoss(counts, beta=1.0, reduction="none", zero_counts="mask").to(self.device)
        matrices = [p for p in head.parameters() if p.ndim > 1]
        decay = 1 / (strength * float(w.sum()))
        w = (w / w.mean()).to(x.dtype)
        x = head.standardize(x)

        def loss(rows: Any = slice(None)) -> Tensor:
            penalty = sum((p.square().sum() for p in matrices), torch.zeros((), device=x.device))
            fit: Tensor = (w[rows] * criterion(head.layers(x[rows]), labels[rows])).mean()
            return fit + decay / 2 * penalty

        steps = self._descend(loss, head, len(x), seed) if self.hidden else self._minimize(loss, head)
        return head.requires_grad_(False).eval(), steps

    def _minimize(self, loss: Any, head: nn.Module) -> int:
        optimizer = torch.optim.LBFGS(
            head.parameters(),
            max_iter=check_integer("max_iter", self.max_iter, minimum=1),
            max_eval=25 * self.max_iter,
            tolerance_grad=check_number("tol", self.tol),
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return float(value.detach())

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return int(next(iter(optimizer.state.values()))["n_iter"])

    def _descend(self, loss: Any, head: nn.Module, rows: int, seed: int) -> int:
        epochs, size = (
            check_integer("epochs", self.epochs, minimum=1),
            check_integer("batch_size", self.batch_size, minimum=1),
        )
        optimizer = torch.optim.AdamW(head.parameters(), lr=self.learning_rate, weight_decay=0)
        steps = epochs * math.ceil(rows / size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(rows, generator=generator), size):
                optimizer.zero_grad()
                loss(batch).backward()
                optimizer.step()
                schedule.step()
        return epochs


class _Data(NamedTuple):
    """Rows to train on."""

    x: Array
    codes: Array
    weights: Array

    def take(self, rows: Array) -> "_Data":
        """Some of the rows."""
        return _Data(*(array[rows] for array in self))


class _Head(nn.Module):
    """Layers on standardised features; a linear one starts at zero."""

    mean: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, weights: Tensor, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        share = (weights / weights.sum()).to(x.dtype)
        self.register_buffer("mean", share @ x)
        scale = torch.linalg.vector_norm(share.sqrt()[:, None] * (x - self.mean)) / (x.shape[1] ** 0.5 if hidden else 1)
        self.register_buffer("scale", torch.where(scale > 0, scale, 1.0))
        sizes = [x.shape[1], *(check_integer("hidden", units, minimum=1) for units in hidden), classes]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, dtype=x.dtype), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        if not hidden:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)
        self.to(x.device)

    def standardize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.standardize(x))  # type: ignore[no-any-return]


_NO_FOLD = ShiftFit(math.nan, 0.0, math.nan, math.inf, 0, "no class has two samples, so none can be held out")


def _is_auto(name: str, value: object) -> bool:
    """Whether a setting is "auto"; other strings are refused."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"Expected `{name}` to be a number or 'auto', but got {value!r}.")
    return isinstance(value, str)


def _folds(cv: Any, X: Any, codes: Array, weights: Array, groups: Any) -> Iterator[tuple[Array, Array]]:
    """Rows to train on and to hold out; held-out rows of a class that is not in the training rows are left out."""
    used = np.flatnonzero(weights > 0)
    if isinstance(cv, numbers.Integral) and groups is None:
        number = np.bincount(codes[used])
        alone = used[number[codes[used]] == 1]
        rest = used[number[codes[used]] > 1]
        if not len(rest):
            return
        splitter = StratifiedKFold(min(int(cv), int(number.max())))
        with warnings.catch_warnings():  # of classes with fewer members than folds, which is all right here
            warnings.simplefilter("ignore", UserWarning)
            splits = [(rest[train], rest[test]) for train, test in splitter.split(rest, codes[rest])]
        splits = [(np.sort(np.append(train, alone)), test) for train, test in splits]
    elif isinstance(cv, numbers.Integral):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            splits = list(StratifiedGroupKFold(int(cv)).split(X, codes, groups))
    else:
        splits = list(check_cv(cv, codes, classifier=True).split(X, codes, groups))
    for train, test in splits:
        kept = train[weights[train] > 0]
        held_out = test[(weights[test] > 0) & np.isin(codes[test], codes[kept])]
        if len(held_out):
            yield kept, held_out


def _smoothed(probabilities: Array, epsilon: float, smooth: Array) -> Tensor:
    """log (p + epsilon / C) for classes to smooth, log (p + epsilon p) for others, float64."""
    added = np.where(smooth, 1 / probabilities.shape[1], probabilities)
    return torch.from_numpy(probabilities + epsilon * added).log()

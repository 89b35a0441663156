"""What the tests of the losses share: references in float64 numpy, drawn problems, and what an error must look like.

Nothing here uses the library, nor torch's own losses: the references are written from the definitions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

EPS32 = 2.0**-23
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

property_test = settings(deadline=None, max_examples=40, derandomize=True)
"""Settings of every property test: the same examples in every run."""


def array(tensor: Any) -> np.ndarray:
    """A tensor of any dtype as float64 (integers as int64), or None."""
    if isinstance(tensor, Tensor):
        return tensor.detach().to(torch.float64 if tensor.is_floating_point() else torch.int64).numpy()
    return np.asarray(tensor)


def classes_last(values: np.ndarray) -> np.ndarray:
    """(C,), (N, C) or (N, C, d1, …) as (samples, C)."""
    if values.ndim == 1:
        return values[None]
    return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log of the softmax over the last axis."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def cross_entropy(
    logits: np.ndarray,
    target: np.ndarray,
    *,
    shift: np.ndarray | float = 0.0,
    weight: np.ndarray | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    gamma: float = 0.0,
) -> np.ndarray:
    """Cross entropy of ``logits + shift`` as PyTorch documents it, class term by class term; focal if ``gamma`` > 0."""
    shape = target.shape if target.dtype.kind == "i" else logits.shape[:1] + logits.shape[2:] if logits.ndim > 1 else ()
    rows = classes_last(logits) + shift
    samples, classes = rows.shape
    log_p = log_softmax(rows) if samples else rows
    weight = np.ones(classes) if weight is None else weight
    with np.errstate(divide="ignore", invalid="ignore"):  # a saturated class has 0 ** 0 and, elsewhere, a log of 0
        terms = -weight * (-np.expm1(log_p)) ** gamma * log_p  # what each class would cost as the label
    if target.dtype.kind == "i":
        losses, shares = np.zeros(samples), np.zeros(samples)
        for n, label in enumerate(target.reshape(-1)):
            if label != ignore_index:
                losses[n] = (1 - label_smoothing) * terms[n, label]
                if label_smoothing:
                    losses[n] += label_smoothing / classes * terms[n].sum()
                shares[n] = weight[label]
        share = shares.sum()
    else:
        smooth = (1 - label_smoothing) * classes_last(target) + label_smoothing / classes
        losses, share = (smooth * terms).sum(-1), samples
    if reduction == "none":
        return losses.reshape(shape)
    with np.errstate(invalid="ignore"):  # the mean over nothing is 0 / 0
        return losses.sum() if reduction == "sum" else np.float64(losses.sum()) / np.float64(share)


def class_shift(counts: np.ndarray, beta: float) -> np.ndarray:
    """Beta log N, as the paper has it."""
    return beta * np.log(np.asarray(counts, dtype=np.float64))


@dataclass
class Problem:
    """Logits, targets, counts and options, as a loss gets them."""

    logits: Tensor
    target: Tensor
    counts: list[int]
    beta: float
    options: dict[str, Any]

    @property
    def reference_options(self) -> dict[str, Any]:
        """The options as the reference takes them."""
        return {k: array(v) if isinstance(v, Tensor) else v for k, v in self.options.items()}

    def expected(self, shift: np.ndarray | float = 0.0, **more: Any) -> np.ndarray:
        """The reference's loss."""
        return cross_entropy(array(self.logits), array(self.target), shift=shift, **self.reference_options, **more)

    def check(self, loss: Tensor, expected: np.ndarray, shift: np.ndarray | float = 0.0) -> None:
        """Equal to float32's precision, of which the shift is; float64 for float64 logits, float32 otherwise."""
        assert loss.dtype == (torch.float64 if self.logits.dtype == torch.float64 else torch.float32)
        size = 1 + np.abs(classes_last(array(self.logits)) + shift).max(initial=0.0)
        terms = self.target.numel() if self.options["reduction"] == "sum" else 1
        np.testing.assert_allclose(array(loss), expected, rtol=2e-5, atol=32 * EPS32 * size * max(terms, 1))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    probabilities: bool = True,
    zeros: bool = False,
    scale: float | None = None,
) -> Problem:
    """Any shape, dtype, target and option that ``F.cross_entropy`` takes, with counts of 1 to 1e9.

    With ``zeros`` some classes have no example, and no target is of those.
    """
    classes = draw(st.integers(2 if zeros else 1, 6))
    samples = draw(st.sampled_from([(), (0,), (1,), (5,), (3, 2), (2, 2, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(dtypes))
    counts = np.floor(10 ** rng.uniform(0, draw(st.sampled_from([0.0, 2.0, 9.0])), classes)).astype(int)
    present = np.arange(classes)
    if zeros:
        present = np.sort(rng.choice(classes, rng.integers(1, classes), replace=False))
        counts[np.setdiff1d(np.arange(classes), present)] = 0

    scale = draw(st.sampled_from([0.1, 3.0, 40.0])) if scale is None else scale
    shape = (*samples[:1], classes, *samples[1:])
    logits = torch.tensor(scale * rng.standard_normal(shape)).to(dtype)

    options: dict[str, Any] = {"reduction": draw(st.sampled_from(["mean", "sum", "none"]))}
    if draw(st.booleans()):
        options["label_smoothing"] = draw(st.sampled_from([0.1, 0.5, 1.0]))
    if draw(st.booleans()):
        options["weight"] = torch.tensor(rng.uniform(0.1, 3.0, classes)).to(draw(st.sampled_from(dtypes)))
    if probabilities and draw(st.booleans()):
        share = np.zeros((*samples, classes))
        share[..., present] = rng.dirichlet(np.ones(present.size), samples)
        target = torch.tensor(np.moveaxis(share, -1, len(samples[:1]))).to(draw(st.sampled_from(dtypes)))
    else:
        target = torch.tensor(present[rng.integers(present.size, size=samples)])
        if draw(st.booleans()):
            options["ignore_index"] = ignore = draw(st.sampled_from([-100, -1, classes - 1, 255]))
            target[torch.tensor(np.asarray(rng.random(samples) < draw(st.sampled_from([0.3, 1.0]))))] = ignore
        elif draw(st.booleans()):
            target = target.to(draw(st.sampled_from([torch.int32, torch.int16, torch.uint8])))
    beta = draw(st.sampled_from([0.0, 0.3, 1.0, 1.5, 5.0]))
    return Problem(logits, target, counts.tolist(), beta, options)


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], *words: object) -> Iterator[None]:
    """The block raises ``error``, and says in one sentence on one line what was wrong: each of ``words`` is in it."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"
    assert "\n" not in message, f"more than one line: {message!r}"
    assert message.endswith("."), f"no full stop: {message!r}"
    assert not message.endswith(".."), f"two full stops: {message!r}"
    assert ". " not in message, f"more than one sentence: {message!r}"
    assert len(message) < 300, f"too long to read: {message!r}"

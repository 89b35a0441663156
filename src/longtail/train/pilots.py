"""What pilots, runs that are trained before a run, are for: to choose the weight decay, and to measure beta.

``beta = "auto"`` trains with beta = 1, measures the shift that held-out data still needs, and subtracts it. Held-out
data is the validation split. If there is none, or if it is small, pilots are trained: each holds out another tenth of
the images. All held-out logits are pooled.

``weight_decay = "auto"`` trains a pilot with each of a few, and uses the one with the highest recall over all classes
on held-out data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.beta import ShiftFit, fit_shift
from longtail.posthoc import adjust_logits

DECAYS = (1.0, 0.1, 3.0, 0.01)
"""What is tried, each in a pilot; of equally good ones the first is used."""
FOLDS = 10
"""Number of folds. Each pilot holds out one."""
NO_PILOTS = "all classes that have two images or more have the same count"
"""Why no pilot is trained."""
_MOST = 5  # pilots
_SAMPLES = 100  # held-out samples that a slope needs

Rows = tuple[Tensor, Tensor]
"""Logits and labels."""


def pilots_needed(counts: Tensor, validation: Tensor | None = None) -> int:
    r"""The number of pilots, 0 to 5, for these training examples and validation samples per class.

    The shift is a slope against :math:`\ell_c = \log N_c`, less its mean. With :math:`n_c` held-out samples per class
    it is as certain as with :math:`C \sum_c \ell_c^2 / \sum_c (\ell_c^2 / n_c)` samples that are spread evenly over C
    classes. Pilots are trained until there are 100 of these; each holds out a tenth of a class, at least one sample,
    none of a class with a single one. No pilot is trained if all classes have the same count.

    Example:
        >>> [pilots_needed(torch.tensor(counts)) for counts in ([9000, 900], [5000, 500, 50], [90, 9], [7, 7])]
        [1, 4, 5, 0]
        >>> pilots_needed(torch.tensor([5000, 500, 50]), validation=torch.tensor([100, 100, 100]))
        0
    """
    held = torch.where(counts < FOLDS, counts.clamp(max=2) - 1.0, counts / FOLDS)
    each, there = _even_samples(counts, held), 0.0
    if validation is not None and bool((validation[held > 0] > 0).all()):  # all classes that a pilot can hold out
        there = _even_samples(counts, validation)
    return 0 if each == 0 else min(_MOST, max(0, math.ceil((_SAMPLES - there) / each - 1e-9)))


def _even_samples(counts: Tensor, held: Tensor) -> float:
    """The number of samples, spread evenly over the classes, that measure the shift as certainly as those held out."""
    log_counts, held = counts[held > 0].double().log(), held[held > 0].double()
    leverage = (log_counts - log_counts.mean()).square()
    found = len(held) * leverage.sum() / (leverage / held).sum()
    return float(found.nan_to_num())  # NaN if all counts are the same


def pooled(rows: Sequence[Rows]) -> Rows:
    """All held-out rows together, without images that were not read, whose label is below 0."""
    logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return logits[labels >= 0], labels[labels >= 0]


def pooled_fit(rows: Sequence[Rows], counts: Tensor) -> ShiftFit:
    """The shift that held-out logits need, all rows together."""
    return fit_shift(*pooled(rows), counts)


def effect(rows: Sequence[Rows], counts: Tensor, tau: float) -> dict[str, list[float]]:
    """Recall over all classes and accuracy on the held-out rows, before and after the shift is subtracted."""
    logits, labels = pooled(rows)
    found: dict[str, list[float]] = {"recall": [], "accuracy": []}
    for strength in (0.0, tau):
        right = (adjust_logits(logits, counts, strength).argmax(1) == labels).double()
        samples = labels.bincount()
        found["recall"].append(float((labels.bincount(right) / samples)[samples > 0].mean()))
        found["accuracy"].append(float(right.mean()))
    return found


def summary(fit: ShiftFit) -> dict[str, Any]:
    """What a log and a result say about a measurement: beta, or why it stays at 1."""
    if fit.problem is not None:
        return {"beta": 1.0, "problem": fit.problem}
    return {"beta": 1.0 + fit.tau, "measured": 1.0 + fit.delta, "std_error": fit.std_error}


def describe_beta(found: Mapping[str, Any]) -> str:
    """How beta was measured, in words, from the ``auto_beta`` of a result."""
    if "problem" in found:
        return f"beta = 1, because it could not be measured: {found['problem']}"
    where = ["validation data"] if found["validation"] else []
    if found["pilots"]:
        where.append(f"the held-out samples of {found['pilots']} pilot run{'s' * (found['pilots'] > 1)}")
    measured = f"{found['measured']:.2f} ± {found['std_error']:.2f} measured on {' and '.join(where)}"
    text = f"beta = {found['beta']:.2f}, shrunk towards 1 from {measured}"
    if "held_out" in found:
        recall, accuracy = ([100 * value for value in found["held_out"][name]] for name in ("recall", "accuracy"))
        text += (
            f"; on these samples it changes recall over all classes from {recall[0]:.1f} to {recall[1]:.1f} % and "
            f"accuracy from {accuracy[0]:.1f} to {accuracy[1]:.1f} %"
        )
        if recall[1] < recall[0]:
            text += "; as recall falls, compare it with balanced-softmax (`longtail study`) before you use it"
    return text


def choose_decay(recalls: Sequence[float]) -> dict[str, Any]:
    """The weight decay with the highest recall on held-out data, and all recalls, as a result records them.

    Args:
        recalls: over all classes, in the order of :data:`DECAYS`.

    Example:
        >>> choose_decay([0.5, 0.6, 0.4, 0.6])["chosen"]
        0.1
    """
    found = dict(zip(DECAYS, recalls, strict=True))
    return {"chosen": max(found, key=found.__getitem__), "recall": {f"{one:g}": found[one] for one in sorted(found)}}


def describe_decay(found: Mapping[str, Any]) -> str:
    """How the weight decay was chosen, in words, from the ``auto_weight_decay`` of a result."""
    each = ", ".join(f"{decay}: {100 * recall:.1f}" for decay, recall in found["recall"].items())
    return f"weight decay {found['chosen']:g}, chosen by recall on held-out data ({each} %)"

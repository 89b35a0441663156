"""A diagnosis in plain words: what is wrong, why, and what to try next."""

import math
from typing import Literal

from longtail.diagnose.advice import TrainedShift, trained_shift
from longtail.diagnose.diagnose import Diagnosis
from longtail.methods import METHODS
from longtail.study.runs import method_title

__all__ = ["next_steps", "said_of"]


_LEARNT = 0.9  # recall on training data from which a group counts as learnt
_PLAIN = {"softmax", "tau-norm", "logit-adjust-posthoc", "cbs", "logit-adjust"}  # without a shift: cross entropy
_APART = 0.05  # difference in recall from which one group is behind another


def said_of(found: Diagnosis) -> list[str]:
    """What is wrong, and by how much."""
    counts = found.counts.tolist()
    lines = [f"The most frequent class has {max(counts):,} training samples, the rarest {min(counts):,}."]
    test = found.recall_of("test").groups
    first, last = found.commonest, found.rarest
    if found.compares and first in test and last in test:
        gap = 100 * (test[first] - test[last])
        if gap > 0:
            lines.append(f"On test data the {last} is recognised {gap:.1f} points less often than the {first}.")
        else:
            lines.append(
                f"On test data the {last} is recognised as often as the {first}, or more: {-gap:.1f} points more."
            )
    if found.preference is not None and "train" in found.splits:
        train = found.recall_of("train").groups
        if last in train and last in test:
            lost = 100 * (train[last] - test[last])
            verdict = f"it loses {lost:.1f} points."
            if train[last] < 0.5:
                verdict = "it is not even learnt."
            elif train[last] < _LEARNT:
                verdict = "it is only partly learnt."
            elif lost > 10:
                verdict = "it is learnt, but it does not carry over."
            recalls = f"{100 * train[last]:.1f} % on training data and {100 * test[last]:.1f} % on test data"
            lines.append(f"The {last} is at {recalls}: {verdict}")
        if found.preference.undefined:
            missed = ", ".join(found.preference.undefined)
            lines.append(f"The imbalance level is undefined: no training sample of {missed} is recognised.")
    if not math.isnan(found.upwards):
        lines.append(f"Of the errors on {last} classes, {found.upwards:.0f} % go to classes with more training data.")
    error = found.calibration()
    if last in error and error[last] > 10:
        lines.append(
            f"Probabilities are not to be trusted on the {last}: confidence is off by {error[last]:.1f} points there."
        )
    return lines


def next_steps(found: Diagnosis) -> list[str]:
    """What to try, the cheapest first, and what speaks for it."""
    lines = [_shift(found)]
    test = found.recall_of("test").groups
    first, last = found.commonest, found.rarest
    unseen = next((name for name in (last, first) if name not in test), None)
    behind = found.compares and unseen is None and test[first] - test[last] > _APART
    trained = None if found.run is None else trained_shift(found.run.method, found.run.params)
    if not found.compares:
        lines.append(_one_group(found))
    elif unseen is not None:
        lines.append(
            f"There is no test sample of the {unseen}, so nobody can say what a shift would do for the {last}."
        )
    elif behind and (math.isnan(found.upwards) or found.upwards > 60):
        lines.append(
            f"Errors go towards the common classes, which is what a shift mends. {_while_training(found, trained)}"
        )
    elif behind:
        lines.append(
            f"Only {found.upwards:.0f} % of the errors on the {last} go to commoner classes, so a shift has little to "
            "mend: look at the classes that it is taken for, at their labels, and for more data or augmentation."
        )
    elif test[last] - test[first] > _APART and trained is not None:
        ahead = f"The {last} is ahead of the {first} by {100 * (test[last] - test[first]):.1f} points."
        lines.append(f"{ahead} {_other_strength(trained, 'below')}")
    else:
        lines.append(f"The {last} is not behind the {first}: there is little for a shift to win.")
    train = found.recall_of("train").groups if "train" in found.splits else {}
    if last in train and last in test and train[last] >= _LEARNT and train[last] - test[last] > 0.2:
        lines.append(
            f"The {last} is remembered rather than understood ({100 * train[last]:.0f} % on training data, "
            f"{100 * test[last]:.0f} % on test data): more data of it, or stronger augmentation, is worth a try."
        )
    return lines


def _while_training(found: Diagnosis, trained: TrainedShift | None) -> str:
    """What shift to train with, given what the model was trained by, where that is known."""
    method = "" if found.run is None else found.run.method
    if trained is not None:
        return _other_strength(trained, "above")
    instead = method_title(method) if method in METHODS and method not in _PLAIN else "cross entropy"
    return (
        "A shift while training did more in the paper’s ImageNet-LT table than one afterwards (51.1 and 51.6 % against "
        f"50.3 %): ClassBalancedSoftmaxLoss(counts, beta=…) in place of {instead}, with beta from 1.0 upwards, chosen "
        "on validation data; prediction stays as it is."
    )


def _other_strength(trained: TrainedShift, where: Literal["above", "below"]) -> str:
    own = f"{trained.strength:g}"
    text = f"The model was trained with a shift, {trained.loss} with {trained.name} = {own}: one with "
    text += f"{trained.name} {where} {own}, chosen on validation data, is worth a try"
    return text + (
        f"; `longtail study beta --data … --method {trained.searched}` looks for it." if trained.searched else "."
    )


def _one_group(found: Diagnosis) -> str:
    """That rare classes cannot be told from common ones, and how they could."""
    text = f"All classes are in one group, the {found.rarest}, so nothing can be said of rare against common ones: "
    least, most = int(found.counts.min()), int(found.counts.max())
    if least == most:
        return f"{text}each has {most:,} training samples."
    text += f"give --head-over and --tail-under numbers between {least:,} and {most:,}"
    thirds = len(found.names) > 2 and found.run is None
    return text + (", or neither: then it is 100 and 20, or thirds of the classes." if thirds else ".")


def _shift(found: Diagnosis) -> str:
    shift = found.shift
    if shift is None:
        return found.why_no_shift
    samples = len(found.splits["val"].labels)
    if shift.strength == 0:
        text = f"No post-hoc shift is clearly worth it on {samples:,} validation samples: of {len(shift.strengths)} "
        text += "strengths of logit adjustment "
        if shift.best == 0:
            return text + "none has a higher recall there."
        text += f"the best, τ = {shift.best:g}, is ahead by {shift.lead:.1f} points there, within two standard errors "
        return text + f"({2 * shift.error:.1f})."
    first, last = found.commonest, found.rarest
    before, after = shift.before["test"], shift.after["test"]
    text = f"A post-hoc shift, with nothing trained again: logit adjustment with τ = {shift.strength:g}, chosen on "
    text += f"{samples:,} validation samples. On test data, which had no say, recall over all classes goes from "
    text += f"{before['all']:.1f} to {after['all']:.1f} %"
    if first in before and last in before and found.compares:
        text += f": {_moves(shift.change('test', last), last)}, {_moves(shift.change('test', first), first)}"
    text += "."
    if shift.best == max(shift.strengths):
        text += f" Recall on validation data is highest at τ = {shift.best:g}, the largest that is tried."
    if shift.change("test", "all") < 0:
        text += " That is worse than before: what validation data promised did not come true, so leave it."
    return text


def _moves(points: float, group: str) -> str:
    if abs(points) < 0.05:
        return f"the {group} stays where it is"
    return f"the {group} {'wins' if points > 0 else 'pays'} {abs(points):.1f} points"

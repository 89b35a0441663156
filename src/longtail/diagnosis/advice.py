"""A diagnosis in sentences: what is wrong, why, and what to try next."""

import math
from typing import TYPE_CHECKING

from longtail.classes import describe_groups
from longtail.diagnosis.shift import USELESS, Shift
from longtail.methods import METHODS, Method
from longtail.train.measures import learns_little

if TYPE_CHECKING:
    from longtail.diagnosis.diagnosis import Diagnosis

_LEARNT = 0.9
"""Recall on training data from which a group counts as learnt."""
_BEHIND = 0.05
"""Difference in recall from which one group counts as behind another."""
_UPWARDS = 60
"""Per cent of the errors that go to more frequent classes, from which on a shift helps."""

_USE_A_SHIFT = (
    "Train again with the loss ClassBalancedSoftmaxLoss(counts, beta=1.0), and predict as before; `longtail.fit_shift` "
    "measures on validation data what to add to beta. (In the paper's ImageNet-LT table, a shift in the loss helped "
    "more than a post-hoc shift: 51.1 and 51.6 % against 50.3 %.)"
)

_USE_THE_ESTIMATOR = (
    "Some probabilities are 0, which no shift corrects. For a scikit-learn classifier, use `longtail.estimators`: "
    "`PriorAdjustedClassifier(FrozenEstimator(model), counts=counts).fit(X_val, y_val)` also smooths them."
)


def findings(found: "Diagnosis") -> list[str]:
    """Return what is wrong, and by how much."""
    counts, first, last = found.counts.tolist(), found.commonest, found.rarest
    sizes = describe_groups({name: found.groups.members(name) for name in found.filled}, counts)
    lines = [f"The most frequent class has {max(counts):,} training samples, the rarest {min(counts):,} ({sizes})."]
    test, over_all = found.recalls["test"].groups, found.recalls["test"].all
    each = ", ".join(f"{name} {100 * value:.1f} %" for name, value in test.items())
    each = f" ({each})" if len(test) > 1 else ""
    lines.append(f"On test data, recall over all classes is {100 * over_all:.1f} %{each}.")
    if found.gap is not None:
        side = f"{100 * abs(found.gap):.1f} points {'lower' if found.gap > 0 else 'higher'}"
        same = f"On test data, recall is the same on the {last} and the {first}."
        lines.append(f"On test data, recall is {side} on the {last} than on the {first}." if found.gap else same)
    if found.preference is not None:
        train = found.recalls["train"].groups
        if last in train and last in test:
            lost = 100 * (train[last] - test[last])
            verdict = f"it loses {lost:.1f} points"
            if train[last] < 0.5:
                verdict = "it is not learnt"
            elif train[last] < _LEARNT:
                verdict = "it is only partly learnt"
            elif lost > 10:
                verdict = "it is learnt but does not generalise"
            recalls = f"{100 * train[last]:.1f} % on training data and {100 * test[last]:.1f} % on test data"
            lines.append(f"Recall of the {last} is {recalls}: {verdict}.")
        if found.preference.undefined:
            missed = " and the ".join(found.preference.undefined)
            lines.append(f"The imbalance level is undefined, because no training sample of the {missed} is recognised.")
        elif math.isnan(found.preference.level):
            why = f"all classes are in one group, the {last}" if first == last else "only one group has samples"
            lines.append(f"The imbalance level is undefined, because {why}.")
    if not math.isnan(found.upwards) and 0 < round(found.upwards_by_chance) < 100:
        lines.append(
            f"{found.upwards:.0f} % of the errors on {last} classes go to classes with more training samples "
            f"({found.upwards_by_chance:.0f} % if they went to all other classes alike)."
        )
    return lines + _confidence(found)


def _confidence(found: "Diagnosis") -> list[str]:
    """A sentence on the rarest group's probabilities, if they are clearly off."""
    if found.splits["test"].logits is None:
        return []
    one, rare = found.statistics["test"], list(found.groups.members(found.rarest))
    samples = max(1, int(one.samples[rare].sum()))
    right, confidence = (float(sums[rare].sum()) / samples for sums in (one.bin_correct, one.bin_confidence))
    off = confidence - right
    if abs(off) < max(0.1, 1 / math.sqrt(samples)):  # a share of n samples has a standard error below 0.5 / sqrt(n)
        return []
    return [
        f"Probabilities on the {found.rarest} are too {'high' if off > 0 else 'low'}: the predicted class has a mean "
        f"probability of {100 * confidence:.1f} %, and {100 * right:.1f} % of the predictions are right."
    ]


def next_steps(found: "Diagnosis") -> list[str]:
    """Return what to try, the cheapest first, with the evidence for it."""
    last, test = found.rarest, found.recalls["test"].groups
    if found.why_no_shift == USELESS:
        return [USELESS]
    underfitted = _underfitted(found)
    if underfitted:  # beta would be another after longer training
        return [underfitted, _posthoc(found)]
    use = found.shift if found.shift is not None and found.shift.recommended else None
    lines = [_posthoc(found), _in_training(found) if use is None else _same_in_training(found, use)]
    train = found.recalls["train"].groups if "train" in found.splits else {}
    ahead = found.gap is not None and found.gap < -_BEHIND
    if last in train and last in test and train[last] >= _LEARNT and train[last] - test[last] > 0.2 and not ahead:
        lines.append(
            f"The {last} is memorised ({100 * train[last]:.0f} % on training data, {100 * test[last]:.0f} % on test "
            "data): try more data for it, or stronger augmentation."
        )
    return lines


def headline(found: "Diagnosis") -> str:
    """Return the one thing to do first: the first step, but not one that only says why there is no post-hoc shift."""
    steps = found.next_steps
    skip = len(steps) > 1 and steps[0] == _posthoc(found) and not (found.shift is not None and found.shift.recommended)
    return steps[1] if skip else steps[0]


def _underfitted(found: "Diagnosis") -> str:
    """Advice for a model that has learnt less than half of the training data and never predicts some classes."""
    learnt = math.nan if found.run is None else found.run.recall(part="train") / 100
    learnt = found.recalls["train"].all if "train" in found.splits else learnt
    test = found.statistics["test"]
    present = test.samples > 0
    never = int((present & (test.predicted == 0)).sum())
    if not never or not learns_little(learnt, len(found.names)):
        return ""
    return (
        f"Train for longer first: recall over all classes on training data is only {100 * learnt:.1f} %, and "
        f"{never:,} of {int(present.sum()):,} classes are never predicted."
    )


def _posthoc(found: "Diagnosis") -> str:
    """Advice on a shift without training again."""
    shift = found.shift
    if shift is None:
        return found.why_no_shift
    left = f"; {shift.left_out:,} samples of classes without training samples are left out" if shift.left_out else ""
    fitted = f"fitted on {shift.samples:,} validation samples (standard error {shift.std_error:.2f}{left})"
    val, test = (
        f"from {shift.before[split]['all']:.1f} to {shift.after[split]['all']:.1f} %" for split in ("val", "test")
    )
    if not shift.recommended:
        why = f"the estimate, {shift.delta:z.2f}, {fitted}, is less than two standard errors from zero"
        if shift.clear:
            why = f"τ = {shift.tau:z.2f}, {fitted}, does not raise recall over all classes there "
            why += f"({val})"
        return f"No post-hoc shift is recommended: {why}."
    text = "" if shift.tau > 0 else "The model prefers rare classes too much. "
    text += f"Apply a post-hoc shift, without training again: `{found.correction}`, {fitted}. Recall over all classes "
    text += f"changes {val} there, and {test} on test data"
    if found.gap is not None:
        groups = (found.rarest, found.commonest)
        changes = [f"{group} by {shift.change('test', group):+.1f} points" for group in groups]
        text += f" ({', '.join(changes)})"
    text += f"; accuracy there from {shift.accuracy[0]:.1f} to {shift.accuracy[1]:.1f} %."
    if shift.change("test", "all") < -1:
        text += " It is lower on test data than before: check whether validation and test data are alike."
    return text


def _in_training(found: "Diagnosis") -> str:
    """Advice on a shift in the loss if no post-hoc shift is recommended, given how far the rarest group is behind."""
    first, last, gap = found.commonest, found.rarest, found.gap
    small = found.shift is not None and found.shift.small
    if first == last:
        return _one_group(found)
    if gap is None:
        unseen = last if last not in found.recalls["test"].groups else first
        return f"There are no test samples of the {unseen}, so the effect of a shift on the {last} is unknown."
    if gap > _BEHIND and (small or found.upwards <= _UPWARDS):
        few = f"Only {found.upwards:.0f} % of the errors on the {last} go to more frequent classes"
        why = "The fitted shift is small" if small else few
        return (
            f"{why}, so a shift in the loss helps the {last} little. Check the classes that it is mistaken for, check "
            "labels, and try more data or augmentation."
        )
    if gap > _BEHIND:
        zeros = found.splits["test"].has_zeros
        advice = _other_strength(found, "higher") or (_USE_THE_ESTIMATOR if zeros else _USE_A_SHIFT)
        measured = found.run is not None and found.run.measured_beta is not None
        return f"The errors go to frequent classes{'' if measured else ', which a shift corrects'}. {advice}"
    fitted = found.run is not None and found.run.adjusted > 0  # to the same validation data, so small says nothing
    if _prefers_rare(found, gap) and (fitted or not small):
        return (
            f"The model prefers rare classes too much: the {last} is ahead of the {first} by {-100 * gap:.1f} points, "
            f"and predicted more often than it occurs. {_lower_strength(found)}"
        )
    return f"The {last} is not behind the {first}, so a shift can gain little."


def _prefers_rare(found: "Diagnosis", gap: float) -> bool:
    """Whether the rarest group is ahead by more than two standard errors, and predicted more often than it occurs."""
    one, variance = found.statistics["test"], 0.0
    share = (one.correct + 1) / (one.samples + 2)  # never 0 or 1, where the variance would be 0
    for name in (found.commonest, found.rarest):
        classes = [c for c in found.groups.members(name) if one.samples[c]]
        variance += float((share * (1 - share) / (one.samples + 2))[classes].sum()) / len(classes) ** 2
    rare = list(found.groups.members(found.rarest))
    often = bool(one.predicted[rare].sum() > one.samples[rare].sum())
    return often and gap < -max(_BEHIND, 2 * math.sqrt(variance))


def _lower_strength(found: "Diagnosis") -> str:
    """What to lower if the model prefers rare classes too much."""
    run = found.run
    if run is not None and run.adjustment > 0 and run.applied is not False:
        return (
            f"The likely cause is the post-hoc step of the run, adjust={run.adjustment:.2f}: compare recall on "
            f"validation data with `longtail evaluate {run.path} --posthoc adjust=0`."
        )
    usual = "Lower what favours them: the beta or tau of the loss, a post-hoc step, class weights or sampling."
    return _other_strength(found, "lower") or usual


def _one_group(found: "Diagnosis") -> str:
    text = f"All classes are in one group, the {found.rarest}, so rare and frequent classes cannot be compared: "
    least, most = int(found.counts.min()), int(found.counts.max())
    if least == most:
        return f"{text}each has {most:,} training samples."
    return f"{text}use --groups quantiles, or two numbers between {least} and {most}, as in --groups {most},{least}."


def _trained_shift(found: "Diagnosis") -> tuple[Method, str, float] | None:
    """The method of a run, the parameter that is its shift, and its value; ``None`` if the loss has no known shift."""
    if found.run is None:
        return None
    recipe = found.run.recipe
    method, strength = recipe.spec, recipe.spec.shift_factor(recipe.params)
    return (method, method.shift if isinstance(method.shift, str) else "beta", strength) if strength else None


def _same_in_training(found: "Diagnosis", shift: Shift) -> str:
    """Advice on the loss that makes the post-hoc shift unnecessary."""
    trained, run = _trained_shift(found), found.run
    adjusted = 0.0 if run is None else run.adjusted
    tau = adjusted + shift.tau
    if trained is not None:
        method, name, strength = trained
        new = max(0.0, strength + tau)
        use = f"{name} = {new:.2f}" if method.shift == name else f"ClassBalancedSoftmaxLoss(counts, beta={new:.2f})"
        after = f", with {adjusted:.2f} log N subtracted afterwards" if adjusted else ""
        unknown = run.adjustment if run is not None and run.applied is None else 0.0
        more = f", and {unknown:.2f} more if the predictions include the run's post-hoc step" if unknown else ""
        return (
            f"The model was trained with {method.title} ({name} = {strength:g}){after}: to train again without a "
            f"post-hoc shift, use {use}{more}."
        )
    if found.splits["test"].has_zeros:
        return _USE_THE_ESTIMATOR
    if tau < 0:
        return f"To train again without a post-hoc shift, lower the beta or tau of the loss by {-tau:.2f}."
    one = abs(adjusted + shift.delta - 1) < 2 * shift.std_error
    same = " (1, Balanced Softmax, is within two standard errors)" if one else ""
    return (
        "To train again without a post-hoc shift, replace a plain cross entropy by "
        f"ClassBalancedSoftmaxLoss(counts, beta={tau:.2f}){same}, or add {tau:.2f} to the beta of a loss that has one. "
        "Prediction stays as it is."
    )


def _other_strength(found: "Diagnosis", direction: str) -> str:
    """Advice for a run whose loss already has a shift; empty for all others."""
    trained = _trained_shift(found)
    if trained is None:
        return ""
    method, name, strength = trained
    if found.run is not None and found.run.measured_beta is not None:
        return (
            f"The model was trained with {method.title}, and its {name}, {found.run.measured_beta:.2f}, was measured "
            "on held-out data, so another one can gain little: try more data, augmentation or a pretrained model."
        )
    text = f"The model was trained with {method.title} ({name} = {strength:g}): try a {direction} {name}, chosen on "
    searched = method if method.beta else next((one for one in METHODS.values() if one.beta == one.shift == name), None)
    if searched is None:
        return f"{text}validation data."
    return f"{text}validation data; `longtail study beta --data … --method {searched.name}` searches for it."

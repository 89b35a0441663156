"""A diagnosis of a classifier from its predictions: which classes it fails on, why, and what to try next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longtail._program import printable
from longtail.classes import Groups, cut_groups
from longtail.diagnosis import advice
from longtail.diagnosis.formats import Source
from longtail.diagnosis.inputs import Counts, DiagnosedRun, SplitPredictions, read_inputs
from longtail.diagnosis.shift import Shift, recommend_shift
from longtail.metrics import (
    ClassStatistics,
    Preference,
    Recall,
    expected_calibration_error,
    preference_scores,
    recall,
)
from longtail.train.folder import RunFolder
from longtail.train.stored import stored_splits

if TYPE_CHECKING:
    from longtail.report.page import Report


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """The predictions of a classifier and what they show. ``print`` shows the findings, a notebook also the recalls.

    ``diagnosis.report().write("diagnosis.html")`` writes a page with tables and figures (needs ``longtail[report]``).
    """

    splits: Mapping[str, SplitPredictions]
    """``test``, and ``train`` and ``val`` if they were given."""
    names: tuple[str, ...]
    counts: Tensor
    """Training samples per class."""
    counts_from: str
    groups: Groups
    groups_from: str
    shift: Shift | None
    why_no_shift: str
    run: DiagnosedRun | None
    notes: tuple[str, ...]
    """What was not given, and where it was found."""

    @cached_property
    def statistics(self) -> dict[str, ClassStatistics]:
        """Class statistics of each split; of predicted classes, without probabilities."""
        return {name: one.statistics(len(self.names)) for name, one in self.splits.items()}

    @cached_property
    def recalls(self) -> dict[str, Recall]:
        """Recall on each split."""
        return {name: recall(one.correct, one.samples, self.groups) for name, one in self.statistics.items()}

    @cached_property
    def preference(self) -> Preference | None:
        """Preference scores and imbalance level; ``None`` without predictions on training data."""
        if "train" not in self.splits:
            return None
        return preference_scores(self.recalls["train"].per_class, self.recalls["test"].per_class, self.groups)

    @cached_property
    def upwards(self) -> float:
        """The share of errors on the rarest group, in per cent, that go to classes with more training samples."""
        labels, predicted = self._rare_errors
        return 100 * float((self.counts[predicted] > self.counts[labels]).double().mean())

    @cached_property
    def upwards_by_chance(self) -> float:
        """What :attr:`upwards` would be if these errors were spread evenly over the other classes."""
        labels, _ = self._rare_errors
        more = (self.counts > self.counts[labels][:, None]).sum(1)
        return 100 * float((more.double() / (len(self.counts) - 1)).mean())

    @property
    def _rare_errors(self) -> tuple[Tensor, Tensor]:
        """Labels and predictions of the test samples of the rarest group that are misclassified."""
        one = self.splits["test"]
        rare = torch.tensor(self.groups.members(self.rarest))
        wrong = (one.labels != one.predicted) & torch.isin(one.labels, rare)
        return one.labels[wrong], one.predicted[wrong]

    @property
    def filled(self) -> list[str]:
        """The groups that have classes, the most frequent first."""
        return [name for name in self.groups.names if self.groups.members(name)]

    @property
    def commonest(self) -> str:
        """The group of the most frequent classes."""
        return self.filled[0]

    @property
    def rarest(self) -> str:
        """The group of the rarest classes."""
        return self.filled[-1]

    @property
    def gap(self) -> float | None:
        """How far the rarest group is behind the most frequent on test data; ``None`` if one has no samples."""
        recalls = self.recalls["test"].groups
        first, last = self.commonest, self.rarest
        return recalls[first] - recalls[last] if first != last and first in recalls and last in recalls else None

    @property
    def calibration(self) -> dict[str, float]:
        """Calibration error on test data in per cent, per group and ``all``; empty without logits."""
        if self.splits["test"].logits is None:
            return {}
        found = self.statistics["test"]
        error = expected_calibration_error(found.bin_samples, found.bin_correct, found.bin_confidence, self.groups)
        return {"all": 100 * error.all, **{name: 100 * value for name, value in error.groups.items()}}

    @property
    def correction(self) -> str:
        """The line of code that applies the shift; empty if none is recommended."""
        if self.shift is None or not self.shift.recommended:
            return ""
        masked = "" if bool((self.counts > 0).all()) else ', zero_counts="mask"'
        probabilities = self.splits["test"].kind == "probabilities"
        zero = " + 1e-30" if self.splits["test"].has_zeros else ""
        scores = f"numpy.log(probabilities{zero})" if probabilities else "logits"
        return f"longtail.adjust_logits({scores}, counts, tau={self.shift.tau:g}{masked})"

    @property
    def findings(self) -> list[str]:
        """What is wrong, and by how much, in sentences."""
        return advice.findings(self)

    @property
    def next_steps(self) -> list[str]:
        """What to try next, the cheapest first, in sentences."""
        return advice.next_steps(self)

    def report(self, *, title: str = "", command: str = "") -> "Report":
        """Return a page about the diagnosis; ``command`` is the command that repeats it."""
        from longtail.diagnosis.content import make_report  # noqa: PLC0415 - needs extras

        return make_report(self, title=title, command=command)

    @property
    def headline(self) -> str:
        """What to do first, in a sentence or two."""
        return advice.headline(self)

    @property
    def _parts(self) -> dict[str, Sequence[str]]:
        return {"What was found": self.findings, "What to try next": self.next_steps, "Notes": self.notes}

    def __repr__(self) -> str:
        return "\n".join("\n- ".join([f"{title}:", *lines]) for title, lines in self._parts.items() if lines)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.headline)}</b></p>", "<table><thead><tr><th>recall, %</th>"]
        parts += [*(f"<th>{escape(name)}</th>" for name in (*self.filled, "all")), "</tr></thead><tbody>"]
        for split, found in self.recalls.items():
            values = [*(found.groups.get(name, math.nan) for name in self.filled), found.all]
            cells = "".join("<td>-</td>" if math.isnan(one) else f"<td>{100 * one:.1f}</td>" for one in values)
            parts.append(f"<tr><th>{escape(split)}</th>{cells}</tr>")
        parts.append("</tbody></table>")
        for title, lines in self._parts.items():
            if lines:
                listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
                parts.append(f"<p>{escape(title)}:</p><ul>{listed}</ul>")
        return printable("\n".join(parts))


def diagnose(
    test: Source,
    train: Source | None = None,
    val: Source | None = None,
    counts: Counts | None = None,
    *,
    groups: str | None = None,
) -> Diagnosis:
    """Diagnose a classifier from its predictions.

    Predictions are a file (npz, safetensors, CSV or Parquet; ``longtail diagnose --help`` describes the formats), a run
    folder, or a mapping of arrays with ``labels`` and one of ``logits``, ``probabilities`` or ``predicted``, and
    optionally ``classes`` (their names). A file in the folder of a run has the class names and groups of the run, and
    its counts if neither ``train`` nor ``counts`` is given.

    Args:
        test: predictions on test data. A run folder also has those on training and validation data, if they were kept.
        train: predictions on training data, for the generalisation gap and the imbalance level.
        val: predictions on validation data, to fit a post-hoc shift; never the test data.
        counts: training samples per class, by name or in the order of the classes (default: counted in ``train``); or
            the folder of the run that made the predictions.
        groups: ``"100,20"``, ``"quantiles"``, a JSON file or ``"auto"``, as :func:`longtail.classes.cut_groups` takes
            them (default: those of the run, or ``"auto"``).

    Example:
        >>> test = {"labels": [0, 0, 0, 1, 1, 1], "predicted": [0, 0, 0, 0, 0, 1]}
        >>> found = diagnose(test, counts={"cat": 500, "fox": 5})
        >>> print(found.findings[2])
        On test data, recall is 66.7 points lower on the tail than on the head.
    """
    if isinstance(test, str | Path) and Path(test).is_dir():
        file = RunFolder(test).predictions_file
        if not file.is_file():
            RunFolder(test).result()  # its error names the runs below
        stored = stored_splits(file) if file.is_file() else ()
        train, val = (test if one is None and name in stored else one for name, one in (("train", train), ("val", val)))
    sources = {name: source for name, source in (("train", train), ("val", val), ("test", test)) if source is not None}
    given = read_inputs(sources, counts)
    _check_different(given.splits)
    run, notes = given.run, given.notes
    names = given.names or tuple(f"class {c}" for c in range(len(given.counts)))
    if run is not None and groups is None:
        made, groups_from = Groups.from_indices(**run.result["groups"]), f"those of the run ({run.file})"
        notes.append(f"Class names and groups come from the run ({run.file}).")
    else:
        made, groups_from = cut_groups(groups or "auto", given.counts, names, set(given.splits["test"].labels.tolist()))
        notes += [f"Class names come from the run ({run.file})."] if run is not None else []
    if run is not None and run.result["posthoc"]:
        does = {True: "include", False: "do not include", None: "may include"}[run.applied]
        notes.append(f"The predictions {does} the post-hoc step of the run, {run.result['posthoc']}.")
    return Diagnosis(
        given.splits,
        names,
        given.counts,
        given.counts_from,
        made,
        groups_from,
        *recommend_shift(given.splits, given.counts, made),
        run,
        tuple(notes),
    )


def _check_different(splits: Mapping[str, SplitPredictions]) -> None:
    """Refuse the same predictions for two splits: a shift that is chosen on test data would look too good.

    Labels alone may be equal by chance, unless they are from one file.
    """
    for one, other in combinations(splits, 2):
        first, second = splits[one], splits[other]
        if not torch.equal(first.labels, second.labels) or not torch.equal(first.predicted, second.predicted):
            continue
        logits = first.logits is not None and second.logits is not None and torch.equal(first.logits, second.logits)
        if logits or Path(first.source).resolve() == Path(second.source).resolve():
            raise ValueError(
                f"Expected different data for each split, but got the same predictions for `{one}` and `{other}` "
                f"({first.source})."
            )

"""The paper's claims about significance, tested on the authors' own numbers; the page ``docs/significance.md``."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longtail.study.stats import Comparison, Summary, compare, format_p, holm, summarise
from reproduction.paper import AUTHORS_RUNS, five_runs, recalls

__all__ = ["Claim", "Verdict", "claims", "group_differences", "other_runs", "significance_page", "verdicts"]

_ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """CBS against Balanced Softmax on one data set, from the authors' five runs of each."""

    data: str
    balanced_softmax: Summary
    cbs: Summary
    one_sided: Comparison
    """Welch's test as in the paper."""
    two_sided: Comparison
    corrected: float
    """The two-sided p-value after Holm's correction over all data sets."""

    @property
    def significant(self) -> str:
        """Under which tests the difference is significant."""
        if self.one_sided.p_value >= _ALPHA:
            return "no"
        if self.two_sided.p_value >= _ALPHA:
            return "one-sided only"
        return "two-sided, not after Holm" if self.corrected >= _ALPHA else "two-sided and after Holm"


def verdicts() -> list[Verdict]:
    """Every data set of the paper's box plots, tested three ways.

    Example:
        >>> {one.data: one.significant for one in verdicts()}["C10-LT10"]
        'one-sided only'
    """
    runs = five_runs()
    tested = {name: compare(one["cbs"], one["balanced-softmax"], paired=False) for name, one in runs.items()}
    corrected = holm([one.p_value for one in tested.values()])
    return [
        Verdict(
            data=name,
            balanced_softmax=summarise(one["balanced-softmax"]),
            cbs=summarise(one["cbs"]),
            one_sided=compare(one["cbs"], one["balanced-softmax"], paired=False, alternative="greater"),
            two_sided=tested[name],
            corrected=p_value,
        )
        for (name, one), p_value in zip(runs.items(), corrected, strict=True)
    ]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and whether the authors' five runs per method support it."""

    where: str
    says: str
    one_sided: bool
    """Whether it holds with the paper's one-sided test."""
    two_sided: bool | None = None
    """Whether it holds two-sided; ``None``: it is about numbers, not about a test."""
    corrected: bool | None = None
    """Whether it holds after Holm's correction."""
    note: str = ""


def claims() -> list[Claim]:
    """All statements of the paper that can be checked with its five runs per method.

    Example:
        >>> [one.where for one in claims() if one.corrected]
        ['appendix, C100-LT', 'appendix, C100-LT10']
    """
    by_name = {one.data: one for one in verdicts()}

    def tested(where: str, says: str, names: Sequence[str], holds: Callable[[float], bool], note: str = "") -> Claim:
        chosen = [by_name[name] for name in names]
        return Claim(
            where,
            says,
            all(holds(one.one_sided.p_value) for one in chosen),
            all(holds(one.two_sided.p_value) for one in chosen),
            all(holds(one.corrected) for one in chosen),
            note,
        )

    def better(where: str, *names: str) -> Claim:
        says = f"CBS is significantly better (p < 0.05) on {_listed(names)}"
        return tested(where, says, names, lambda p: p < _ALPHA, _not_significant([by_name[name] for name in names]))

    def large(where: str, *names: str) -> Claim:
        sizes = [by_name[name].one_sided.effect_size for name in names]
        held = all(size > 0.8 for size in sizes)
        return Claim(where, f"Cohen's d > 0.8 on {_listed(names)}", held, note=_sizes(names, sizes))

    c10, c100 = ("C10-LT10", "C10-LT50", "C10-LT100"), ("C100-LT50", "C100-LT100")
    sizes = [by_name[name].one_sided.effect_size for name in c100]
    margins = [by_name[name].one_sided.difference for name in c10]
    ten = by_name["C100-LT10"].two_sided
    cifar = [one for name, one in by_name.items() if name.startswith("C10")]
    return [
        Claim(
            "table of CIFAR",
            "CBS outperforms Balanced Softmax on all six data sets (bold)",
            all(one.one_sided.difference > 0 for one in cifar),
            note="its mean is higher on all six; the difference is significant (two-sided) on "
            f"{sum(one.two_sided.p_value < _ALPHA for one in cifar)}",
        ),
        better("section 5.3.2", "ImageNet-LT", "Places-LT"),
        large("section 5.3.2", "ImageNet-LT", "Places-LT"),
        better("section 5.3.3", "iNaturalist2018", "LVIS"),
        large("section 5.3.3", "iNaturalist2018", "LVIS"),
        better("appendix, C10-LT", *c10),
        tested("appendix, C100-LT", f"p exceeds 0.05 on {_listed(c100)}", c100, lambda p: p >= _ALPHA),
        Claim(
            "appendix, C100-LT",
            f"d > 0.2, a small to medium effect, on {_listed(c100)}",
            all(size > 0.2 for size in sizes),
            note=f"{_sizes(c100, sizes)}; above 0.8 is called large, but neither difference is significant",
        ),
        tested(
            "appendix, C100-LT10",
            "CBS and Balanced Softmax are comparable on C100-LT10",
            ["C100-LT10"],
            lambda p: p >= _ALPHA,
            f"no significant difference; with the interval {ten.low:+.2f} to {ten.high:+.2f} either can be better",
        ),
        Claim(
            "appendix, C10-LT",
            "the margin widens from C10-LT10 to C10-LT100",
            margins == sorted(margins),
            note=", ".join(f"{margin:.2f}" for margin in margins),
        ),
    ]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _not_significant(chosen: Sequence[Verdict]) -> str:
    parts = []
    for one in chosen:
        if one.two_sided.p_value >= _ALPHA:
            parts.append(f"{one.data}: two-sided p {format_p(one.two_sided.p_value)}")
        elif one.corrected >= _ALPHA:
            parts.append(f"{one.data}: after Holm p {format_p(one.corrected)}")
    return "; ".join(parts)


def _sizes(names: Sequence[str], sizes: Sequence[float]) -> str:
    return ", ".join(f"{name} {size:.2f}" for name, size in zip(names, sizes, strict=True))


def compare_summaries(first: Summary, second: Summary) -> Comparison:
    """Welch's two-sided t-test of published means and standard deviations.

    Example:
        >>> result = compare_summaries(Summary(51.56, 0.65, 5), Summary(51.06, 0.82, 5))  # the paper's ImageNet-LT
        >>> round(result.p_value, 2)
        0.32
    """
    return compare(_runs_like(first), _runs_like(second), paired=False)


def _runs_like(summary: Summary) -> list[float]:
    """Runs with a given mean and SD, which is all that the test depends on."""
    spots = [float(place) for place in range(summary.runs)]
    known = summarise(spots)
    return [summary.mean + summary.sd * (spot - known.mean) / known.sd for spot in spots]


def other_runs() -> list[tuple[str, Summary, Summary, Comparison]]:
    """Data sets whose table and box plot are from different runs: the table's means, tested."""
    found = []
    for name, runs in five_runs().items():
        table = recalls(name)
        theirs, ours = table["balanced-softmax"]["all"], table["cbs"]["all"]
        assert theirs is not None
        assert ours is not None
        drawn = [summarise(runs[method]).mean for method in ("balanced-softmax", "cbs")]
        if any(abs(one.mean - mean) > 0.006 for one, mean in zip((theirs, ours), drawn, strict=True)):
            found.append((name, theirs, ours, compare_summaries(ours, theirs)))
    return found


def group_differences() -> list[tuple[str, str, Comparison, float]]:
    """Differences per group from the tables' means and SDs, tested two-sided and corrected over all of them."""
    tested = []
    for name in five_runs():
        table = recalls(name)
        for group in ("head", "medium", "tail"):
            ours, theirs = table["cbs"][group], table["balanced-softmax"][group]
            if ours is not None and theirs is not None and ours.runs == theirs.runs == AUTHORS_RUNS:
                tested.append((name, group, compare_summaries(ours, theirs)))
    corrected = holm([one.p_value for _, _, one in tested])
    return [(*one, p_value) for one, p_value in zip(tested, corrected, strict=True)]


# --- The page

_HEAD = """# Which of the paper's conclusions hold

This page tests the paper's claims on the authors' own numbers: five runs of Balanced Softmax and five of CBS on each
data set, from their public repository (`reproduction/data/figures.json`), and the paper's tables (`tables.json` in the
same folder). We ran nothing for it. `python -m reproduction paper --out docs/significance.md` writes the page, and a
test checks that it is up to date; with `--figures DIR` the command also draws the paper's figures from these numbers,
as SVG, PDF and PNG.

The paper uses Welch's t-test, *one-sided*: it only asks whether CBS is better than Balanced Softmax. A two-sided test
is usual where either method could be better. With ten data sets there are ten chances of a false positive; Holm's
correction accounts for them. Differences are CBS minus Balanced Softmax, in points of test recall over all classes; d
is Cohen's d with the pooled standard deviation.
"""

_CANNOT = """## What cannot be checked

- **The p, Δμ and d that are printed in the box plots**: they are only in the images, which are not part of the paper's
  source. We check every statement of the text about them, and that the five runs have the mean and SD of the tables.
- **The model imbalance level**: the paper has means of five runs without an SD (softmax: one run), so no test is
  possible.
- **BCL and ProCo with CBS, and all other methods**: one run each, so we can only say which is higher.
- **CAL and DisA**: quoted from their own publications; DisA uses other groups.
- **Whether the runs are paired** (same seeds and subsets in both methods): the paper does not state it, so we use
  Welch's test.
"""


def significance_page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, _summary(), _tests(), _statements(), _others(), _by_group(), _CANNOT])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numbers = [all(re.match(r"[+-]?\d", row[place]) for row in rows) for place in range(len(columns))]
    lines = [columns, ["---:" if number else "---" for number in numbers], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _summary() -> str:
    words = {
        "two-sided and after Holm": "CBS is significantly better, two-sided and after Holm's correction",
        "two-sided, not after Holm": "CBS is better two-sided, but not after the correction",
        "one-sided only": "CBS is better one-sided only",
        "no": "No significant difference with any of the three tests",
    }
    found = {kind: ", ".join(one.data for one in verdicts() if one.significant == kind) for kind in words}
    return "## Summary\n\n" + "".join(f"- {words[kind]}: {names}.\n" for kind, names in found.items() if names)


def _tests() -> str:
    columns = ("", "Balanced Softmax", "CBS", "difference (95 % interval)", "d", "p, one-sided", "p, two-sided")
    rows = [
        (
            *(one.data, str(one.balanced_softmax), str(one.cbs), _difference(one.two_sided)),
            f"{one.one_sided.effect_size:.2f}",
            *(_p(one.one_sided.p_value), _p(one.two_sided.p_value), _p(one.corrected)),
            one.significant,
        )
        for one in verdicts()
    ]
    return "## The ten data sets\n\n" + _table((*columns, "after Holm", "significant"), rows)


def _statements() -> str:
    words = {True: "holds", False: "does not", None: "-"}
    rows = [
        (one.where, one.says, words[one.one_sided], words[one.two_sided], words[one.corrected], one.note)
        for one in claims()
    ]
    columns = ("where", "the paper says", "with its test", "two-sided", "after Holm", "")
    return "## The paper's statements\n\n" + _table(columns, rows)


def _others() -> str:
    rows = [
        (name, str(theirs), str(ours), _difference(found), _p(found.p_value))
        for name, theirs, ours, found in other_runs()
    ]
    return (
        "## Where table and box plot differ\n\n"
        "On these data sets the runs of the box plot do not have the mean and SD of the table: they are other runs.\n"
        "Two-sided tests of the table's means and SDs:\n\n"
        + _table(("", "Balanced Softmax", "CBS", "difference (95 % interval)", "p, two-sided"), rows)
    )


def _by_group() -> str:
    differences = group_differences()
    found = {
        (name, group): f"{one.difference:+.2f}" + (r"\*" if corrected < _ALPHA else "")
        for name, group, one, corrected in differences
    }
    names = dict.fromkeys(name for name, *_ in differences)
    groups = ("head", "medium", "tail")
    return (
        "## Differences per group\n\n"
        "CBS minus Balanced Softmax, from the tables' means and SDs. \\*: significant by Welch's two-sided test\n"
        f"after Holm's correction over all {len(differences)} differences.\n\n"
        + _table(("", *groups), [(name, *(found.get((name, group), "-") for group in groups)) for name in names])
    )


def _difference(found: Comparison) -> str:
    return f"{found.difference:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _p(p_value: float) -> str:
    return format_p(p_value).removeprefix("= ")

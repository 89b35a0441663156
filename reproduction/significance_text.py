"""The words of ``docs/significance.md``."""

from collections.abc import Sequence

from longtail.study.stats import Comparison, Summary, format_p
from reproduction.significance import Claim, Verdict, claims, group_differences, other_runs, verdicts

__all__ = ["significance_page"]

_HEAD = """# Which of the paper's conclusions hold

This page tests the paper's claims on the authors' own numbers: five runs of Balanced Softmax and five of CBS on each
data set, from their public repository (`reproduction/data/figures.json`), and the paper's tables (`tables.json` in the
same folder). We ran nothing for it. `python -m reproduction paper` writes the page, and a test checks that it is up to
date; with `--figures DIR` the command also draws the paper's figures from these numbers, as SVG, PDF and PNG.

The paper uses Welch's t-test, *one-sided*: it only asks whether CBS is better than Balanced Softmax. A two-sided test
is usual where either method could be better. With ten data sets there are ten chances of a false positive; Holm's
correction accounts for them. Differences are CBS minus Balanced Softmax, in points of test recall over all classes; d
is Cohen's d with the pooled standard deviation.
"""

_CANNOT = """## What cannot be checked

- **The p, Δμ and d that are printed in the box plots**: they are in the images only, which are not in the paper's
  source. What is checked is every statement that the text makes about them, and that the five runs have the mean and SD
  of the paper's tables.
- **The model imbalance level**: means of five runs without an SD (softmax: one run), so no test is possible.
- **BCL and ProCo with CBS, and all other methods**: one run each. "Higher" is all that can be said.
- **CAL and DisA**: quoted from their own publications, DisA with another cut of the groups.
- **Whether the runs are paired** (same seeds and subsets in both methods) is not stated, so Welch's test stays.
"""


def significance_page() -> str:
    """The page, as Markdown."""
    tested = verdicts()
    parts = [_in_short(tested), _tests(tested), _statements(claims()), _others(other_runs())]
    return "\n".join([_HEAD, *parts, _by_group(group_differences()), _CANNOT])


def _in_short(tested: Sequence[Verdict]) -> str:
    kinds: dict[str, list[str]] = {}
    for one in tested:
        kinds.setdefault(one.told_apart, []).append(one.data)
    words = {
        "two-sided and after Holm": "CBS is better two-sided and after Holm's correction",
        "two-sided, not after Holm": "better two-sided, but not after the correction",
        "one-sided only": "better one-sided only",
        "no": "not told apart by any of the three",
    }
    lines = [f"- {text}: {', '.join(kinds[kind])}." for kind, text in words.items() if kind in kinds]
    return "## In short\n\n" + "\n".join(lines) + "\n"


def _tests(tested: Sequence[Verdict]) -> str:
    rows = [
        f"| {one.data} | {one.balanced_softmax} | {one.cbs} | {_difference(one.two_sided)} "
        f"| {one.paper.effect_size:.2f} | {_p(one.paper.p_value)} | {_p(one.two_sided.p_value)} | {_p(one.corrected)} "
        f"| {one.told_apart} |"
        for one in tested
    ]
    head = (
        "| | Balanced Softmax | CBS | difference (95 % interval) | d | p, one-sided | p, two-sided | after Holm | told "
        "apart |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return "## The ten data sets\n\n" + head + "\n".join(rows) + "\n"


def _statements(found: Sequence[Claim]) -> str:
    words = {True: "holds", False: "does not", None: "-"}
    rows = [
        f"| {one.where} | {one.says} | {words[one.paper]} | {words[one.two_sided]} | {words[one.corrected]} "
        f"| {one.note} |"
        for one in found
    ]
    head = "| where | the paper says | as tested there | two-sided | after Holm | |\n" + "| --- " * 6 + "|\n"
    return "## What the paper says of its tests\n\n" + head + "\n".join(rows) + "\n"


def _others(drawn: Sequence[tuple[str, Summary, Summary, Comparison]]) -> str:
    rows = [
        f"| {name} | {theirs} | {ours} | {_difference(found)} | {_p(found.p_value)} |"
        for name, theirs, ours, found in drawn
    ]
    return (
        "## Where table and box plot differ\n\n"
        "On these data sets the runs behind the box plot do not have the table's mean and SD: they are other runs.\n"
        "The table's own, tested two-sided from its means and SDs:\n\n"
        "| | Balanced Softmax | CBS | difference (95 % interval) | p, two-sided |\n| --- | --- | --- | --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )


def _by_group(groups: Sequence[tuple[str, str, Comparison, float]]) -> str:
    names = list(dict.fromkeys(name for name, *_ in groups))
    by_place = {(name, group): (found, corrected) for name, group, found, corrected in groups}

    def cell(name: str, group: str) -> str:
        if (name, group) not in by_place:
            return "-"
        found, corrected = by_place[name, group]
        mark = r"\*" if corrected < 0.05 else ""
        return f"{found.difference:+.2f}{mark}"

    rows = [f"| {name} | {' | '.join(cell(name, group) for group in ('head', 'medium', 'tail'))} |" for name in names]
    return (
        "## Who gains and who pays\n\n"
        "CBS less Balanced Softmax in each group, from the tables' means and SDs. \\*: told apart by Welch's test, "
        f"two-sided,\nafter Holm's correction over all {len(groups)} differences.\n\n"
        "| | head | medium | tail |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _difference(found: Comparison) -> str:
    return f"{found.difference:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _p(p_value: float) -> str:
    return format_p(p_value).removeprefix("= ")

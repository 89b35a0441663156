"""What the paper says of its tests, held against the authors' own numbers."""

from dataclasses import dataclass

from longtail.study.stats import Comparison, Summary, compare, compare_summaries, format_p, holm, summarise
from reproduction.paper import AUTHORS_RUNS, five_runs, recalls

__all__ = ["Claim", "Verdict", "claims", "group_differences", "other_runs", "verdicts"]


@dataclass(frozen=True)
class Verdict:
    """CBS against Balanced Softmax on one data set, from the authors' five runs of each."""

    data: str
    balanced_softmax: Summary
    cbs: Summary
    paper: Comparison
    """Welch's test as the paper has it, one-sided."""
    two_sided: Comparison
    corrected: float
    """The two-sided p-value after Holm's correction over all data sets."""

    @property
    def told_apart(self) -> str:
        """How far the difference carries at 0.05."""
        if self.paper.p_value >= 0.05:
            return "no"
        if self.two_sided.p_value >= 0.05:
            return "one-sided only"
        return "two-sided, not after Holm" if self.corrected >= 0.05 else "two-sided and after Holm"


def verdicts() -> list[Verdict]:
    """Every data set of the paper's box plots, tested three ways.

    Example:
        >>> {one.data: one.told_apart for one in verdicts()}["C10-LT10"]
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
            paper=compare(one["cbs"], one["balanced-softmax"], paired=False, alternative="greater"),
            two_sided=tested[name],
            corrected=p_value,
        )
        for (name, one), p_value in zip(runs.items(), corrected, strict=True)
    ]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper about its tests, and whether the authors' five runs a cell bear it out."""

    where: str
    says: str
    paper: bool
    """Whether it holds as the paper tests, one-sided."""
    two_sided: bool | None = None
    """Whether it holds two-sided; ``None``: it is about numbers, not about a test."""
    corrected: bool | None = None
    """Whether it holds after Holm's correction as well."""
    note: str = ""


def claims() -> list[Claim]:
    """All statements of the paper that its five runs a cell can bear out.

    Example:
        >>> [one.where for one in claims() if one.corrected]
        ['appendix, C100-LT', 'appendix, C100-LT10']
    """
    by_name = {one.data: one for one in verdicts()}

    def better(where: str, *names: str) -> Claim:
        chosen = [by_name[name] for name in names]
        return Claim(
            where,
            f"CBS is significantly better (p < 0.05) on {_listed(names)}",
            all(one.paper.p_value < 0.05 for one in chosen),
            all(one.two_sided.p_value < 0.05 for one in chosen),
            all(one.corrected < 0.05 for one in chosen),
            _lost(chosen),
        )

    def large(where: str, *names: str) -> Claim:
        sizes = [by_name[name].paper.effect_size for name in names]
        held = all(size > 0.8 for size in sizes)
        return _plain(where, f"Cohen's d > 0.8 on {_listed(names)}", held, _sizes(names, sizes))

    c10, c100 = ("C10-LT10", "C10-LT50", "C10-LT100"), ("C100-LT50", "C100-LT100")
    sizes = [by_name[name].paper.effect_size for name in c100]
    margins = [by_name[name].paper.difference for name in c10]
    ten = by_name["C100-LT10"]
    cifar = [one for name, one in by_name.items() if name.startswith("C10")]
    return [
        _plain(
            "table of CIFAR",
            "CBS outperforms Balanced Softmax on all six data sets (bold)",
            all(one.paper.difference > 0 for one in cifar),
            f"its mean is higher on all six; told apart two-sided on {sum(o.two_sided.p_value < 0.05 for o in cifar)}",
        ),
        better("section 5.3.2", "ImageNet-LT", "Places-LT"),
        large("section 5.3.2", "ImageNet-LT", "Places-LT"),
        better("section 5.3.3", "iNaturalist2018", "LVIS"),
        large("section 5.3.3", "iNaturalist2018", "LVIS"),
        better("appendix, C10-LT", *c10),
        Claim(
            "appendix, C100-LT",
            f"p exceeds 0.05 on {_listed(c100)}",
            all(by_name[name].paper.p_value >= 0.05 for name in c100),
            all(by_name[name].two_sided.p_value >= 0.05 for name in c100),
            all(by_name[name].corrected >= 0.05 for name in c100),
        ),
        _plain(
            "appendix, C100-LT",
            f"d > 0.2, a small to medium effect, on {_listed(c100)}",
            all(size > 0.2 for size in sizes),
            f"{_sizes(c100, sizes)}; above 0.8 is called large, but neither is told from none",
        ),
        Claim(
            "appendix, C100-LT10",
            "CBS and Balanced Softmax are comparable on C100-LT10",
            ten.paper.p_value >= 0.05,
            ten.two_sided.p_value >= 0.05,
            ten.corrected >= 0.05,
            f"not told apart; the interval, {_interval(ten.two_sided)}, leaves room for either",
        ),
        _plain(
            "appendix, C10-LT",
            "the margin widens from C10-LT10 to C10-LT100",
            margins == sorted(margins),
            ", ".join(f"{margin:.2f}" for margin in margins),
        ),
    ]


def _plain(where: str, says: str, held: bool, note: str) -> Claim:
    """A statement about numbers, not about a test."""
    return Claim(where, says, held, note=note)


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _lost(chosen: list[Verdict]) -> str:
    parts = []
    for one in chosen:
        if one.two_sided.p_value >= 0.05:
            parts.append(f"{one.data}: two-sided p {format_p(one.two_sided.p_value)}")
        elif one.corrected >= 0.05:
            parts.append(f"{one.data}: after Holm p {format_p(one.corrected)}")
    return "; ".join(parts)


def _sizes(names: tuple[str, ...], sizes: list[float]) -> str:
    return ", ".join(f"{name} {size:.2f}" for name, size in zip(names, sizes, strict=True))


def _interval(found: Comparison) -> str:
    return f"{found.low:+.2f} to {found.high:+.2f}"


def other_runs() -> list[tuple[str, Summary, Summary, Comparison]]:
    """Data sets whose table and box plot are of different runs: the table's means, and its own test."""
    found = []
    for name, runs in five_runs().items():
        table = recalls(name)
        cells = [table[method]["all"] for method in ("balanced-softmax", "cbs")]
        drawn = [summarise(runs[method]) for method in ("balanced-softmax", "cbs")]
        assert cells[0] is not None
        assert cells[1] is not None
        if any(abs(cell.mean - one.mean) > 0.006 for cell, one in zip(cells, drawn, strict=True) if cell is not None):
            found.append((name, cells[0], cells[1], compare_summaries(cells[1], cells[0])))
    return found


def group_differences() -> list[tuple[str, str, Comparison, float]]:
    """Head, medium and tail from the tables' means and standard deviations, two-sided, corrected over all of them."""
    tested = []
    for name in five_runs():
        table = recalls(name)
        for group in ("head", "medium", "tail"):
            ours, theirs = table["cbs"][group], table["balanced-softmax"][group]
            if ours is not None and theirs is not None and ours.runs == theirs.runs == AUTHORS_RUNS:
                tested.append((name, group, compare_summaries(ours, theirs)))
    corrected = holm([one.p_value for _, _, one in tested])
    return [(*one, p_value) for one, p_value in zip(tested, corrected, strict=True)]

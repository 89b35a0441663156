"""Many runs: plans of them, the search for beta, tables, and whether the differences are real."""

from longtail.study.stats import (
    Alternative,
    Comparison,
    Summary,
    compare,
    compare_summaries,
    holm,
    sentence,
    summarise,
)

__all__ = [
    "Alternative",
    "Comparison",
    "Summary",
    "compare",
    "compare_summaries",
    "holm",
    "sentence",
    "summarise",
]

"""Studies: plans of many runs, the search for beta, tables, and significance tests.

``Study(plan).run()`` returns ``Results``; ``Results.read(folder)`` reads finished runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from longtail.study.conduct import Outcome
    from longtail.study.planning import PlannedRun, StudyPlan, make_plan, read_plan
    from longtail.study.rendering import Table
    from longtail.study.results import Results
    from longtail.study.study import Progress, Study, run_studies

__all__ = [
    "Alternative",
    "Comparison",
    "Outcome",
    "PlannedRun",
    "Progress",
    "Results",
    "Study",
    "StudyPlan",
    "Summary",
    "Table",
    "compare",
    "compare_summaries",
    "holm",
    "make_plan",
    "read_plan",
    "run_studies",
    "sentence",
    "summarise",
]

_MODULES = {
    "Outcome": "conduct",
    **dict.fromkeys(("PlannedRun", "StudyPlan", "make_plan", "read_plan"), "planning"),
    "Table": "rendering",
    "Results": "results",
    **dict.fromkeys(("Progress", "Study", "run_studies"), "study"),
}


def __getattr__(name: str) -> Any:
    """Import what trains on use: the statistics need only numpy and scipy."""
    if name in _MODULES:
        return getattr(import_module(f"longtail.study.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Studies: plans of many runs, the search for beta, tables, and significance tests.

``Study(plan).run()`` returns ``Results``; ``Results.read(folder)`` reads finished runs.
"""

from longtail.study.conduct import Outcome, Train, conduct
from longtail.study.planning import PlannedRun, StudyPlan, make_plan, read_plan
from longtail.study.rendering import Table
from longtail.study.results import Results
from longtail.study.stats import (
    Alternative,
    Comparison,
    Summary,
    compare,
    holm,
    sentence,
    summarise,
)
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
    "Train",
    "compare",
    "conduct",
    "holm",
    "make_plan",
    "read_plan",
    "run_studies",
    "sentence",
    "summarise",
]

"""Reports: one self-contained HTML page from finished runs. Needs ``longtail[report]``."""

from longtail.report.build import report
from longtail.report.page import Page, Report, render

__all__ = ["Page", "Report", "render", "report"]

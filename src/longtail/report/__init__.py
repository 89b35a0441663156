"""Reports: one self-contained HTML page about a folder of runs. Needs ``longtail[report]``."""

from longtail.report.build import Report, report_of_runs, write_report
from longtail.report.page import Page, render

__all__ = ["Page", "Report", "render", "report_of_runs", "write_report"]

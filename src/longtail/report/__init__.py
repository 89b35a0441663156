"""Reports: one self-contained HTML page from finished runs. Needs ``longtail[report]``."""

from longtail.report.build import report
from longtail.report.page import Report

__all__ = ["Report", "report"]

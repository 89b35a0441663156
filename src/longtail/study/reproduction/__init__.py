"""What is there of the plans' runs, kept small, beside the paper's numbers: a folder of results and its page."""

from longtail.study.reproduction.page import write_page

__all__ = ["write_page"]

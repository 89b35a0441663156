"""Data sets, and long-tailing as an operation on them."""

from longtail.data.digits import DigitsLT, digits_lt
from longtail.data.long_tail import long_tail_counts, long_tail_indices

__all__ = ["DigitsLT", "digits_lt", "long_tail_counts", "long_tail_indices"]

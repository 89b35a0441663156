"""Figures of a study: pure functions from numbers to a matplotlib figure. Needs ``longtail[report]``."""

"""Many runs: are the differences between them real?"""

from longtail.study.stats import Comparison, compare, holm

__all__ = ["Comparison", "compare", "holm"]

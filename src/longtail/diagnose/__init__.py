"""Diagnosis of a classifier from its predictions, whatever framework made them.

The package has the name of its function and can be called: ``longtail.diagnose(test, train)``.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from longtail.diagnose.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

__signature__ = inspect.signature(diagnose)


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Diagnosis:
        return diagnose(*arguments, **options)


sys.modules[__name__].__class__ = _Callable

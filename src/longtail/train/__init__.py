"""Training: the step, its drivers, one model and many, run folders, checkpoints."""

from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe, defaults, read_recipe, write_recipe
from longtail.train.reevaluate import evaluate_run
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = [
    "Fleet",
    "NotFiniteError",
    "Recipe",
    "RunFolder",
    "StoppedError",
    "Trainer",
    "defaults",
    "evaluate_run",
    "read_recipe",
    "write_recipe",
]

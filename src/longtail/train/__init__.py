"""Training: recipes, the step, its drivers, one model and many, run folders, checkpoints, evaluation."""

from longtail.train.evaluation import evaluate
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe, defaults, read_recipe, write_recipe
from longtail.train.stored import evaluate_run
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = [
    "Fleet",
    "NotFiniteError",
    "Recipe",
    "RunFolder",
    "StoppedError",
    "Trainer",
    "defaults",
    "evaluate",
    "evaluate_run",
    "read_recipe",
    "write_recipe",
]

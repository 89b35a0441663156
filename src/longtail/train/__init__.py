"""Training: recipes, one model or many, run folders, checkpoints, evaluation."""

from longtail.train.evaluation import evaluate
from longtail.train.fleet import Fleet
from longtail.train.folder import RunFolder
from longtail.train.launch import FailedRunsError, make_recipe, resume, train
from longtail.train.own import measure_images
from longtail.train.recipe import Recipe, defaults, read_recipe, write_recipe
from longtail.train.stored import evaluate_run
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = [
    "FailedRunsError",
    "Fleet",
    "NotFiniteError",
    "Recipe",
    "RunFolder",
    "StoppedError",
    "Trainer",
    "defaults",
    "evaluate",
    "evaluate_run",
    "make_recipe",
    "measure_images",
    "read_recipe",
    "resume",
    "train",
    "write_recipe",
]

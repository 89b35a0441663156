"""Data sets by name and anybody's own, long-tailing, and everything random about them as data."""

from longtail.data.catalog import CATALOG, ERRATA, Entry, expected_counts, load
from longtail.data.check import Difference, check
from longtail.data.dataset import (
    ArrayImages,
    DataSet,
    FileImages,
    Images,
    Normalisation,
    Split,
    hold_out,
    hold_out_fold,
    long_tailed,
)
from longtail.data.decode import UnreadableImageError, decode
from longtail.data.describe import Description, describe
from longtail.data.draws import Draws
from longtail.data.long_tail import long_tail_counts, long_tail_indices
from longtail.data.own import from_dataset, open_path
from longtail.data.plan import Batch, Plan
from longtail.data.resident import Resident
from longtail.data.resident_files import ResidentFiles
from longtail.data.samplers import ClassAware, Instance, Progressive, Sampler, SquareRoot, shard
from longtail.data.streaming import Streaming

__all__ = [
    "CATALOG",
    "ERRATA",
    "ArrayImages",
    "Batch",
    "ClassAware",
    "DataSet",
    "Description",
    "Difference",
    "Draws",
    "Entry",
    "FileImages",
    "Images",
    "Instance",
    "Normalisation",
    "Plan",
    "Progressive",
    "Resident",
    "ResidentFiles",
    "Sampler",
    "Split",
    "SquareRoot",
    "Streaming",
    "UnreadableImageError",
    "check",
    "decode",
    "describe",
    "expected_counts",
    "from_dataset",
    "hold_out",
    "hold_out_fold",
    "load",
    "long_tail_counts",
    "long_tail_indices",
    "long_tailed",
    "open_path",
    "shard",
]

"""Data sets, long-tailed subsets, samplers, augmentations and loaders."""

from longtail.data.datasets import builtin as _builtin  # noqa: F401 - registers the built-in data sets
from longtail.data.datasets.catalog import CATALOG, Entry, data_title, expected_counts, load, register_dataset
from longtail.data.datasets.features import FeatureVectors, is_features
from longtail.data.datasets.inspection import Description, Difference, check_dataset, describe_dataset
from longtail.data.datasets.long_tail import long_tail_counts, long_tail_indices
from longtail.data.datasets.own import from_dataset, open_path
from longtail.data.datasets.splits import (
    ArrayImages,
    DataSet,
    FileImages,
    Images,
    Normalisation,
    Split,
    Texts,
    hold_out,
    hold_out_fold,
    long_tailed,
)
from longtail.data.loaders.decode import UnreadableImageError, decode
from longtail.data.loaders.resident import Resident
from longtail.data.loaders.streamed_files import Streaming
from longtail.data.sampling.batch_plan import Batch, BatchPlan
from longtail.data.sampling.draws import Draws
from longtail.data.sampling.samplers import ClassAware, Instance, Progressive, Sampler, SquareRoot
from longtail.data.sampling.torch_sampler import EpochSampler

__all__ = [
    "CATALOG",
    "ArrayImages",
    "Batch",
    "ClassAware",
    "DataSet",
    "Description",
    "Difference",
    "Draws",
    "Entry",
    "EpochSampler",
    "FeatureVectors",
    "FileImages",
    "Images",
    "Instance",
    "Normalisation",
    "BatchPlan",
    "Progressive",
    "Resident",
    "Sampler",
    "Split",
    "SquareRoot",
    "Streaming",
    "Texts",
    "UnreadableImageError",
    "check_dataset",
    "data_title",
    "decode",
    "describe_dataset",
    "expected_counts",
    "from_dataset",
    "hold_out",
    "hold_out_fold",
    "is_features",
    "load",
    "long_tail_counts",
    "long_tail_indices",
    "long_tailed",
    "open_path",
    "register_dataset",
]

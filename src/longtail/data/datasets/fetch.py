"""Downloads; a file is checked before it gets its name."""

import hashlib
import http.client
import shutil
import tarfile
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from torch.utils.model_zoo import tqdm  # type: ignore[attr-defined]  # torch has a replacement if it is missing

from longtail._io import file_lock, new_file
from longtail.data.datasets.image_files import inside

_CHUNK = 2**17


def download(url: str, path: Path, md5: str) -> None:
    """Download ``url`` to ``path`` unless the file is there, and check its MD5; a progress bar goes to stderr."""
    if path.is_file() and _md5(path) == md5:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        try:
            _fetch(url, temporary)
        except (OSError, http.client.HTTPException) as error:
            reason = " ".join(str(getattr(error, "reason", error)).split()).removesuffix(".") or type(error).__name__
            raise OSError(f"Could not download {url} ({reason}); try again, or put the file at {path}.") from error
        found = _md5(temporary)
        if found != md5:
            raise OSError(f"Expected {url} to have the MD5 {md5}, but got {found}; try again.")


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirects to https, and from http to http; urllib would also follow those to ftp."""

    def redirect_request(  # noqa: PLR0917 - urllib's own order
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the next request, or raise an error."""
        if urlsplit(newurl).scheme not in {"https", req.type}:
            raise URLError(f"it redirects to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, path: Path) -> None:
    """Write the content of a URL to a file."""
    with build_opener(_SafeRedirects).open(Request(url, headers={"User-Agent": "longtail"})) as answer:
        size = answer.headers.get("Content-Length")
        with path.open("wb") as file, tqdm(total=size and int(size), unit="B", unit_scale=True) as bar:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))


def fetch_archive(url: str, md5: str, folder: str, root: Path) -> None:
    """Download a ``.tar.gz`` and unpack ``folder`` of it into ``root``; an existing folder or archive is used."""
    work = root / f".{folder}.part"  # the same for every process: a killed one leaves it to the next
    lock = root / f".{folder}.lock"
    if (root / folder).exists() and not work.exists() and not lock.exists():
        return
    archive = root / url.rsplit("/", 1)[-1]
    if not (root / folder).exists():
        download(url, archive, md5)
    with file_lock(lock, f"Expected {root / folder} to be free, but it is being unpacked.", remove=True):
        try:
            shutil.rmtree(work, ignore_errors=True)
            if not (root / folder).exists():
                _unpack(archive, work)
                (work / folder).rename(root / folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive into a folder; an error if it has links, or paths outside of the folder."""
    with tarfile.open(archive) as tar:  # `extractall` has safe filters only from Python 3.11.4 on
        for member in tar:
            path, content = folder / member.name, tar.extractfile(member) if member.isfile() else None
            if not inside(member.name) or (content is None and not member.isdir()):
                raise OSError(f"Expected files and folders in {archive}, but got {member.name!r}.")
            (path.parent if content else path).mkdir(parents=True, exist_ok=True)
            if content:
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

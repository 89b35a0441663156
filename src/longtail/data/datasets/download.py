"""Resumable downloads with checksums, and safe extraction of archives."""

import hashlib
import http.client
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from longtail._io import file_lock

__all__ = ["BusyError", "ChecksumError", "DownloadError", "Progress", "download", "extract_tar", "file_digest"]

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the download, the bytes received so far, and the total if it is known."""

_CHUNK = 1 << 16
_ATTEMPTS = 5  # connections per call; a broken one is resumed while it still makes progress


class DownloadError(OSError):
    """A file could not be downloaded; the part that arrived is kept for the next attempt."""


class ChecksumError(DownloadError):
    """The downloaded file has a wrong checksum and was removed."""


class BusyError(DownloadError):
    """Another process is downloading the same file."""


class _CutOffError(DownloadError):
    """The connection ended before the file did."""


def download(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    md5: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download ``url`` to ``path`` and check it before it gets that name.

    The bytes go to ``path`` + ``.part``; if that file exists, only the rest is requested.

    Args:
        url: an ``http`` or ``https`` address.
        path: the file to write. An existing file with the right checksum is kept; any other is replaced after a
            successful download.
        sha256: expected checksum, in hexadecimal digits.
        md5: expected checksum, if only this one is known.
        progress: called as bytes arrive.
        timeout: seconds without a byte after which the connection counts as broken.

    Returns:
        ``path``.

    Raises:
        ChecksumError: the checksum is wrong; the file is removed.
        DownloadError: the network failed; the part that arrived is kept.

    Example:
        >>> digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "hello.txt"
        ...     _ = path.write_bytes(b"hello")  # an earlier download: nothing is requested
        ...     download("https://example.org/hello.txt", path, sha256=digest).name
        'hello.txt'
    """
    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"Expected `url` to be an http or https address, but got {url!r}.")
    kind, expected = _checksum(sha256, md5)
    path = Path(path)
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(path.with_name(f".{path.name}.lock"), "", required=False, remove=True):
            if path.is_file() and file_digest(path, kind) == expected:
                return path
            if not (part.exists() and file_digest(part, kind) == expected):
                _receive(url, path, part, progress, timeout)
            found = file_digest(part, kind)
            if found != expected:
                part.unlink()
                raise ChecksumError(f"Expected {url} to have the {kind} {expected}, but got {found}; it was removed.")
            part.replace(path)
    except BlockingIOError:
        raise BusyError(f"Another process is downloading {path}; wait until it has finished.") from None
    return path


def extract_tar(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Unpack a tar file, compressed or not, into ``folder``.

    Nothing is unpacked if a member is a link or a device, has an absolute path, or has ``..`` in its path.

    Raises:
        ValueError: the archive has such a member, is truncated, or is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     archive = Path(folder) / "bad.tar"
        ...     with tarfile.open(archive, "w") as tar:
        ...         tar.addfile(tarfile.TarInfo("../x"))
        ...     extract_tar(archive, Path(folder) / "out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: Expected ...bad.tar to hold only files and folders with relative paths, but got '../x'.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            _check_end(tar)
            for member in members:
                if not (member.isreg() or member.isdir()) or not _is_relative(member.name):
                    raise ValueError(
                        f"Expected {archive} to hold only files and folders with relative paths, "
                        f"but got {member.name!r}."
                    )
            tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"Expected {archive} to be a whole tar file, but it is truncated or damaged.") from error


def file_digest(path: Path, kind: str) -> str:
    """Return a file's checksum; ``kind`` is ``"sha256"`` or ``"md5"``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _checksum(sha256: str | None, md5: str | None) -> tuple[str, str]:
    given = [(kind, text, size) for kind, text, size in (("sha256", sha256, 64), ("md5", md5, 32)) if text is not None]
    if len(given) != 1:
        raise ValueError(f"Expected one of `sha256` and `md5`, but got {'both' if given else 'neither'}.")
    kind, text, size = given[0]
    if not re.fullmatch(rf"[0-9a-fA-F]{{{size}}}", text):
        raise ValueError(f"Expected `{kind}` to be {size} hexadecimal digits, but got {text!r}.")
    return kind, text.lower()


def _is_relative(name: str) -> bool:
    """Whether a path is relative and never goes up, on any operating system."""
    windows = PureWindowsPath(name)
    return not (PurePosixPath(name).is_absolute() or windows.anchor or ".." in windows.parts)


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise unless the archive ends in zeros and gzip's checksum is right; tarfile accepts any end."""
    file = tar.fileobj
    assert file is not None  # it is open
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError
    while file.read(_CHUNK):
        pass


def _receive(url: str, path: Path, part: Path, progress: Progress | None, timeout: float) -> None:
    """Bring ``part`` to its full length; an empty part is removed when that fails."""
    part.touch()
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            size = part.stat().st_size
            try:
                return _continue(url, path, part, progress, timeout)
            except _CutOffError:
                if attempt == _ATTEMPTS or part.stat().st_size <= size:
                    raise
    except BaseException:
        if not part.stat().st_size:
            part.unlink()
        raise


def _continue(url: str, path: Path, part: Path, progress: Progress | None, timeout: float) -> None:
    """Request the missing bytes once and append them."""

    def failed(error: BaseException | str, kind: type[DownloadError] = DownloadError) -> DownloadError:
        error = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
        reason = " ".join(f"{error}".split()).removesuffix(".") or type(error).__name__
        size = part.stat().st_size
        kept = f"{size} bytes are kept in {part} and the next attempt continues from there" if size else "try again"
        return kind(f"Could not download {url} ({reason}); {kept}, or put the file at {path} yourself.")

    try:
        response, start = _request(url, part.stat().st_size, timeout)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            raise failed(f"HTTP status {error.code}") from error
        raise failed(error) from error
    with response, part.open("r+b") as file:
        file.seek(start)
        file.truncate()
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        done = start
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                file.flush()
                raise failed(error, _CutOffError) from error
            if not chunk:
                break
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, done, total)
    if total is not None and done < total:
        raise failed(f"the connection ended after {done} of {total} bytes", _CutOffError)


def _request(url: str, start: int, timeout: float) -> tuple[Any, int]:
    """Return a response and its first byte: ``start``, or 0 if the server cannot start there."""

    def request(begin: int) -> Any:
        headers = {"User-Agent": "longtail"} | ({"Range": f"bytes={begin}-"} if begin else {})
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)

    try:
        response = request(start)
    except urllib.error.HTTPError as error:
        if not (start and error.code == 416):  # the part is longer than the file, so it belongs to another file
            raise
        error.close()
        return request(0), 0
    if response.status != 206:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return response, start
    response.close()  # another range
    return request(0), 0

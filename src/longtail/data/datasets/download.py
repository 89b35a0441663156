"""Downloads that go on where they stopped, and archives that stay in their folder; nothing unchecked is used."""

import hashlib
import http.client
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

__all__ = ["BusyError", "ChecksumError", "DownloadError", "Progress", "download", "extract_tar", "file_digest"]

Progress = Callable[[str, int, int | None], None]
"""Called with what is being fetched, the bytes that are here, and how many there will be where that is known."""


_CHUNK = 1 << 16


_ATTEMPTS = 5  # how often a connection that is cut off is taken up again before a person is asked to


class DownloadError(OSError):
    """A file could not be fetched; what came of it is kept for the next time."""


class ChecksumError(DownloadError):
    """What was fetched is not what it should be, and was removed."""


class _CutOffError(DownloadError):
    """The connection ended before the file did."""


class BusyError(DownloadError):
    """Another process is fetching the same file."""


def download(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    md5: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Fetch ``url`` to ``path``, checked before it has that name.

    The bytes go to ``path`` + ``.part``. If such a part is there, only the rest is asked for; a server that cannot do
    that sends all of it again. A connection that is cut off is taken up again a few times while it still brings bytes.

    Args:
        url: an ``http`` or ``https`` address.
        path: where to. A file that is there and has the checksum is left as it is; one that has not is replaced once
            the right one has come.
        sha256: the file's checksum in hexadecimal digits; or
        md5: this one, where only it is known.
        progress: called as bytes come in.
        timeout: seconds without a byte after which the network has failed.

    Returns:
        ``path``.

    Raises:
        ChecksumError: other bytes came than expected; they are removed.
        DownloadError: the network failed; what came is kept.

    Example:
        >>> digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "hello.txt"
        ...     _ = path.write_bytes(b"hello")  # as if it had been fetched before: nothing is asked for
        ...     download("https://example.org/hello.txt", path, sha256=digest).name
        'hello.txt'
    """
    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"Expected `url` to be an http or https address, but got {url!r}.")
    kind, expected = _checksum(sha256, md5)
    path = Path(path)
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(part):
        if path.is_file() and file_digest(path, kind) == expected:
            return path
        if not (part.stat().st_size and file_digest(part, kind) == expected):
            _receive(url, path, part, progress, timeout)
        found = file_digest(part, kind)
        if found != expected:
            part.unlink()
            raise ChecksumError(
                f"Expected {url} to have the {kind} {expected}, but got {found}; what came was removed and not used."
            )
        part.replace(path)
    return path


def extract_tar(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Unpack a tar file, compressed or not, of plain files and folders that stay within ``folder``.

    Nothing is unpacked if one member is a link or a device, has an absolute path, or has ``..`` in its path.

    Raises:
        ValueError: the archive has such a member, or is cut off or damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     archive = Path(folder) / "bad.tar"
        ...     with tarfile.open(archive, "w") as tar:
        ...         tar.addfile(tarfile.TarInfo("../x"))
        ...     extract_tar(archive, Path(folder) / "out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: Expected ...bad.tar to hold files and folders that stay within it, but got '../x'.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            _check_end(tar)
            for member in members:
                if not (member.isreg() or member.isdir()) or not _stays_within(member.name):
                    raise ValueError(
                        f"Expected {archive} to hold files and folders that stay within it, but got {member.name!r}."
                    )
            tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"Expected {archive} to be a whole tar file, but it is cut off or damaged.") from error


def _checksum(sha256: str | None, md5: str | None) -> tuple[str, str]:
    """Which checksum there is, and its digits."""
    given = [(kind, text, size) for kind, text, size in (("sha256", sha256, 64), ("md5", md5, 32)) if text is not None]
    if len(given) != 1:
        raise ValueError(f"Expected one of `sha256` and `md5`, but got {'both' if given else 'neither'}.")
    kind, text, size = given[0]
    if not re.fullmatch(rf"[0-9a-fA-F]{{{size}}}", text):
        raise ValueError(f"Expected `{kind}` to be {size} hexadecimal digits, but got {text!r}.")
    return kind, text.lower()


def file_digest(path: Path, kind: str) -> str:
    """A file's checksum, ``kind`` being ``"sha256"`` or ``"md5"``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _stays_within(name: str) -> bool:
    """Whether a member's path is relative and never goes up, on any system."""
    windows = PureWindowsPath(name)
    return not (PurePosixPath(name).is_absolute() or windows.anchor or ".." in windows.parts)


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """A part that this process alone writes (where the system can lock files); an empty one does not stay."""
    with part.open("ab") as file:
        try:
            import fcntl  # noqa: PLC0415 - not on Windows
        except ImportError:
            pass
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"Another process is writing {part}; wait until it is done.") from None
            except OSError:  # a file system without locks
                pass
        if os.name == "nt":
            file.close()  # an open file cannot be renamed there
        try:
            part.touch()  # another process may have finished it between the two lines above
            yield
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


def _receive(url: str, path: Path, part: Path, progress: Progress | None, timeout: float) -> None:
    """Bring ``part`` to its full length."""
    for attempt in range(1, _ATTEMPTS + 1):
        size = part.stat().st_size
        try:
            return _continue(url, path, part, progress, timeout)
        except _CutOffError:
            if attempt == _ATTEMPTS or part.stat().st_size <= size:
                raise
    raise AssertionError  # the last attempt returns or raises


def _continue(url: str, path: Path, part: Path, progress: Progress | None, timeout: float) -> None:
    """Ask once for what ``part`` lacks, and append it."""

    def failed(error: BaseException | str, kind: type[DownloadError] = DownloadError) -> DownloadError:
        error = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
        reason = " ".join(f"{error}".split()).removesuffix(".") or type(error).__name__
        size = part.stat().st_size
        kept = f"{size} bytes are kept in {part} and the next attempt goes on from there" if size else "try again"
        return kind(f"Could not fetch {url} ({reason}); {kept}, or put the file at {path} yourself.")

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
    """A response, and the byte that it begins with: ``start``, or 0 where the server cannot begin there."""

    def ask(begin: int) -> Any:
        headers = {"User-Agent": "longtail"} | ({"Range": f"bytes={begin}-"} if begin else {})
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)

    try:
        response = ask(start)
    except urllib.error.HTTPError as error:
        if not (start and error.code == 416):  # the part is longer than the file: not of this file
            raise
        error.close()
        return ask(0), 0
    if response.status != 206:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return response, start
    response.close()  # some other piece of it
    return ask(0), 0


def _check_end(tar: tarfile.TarFile) -> None:
    """A tar file ends in zeros, and gzip's checksum comes after them; tarfile itself takes any end for the end."""
    file = tar.fileobj
    assert file is not None  # it is open
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError
    while file.read(_CHUNK):
        pass

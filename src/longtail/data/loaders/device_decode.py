"""JPEG files decoded on the GPU by torchvision; other files are decoded on the CPU."""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from longtail.data.loaders.decode import UnreadableImageError, decode, jpeg_header
from longtail.data.loaders.prefetch import ahead, started_here

Group = TypeVar("Group")
Read = Tensor | Future[Tensor | UnreadableImageError]
"""The bytes of a JPEG that a GPU will decode, or the future pixels of another file."""

_END = b"\xff\xd9"
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
"""Flags to open files without waiting, even for a pipe without a writer; Windows has no such flag."""
_OPEN = 64  # open files at a time
_LARGEST = 2**26  # bytes of a file that are read at once; Pillow reads larger files in pieces
_READ_AHEAD = 3  # groups of files that are read in advance


def decoded_ahead(
    groups: Iterator[tuple[Group, Sequence[str]]], device: torch.device, workers: int
) -> Generator[tuple[Group, list[Tensor | UnreadableImageError]], None, None]:
    """Yield groups of paths decoded by :func:`decode_on`, while a thread reads the files of the next three groups.

    ``workers`` threads decode files that the device cannot decode.
    """
    pool = ThreadPoolExecutor(workers, "longtail-decode", initializer=started_here(lambda: None))

    def read() -> Generator[tuple[Group, Sequence[str], list[Read]], None, None]:
        for group, paths in groups:
            yield group, paths, read_images(paths, device, pool)

    try:
        with closing(ahead(read(), _READ_AHEAD)) as files_ahead:
            for group, paths, files in files_ahead:
                yield group, decode_on(device, files, paths)
    finally:
        pool.shutdown(cancel_futures=True)


def read_images(paths: Sequence[str], device: torch.device, pool: Executor) -> list[Read]:
    """Read image files for :func:`decode_on`; ``pool`` decodes those that the device cannot decode.

    Paths are strings, since joining a ``Path`` takes as long as reading a small file. One thread should call this:
    cached files are read faster by one thread than by several that share Python's lock. The operating system is
    notified of some dozens of files before the first of them is read.
    """
    found: list[Read] = []
    for begin in range(0, len(paths), _OPEN):
        some = paths[begin : begin + _OPEN]
        contents = _contents(some) if device.type == "cuda" else [bytearray()] * len(some)
        for path, content in zip(some, contents, strict=True):
            if _suits_the_gpu(content):
                found.append(torch.frombuffer(content, dtype=torch.uint8))
            else:
                found.append(pool.submit(_on_cpu, Path(path)))
    return found


def _contents(paths: Sequence[str]) -> list[bytearray]:
    """Return the content of each file; nothing if it cannot be read: the CPU's decoder will report why."""
    with ExitStack() as stack:
        opened = [_opened(path, stack) for path in paths]
        return [bytearray() if file is None else _content(file) for file in opened]


def _opened(path: str, stack: ExitStack) -> int | None:
    """Open a file that the system starts to fetch and that ``stack`` closes."""
    try:
        file = os.open(path, READING)
    except (OSError, ValueError):  # ValueError: a null character
        return None
    stack.callback(os.close, file)
    if hasattr(os, "posix_fadvise"):  # not on every system and not for every kind of file
        with suppress(OSError):
            os.posix_fadvise(file, 0, _LARGEST, os.POSIX_FADV_WILLNEED)
    return file


def _content(file: int) -> bytearray:
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return bytearray()
        content = bytearray(status.st_size)
        read = os.readv(file, [content])
        return content if read == len(content) else bytearray()
    except OSError:
        return bytearray()


def decode_on(device: torch.device, found: Sequence[Read], paths: Sequence[str]) -> list[Tensor | UnreadableImageError]:
    """Return RGB pixels on the device, uint8 ``(3, height, width)``, or an error, for each result of `read_images`.

    JPEGs are decoded together; nvJPEG and the CPU's decoder differ by a few levels per pixel. Files that nvJPEG refuses
    are decoded on the CPU.
    """
    places = [i for i, image in enumerate(found) if isinstance(image, Tensor)]
    decoded: dict[int, Tensor | UnreadableImageError] = {}
    if places:
        # The decoder writes on its own stream, into memory that pending work of this stream may still use.
        torch.cuda.current_stream(device).synchronize()
        for i, image in zip(places, _decode_jpegs([found[i] for i in places], device), strict=True):
            decoded[i] = _on_cpu(Path(paths[i])) if image is None else image
    images = [image.result() if isinstance(image, Future) else decoded[i] for i, image in enumerate(found)]
    return [image.to(device, non_blocking=True) if isinstance(image, Tensor) else image for image in images]


def _decode_jpegs(files: Sequence[Read], device: torch.device) -> list[Tensor | None]:
    """Return each image, or None if nvJPEG refuses it; one bad file fails its batch, so batches are halved."""
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415 - an extra

    try:
        decoded: list[Tensor | None] = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device)
        return decoded
    except RuntimeError:
        if len(files) == 1:
            return [None]
        middle = len(files) // 2
        return _decode_jpegs(files[:middle], device) + _decode_jpegs(files[middle:], device)


def _on_cpu(path: Path) -> Tensor | UnreadableImageError:
    try:
        return decode(path)
    except UnreadableImageError as error:
        return error


def _suits_the_gpu(content: bytearray) -> bool:
    """Whether a file is a whole JPEG, grey or YCbCr, upright, with no more than ``MAX_PIXELS``.

    nvJPEG completes truncated files, misreads CMYK, ignores EXIF and has no limit, so Pillow decodes such files.
    """
    header = jpeg_header(content)
    return header is not None and header.transformed and header.upright and content.endswith(_END)

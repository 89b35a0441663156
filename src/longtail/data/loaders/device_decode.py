"""JPEG files decoded on the GPU, where torchvision can; what it cannot goes the way of all files."""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from longtail.data.loaders.decode import UnreadableImageError, decode
from longtail.data.loaders.jpeg import jpeg_header
from longtail.data.loaders.prefetch import ahead, started_here

__all__ = ["READING", "Read", "decode_on", "decoded_ahead", "read_images"]

Group = TypeVar("Group")
Read = Tensor | Future[Tensor | UnreadableImageError]
"""A file, as far as the CPU has to go with it: the bytes of a JPEG that a GPU will decode, or pixels in the making."""

_END = b"\xff\xd9"
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
"""How files are opened: at once, even a pipe into which nobody may ever write. Windows has none."""
_OPEN = 64  # files that are open at a time
_LARGEST = 2**26  # bytes of a file that are read at once; Pillow reads what is larger piece by piece
_READ_AHEAD = 3  # groups of files that are read by the time the device asks for them


def decoded_ahead(
    groups: Iterator[tuple[Group, Sequence[str]]], device: torch.device, workers: int
) -> Generator[tuple[Group, list[Tensor | UnreadableImageError]], None, None]:
    """Groups of image files decoded on a device, while a thread reads the files of the next three groups.

    Args:
        groups: something that names the group, and its paths.
        device: where images go.
        workers: threads that decode what the device cannot.

    Returns:
        each group with its images as :func:`decode_on` gives them.
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
    """Image files, as far as the CPU has to go with them.

    One thread should read: files that lie in the system's cache are read faster by one than by several that
    wait for each other's turn in Python. So that a disk has more than one to do at a time, it is told of some dozens of
    files before the first of them is read.

    Args:
        paths: strings, since joining a ``Path`` takes as long as reading a small file.
        device: where they will be decoded.
        pool: decodes what the device cannot: on a CUDA device all but JPEGs, on any other device everything.

    Returns:
        what :func:`decode_on` takes, one a file.
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
    """What is in each file; nothing of those that cannot be read, about which the CPU's decoder will say why."""
    with ExitStack() as stack:
        opened = [_opened(path, stack) for path in paths]
        return [bytearray() if file is None else _content(file) for file in opened]


def _opened(path: str, stack: ExitStack) -> int | None:
    """A file that the system has begun to fetch, and that is closed with ``stack``."""
    try:
        file = os.open(path, READING)
    except (OSError, ValueError):  # ValueError: a null character
        return None
    stack.callback(os.close, file)
    if hasattr(os, "posix_fadvise"):  # not everywhere, and not of everything that can be opened
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
    """What :func:`read_images` gave, as RGB pixels on the device, uint8 ``(3, height, width)``, or why not.

    JPEGs are decoded together; nvJPEG and the CPU's decoder differ by a few levels a pixel. What nvJPEG refuses is
    decoded on the CPU, which says what is wrong with it.

    Args:
        device: any; bytes only where it is a CUDA device.
        found: one a file.
        paths: where each of them lies.
    """
    places = [i for i, image in enumerate(found) if isinstance(image, Tensor)]
    decoded: dict[int, Tensor | UnreadableImageError] = {}
    if places:
        # The decoder writes on a stream of its own, into memory that this one may have freed and not yet be done with.
        torch.cuda.current_stream(device).synchronize()
        for i, image in zip(places, _decode_jpegs([found[i] for i in places], device), strict=True):
            decoded[i] = _on_cpu(Path(paths[i])) if image is None else image
    images = [image.result() if isinstance(image, Future) else decoded[i] for i, image in enumerate(found)]
    return [image.to(device, non_blocking=True) if isinstance(image, Tensor) else image for image in images]


def _decode_jpegs(files: Sequence[Read], device: torch.device) -> list[Tensor | None]:
    """Each decoded, or None where nvJPEG refuses it, which is found by halving: it refuses all that come with it."""
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
    """Whether a file is a whole JPEG, grey or YCbCr, with no more pixels than Pillow allows.

    nvJPEG fills up what is cut off, takes CMYK for something else and knows no limit: all these are Pillow's.
    """
    header = jpeg_header(content)
    return header is not None and header.transformed and content.endswith(_END)

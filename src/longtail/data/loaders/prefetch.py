"""Prefetching in threads: a bounded number of items is made in advance, and none after the consumer stops."""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from longtail.data.sampling.batch_plan import Batch

Item = TypeVar("Item")


def ahead(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """Yield the items of a generator that runs in another thread, at most ``depth`` items in advance.

    Its errors are raised here. When this generator is closed or collected, ``items`` is closed in its thread, which
    ends.

    Example:
        >>> list(ahead((letter for letter in "abc"), depth=2))
        ['a', 'b', 'c']
    """
    made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    free, left = threading.Semaphore(depth), threading.Event()

    def make() -> None:
        try:
            with closing(items):
                while free.acquire() and not left.is_set():
                    made.put((next(items), None))
        except BaseException as end:  # StopIteration, or an error for the consumer
            made.put((None, end))

    thread = threading.Thread(target=started_here(make), name="longtail-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, end = made.get()
            if isinstance(end, StopIteration):
                return
            if end is not None:
                raise end
            free.release()
            yield item
            del item  # do not keep it until the next one is ready
    finally:
        left.set()
        free.release()
        if thread not in _ancestors():  # which may wait for this one: garbage is collected in any thread
            thread.join()
            _wait_until_gone(thread)


def started_here(run: Callable[[], None]) -> Callable[[], None]:
    """Wrap the function of a new thread, so that the thread knows which threads may wait for it."""
    ancestors = _ancestors()

    def running() -> None:
        _of_this_thread.ancestors = ancestors
        run()

    return running


_of_this_thread = threading.local()


def _ancestors() -> tuple[threading.Thread, ...]:
    """Return this thread, the one that started it, and so on."""
    return (threading.current_thread(), *getattr(_of_this_thread, "ancestors", ()))


def _wait_until_gone(thread: threading.Thread) -> None:
    """Wait until the operating system has ended a thread: at its end MKL frees memory under a lock.

    A process that is forked in between, like the workers of the next epoch, would wait for that lock forever.
    """
    task, patience = _TASKS / str(thread.native_id), time.monotonic() + 1.0
    while task.exists() and time.monotonic() < patience:
        time.sleep(1e-4)


_TASKS = Path("/proc/self/task")  # Linux; other systems do not fork by default


@cache
def _stream(device: torch.device, behind: int) -> torch.cuda.Stream:  # noqa: ARG001 - each has its own
    """Return the stream for a depth of nested threads, the same in every epoch: memory is cached per stream."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def batches_ahead(batches: Generator[Batch, None, None], device: torch.device) -> Generator[Batch, None, None]:
    """Prefetch two batches: the next one is augmented while the model trains on this one."""
    return ahead_on(device, batches, lambda batch: (*batch.views, batch.labels), depth=2)


def ahead_on(
    device: torch.device,
    items: Generator[Item, None, None],
    tensors: Callable[[Item], Iterable[Tensor]],
    depth: int,
) -> Generator[Item, None, None]:
    """Prefetch items with tensors on a device; on a GPU they are made on another stream, which has priority.

    The consumer's stream waits for each item. The memory of its ``tensors`` is not reused before that stream has
    finished with them.
    """
    if device.type != "cuda":
        yield from ahead(items, depth)
        return
    stream = _stream(device, len(_ancestors()))

    def made() -> Generator[tuple[Item, torch.cuda.Event], None, None]:
        with closing(items), torch.cuda.stream(stream):  # the current stream is a property of the thread
            for item in items:
                yield item, stream.record_event()
                del item

    with closing(ahead(made(), depth)) as finished:
        for item, ready in finished:
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in tensors(item):
                tensor.record_stream(current)
            yield item
            del item  # do not keep it until the next one is ready

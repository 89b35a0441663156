"""Things made before they are asked for, in threads: a bounded number of them, and none after the consumer has left."""

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

from longtail.data.sampling.plan import Batch

__all__ = ["ahead", "ahead_on", "batches_ahead", "started_here"]

Item = TypeVar("Item")


def ahead(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """The same items in the same order, made in a thread of their own.

    What goes wrong there is raised here. When this generator is closed or forgotten, ``items`` is closed in its thread,
    and the thread ends.

    Args:
        items: what to make.
        depth: how many may be made, or in the making, and not yet taken.

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
        except BaseException as end:  # the last item was made; or something went wrong, which the consumer must hear
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
            del item  # or it would outlive its use until the next is there
    finally:
        left.set()
        free.release()
        if thread not in _ancestors():  # which may be about to wait for this one: garbage is collected in any thread
            thread.join()
            _wait_until_gone(thread)


def started_here(run: Callable[[], None]) -> Callable[[], None]:
    """What a thread runs, or begins with, that this one starts; it then knows who may be waiting for it."""
    ancestors = _ancestors()

    def running() -> None:
        _of_this_thread.ancestors = ancestors
        run()

    return running


_of_this_thread = threading.local()


def _ancestors() -> tuple[threading.Thread, ...]:
    """This thread, the one that started it, the one that started that, as far as they are ours."""
    return (threading.current_thread(), *getattr(_of_this_thread, "ancestors", ()))


def _wait_until_gone(thread: threading.Thread) -> None:
    """Wait until the system has ended a thread, as Python has: at its very end MKL gives memory back under a lock.

    A process that is forked meanwhile, as the workers of the next epoch are, would wait for that lock forever.
    """
    task, patience = _TASKS / str(thread.native_id), time.monotonic() + 1.0
    while task.exists() and time.monotonic() < patience:
        time.sleep(1e-4)


_TASKS = Path("/proc/self/task")  # Linux's; elsewhere processes are not forked by themselves


@cache
def _stream(device: torch.device, behind: int) -> torch.cuda.Stream:  # noqa: ARG001 - each has its own
    """That of the thread so far behind a consumer, the same in every epoch: a stream's memory is kept for it."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def batches_ahead(
    batches: Generator[Batch, None, None], device: torch.device, depth: int = 2
) -> Generator[Batch, None, None]:
    """:func:`ahead_on` for batches: the next is augmented while the model trains on this one."""
    return ahead_on(device, batches, lambda batch: (*batch.views, batch.labels), depth)


def ahead_on(
    device: torch.device,
    items: Generator[Item, None, None],
    tensors: Callable[[Item], Iterable[Tensor]],
    depth: int,
) -> Generator[Item, None, None]:
    """:func:`ahead` for items on a device: on a GPU they are made on a stream of their own.

    That stream goes first: what is made ahead is little, and the kernels of a training step leave no room between them.
    The consumer's stream waits for each item, and its memory is not used again before that stream is done with it.

    Args:
        device: where the items' tensors lie.
        items: what to make.
        tensors: those of an item that lie on the device.
        depth: as in :func:`ahead`.
    """
    if device.type != "cuda":
        yield from ahead(items, depth)
        return
    stream = _stream(device, len(_ancestors()))

    def made() -> Generator[tuple[Item, torch.cuda.Event], None, None]:
        with closing(items), torch.cuda.stream(stream):  # which stream is current is each thread's own affair
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
            del item  # or it would outlive its use until the next is there

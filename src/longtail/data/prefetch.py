"""Things made before they are asked for, in threads: a bounded number of them, and none after the consumer has left."""

import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from longtail.data.plan import Batch

__all__ = ["ahead", "batches_ahead"]

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

    thread = threading.Thread(target=make, name="longtail-ahead", daemon=True)
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
        if thread is not threading.current_thread():  # garbage is collected in any thread
            thread.join()
            _wait_until_gone(thread)


def _wait_until_gone(thread: threading.Thread) -> None:
    """Wait until the system has ended a thread, as Python has: at its very end MKL gives memory back under a lock.

    A process that is forked meanwhile, as the workers of the next epoch are, would wait for that lock forever.
    """
    task, patience = _TASKS / str(thread.native_id), time.monotonic() + 1.0
    while task.exists() and time.monotonic() < patience:
        time.sleep(1e-4)


_TASKS = Path("/proc/self/task")  # Linux's; elsewhere processes are not forked by themselves


def batches_ahead(
    batches: Generator[Batch, None, None], device: torch.device, depth: int = 2
) -> Generator[Batch, None, None]:
    """:func:`ahead` for batches on a device: on a GPU they are made on a stream of their own.

    So the next batch is decoded and augmented while the model trains on this one. The consumer's stream waits for each
    batch, and its memory is not used again before that stream is done with it.
    """
    if device.type != "cuda":
        yield from ahead(batches, depth)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def made() -> Generator[tuple[Batch, torch.cuda.Event], None, None]:
        with closing(batches), torch.cuda.stream(stream):  # which stream is current is each thread's own affair
            for batch in batches:
                yield batch, stream.record_event()

    with closing(ahead(made(), depth)) as finished:
        for batch, ready in finished:
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in (*batch.views, batch.labels):
                tensor.record_stream(current)
            yield batch

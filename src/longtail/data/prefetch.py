"""Things made before they are asked for, in threads: a bounded number of them, and none after the consumer has left."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from longtail.data.plan import Batch

__all__ = ["ahead", "batches_ahead", "each_ahead"]

Item = TypeVar("Item")
Group = TypeVar("Group")
Result = TypeVar("Result")


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


def each_ahead(
    function: Callable[[Item], Result],
    groups: Iterator[tuple[Group, Sequence[Item]]],
    *,
    threads: int,
    depth: int,
) -> Generator[tuple[Group, list[Result]], None, None]:
    """``function`` of every item of every group, by several threads, group after group.

    A group's items are shared out among all threads, so that the first group is not waited for longer than need be.

    Args:
        function: what to do.
        groups: something that names the group, and its items.
        threads: how many.
        depth: how many groups may be begun and not yet taken.

    Example:
        >>> list(each_ahead(len, iter([("a", ["one", "three"]), ("b", [])]), threads=2, depth=2))
        [('a', [3, 5]), ('b', [])]
    """

    def several(items: Sequence[Item]) -> list[Result]:
        return [function(item) for item in items]

    pool = ThreadPoolExecutor(threads, thread_name_prefix="longtail-each")
    begun: deque[tuple[Group, list[Future[list[Result]]]]] = deque()

    def first() -> tuple[Group, list[Result]]:
        group, parts = begun.popleft()
        return group, [result for part in parts for result in part.result()]

    try:
        for group, items in groups:
            share = max(1, -(-len(items) // threads))
            begun.append((group, [pool.submit(several, items[i : i + share]) for i in range(0, len(items), share)]))
            if len(begun) == depth:
                yield first()
        while begun:
            yield first()
    finally:
        pool.shutdown(cancel_futures=True)


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

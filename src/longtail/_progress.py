"""Progress messages of long operations: a command shows them, the library alone is silent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Phase:
    """A part of the work, for example "reading 20,000 images"."""

    text: str
    total: int | None = None
    """How many things it handles, if that is known."""
    in_logs: bool = True
    """Whether it is worth a line where there is no terminal; not if it happens often."""
    done: int = 0
    over: bool = False

    def advance(self, number: int) -> None:
        """Count things that are done."""
        self.done += number
        _show(self)


Listener = Callable[[Phase], None]
"""Called when a phase starts, advances and ends."""

_listeners: list[tuple[Listener, Callable[[str], None]]] = []


@contextmanager
def listening(on_phase: Listener, on_note: Callable[[str], None]) -> Iterator[None]:
    """Pass phases and notes to these functions in the block, instead of to those of an outer block."""
    _listeners.append((on_phase, on_note))
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def phase(text: str, total: int | None = None, *, in_logs: bool = True) -> Iterator[Phase]:
    """Announce what the block does; the block calls ``advance`` on what is yielded, if ``total`` is given."""
    current = Phase(text, total, in_logs)
    _show(current)
    try:
        yield current
    finally:
        current.over = True
        _show(current)


def note(sentence: str) -> None:
    """Show a message that is not an error."""
    if _listeners:
        _listeners[-1][1](sentence)


def _show(current: Phase) -> None:
    if _listeners:
        _listeners[-1][0](current)

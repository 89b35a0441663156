"""Run folders and the processes that train together: all see the same runs, and no other process trains there."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from zlib import crc32

import torch

from longtail.ranks import Ranks
from longtail.train.checkpoint import latest_checkpoint
from longtail.train.folder import RunFolder

__all__ = ["check_seen_by_all", "hold"]


def check_seen_by_all(folders: Sequence[RunFolder], ranks: Ranks) -> None:
    """Refuse, on all ranks, run folders that ranks see differently: each would go on from what its own disk holds."""
    if ranks.world == 1:
        return
    for folder in folders:
        if not ranks.same(torch.tensor(_seen(folder))):
            raise ValueError(
                f"Expected all processes to see the same in {folder.path}, but they do not; the run folder must be on "
                "a disk that all processes see."
            )


def _seen(folder: RunFolder) -> int:
    """What decides how a run goes on, as a number: its settings, whether it is done, and its last checkpoint."""
    settings = folder.recipe_file.read_bytes() if folder.begun else b""
    latest = latest_checkpoint(folder.checkpoints)
    return crc32(settings + f"{folder.done} {latest.name if latest else None}".encode())


@contextmanager
def hold(folders: Sequence[RunFolder], ranks: Ranks) -> Iterator[None]:
    """The locks on run folders: the process that writes takes them, and where it is refused, all are."""
    with ExitStack() as locks:
        refused: OSError | None = None
        if ranks.first:
            try:
                for folder in folders:
                    locks.enter_context(folder.lock())
            except OSError as error:
                refused = error
        if ranks.any(refused is not None):
            raise refused or BlockingIOError("Expected free run folders, but the first process was refused one.")
        yield

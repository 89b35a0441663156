"""TensorBoard's files, of what the log has. Needs ``longtail[tensorboard]``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["TensorBoard", "numbers"]


def numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line of the log, by the names that TensorBoard shows them under.

    Example:
        >>> dict(numbers({"stage": 0, "epoch": 9, "loss": 0.5, "recall": {"test": {"all": 0.75}}}))
        {'loss': 0.5, 'recall/test/all': 0.75}
    """
    for name in ("loss", "lr", "images_per_second"):
        if name in line:
            yield name, float(line[name])
    for split, recalls in line.get("recall", {}).items():
        for group, value in recalls.items():
            yield f"recall/{split}/{group}", float(value)


class TensorBoard:
    """Writes a run's log as TensorBoard reads it, a step an epoch, counted from 1 over all stages.

    Args:
        folder: where the files go; nothing is written there before the first line.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError("Expected TensorBoard for `tensorboard`: pip install 'longtail[tensorboard]'.") from error
        self._open: Callable[..., Any] = SummaryWriter
        self.folder = folder
        self._writer: Any = None

    def add(self, epoch: int, line: Mapping[str, Any]) -> None:
        """Write a line of the log; ``epoch`` is how many there are with it.

        The first line takes back what was written of the same and later epochs, before the run was stopped.
        """
        if self._writer is None:
            again = any(self.folder.glob("events.*"))
            self._writer = self._open(str(self.folder), purge_step=epoch if again else None)
        for name, value in numbers(line):
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()  # what is in the log is here too, however the run ends

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

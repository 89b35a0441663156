"""Our samplers for the ``DataLoader`` of PyTorch, with ranks, epochs and a state to resume from."""

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from longtail._checks import Vector, check_integer
from longtail._ranks import Ranks
from longtail.data.sampling.draws import Draws
from longtail.data.sampling.samplers import Sampler, _check_labels, shard

__all__ = ["EpochSampler"]


class EpochSampler(torch.utils.data.Sampler[int]):
    """A ``torch.utils.data.Sampler`` of one rank: class-aware, square-root, progressive, or any of our samplers.

    The order of an epoch is a pure function of ``(seed, epoch)``, and the ranks share it: position ``p`` of the epoch
    goes to rank ``p % world``. If the length is not a multiple of ``world``, the first samples of the epoch are
    repeated, so that all ranks have the same number.

    Call :meth:`set_epoch` before each epoch, as with ``DistributedSampler``. Lightning replaces samplers unless
    ``Trainer(use_distributed_sampler=False)``. Accelerate and the Trainer of Transformers distribute batches
    themselves: pass ``rank=0, world=1`` there.

    Args:
        labels: class index of each sample of the data set, shape ``(samples,)``.
        sampler: :class:`ClassAware`, :class:`SquareRoot`, :class:`Progressive` or :class:`Instance`.
        seed: the seed, the same on all ranks.
        rank: rank of this process; default: that of ``torch.distributed``, or 0.
        world: number of processes; default: likewise.

    Example:
        >>> from longtail.data import ClassAware
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2])
        >>> sampler = EpochSampler(labels, ClassAware(per_class=1, length=12))
        >>> loader = torch.utils.data.DataLoader(labels, batch_size=6, sampler=sampler)
        >>> [batch.bincount().tolist() for batch in loader]
        [[2, 2, 2], [2, 2, 2]]
    """

    def __init__(
        self, labels: Vector, sampler: Sampler, *, seed: int = 0, rank: int | None = None, world: int | None = None
    ) -> None:
        here = Ranks.of_this_process()
        self.labels = _check_labels(labels)
        self.sampler = sampler
        self.seed = Draws(seed, 0).seed
        self.world = here.world if world is None else check_integer("world", world, minimum=1)
        self.rank = here.rank if rank is None else check_integer("rank", rank, minimum=0)
        self.epoch = 0
        """The epoch of the next iteration."""
        self._first = 0  # where the next iteration starts
        self._position = 0  # samples of this epoch that were handed out
        if self.rank >= self.world:
            raise ValueError(f"Expected `rank` to be below `world` = {self.world}, but got {self.rank}.")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0; another epoch starts from its beginning."""
        epoch = check_integer("epoch", epoch, minimum=0)
        if epoch != self.epoch:
            self.epoch, self._first, self._position = epoch, 0, 0

    def __len__(self) -> int:
        """Return the samples of this rank in a whole epoch."""
        length = getattr(self.sampler, "length", None) or len(self.labels)
        return int(-(-length // self.world))

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this rank; after :meth:`load_state_dict`, from there on."""
        order = self.sampler.order(self.labels, Draws(self.seed, self.epoch))
        self._position, self._first = self._first, 0  # the iteration after this one is a whole epoch
        for index in shard(order, self.rank, self.world, pad=True).tolist()[self._position :]:
            self._position += 1
            yield index

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return the state, to continue from here.

        Args:
            position: samples of this rank that training has used in this epoch, e.g. batches times their size. The
                default, the samples handed out, is right without workers; with workers the ``DataLoader`` is ahead.
        """
        position = self._position if position is None else check_integer("position", position, minimum=0)
        return {"epoch": self.epoch, "position": position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``: the next iteration yields the rest of its epoch."""
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise ValueError(f"Expected a `state` with {name} = {value!r}, but got {state.get(name)!r}.")
        self.epoch = state["epoch"]
        self._first = self._position = check_integer("position", state["position"], minimum=0)

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a state to fit."""
        return {"seed": self.seed, "world": self.world, "samples": len(self.labels), "sampler": repr(self.sampler)}

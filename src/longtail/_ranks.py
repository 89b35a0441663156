"""The processes that share one batch: how many there are, and how they add up and gather tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """The rows of all ranks, one rank after the other; the gradient of a rank's rows is the sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.begin, ctx.number = dist.get_rank() * len(rows), len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.begin : ctx.begin + ctx.number]


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; a single one unless ``torch.distributed`` is in use.

    Example:
        >>> alone = Ranks.of_this_process()
        >>> alone.world, alone.sum(torch.tensor(3.0))
        (1, tensor(3.))
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def of_this_process(cls) -> "Ranks":
        """Rank and world size of ``torch.distributed``, if it is in use."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks, without gradient."""
        if self.world == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any rank: ranks must decide together what they do together."""
        return bool(self.sum(torch.tensor(int(flag)))) if self.world > 1 else flag

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Set each tensor to that of the first rank."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def same(self, values: Tensor) -> bool:
        """Whether all ranks have the ``values`` of the first rank."""
        first = values.clone()
        self.agree([first])
        return not self.any(not torch.equal(first, values))

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, equally many each, one rank after the other; gradients flow back to each rank."""
        if self.world == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows)
        return gathered

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()

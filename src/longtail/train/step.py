"""The training step, written once: forward pass over all views, objective, backward pass, optimiser."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from longtail.data.sampling.batch_plan import Batch
from longtail.methods.objective import Objective, Sums
from longtail.models import Outputs
from longtail.train.mixing import mix_images, share_of
from longtail.train.optimizer import load_optimizer, optimizer_tensors
from longtail.train.weights import MovingAverage


class Step:
    """One training step.

    The sum of the losses and the first step with a loss that is not finite stay on the device until they are read. The
    model returns :class:`Outputs <longtail.models.Outputs>` and may be compiled or distributed; ``precision`` is of the
    forward pass, and parameters keep theirs.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        *,
        precision: torch.dtype = torch.float32,
        channels_last: bool = False,
        clip_grad: float = 0.0,
        ema: MovingAverage | None = None,
    ) -> None:
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.clip_grad = clip_grad
        """The largest norm of the gradient of all parameters; 0: any."""
        self.ema = ema
        """The average of the weights, if it is kept."""
        self.precision = precision
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        device = optimizer.param_groups[0]["params"][0].device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        """Steps since the epoch began, including those before a resume."""
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=device)
        """The first of them whose loss was not finite; -1: none."""

    def set_rate(self, lr: float) -> None:
        """Set the learning rate of the next steps; each group of parameters has its factor."""
        for group in self.optimizer.param_groups:
            scaled = lr * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(scaled)  # in place, because a captured graph reads it
            else:
                group["lr"] = float(scaled)  # torch refuses large integers

    def state(self) -> dict[str, Tensor]:
        """What a step changes apart from the model and the objective: checkpoints keep it."""
        return optimizer_tensors(self.optimizer) | self._own_state()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`state`; a missing tensor raises a ``KeyError``."""
        load_optimizer(self.optimizer, tensors)
        for name, value in self._own_state().items():
            value.copy_(tensors[name])

    def _own_state(self) -> dict[str, Tensor]:
        average = {} if self.ema is None else self.ema.state()
        return average | {"loss_sum": self.loss_sum, "taken": self.taken, "first_bad": self.first_bad}

    def __call__(self, batches: Sequence[Batch], mixed: Tensor | None = None) -> None:
        """Take a step.

        Args:
            batches: the micro-batches of this rank.
            mixed: the weight of an image and its target in mixup, a scalar in [0, 1], or a row of
                :func:`mixed_rows <longtail.train.mixing.mixed_rows>`; default: nothing is mixed. The first image of a
                batch is mixed with its last, and so on, within each rank.
        """
        # Every operation here is a launch, and a small network's step is only hundreds of them: avoid needless ones.
        share = None if mixed is None else share_of(mixed, batches[0].views[0])
        denominators = self._denominators(batches, share)
        self.optimizer.zero_grad(set_to_none=True)
        ranks = self.objective.ranks
        losses = []
        for number, batch in enumerate(batches):
            distributed = self.model if isinstance(self.model, DistributedDataParallel) else None
            with distributed.no_sync() if distributed and number + 1 < len(batches) else nullcontext():
                loss = self._loss(batch, denominators, mixed, share)
                # DDP averages over ranks, but the losses of the ranks are parts of one sum.
                (loss if ranks.world == 1 else loss * ranks.world).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if self.clip_grad:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip_grad)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update()
        total = ranks.sum(reduce(add, losses))
        bad = (total - total != 0) & (self.first_bad < 0)  # not finite, for the first time
        torch.where(bad, self.taken, self.first_bad, out=self.first_bad)
        self.loss_sum += total
        self.taken += 1

    def _denominators(self, batches: Sequence[Batch], share: Tensor | None) -> Sums:
        sums: Sums = {}
        for batch in batches:
            for name, value in self._mix(self.objective.denominators, batch, share).items():
                sums[name] = sums[name] + value if name in sums else value
        return {name: self.objective.ranks.sum(value) for name, value in sums.items()}

    def _loss(self, batch: Batch, denominators: Sums, mixed: Tensor | None, share: Tensor | None) -> Tensor:
        images = batch.views[0] if len(batch.views) == 1 else torch.cat(batch.views)
        images = images.contiguous(memory_format=self.memory_format)
        if mixed is not None:
            images = mix_images(images, mixed)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16):
            outputs = self.model(images)
        outputs = Outputs(  # losses are computed in float32 or better
            _single(outputs.logits),
            _single(outputs.features),
            {name: _single(value) for name, value in outputs.extra.items()},
        )
        sums = self._mix(lambda labels: self.objective(outputs, labels), batch, share)
        terms = [self._term(name, value, denominators[name]) for name, value in sums.items()]
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum()

    def _term(self, name: str, value: Tensor, denominator: Tensor) -> Tensor:
        """A weighted term of the loss, divided by its denominator, in the type of ``value``."""
        weight = self.objective.weights[name]
        if denominator.is_floating_point():
            denominator = denominator.to(value.dtype)
        term = (value if weight == 1 else weight * value) / denominator
        if term.ndim:
            raise ValueError(
                f"Expected the objective to give sums over samples, of shape (), but got shape {tuple(value.shape)} "
                f"for the term {name!r} and {tuple(denominator.shape)} for its denominator."
            )
        return term

    @staticmethod
    def _mix(function: Callable[[Tensor], Sums], batch: Batch, share: Tensor | None) -> Sums:
        """``function`` of the labels; of both labels of each image in proportion if images are mixed."""
        found = function(batch.labels)
        if share is None:
            return found
        other = function(batch.labels.flip(0))
        return {name: share * value + (1 - share) * other[name] for name, value in found.items()}


def _single(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))

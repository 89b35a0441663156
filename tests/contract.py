"""A small problem for every objective, in float64 with frozen BatchNorm; as a program, one of two ranks that share it.

`python -m tests.contract RANK FOLDER` takes the same steps as :func:`taken` does alone and leaves what came out.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from longtail._ranks import Ranks
from longtail.beta import AutoBeta
from longtail.classes import Groups
from longtail.data.sampling.batch_plan import Batch
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.methods import METHODS, Objective, Task
from longtail.models import HeadSpec, Model, build_model, replace_head
from longtail.train.optimizer import make_optimizer
from longtail.train.step import Step

COUNTS = torch.tensor([400, 150, 60, 12, 3])
GROUPS = Groups.from_indices(head=[0, 1], medium=[2], tail=[3, 4])
EPOCHS = 10
LABELS = ([0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0], [1, 4, 0, 2, 0, 3, 3, 3, 3, 1, 0])
"""Of either rank: one sees the head only, so that a mean of the ranks' means is not the mean; and sums of class weights
in float32 would depend on how the batch is cut."""
_SPECIAL = {"balanced-softmax", "logit-adjust", "ldam"}
_ALL = [(name, k) for name, method in METHODS.items() if name not in _SPECIAL for k in range(len(method.stages))]
STAGES = list({(METHODS[n].stages[k].objective, METHODS[n].stages[k].head): (n, k) for n, k in reversed(_ALL)}.values())
"""Stages of methods, one for each pair of objective and head, without losses that are another one's special case."""
ACCUMULATED = ("cbs", "class-balanced-weights", "ldam-drw", "reslt")
SMALL = {"projection": 8, "hidden": 16}


def params_of(name: str, **given: object) -> object:
    method = METHODS[name]
    params = method.make_params({key: value for key, value in SMALL.items() if key in method.parameters} | given)
    return replace(params, beta=1.5) if method.is_auto(params) else params  # a beta that makes a difference


def head_of(name: str, number: int = 0) -> HeadSpec:
    return METHODS[name].stages[number].head_of(params_of(name))


def model_of(name: str, number: int = 0) -> tuple[Model, list[torch.nn.Parameter]]:
    """The method's model in a stage, and what of it trains."""
    method = METHODS[name]
    stage = method.stages[number]
    model = build_model(
        "small-cnn",
        len(COUNTS),
        head=head_of(name),
        in_channels=1,
        projection=(SMALL["hidden"], SMALL["projection"]) if method.projection else None,
        prototypes=method.prototypes,
    )
    if number:
        replace_head(model, head_of(name, number), seed=number, keep_weights=not stage.reinit)
    return model, model.trainable(stage.train)


def objective_of(name: str, number: int = 0, *, label_smoothing: float = 0.0, **given: object) -> Objective:
    task = Task(COUNTS, GROUPS, EPOCHS, params_of(name, **given), label_smoothing=label_smoothing)
    return METHODS[name].stages[number].objective(task)


def batch_of(labels: list[int], views: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.randn(len(labels), 1, 8, 8, dtype=torch.float64, generator=generator) for _ in range(views)]
    return Batch(tuple(images), torch.tensor(labels), torch.arange(len(labels)))


def joined(batches: list[Batch]) -> Batch:
    """Several ranks' or micro-batches' samples as one batch."""
    views = tuple(torch.cat(view) for view in zip(*(batch.views for batch in batches), strict=True))
    return Batch(views, torch.cat([batch.labels for batch in batches]), torch.cat([batch.indices for batch in batches]))


def halves(batch: Batch) -> list[Batch]:
    """A batch as two micro-batches of different lengths."""
    cut = [slice(0, 4), slice(4, None)]
    return [Batch(tuple(v[part] for v in batch.views), batch.labels[part], batch.indices[part]) for part in cut]


def rank_batches(name: str, step: int) -> list[Batch]:
    """Each rank's batch in a step."""
    views = len(objective_of(name).views)
    return [batch_of(labels, views, seed=10 * step + rank) for rank, labels in enumerate(LABELS)]


def taken(name: str, number: int, steps: list[list[Batch]], ranks: Ranks | None = None) -> dict[str, Tensor]:
    """Take steps at learning rate 0; the last one's gradients, the sum of the losses, and the objective's state.

    Args:
        name: the method.
        number: its stage.
        steps: for each step the micro-batches of this rank.
        ranks: with whom the steps are shared.
    """
    model, parameters = model_of(name, number)
    model = model.double().eval()  # BatchNorm stays as it is
    objective = objective_of(name, number).double()
    objective.begin_epoch(EPOCHS - 1)  # deferred weights are on
    wrapped: torch.nn.Module = model
    if ranks is not None:
        objective.ranks = ranks
        wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer([{"params": parameters, "weight_decay": 0.0}], momentum=0.0)
    step = Step(wrapped, objective, optimizer)
    for batches in steps:
        step(batches)
    found = {f"gradient.{k}": p.grad for k, p in model.named_parameters() if p.requires_grad and p.grad is not None}
    assert len(found) == len(parameters)
    return found | {"loss": step.loss_sum} | {f"state.{k}": v for k, v in objective.state_dict().items()}


def updated(cut: slice) -> dict[str, Tensor]:
    """What AutoBeta has after four updates with a part of the held-out data; the last one has a NaN."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat_interleave(30)
    logits = torch.randn(150, 5, generator=generator, dtype=torch.float64)
    logits[torch.arange(150), labels] += 1.5
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.0)
    auto = AutoBeta(loss)
    own = labels[cut]
    for number in (3, 2, 1):
        auto.update((logits + number / 4 * COUNTS.log())[cut], own)
    logits[7] = torch.nan
    auto.update(logits[cut], own)
    return {
        "beta": auto.beta,
        "shift": loss.logit_shift,
        "trace": torch.tensor([row[:4] for row in auto.trace[:3]], dtype=torch.float64),
        "problems": torch.tensor([row.problem is not None for row in auto.trace]).long(),
    }


def main(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    ranks = Ranks.of_this_process()
    for name, number in STAGES:
        found = taken(name, number, [[rank_batches(name, step)[rank]] for step in range(2)], ranks)
        save_file({key: value.contiguous() for key, value in found.items()}, folder / f"{name}-{number}-{rank}")
    for name in ACCUMULATED:
        parts = halves(rank_batches(name, 0)[rank])
        found = taken(name, 0, [parts], ranks)
        save_file({key: value.contiguous() for key, value in found.items()}, folder / f"{name}-halves-{rank}")
    rows = torch.full((2, 3), float(rank), dtype=torch.float64, requires_grad=True)
    gathered = ranks.gather(rows)
    (gathered * torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3) * (rank + 1)).sum().backward()
    assert rows.grad is not None
    agreed = torch.full((2,), 7.0 + rank)
    ranks.agree([agreed])
    found = {
        "sum": ranks.sum(torch.tensor([rank + 1.0, 10.0])),
        "rows": gathered.detach(),
        "gradient": rows.grad,
        "any": torch.tensor([ranks.any(False), ranks.any(rank == 1), ranks.any(True)]).long(),
        "agreed": agreed,
    }
    save_file(found, folder / f"ranks-{rank}")
    for name, end in {"beta": 40, "beta-alone": 150}.items():  # the first rank has one class and a part, or everything
        save_file(updated(slice(end) if rank == 0 else slice(end, None)), folder / f"{name}-{rank}")
    ranks.wait()
    os._exit(0)  # torch keeps gloo's threads once DDP was made, and they may abort an ordinary exit


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

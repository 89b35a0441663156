"""What tests of steps share that a loader feeds: loaders of forty photographs, a step, and all that it may change."""

import torch
from tests.contract import METHODS, Task, head_of, params_of

from longtail.classes import Groups
from longtail.data import BatchPlan, Streaming
from longtail.data.augment import Compose, Normalise, RandomResizedCrop
from longtail.models import build_model
from longtail.train.drivers import Eager, Fed
from longtail.train.optimizer import make_optimizer
from longtail.train.step import Step

BAD = 17
"""The picture that cannot be read."""
KINDS = {"fed": Fed, "eager": Eager}


def loader_of(split, device="cpu", *, views=1, bad_images="skip", **plan):
    """Batches of twelve: three that are full and one of four, one of which has lost a picture."""
    view = Compose((RandomResizedCrop(16), Normalise((0.5,) * 3, (0.3,) * 3)))
    plan = BatchPlan(split.labels, (view,) * views, **{"batch_size": 12, **plan})
    return Streaming(split, plan, device, decode_in="device", bad_images=bad_images)


def step_of(method="cbs", device="cpu"):
    stage, params = METHODS[method].stages[0], params_of(method)
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    objective = stage.objective(Task(torch.arange(10, 0, -1), groups, 3, params)).to(device)
    projection = (params.hidden, params.projection) if METHODS[method].projection else None
    made = {"head": head_of(method), "projection": projection, "prototypes": METHODS[method].prototypes}
    model = build_model("small-cnn", 10, **made).to(device)
    optimizer = make_optimizer([{"params": model.trainable("all"), "weight_decay": 5e-4}], momentum=0.9)
    step = Step(model, objective, optimizer)
    step.set_rate(0.02)
    return step


def sizes_in(plan, seed, epoch, start=0):
    """How many pictures each batch has that can be read."""
    return [int((batch.indices != BAD).sum()) for batch in plan.training(seed, epoch, start)]


def state_of(step):
    """All that a step may change, by name; the tensors themselves."""
    momenta = {f"momentum {n}": s["momentum_buffer"] for n, s in enumerate(step.optimizer.state.values())}
    objective = {f"objective {name}": value for name, value in step.objective.named_buffers()}
    counters = {"loss_sum": step.loss_sum, "taken": step.taken, "first_bad": step.first_bad}
    return {**step.model.state_dict(), **momenta, **objective, **counters}


def copy_of(state):
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def assert_equal(state, expected):
    assert state.keys() == expected.keys()
    differing = [name for name, value in expected.items() if not torch.equal(state[name], value)]
    assert not differing


def weights_of(step):
    return copy_of(step.model.state_dict())

"""Our losses in the training step of timm: soft targets of mixup and cutmix, clipping, and an EMA of the model."""

import copy

import pytest
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.task import ClassificationTask
from timm.utils import ModelEmaV3, dispatch_clip_grad

from longtail import ClassBalancedSoftmaxLoss, shift_in_training

COUNTS = [100, 30, 10, 3]


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(COUNTS).float(), 16, True, generator=generator)
    return torch.randn(16, 3, 32, 32, generator=generator) + labels.view(-1, 1, 1, 1) / 2, labels


def train(loss, *, hook=False, steps=4):
    """Run steps as timm's train.py has them; return the model, its EMA, and losses beside those of the formula."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4)
    keys = list(model.state_dict())
    if hook:
        shift_in_training(model.get_classifier(), COUNTS, beta=1.5)
    task = ClassificationTask(model, loss, verbose=False)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    ema = ModelEmaV3(model, decay=0.9)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=4)
    seen = []
    for step in range(steps):
        images, target = mixup(*batch(step))
        found = task(images, target)
        found["loss"].backward()
        dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model, step=step)
        seen.append((found["loss"].item(), found["output"].detach(), target))
    assert list(model.state_dict()) == list(ema.module.state_dict()) == keys
    return model, ema, seen


@pytest.fixture(autouse=True)
def _same_mixup():
    import numpy as np

    np.random.seed(0)  # noqa: NPY002 - Mixup draws from it


def test_loss_is_the_soft_cross_entropy_of_shifted_logits():
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)
    _, _, seen = train(loss)
    for found, logits, target in seen:
        assert target.shape == (16, 4)
        expected = SoftTargetCrossEntropy()(logits + 1.5 * torch.tensor(COUNTS).log(), target)
        assert found == pytest.approx(expected.item(), rel=1e-5)


def test_hook_under_the_loss_of_timm_trains_the_same_model():
    import numpy as np

    one, _, _ = train(ClassBalancedSoftmaxLoss(COUNTS, beta=1.5))
    np.random.seed(0)  # noqa: NPY002
    other, ema, _ = train(SoftTargetCrossEntropy(), hook=True)
    for (name, value), twin in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(twin, value, msg=name, rtol=1e-4, atol=1e-5)
    assert not ema.module.training
    twin = copy.deepcopy(ema.module)
    twin.get_classifier()._forward_hooks.clear()
    images, _ = batch(9)
    assert torch.equal(ema.module(images), twin(images))


def test_autocast():
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)
    model = timm.create_model("test_resnet", num_classes=4)
    images, labels = batch(0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
        found = loss(logits, labels)
    assert (logits.dtype, found.dtype) == (torch.bfloat16, torch.float32)
    found.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

"""The losses under the transforms of ``torch.func``, where labels cannot be read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.losses.calls import C, Y, Z, every_call, every_neutral
from tests.losses.reference import refused
from torch import Tensor

from longtail.losses import ClassBalancedSoftmaxLoss


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # scatter_ has no batching rule
class TestTransforms:
    """``vmap``, ``grad`` and ``jacrev``."""

    @every_neutral
    @pytest.mark.parametrize("labels_too", [True, False])
    def test_vmap_gives_what_cross_entropy_gives(self, neutral: Callable[..., Tensor], labels_too: bool) -> None:
        """Over logits and labels, or logits alone."""
        z, y = torch.randn(3, 6, C), torch.stack([Y, Y.flip(0), Y.roll(1)])
        given, dims = (y, 0) if labels_too else (Y, None)
        expected = torch.vmap(F.cross_entropy, in_dims=(0, dims))(z, given)
        torch.testing.assert_close(torch.vmap(neutral, in_dims=(0, dims))(z, given), expected)

    @every_neutral
    def test_gradients_of_each_sample(self, neutral: Callable[..., Tensor]) -> None:
        """One transform in another."""
        weighted: dict[str, Any] = {"weight": torch.tensor([1.0, 2.0, 3.0, 4.0]), "label_smoothing": 0.1}
        for options in ({}, weighted):
            expected = torch.vmap(torch.func.grad(lambda z, y, o=options: F.cross_entropy(z, y, **o)))(Z, Y)
            found = torch.vmap(torch.func.grad(lambda z, y, o=options: neutral(z, y, **o)))(Z, Y)
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.func.jacrev(neutral)(Z, Y), torch.func.jacrev(F.cross_entropy)(Z, Y))

    @every_call
    def test_every_loss(self, call: Callable[..., Tensor]) -> None:
        """As one batch after the other."""
        z, y = torch.randn(3, 6, C), torch.stack([Y, Y.flip(0), Y.roll(1)])
        expected = torch.stack([call(*each) for each in zip(z, y, strict=True)])
        torch.testing.assert_close(torch.vmap(call)(z, y), expected)

    @pytest.mark.parametrize("soft", [False, True])
    def test_masked_classes(self, soft: bool) -> None:
        """Labels of classes without examples are not checked."""
        loss = ClassBalancedSoftmaxLoss([5, 0, 3, 2], beta=1, zero_counts="mask")
        z, y = torch.randn(2, 3, C), torch.tensor([[0, 2, 3], [3, 3, 0]])
        target = F.one_hot(y, C).float() if soft else y
        expected = torch.stack([loss(*each) for each in zip(z, target, strict=True)])
        torch.testing.assert_close(torch.vmap(loss)(z, target), expected)

    @every_neutral
    def test_torch_refuses_wrong_labels(self, neutral: Callable[..., Tensor]) -> None:
        """Inside a transform labels are not checked; outside they are."""
        y = torch.stack([Y, Y])
        y[1, 2] = C
        with pytest.raises((IndexError, RuntimeError)):
            torch.vmap(neutral)(torch.stack([Z, Z]), y)
        with refused(ValueError, "`target`", C):
            neutral(Z, y[1])

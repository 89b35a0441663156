"""What every loss declares, and its state: attributes, devices, meta tensors, fractional counts."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from tests.losses.calls import COUNTS, MODULES, C, Y, Z
from torch import Tensor, nn

from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    ProCoLoss,
    class_shift,
    effective_number_weights,
    ldam_margins,
)
from longtail.losses._common import Loss

SHIFTED = {"cbs", "balanced", "adjusted", "prior"}
every_loss = pytest.mark.parametrize("name", MODULES)
counted = pytest.mark.parametrize("name", ["cbs", "balanced", "adjusted", "ldam"])


class TestDeclarations:
    """``logit_shift``, ``is_pure_shift`` and ``rebalances``."""

    @every_loss
    def test_the_loss_of_the_shifted_logits(self, name: str) -> None:
        """A pure shift is the cross entropy of logits + shift; every other loss declares no shift."""
        loss = MODULES[name]()
        assert loss.is_pure_shift == (name in SHIFTED)
        if name in SHIFTED:
            torch.testing.assert_close(loss(Z, Y), F.cross_entropy(Z + loss.logit_shift, Y))
        else:
            assert loss.logit_shift is None

    @pytest.mark.parametrize("name", sorted(SHIFTED))
    def test_weights_and_smoothing_are_more_than_a_shift(self, name: str) -> None:
        assert not MODULES[name](weight=torch.ones(C)).is_pure_shift
        assert not MODULES[name](label_smoothing=0.1).is_pure_shift
        assert MODULES[name](reduction="none", ignore_index=3).is_pure_shift

    def test_rebalances(self) -> None:
        """By a shift, by margins or by weights; counts that are all the same and masked classes correct nothing."""
        for loss in (
            *(MODULES[name]() for name in MODULES if name != "focal"),
            FocalLoss(2.0, weight=torch.ones(C)),
            ProCoLoss(COUNTS, 4, beta=1.0),
        ):
            assert loss.rebalances, loss
        for loss in (
            FocalLoss(2.0),
            ClassBalancedSoftmaxLoss(COUNTS, beta=0),
            ClassBalancedSoftmaxLoss([5, 0, 3], beta=0, zero_counts="mask"),
            BalancedSoftmaxLoss([7, 7]),
            PriorShiftedSoftmaxLoss(COUNTS, COUNTS),
            LDAMLoss([7, 7, 0], zero_counts="mask"),
            ProCoLoss(COUNTS, 4, beta=0.0),
        ):
            assert not loss.rebalances, loss

    def test_a_new_loss_is_taken_for_no_shift(self) -> None:
        """An attribute called ``shift`` means nothing: only what is declared counts."""

        class VectorScaling(Loss):
            def __init__(self) -> None:
                super().__init__(reduction="none")
                self.shift = torch.ones(C)

            def forward(self, logits: Tensor, target: Tensor) -> Tensor:
                return F.cross_entropy(2 * logits + self.shift, target, reduction=self.reduction)

        loss = VectorScaling()
        assert (loss.logit_shift, loss.is_pure_shift, loss.rebalances) == (None, False, False)

    def test_a_subclass_that_computes_something_else_is_not_a_pure_shift(self):
        class Squared(ClassBalancedSoftmaxLoss):
            def forward(self, logits, target):
                return super().forward(logits, target) ** 2

        class Renamed(ClassBalancedSoftmaxLoss):
            pass

        loss = Squared([90, 10], beta=1.5)
        assert (loss.is_pure_shift, loss.rebalances) == (False, True)
        assert Renamed([90, 10], beta=1.5).is_pure_shift

    @every_loss
    def test_is_a_cross_entropy_with_its_attributes(self, name: str) -> None:
        """As ``nn.CrossEntropyLoss`` has them, so that other libraries know that predictions are a softmax."""
        loss = MODULES[name](reduction="sum", label_smoothing=0.1, ignore_index=3, weight=torch.ones(C))
        assert isinstance(loss, nn.CrossEntropyLoss)
        assert (loss.reduction, loss.label_smoothing, loss.ignore_index) == ("sum", 0.1, 3)
        assert torch.equal(loss.weight, torch.ones(C))
        loss.reduction = "none"  # read at each call
        assert loss(Z, Y).shape == Y.shape
        assert (MODULES[name]().reduction, MODULES[name]().label_smoothing, MODULES[name]().weight) == ("mean", 0, None)


class TestMeta:
    """Models that are built without memory and then loaded."""

    @every_loss
    @pytest.mark.parametrize("assign", [False, True])
    def test_built_on_the_meta_device_then_loaded(self, name: str, assign: bool) -> None:
        """The loss reads its counts on the CPU, so that it works at once, and follows the state that is loaded."""
        saved = nn.ModuleDict({"head": nn.Linear(2, C), "loss": MODULES[name](weight=torch.rand(C))})
        with torch.device("meta"):
            model = nn.ModuleDict({"head": nn.Linear(2, C), "loss": MODULES[name](weight=torch.ones(C, device="cpu"))})
        if not assign:
            model.to_empty(device="cpu")
        model.load_state_dict(saved.state_dict(), assign=assign)
        assert torch.equal(model["loss"](Z, Y), saved["loss"](Z, Y))

    @pytest.mark.parametrize("counts_saved", [True, False])
    def test_from_pretrained(self, counts_saved: bool) -> None:
        """As Transformers 5 does it: built on meta, loaded tensors are assigned, all other buffers are emptied."""

        class Model(nn.Module):
            def __init__(self, counts: list[int]) -> None:
                super().__init__()
                self.head = nn.Linear(4, C)
                self.loss = ClassBalancedSoftmaxLoss(counts, beta=1.5)

        saved = Model(COUNTS)
        with torch.device("meta"):
            model = Model([1, 2, 3, 4] if counts_saved else COUNTS)
        state = {name: tensor for name, tensor in saved.state_dict().items() if counts_saved or name != "loss.counts"}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            path, _, key = name.rpartition(".")
            value = state[name].clone() if name in state else torch.full_like(tensor, 7, device="cpu")
            value._is_hf_initialized = name in state
            with warnings.catch_warnings():
                warnings.simplefilter("error" if name in state else "ignore")  # its values are not used
                setattr(model.get_submodule(path), key, nn.Parameter(value) if key in ("weight", "bias") else value)
        h = torch.randn(6, 4)
        assert model.state_dict()["loss.counts"].tolist() == COUNTS
        assert torch.equal(model.loss(model.head(h), Y), saved.loss(saved.head(h), Y))

    def test_to_empty_keeps_the_values(self) -> None:
        """A loss without a saved state is as it was built."""
        loss = ClassBalancedSoftmaxLoss([5, 0, 3, 2], beta=1.5, zero_counts="mask", weight=torch.rand(C))
        y = torch.tensor([0, 2, 3, 0, 0, 2])
        expected = loss(Z, y)
        loss.to_empty(device="cpu")
        assert loss.counts.tolist() == [5, 0, 3, 2]
        assert torch.equal(loss(Z, y), expected)

    def test_counts_without_values(self) -> None:
        with pytest.raises(ValueError, match=r"`counts` .* meta device"):
            BalancedSoftmaxLoss(torch.ones(3, device="meta"))

    def test_proco(self) -> None:
        """Its statistics start from the same directions."""
        with torch.device("meta"):
            loss = ProCoLoss(COUNTS, 8, beta=1.0)
        views = F.normalize(torch.randn(2, 6, 8), dim=-1)
        assert torch.equal(loss(views, Y), ProCoLoss(COUNTS, 8, beta=1.0)(views, Y))


class TestFractionalCounts:
    """Counts that are sums of sample weights."""

    WEIGHED = (500.5, 50.25, 5.125, 0.5)

    def test_values(self) -> None:
        """The formulas hold for any numbers above 0."""
        number = np.array(self.WEIGHED)
        shift = 1.5 * np.log(number)
        assert_allclose(class_shift(self.WEIGHED, 1.5), shift - shift.mean(), rtol=1e-6)
        assert_allclose(ldam_margins(self.WEIGHED), 0.5 * (number / 0.5) ** -0.25, rtol=1e-6)
        weights = (1 - 0.9) / (1 - 0.9**number)
        assert_allclose(effective_number_weights(self.WEIGHED, 0.9), weights / weights.mean(), rtol=1e-6)
        expected = F.cross_entropy(Z + torch.tensor(shift, dtype=torch.float32), Y)
        for loss in (ClassBalancedSoftmaxLoss(number, beta=1.5), LogitAdjustedLoss(torch.tensor(number), tau=1.5)):
            torch.testing.assert_close(loss(Z, Y), expected)

    def test_zeros(self) -> None:
        """Only a count of exactly 0 is absent; ``"one"`` changes nothing else."""
        one = BalancedSoftmaxLoss([2.5, 0, 0.5], zero_counts="one")
        assert one.counts.tolist() == [2.5, 1, 0.5]
        assert BalancedSoftmaxLoss([2.5, 0, 0.5], zero_counts="mask").present.tolist() == [0, 2]

    @counted
    def test_state(self, name: str) -> None:
        """Integers stay integers; fractions are saved and loaded in full, into either."""
        whole, parts = MODULES[name](), MODULES[name]()
        assert whole.state_dict()["counts"].dtype == torch.int64
        parts.load_state_dict({"counts": torch.tensor(self.WEIGHED, dtype=torch.float64)})
        assert parts.state_dict()["counts"].tolist() == list(self.WEIGHED)
        parts.half()
        assert parts.counts.tolist() == list(self.WEIGHED)
        parts.load_state_dict(whole.state_dict())
        assert parts.counts.dtype == torch.int64
        assert torch.equal(parts(Z, Y), whole(Z, Y))

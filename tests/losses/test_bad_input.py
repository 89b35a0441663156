"""Bad input: the rules that the losses share, one case per entry point, and parity with ``F.cross_entropy``."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.losses.calls import CALLS, COUNTS, MODULES, NEUTRAL, C, Y, Z, every_call, every_neutral
from tests.losses.reference import refused
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_balanced_softmax,
    class_shift,
    effective_number_weights,
    ldam_loss,
    prior_shift,
    shifted_linear,
)
from longtail.losses._common import check_batch, check_options

# Everything that takes counts. The rules themselves are tested in tests/test_checks.py.
COUNTED: dict[str, Callable[..., Any]] = {
    "ClassBalancedSoftmaxLoss": lambda counts, **more: ClassBalancedSoftmaxLoss(counts, beta=1.5, **more),
    "LDAMLoss": LDAMLoss,
    "class_balanced_softmax": lambda counts, **more: class_balanced_softmax(Z, Y, counts, beta=1.5, **more),
    "ldam_loss": lambda counts, **more: ldam_loss(Z, Y, counts, **more),
    "effective_number_weights": lambda counts, **more: effective_number_weights(counts, 0.9, **more),
}
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "beta": lambda value: ClassBalancedSoftmaxLoss(COUNTS, beta=value),
    "tau": lambda value: LogitAdjustedLoss(COUNTS, tau=value),
    "gamma": FocalLoss,
    "max_margin": lambda value: LDAMLoss(COUNTS, max_margin=value),
    "scale": lambda value: LDAMLoss(COUNTS, scale=value),
}
MASKED = [5, 0, 3, 2]
nan = math.nan
REDUCTIONS = ("mean", "sum", "none")


class TestEntryPoints:
    """Each function and module applies the shared rules."""

    @pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
    def test_counts(self, counted: Callable[..., Any]) -> None:
        """Negative, zero, all zero, an unknown choice for zeros."""
        with refused(ValueError, "`counts`", "-3"):
            counted([5, -3, 2, 1])
        with refused(ValueError, "`counts`", "0 for class 1", "zero_counts='mask'"):
            counted([5, 0, 2, 1])
        with refused(ValueError, "`counts`", "0 for every class"):
            counted([0] * C, zero_counts="mask")
        with refused(ValueError, "`zero_counts`"):
            counted(COUNTS, zero_counts="skip")

    @pytest.mark.parametrize("name", ["class_balanced_softmax", "ldam_loss"])
    def test_a_single_count_does_not_broadcast(self, name: str) -> None:
        with refused(ValueError, "`logits`", "`counts`", "1 classes", (6, C)):
            COUNTED[name]([5])

    @pytest.mark.parametrize(("name", "call"), NUMBERS.items(), ids=NUMBERS)
    def test_numbers(self, name: str, call: Callable[[Any], Any]) -> None:
        """Finite and >= 0; any type of real number."""
        for value in (-1, nan, math.inf):
            with refused(ValueError, f"`{name}`", value):
                call(value)
        with refused(TypeError, f"`{name}`", "'1'"):
            call("1")
        call(np.float32(0.5))

    @every_call
    def test_options(self, call: Callable[..., Tensor]) -> None:
        """The rules are tested below; here, that they are applied."""
        with refused(ValueError, "`reduction`", "'avg'"):
            call(Z, Y, reduction="avg")
        with refused(TypeError, "`smoothing`", "label_smoothing", "ignore_index"):
            call(Z, Y, smoothing=0.1)
        for length in (1, C + 1):  # a single weight would broadcast
            with refused(ValueError, "`weight`", f"{C} classes", length):
                call(Z, Y, weight=torch.ones(length))

    @every_call
    def test_logits_and_targets(self, call: Callable[..., Tensor]) -> None:
        with refused(TypeError, "`logits`", "ndarray"):
            call(Z.numpy(), Y)
        with refused(ValueError, "`logits`", "()"):
            call(torch.tensor(1.0), torch.tensor(0))
        with refused(ValueError, (2, 7, C)):  # classes last, as a transformer has them
            call(torch.randn(2, 7, C), torch.zeros(2, 7, dtype=torch.long))
        with refused(TypeError, "`target`", "list"):
            call(Z, Y.tolist())
        with refused(ValueError, "`target`", (6, 1), (6, C)):
            call(Z, Y.unsqueeze(1))
        with refused(ValueError, "`logits`", "target", "cpu", "meta"):
            call(Z, Y.to("meta"))

    @every_call
    def test_labels_out_of_range(self, call: Callable[..., Tensor]) -> None:
        """Checked on the CPU; torch refuses labels that are not checked."""
        for label in (-1, C):
            y = Y.clone()
            y[2] = label
            with refused(ValueError, "`target`", label, f"0…{C - 1}"):
                call(Z, y)
            with pytest.raises((IndexError, RuntimeError)):
                call(Z, y, check_labels=False)

    def test_a_single_logit_does_not_broadcast(self) -> None:
        for name in CALLS.keys() - {"focal function", "focal module"}:
            with refused(ValueError, "`logits`", f"{C} classes", (6, 1)):
                CALLS[name](torch.randn(6, 1), torch.zeros(6, dtype=torch.long))

    def test_probabilities_of_another_shape(self) -> None:
        """Not the logits' shape; labels as floats too."""
        for name, shape in product(CALLS.keys() - {"ldam function", "ldam module"}, [(6,), (1, C), (C, 6)]):
            with refused(ValueError, "`target`", shape, (6, C)):
                CALLS[name](Z, torch.zeros(shape))

    @pytest.mark.parametrize("name", [name for name in MODULES if name != "focal"])
    def test_a_loss_on_another_device(self, name: str) -> None:
        with refused(ValueError, "`logits`", "loss", "cpu", "meta"):
            MODULES[name]()(Z.to("meta"), Y.to("meta"))

    def test_priors(self) -> None:
        """Above 0, one per class, of one length."""
        for make in (PriorShiftedSoftmaxLoss, prior_shift):
            with refused(ValueError, "`p_hat`", 0.0):
                make([0.5, 0.0], [0.5, 0.5])
            with refused(ValueError, "`p`", nan):
                make([0.5, 0.5], [0.5, nan])
            with refused(ValueError, "`p_hat`", "`p`", 2, 3):
                make([0.5, 0.5], [0.3, 0.3, 0.4])
        with refused(ValueError, "`logits`", "`p_hat`", (6, C)):
            PriorShiftedSoftmaxLoss([0.5, 0.5], [0.5, 0.5])(Z, Y)

    def test_beta_has_no_default(self) -> None:
        """1 would silently be Balanced Softmax."""
        with pytest.raises(TypeError, match="beta"):
            ClassBalancedSoftmaxLoss(COUNTS)
        with pytest.raises(TypeError, match="positional"):
            ClassBalancedSoftmaxLoss(COUNTS, 1.5)
        with pytest.raises(TypeError, match="tau"):
            LogitAdjustedLoss(COUNTS)

    @pytest.mark.parametrize("beta", [1e5, 1e30])
    def test_an_absurd_beta_gives_no_nan(self, beta: float) -> None:
        z = Z.clone().requires_grad_()
        loss = class_balanced_softmax(z, Y, COUNTS, beta=beta)
        loss.backward()
        assert not loss.isnan()
        assert z.grad is not None
        assert z.grad.isfinite().all()

    def test_a_beta_beyond_float32(self) -> None:
        with refused(ValueError, "`beta`", "1e+39"):
            class_shift(COUNTS, 1e39)


class TestRules:
    """Options and batches, checked in one place for all losses."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"label_smoothing": -0.1}, ValueError),
            ({"label_smoothing": 1.1}, ValueError),
            ({"label_smoothing": "0.1"}, TypeError),
            ({"ignore_index": 1.5}, TypeError),
            ({"weight": [1.0] * C}, TypeError),
            ({"weight": torch.ones(C, dtype=torch.int64)}, TypeError),
            ({"weight": torch.ones(C, C)}, TypeError),
            ({"reduction": None}, ValueError),
            ({"size_average": True}, TypeError),
        ],
        ids=str,
    )
    def test_options(self, options: dict[str, Any], error: type[Exception]) -> None:
        with refused(error, f"`{next(iter(options))}`"):
            check_options(**options)

    @pytest.mark.parametrize("label", [-1, C, -101])
    def test_labels(self, label: int) -> None:
        """In a batch and alone."""
        y = torch.tensor([0, label, 1, 0, 0, 0], dtype=torch.int32)
        for logits, target in ((Z, y), (Z[1], y[1])):
            with refused(ValueError, "`target`", label, f"0…{C - 1}"):
                check_batch(logits, target, C, of="counts")
        assert check_batch(Z, y, C, of="counts", check_labels=False).dtype == torch.int64

    def test_labels_beside_ignored_ones(self) -> None:
        """-100 is fine, unless another label is ignored; few of many wrong labels are listed."""
        y = torch.tensor([-100, -1, 0, 0, 0, 0])
        with refused(ValueError, "`target`", "but got -1."):
            check_batch(Z, y, C, of="counts")
        with refused(ValueError, "`target`", "but got -100."):
            check_batch(Z, y, C, of="counts", ignore_index=-1)
        with refused(ValueError, "`target`", "100, 101, 102", "50 in all"):
            check_batch(torch.randn(50, C), torch.arange(100, 150).flip(0), C, of="counts")

    @pytest.mark.parametrize("target", [Y > 0, Y.tolist(), Y.numpy(), None, Z.to(torch.complex64)], ids=type)
    def test_targets_of_another_type(self, target: Any) -> None:
        with refused(TypeError, "`target`"):
            check_batch(Z, target, C, of="counts")

    def test_targets_of_another_shape(self) -> None:
        for shape in [(5,), (1,), (), (6, 1), (1, 6), (6, C)]:
            with refused(ValueError, "`target`", shape, (6, C)):
                check_batch(Z, torch.zeros(shape, dtype=torch.long), C, of="counts")
        with refused(ValueError, "`target`", (2, 3, 4), (2, C, 3, 3)):
            check_batch(torch.randn(2, C, 3, 3), torch.zeros(2, 3, 4, dtype=torch.long), C, of="counts")

    def test_devices(self) -> None:
        """Both are named; for a loss, how to move it."""
        meta = torch.ones(C, device="meta")
        with refused(ValueError, "`logits`", "`weight`", "cpu", "meta"):
            check_batch(Z, Y, C, of="counts", weight=meta)
        with refused(ValueError, "`logits`", "the loss", "cpu", "meta", ".to('cpu')"):
            check_batch(Z, Y, C, of="counts", held=meta)

    def test_an_ignored_class_beside_probabilities(self) -> None:
        """``F.cross_entropy`` refuses it as well: it would have no effect."""
        with refused(ValueError, "`ignore_index`", 1):
            check_batch(Z, Z.softmax(1), C, of="counts", ignore_index=1)
        with pytest.raises(RuntimeError, match="ignore_index"):
            F.cross_entropy(Z, Z.softmax(1), ignore_index=1)


class TestMaskedClasses:
    """Targets of classes that are masked because they have no examples."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda y, **o: class_balanced_softmax(Z[:3], y, MASKED, beta=1, zero_counts="mask", **o),
            lambda y, **o: BalancedSoftmaxLoss(MASKED, zero_counts="mask", **o)(Z[:3], y),
            lambda y, **o: ldam_loss(Z[:3], y, MASKED, zero_counts="mask", **o),
            lambda y, **o: LDAMLoss(MASKED, zero_counts="mask", **o)(Z[:3], y),
        ],
    )
    def test_labels(self, call: Callable[..., Tensor]) -> None:
        """Refused; unchecked labels out of range are not taken for another class."""
        with refused(ValueError, "`target`", "1 of them", "count of 0"):
            call(torch.tensor([0, 1, 2]))
        for label in (-1, C):
            with pytest.raises((IndexError, RuntimeError)):
                call(torch.tensor([0, label, 2]), check_labels=False)

    @pytest.mark.parametrize("share", [1.0, 0.1, 0.001])
    @pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
    def test_a_share_of_a_soft_target(self, share: float, shape: tuple[int, ...]) -> None:
        """No part of a target's mass vanishes unnoticed, be it a tenth or a thousandth, in any shape."""
        target = torch.tensor([1 - share, share, 0.0, 0.0])
        if shape:
            clean = torch.tensor([0.5, 0.0, 0.25, 0.25])
            rows = torch.stack([clean] * math.prod(shape))
            rows[-1] = target
            target = rows.view(*shape, C).movedim(-1, 1)
        z = torch.randn(target.shape)
        with refused(ValueError, "`target`", "1 of them", "count of 0"):
            class_balanced_softmax(z, target, MASKED, beta=1, zero_counts="mask")

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_a_share_over_many_absent_classes(self, dtype: torch.dtype) -> None:
        """A tenth of the mass does not vanish if each of 2,000 absent classes has only 0.00005 of it."""
        target = torch.tensor([[0.5, 0.4, *[0.1 / 2000] * 2000]], dtype=dtype)
        z, counts = torch.randn(1, 2002).to(dtype), [5, 3, *[0] * 2000]
        with refused(ValueError, "`target`", "1 of them", "count of 0"):
            class_balanced_softmax(z, target, counts, beta=1, zero_counts="mask")

    def test_rounding_is_not_a_share(self) -> None:
        """Probabilities that sum to 1 up to float32's rounding, and 1e-6 left by a softmax, are accepted."""
        target = torch.tensor([[0.3, 1e-6, 0.3, 0.4 - 1e-6]])
        loss = class_balanced_softmax(Z[:1], target, MASKED, beta=1, zero_counts="mask")
        assert loss.isfinite()

    def test_unsigned_labels(self) -> None:
        """Label 156 as uint8 is not -100, and not ignored."""
        z, y = torch.randn(2, 200), torch.tensor([156, 3])
        loss = BalancedSoftmaxLoss([5] * 199 + [0], zero_counts="mask", reduction="none")
        torch.testing.assert_close(loss(z, y.to(torch.uint8)), F.cross_entropy(z[:, :199], y, reduction="none"))


def test_shifted_linear_does_not_broadcast() -> None:
    weight = torch.ones(3, C)
    for shape in [(1,), (2,), (), (3, 1)]:
        with refused(ValueError, "`shift`", shape, "3 classes"):
            shifted_linear(Z, weight, torch.ones(3), torch.zeros(shape))
        with refused(ValueError, "`bias`", shape):
            shifted_linear(Z, weight, torch.ones(shape), torch.zeros(3))


class ReadsBack(TorchDispatchMode):
    """Raises for what makes the host wait for a GPU: reading a value, and shapes that depend on values."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "_unique2", "bincount")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masked = any(index is not None and index.dtype == torch.bool for index in indices)
        assert name not in self.NAMES, f"{name} reads a value back"
        assert not masked, f"{name} with a mask reads its size back"
        return func(*args, **(kwargs or {}))


class TestNothingIsReadBack:
    """With labels unchecked, as on a GPU by default, no value reaches the host: a captured graph can hold the loss."""

    def test_the_mode_notices(self) -> None:
        """What the next test relies on."""
        for read in (lambda: Z.sum().item(), lambda: Z[Z > 0], lambda: F.cross_entropy(Z, Y).isnan().any() or 0):
            with pytest.raises(AssertionError, match="back"), ReadsBack():
                read()

    @pytest.mark.parametrize("name", [*MODULES, "cbs masked", "ldam masked"])
    @pytest.mark.parametrize("soft", [False, True])
    def test_forward_and_backward(self, name: str, soft: bool) -> None:
        """Every option, labels and soft targets; torch 2.11's own mean waits when it is weighted and smoothed."""
        if soft and "ldam" in name:
            pytest.skip("index targets only")
        masked = {"cbs masked": ClassBalancedSoftmaxLoss, "ldam masked": LDAMLoss}
        target = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).expand(6, C) if soft else torch.tensor([0, 2, 3, 0, 2, 3])
        for reduction, weight, smoothing in product(("mean", "sum", "none"), (None, torch.rand(C) + 0.1), (0.0, 0.1)):
            options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "check_labels": False}
            options |= {"weight": weight} | ({} if soft else {"ignore_index": 3})
            if name in masked:
                beta = {"beta": 1.5} if name == "cbs masked" else {}
                loss: nn.Module = masked[name]([500, 0, 5, 1], zero_counts="mask", **beta, **options)
            else:
                loss = MODULES[name](**options)
            z = Z.clone().requires_grad_()
            with ReadsBack():
                loss(z, target).sum().backward()
            assert z.grad is not None


class TestParity:
    """Odd, but not wrong: the same answer as ``F.cross_entropy``, NaN where it gives NaN."""

    @every_neutral
    def test_empty_batch(self, neutral: Callable[..., Tensor]) -> None:
        """No sample, or samples without a pixel."""
        for reduction, shape in product(REDUCTIONS, [(0, C), (0, C, 3), (2, C, 0)]):
            z = torch.randn(shape, requires_grad=True)
            y = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
            value, expected = neutral(z, y, reduction=reduction), F.cross_entropy(z, y, reduction=reduction)
            torch.testing.assert_close(value, expected, equal_nan=True)
            (grad,) = torch.autograd.grad(value.sum(), z)
            assert grad.shape == shape

    @pytest.mark.parametrize("name", [name for name in NEUTRAL if name != "ldam"])
    def test_empty_batch_of_probabilities(self, name: str) -> None:
        """No sample to average over."""
        z, share = torch.randn(0, C), torch.rand(0, C)
        for reduction in REDUCTIONS:
            expected = F.cross_entropy(z, share, reduction=reduction)
            torch.testing.assert_close(NEUTRAL[name](z, share, reduction=reduction), expected, equal_nan=True)

    @every_neutral
    def test_all_targets_ignored(self, neutral: Callable[..., Tensor]) -> None:
        """The mean is NaN, the sum 0, the gradient that of ``F.cross_entropy``."""
        every: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"ignore_index": 2}, {"weight": torch.rand(C)}]
        for reduction, options in product(REDUCTIONS, every):
            y = torch.full((6,), options.get("ignore_index", -100))
            values = []
            for loss in (neutral, F.cross_entropy):
                z = Z.clone().requires_grad_()
                value = loss(z, y, reduction=reduction, **options)
                values.append((value.detach(), torch.autograd.grad(value.sum(), z)[0]))
            torch.testing.assert_close(values[0], values[1], equal_nan=True)

    @every_neutral
    def test_no_weight_left(self, neutral: Callable[..., Tensor]) -> None:
        """All labels of classes that weigh 0."""
        weight, y = torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(6, dtype=torch.long)
        expected = F.cross_entropy(Z, y, weight=weight)
        torch.testing.assert_close(neutral(Z, y, weight=weight), expected, equal_nan=True)

    @every_neutral
    def test_non_contiguous(self, neutral: Callable[..., Tensor]) -> None:
        """Transposed, strided, flipped, expanded, channels last."""
        z = torch.randn(3, 4, C, 5).permute(1, 2, 3, 0)[:, :, ::2]  # (4, C, 3, 3), strided
        y = torch.randint(C, (3, 3, 4)).permute(2, 1, 0)
        assert not z.is_contiguous()
        cases = [
            (z, y),
            (torch.randn(C, 6).T, torch.randint(C, (12,))[::2]),
            (torch.randn(1, C).expand(6, C), torch.tensor(2).expand(6)),
            (torch.randn(2, C, 3, 3).to(memory_format=torch.channels_last), torch.randint(C, (2, 3, 3))),
        ]
        for logits, target in cases:
            expected = F.cross_entropy(logits.contiguous(), target.contiguous(), reduction="none")
            torch.testing.assert_close(neutral(logits, target, reduction="none"), expected)

    @pytest.mark.parametrize("name", [name for name in NEUTRAL if name != "ldam"])
    def test_non_contiguous_probabilities(self, name: str) -> None:
        """Soft targets too, and a weight with a stride."""
        z, share = torch.randn(C, 6).T, torch.rand(C, 6).softmax(0).T
        weight = torch.rand(2 * C)[::2]
        torch.testing.assert_close(NEUTRAL[name](z, share, weight=weight), F.cross_entropy(z, share, weight=weight))

    @every_neutral
    def test_labels_of_other_integer_types(self, neutral: Callable[..., Tensor]) -> None:
        """As if they were int64; 255 is ignored in segmentation masks."""
        expected = F.cross_entropy(Z, Y)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
            torch.testing.assert_close(neutral(Z, Y.to(dtype)), expected)
        for check_labels in (True, False):
            torch.testing.assert_close(neutral(Z, Y, check_labels=check_labels), expected)
        y = Y.clone()
        y[:2] = 255
        expected = F.cross_entropy(Z, y, ignore_index=255)
        torch.testing.assert_close(neutral(Z, y.to(torch.uint8), ignore_index=255), expected)

    @every_neutral
    def test_a_class_ruled_out_by_minus_infinity(self, neutral: Callable[..., Tensor]) -> None:
        """A logit of -inf that is no label's is no NaN, in the value nor in the gradient."""
        z = Z.clone()
        z[:, 3] = -torch.inf
        y = torch.tensor([0, 1, 2, 0, 1, 2])
        z.requires_grad_()
        value = neutral(z, y)
        torch.testing.assert_close(value, F.cross_entropy(z, y))
        assert torch.autograd.grad(value, z)[0].isfinite().all()

"""Bad input: one sentence that names argument and value, or the answer that ``F.cross_entropy`` gives."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.losses.calls import CALLS, COUNTS, FUNCTIONS, MODULES, NEUTRAL, C, Y, Z, every_call, every_neutral
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
    balanced_softmax,
    class_balanced_softmax,
    class_shift,
    effective_number_weights,
    focal_loss,
    ldam_loss,
    ldam_margins,
    logit_adjusted_softmax,
    prior_shift,
    prior_shifted_softmax,
    shifted_linear,
)

# Everything that takes counts.
COUNTED: dict[str, Callable[..., Any]] = {
    "ClassBalancedSoftmaxLoss": lambda counts, **more: ClassBalancedSoftmaxLoss(counts, beta=1.5, **more),
    "BalancedSoftmaxLoss": BalancedSoftmaxLoss,
    "LogitAdjustedLoss": lambda counts, **more: LogitAdjustedLoss(counts, tau=1.0, **more),
    "LDAMLoss": LDAMLoss,
    "class_balanced_softmax": lambda counts, **more: class_balanced_softmax(Z, Y, counts, beta=1.5, **more),
    "balanced_softmax": lambda counts, **more: balanced_softmax(Z, Y, counts, **more),
    "logit_adjusted_softmax": lambda counts, **more: logit_adjusted_softmax(Z, Y, counts, tau=1.0, **more),
    "ldam_loss": lambda counts, **more: ldam_loss(Z, Y, counts, **more),
    "class_shift": lambda counts, **more: class_shift(counts, 1.5, **more),
    "ldam_margins": ldam_margins,
    "effective_number_weights": lambda counts, **more: effective_number_weights(counts, 0.9, **more),
}
every_counted = pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
nan, inf = math.nan, math.inf


class TestCounts:
    """Counts are whole numbers >= 0, one a class."""

    @every_counted
    @pytest.mark.parametrize(
        ("counts", "value"),
        [
            ([5, -3, 2, 1], "-3"),
            (torch.tensor([5, 3, 2, -1]), "-1"),
            (np.array([5.0, -3.0, 2.0, 1.0]), "-3"),
            ([5, nan, 2, 1], "nan"),
            ([5, inf, 2, 1], "inf"),
            ([], "(0,)"),
            (7, "()"),
            ([[5, 3, 2, 1]], "(1, 4)"),
            ([1e30, 3, 2, 1], "1e+30"),
        ],
        ids=str,
    )
    def test_values(self, counted: Callable[..., Any], counts: Any, value: str) -> None:
        """Negative, not whole, NaN, infinite, too large, no vector."""
        with refused(ValueError, "`counts`", value):
            counted(counts)

    @every_counted
    @pytest.mark.parametrize(
        ("counts", "value"),
        [
            ([True, False, True, True], "bool"),
            (torch.ones(4, dtype=torch.complex64), "complex64"),
            ("many", "str"),
            (["5", "3", "2", "1"], "list"),
            ({0: 5, 1: 3}, "dict"),
            (None, "None"),
            ([[5, 3], [2]], "list"),
            ([5, None, 3, 1], "list"),
        ],
        ids=str,
    )
    def test_types(self, counted: Callable[..., Any], counts: Any, value: str) -> None:
        """Things that are no vector of numbers."""
        with refused(TypeError, "`counts`", value):
            counted(counts)

    @every_counted
    def test_a_zero_is_named(self, counted: Callable[..., Any]) -> None:
        """By its class, with what can be done."""
        with refused(ValueError, "`counts`", "0 for class 1, 3", "zero_counts='mask'", "zero_counts='one'"):
            counted([5, 0, 2, 0])

    @every_counted
    def test_many_zeros_are_not_all_listed(self, counted: Callable[..., Any]) -> None:
        """The first few, and how many."""
        with refused(ValueError, "`counts`", "in all"):
            counted([5, *[0] * 1000])

    @every_counted
    def test_only_zeros(self, counted: Callable[..., Any]) -> None:
        """Nothing is left when all classes are masked."""
        with refused(ValueError, "`counts`", "0"):
            counted([0] * C, zero_counts="mask")

    @every_counted
    @pytest.mark.parametrize("choice", ["skip", "", None, 1, ["mask"], torch.ones(2, 2)], ids=str)
    def test_unknown_choice_for_zeros(self, counted: Callable[..., Any], choice: Any) -> None:
        """Refused whether there is a zero or not."""
        with refused(ValueError, "`zero_counts`", "'error', 'mask', 'one'"):
            counted(COUNTS, zero_counts=choice)

    @pytest.mark.parametrize("length", [1, 3, 5])
    @pytest.mark.parametrize(
        "function",
        [
            lambda counts: class_balanced_softmax(Z, Y, counts, beta=1),
            lambda counts: balanced_softmax(Z, Y, counts),
            lambda counts: logit_adjusted_softmax(Z, Y, counts, tau=1),
            lambda counts: ldam_loss(Z, Y, counts),
        ],
    )
    def test_wrong_length(self, function: Callable[..., Tensor], length: int) -> None:
        """Refused, also where they would broadcast."""
        with refused(ValueError, "`logits`", "`counts`", f"{length} classes", (6, C)):
            function([5] * length)

    def test_priors(self) -> None:
        """Finite numbers > 0, one a class, of one length."""
        for bad in (0.0, -0.5, nan, inf):
            for make in (PriorShiftedSoftmaxLoss, prior_shift):
                with refused(ValueError, "`p_hat`", bad):
                    make([0.5, bad], [0.5, 0.5])
                with refused(ValueError, "`p`", bad):
                    make([0.5, 0.5], [0.5, bad])
            with refused(ValueError, "`p_hat`", bad):
                prior_shifted_softmax(torch.randn(1, 2), torch.tensor([0]), [0.5, bad], [0.5, 0.5])
        with refused(ValueError, "`p_hat`", "`p`", 2, 3):
            prior_shift([0.5, 0.5], [0.3, 0.3, 0.4])
        with refused(TypeError, "`p_hat`", "str"):
            prior_shift("half", [0.5, 0.5])
        with refused(ValueError, "`logits`", "`p_hat`", (6, C)):
            prior_shifted_softmax(Z, Y, [0.5, 0.5], [0.5, 0.5])


KNOBS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ClassBalancedSoftmaxLoss": ("beta", lambda value: ClassBalancedSoftmaxLoss(COUNTS, beta=value)),
    "class_balanced_softmax": ("beta", lambda value: class_balanced_softmax(Z, Y, COUNTS, beta=value)),
    "class_shift": ("beta", lambda value: class_shift(COUNTS, value)),
    "LogitAdjustedLoss": ("tau", lambda value: LogitAdjustedLoss(COUNTS, tau=value)),
    "logit_adjusted_softmax": ("tau", lambda value: logit_adjusted_softmax(Z, Y, COUNTS, tau=value)),
    "FocalLoss": ("gamma", lambda value: FocalLoss(value)),  # noqa: PLW0108
    "focal_loss": ("gamma", lambda value: focal_loss(Z, Y, gamma=value)),
    "LDAMLoss margin": ("max_margin", lambda value: LDAMLoss(COUNTS, max_margin=value)),
    "ldam_loss margin": ("max_margin", lambda value: ldam_loss(Z, Y, COUNTS, max_margin=value)),
    "ldam_margins": ("max_margin", lambda value: ldam_margins(COUNTS, value)),
    "LDAMLoss scale": ("scale", lambda value: LDAMLoss(COUNTS, scale=value)),
    "ldam_loss scale": ("scale", lambda value: ldam_loss(Z, Y, COUNTS, scale=value)),
}
every_knob = pytest.mark.parametrize(("knob", "call"), KNOBS.values(), ids=KNOBS)


class TestKnobs:
    """beta, tau, gamma, max_margin, scale are finite numbers >= 0."""

    @every_knob
    @pytest.mark.parametrize("value", [-1, -0.001, nan, inf, -inf, np.float32(-1)])
    def test_out_of_range(self, knob: str, call: Callable[[Any], Any], value: Any) -> None:
        """Negative, NaN, infinite."""
        with refused(ValueError, f"`{knob}`", value):
            call(value)

    @every_knob
    @pytest.mark.parametrize("value", [True, False, "1", None, [1.0], 1j, np.array([1.0, 2.0])], ids=repr)
    def test_another_type(self, knob: str, call: Callable[[Any], Any], value: Any) -> None:
        """Booleans, strings, None, lists, complex numbers."""
        with refused(TypeError, f"`{knob}`", repr(value)):
            call(value)

    @every_knob
    def test_a_tensor_of_many(self, knob: str, call: Callable[[Any], Any]) -> None:
        """Refused on one line, however it prints."""
        with refused(TypeError, f"`{knob}`", "Tensor"):
            call(torch.ones(3, 3))

    @every_knob
    @pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(2), np.float64(0.5)], ids=repr)
    def test_any_real_number_will_do(self, knob: str, call: Callable[[Any], Any], value: Any) -> None:
        """Python's and numpy's, integer and floating."""
        call(value)

    def test_beta_has_no_default(self) -> None:
        """1 would silently be Balanced Softmax; and it goes by name."""
        with pytest.raises(TypeError, match="beta"):
            ClassBalancedSoftmaxLoss(COUNTS)
        with pytest.raises(TypeError, match="beta"):
            class_balanced_softmax(Z, Y, COUNTS)
        with pytest.raises(TypeError, match="positional"):
            ClassBalancedSoftmaxLoss(COUNTS, 1.5)
        with pytest.raises(TypeError, match="tau"):
            LogitAdjustedLoss(COUNTS)

    @pytest.mark.parametrize("beta", [1e5, 1e30])
    def test_an_absurd_beta_gives_no_nan(self, beta: float) -> None:
        """Counts of 500 and 1 shifted by a large beta are far apart, or refused, but nothing is undefined."""
        z = Z.clone().requires_grad_()
        loss = class_balanced_softmax(z, Y, COUNTS, beta=beta)
        loss.backward()
        assert not loss.isnan()
        assert z.grad is not None
        assert z.grad.isfinite().all()


class TestOptions:
    """The options of ``F.cross_entropy``, checked where the loss is made."""

    @pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
    @pytest.mark.parametrize("reduction", ["avg", "MEAN", "", None, 0, ["mean"]], ids=repr)
    def test_reduction_at_construction(self, make: Callable[..., nn.Module], reduction: Any) -> None:
        """One of three."""
        with refused(ValueError, "`reduction`", repr(reduction), "'none', 'mean', 'sum'"):
            make(reduction=reduction)

    @every_call
    def test_reduction(self, call: Callable[..., Tensor]) -> None:
        """Functions too."""
        with refused(ValueError, "`reduction`", "'avg'"):
            call(Z, Y, reduction="avg")

    @every_call
    @pytest.mark.parametrize("value", [-0.1, 1.1, nan, inf])
    def test_label_smoothing(self, call: Callable[..., Tensor], value: float) -> None:
        """In [0, 1]."""
        with refused(ValueError, "`label_smoothing`", value):
            call(Z, Y, label_smoothing=value)

    @every_call
    @pytest.mark.parametrize("value", ["0.1", None, [0.1]], ids=repr)
    def test_label_smoothing_of_another_type(self, call: Callable[..., Tensor], value: Any) -> None:
        """A number."""
        with refused(TypeError, "`label_smoothing`", repr(value)):
            call(Z, Y, label_smoothing=value)

    @every_call
    @pytest.mark.parametrize("value", ["-100", None, 1.5], ids=repr)
    def test_ignore_index_of_another_type(self, call: Callable[..., Tensor], value: Any) -> None:
        """An integer."""
        with refused(TypeError, "`ignore_index`", repr(value)):
            call(Z, Y, ignore_index=value)

    @every_call
    @pytest.mark.parametrize(
        "weight",
        [[1.0] * C, np.ones(C), 1.0, torch.ones(C, dtype=torch.int64), torch.ones(C, C), torch.ones(()), "all"],
        ids=lambda weight: f"{type(weight).__name__}{tuple(getattr(weight, 'shape', ()))}",
    )
    def test_weight_of_another_type(self, call: Callable[..., Tensor], weight: Any) -> None:
        """A floating-point tensor with one entry a class; the message is one line for a matrix too."""
        with refused(TypeError, "`weight`"):
            call(Z, Y, weight=weight)

    @every_call
    @pytest.mark.parametrize("length", [1, 3, 5])
    def test_weight_of_another_length(self, call: Callable[..., Tensor], length: int) -> None:
        """One entry a class; a single one would broadcast."""
        with refused(ValueError, "`weight`", f"{C} classes", length):
            call(Z, Y, weight=torch.ones(length))

    @every_call
    @pytest.mark.parametrize("option", ["smoothing", "size_average", "betta", "alpha"])
    def test_unknown(self, call: Callable[..., Tensor], option: str) -> None:
        """Named, with those that there are."""
        with refused(TypeError, f"`{option}`", "label_smoothing", "ignore_index"):
            call(Z, Y, **{option: 0.1})


class TestLogits:
    """A floating-point tensor with the classes in dimension 1."""

    @pytest.mark.parametrize("width", [1, 3, 5])
    @pytest.mark.parametrize("name", [name for name in CALLS if "focal" not in name])
    def test_of_another_width(self, name: str, width: int) -> None:
        """Refused, also a width of 1, which would broadcast; focal loss knows no width but the logits'."""
        z, y = torch.randn(6, width), torch.zeros(6, dtype=torch.long)
        with refused(ValueError, "`logits`", f"{C} classes", (6, width)):
            CALLS[name](z, y)
        with refused(ValueError, "`logits`", f"{C} classes", (width,)):
            CALLS[name](z[0], y[0])
        with refused(ValueError, "`logits`", f"{C} classes", (6, width, C)):
            CALLS[name](torch.randn(6, width, C), torch.zeros(6, C, dtype=torch.long))

    @every_call
    def test_classes_in_the_last_dimension(self, call: Callable[..., Tensor]) -> None:
        """(N, T, C), as a transformer has it, is not (N, C, T)."""
        with refused(ValueError, (2, 7, C)):
            call(torch.randn(2, 7, C), torch.zeros(2, 7, dtype=torch.long))

    @every_call
    def test_without_a_dimension(self, call: Callable[..., Tensor]) -> None:
        """A scalar has no classes."""
        with refused(ValueError, "`logits`", "()"):
            call(torch.tensor(1.0), torch.tensor(0))

    @every_call
    @pytest.mark.parametrize(
        ("logits", "kind"),
        [
            (Z.tolist(), "list"),
            (Z.numpy(), "ndarray"),
            (None, "NoneType"),
            (Z.long(), "int64"),
            (Z > 0, "bool"),
            (Z.to(torch.complex64), "complex64"),
        ],
        ids=["list", "ndarray", "None", "int64", "bool", "complex"],
    )
    def test_of_another_type(self, call: Callable[..., Tensor], logits: Any, kind: str) -> None:
        """Named by what they are."""
        with refused(TypeError, "`logits`", kind):
            call(logits, Y)

    def test_no_class_at_all(self) -> None:
        """Focal loss has only the logits to go by."""
        with refused(ValueError, "`logits`", (6, 0)):
            focal_loss(torch.randn(6, 0), Y, gamma=1)


class TestTargets:
    """Class indices in range, or probabilities of the logits' shape."""

    @every_call
    @pytest.mark.parametrize("label", [-1, C, C + 3, 10**6, -101])
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_out_of_range(self, call: Callable[..., Tensor], label: int, dtype: torch.dtype) -> None:
        """On the CPU each batch is checked, and the label is named."""
        y = Y.clone()
        y[2] = label
        with refused(ValueError, "`target`", label, f"0…{C - 1}"):
            call(Z, y.to(dtype))
        with refused(ValueError, "`target`", label, f"0…{C - 1}"):
            call(Z[2], y[2].to(dtype))

    @every_call
    def test_out_of_range_beside_ignored_ones(self, call: Callable[..., Tensor]) -> None:
        """-100 is fine, unless another label is ignored."""
        y = Y.clone()
        y[:2] = torch.tensor([-100, -1])
        with refused(ValueError, "`target`", "-1"):
            call(Z, y)
        with refused(ValueError, "`target`", "-100"):
            call(Z, y, ignore_index=-1)

    @every_call
    def test_many_wrong_labels_are_not_all_listed(self, call: Callable[..., Tensor]) -> None:
        """A few, sorted, and how many."""
        with refused(ValueError, "`target`", "100, 101, 102", "50 in all"):
            call(torch.randn(50, C), torch.arange(100, 150).flip(0))

    @every_call
    def test_unchecked_labels_are_still_not_accepted(self, call: Callable[..., Tensor]) -> None:
        """``check_labels=False`` leaves them to torch, which does not take them either."""
        for label in (-1, C):
            y = Y.clone()
            y[2] = label
            with pytest.raises((IndexError, RuntimeError)):
                call(Z, y, check_labels=False)

    @pytest.mark.parametrize("label", [-1, C])
    def test_unchecked_labels_beside_masked_classes(self, label: int) -> None:
        """Nor are they taken for another class when some are masked."""
        for loss in (
            ClassBalancedSoftmaxLoss([5, 0, 3, 2], beta=1, zero_counts="mask", check_labels=False),
            LDAMLoss([5, 0, 3, 2], zero_counts="mask", check_labels=False),
        ):
            with pytest.raises((IndexError, RuntimeError)):
                loss(Z[:3], torch.tensor([0, label, 2]))

    @every_call
    @pytest.mark.parametrize(
        ("target", "kind"),
        [
            ((Y > 0), "bool"),
            (Y.tolist(), "list"),
            (Y.numpy(), "ndarray"),
            (None, "NoneType"),
            (Z.to(torch.complex64), "complex64"),
        ],
        ids=["bool", "list", "ndarray", "None", "complex"],
    )
    def test_of_another_type(self, call: Callable[..., Tensor], target: Any, kind: str) -> None:
        """Named by what they are."""
        with refused(TypeError, "`target`", kind):
            call(Z, target)

    @every_call
    @pytest.mark.parametrize("shape", [(5,), (7,), (1,), (), (6, 1), (1, 6), (6, C)])
    def test_indices_of_another_shape(self, call: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
        """Not what the logits leave without their classes."""
        with refused(ValueError, "`target`", shape, (6, C)):
            call(Z, torch.zeros(shape, dtype=torch.long))

    @pytest.mark.parametrize("name", [name for name in CALLS if "ldam" not in name])
    @pytest.mark.parametrize("shape", [(6,), (6, 1), (1, C), (5, C), (C, 6), (6, C, 1)])
    def test_probabilities_of_another_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Not the logits' shape; labels that came as floats too."""
        with refused(ValueError, "`target`", shape, (6, C)):
            CALLS[name](Z, torch.zeros(shape))

    @every_call
    def test_dense_indices_of_another_shape(self, call: Callable[..., Tensor]) -> None:
        """A mask of another size than the map."""
        with refused(ValueError, "`target`", (2, 3, 4), (2, C, 3, 3)):
            call(torch.randn(2, C, 3, 3), torch.zeros(2, 3, 4, dtype=torch.long))

    @pytest.mark.parametrize(
        "call",
        [
            lambda y: class_balanced_softmax(Z[:3], y, [5, 0, 3, 2], beta=1, zero_counts="mask"),
            lambda y: BalancedSoftmaxLoss([5, 0, 3, 2], zero_counts="mask")(Z[:3], y),
            lambda y: ldam_loss(Z[:3], y, [5, 0, 3, 2], zero_counts="mask"),
            lambda y: LDAMLoss([5, 0, 3, 2], zero_counts="mask")(Z[:3], y),
        ],
    )
    def test_a_label_of_a_masked_class(self, call: Callable[[Tensor], Tensor]) -> None:
        """The class was said to have no example."""
        with refused(ValueError, "`target`", "count of 0"):
            call(torch.tensor([0, 1, 2]))

    def test_a_share_of_a_masked_class(self) -> None:
        """Nor may it have a share of a soft target."""
        share = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
        with refused(ValueError, "`target`", "count of 0"):
            class_balanced_softmax(Z[:1], share, [5, 0, 3, 2], beta=1, zero_counts="mask")

    def test_unsigned_labels_beside_masked_classes(self) -> None:
        """Label 156 as uint8 is not -100, and not ignored."""
        z, y = torch.randn(2, 200), torch.tensor([156, 3])
        counts = [5] * 199 + [0]
        loss = BalancedSoftmaxLoss(counts, zero_counts="mask", reduction="none")
        torch.testing.assert_close(loss(z, y.to(torch.uint8)), F.cross_entropy(z[:, :199], y, reduction="none"))


class TestDevices:
    """Tensors of two devices (here: the CPU and "meta", which holds no values)."""

    @every_call
    def test_target_elsewhere(self, call: Callable[..., Tensor]) -> None:
        """Both devices are named."""
        with refused(ValueError, "`logits`", "target", "cpu", "meta"):
            call(Z, Y.to("meta"))

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_weight_elsewhere(self, name: str) -> None:
        """Both devices are named."""
        with refused(ValueError, "`logits`", "weight", "cpu", "meta"):
            FUNCTIONS[name](Z, Y, weight=torch.ones(C, device="meta"))

    @pytest.mark.parametrize("name", [name for name in MODULES if name != "focal"])
    def test_loss_elsewhere(self, name: str) -> None:
        """A loss that stayed on the CPU."""
        with refused(ValueError, "`logits`", "loss", "cpu", "meta"):
            MODULES[name]()(Z.to("meta"), Y.to("meta"))

    def test_shift_elsewhere(self) -> None:
        """In the product too."""
        with refused(ValueError, "`shift`", "`weight`", "cpu", "meta"):
            shifted_linear(Z, torch.ones(3, C), None, torch.zeros(3, device="meta"))


class ReadsBack(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU: reading a value, and shapes that depend on values.

    It sees on the CPU what a captured graph would not hold.
    """

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
    @reductions
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("soft", [False, True])
    def test_forward_and_backward(
        self, name: str, reduction: str, weighted: bool, smoothing: float, soft: bool
    ) -> None:
        """Every option, labels and soft targets; torch 2.11's own mean waits when it is weighted and smoothed."""
        if soft and "ldam" in name:
            pytest.skip("index targets only")
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "check_labels": False}
        if weighted:
            options["weight"] = torch.rand(C) + 0.1
        if not soft:
            options["ignore_index"] = 3
        masked = {"cbs masked": ClassBalancedSoftmaxLoss, "ldam masked": LDAMLoss}
        if name in masked:
            beta = {"beta": 1.5} if name == "cbs masked" else {}
            loss: nn.Module = masked[name]([500, 0, 5, 1], zero_counts="mask", **beta, **options)
        else:
            loss = MODULES[name](**options)
        z = Z.clone().requires_grad_()
        target = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).expand(6, C) if soft else torch.tensor([0, 2, 3, 0, 2, 3])
        with ReadsBack():
            loss(z, target).sum().backward()
        assert z.grad is not None


class TestShiftedLinear:
    """Shapes that would broadcast, and wrong types."""

    @pytest.mark.parametrize("shape", [(1,), (2,), (), (3, 1)])
    def test_shift_of_another_shape(self, shape: tuple[int, ...]) -> None:
        """One entry a class."""
        with refused(ValueError, "`shift`", "`weight`", shape, (3, C)):
            shifted_linear(Z, torch.ones(3, C), torch.ones(3), torch.zeros(shape))

    @pytest.mark.parametrize("shape", [(1,), (2,), (), (3, 1)])
    def test_bias_of_another_shape(self, shape: tuple[int, ...]) -> None:
        """``F.linear`` would refuse it; a sum with the shift must not hide that."""
        with refused(ValueError, "`bias`", shape):
            shifted_linear(Z, torch.ones(3, C), torch.ones(shape), torch.zeros(3))

    def test_shift_of_another_type(self) -> None:
        """A tensor."""
        with refused(TypeError, "`shift`", "list"):
            shifted_linear(Z, torch.ones(3, C), None, [0.0, 0.0, 0.0])
        with refused(TypeError, "`weight`", "list"):
            shifted_linear(Z, [[0.0] * C], None, torch.zeros(1))

    def test_features_of_another_width(self) -> None:
        """One column for each of the weight's."""
        with refused(ValueError, "`features`", "`weight`", (6, C), (3, 2)):
            shifted_linear(Z, torch.ones(3, 2), None, torch.zeros(3))


class TestParity:
    """Odd, but not wrong: the same answer as ``F.cross_entropy``, NaN where it gives NaN."""

    @every_neutral
    @reductions
    @pytest.mark.parametrize("shape", [(0, C), (0, C, 3), (2, C, 0), (0, C, 2, 2)], ids=str)
    def test_empty_batch(self, neutral: Callable[..., Tensor], reduction: str, shape: tuple[int, ...]) -> None:
        """No sample, or samples without a pixel."""
        z = torch.randn(shape, requires_grad=True)
        y = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
        value, expected = neutral(z, y, reduction=reduction), F.cross_entropy(z, y, reduction=reduction)
        torch.testing.assert_close(value, expected, equal_nan=True)
        (grad,) = torch.autograd.grad(value.sum(), z)
        assert grad.shape == shape

    @pytest.mark.parametrize("name", [name for name in NEUTRAL if name != "ldam"])
    @reductions
    def test_empty_batch_of_probabilities(self, name: str, reduction: str) -> None:
        """No sample to average over."""
        z, share = torch.randn(0, C), torch.rand(0, C)
        expected = F.cross_entropy(z, share, reduction=reduction)
        torch.testing.assert_close(NEUTRAL[name](z, share, reduction=reduction), expected, equal_nan=True)

    @every_neutral
    @reductions
    @pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 2}, {"weight": torch.rand(C)}])
    def test_all_targets_ignored(self, neutral: Callable[..., Tensor], reduction: str, options: dict[str, Any]) -> None:
        """The mean is NaN, the sum 0, the gradient what it is there."""
        y = torch.full((6,), options.get("ignore_index", -100))
        values = []
        for loss in (neutral, F.cross_entropy):
            z = Z.clone().requires_grad_()
            value = loss(z, y, reduction=reduction, **options)
            values.append((value.detach(), torch.autograd.grad(value.sum(), z)[0]))
        torch.testing.assert_close(values[0], values[1], equal_nan=True)

    @pytest.mark.parametrize("beta", [0.0, 1.5])
    @reductions
    def test_all_targets_ignored_beside_masked_classes(self, beta: float, reduction: str) -> None:
        """The same with classes masked."""
        z, y = torch.randn(3, 3), torch.full((3,), -100)
        value = class_balanced_softmax(z, y, [5, 0, 2], beta=beta, zero_counts="mask", reduction=reduction)
        torch.testing.assert_close(value, F.cross_entropy(z, y, reduction=reduction), equal_nan=True)

    @every_neutral
    def test_no_weight_left(self, neutral: Callable[..., Tensor]) -> None:
        """All labels of classes that weigh 0."""
        weight, y = torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(6, dtype=torch.long)
        expected = F.cross_entropy(Z, y, weight=weight)
        torch.testing.assert_close(neutral(Z, y, weight=weight), expected, equal_nan=True)

    @every_neutral
    @reductions
    def test_non_contiguous(self, neutral: Callable[..., Tensor], reduction: str) -> None:
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
            expected = F.cross_entropy(logits.contiguous(), target.contiguous(), reduction=reduction)
            torch.testing.assert_close(neutral(logits, target, reduction=reduction), expected)

    @pytest.mark.parametrize("name", [name for name in NEUTRAL if name != "ldam"])
    def test_non_contiguous_probabilities(self, name: str) -> None:
        """Soft targets too, and a weight with a stride."""
        z, share = torch.randn(C, 6).T, torch.rand(C, 6).softmax(0).T
        weight = torch.rand(2 * C)[::2]
        torch.testing.assert_close(NEUTRAL[name](z, share, weight=weight), F.cross_entropy(z, share, weight=weight))

    @every_neutral
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
    def test_labels_of_other_integer_types(self, neutral: Callable[..., Tensor], dtype: torch.dtype) -> None:
        """As if they were int64."""
        torch.testing.assert_close(neutral(Z, Y.to(dtype)), F.cross_entropy(Z, Y))

    @every_neutral
    def test_unsigned_labels_with_255_ignored(self, neutral: Callable[..., Tensor]) -> None:
        """As segmentation masks have them."""
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

    @pytest.mark.parametrize("name", [name for name in NEUTRAL if name != "ldam"])
    def test_an_ignored_class_means_nothing_to_probabilities(self, name: str) -> None:
        """``F.cross_entropy`` refuses ``ignore_index`` >= 0 beside soft targets: it would have no effect."""
        share = torch.rand(6, C).softmax(1)
        with pytest.raises((RuntimeError, ValueError), match="ignore_index"):
            F.cross_entropy(Z, share, ignore_index=1)
        with pytest.raises((RuntimeError, ValueError), match="ignore_index"):
            NEUTRAL[name](Z, share, ignore_index=1)

    @every_neutral
    def test_check_labels_on_and_off_give_the_same(self, neutral: Callable[..., Tensor]) -> None:
        """It is a check and nothing else."""
        expected = F.cross_entropy(Z, Y)
        for check_labels in (True, False, None):
            torch.testing.assert_close(neutral(Z, Y, check_labels=check_labels), expected)

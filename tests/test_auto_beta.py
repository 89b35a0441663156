"""AutoBeta: the exact fixed point of a linear classifier, what stops it, its state, and the loss that it moves."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from tests.waiting import no_waiting
from torch import Tensor, nn

from longtail import AutoBeta, BalancedSoftmaxLoss, ClassBalancedSoftmaxLoss, FocalLoss, LogitAdjustedLoss, fit_shift
from longtail.losses import PriorShiftedSoftmaxLoss

COUNTS = torch.tensor([400, 100, 25])
OFFSET = 1.7  # the beta that the held-out data of _logits call for


def _draw(numbers: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Points of three overlapping normal distributions, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]], dtype=torch.float64)
    labels = torch.arange(3).repeat_interleave(torch.tensor(numbers))
    return means[labels] + torch.randn(len(labels), 2, generator=generator, dtype=torch.float64), labels


X, Y = _draw(COUNTS.tolist(), 0)
HELD_X, HELD_Y = _draw([200, 50, 12], 1)


def _train(head: nn.Linear, loss: nn.Module) -> Tensor:
    """Train a linear classifier to the optimum; plain logits of the held-out data."""
    optimizer = torch.optim.LBFGS(
        head.parameters(), max_iter=200, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(head(X), Y)
        value.backward()
        return value

    optimizer.step(closure)
    return head(HELD_X).detach()


def _logits(beta: float | Tensor, seed: int = 0) -> Tensor:
    """Held-out logits as of a model trained with beta: the log density ratios of the true model, shifted."""
    noise = 0.3 * torch.randn(len(HELD_Y), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain = torch.stack([torch.zeros(len(HELD_X)), 1.5 * HELD_X[:, 0], 1.5 * HELD_X[:, 1]], 1)
    return plain + noise + (OFFSET - beta) * COUNTS.log()


def _controller(beta: float = 1.0, **options: float) -> AutoBeta:
    return AutoBeta(ClassBalancedSoftmaxLoss(COUNTS, beta=beta), **options)


@pytest.mark.parametrize("start", [0.0, 1.0, 2.5])
def test_converged_linear_classifier_needs_the_shift_of_the_softmax_model(start: float) -> None:
    """delta(beta) = delta(0) - beta, so every start ends within one standard error of delta(0); the rest is known."""
    softmax = fit_shift(_train(nn.Linear(2, 3).double(), nn.CrossEntropyLoss()), HELD_Y, COUNTS)
    loss, head = ClassBalancedSoftmaxLoss(COUNTS, beta=start), nn.Linear(2, 3).double()
    auto = AutoBeta(loss)
    before = start
    for _ in range(6):
        logits = _train(head, loss)
        auto.update(logits, HELD_Y)
        row = auto.trace[-1]
        assert row.delta == pytest.approx(softmax.delta - before, abs=2e-5)
        before = row.beta
    assert [row.moved for row in auto.trace][-1] is False
    assert abs(before - softmax.delta) < softmax.std_error
    assert before + auto.trace[-1].delta == pytest.approx(softmax.delta, abs=2e-5)
    # What adjust() returns no longer calls for a shift; softmax logits adjusted by delta(0) would be the same.
    assert fit_shift(auto.adjust(logits), HELD_Y, COUNTS).delta == pytest.approx(0, abs=1e-6)


def test_beta_moves_by_gain_times_delta() -> None:
    auto, beta = _controller(1.0, gain=0.3), 1.0
    for seed in range(4):
        logits = _logits(beta, seed)
        fit = fit_shift(logits, HELD_Y, COUNTS)
        beta += 0.3 * fit.delta if abs(fit.delta) > fit.std_error else 0.0
        auto.update(logits, HELD_Y)
        assert auto.loss.beta == pytest.approx(beta, rel=1e-12)
        assert auto.trace[-1] == (auto.loss.beta, fit.delta, fit.std_error, True, None)
    log_counts = COUNTS.double().log()
    assert auto.loss.logit_shift.tolist() == pytest.approx((beta * (log_counts - log_counts.mean())).tolist(), rel=1e-6)


def test_beta_rests_within_one_standard_error() -> None:
    error = fit_shift(_logits(OFFSET), HELD_Y, COUNTS)
    for distance, moves in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
        auto = _controller(1.0)
        auto.update(_logits(OFFSET) + (distance * error.std_error - error.delta) * COUNTS.log(), HELD_Y)
        assert auto.trace[0].delta == pytest.approx(distance * error.std_error, abs=1e-6)
        assert (auto.trace[0].moved, auto.loss.beta != 1.0, auto.trace[0].problem) == (moves, moves, None)


def test_beta_does_not_become_negative() -> None:
    auto = _controller(0.1)
    for moved in (True, False):
        auto.update(_logits(4.0), HELD_Y)
        assert (auto.loss.beta, auto.trace[-1].moved) == (0.0, moved)


def test_without_gain_delta_is_measured_for_adjust() -> None:
    auto, logits = _controller(1.0, gain=0.0), _logits(1.0)
    assert torch.equal(auto.adjust(logits), logits)  # nothing is measured yet
    auto.update(logits, HELD_Y)
    assert auto.loss.beta == 1.0
    expected = logits - fit_shift(logits, HELD_Y, COUNTS).delta * COUNTS.log()
    found = auto.adjust(logits)
    torch.testing.assert_close(found.log_softmax(1), expected.log_softmax(1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "logits", "labels", "reason"),
    [
        (COUNTS, _logits(1.0).index_fill(0, torch.tensor([3]), math.nan), HELD_Y, "NaN"),
        (COUNTS, torch.full((262, 3), math.inf), HELD_Y, "NaN"),
        (COUNTS, torch.zeros(262, 3), HELD_Y, "predict"),
        (COUNTS, -_logits(OFFSET), HELD_Y, "predict"),
        ([7, 7, 7], _logits(1.0), HELD_Y, "same count"),
        ([7, 7, 5], _logits(1.0)[:250], HELD_Y[:250], "same count"),  # the third has no sample
        (COUNTS, _logits(1.0)[:200], HELD_Y[:200], "one class"),
        (COUNTS, torch.zeros(0, 3), HELD_Y[:0], "one class"),
        (COUNTS, torch.eye(3), torch.arange(3), "misclassified"),
        ([102, 101, 100], _logits(1.0)[170:230], HELD_Y[170:230], "more held-out samples"),
    ],
)
def test_bad_measurement_changes_nothing_and_is_explained(
    counts: Tensor, logits: Tensor, labels: Tensor, reason: str
) -> None:
    auto = AutoBeta(ClassBalancedSoftmaxLoss(counts, beta=1.3))
    shift = auto.loss.logit_shift.clone()
    auto.update(logits, labels)
    assert auto.loss.beta == 1.3
    assert torch.equal(auto.loss.logit_shift, shift)
    assert auto.trace[0].moved is False
    assert reason in str(auto.trace[0].problem)
    assert float(auto.delta) == 0


def test_two_classes_and_classes_without_examples() -> None:
    """Classes with a count of 0 or without held-out samples are left out, as if they did not exist."""
    two = HELD_Y < 2
    logits = _logits(1.0)[two]
    expected = fit_shift(logits[:, :2], HELD_Y[two], COUNTS[:2])
    plain = AutoBeta(ClassBalancedSoftmaxLoss(COUNTS[:2], beta=1.0))
    plain.update(logits[:, :2], HELD_Y[two])
    masked = AutoBeta(ClassBalancedSoftmaxLoss([400, 100, 0], beta=1.0, zero_counts="mask"))
    masked.update(_logits(1.0), HELD_Y)
    absent = _controller()
    absent.update(logits, HELD_Y[two])
    for auto in (plain, masked, absent):
        assert auto.trace[0].delta == pytest.approx(expected.delta, abs=1e-7)
        assert auto.loss.beta == pytest.approx(1 + expected.delta / 2, abs=1e-7)
    assert masked.loss.logit_shift.tolist()[2] == -math.inf
    assert masked.adjust(_logits(1.0))[:, 2].tolist() == [-math.inf] * 262


def test_labels_changed_in_place_are_read_again() -> None:
    auto, labels = _controller(), HELD_Y.clone()
    auto.update(_logits(1.0), labels)
    labels.copy_(HELD_Y.flip(0))
    auto.update(_logits(1.0).flip(0), labels)
    assert auto.trace[1].delta == pytest.approx(auto.trace[0].delta, abs=1e-9)


def _continued(auto: AutoBeta, begin: int, end: int) -> list[tuple[object, ...]]:
    for seed in range(begin, end):
        auto.update(_logits(0.9 * float(auto.beta), seed), HELD_Y)
    return auto.trace


def test_state_dict_continues_bit_identically() -> None:
    expected = _controller()
    half = _controller()
    _continued(half, 0, 3)
    # Another start, other counts, another precision: all of it comes from the state.
    resumed = AutoBeta(ClassBalancedSoftmaxLoss([3, 2, 1], beta=2.0)).half()
    resumed.update(_logits(1.0), HELD_Y)
    shift = resumed.loss.logit_shift.data_ptr()
    resumed.load_state_dict(half.state_dict())
    assert torch.equal(resumed.loss.logit_shift, half.loss.logit_shift)
    assert _continued(resumed, 3, 6) == _continued(expected, 0, 6)
    assert torch.equal(resumed.loss.logit_shift, expected.loss.logit_shift)
    assert resumed.loss.logit_shift.data_ptr() == shift
    for same in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        assert _continued(same, 3, 6) == expected.trace


def test_state_of_a_model_that_holds_loss_and_controller() -> None:
    """In either order of its parts."""
    auto = _controller()
    _continued(auto, 0, 3)
    for order in (("loss", "auto"), ("auto", "loss")):
        other = _controller(0.5)
        parts = {"loss": other.loss, "auto": other}
        saved = nn.ModuleDict({"loss": auto.loss, "auto": auto}).state_dict()
        nn.ModuleDict({name: parts[name] for name in order}).load_state_dict(saved)
        assert torch.equal(other.loss.logit_shift, auto.loss.logit_shift)


def test_trace_keeps_the_last_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = _continued(_controller(), 0, 4)
    monkeypatch.setattr("longtail.beta._TRACE", 3)
    assert _continued(_controller(), 0, 4) == everything[1:]


def test_update_in_inference_mode() -> None:
    auto = _controller()
    with torch.inference_mode():
        auto.update(_logits(1.0), HELD_Y.clone())
    assert auto.trace[0].moved
    logits = torch.zeros(2, 3, requires_grad=True)
    auto.loss(logits, torch.tensor([0, 1])).backward()
    assert logits.grad is not None


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_compiled_loss_sees_the_change() -> None:
    auto = _controller()
    compiled = torch.compile(auto.loss, backend="eager", fullgraph=True)
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    first = compiled(logits, target)
    shift = auto.loss.logit_shift.data_ptr()
    auto.update(_logits(1.0), HELD_Y)
    assert auto.loss.logit_shift.data_ptr() == shift
    expected = F.cross_entropy(logits + auto.loss.beta * COUNTS.log(), target)
    torch.testing.assert_close(compiled(logits, target), expected)
    assert abs(float(expected - first)) > 0.01


def test_losses_that_have_a_beta() -> None:
    auto = AutoBeta(LogitAdjustedLoss(COUNTS, tau=1.0))
    auto.update(_logits(1.0), HELD_Y)
    assert auto.loss.tau == float(auto.beta) > 1.1
    for loss in (
        FocalLoss(0.5),
        nn.CrossEntropyLoss(),
        BalancedSoftmaxLoss(COUNTS),
        PriorShiftedSoftmaxLoss([2, 1], [1, 1]),
    ):
        with pytest.raises(
            TypeError, match=f"ClassBalancedSoftmaxLoss.*{type(loss).__name__}|{type(loss).__name__}.*Class"
        ):
            AutoBeta(loss)


@pytest.mark.parametrize(
    ("logits", "labels", "named"),
    [
        (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), "logits"),
        (torch.zeros(3), torch.zeros((), dtype=torch.int64), "logits"),
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64), "labels"),
        (torch.zeros(4, 3), torch.zeros(4), "labels"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 3]), "labels"),
    ],
)
def test_wrong_shapes_and_labels_are_refused(logits: Tensor, labels: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=f"`{named}`"):
        _controller().update(logits, labels)


def test_set_beta_equals_another_loss() -> None:
    loss = ClassBalancedSoftmaxLoss([400, 0, 25], beta=1.0, zero_counts="mask")
    for beta in (0.0, 1.7, torch.tensor(0.3, dtype=torch.float64)):
        loss.set_beta(beta)
        other = ClassBalancedSoftmaxLoss([400, 0, 25], beta=float(beta), zero_counts="mask")
        assert torch.equal(loss.logit_shift, other.logit_shift)
        assert repr(loss) == repr(other)
        if isinstance(beta, Tensor):
            beta.fill_(9)  # the loss has its own
        assert loss.beta == other.beta
    with pytest.raises(ValueError, match="`beta`"):
        loss.set_beta(-1.0)
    assert loss.beta == 0.3


@pytest.mark.gpu
def test_captured_graph_sees_the_change_and_nothing_waits() -> None:
    auto = _controller().cuda()
    logits, target = torch.randn(8, 3, device="cuda"), torch.randint(3, (8,), device="cuda")
    auto.loss(logits, target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = auto.loss(logits, target)
    held_out, labels = _logits(1.0).cuda(), HELD_Y.cuda()
    auto.update(held_out, labels)  # reads the labels
    with no_waiting():
        auto.update(held_out, labels)
        auto.adjust(held_out)
    graph.replay()
    expected = _controller()
    for _ in range(2):
        expected.update(_logits(1.0), HELD_Y)
    torch.testing.assert_close(auto.beta.cpu(), expected.beta, rtol=1e-6, atol=1e-6)
    shifted = logits.cpu() + float(expected.beta) * COUNTS.log()
    torch.testing.assert_close(value.cpu(), F.cross_entropy(shifted, target.cpu()), rtol=1e-4, atol=1e-4)

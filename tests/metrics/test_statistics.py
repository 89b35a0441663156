"""Class statistics, each field against a loop over samples in numpy."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from longtail import class_shift
from longtail.metrics import ClassStatistics, class_statistics

BIAS = ["bias_reward", "bias_penalty"]
WEIGHT = ["weight_reward", "weight_penalty"]
COUNTED = ["samples", "correct", "predicted", "bin_samples", "bin_correct"]
SUMMED = ["probability_sum", "target_probability_sum", "bin_confidence"]


def by_the_book(logits, label, features=None, *, shift=None, bins=15, ignore_index=-100):
    """All fields, sample by sample."""
    logits = np.asarray(logits, float)
    num_classes = logits.shape[1]
    p = softmax(logits, axis=1)
    q = p if shift is None else softmax(logits + np.asarray(shift, float), axis=1)
    want = {name: np.zeros(num_classes, int) for name in ("samples", "correct", "predicted")}
    want |= {name: np.zeros(num_classes) for name in ("probability_sum", "target_probability_sum", *BIAS)}
    want |= {name: np.zeros((num_classes, bins), int) for name in ("bin_samples", "bin_correct")}
    want["bin_confidence"] = np.zeros((num_classes, bins))
    if features is not None:
        features = np.asarray(features, float)
        want |= {name: np.zeros((num_classes, features.shape[1])) for name in WEIGHT}
    for n, y in enumerate(np.asarray(label)):
        if y == ignore_index:
            continue
        top = int(np.argmax(logits[n]))
        confidence = p[n, top]
        bin_ = max(b for b in range(bins) if confidence > b / bins)
        want["samples"][y] += 1
        want["correct"][y] += top == y
        want["predicted"][top] += 1
        want["probability_sum"] += p[n]
        want["target_probability_sum"][y] += p[n, y]
        want["bin_samples"][y, bin_] += 1
        want["bin_correct"][y, bin_] += top == y
        want["bin_confidence"][y, bin_] += confidence
        for c in range(num_classes):
            name, value = ("reward", 1 - q[n, c]) if c == y else ("penalty", q[n, c])
            want[f"bias_{name}"][c] += value
            if features is not None:
                want[f"weight_{name}"][c] += value * features[n]
    return want


def assert_same(statistics, want, rtol=1e-10, atol=1e-12):
    found = statistics.tensors()
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert tuple(found[name].shape) == np.shape(value), name
        if name in COUNTED:
            assert found[name].dtype == torch.int64, name
            np.testing.assert_array_equal(found[name].numpy(), value, err_msg=name)
        else:
            assert found[name].dtype == torch.float64, name
            np.testing.assert_allclose(found[name].numpy(), value, rtol=rtol, atol=atol, err_msg=name)


def batch(seed=0, size=50, num_classes=6, *, dimension=3, ignored=0.0, ignore_index=-100):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, num_classes, size)
    logits = rng.normal(0, 2, (size, num_classes)) + 1.5 * np.eye(num_classes)[label]
    label[rng.random(size) < ignored] = ignore_index
    return torch.tensor(logits), torch.tensor(label), torch.tensor(rng.normal(size=(size, dimension)))


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("with_features", [False, True])
def test_every_field(seed, shifted, with_features):
    logits, label, features = batch(seed)
    features = features if with_features else None
    shift = torch.tensor([3.0, 2.0, 0.5, 0.0, -1.0, -4.0], dtype=torch.float64) if shifted else None
    statistics = class_statistics(logits, label, features, shift=shift)
    assert_same(statistics, by_the_book(logits, label, features, shift=shift))
    assert statistics.num_classes == 6
    assert "6 classes" in repr(statistics)
    assert "50 samples" in repr(statistics)


def test_fields_are_tied_to_each_other():
    logits, label, features = batch(size=200)
    statistics = class_statistics(logits, label, features)
    assert statistics.samples.sum() == statistics.predicted.sum() == 200
    assert statistics.probability_sum.sum().item() == pytest.approx(200)
    assert torch.equal(statistics.bin_samples.sum(1), statistics.samples)
    assert torch.equal(statistics.bin_correct.sum(1), statistics.correct)
    assert (statistics.correct <= statistics.predicted).all()
    # What samples of a class miss is what its reward is made of.
    missed = statistics.samples - statistics.target_probability_sum
    torch.testing.assert_close(statistics.bias_reward, missed)
    torch.testing.assert_close(statistics.bias_penalty, statistics.probability_sum - statistics.target_probability_sum)


def test_the_shift_is_for_the_gradient_alone():
    logits, label, features = batch()
    plain = class_statistics(logits, label, features).tensors()
    shifted = class_statistics(logits, label, features, shift=class_shift([10**6, 1, 1, 1, 1, 1], 3.0)).tensors()
    for name in plain:
        assert torch.equal(plain[name], shifted[name]) == (name not in BIAS + WEIGHT), name


@pytest.mark.parametrize("bins", [1, 7])
def test_bins(bins):
    logits, label, _ = batch()
    assert_same(class_statistics(logits, label, bins=bins), by_the_book(logits, label, bins=bins))


@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_ignored_samples(ignore_index):
    logits, label, features = batch(ignored=0.3, ignore_index=ignore_index)
    statistics = class_statistics(logits, label, features, ignore_index=ignore_index)
    assert_same(statistics, by_the_book(logits, label, features, ignore_index=ignore_index))
    assert statistics.samples.sum() == (label != ignore_index).sum()


def test_an_ignored_sample_may_hold_anything():
    # Padding often does; F.cross_entropy never looks at it.
    logits, label, features = batch()
    want = by_the_book(logits[2:], label[2:], features[2:])
    label[:2], logits[0], logits[1], features[0] = -100, math.nan, -math.inf, math.nan
    assert_same(class_statistics(logits, label, features), want)


@pytest.mark.parametrize("where", [(7,), (2, 3, 2)])
def test_dense_predictions(where):
    rng = np.random.default_rng(0)
    logits, features = rng.normal(size=(3, 5, *where)), rng.normal(size=(3, 2, *where))
    label = rng.integers(0, 5, (3, *where))
    label[rng.random(label.shape) < 0.2] = -100
    rows, feature_rows, labels = [], [], []
    for place in np.ndindex(3, *where):
        rows.append(logits[place[0]][(slice(None), *place[1:])])
        feature_rows.append(features[place[0]][(slice(None), *place[1:])])
        labels.append(label[place])
    statistics = class_statistics(torch.tensor(logits), torch.tensor(label), torch.tensor(features))
    assert_same(statistics, by_the_book(rows, labels, feature_rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_logits(dtype):
    # They are what they are, but nothing more is lost: the sums are those of the rounded logits.
    logits, label, features = (tensor[:40] for tensor in batch(size=60))
    logits, features = logits.to(dtype), features.to(dtype)
    shift = class_shift([10**9, 10**6, 1000, 50, 5, 1], 1.5)
    want = by_the_book(logits.double(), label, features.double(), shift=shift.double())
    assert_same(class_statistics(logits, label, features, shift=shift), want, rtol=2e-5, atol=1e-6)


def test_sums_do_not_lose_precision_over_many_samples():
    # In float32 a sum stops at 2**24 ones; these are 0.1s, half a million of them in one batch.
    logits = torch.tensor([[0.0, math.log(9.0)]]).expand(500_000, 2)
    statistics = class_statistics(logits, torch.zeros(500_000, dtype=torch.int64))
    assert statistics.target_probability_sum[0].item() == pytest.approx(50_000, rel=1e-6)
    assert statistics.probability_sum.tolist() == pytest.approx([50_000, 450_000], rel=1e-6)
    assert statistics.bias_reward[0].item() == pytest.approx(450_000, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_of_any_integer_type(dtype):
    logits, label, _ = batch()
    assert_same(class_statistics(logits, label.to(dtype)), by_the_book(logits, label))


def test_non_contiguous_tensors():
    logits, label, features = batch()
    strided = (logits.T.contiguous().T, label.repeat_interleave(2)[::2], features.repeat(1, 2)[:, ::2])
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_same(class_statistics(*strided), by_the_book(logits, label, features.repeat(1, 2)[:, ::2]))


def test_no_graph_and_no_change():
    logits, label, features = batch()
    logits.requires_grad_()
    before = logits.detach().clone()
    statistics = class_statistics(logits, label, features.requires_grad_())
    assert not any(tensor.requires_grad for tensor in statistics.tensors().values())
    assert torch.equal(logits.detach(), before)


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 3), (2, 4, 0)])
def test_no_sample(shape):
    target = torch.zeros(shape[0], *shape[2:], dtype=torch.int64)
    features = torch.zeros(shape[0], 2, *shape[2:])
    statistics = class_statistics(torch.zeros(shape), target, features)
    assert_same(statistics, by_the_book(np.zeros((0, 4)), [], np.zeros((0, 2))))


def test_all_samples_ignored():
    logits, label, features = batch()
    statistics = class_statistics(logits, torch.full_like(label, -100), features)
    assert_same(statistics, by_the_book(np.zeros((0, 6)), [], np.zeros((0, 3))))


def test_one_sample():
    logits, label, features = (tensor[:1] for tensor in batch())
    assert_same(class_statistics(logits, label, features), by_the_book(logits, label, features))


def test_one_class_only():
    statistics = class_statistics(torch.randn(5, 1), torch.zeros(5, dtype=torch.int64), torch.ones(5, 2))
    assert_same(statistics, by_the_book(np.zeros((5, 1)), [0] * 5, np.ones((5, 2))))
    assert statistics.samples.tolist() == statistics.correct.tolist() == statistics.predicted.tolist() == [5]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_predict_no_class(value):
    """A model that has diverged would else seem perfect on its first class."""
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, value, 0.0], [value, value, value], [0.0, 0.0, 3.0]])
    found = class_statistics(logits, torch.tensor([0, 1, 0, 2]))
    assert found.samples.tolist() == [2, 1, 1]
    assert found.correct.tolist() == [1, 0, 1]
    assert found.predicted.tolist() == [1, 0, 1]
    assert found.bin_correct.sum(1).tolist() == [1, 0, 1]


def test_infinite_logits_mask_a_class_out():
    logits, label, _ = batch()
    logits[:, 5] = -math.inf
    label[label == 5] = 0
    statistics = class_statistics(logits, label)
    assert statistics.probability_sum[5] == statistics.bias_penalty[5] == 0
    assert_same(statistics, by_the_book(logits.clamp(min=-1e4), label))


@settings(deadline=None, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10**6), size=st.integers(0, 25), num_classes=st.integers(1, 7))
def test_additive_over_batches_in_any_split_and_order(data, seed, size, num_classes):
    logits, label, features = batch(seed, size, num_classes, dimension=2, ignored=0.1)
    order = torch.tensor(data.draw(st.permutations(range(size))), dtype=torch.int64)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    parts = order.tensor_split(cuts)
    total = class_statistics(logits[parts[0]], label[parts[0]], features[parts[0]])
    for part in parts[1:]:
        total = total + class_statistics(logits[part], label[part], features[part])
    assert_same(total, by_the_book(logits, label, features))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(0, 25),
    num_classes=st.integers(1, 9),
    bins=st.integers(1, 40),
    beta=st.floats(0, 2, allow_subnormal=False),
    ignored=st.floats(0, 1, allow_subnormal=False),
)
def test_any_batch(seed, size, num_classes, *, bins, beta, ignored):
    logits, label, features = batch(seed, size, num_classes, ignored=ignored)
    shift = beta * torch.arange(1, num_classes + 1, dtype=torch.float64).log()
    statistics = class_statistics(logits, label, features, shift=shift, bins=bins)
    assert_same(statistics, by_the_book(logits, label, features, shift=shift, bins=bins))


def test_adding_leaves_both_as_they_were():
    logits, label, _ = batch()
    a, b = class_statistics(logits[:20], label[:20]), class_statistics(logits[20:], label[20:])
    before = [{name: value.clone() for name, value in s.tensors().items()} for s in (a, b)]
    _ = a + b
    for statistics, old in zip((a, b), before, strict=True):
        assert all(torch.equal(value, old[name]) for name, value in statistics.tensors().items())


def test_pickling():
    logits, label, features = batch()
    statistics = pickle.loads(pickle.dumps(class_statistics(logits, label, features)))
    assert isinstance(statistics, ClassStatistics)
    assert_same(statistics, by_the_book(logits, label, features))


def test_memory_is_that_of_the_classes():
    sizes = [
        [tensor.numel() for tensor in class_statistics(*batch(size=size)).tensors().values()] for size in (1, 1000)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({}, {"num_classes": 5}, r"\(6,?.*\).*\(5,?.*\)"),
        ({}, {"dimension": 4}, r"weight_.*\(6, 3\).*\(6, 4\)"),
        ({}, {"features": False}, r"weight_.*\(6, 3\).*None"),
        ({}, {"bins": 10}, r"bin_.*\(6, 15\).*\(6, 10\)"),
    ],
)
def test_adding_statistics_of_other_shapes(one, other, message):
    def statistics(num_classes=6, dimension=3, features=True, bins=15):
        logits, label, h = batch(num_classes=num_classes, dimension=dimension)
        return class_statistics(logits, label, h if features else None, bins=bins)

    with pytest.raises(ValueError, match=message):
        statistics(**one) + statistics(**other)
    with pytest.raises(ValueError, match="statistics"):
        statistics(**other) + statistics(**one)


def test_adding_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        class_statistics(*batch()) + 1


@pytest.mark.parametrize("bins", [0, 1.5])
def test_bad_bins(bins):
    with pytest.raises((TypeError, ValueError), match="`bins`"):
        class_statistics(torch.zeros(2, 3), torch.tensor([0, 1]), bins=bins)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": torch.tensor([0, -100, 2, 1]), "ignore_index": 255}, ValueError, r"`target`.*-100"),
        ({"shift": torch.zeros(4)}, ValueError, r"`shift`.*\(3,\).*\(4,\)"),
        ({"features": torch.zeros(5, 2)}, ValueError, r"`features`.*\(5, 2\)"),
        ({"logits": torch.zeros(4, 3, 2)}, ValueError, r"`target`.*\(4, 2\).*\(4,\)"),
    ],
)
def test_bad_batches(change, error, message):
    """The rules are tested in test_gradients.py; here, that they are applied."""
    with pytest.raises(error, match=message):
        class_statistics(**{"logits": torch.zeros(4, 3), "target": torch.tensor([0, 1, 2, 1]), **change})


def test_predictions_have_the_counts_of_logits():
    logits, labels = torch.randn(50, 4), torch.randint(4, (50,))
    whole = class_statistics(logits, labels)
    found = ClassStatistics.from_predictions(labels, logits.argmax(1), 4)
    assert list(found.tensors()) == ["samples", "correct", "predicted"]
    for name, value in found.tensors().items():
        assert torch.equal(value, getattr(whole, name))
    assert (found + found).accuracy == whole.accuracy
    with pytest.raises(TypeError, match="`predicted` is missing"):
        ClassStatistics(samples=found.samples, correct=found.correct)

"""A pass over batches: what is counted and summed, how many at a time, and what several ranks hear of each other."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longtail._ranks import Ranks
from longtail.data.sampling.batch_plan import Batch
from longtail.metrics import class_statistics
from longtail.train import evaluation
from longtail.train.evaluation import add_statistics, count_correct
from longtail.train.stored import NO_LABEL

ALONE = Ranks()
CLASSES, FEATURES = 6, 4


def batches_of(number, size, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        labels = torch.randint(classes, (size,), generator=generator)
        labels[torch.rand(size, generator=generator) < 0.2] = NO_LABEL
        yield Batch((torch.randn(size, classes, generator=generator),), labels, torch.arange(size))


def test_hits_are_those_of_the_class_statistics():
    correct, samples = count_correct(lambda images: (images, images), batches_of(3, 50, 7), 7, ALONE)
    batches = list(batches_of(3, 50, 7))
    expected = class_statistics(torch.cat([b.views[0] for b in batches]), torch.cat([b.labels for b in batches]))
    assert torch.equal(samples, expected.samples)
    assert torch.equal(correct, expected.correct)
    assert 0 < int(samples.sum()) < 150


def wide_batches(sizes):
    """Batches whose images are logits beside features; a sixth of the samples have no label, and class 2 has none."""
    generator = np.random.default_rng(0)
    begin = 0
    for size in sizes:
        labels = generator.choice([0, 1, 3, 4, 5, NO_LABEL], size)
        images = torch.from_numpy(generator.normal(size=(size, CLASSES + FEATURES)).astype(np.float32))
        yield Batch((images,), torch.from_numpy(labels), torch.arange(begin, begin + size))
        begin += size


class Overwriting:
    """Gives logits and features in the same memory each time, as a replayed pass does."""

    def __init__(self, rows):
        self.memory = torch.empty(rows, CLASSES), torch.empty(rows, FEATURES)

    def __call__(self, images):
        given = tuple(memory[: len(images)] for memory in self.memory)
        for memory, values in zip(given, images.split([CLASSES, FEATURES], 1), strict=True):
            memory.copy_(values)
        return given


def in_numpy(batches, *, shift=0.0, change=lambda logits: logits):
    """Class statistics of all batches as one, in float64, from their definitions."""
    images = np.concatenate([batch.views[0].numpy() for batch in batches])
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    images, labels = images[labels != NO_LABEL].astype(np.float64), labels[labels != NO_LABEL]
    logits, features = change(images[:, :CLASSES]), images[:, CLASSES:]

    def softmax(values):
        powers = np.exp(values)
        return powers / powers.sum(1, keepdims=True)

    own, p, q = np.eye(CLASSES)[labels], softmax(logits), softmax(logits + shift)
    predicted = np.eye(CLASSES)[logits.argmax(1)]
    bins = np.eye(15)[np.ceil(p.max(1) * 15).astype(int) - 1]
    right = (own * predicted).sum(1)
    missed = own * (1 - (q * own).sum(1, keepdims=True))
    return {
        "samples": own.sum(0),
        "correct": own.T @ right,
        "predicted": predicted.sum(0),
        "probability_sum": p.sum(0),
        "target_probability_sum": (p * own).sum(0),
        "bin_samples": own.T @ bins,
        "bin_correct": own.T @ (bins * right[:, None]),
        "bin_confidence": own.T @ (bins * p.max(1, keepdims=True)),
        "bias_reward": missed.sum(0),
        "bias_penalty": (q * (1 - own)).sum(0),
        "weight_reward": missed.T @ features,
        "weight_penalty": (q * (1 - own)).T @ features,
    }


def assert_statistics(found, expected):
    tensors = found.tensors()
    assert tensors.keys() == expected.keys()
    for name, value in tensors.items():
        if value.dtype == torch.int64:
            assert value.tolist() == expected[name].tolist(), name
        else:
            np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-5, atol=1e-4, err_msg=name)


FULL, MANY = evaluation._SAMPLES, evaluation._NUMBERS
SIZES = {
    "one": [50],
    "small ones": [128] * 300,
    "one less than full, then one": [FULL - 1, 1, 1],
    "one more than full": [FULL - 1, 2],
    "full at once": [5, FULL, 7],
    "too large between small ones": [3, 128, FULL + 1, 100, 2 * FULL + 5],
    "odd": [1, 4999, 7001, 4384, 4383, 6000, 6002, 0, 3],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_batches_that_are_counted_together(sizes):
    """Whatever their sizes, and though each overwrites the one before."""
    batches = list(wide_batches(sizes))
    expected = in_numpy(batches)
    correct, samples = count_correct(Overwriting(max(sizes)), iter(batches), CLASSES, ALONE)
    assert samples.tolist() == expected["samples"].tolist()
    assert correct.tolist() == expected["correct"].tolist()
    assert samples[2] == 0
    assert_statistics(add_statistics(Overwriting(max(sizes)), iter(batches), ranks=ALONE), expected)


def test_what_is_changed_is_counted_and_what_is_written_is_plain():
    batches = list(wide_batches([128] * 150 + [FULL, 31]))
    added, shift = np.linspace(-1, 1, CLASSES), np.linspace(2, 0, CLASSES)
    written = []
    found = add_statistics(
        Overwriting(FULL),
        iter(batches),
        ranks=ALONE,
        shift=torch.from_numpy(shift).float(),
        change=lambda logits: logits + torch.from_numpy(added).float(),
        write=lambda *rows: written.append([part.clone() for part in rows]),
    )
    assert_statistics(found, in_numpy(batches, shift=shift, change=lambda logits: logits + added))
    assert len(written) == len(batches)
    for (places, logits, labels), batch in zip(written, batches, strict=True):
        assert torch.equal(places, batch.indices)
        assert torch.equal(logits, batch.views[0][:, :CLASSES])
        assert torch.equal(labels, batch.labels)


def test_rows_are_written_before_the_next_forward_pass():
    seen = []

    def looking(images):
        seen.append("look")
        return images, images

    add_statistics(looking, wide_batches([128] * 3), ranks=ALONE, write=lambda *_: seen.append("write"))
    assert seen == ["look", "write"] * 3


@pytest.fixture
def counted(monkeypatch):
    """The logits that were counted together."""
    found = []

    def counting(logits, *others, **settings):
        found.append(logits)
        return class_statistics(logits, *others, **settings)

    monkeypatch.setattr(evaluation, "class_statistics", counting)
    return found


@pytest.mark.parametrize(
    ("numbers", "sizes", "lots"),
    [
        (MANY, [128] * 300, [FULL, FULL, 300 * 128 - 2 * FULL]),
        (MANY, [9000, 7000, 384, 1], [FULL, 1]),
        (MANY, [9000, 7000, 385, 1], [16000, 386]),
        (MANY, [1, FULL, 1, FULL + 1], [1, FULL, 1, FULL + 1]),
        (1100, [30, 40, 30, 1], [100, 1]),  # CLASSES + FEATURES and a label: 11 numbers a sample
        (1100, [30, 40, 31, 1], [70, 32]),
        (1100, [30, 100, 99, 2, 101], [30, 100, 99, 2, 101]),
    ],
)
def test_how_many_are_counted_together(monkeypatch, counted, numbers, sizes, lots):
    """As many as fit, by their number and by their width."""
    monkeypatch.setattr(evaluation, "_NUMBERS", numbers)
    add_statistics(Overwriting(max(sizes)), wide_batches(sizes), ranks=ALONE)
    assert [len(logits) for logits in counted] == lots


@pytest.mark.parametrize(("numbers", "full"), [(MANY, FULL), (1100, 100)])
def test_a_large_batch_is_not_copied(monkeypatch, counted, numbers, full):
    monkeypatch.setattr(evaluation, "_NUMBERS", numbers)
    looking = Overwriting(full + 1)
    add_statistics(looking, wide_batches([full, 1, full + 1]), ranks=ALONE)
    first, small, last = (logits.data_ptr() for logits in counted)
    assert first == last == looking.memory[0].data_ptr() != small


class Launches(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("count", "each"), [(count_correct, 1), (lambda *given: add_statistics(*given[:2], ranks=ALONE), 2)]
)
def test_a_batch_takes_few_launches(count, each):
    """One for its predictions, or one each for a copy of its logits and features."""
    launches = []
    for number in (20, 120):
        batches = list(wide_batches([128] * number))
        outputs = tuple(part.contiguous() for part in batches[0].views[0].split([CLASSES, FEATURES], 1))
        with Launches() as found:
            count(lambda _, outputs=outputs: outputs, iter(batches), CLASSES, ALONE)
        launches.append(found.number)
    assert launches[1] - launches[0] == 100 * each


def test_hits_are_not_read_back():
    """Tensors of the meta device have nothing that could be read."""
    plain = wide_batches([128, FULL, 50])
    batches = [batch._replace(views=(batch.views[0].to("meta"),), labels=batch.labels.to("meta")) for batch in plain]
    found = count_correct(lambda images: (images, images), batches, 7, ALONE)
    assert [(value.device.type, value.shape) for value in found] == [("meta", (7,))] * 2


class OneOfTwo:
    """A rank beside another that has so many batches, of which nothing is counted."""

    world = 2

    def __init__(self, *, first, others):
        self.first, self.others = first, others

    def sum(self, values):
        if values.ndim > 0:
            return values
        self.others -= 1  # a rank counts who has another batch
        return values + int(self.others >= 0)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("mine", "others"), [(2, 4), (4, 2), (3, 3)])
def test_ranks_gather_rows_batch_by_batch(monkeypatch, first, mine, others):
    """The one that has fewer batches, too, until both are through; the first writes what both have."""
    given, written, theirs = [], [], wide_batches([9] * others)

    def gather(rows, parts):
        given.append(rows)
        if parts is not None:
            batch = next(theirs, None)
            parts[:] = [rows, batch and (batch.indices, batch.views[0][:, :CLASSES], batch.labels)]

    monkeypatch.setattr(torch.distributed, "gather_object", gather)
    batches, ranks = list(wide_batches([128] * mine)), OneOfTwo(first=first, others=others)
    found = add_statistics(
        Overwriting(128), iter(batches), ranks=ranks, write=lambda places, *_: written.append(len(places))
    )
    assert_statistics(found, in_numpy(batches))
    most = max(mine, others)
    assert [rows is not None for rows in given] == [step < mine for step in range(most)]
    in_step = [size for step in range(most) for size, number in ((128, mine), (9, others)) if step < number]
    assert written == (in_step if first else [])


@pytest.mark.parametrize("count", [count_correct, lambda f, b, _, ranks: add_statistics(f, b, ranks=ranks)])
def test_an_empty_split_is_refused(count):
    with pytest.raises(ValueError, match="Expected a split with a sample for every process"):
        count(lambda images: (images, images), iter(()), 3, ALONE)

"""The commands in the headers of examples/ run; the parts of cifar_lt.py agree with the library."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from longtail import _registry, cli
from longtail.data import CATALOG, load
from longtail.data.augment import Normalise
from longtail.data.datasets.cifar import CIFAR10_BATCHES
from longtail.methods import METHODS
from longtail.models import HEADS, build_model
from longtail.train.optimizer import learning_rate
from longtail.train.recipe import defaults
from reproduction.cifar10_npm import write_cifar10

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "cifar_lt.py"


def header(name):
    """Return the indented lines in the docstring of an example."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")), clean=False)
    return [line[4:] for line in text.splitlines() if line.startswith("    ")]


@pytest.fixture
def root_folder(monkeypatch):
    """Work in the root of the repository, and forget what a plugin registers."""
    monkeypatch.chdir(EXAMPLES.parent)
    monkeypatch.syspath_prepend(EXAMPLES.parent)
    monkeypatch.setenv("LONGTAIL_PLUGINS", "")
    monkeypatch.setattr(_registry, "_loaded", set(_registry._loaded))
    registries = [(registry, set(registry)) for registry in (METHODS, HEADS, CATALOG)]
    yield
    for registry, known in registries:
        for name in set(registry) - known:
            registry.unregister(name)
    sys.modules.pop("examples.own_head", None)


@pytest.mark.parametrize("name", ["own_dataset", "own_head", "own_method", "vs_loss"])
@pytest.mark.usefixtures("root_folder")
def test_header_commands_run(name, tmp_path, capsys):
    lines = [line for line in header(name) if line.startswith("longtail ")]
    assert lines
    for number, line in enumerate(lines):
        words = shlex.split(line)[1:]
        if words[0] in {"train", "study"}:
            words += ["--epochs", "1", "--model", "small-cnn", "--out", str(tmp_path / str(number))]
        assert cli.main(words) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("root_folder")
def test_header_code_of_own_head_runs():
    space = {}
    exec("\n".join(line for line in header("own_head") if not line.startswith("longtail ")), space)
    assert space["model"].head.temperature == 0.5


def test_auto_beta_prints_a_row_per_choice(example, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["auto_beta.py", "--seeds", "1", "--epochs", "3"])
    example("auto_beta").main()
    rows = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["beta", "recall %", "after adjust", "beta at the end"]
    assert [name for name, *_ in rows] == [re.split(r"  +", line)[0] for line in header("auto_beta")[:8]]
    ends = [float(row[3].split()[0]) for row in rows[1:]]
    assert ends[:4] == [0, 1, 1.5, 2]
    assert ends[4] > 0
    assert ends[6] != 2


@pytest.fixture(scope="module")
def script(example):
    return example("cifar_lt")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """CIFAR-10 with 30 training and 6 test images per class; a class is a colour with noise."""
    folder = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 256, (10, 3, 1, 1), generator=generator)

    def images():
        labels = torch.arange(10).repeat(6)
        noise = torch.randint(-20, 21, (len(labels), 3, 32, 32), generator=generator)
        return (colours[labels] + noise).clamp(0, 255).to(torch.uint8), labels

    write_cifar10(folder, {name: images() for name in CIFAR10_BATCHES})
    return folder


@pytest.fixture
def run(script, monkeypatch, capsys):
    """Return a function that runs the script in this process; it returns stdout and stderr, and whether it failed."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *arguments])
        failed = False
        try:
            script.main()
        except SystemExit as left:
            failed = bool(left.code)
        return (*capsys.readouterr(), failed)

    return call


def test_script_has_at_most_200_lines():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 200


def test_script_trains_and_reports(run, root):
    out, _, failed = run("--root", str(root), "--imbalance", "10", "--epochs", "1", "--method", "cbs", "--beta", "1.2")
    assert not failed
    lines = out.splitlines()
    counts = [int(30 * 10 ** (-k / 9) + 1e-9) for k in range(10)]
    assert lines[0] == f"{sum(counts)} training images, 30 of the first class down to 3"
    assert re.fullmatch(r"epoch 1: loss \d+\.\d{4}, \d+\.\d s", lines[1])
    for line, split in zip(lines[2:4], ("train", "test"), strict=True):
        found = re.fullmatch(
            rf"{split} +recall %  head (\S+)  medium (\S+)  tail (\S+)  all (\S+)",
            line,
        )
        head, medium, tail, everything = map(float, found.groups())
        assert everything == pytest.approx((3 * head + 3 * medium + 4 * tail) / 10, abs=0.011)
    assert re.fullmatch(r"model imbalance level I (nan|\d+\.\d{2})", lines[4])


def test_error_is_one_sentence(run, tmp_path):
    _, err, failed = run("--root", str(tmp_path))
    assert failed
    assert err.strip().splitlines()[-1].startswith(f"cifar_lt.py: error: Expected {tmp_path}")


@pytest.mark.parametrize(("imbalance", "seed"), [(10, 0), (3.5, 2)])
def test_images_equal_those_of_the_library(script, root, imbalance, seed):
    data = load("cifar10-lt", root, imbalance=imbalance, subset_seed=seed)
    splits = script.read(str(root))
    pixels, labels = splits["train"]
    kept = script.long_tailed(labels, imbalance, seed)
    assert torch.equal(labels[kept], data.train.labels)
    assert torch.equal(pixels[kept], data.train.images.pixels)
    pixels, labels = splits["test"]
    assert torch.equal(pixels, data.test.images.pixels)
    assert torch.equal(labels, data.test.labels)


def test_script_imports_only_losses_metrics_and_data():
    found = re.findall(r"^from (longtail\S*) import (.*)$", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [module for module, _ in found] == ["longtail", "longtail.data", "longtail.metrics"]


def test_network_equals_that_of_the_library(script):
    """Both have the same parameters in the same order, and compute the same logits."""
    ours, theirs = script.ResNet32(10).eval(), build_model("resnet32", 10).eval()
    mine, others = ours.state_dict(), theirs.state_dict()
    assert [value.shape for value in mine.values()] == [value.shape for value in others.values()]
    ours.load_state_dict(dict(zip(mine, others.values(), strict=True)))
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(ours(images), theirs(images).logits)


def test_schedule_and_optimizer_equal_the_recipe(script):
    recipe = defaults("cifar10-lt", "cbs", 100)
    for epochs in (recipe.epochs, 1, 7, 25, 100, 400):
        for epoch in range(epochs):
            expected = learning_rate(
                epoch,
                lr=recipe.lr,
                epochs=epochs,
                schedule=recipe.schedule,
                milestones=recipe.milestones,
                decay=recipe.decay,
                warmup=recipe.warmup,
            )
            assert script.learning_rate(epoch, epochs) == pytest.approx(expected, rel=1e-12)
    assert (recipe.epochs, recipe.batch_size, recipe.beta) == (200, script.BATCH, 1.8)
    assert (recipe.momentum, recipe.weight_decay, recipe.nesterov, recipe.drop_last) == (0.9, 5e-4, False, False)


def test_crop_and_flip(script):
    """Each crop is one of the 81 windows of the padded image, flipped or not, and all of them occur."""
    image = torch.randint(1, 256, (1, 3, 32, 32), dtype=torch.uint8)
    padded = F.pad(image[0], (4, 4, 4, 4))
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 32, left : left + 32]
            windows[window.numpy().tobytes()] = (top, left, False)
            windows[window.flip(2).contiguous().numpy().tobytes()] = (top, left, True)
    found = [
        windows[one.contiguous().numpy().tobytes()] for one in script.crop_and_flip(image.expand(2000, -1, -1, -1))
    ]
    assert len(set(found)) == 162
    assert 900 < sum(mirrored for _, _, mirrored in found) < 1100


def test_normalisation_equals_that_of_the_library(script):
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    torch.testing.assert_close(script.normalised(images), Normalise(script.MEAN, script.STD)(images))

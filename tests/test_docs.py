"""The commands and the Python code in the pages of docs/ run as printed."""

import copy
import functools
import importlib.util
import json
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import longtail
from longtail import BalancedSoftmaxLoss, _registry, class_counts, cli
from longtail.methods import METHODS, Task
from longtail.models import Outputs
from longtail.train import Recipe, RunFolder
from longtail.train.recipe import setting_types

DOCS = Path(__file__).parents[1] / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page):
    """Return the code blocks of a page: language and text."""
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, and restore what commands change in the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LONGTAIL_PLUGINS", "")
    known, loaded = set(METHODS), set(_registry._loaded)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in set(METHODS) - known:
        METHODS.unregister(name)
    _registry._loaded &= loaded
    for name in ("my_loss", "my_method"):
        sys.modules.pop(name, None)


def command(line, more=()):
    """Run a line of a page as a shell would, in this process."""
    words = shlex.split(line) + list(more)
    assert words[0] == "longtail"
    try:
        return cli.main(words[1:])
    except SystemExit as left:
        return left.code


def quick(line):
    """Return flags that shorten the training of a line."""
    if line.startswith("longtail train pets"):
        return ["--epochs", "5", "--batch-size", "8", "--model", "small-cnn"]
    trains = line.startswith("longtail train") and not any(word in line for word in ("--resume", "--epochs"))
    return ["--epochs", "2"] if trains else []


def results(folder):
    return {
        str(path.parent.relative_to(folder)): json.loads(path.read_text())
        for path in folder.glob("runs/**/result.json")
        if not RunFolder(path.parent).is_pilot
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own
def test_training_page(here, capsys):
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("cat", "dog", "fish")):
        (here / "pets" / name).mkdir(parents=True)
        for number in range(20 // (label + 1)):
            pixels = torch.randint(80 * label, 80 * label + 90, (8, 8, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(here / "pets" / name / f"{number}.png")
    shutil.copytree(here / "pets", here / "new-pets")
    files = sorted((here / "pets").glob("*/*.png"))
    rows = [f"{file.relative_to(here / 'pets')},{file.parent.name},{place % 9}" for place, file in enumerate(files)]
    (here / "pets.csv").write_text("\n".join(["file,label,owner", *rows]))
    space = {}
    for language, text in blocks("data.md") + blocks("training.md"):
        if language == "python":
            exec(text, space)
        for line in text.splitlines() if language == "bash" else ():
            assert command(line, quick(line)) == 0, line
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    left = results(here)
    assert len(left) == 13
    assert {name for name in left if name.startswith("runs/sweep/")} == {
        f"runs/sweep/digits-lt-50-{method}-seed{seed}" for method in ("softmax", "balanced-softmax") for seed in (0, 1)
    }
    assert left["runs/cbs"]["params"] == left["runs/again"]["params"] == {"beta": 1.5}
    assert left["runs/again"]["seed"] == 1
    assert len(left["runs/again"]["classes"]) == 10
    # The files of the run folder are those of the page's table.
    section = (DOCS / "training.md").read_text(encoding="utf-8").partition("## Files in a run folder")[2]
    table = re.findall(r"^\| `([\w./]+?)/?` \|", section, re.MULTILINE)
    found = [path.name for path in (here / "runs/softmax").iterdir() if path.name[0] != "."]
    # Every image could be read here, all losses were finite, and beta is fixed.
    assert sorted(table) == sorted([*found, "not_finite.json", "pilot0", "unreadable.json"])
    # The post-hoc step is chosen on validation data.
    chosen = json.loads((here / "tau.json").read_text())
    assert chosen["posthoc"].startswith("tau=")
    assert max(chosen["posthoc_chosen_on_val"].values()) == chosen["splits"]["val"]["recall"]["all"]
    assert space["adjusted"]["posthoc"] == "adjust=1"
    # The Python code works.
    assert len(space["folders"]) == 2
    assert left["runs/mine"]["data"] == "mine"
    assert [space["model"].class_names[label] for label in space["labels"]] == ["cat", "dog"]
    torch.testing.assert_close(space["logits"].softmax(1), space["probabilities"][:1])
    assert len(json.loads((here / "predictions.json").read_text())) == 20 + 10 + 6


@functools.cache
def digits():
    """Return long-tailed training, validation and test digits: 94 images of the first class down to 1 of the last."""
    pixels, labels = load_digits(return_X_y=True)
    random, parts = np.random.RandomState(0), ([], [], [])
    for c in range(10):
        test, val, train = np.split(random.permutation(np.flatnonzero(labels == c)), [60, 80])
        for part, rows in zip(parts, (train[: int(94 * 50 ** (-c / 9))], val, test), strict=True):
            part.append(rows)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    return [TensorDataset(x[np.concatenate(part)], y[np.concatenate(part)]) for part in parts]


def fit(model, loader, loss):
    """Train a network from the start, as a reader's own loop would."""
    torch.manual_seed(0)
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(60):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()


@functools.cache
def trained(loss):
    """Return a network that was trained on the digits with a loss."""
    model, data = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), digits()[0]
    counts = class_counts(data.tensors[1], 10)
    fit(model, DataLoader(data, 32, shuffle=True), nn.CrossEntropyLoss() if loss == "softmax" else loss(counts))
    return model.requires_grad_(False)


def reader(loss="softmax"):
    """Return the names that pages assume: a reader's model, loaders and predictions."""
    splits = dict(zip(("train", "val", "test"), digits(), strict=True))
    model = trained(loss)
    space = {"model": model, "num_classes": 10, "counts": class_counts(splits["train"].tensors[1], 10), "train": fit}
    for name, data in splits.items():
        space[f"{name}_loader"] = DataLoader(data, 32, shuffle=name == "train")
        space[f"{name}_logits"], space[f"{name}_labels"] = model(data.tensors[0]), data.tensors[1]
    return space | {"logits": space["test_logits"], "target": space["test_labels"]}


def run_blocks(page, space):
    for language, text in blocks(page):
        if language == "python":
            exec(text, space)
        for line in text.splitlines() if language == "bash" else ():
            assert command(line) == 0, line


def assert_shown(shown, printed):
    """Check that a page shows what a command printed; "…" stands for what was left out, and numbers may round."""
    number = re.compile(r"\d+(?:\.\d+)?")
    text = " ".join(printed.split())
    for part in filter(None, (part.strip(" -\n") for part in re.split(r"…|\n(?=- )", shown))):
        pattern = number.sub(r"(\\d+(?:\\.\\d+)?)", re.escape(" ".join(part.split())).replace("\\.", "."))
        found = re.search(pattern, text)
        assert found, part
        assert [float(one) for one in found.groups()] == pytest.approx([float(n) for n in number.findall(part)], abs=3)


def test_start_page(here, capsys):
    space = reader() | {"model": copy.deepcopy(trained("softmax")).requires_grad_(True)}
    run_blocks("index.md", space)
    printed = capsys.readouterr().out
    (shown,) = [text for language, text in blocks("index.md") if language == "text" and "On test data" in text]
    assert_shown(shown, printed)
    (shown,) = [text for text in re.findall(r"^```\n(.*?)^```$", README, re.DOTALL | re.M) if "On test data" in text]
    assert_shown(shown, printed)
    tails = [float(found) for found in re.findall(r"'recall_tail': ([\d.]+)", printed)]
    assert len(tails) == 3
    assert min(tails[1:]) > tails[0] + 0.15
    assert (here / "diagnosis.html").exists()


def test_losses_page():
    space = {
        "train_labels": [0] * 50 + [1] * 10 + [2],
        "logits": torch.randn(4, 3),
        "target": torch.tensor([0, 1, 2, 0]),
    }
    run_blocks("losses.md", space)
    shifted = space["logits"] + 1.5 * torch.tensor([50.0, 10.0, 1.0]).log()
    torch.testing.assert_close(space["value"], nn.functional.cross_entropy(shifted, space["target"]))


def test_beta_page():
    space = reader() | {"model": copy.deepcopy(trained("softmax")).requires_grad_(True)}
    run_blocks("auto_beta.md", space)
    assert space["shift"].problem is None


def test_measures_page(capsys):
    space = reader(BalancedSoftmaxLoss)
    run_blocks("measures.md", space)
    right = space["test_logits"].argmax(1) == space["test_labels"]
    assert space["found"].all == pytest.approx(right.double().mean().item())  # every class has 60 test images
    expected = space["logits"].softmax(1) * space["prior"]
    torch.testing.assert_close(space["probabilities"], expected / expected.sum(1, keepdim=True))


def test_diagnose_page(here, capsys):
    space = reader()
    run_blocks("diagnose.md", space)
    assert "longtail.adjust_logits(logits, counts, tau=1.14)" in capsys.readouterr().out
    assert (here / "diagnosis.html").exists()


def test_pitfalls_page():
    space = reader() | {"softmax_logits": reader()["val_logits"]}
    space["balanced_logits"] = reader(BalancedSoftmaxLoss)["val_logits"]
    run_blocks("pitfalls.md", space)
    deltas = [
        longtail.fit_shift(space[f"{name}_logits"], space["val_labels"], space["counts"]).delta
        for name in ("softmax", "balanced")
    ]
    assert deltas == pytest.approx([1, 0], abs=0.25)
    plain = BalancedSoftmaxLoss([7, 1])
    z, y = space["z"], space["y"]
    torch.testing.assert_close(plain(z, y), (plain(z[:4], y[:4]) + plain(z[4:], y[4:])) / 2)
    low, high = longtail.metrics.wilson_interval([4], [5])
    assert f"{100 * low.item():.0f} to {100 * high.item():.0f}" == "38 to 96"


def test_deploy_page(here):
    assert command("longtail train --data digits-lt --method softmax --epochs 2 --out runs/cbs") == 0
    model = copy.deepcopy(trained("softmax"))
    space = reader() | {"images": torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8), "classifier": model[-1]}
    run_blocks("deploy.md", space)
    assert len(space["names"]) == 5
    corrected = longtail.adjust_logits(space["test_logits"], space["counts"], tau=space["shift"].tau)
    assert torch.equal(model(digits()[2].tensors[0]).argmax(1), corrected.argmax(1))
    expected = space["logits"].softmax(1) * space["prior"]
    torch.testing.assert_close(space["adapted"], expected / expected.sum(1, keepdim=True))


def test_studies_page(here, capsys):
    space = {}
    for language, text in blocks("studies.md"):
        if language == "toml":
            (here / "plan.toml").write_text(text, encoding="utf-8")
        if language == "python":
            exec(text, space)
        for line in text.splitlines() if language == "bash" else ():
            assert command(line) == 0, line
    assert "Traceback" not in capsys.readouterr().err
    page = (DOCS / "studies.md").read_text(encoding="utf-8")
    for name in re.findall(r"^\| `([\w./-]+?)/?` \|", page.partition("## Files")[2], re.MULTILINE):
        assert (here / "runs/plan" / name).exists(), name
    assert len(space["results"]) == len(space["frame"]) == 9
    assert len(space["both"]) == 18
    assert {path.name for path in here.glob("*.html")} == {"report.html", "python.html"}


def test_cluster_page(here, capsys):
    for language, text in blocks("cluster.md"):
        if language == "toml":
            (here / "plan.toml").write_text(text, encoding="utf-8")
        for line in text.splitlines() if language == "bash" else ():
            assert command(line) == 0, line
        if language == "text" and "--on slurm" in text:
            capsys.readouterr()
            assert command(text.strip(), ["--print"]) == 0
            assert "#SBATCH --account=me" in capsys.readouterr().out
        if language == "yaml":
            yaml = pytest.importorskip("yaml")
            (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
            assert container["command"] == ["longtail", "study", "plan.toml", "--join"]
    assert len(results(here)) == 6


def test_commands_that_are_not_run_have_valid_settings():
    lines = [line for language, text in blocks("training.md") if language == "text" for line in text.splitlines()]
    assert len(lines) == 2
    settings = set(setting_types())
    for line in lines:
        words = line.partition(" train ")[2].split()
        assert Recipe.from_settings({name[2:]: value for name, value in pairs(words)}).method == "cbs"
        assert settings >= {word[2:].replace("-", "_") for word in words if word.startswith("--")}


def pairs(words):
    """Return flags and their values; numbers become floats."""
    return [(f, float(v) if v.replace(".", "").isdigit() else v) for f, v in zip(words[::2], words[1::2], strict=True)]


def module(path):
    spec = importlib.util.spec_from_file_location("my_method", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_new_method_page(here, monkeypatch, capsys):
    files = {"my_loss.py", "my_method.py"}
    monkeypatch.syspath_prepend(here)
    space = {}
    for language, text in blocks("new_method.md"):
        if text.startswith('"""'):
            (here / min(files)).write_text(text, encoding="utf-8")
            files.discard(min(files))
        elif language == "python":
            exec(text, space)  # imports the file, which registers the method
        for line in text.splitlines() if language == "bash" else ():
            assert command(line) == 0, line
    assert "Traceback" not in capsys.readouterr().err
    left = results(here)
    assert len(left) == 4 + 4
    for seed in range(2):
        own, plain = (left[f"runs/loss/digits-lt-50-{name}-seed{seed}"] for name in ("squared-error", "softmax"))
        assert own["splits"]["test"] != plain["splits"]["test"]
    names = [f"runs/weights/digits-lt-50-supcon-beta1.5{w}-seed0" for w in ("-supcon_weight0", "")]
    apart = [left[name] for name in names]
    assert apart[0]["splits"]["test"] != apart[1]["splits"]["test"]  # the contrastive loss has an effect
    assert apart[1]["splits"] == left["runs/mine"]["splits"]
    assert space["run"].result() == left["runs/from-python"]
    assert left["runs/from-python"]["splits"]["test"]["recall"]["all"] > 0.5  # the method learns
    module(here / "my_method.py")  # may be imported again


def test_loss_of_the_page_is_supervised_contrast(here):
    (text,) = [text for _, text in blocks("new_method.md") if "SupervisedContrast" in text and "import torch" in text]
    (here / "my_method.py").write_text(text, encoding="utf-8")
    mine = module(here / "my_method.py")
    counts = torch.tensor([50, 20, 5])
    objective = mine.SupervisedContrast(Task(counts, None, 1, mine.SupConParams(beta=1.25, temperature=0.2)))
    target = torch.tensor([0, 1, 0, 2])
    unit = torch.nn.functional.normalize(torch.randn(12, 6, dtype=torch.float64), dim=1)
    logits = torch.randn(12, 3, dtype=torch.float64)
    terms = objective(Outputs(logits, torch.randn(12, 5), {"projection": unit}), target)

    views, labels = unit[4:], [0, 1, 0, 2] * 2  # the two contrastive views
    total = 0.0
    for i in range(8):
        others = [j for j in range(8) if j != i]
        everybody = sum(torch.exp(views[i] @ views[j] / 0.2) for j in others)
        same = [j for j in others if labels[j] == labels[i]]
        total -= sum(torch.log(torch.exp(views[i] @ views[j] / 0.2) / everybody) for j in same) / len(same)
    torch.testing.assert_close(terms["contrast"], total / 2, rtol=1e-10, atol=0)
    shifted = logits[:4] + 1.25 * counts.double().log()
    plain = sum(torch.logsumexp(shifted[n], 0) - shifted[n, y] for n, y in enumerate(target))
    torch.testing.assert_close(terms["classifier"], plain, rtol=1e-6, atol=0)
    assert objective.denominators(target) == {"classifier": 4, "contrast": 4}


def test_features_page(here, capsys):
    space = {}
    for language, text in blocks("features.md"):
        if language == "python":
            exec(text, space)
        for line in text.splitlines() if language == "bash" else ():
            assert command(line, [] if "--epochs" in line else quick(line)) == 0, line
    assert "Traceback" not in capsys.readouterr().err
    assert len(space["labels"]) == len((here / "predictions.csv").read_text().splitlines()) - 1
    assert (here / "report.html").exists()


def test_estimators_page():
    space = {}
    for language, text in blocks("estimators.md"):
        if language == "python":
            exec(text, space)
    assert space["after"] > space["before"] + 0.05
    assert abs(space["corrected"].beta_ - space["model"].beta_) < 0.5
    prior = space["np"].bincount(space["y"])
    expected = space["balanced"] * prior / (space["balanced"] @ prior)[:, None]
    assert space["np"].allclose(space["as_in_training"], expected)
    for name in ("linear", "mlp"):
        assert space[name].predict(space["X_test"]).shape == space["y_test"].shape


def test_table_of_the_estimators_page_is_that_of_the_results():
    runs = json.loads((DOCS.parent / "results/estimators/cpu.json").read_text())["runs"]
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    page = page[page.index("**Embeddings and pixels.**") :]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.search(r"\d\.\d\*{0,2} \|$", line)]
    names = [
        "LR",
        "LR + auto",
        "LR balanced",
        "LR balanced + auto",
        "SMOTE, LR",
        "RF",
        "RF balanced",
        "RF + auto",
        "kNN",
    ]
    names += ["kNN + auto", "LongTail linear", "LongTail MLP"]
    for name, (_, *printed) in zip(names, rows, strict=True):
        for data, number in zip(["digits", "trec", "banking", "goemotions", "clinc", "gtsrb"], printed, strict=True):
            found = [run["balanced_accuracy"] for run in runs if (run["method"], run["set"]) == (name, data)]
            assert len(found) == 5
            assert number.strip("*") == f"{100 * sum(found) / 5:.1f}", (name, data)


def test_tables_of_keel_are_those_of_the_results():
    sets = json.loads((DOCS.parent / "results/estimators/keel.json").read_text())["sets"].values()
    tables = {}
    for one in sets:
        tables.setdefault(one["table"], []).append(one["folds"])
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    assert f"{len(tables)}\ntables of KEEL, of which {len(sets)} data sets are made" in page
    for name, row in {"LR": "logistic regression", "RF": "random forest", "HGB": "gradient boosting"}.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {row} |") and "(" in line)
        printed = re.findall(r"\*{0,2}([\d.]+)\*{0,2} \(([\d.]+)\)", line)
        for method, numbers in zip(("", " balanced", " + beta 1", " + auto"), printed, strict=True):
            for measure, number in zip(("balanced", "worst"), numbers, strict=True):
                folds = [[fold[measure] for of in one for fold in of[name + method]] for one in tables.values()]
                assert number == f"{sum(sum(of) / len(of) for of in folds) / len(folds):.1f}", (name, method)

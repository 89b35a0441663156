"""The code and the claims of README.md."""

import json
import math
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from sklearn.datasets import make_classification

from longtail import ClassBalancedSoftmaxLoss

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_change_to_a_training_loop():
    (diff,) = blocks("diff")
    added = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("+"))
    names = {"train_labels": [0] * 50 + [1] * 5, "num_classes": 2, "device": "cpu", "torch": torch}
    # Scores of two classes with means -1 and 1: the posterior under equal priors has the logit 2 x.
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0)) + torch.tensor([-1.0, 1.0]).repeat(2000)
    plain = torch.stack([-x, x], 1)
    off = plain + 0.7 * torch.tensor([50.0, 5.0]).log()
    names |= {"val_logits": off, "val_labels": torch.arange(4000) % 2, "logits": off}
    exec(added, names)
    assert names["shift"].delta == pytest.approx(0.7, abs=0.1)
    margins = names["logits"].diff(dim=1), plain.diff(dim=1)
    assert torch.allclose(*margins, atol=0.1 * math.log(10))
    loss = names["loss"]
    assert isinstance(loss, ClassBalancedSoftmaxLoss)
    assert loss.counts.tolist() == [50, 5]
    assert loss(torch.zeros(1, 2), torch.tensor([1])) > torch.nn.functional.cross_entropy(
        torch.zeros(1, 2), torch.tensor([1])
    )


def test_scikit_learn_example_and_its_figures():
    X, y = make_classification(600, weights=[0.9], flip_y=0.05, random_state=0)
    names = {"X": X, "y": y}
    (snippet,) = blocks("python")
    exec(snippet, names)
    assert names["model"].predict(X).shape == y.shape
    # The page of the estimators has the same numbers, and a test compares that one with the results.
    page = (Path(__file__).parents[1] / "docs/estimators.md").read_text("utf-8")
    for name in ("logistic regression", "random forest", "gradient boosting"):
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        plain, weighted, _, auto = re.findall(r"\d\d\.\d(?!\))", row)
        said = re.search(rf"{name}\s+([\d./ ]+)", README.replace("*", ""))
        assert said[1].split(" / ") == [plain, weighted, auto]


def test_badges_are_true():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    said = {}
    for file in re.findall(r"\((docs/images/badges/\w+\.svg)\)", README):
        badge = ET.fromstring((root / file).read_text("utf-8"))
        left, right = (text.text for text in badge.iter("{http://www.w3.org/2000/svg}text"))
        said[left] = right
    tested = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    torch_floor = next(one for one in project["dependencies"] if one.startswith("torch>="))
    assert said == {
        "python": ", ".join(tested),
        "torch": torch_floor.replace("torch>=", "≥ "),
        "licence": project["license"],
    }


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_speed_claim_is_the_measured_one():
    parts = json.loads((RESULTS / "fleet-h200.json").read_text("utf-8"))["parts"]
    usual = parts["reference"]["rows"]["the usual loop"]["ms"]
    same = json.loads((RESULTS / "same-h200.json").read_text("utf-8"))["parts"]["same"]
    seconds = same["whole_runs"]["triton bf16"]["seconds_a_model"]
    steps = 200 * 97
    ratio = steps * usual / 1e3 / seconds
    claim = (
        f"one 200-epoch run takes {seconds:.0f} s; the steps of the usual PyTorch loop take {ratio:.0f} times as long"
    )
    assert claim in " ".join(README.split())

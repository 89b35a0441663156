"""What README prints runs as printed."""

import json
import re
from pathlib import Path

import pytest
import torch

from longtail import ClassBalancedSoftmaxLoss

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_one_line_change():
    (diff,) = blocks("diff")
    added = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("+"))
    names = {"train_labels": [0] * 50 + [1] * 5, "num_classes": 2, "device": "cpu", "torch": torch}
    exec(added, names)
    loss = names["loss"]
    assert isinstance(loss, ClassBalancedSoftmaxLoss)
    assert loss.counts.tolist() == [50, 5]
    assert loss(torch.zeros(1, 2), torch.tensor([1])) > torch.nn.functional.cross_entropy(
        torch.zeros(1, 2), torch.tensor([1])
    )


def test_the_measures(capsys):
    (snippet,) = blocks("python")
    batches = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(3)]
    names = {"counts": [500, 50, 5], "num_classes": 3, "test_loader": batches, "model": torch.nn.Linear(4, 3)}
    lines = snippet.splitlines()
    after = next(i for i, line in enumerate(lines) if line.startswith("test = ")) + 1
    exec("\n".join([*lines[:after], "train = test", *lines[after:]]), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("{'head': ")
    assert float(printed[1]) >= 0


def test_figures_are_there():
    for name in re.findall(r"\]\((docs/images/[^)]+)\)", README):
        assert (Path(__file__).parents[1] / name).is_file()


def test_the_table_of_methods_is_what_the_runs_found():
    """Every row of recalls and I, rounded, from the committed results."""
    runs = Path(__file__).parents[1] / "results" / "c10-lt100"
    found = {}
    for file in runs.glob("*/result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        recall = result["splits"]["test"]["recall"]
        values = [100 * recall[name] for name in ("head", "medium", "tail", "all")]
        values.append(result["preference_test"]["model_imbalance_level"])
        found[file] = result["method"], values
    names = {"softmax": "softmax", "cRT": "crt", "LDAM-DRW": "ldam-drw", "Balanced Softmax": "balanced-softmax"}
    names |= {"CBS, beta 1.8 (the authors')": "cbs", "BCL": "bcl", "ProCo": "proco"}
    rows = re.findall(r"^\| ([^|]+) \| " + r" \| ".join([r"([\d.]+)"] * 5) + r" \|$", README, re.MULTILINE)
    assert len(rows) == len(names)
    for title, *shown in rows:
        runs = [values for method, values in found.values() if method == names[title]]
        assert any(values == pytest.approx([float(number) for number in shown], abs=0.0501) for values in runs)

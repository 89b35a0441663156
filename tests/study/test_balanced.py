"""Balanced models, asked about long-tailed data: once, and kept without their weights."""

import json
from dataclasses import replace

import pytest
import torch

from longtail.report import report_of_runs
from longtail.study.balanced import (
    balanced_of,
    balanced_probability,
    balanced_shift,
    is_balanced,
    measure_balanced,
)
from longtail.study.runs import group_runs, one_cell, read_run, read_runs
from longtail.train import RunFolder, Trainer, defaults


@pytest.fixture(scope="module", params=["eval", "paper"])
def folder(request, tmp_path_factory):
    """A balanced and a softmax run on digits, with the balanced model asked."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("balanced")
    for data in ("digits", "digits-lt"):
        recipe = replace(defaults(data, "softmax"), epochs=4, evaluate_every=0, device="cpu", train_stats=request.param)
        Trainer(recipe, RunFolder(out / data)).run()
    measure_balanced(read_runs(out))
    return out


def test_the_head_gets_less_than_its_frequency_and_the_tail_more(folder):
    """Theorem 3."""
    cell = one_cell([read_run(folder / "digits")])
    shift = balanced_shift(cell, "digits-lt 50")
    assert shift["tail"].mean > 0 > shift["head"].mean
    probability = balanced_probability(cell, "digits-lt 50")
    kept = json.loads((folder / "digits" / "balanced.json").read_text("utf-8"))["digits-lt 50"]
    counts = torch.tensor(kept["counts"], dtype=torch.float64)
    assert counts.tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert sum(probability) == pytest.approx(1)
    relative = 100 * (torch.tensor(probability) / (counts / counts.sum()) - 1)
    assert relative[:3].mean().item() == pytest.approx(shift["head"].mean, rel=1e-4)
    assert relative[6:].mean().item() == pytest.approx(shift["tail"].mean, rel=1e-4)
    assert kept["train_stats"] == read_run(folder / "digits").result["train_stats"]


def test_it_is_asked_once_and_not_without_its_weights(folder, tmp_path):
    file = folder / "digits" / "balanced.json"
    before = file.stat().st_mtime_ns
    measure_balanced(read_runs(folder))
    assert file.stat().st_mtime_ns == before
    for name in ("digits", "digits-lt"):
        (tmp_path / name).mkdir()
        for kept in ("recipe.toml", "result.json"):
            (tmp_path / name / kept).write_bytes((folder / name / kept).read_bytes())
    measure_balanced(read_runs(tmp_path))
    assert not (tmp_path / "digits" / "balanced.json").exists()
    assert balanced_shift(one_cell([read_run(tmp_path / "digits")]), "digits-lt 50") == {}
    assert balanced_probability(one_cell([read_run(tmp_path / "digits")]), "digits-lt 50") == []


def test_a_balanced_model_is_found_for_its_own_data_only(folder):
    cells = group_runs(read_runs(folder))
    assert [is_balanced(cell.recipe) for cell in cells] == [True, False]
    assert balanced_of(cells[1].recipe, cells) is cells[0]
    assert balanced_of(defaults("cifar10-lt", "softmax", 100), cells) is None


def test_the_report_draws_it(folder):
    drawings = report_of_runs(folder).drawings
    axes = drawings["digits-lt-50-class-probability"].figure.axes[0]
    names = [line.get_label() for line in axes.get_lines()]
    assert "balanced model" in names
    shown = axes.get_lines()[names.index("balanced model")].get_ydata()
    assert list(shown) == pytest.approx(balanced_probability(one_cell([read_run(folder / "digits")]), "digits-lt 50"))
    assert "trained on all of the data" in drawings["digits-lt-50-class-probability"].caption

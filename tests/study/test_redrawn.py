"""Softmax asked about another draw of its subset: the tail gets less there than its frequency; once, and kept."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from longtail.study import paper, redrawn
from longtail.study.mechanism import redrawn_shift_table
from longtail.study.redrawn import REDRAWN_FILE, measure_redrawn, redrawn_shift
from longtail.study.runs import one_cell, read_run
from longtail.train import RunFolder, Trainer, defaults


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A softmax run on digits that fits its training data, and one of CBS."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("redrawn")
    for method in ("softmax", "cbs"):
        recipe = defaults("digits-lt", method)
        recipe = replace(recipe, epochs=40, batch_size=16, evaluate_every=0, device="cpu", subset_seed="run")
        Trainer(recipe, RunFolder(out / method)).run()
    return out


@pytest.fixture
def known(monkeypatch):
    """As if the paper had the digits."""
    tables = {**paper.tables(), "probability_shift_softmax": {"digits-lt 50": {"head": 1, "medium": -1, "tail": -20}}}
    monkeypatch.setattr(redrawn.paper, "tables", lambda: tables)


def test_other_data_sets_and_methods_are_not_asked(folder):
    measure_redrawn([read_run(folder / "softmax")])
    assert not (folder / "softmax" / REDRAWN_FILE).exists()


def test_the_tail_gets_less_on_another_draw_and_its_frequency_on_its_own(folder, known):
    run = read_run(folder / "softmax")
    measure_redrawn([run, read_run(folder / "cbs")])
    assert not (folder / "cbs" / REDRAWN_FILE).exists()
    found = json.loads((folder / "softmax" / REDRAWN_FILE).read_text("utf-8"))
    assert (found["subset_seed"], found["train_stats"]) == (1, "eval")
    assert found["probability_shift"]["tail"] < run.shift("tail") - 5 < 0
    assert found["recall"]["tail"] < run.result["splits"]["train"]["recall"]["tail"]
    cell = one_cell([run])
    assert redrawn_shift(cell)["tail"].mean == found["probability_shift"]["tail"]
    table = redrawn_shift_table([cell])
    assert [row.source for row in table.rows] == ["here", "paper"]
    assert "models asked: digits-lt 50 1 (seed 0)." in table.caption


def test_the_caption_counts_the_models_that_were_asked(folder, known, tmp_path):
    measure_redrawn([read_run(folder / "softmax")])
    other = tmp_path / "other"
    shutil.copytree(folder / "softmax", other, ignore=shutil.ignore_patterns(REDRAWN_FILE))
    recipe = (other / "recipe.toml").read_text("utf-8")
    (other / "recipe.toml").write_text(recipe.replace("\nseed = 0", "\nseed = 1"), "utf-8")
    cell = one_cell([read_run(folder / "softmax"), read_run(other)])
    assert cell.seeds == (0, 1)
    caption = redrawn_shift_table([cell]).caption
    assert "models asked: digits-lt 50 1 (seed 0). One run each, seed 0; 40 epochs" in caption


def test_it_is_asked_once_and_not_without_its_weights(folder, known):
    measure_redrawn([read_run(folder / "softmax")])
    file = folder / "softmax" / REDRAWN_FILE
    before = file.stat().st_mtime_ns
    measure_redrawn([read_run(folder / "softmax")])
    assert file.stat().st_mtime_ns == before
    file.unlink()
    RunFolder(folder / "softmax").model_file.unlink()
    measure_redrawn([read_run(folder / "softmax")])
    assert not file.exists()
    assert redrawn_shift(one_cell([read_run(folder / "softmax")])) == {}

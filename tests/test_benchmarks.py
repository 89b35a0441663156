"""The benchmarks without a GPU: that they run, what they leave, and that docs/speed.md says what they left."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ABOUT = {"command": "python benchmarks/x.py --out $OUT/x.json", "device": "a GPU", "torch": "2", "date": "2026-01-01"}


@pytest.fixture
def load(monkeypatch):
    """Imports scripts of the folder, which import each other by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    known = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


def script(name, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


# --- the page


def test_the_page_says_what_was_measured(load):
    page = load("page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.Results(BENCHMARKS / "results")) == text, "python benchmarks/page.py"


def test_no_committed_result_has_a_path_of_a_machine():
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert "/tmp/" not in path.read_text(encoding="utf-8"), path.name
        assert "/home/" not in path.read_text(encoding="utf-8"), path.name


def shares(**more):
    return {"images_per_second": 6000.0, "fill_seconds": 1.0, "epoch_seconds": 19.5, "share": 0.91, **more}


GROWTH = {
    "classes": {
        **ABOUT, "batch": 256, "dim": 128,
        "rows": [{"classes": c, "name": name, "ms": c / 100, "peak_bytes": 1000 * c}
                 for c in (10, 1000) for name in ("linear + CBS", "ProCo")],
    },
    "samples": {
        **ABOUT, "classes": 1203, "features": 2048,
        "rows": [{"samples": n, "seconds": n / 1e5, "peak_bytes": 10**8} for n in (1000, 10_000)],
    },
}  # fmt: skip
FLEET = {
    **ABOUT,
    "rows": {
        "the usual loop": {"ms": 13.0},
        "one, cuDNN bf16 channels_last, compiled": {"ms": 2.5},
        "12, Triton bf16": {"ms": 0.5},
        "1 of 64, Triton bf16": {"ms": 1.0, "gigabytes": 0.5},
        "64 of 64, Triton bf16": {"ms": 0.4, "gigabytes": 32.0},
    },
}
EVALUATION = {
    "stream": {
        **ABOUT, "classes": 1203,
        "rows": {
            str(n): {"seconds": n / 1e5, "samples_per_second": 1e5, "peak_bytes": 5 * 10**8, "measures_seconds": 0.1}
            for n in (100, 1000)
        },
    },
    "balance": {
        **ABOUT, "images": 12_406,
        "rows": {
            "hits alone, eager": {"seconds": 0.1},
            "all class statistics, eager": {"seconds": 0.15, "times_hits": 1.5},
        },
    },
    "fleet": {
        **ABOUT,
        "rows": {"12, Triton bf16": {"share_of_an_evaluation": 0.05, "share_of_the_end": 0.02, "share": 0.07}},
    },
}  # fmt: skip


SAME = {
    **ABOUT, "data": "cifar10-lt", "recalls": {"triton bf16": [79.0, 78.0], "cuDNN fp32": [78.0, 78.5]},
    "difference": 0.25, "p": 0.7, "goals": {"p > 0.05": "yes", "under 0.5 points": "yes"},
}  # fmt: skip


def test_every_table_is_filled(load, tmp_path):
    page = load("page")
    for file in (BENCHMARKS / "results").glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    imagenet = {"a batch in GPU memory": shares(share=1.0), "JPEG files": shares(), "resident": shares(share=0.8)}
    training = {**ABOUT, "rows": imagenet, "packing": {"images_per_second": 4321.0}}
    for name, content in (
        ("fleet", FLEET),
        ("growth", {"parts": GROWTH}),
        ("evaluation", {"parts": EVALUATION}),
        ("imagenet", {"parts": {"training": training}}),
        ("same", {"parts": {"same": SAME}}),
    ):
        (tmp_path / f"{name}-h200.json").write_text(json.dumps(content), encoding="utf-8")
    results = page.Results(tmp_path)
    made = {name: make(results) for name, make in page.TABLES.items() if name != "figure"}
    assert all(made.values())
    assert "| twelve, our own kernels | 0.5 ms | 0.50 ms | 10 s | 26.0 |" in made["fleet"]
    assert (
        "25 times the usual loop: yes (26.0); the next mark, 40: no; 4.5 times one compiled graph: yes" in made["fleet"]
    )
    assert "| JPEG files | 6,000 | 0.910 | 0.90: yes | 19.5 s | 20 s: yes |" in made["imagenet"]
    assert "| resident | 6,000 | 0.800 | 0.90: no |" in made["imagenet"]
    assert "4,321 images/s" in made["imagenet"]
    assert "5.0 % + 2.0 % of training | 10 %: yes" in made["evaluation"]
    assert "| 64 | 0.400 ms | 0.039 s | 32.0 GB |" in made["members"]
    assert "`python benchmarks/x.py --out x.json`; a GPU, torch 2, 2026-01-01." in made["samples"]
    assert "| triton bf16 | 2 | 78.50 | 79.00 78.00 |" in made["same"]
    assert "+0.25 points, Welch's p = 0.70. Goals: p > 0.05: yes; under 0.5 points: yes." in made["same"]
    for text in made.values():  # every row has as many cells as the head
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1


def test_nothing_is_said_of_what_was_not_measured(load, tmp_path):
    page = load("page")
    results = page.Results(tmp_path)
    assert not any(make(results) for name, make in page.TABLES.items() if name != "figure")
    assert page.filled(page.PAGE.read_text(encoding="utf-8"), results).count(page.NOTHING) >= len(page.TABLES) - 1


def test_a_page_without_its_marks_is_refused(load, tmp_path):
    page = load("page")
    with pytest.raises(SystemExit, match="Expected one <!-- loss -->"):
        page.filled("# Speed", page.Results(tmp_path))


# --- the figure


@pytest.mark.parametrize(("growth", "fleet", "number"), [(GROWTH, FLEET, 6), (GROWTH, {}, 4), ({}, FLEET, 2)])
def test_the_figure_draws_what_there_is(load, growth, fleet, number, tmp_path):
    module = load("growth")
    figure = module.figure_of(growth, fleet)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert len(drawn) == number
    if fleet:
        (axes,) = (axes for axes in drawn if axes.get_ylabel() == "ms a step and model")
        assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [64.0, 0.4]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == len(set(legend))


def test_nothing_to_draw(load):
    with pytest.raises(SystemExit, match="There is nothing to draw"):
        load("growth").figure_of({}, {})


# --- what is left


def test_parts_that_were_not_measured_again_are_kept(load, tmp_path, monkeypatch):
    record = load("record")
    committed = tmp_path / "results"
    committed.mkdir()
    monkeypatch.setattr(record, "RESULTS", committed)
    (committed / "x.json").write_text(json.dumps({"parts": {"old": {"rows": 1}, "again": {"rows": 1}}}))
    record.save(tmp_path / "x.json", {"again": {"rows": 2}})
    record.save(None, {"again": {"rows": 3}})
    parts = json.loads((tmp_path / "x.json").read_text())["parts"]
    assert (parts["old"]["rows"], parts["again"]["rows"]) == (1, 2)
    assert {"command", "device", "torch", "python", "date"} <= parts["again"].keys()
    assert (record.verdict(1.0, 0.9), record.verdict(1.0, 0.9, at_most=True)) == ("yes", "NO")


# --- the scripts run


def test_training_of_imagenets_size(tmp_path):
    out = tmp_path / "imagenet.json"
    small = ("--images", 16, "--model", "resnet18", "--batch-size", 4, "--size", 32, "--no-compile", "--rounds", 1)
    printed = script("imagenet.py", *small, "--workers", 1, "--lr", 0.01, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert max(parts["check"]["levels"].values()) < 0.01  # a CPU against itself
    rows = parts["training"]["rows"]
    assert len(rows) == 3
    assert rows["a batch in GPU memory"]["share"] == 1
    assert all(row["share"] > 0 and row["epoch_seconds"] > 0 for row in rows.values())
    assert all(name in printed for name in rows)


def test_recall_both_ways(tmp_path):
    out = tmp_path / "same.json"
    script("same_recall.py", "--data", "digits-lt", "--seeds", 2, "--epochs", 2, "--runs", tmp_path, "--out", out)
    found = json.loads(out.read_text())["parts"]["same"]
    assert [len(values) for values in found["recalls"].values()] == [2, 2]
    assert found["goals"]["under 0.5 points"] == ("yes" if abs(found["difference"]) <= 0.5 else "NO")


def test_evaluation_of_many_samples(tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--samples", 2000, "--classes", 30, "--features", 8, "--batch", 300, "--images", 256, "--rounds", 1)
    script("evaluation.py", "--only", "stream", "balance", *small, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert list(parts["stream"]["rows"]) == ["200", "2000"]
    assert parts["balance"]["rows"]["all class statistics, eager"]["times_hits"] > 0


def test_evaluation_inside_a_fleet(tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--members", 2, "--window", 2, "--files", 200, "--model", "small-cnn")
    script("evaluation.py", "--only", "fleet", *small, "--out", out)
    (row,) = json.loads(out.read_text())["parts"]["fleet"]["rows"].values()
    assert row["epoch_seconds"] > 0
    assert row["share"] == pytest.approx(row["share_of_an_evaluation"] + row["share_of_the_end"])

"""The committed results of the benchmarks, and the page and figure made from them."""

import json
import re
import sys

import pytest
from tests.benchmarks.conftest import BENCHMARKS

ABOUT = {"command": "python benchmarks/x.py --out x.json", "device": "a GPU", "torch": "2", "date": "2026-01-01"}


def test_page_is_up_to_date(load):
    page = load("page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.Results(BENCHMARKS / "results")) == text, "python benchmarks/page.py"


def test_no_committed_result_has_a_path_of_a_machine():
    for path in (BENCHMARKS / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/tmp/|/home/|/root/", text), path.name
        content = json.loads(text)
        for part in content.get("parts", {"whole": content}).values():
            assert re.match(r"(CUDA_DEVICE_MAX_CONNECTIONS=\d+ )?python benchmarks/", part["command"]), path.name
            assert not re.search(r"[ =][/~$]|--out[ =]\S*/", part["command"]), part["command"]


def test_commands_are_recorded_without_folders(load):
    command_line = load("record").command_line
    words = [
        "/tmp/x/benchmarks/loss.py",
        "--out",
        "results/a.json",
        "--runs=/tmp/b",
        "--tiles",
        "/tmp/c",
        "--data",
        "d",
    ]
    assert command_line(words) == "python benchmarks/loss.py --out a.json --runs=b --tiles c --data d"
    assert command_line(["benchmarks/loss.py", "--out=results/a.json"]) == "python benchmarks/loss.py --out=a.json"


@pytest.mark.parametrize(("queues", "prefix"), [("32", ""), ("8", "CUDA_DEVICE_MAX_CONNECTIONS=8 ")])
def test_commands_are_recorded_with_another_number_of_queues(load, monkeypatch, queues, prefix):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    monkeypatch.setattr("sys.argv", ["benchmarks/loss.py"])
    assert load("record").about()["command"] == f"{prefix}python benchmarks/loss.py"


def test_results_have_one_shape():
    """Each part has its command and date; tiles, which ``fleet.py --tiles`` reads, have another form."""
    paths = [path for path in (BENCHMARKS / "results").glob("*.json") if not path.name.startswith("tiles-")]
    assert paths
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert list(content) == ["parts"], path.name
        for name, part in content["parts"].items():
            assert {"command", "device", "torch", "date"} <= part.keys(), (path.name, name)


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
        "rows": [{"samples": n, "seconds": n / 1e5, "peak_bytes": held} for n, held in ((1000, None), (10_000, 10**8))],
    },
}  # fmt: skip
FLEET = {
    "check": {**ABOUT, "steps": {}},
    "reference": {**ABOUT, "rows": {"the usual loop": {"ms": 13.0}}},
    "compiled": {**ABOUT, "rows": {"one, cuDNN bf16 channels_last, compiled": {"ms": 2.5}}},
    "fleet": {
        **ABOUT, "command": "python benchmarks/x.py --only fleet",
        "rows": {"12, Triton bf16": {"ms": 0.5}, "12, Triton bf16, not kept in step": {"ms": 0.65}},
    },
    "growth": {
        **ABOUT, "memory": "reserved",
        "rows": [{"members": 1, "ms": 1.0, "gigabytes": None}, {"members": 64, "ms": 0.4, "gigabytes": 32.0}],
    },
}  # fmt: skip
EVALUATION = {
    "stream": {
        **ABOUT, "classes": 1203,
        "rows": {
            str(n): {
                "seconds": n / 1e5, "seconds_of_logits": n / 4e5, "samples_per_second": 1e5,
                "peak_bytes": 5 * 10**8, "measures_seconds": 0.1,
            }
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
        "rows": {
            "12, Triton bf16": {
                "share_of_an_evaluation": 0.05, "share_of_the_end": 0.02, "share": 0.07,
                "wrong": ["seed 3 is not done"],
            },
        },
    },
}  # fmt: skip
SAME = {
    **ABOUT, "data": "cifar10-lt", "seeds": 2,
    "recalls": {"triton bf16": [79.0, 78.0], "cuDNN fp32": [78.0, 78.5]},
    "float32": {way: {"error of a float32 convolution": e} for way, e in (("triton bf16", 3e-4), ("cuDNN fp32", 2e-7))},
    "whole_runs": {
        "triton bf16": {"members": 2, "epochs": 200, "seconds": 20.0, "seconds_a_model": 10.0, "starts": 1},
        "cuDNN fp32": {"members": 2, "epochs": 200, "seconds": None, "seconds_a_model": None, "starts": 0},
    },
    "difference": 0.25, "p": 0.7, "goals": {"p > 0.05": "yes", "under 0.5 points": "yes"},
}  # fmt: skip


@pytest.fixture
def measured(tmp_path):
    """The committed results, some of them replaced by invented ones."""
    for file in (BENCHMARKS / "results").glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    imagenet = {"a batch in GPU memory": shares(share=1.0), "JPEG files": shares()}
    training = {**ABOUT, "rows": imagenet, "wrong": []}
    checked = {**ABOUT, "levels": {"files": 9.0}, "wrong": ["images from files differ by 9.00 levels"]}
    for name, parts in (
        ("fleet", FLEET),
        ("growth", GROWTH),
        ("evaluation", EVALUATION),
        ("imagenet", {"check": checked, "training": training}),
        ("same", {"same": SAME}),
    ):
        (tmp_path / f"{name}-h200.json").write_text(json.dumps({"parts": parts}), encoding="utf-8")
    return tmp_path


def test_every_table(load, measured):
    page = load("page")
    results = page.Results(measured)
    made = {name: make(results) for name, make in page.TABLES.items()}
    assert all(made.values())
    assert "| 256 x 1,000, fp32 | 0.135 ms | 1.019 | 1.020 | 0.349 ms | 1.212 | 1.432 |" in made["loss"]
    assert "| twelve, our kernels | 0.65 ms | 13 s | 20.0 |" in made["fleet"]
    assert "| twelve, our kernels, streams kept in step | 0.50 ms | 10 s | 26.0 |" in made["fleet"]
    assert "| JPEG files | 6,000 | 0.910 | 19.5 s |" in made["imagenet"]
    assert "**Wrong:** images from files differ by 9.00 levels." in made["imagenet"]
    assert "**Wrong:** seed 3 is not done." in made["evaluation"]
    assert "5.0 % + 2.0 % of training |" in made["evaluation"]
    assert "| epoch, per model | 0.097 s | 0.039 s |" in made["members"]
    assert "| memory of all (reserved) |  | 32.0 GB |" in made["members"]
    for command in ("--out x.json", "--only fleet"):  # parts that were measured separately
        assert f"`python benchmarks/x.py {command}`; a GPU, torch 2, 2026-01-01." in made["fleet"]
    assert "| triton bf16 | 2 | 78.50 ± 0.71 | 79.00 78.00 | 10.0 s |" in made["same"]
    assert "| cuDNN fp32 | 2 | 78.25 ± 0.35 | 78.00 78.50 |  |" in made["same"]
    assert "2 models together: 10.0 s per model" in made["same"]
    assert "take 9.7 s. The steps of the usual loop take 252 s, 25 times as long" in made["same"]
    assert "with these settings: 3e-04 (triton bf16), 2e-07 (cuDNN fp32)." in made["same"]
    assert "+0.25 points, Welch's p = 0.70." in made["same"]
    for text in made.values():  # every row has as many cells as the head
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1


def test_tables_of_incomplete_results(load, measured):
    page = load("page")
    classes = {"classes": {**GROWTH["classes"], "rows": GROWTH["classes"]["rows"][:3]}}
    ours = {name: value for name, value in SAME.items() if name not in {"p", "difference", "goals"}}
    ours |= {name: {"triton bf16": ours[name]["triton bf16"]} for name in ("recalls", "float32", "whole_runs")}
    for name, parts in (("growth", classes), ("same", {"same": ours})):
        (measured / f"{name}-h200.json").write_text(json.dumps({"parts": parts}), encoding="utf-8")
    results = page.Results(measured)
    assert "| ProCo | 0.100 ms, 0.0 MB |  |" in page.classes(results)
    assert "Welch" not in page.same(results)


def test_results_of_another_gpu(load, measured):
    page = load("page")
    (measured / "growth-a100.json").write_text(json.dumps({"parts": GROWTH}), encoding="utf-8")
    assert page.classes(page.Results(measured, "a100")) == page.classes(page.Results(measured))
    assert page.fleet(page.Results(measured, "a100")) is None


def test_page_without_results(load, tmp_path):
    page = load("page")
    filled = page.filled(page.PAGE.read_text(encoding="utf-8"), page.Results(tmp_path))
    assert filled.count(page.NOT_MEASURED) == len(page.TABLES)
    with pytest.raises(SystemExit, match="Expected one <!-- loss -->"):
        page.filled("# Speed", page.Results(tmp_path))


# --- the figure


@pytest.mark.parametrize(("growth", "fleet", "number"), [(GROWTH, FLEET, 6), (GROWTH, {}, 4), ({}, FLEET, 2)])
def test_figure(load, growth, fleet, number, tmp_path):
    module = load("draw_growth")
    figure = module.figure_of(growth, fleet)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert len(drawn) == number
    if fleet:
        (axes,) = (axes for axes in drawn if axes.get_ylabel() == "ms per step and model")
        assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [64.0, 0.4]]
        (axes,) = (axes for axes in drawn if axes.get_ylabel() == "GB in total")
        assert axes.lines[0].get_xydata().tolist() == [[64.0, 32.0]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == len(set(legend))


@pytest.mark.slow
def test_figure_of_another_gpu(load, measured, tmp_path, monkeypatch):
    module = load("draw_growth")
    monkeypatch.setattr(module, "RESULTS", measured)
    monkeypatch.setattr(sys, "argv", ["draw_growth.py", str(tmp_path / "figure"), "--gpu", "a100"])
    with pytest.raises(SystemExit, match="There is nothing to draw"):
        module.main()
    monkeypatch.setattr(sys, "argv", ["draw_growth.py", str(tmp_path / "figure")])
    module.main()
    assert (tmp_path / "figure.png").is_file()


# --- recording


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

"""The benchmarks without a GPU: that they run, what they leave, and that docs/speed.md says what they left."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image, JpegImagePlugin

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ABOUT = {"command": "python benchmarks/x.py --out x.json", "device": "a GPU", "torch": "2", "date": "2026-01-01"}


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
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/tmp/|/home/|/root/", text), path.name
        content = json.loads(text)
        for part in content.get("parts", {"whole": content}).values():
            assert re.match(r"(CUDA_DEVICE_MAX_CONNECTIONS=\d+ )?python benchmarks/", part["command"]), path.name
            assert not re.search(r"[ =][/~$]|--out[ =]\S*/", part["command"]), part["command"]


def test_a_command_is_told_without_its_machine(load):
    told = load("record").command_line
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
    assert told(words) == "python benchmarks/loss.py --out a.json --runs=b --tiles c --data d"
    assert told(["benchmarks/loss.py", "--out=results/a.json"]) == "python benchmarks/loss.py --out=a.json"


@pytest.mark.parametrize(("queues", "prefix"), [("32", ""), ("8", "CUDA_DEVICE_MAX_CONNECTIONS=8 ")])
def test_other_queues_than_ours_are_told(load, monkeypatch, queues, prefix):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    monkeypatch.setattr("sys.argv", ["benchmarks/loss.py"])
    assert load("record").about()["command"] == f"{prefix}python benchmarks/loss.py"


def test_results_have_one_shape():
    """Parts, each with its own command and date; tiles apart, which ``use_tiles`` reads."""
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
    "fleet": {**ABOUT, "command": "python benchmarks/x.py --only fleet", "rows": {"12, Triton bf16": {"ms": 0.5}}},
    "growth": {
        **ABOUT, "memory": "reserved",
        "rows": [{"members": 1, "ms": 1.0, "gigabytes": None}, {"members": 64, "ms": 0.4, "gigabytes": 32.0}],
    },
}  # fmt: skip
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
    "recalls": {"triton bf16": [79.0, 78.0, 1.0], "cuDNN fp32": [78.0, 78.5]},
    "float32": {way: {"error of a float32 convolution": e} for way, e in (("triton bf16", 3e-4), ("cuDNN fp32", 2e-7))},
    "whole_runs": {
        "triton bf16": {"members": 3, "epochs": 200, "seconds": 30.0, "seconds_a_model": 10.0, "starts": 1},
        "cuDNN fp32": {"members": 2, "epochs": 200, "seconds": None, "seconds_a_model": None, "starts": 0},
    },
    "difference": 0.25, "p": 0.7, "goals": {"p > 0.05": "yes", "under 0.5 points": "yes"},
}  # fmt: skip


@pytest.fixture
def measured(tmp_path):
    """Results of everything, those that are committed and made-up ones."""
    for file in (BENCHMARKS / "results").glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    imagenet = {"a batch in GPU memory": shares(share=1.0), "JPEG files": shares(), "resident": shares(share=0.8)}
    training = {**ABOUT, "rows": imagenet, "packing": {"images_per_second": 4321.0}, "wrong": []}
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


def test_every_table_is_filled(load, measured):
    page = load("page")
    results = page.Results(measured)
    made = {name: make(results) for name, make in page.TABLES.items() if name != "figure"}
    assert all(made.values())
    assert "| twelve, our own kernels | 0.5 ms | 0.50 ms | 10 s | 26.0 |" in made["fleet"]
    assert (
        "25 times the usual loop: yes (26.0); the next mark, 40: no; 4.5 times one compiled graph: yes" in made["fleet"]
    )
    assert "| JPEG files | 6,000 | 0.910 | 0.90: yes | 19.5 s | 20 s: yes |" in made["imagenet"]
    assert "| resident | 6,000 | 0.800 | 0.90: no |" in made["imagenet"]
    assert "4,321 images/s" in made["imagenet"]
    assert "**Wrong:** images from files differ by 9.00 levels." in made["imagenet"]
    assert "**Wrong:** seed 3 is not done." in made["evaluation"]
    assert "5.0 % + 2.0 % of training | 10 %: yes" in made["evaluation"]
    assert "| 64 | 0.400 ms | 0.039 s | 32.0 GB |" in made["members"]
    assert "| 1 | 1.000 ms | 0.097 s |  |" in made["members"]
    assert "memory of all (reserved)" in made["members"]
    assert "| 1,000 | 0.010 s |  |" in made["samples"]
    for command in ("--out x.json", "--only fleet"):  # parts that were measured apart
        assert f"`python benchmarks/x.py {command}`" in made["fleet"]
    assert "`python benchmarks/x.py --out x.json`; a GPU, torch 2, 2026-01-01." in made["samples"]
    assert "| triton bf16 | 2 | 78.50 | 79.00 78.00 | 3 | 10.0 s |" in made["same"]
    assert "| cuDNN fp32 | 2 | 78.25 | 78.00 78.50 | 2 |  |" in made["same"]
    assert "3 models together: 10.0 s a model" in made["same"]
    assert "would take 9.7 s." in made["same"]
    assert "in float32: 3e-04 (triton bf16), 2e-07 (cuDNN fp32)." in made["same"]
    assert "+0.25 points, Welch's p = 0.70. Goals: p > 0.05: yes; under 0.5 points: yes." in made["same"]
    for text in made.values():  # every row has as many cells as the head
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1


def test_a_table_of_what_was_measured_before_a_stop(load, measured):
    page = load("page")
    classes = {"classes": {**GROWTH["classes"], "rows": GROWTH["classes"]["rows"][:3]}}
    part = {name: value for name, value in SAME.items() if name not in {"p", "difference", "goals"}}
    one = {
        **part,
        **{name: {"triton bf16": part[name]["triton bf16"]} for name in ("recalls", "float32", "whole_runs")},
    }
    for name, parts in (("growth", classes), ("same", {"same": one})):
        (measured / f"{name}-h200.json").write_text(json.dumps({"parts": parts}), encoding="utf-8")
    results = page.Results(measured)
    assert "| ProCo | 0.100 ms, 0.0 MB |  |" in page.classes(results)
    assert page.samples(results) is None
    assert "Goals" not in page.same(results)


def test_the_page_is_of_the_gpu_that_is_named(load, measured):
    page = load("page")
    (measured / "growth-a100.json").write_text(json.dumps({"parts": GROWTH}), encoding="utf-8")
    assert page.classes(page.Results(measured, "a100")) == page.classes(page.Results(measured))
    assert page.fleet(page.Results(measured, "a100")) is None


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
    module = load("draw_growth")
    figure = module.figure_of(growth, fleet)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert len(drawn) == number
    if fleet:
        (axes,) = (axes for axes in drawn if axes.get_ylabel() == "ms a step and model")
        assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [64.0, 0.4]]
        (axes,) = (axes for axes in drawn if axes.get_ylabel() == "GB in all")
        assert axes.lines[0].get_xydata().tolist() == [[64.0, 32.0]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == len(set(legend))


def test_the_figure_is_of_the_gpu_that_is_named(load, measured, tmp_path, monkeypatch):
    module = load("draw_growth")
    monkeypatch.setattr(module, "RESULTS", measured)
    monkeypatch.setattr(sys, "argv", ["draw_growth.py", str(tmp_path / "figure"), "--gpu", "a100"])
    with pytest.raises(SystemExit, match="There is nothing to draw"):
        module.main()
    monkeypatch.setattr(sys, "argv", ["draw_growth.py", str(tmp_path / "figure")])
    module.main()
    assert (tmp_path / "figure.png").is_file()


def test_nothing_to_draw(load):
    with pytest.raises(SystemExit, match="There is nothing to draw"):
        load("draw_growth").figure_of({}, {})


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


TINY_IMAGENET = ("--images", 16, "--model", "resnet18", "--batch-size", 4, "--size", 32, "--no-compile", "--workers", 1)


def test_training_of_imagenets_size(tmp_path):
    out = tmp_path / "imagenet.json"
    # A rate for batches of 4, so that the loss falls.
    printed = script("imagenet.py", *TINY_IMAGENET, "--rounds", 1, "--lr", 0.005, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert max(parts["check"]["levels"].values()) < 0.01  # a CPU against itself
    assert parts["check"]["wrong"] == parts["training"]["wrong"] == []
    rows = parts["training"]["rows"]
    assert len(rows) == 3
    assert rows["a batch in GPU memory"]["share"] == 1
    assert all(row["share"] > 0 and row["epoch_seconds"] > 0 for row in rows.values())
    assert all(name in printed for name in rows)
    assert all(f"round {number}, {name}" in printed for number in range(2) for name in rows)


def tiny_imagenet(**more):
    settings = {"model": "small-cnn", "batch_size": 4, "size": 32, "workers": 1, "compile": False, "lr": 0.005}
    return SimpleNamespace(**settings, images=8, only=["check", "files"], augment=["imagenet-plain"], rounds=2, **more)


def test_a_turn_does_not_spend_anothers_momentum(load, tmp_path):
    module = load("imagenet")
    given = tiny_imagenet()
    bench = module.Bench(given, module.data_of(load("photographs").write_photographs(tmp_path, 8)))
    loaders, _ = module.loaders_of(bench, given)
    fixed, loader = loaders.values()
    weight = next(bench.step.model.parameters())
    before = weight.detach().clone()
    assert bench.turn(fixed)["missing"] == 0
    momentum = bench.step.optimizer.state[weight]["momentum_buffer"]
    assert momentum.abs().sum() > 0
    assert torch.equal(weight, before)  # at a rate of 0
    momentum.fill_(1e6)
    bench.turn(loader)
    assert 0 < (weight - before).abs().max() < 1


def test_wrong_images_are_told_and_what_follows_is_timed(load, tmp_path, monkeypatch, capsys):
    module = load("imagenet")
    monkeypatch.setattr(module, "LEVELS", 0.0)
    found = module.check(tmp_path, tiny_imagenet())
    assert [sentence[:11] for sentence in found["wrong"]] == ["images from"] * 2
    assert "WRONG: images from files differ by 0.00 levels" in capsys.readouterr().out


def test_wrong_turns(load):
    module = load("imagenet")
    turn = {"rate": 1.0, "fill": 1.0, "filled": 4, "missing": 0}
    good, bad = [{**turn, "loss": loss} for loss in (2.0, 1.0)], [{**turn, "loss": loss} for loss in (1.0, 2.0)]
    assert module.wrong_turns({module.FIXED: bad, "files": good}) == []
    assert module.wrong_turns({"files": bad}) == ["files: the loss did not fall, 1.000, 2.000"]
    assert module.wrong_turns({"files": [*good, {**turn, "loss": float("nan")}]}) == ["files: a loss is not finite"]
    assert module.wrong_turns({module.FIXED: [{**one, "missing": 1} for one in good]})


def test_photographs_for_the_check_have_colours_of_full_resolution(load, tmp_path):
    for subsampling in (0, 2):
        load("photographs").write_photographs(tmp_path, 1, subsampling=subsampling)
        with Image.open(tmp_path / "0.jpg") as image:
            assert JpegImagePlugin.get_sampling(image) == subsampling


SAME_RECALL = ("--data", "digits-lt", "--seeds", 2)


def test_recall_both_ways(tmp_path):
    out = tmp_path / "same.json"
    run = ("same_recall.py", *SAME_RECALL, "--epochs", 2, "--members", 3, "--runs", tmp_path / "runs", "--out", out)
    script(*run)
    found = json.loads(out.read_text())["parts"]["same"]
    assert [len(values) for values in found["recalls"].values()] == [3, 2]
    assert found["goals"]["under 0.5 points"] == ("yes" if abs(found["difference"]) <= 0.5 else "NO")
    careful = found["float32"]["cuDNN fp32 without TF32"]
    assert not careful["cudnn.allow_tf32"]
    assert not careful["cuda.matmul.allow_tf32"]
    assert careful["error of a float32 convolution"] < 1e-5
    whole = found["whole_runs"]["torch bf16"]
    assert whole["seconds_a_model"] == pytest.approx(whole["seconds"] / 3)
    script(*run)  # nothing is left to train: recalls and times are those of before
    again = json.loads(out.read_text())["parts"]["same"]
    assert again["recalls"] == found["recalls"]
    assert again["whole_runs"] == found["whole_runs"]


def test_tf32_is_off_for_the_careful_way_alone(load):
    module = load("same_recall")
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    try:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, True
        with module.without_tf32():
            assert [switch.allow_tf32 for switch in switches] == [False, False]
        assert [switch.allow_tf32 for switch in switches] == [True, True]
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def test_recalls_are_left_when_the_test_of_them_fails(load, tmp_path, monkeypatch):
    module = load("same_recall")

    def broken(*_, **__):
        raise ValueError("no test")

    monkeypatch.setattr(module, "compare", broken)
    given = {"data": "digits-lt", "seeds": 1, "members": 0, "epochs": 1}
    with pytest.raises(ValueError, match="no test"):
        module.measure(SimpleNamespace(**given, runs=tmp_path / "runs", out=tmp_path / "same.json"))
    assert len(json.loads((tmp_path / "same.json").read_text())["parts"]["same"]["recalls"]) == 2


def test_times_of_runs_that_were_killed_are_not_told(load, tmp_path):
    clock = load("same_recall").Clock(tmp_path / "clock.json")
    assert not clock.known
    with pytest.raises(ValueError, match="stopped"), clock.running():
        raise ValueError("stopped")
    again = load("same_recall").Clock(tmp_path / "clock.json")
    assert (again.known, again.starts) == (True, 1)
    assert again.seconds == clock.seconds > 0
    (tmp_path / "clock.json").write_text(json.dumps({"seconds": 1.0, "starts": 2, "ends": 1}))
    assert not load("same_recall").Clock(tmp_path / "clock.json").known


def test_runs_go_on_after_sigterm(tmp_path):
    """It ends with a sentence; the next call goes on from what is there, and adds up the time."""
    out, runs = tmp_path / "same.json", tmp_path / "runs"
    arguments = [*SAME_RECALL, "--epochs", 20, "--runs", runs, "--out", out]
    command = [str(word) for word in (sys.executable, BENCHMARKS / "same_recall.py", *arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        log = runs / "torch-bf16-seed0" / "log.jsonl"
        deadline = time.monotonic() + 120
        while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Stopped; what was under way is in" in printed
    assert "Traceback" not in errors
    first = json.loads((runs / "torch-bf16.json").read_text())
    assert (first["starts"], first["ends"]) == (1, 1)
    script("same_recall.py", *arguments)
    found = json.loads(out.read_text())["parts"]["same"]
    assert found["whole_runs"]["torch bf16"]["starts"] == 2
    assert found["whole_runs"]["torch bf16"]["seconds"] > first["seconds"]


def test_evaluation_of_many_samples(tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--samples", 2000, "--classes", 30, "--features", 8, "--batch", 300, "--images", 256, "--rounds", 1)
    script("evaluation.py", "--only", "stream", "balance", *small, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert list(parts["stream"]["rows"]) == ["200", "2000"]
    assert parts["balance"]["rows"]["all class statistics, eager"]["times_hits"] > 0


def test_evaluation_inside_a_fleet(tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--members", 2, "--window", 4, "--pairs", 2, "--files", 200, "--model", "small-cnn")
    script("evaluation.py", "--only", "fleet", *small, "--out", out)
    ((name, row),) = json.loads(out.read_text())["parts"]["fleet"]["rows"].items()
    assert name == "2, CPU, train_stats paper"  # as CIFAR's recipe has it
    assert row["wrong"] == []  # all were looked at when they should have been
    assert row["evaluations_a_window"] == 2
    assert len(row["seconds_without"]) == len(row["seconds_with"]) == 2
    each = [(b - a) / 2 for a, b in zip(row["seconds_without"], row["seconds_with"], strict=True)]
    assert row["evaluation_seconds"] == pytest.approx(sum(each) / 2)
    assert row["share"] == pytest.approx(row["share_of_an_evaluation"] + row["share_of_the_end"])


def test_the_first_fleet_has_all_pairs(load, monkeypatch):
    module = load("evaluation")
    monkeypatch.setattr(module, "DEVICE", "cuda")
    given = {"kernels": ["triton", "torch"], "pairs": 3}
    assert module.cases(SimpleNamespace(**given, train_stats=None)) == [
        ("triton", "paper", 3),
        ("torch", "paper", 1),
        ("triton", "eval", 1),
    ]
    assert module.cases(SimpleNamespace(**given, train_stats=["eval"])) == [("triton", "eval", 3), ("torch", "eval", 1)]


def test_what_a_member_costs(tmp_path):
    """Each part is there as soon as it is measured, the growth row by row, with members that join."""
    out = tmp_path / "fleet.json"
    script("fleet.py", "--only", "growth", "--images", 200, "--growth", 1, 2, "--out", out)
    part = json.loads(out.read_text())["parts"]["growth"]
    assert [row["members"] for row in part["rows"]] == [1, 2]
    assert [row["gigabytes"] for row in part["rows"]] == [None, None]  # there is no GPU


def test_a_team_takes_whole_epochs(load, tmp_path):
    root = load("reference_loop").random_cifar(tmp_path, 200)
    team = load("team").Team(root, 1, "torch", model="small-cnn", epochs=5)
    assert [member.epochs_done for member in team.members] == [1]
    team.take(2)
    team.add(1)
    assert [member.epochs_done for member in team.members] == [3, 1]
    team.take(1)
    assert [member.epochs_done for member in team.members] == [4, 2]
    team.take()
    assert all(member.folder.done for member in team.members)
    team.close()


def test_what_was_measured_is_there_after_a_stop(load, tmp_path, monkeypatch):
    module = load("growth")
    rows = iter([1.0, 2.0])
    monkeypatch.setattr(module.contrastive, "median_ms", lambda *_: next(rows))
    monkeypatch.setattr(sys, "argv", ["growth.py", "--only", "classes", "--out", str(tmp_path / "growth.json")])
    with pytest.raises(RuntimeError):  # there is no third
        module.main()
    found = json.loads((tmp_path / "growth.json").read_text())["parts"]["classes"]
    assert [row["ms"] for row in found["rows"]] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [
        ("loss.py", ("--budget", 0.01, "--only", "256 x 1000"), ["256 x 1000"]),
        ("contrastive.py", ("--budget", 0.01), ["100 classes, 128-d"]),
        ("data.py", ("--images", 256, "--rounds", 1), ["small"]),
    ],
)
def test_losses_and_images(name, arguments, parts, tmp_path):
    out = tmp_path / "out.json"
    script(name, *arguments, "--out", out)
    found = json.loads(out.read_text())["parts"]
    assert list(found) == parts
    for part in found.values():
        assert part["command"].endswith("--out out.json")

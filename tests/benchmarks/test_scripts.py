"""The benchmarks run with small sizes on a CPU, and their results have the expected form."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image, JpegImagePlugin
from tests.benchmarks.conftest import BENCHMARKS, script

from longtail.data.sampling.batch_plan import Batch

# --- devices and losses


def test_number_of_queues_is_set_before_cuda_starts(load, monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert load("timing").DEVICE == "cpu"
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    for path in BENCHMARKS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "\nimport torch\n" in text and "def main" in text and "cuda" in text:
            assert "from timing import" in text, path.name


@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [
        ("loss.py", ("--budget", 0.01, "--only", "256 x 1000"), ["256 x 1000"]),
        ("contrastive.py", ("--budget", 0.01), ["100 classes, 128-d"]),
        ("own_data.py", ("--images", 60, "--only", "read"), ["read"]),
        pytest.param("data.py", ("--images", 256, "--rounds", 1), ["small"], marks=pytest.mark.slow),
    ],
)
def test_losses_and_images(command, name, arguments, parts, tmp_path):
    out = tmp_path / "out.json"
    command(name, *arguments, "--out", out)
    found = json.loads(out.read_text())["parts"]
    assert list(found) == parts
    for part in found.values():
        assert part["command"].endswith("--out out.json")


def test_rows_are_saved_one_by_one(load, tmp_path, monkeypatch):
    module = load("growth")
    rows = iter([1.0, 2.0])
    monkeypatch.setattr(module, "median_ms", lambda *_: next(rows))
    monkeypatch.setattr(sys, "argv", ["growth.py", "--only", "classes", "--out", str(tmp_path / "growth.json")])
    with pytest.raises(RuntimeError):  # there is no third row
        module.main()
    found = json.loads((tmp_path / "growth.json").read_text())["parts"]["classes"]
    assert [row["ms"] for row in found["rows"]] == [1.0, 2.0]


# --- images and ImageNet's size


TINY_IMAGENET = ("--images", 16, "--model", "resnet18", "--batch-size", 4, "--size", 32, "--no-compile", "--workers", 1)


@pytest.mark.slow
def test_training_of_imagenets_size(tmp_path):
    out = tmp_path / "imagenet.json"
    # A learning rate for batches of 4, so that the loss falls.
    printed = script("imagenet.py", *TINY_IMAGENET, "--rounds", 1, "--lr", 0.005, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert max(parts["check"]["levels"].values()) < 0.01  # a CPU against itself
    assert parts["check"]["wrong"] == parts["training"]["wrong"] == []
    rows = parts["training"]["rows"]
    assert len(rows) == 2
    assert rows["a batch in GPU memory"]["share"] == 1
    assert all(row["share"] > 0 and row["epoch_seconds"] > 0 for row in rows.values())
    assert all(name in printed for name in rows)
    assert all(f"round {number}, {name}" in printed for number in range(2) for name in rows)


def tiny_imagenet(**more):
    settings = {"model": "small-cnn", "batch_size": 4, "size": 32, "workers": 1, "compile": False, "lr": 0.005}
    return SimpleNamespace(**settings, images=8, only=["check", "files"], augment=["imagenet-plain"], rounds=2, **more)


def test_turn_resets_the_momentum(load, tmp_path):
    module = load("imagenet")
    given = tiny_imagenet()
    bench = module.Bench(given, module.data_of(load("photographs").write_photographs(tmp_path, 8)))
    loaders = module.loaders_of(bench, given)
    fixed, loader = loaders.values()
    weight = next(bench.step.model.parameters())
    before = weight.detach().clone()
    assert bench.turn(fixed)["missing"] == 0
    momentum = bench.step.optimizer.state[weight]["momentum_buffer"]
    assert momentum.abs().sum() > 0
    assert torch.equal(weight, before)  # the learning rate is 0
    momentum.fill_(1e6)
    bench.turn(loader)
    assert 0 < (weight - before).abs().max() < 1


def test_wrong_images_are_reported(load, tmp_path, monkeypatch, capsys):
    module = load("imagenet")
    monkeypatch.setattr(load("photographs"), "LEVELS", 0.0)
    found = module.check(tmp_path, tiny_imagenet())
    assert [sentence[:11] for sentence in found["wrong"]] == ["images from"]
    assert "WRONG: images from files differ by 0.00 levels" in capsys.readouterr().out


def test_batches_that_differ_from_the_cpu(load):
    def batch(level=0.0, label=1, size=4):
        return Batch((torch.full((2, 3, size, size), level),), torch.full((2,), label), torch.arange(2))

    def wrong(*here):
        return load("photographs").compare("files", here, [batch(), batch()], 0.2)

    assert wrong(batch(), batch()) == (0.0, [])
    assert wrong(batch(), batch(0.02))[0] == pytest.approx(0.02 / 2 * 0.2 * 255)
    assert wrong(batch(), batch(0.02))[1] == []
    assert "differ by 2.55 levels" in wrong(batch(0.05), batch(0.05))[1][0]
    assert wrong(batch(), batch(label=2))[1] == ["labels from files differ from the CPU's"]
    assert wrong(batch(float("nan")), batch())[1]
    assert wrong(batch())[1] == ["images from files are (2, 3, 4, 4), on the CPU (4, 3, 4, 4)"]
    assert wrong(batch(size=5), batch(size=5))[1]


@pytest.mark.slow
def test_large_images_are_checked_and_timed(load, monkeypatch, capsys):
    module = load("data")
    monkeypatch.setattr(module, "check_large", partial(module.check_large, number=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no pinned memory without a GPU
        *_, part = module.large(SimpleNamespace(large=4), "cpu", workers=1)
    assert len(part["rows"]) == 3
    assert list(part["levels"]) == ["files", "files, for evaluation"]
    assert max(part["levels"].values()) < 0.01  # the CPU against itself
    assert part["wrong"] == []
    assert "WRONG" not in capsys.readouterr().out


def test_wrong_losses_of_a_measurement_are_reported(load):
    module = load("imagenet")
    turn = {"rate": 1.0, "fill": 1.0, "filled": 4, "missing": 0}
    good, bad = [{**turn, "loss": loss} for loss in (2.0, 1.0)], [{**turn, "loss": loss} for loss in (1.0, 2.0)]
    assert module.wrong_turns({module.FIXED: bad, "files": good}) == []
    assert module.wrong_turns({"files": bad}) == ["files: the loss did not fall, 1.000, 2.000"]
    assert module.wrong_turns({"files": [*good, {**turn, "loss": float("nan")}]}) == ["files: a loss is not finite"]
    assert module.wrong_turns({module.FIXED: [{**one, "missing": 1} for one in good]})


def test_colours_of_photographs(load, tmp_path):
    for subsampling in (0, 2):
        load("photographs").write_photographs(tmp_path, 1, subsampling=subsampling)
        with Image.open(tmp_path / "0.jpg") as image:
            assert JpegImagePlugin.get_sampling(image) == subsampling


# --- recall of fleets


SAME_RECALL = ("--data", "digits-lt", "--seeds", 2)


def test_recall_of_our_kernels_alone(load, tmp_path, capsys):
    given = {"data": "digits-lt", "seeds": 1, "epochs": 1, "only": ["ours"]}
    load("same_recall").measure(SimpleNamespace(**given, runs=tmp_path / "runs", out=tmp_path / "same.json"))
    found = json.loads((tmp_path / "same.json").read_text())["parts"]["same"]
    assert list(found["recalls"]) == list(found["trained"]) == ["torch bf16"]
    assert "p" not in found
    assert "s per model" in capsys.readouterr().out


@pytest.mark.slow
def test_recall_with_both_kernels(tmp_path):
    out = tmp_path / "same.json"
    run = ("same_recall.py", *SAME_RECALL, "--epochs", 2, "--runs", tmp_path / "runs", "--out", out)
    script(*run)
    found = json.loads(out.read_text())["parts"]["same"]
    assert [len(values) for values in found["recalls"].values()] == [2, 2]
    assert found["goals"]["under 0.5 points"] == ("yes" if abs(found["difference"]) <= 0.5 else "NO")
    careful = found["float32"]["cuDNN fp32 without TF32"]
    assert not careful["cudnn.allow_tf32"]
    assert not careful["cuda.matmul.allow_tf32"]
    assert careful["error of a float32 convolution"] < 1e-5
    whole = found["whole_runs"]["torch bf16"]
    assert whole["seconds_a_model"] == pytest.approx(whole["seconds"] / 2)
    clock = tmp_path / "runs" / "torch-bf16.json"
    kept = json.loads(clock.read_text())
    elsewhere = {**kept["trained"], "commit": "0123456", "processor": "another", "date": "2020-01-01"}
    for name in ("torch-bf16", "cuDNN-fp32-without-TF32"):
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps({**kept, "trained": elsewhere}))
    script(*run)  # nothing to train: recalls, times and machine are those of the first call
    again = json.loads(out.read_text())["parts"]["same"]
    assert again["recalls"] == found["recalls"]
    assert again["whole_runs"]["torch bf16"] == found["whole_runs"]["torch bf16"]
    assert {name: again[name] for name in elsewhere} == elsewhere
    for name in ("torch-bf16", "cuDNN-fp32-without-TF32"):
        (tmp_path / "runs" / f"{name}.json").unlink()
    script(*run)
    assert json.loads(out.read_text())["parts"]["same"]["commit"] is None


def test_without_tf32(load):
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


@pytest.mark.slow
def test_recalls_are_saved_before_they_are_compared(load, tmp_path, monkeypatch):
    module = load("same_recall")

    def broken(*_, **__):
        raise ValueError("no test")

    monkeypatch.setattr(module, "compare", broken)
    given = {"data": "digits-lt", "seeds": 1, "epochs": 1, "only": ["ours", "careful"]}
    with pytest.raises(ValueError, match="no test"):
        module.measure(SimpleNamespace(**given, runs=tmp_path / "runs", out=tmp_path / "same.json"))
    assert len(json.loads((tmp_path / "same.json").read_text())["parts"]["same"]["recalls"]) == 2


def test_time_of_killed_runs_is_unknown(load, tmp_path):
    clock = load("same_recall").Clock(tmp_path / "clock.json")
    assert not clock.known
    with pytest.raises(ValueError, match="stopped"), clock.running():
        raise ValueError("stopped")
    again = load("same_recall").Clock(tmp_path / "clock.json")
    assert (again.known, again.starts) == (True, 1)
    assert again.seconds == clock.seconds > 0
    (tmp_path / "clock.json").write_text(json.dumps({"seconds": 1.0, "starts": 2, "ends": 1, "trained": {}}))
    assert not load("same_recall").Clock(tmp_path / "clock.json").known


@pytest.mark.slow
def test_runs_resume_after_sigterm(tmp_path):
    """The script ends with a sentence; the next call resumes the runs and adds up the time."""
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
    assert "Stopped; the same command resumes" in printed
    assert "Traceback" not in errors
    first = json.loads((runs / "torch-bf16.json").read_text())
    assert (first["starts"], first["ends"]) == (1, 1)
    script("same_recall.py", *arguments)
    found = json.loads(out.read_text())["parts"]["same"]
    assert found["whole_runs"]["torch bf16"]["starts"] == 2
    assert found["whole_runs"]["torch bf16"]["seconds"] > first["seconds"]


# --- evaluation and fleets


def test_evaluation_of_many_samples(command, tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--samples", 2000, "--classes", 30, "--features", 8, "--batch", 300, "--images", 64, "--rounds", 1)
    command("evaluation.py", "--only", "stream", "balance", *small, "--out", out)
    parts = json.loads(out.read_text())["parts"]
    assert list(parts["stream"]["rows"]) == ["200", "2000"]
    few, many = (row["peak_bytes"] for row in parts["stream"]["rows"].values())
    assert (few is many is None) if sys.platform != "linux" else (0 <= few <= many)
    assert parts["balance"]["rows"]["all class statistics, eager"]["times_hits"] > 0


def test_pass_that_keeps_all_logits_is_not_constant(load, monkeypatch, capsys):
    module = load("evaluation")
    peaks = iter([10**9, 10**9 + 10**7, 10**9 + 10**8])  # before, after a tenth of the samples, after all of them
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "largest_resident", lambda: next(peaks))
    sizes = {"samples": 2000, "classes": 30, "features": 8, "batch": 300}
    (part,) = module.stream(SimpleNamespace(**sizes))
    assert [row["peak_bytes"] for row in part["rows"].values()] == [10**7, 10**8]
    assert "constant within 0 MB: NO" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluation_inside_a_fleet(tmp_path):
    out = tmp_path / "evaluation.json"
    small = ("--members", 2, "--window", 4, "--pairs", 2, "--files", 200, "--model", "small-cnn")
    script("evaluation.py", "--only", "fleet", *small, "--out", out)
    ((name, row),) = json.loads(out.read_text())["parts"]["fleet"]["rows"].items()
    assert name == "2, CPU, train_stats paper"  # CIFAR's recipe
    assert row["wrong"] == []  # all were evaluated as expected
    assert row["evaluations_a_window"] == 2
    assert len(row["seconds_without"]) == len(row["seconds_with"]) == 2
    each = [(b - a) / 2 for a, b in zip(row["seconds_without"], row["seconds_with"], strict=True)]
    assert row["evaluation_seconds"] == pytest.approx(sum(each) / 2)
    assert row["share"] == pytest.approx(row["share_of_an_evaluation"] + row["share_of_the_end"])


def test_first_fleet_has_all_pairs(load, monkeypatch):
    module = load("evaluation")
    monkeypatch.setattr(module, "DEVICE", "cuda")
    given = {"kernels": ["triton", "torch"], "pairs": 3}
    assert module.cases(SimpleNamespace(**given, train_stats=None)) == [
        ("triton", "paper", 3),
        ("torch", "paper", 1),
        ("triton", "eval", 1),
    ]
    assert module.cases(SimpleNamespace(**given, train_stats=["eval"])) == [("triton", "eval", 3), ("torch", "eval", 1)]


@pytest.mark.slow
def test_growth_of_a_fleet(load, tmp_path, monkeypatch):
    module = load("fleet")
    monkeypatch.setattr(module, "Team", partial(module.Team, model="small-cnn"))
    monkeypatch.setattr(module, "FAST", {})
    *_, part = module.growth(load("reference_loop").random_cifar(tmp_path, 200), [1, 2])
    assert [row["members"] for row in part["rows"]] == [1, 2]
    assert [row["gigabytes"] for row in part["rows"]] == [None, None]  # no GPU


def test_team_takes_whole_epochs(load, tmp_path):
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


# --- the record of a machine


def test_record_of_a_cpu(load):
    record = load("record")
    found = record.about()
    assert found["processor"]
    assert found["cores"] > 0
    assert not {"triton", "driver"} & found.keys()


def test_record_of_a_gpu(load, monkeypatch):
    record = load("record")
    commands = []

    def output_of(*command):
        commands.append(command[0])
        return {"nvidia-smi": "580.1\n580.1", "rev-parse": "abc1234", "status": " M src/x.py"}[
            next(word for word in command if word in {"nvidia-smi", "rev-parse", "status"})
        ]

    monkeypatch.setattr(record, "output_of", output_of)
    monkeypatch.setattr(record, "version", lambda name: f"{name} 3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = record.about()
    expected = {"device": "a GPU", "triton": "triton 3", "driver": "580.1", "commit": "abc1234+"}
    assert {name: found[name] for name in expected} == expected
    assert record.about() == found
    assert commands == ["git", "git", "nvidia-smi"]  # once for all parts


def test_unknown_values_are_left_out(load, monkeypatch, tmp_path):
    record = load("record")
    assert record.output_of("no-such-command") is None
    monkeypatch.setattr(record, "ROOT", tmp_path)  # not a repository
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.machine().keys() == {"processor", "cores"}


def test_launches_per_step(load, monkeypatch):
    """`launches` agrees with a whole pass whose kernels only count calls."""
    pytest.importorskip("triton")
    cases = load("kernel_cases")
    found = Counter()

    def maps(operation, layer):
        found[cases.key_of(operation, layer)] += 1
        return torch.empty(layer.pixels, layer.written)

    def input_gradient(_, __, layer, *___, **____):
        maps("input", layer)
        return torch.empty(layer.pixels_in, layer.read), None

    kernels = {
        "cast": lambda plan: torch.empty(plan.cast_at[-1][2]),
        "pack": lambda _, layer, __: torch.empty(layer.pixels_in, layer.read),
        "convolve": lambda _, __, layer, ___: (maps("forward", layer), None),
        "normalised": lambda layer, *_, **__: maps("normalise", layer),
        "join": lambda *_, **__: None,
        "mask": lambda _, seen, *__: (seen, None),
        "weight_part": lambda _, __, layer, *___, **____: maps("weight", layer),
        "input_gradient": input_gradient,
        "sum_up": lambda _, plan: torch.empty(plan.gradients_at[-1]),
    }
    for name, kernel in kernels.items():
        monkeypatch.setattr(cases.launch, name, kernel)
    network = cases.CifarResNet(32).train()
    run_chain = importlib.import_module("longtail.kernels.chain").run_chain
    run_chain(network, torch.zeros(2, 3, 32, 32)).sum().backward()
    assert cases.launches() == found
    rows = [case.key() for case in cases.cases()]
    assert set(rows) == set(found)
    assert [found[key] for key in rows] == [10, 10, 10, 6, 9, 9, 9, 5, 9, 9, 9, 10, *[1] * 8]

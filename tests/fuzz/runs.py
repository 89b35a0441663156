"""Recipes, plans, and the files of runs and studies."""

import json
import shutil
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import tomli_w
from tests.fuzz import seeds
from tests.fuzz.judge import call, command, expect, quick_figures, short_training
from tests.fuzz.mutate import changed_tree, damaged

# --- recipes and plans


def as_toml(rng: Random, content: dict[str, Any]) -> bytes:
    if rng.random() < 0.6:
        content = changed_tree(rng, content)
    try:
        text = tomli_w.dumps(content).encode()
    except Exception:  # None, huge numbers and surrogates are not TOML
        text = tomli_w.dumps({"data": "digits-lt", "epochs": 10**20}).encode()
    return damaged(rng, text) if rng.random() < 0.3 else text


def recipe(rng: Random, folder: Path) -> None:
    """A TOML recipe: the settings are those of ``tomllib``, and a run begins with them."""
    from longtail.train.recipe import read_recipe

    written = tomllib.loads((seeds.ROOT / "run" / "recipe.toml").read_text())
    some = {name: written[name] for name in rng.sample(sorted(written), rng.randrange(4, len(written)))}
    path = folder / "recipe.toml"
    path.write_bytes(as_toml(rng, some))
    found = call(read_recipe, path)
    content = tomllib.loads(path.read_text("utf-8"))
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    expected = {name: None if value == "none" and plain.get(name) is None else value for name, value in content.items()}
    expect(plain == expected, f"the settings are others: {plain} and {expected}")
    short_training("train", path, "--device", "cpu", "--out", folder / "run")


def plan(rng: Random, folder: Path) -> None:
    """A TOML plan of a study."""
    search = {"folds": 3, "start": [1.0, 1.5], "step": 0.25, "bounds": [0.0, 3.0]}
    content = {
        "data": ["digits-lt"], "imbalance": [10, 50], "methods": ["softmax", "cbs:beta=1.5", "cbs"],
        "betas": [1.5, "search", "auto"], "seeds": 2, "out": "runs/x", "reference": "softmax",
        "recipe": {"epochs": 3, "lr": 0.1, "model": "small-cnn"}, "search": search,
    }  # fmt: skip
    path = folder / "plan.toml"
    path.write_bytes(as_toml(rng, content))
    _, printed = command("study", path, "--dry-run", *rng.choice(([], [], ["--seeds", 3], ["--epochs", 2])))
    given = tomllib.loads(path.read_text("utf-8"))
    expect(str(given.get("out", "runs/study")) in printed, "the folder is another")


# --- run folders


def _commands(rng: Random, folder: Path, run: Path) -> None:
    """Run a command that reads a run folder."""
    other = rng.choice(
        ("evaluate", "posthoc", "predict", "diagnose", "resume", "resume", "table", "report", "again", "weights")
    )
    if other == "evaluate":
        command("evaluate", run)
    elif other == "posthoc":
        command("evaluate", run, "--posthoc", rng.choice(("tau", "adjust", "tau=0.5", "adjust=1")))
    elif other == "predict":
        command("predict", run, seeds.ROOT / "pets" / "cat" / "0.png")
    elif other == "diagnose":
        quick_figures()
        command("diagnose", "--test", run, "--out", folder / "page.html")
    elif other == "resume":
        command("train", "--resume", run, "--device", "cpu")
    elif other == "table":
        command("study", "table", run, "--format", rng.choice(("terminal", "csv", "latex", "markdown")))
    elif other == "weights":
        words = ["--data", "digits-lt", "--method", "softmax", "--device", "cpu", "--out", folder / "new"]
        short_training("train", *words, "--weights", run / "model.safetensors")
    elif other == "again":
        words = ["--data", "digits-lt", "--method", "softmax", "--epochs", 2, "--validation", 0.2]
        short_training("train", *words, "--device", "cpu", "--out", run)
    else:
        quick_figures()
        command("report", run.parent, "--no-figures", "--out", folder / "page.html")


def record(rng: Random, folder: Path) -> None:
    """A run folder whose JSON, TOML or log was changed."""
    run = folder / "runs" / "run"
    shutil.copytree(seeds.ROOT / rng.choice(("run", "auto")), run)
    file = run / rng.choice(
        ("result.json", "result.json", "environment.json", "log.jsonl", "recipe.toml", "unreadable.json")
    )
    if file.suffix == ".json" and rng.random() < 0.7:
        content = (
            changed_tree(rng, json.loads(file.read_text())) if file.exists() else changed_tree(rng, {"a.png": "why"})
        )
        file.write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))
    elif file.suffix == ".toml" and rng.random() < 0.7:
        file.write_bytes(as_toml(rng, tomllib.loads(file.read_text())))
    elif file.suffix == ".jsonl" and rng.random() < 0.7:
        lines = changed_tree(rng, [json.loads(line) for line in file.read_text().splitlines()])
        file.write_text("\n".join(json.dumps(line) for line in (lines if isinstance(lines, list) else [lines])) + "\n")
    else:
        file.write_bytes(damaged(rng, file.read_bytes() if file.exists() else b"{}"))
    if rng.random() < 0.3 and file.name != "result.json":
        (run / "result.json").unlink()
    _commands(rng, folder, run)


def study(rng: Random, folder: Path) -> None:
    """A study whose record, search or one of whose results was changed."""
    shutil.copytree(seeds.ROOT / "study", folder / "study", ignore=shutil.ignore_patterns("*.safetensors", "tables"))
    files = sorted((folder / "study").rglob("*.json"))
    chosen = [file for file in files if file.name in {"study.json", "beta.json"}]
    file = rng.choice(chosen if rng.random() < 0.6 else files)
    if rng.random() < 0.8:
        content = changed_tree(rng, json.loads(file.read_text()))
        file.write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))
    else:
        file.write_bytes(damaged(rng, file.read_bytes()))
    what = rng.randrange(3)
    if what == 0:
        form = rng.choice(("terminal", "csv", "latex", "markdown"))
        command("study", "table", folder / "study", "--what", rng.choice(("recall", "level")), "--format", form)
    elif what == 1:
        quick_figures()
        command("report", folder / "study", "--no-figures", "--out", folder / "page.html")
    else:
        words = ["--data", "digits-lt", "--methods", "softmax", "cbs", "--betas", "search", "--seeds", 2, "--epochs", 1]
        searched = ["--start", 1, 2, "--folds", 2, "--step", 1, "--bounds", 0, 3]
        settings = ["--device", "cpu", "--evaluate-every", 1, "--batch-size", 256]
        command("study", *words, *searched, *settings, "--out", folder / "study")


def tensors(rng: Random, folder: Path) -> None:
    """A run folder whose weights, statistics, predictions or checkpoint were changed."""
    from longtail._io import read_tensors

    run = folder / "runs" / "run"
    shutil.copytree(seeds.ROOT / "run", run)
    for name in ("result.json", "model.safetensors", "statistics.safetensors", "predictions.safetensors"):
        if rng.random() < 0.25:
            (run / name).unlink()
    *earlier, last = sorted((run / "checkpoints").iterdir())
    if rng.random() < 0.5:
        last.unlink()
        last = earlier[-1]
    here = [*run.glob("*.safetensors"), last, last]
    file = rng.choice(here)
    content = file.read_bytes()
    if rng.random() < 0.5:
        content = damaged(rng, content)
    else:  # a header that is whole
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        card = header.get("__metadata__", {}).get("longtail")
        if card is not None and rng.random() < 0.7:
            header["__metadata__"]["longtail"] = json.dumps(changed_tree(rng, json.loads(card)))
        else:
            header = changed_tree(rng, header)
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    file.write_bytes(content)
    if rng.random() < 0.2:
        found, _ = call(read_tensors, file)
        ours = {name: value.float().numpy() for name, value in found.items()}
        theirs = {name: value.float().numpy() for name, value in safetensors.torch.load_file(file).items()}
        expect(ours.keys() == theirs.keys(), "the names are others")
        expect(all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in ours), "the values are others")
        return
    begun = not (run / "result.json").exists()
    _commands(rng, folder, run)
    if begun and file == last and (run / "result.json").exists():
        for name in ("result.json", "model.safetensors"):
            expect((run / name).read_bytes() == (seeds.ROOT / "run" / name).read_bytes(), f"{name} is another")

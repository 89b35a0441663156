"""Random command lines."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.fuzz import seeds
from tests.fuzz.judge import quick_figures, short_training
from tests.fuzz.mutate import ODD_TEXTS

# --- command lines

_FLAGS: dict[tuple[str, ...], dict[str, Any]] = {}
_PREFIXES = [
    ("train",),
    ("study",),
    ("study", "beta"),
    ("study", "table"),
    ("evaluate",),
    ("predict",),
    ("report",),
    ("methods",),
    ("diagnose",),
    ("data", "list"),
    ("data", "get"),
    ("data", "check"),
    ("data", "describe"),
]
_NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "0.1",
    "1.5",
    "1e-9",
    "1e30",
    "nan",
    "inf",
    "-inf",
    "99999999999999999999",
    "0x10",
    "1_0",
    "٣",
]
_LARGE = {
    "--workers",
    "--batch-size",
    "--image-size",
    "--together",
    "--accumulate",
    "--seeds",
}  # what takes memory if large
_WORDS = [
    "digits-lt",
    "digits",
    "cifar10-lt",
    "softmax",
    "cbs",
    "crt",
    "ldam-drw",
    "auto",
    "none",
    "recipe",
    "search",
    "cpu",
    "cuda",
    "small-cnn",
    "resnet20",
    "timm:resnet10t",
    "timm:nonsense",
    "cosine",
    "step",
    "quantiles",
    "100,20",
    "tau",
    "adjust=1",
    "tau=",
    "csv",
    "json",
    "skip",
    "error",
    "bcl:beta=1.8",
    "cbs:beta=",
    "true",
]


def find_flags() -> None:
    """Find the flags of every command."""
    from longtail.cli.parsing import Parser

    class _Found(Exception):
        pass

    def note(parser: Parser, _: object) -> None:
        _FLAGS[tuple(parser.prog.split()[1:])] = dict(parser._option_string_actions)
        raise _Found

    before = Parser.read
    Parser.read = note  # type: ignore[assignment]
    for name, *rest in _PREFIXES:
        with suppress(_Found):
            import_module(f"longtail.cli.{name}").run([*rest, "--x"])
    Parser.read = before  # type: ignore[method-assign]
    assert len(_FLAGS) == len(_PREFIXES), _FLAGS.keys()


def command_line(rng: Random, folder: Path) -> None:
    """Random flags and values, some of which fit."""
    for name in ("run", "pets", "of-pets"):
        (folder / name).symlink_to(seeds.ROOT / name)
    np.savez(folder / "p.npz", labels=[0, 1, 1], predicted=[0, 1, 0])
    (folder / "c.json").write_text("[3, 4]")
    (folder / "r.toml").write_text('data = "digits-lt"\nepochs = 1\n')
    files = [
        "run",
        "pets",
        "of-pets",
        "p.npz",
        "c.json",
        "r.toml",
        "nowhere",
        ".",
        "pets/cat/0.png",
        "new",
        "new/deep/x.json",
    ]
    prefix = rng.choice(_PREFIXES)
    usual = {
        ("train",): ["--data", "digits-lt", "--device", "cpu", "--epochs", "1"],
        ("study",): ["--data", "digits-lt", "--methods", "softmax", "--dry-run"],
        ("study", "beta"): ["--data", "digits-lt", "--dry-run"],
        ("evaluate",): ["run"],
        ("predict",): ["of-pets", "pets"],
        ("report",): ["run", "--no-figures", "--out", "x.html"],
        ("diagnose",): ["--test", "p.npz", "--counts", "c.json"],
        ("data", "describe"): ["pets"],
        ("data", "get"): ["digits"],
        ("data", "check"): ["digits-lt"],
        ("study", "table"): ["run"],
    }.get(prefix, [])
    words = list(usual) if rng.random() < 0.85 else rng.sample(usual, rng.randrange(len(usual) + 1))
    if prefix[0] == "study" and prefix != ("study", "table") and "--dry-run" not in words:
        words.append("--dry-run")
    pool = [
        *_NUMBERS,
        *_WORDS,
        *files,
        *(text for text in ODD_TEXTS if "\0" not in text and "\ud800" not in text and text != "/"),
    ]
    for _ in range(rng.randrange(4)):
        flag = rng.choice([*_FLAGS[prefix], "--plugin", "--debug", "--nonsense", "-h"])
        if flag in words or flag == "--debug":
            continue
        values = [rng.choice(pool) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if flag in _LARGE:
            values = [value for value in values if value in {"0", "1", "2", "-1", "nan", "0.1", "none", "x", ""}]
        if rng.random() < 0.2 and values:
            words.append(f"{flag}={values[0]}")
        elif flag in words:
            continue
        else:
            words += [flag, *values]
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), rng.choice(pool))
    quick_figures()
    short_training(*prefix, *words)

"""Record what the package computes, and compare a changed tree with the record.

A refactor must not change values. `record` runs a tree and writes what it computed into one JSON file; `compare` runs
another tree in the same way and prints every difference, one per line. The exit code is 1 if there is a difference.

    python tools/baseline.py record tools/baseline.json --tree ../old
    python tools/baseline.py compare tools/baseline.json              # the tree that this script is in
    python tools/baseline.py compare tools/baseline.json --only draws subsets --jobs 2

Both work on a temporary copy of the tree, so nothing is written into it. They use the interpreter that runs this
script, with one thread per process. Values are bit-identical only on the same kind of CPU with the same versions of
torch and numpy; `compare` says when these differ.

The parts are:

runs       Short runs on digits-lt (and one on PNG files) by `longtail train`, all methods: the digest of every tensor
           in model, predictions and statistics files, the log without times, and the content of result.json.
resume     Some of these runs again, stopped in the middle by a signal and resumed. They must equal the undisturbed run.
study      A small study with a search for beta: digests of its runs, the search, the tables in full precision.
subsets    The long-tailed subsets of CIFAR: digests of the indices.
draws      Sample orders, random numbers and augmented images for some seeds and epochs: digests.
page       `make results-page` on the committed runs: every number of results/README.md and of the results part of
           README.md, the searches for beta, and the tables of the committed runs in full precision.
committed  Only in `compare`: the committed results/**/result.json against those of the commit that was recorded.

Names that change on purpose are listed in tools/renamed.json, which `compare` applies to the baseline:

commands   {"case": "words"}: the arguments of a run that replace those in CASES, for example
           {"bcl-cbs": "--method bcl --beta 1.8"} where they were "--method bcl --balance cbs --beta 1.8".
words      [["old words", "new words"], ...]: replaced in the arguments of all commands, for example a flag's name.
           Replacements are made in this order, and only of whole words.
model, predictions, statistics, log, result, search, tables, subsets, draws, page, study, committed
           [["regular expression", "replacement"], ...]: applied by `re.sub` to keys of that part, in this order. The
           replacement null says that a key was removed on purpose. Keys of nested JSON are joined by dots, such as
           "splits.train.recall.head". Keys of `page` are section titles, those of `tables` are column names, those of
           `study` and `committed` are paths of run folders.
added      {"part": ["regular expression", ...]}: keys that exist only in the new tree, on purpose.
strings    {"old": "new"}: text values of result.json that have changed, for example the name of a method.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RENAMED = Path(__file__).with_name("renamed.json")

Json = Any
Flat = dict[str, Json]
Words = list[str]

COMMON = "--data digits-lt --seed 0 --epochs 5 --evaluate-every 2 --device cpu"
FILES = "--seed 0 --epochs 2 --evaluate-every 1 --device cpu"
CASES: dict[str, str] = {
    "softmax": "--method softmax",
    "focal": "--method focal",
    "tau-norm": "--method tau-norm --validation 0.2",
    "tau-norm-given": "--method tau-norm --tau 0.7",
    "logit-adjust": "--method logit-adjust",
    "logit-adjust-posthoc": "--method logit-adjust-posthoc",
    "reslt": "--method reslt",
    "crt": "--method crt --classifier-epochs 2",
    "lws": "--method lws --classifier-epochs 2",
    "ldam": "--method ldam",
    "ldam-drw": "--method ldam-drw",
    "balanced-softmax": "--method balanced-softmax",
    "cbs": "--method cbs --beta 1.8",
    "class-balanced-sampling": "--method class-balanced-sampling",
    "class-balanced-weights": "--method class-balanced-weights",
    "bcl": "--method bcl",
    "proco": "--method proco",
    "bcl-cbs": "--method bcl --beta 1.8",
    "proco-cbs": "--method proco --beta 1.8",
    "fold": "--method cbs --folds 3 --fold 1 --seed 4",
    "resnet": "--method cbs --model resnet20 --augment cifar --head cosine --epochs 1",
    "mixed": "--method cbs --sampler square-root --correct-twice --mixup 0.2 --label-smoothing 0.1 --augment imagenet",
    "steps": (
        "--method softmax --sampler progressive --accumulate 2 --drop-last --nesterov --schedule steps "
        "--milestones 0.5 0.8 --seed 2 --subset-seed run --profile step --imbalance 10 --train-stats paper"
    ),
    "files": "FOLDER --method cbs --model small-cnn --image-size 16 --batch-size 16 --workers 1",
}
"""Arguments of `longtail train`, after COMMON. FOLDER stands for a folder of PNG files, whose run begins with FILES."""

RESUMED: dict[str, tuple[signal.Signals, int]] = {"proco": (signal.SIGKILL, 12), "crt": (signal.SIGTERM, 34)}
"""Runs that are stopped and resumed: the signal, and after how many checkpoints it is sent. ProCo's loss has state;
cRT's second stage begins with step 30."""

STUDY = (
    "--data digits-lt --methods softmax cbs --betas search --folds 2 --start 1 1.5 --step 0.5 --seeds 2 --epochs 3 "
    "--device cpu"
)
TABLES = ("recall", "measures")
"""What `longtail study table` is asked about the committed runs."""

TENSOR_FILES = ("model", "predictions", "statistics")
TIMES = ("seconds", "images_per_second")
"""What differs from one log to the next."""

NOT_COPIED = {".git", ".venv", "runs", "data", "tests"}
"""Of the top folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 1 where values differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("record", "run a tree and write what it computed"), ("compare", "run a tree and compare")):
        one = commands.add_parser(name, help=about)
        one.add_argument("file", type=Path, metavar="OUT.json" if name == "record" else "BASELINE.json")
        one.add_argument("--tree", type=Path, default=ROOT, help="default: the tree that this script is in")
        one.add_argument("--only", nargs="+", choices=[*PARTS, "committed"], metavar="PART", help="some of the parts")
        one.add_argument("--cases", nargs="+", choices=[*CASES], metavar="CASE", help="some of the runs")
        one.add_argument("--jobs", type=int, default=1, help="processes at a time")
        one.add_argument("--renamed", type=Path, default=None if name == "record" else RENAMED, help="the map of names")
    commands.add_parser("imported", help="what the other commands run in a tree: subsets and draws, as JSON")
    given = parser.parse_args(arguments)
    if given.command == "imported":
        sys.stdout.write(json.dumps({"subsets": subsets(), "draws": draws()}))
        return 0
    names = Names.read(given.renamed)
    if given.command == "record":
        found = compute(given, names)
        failed = [str(one["failed"]) for one in (*found.values(), *found.get("runs", {}).values()) if "failed" in one]
        if failed:
            raise SystemExit("\n".join(failed))
        given.file.write_text(written(found), encoding="utf-8")
        say(f"{given.file}: {', '.join(found)}")
        return 0
    baseline = json.loads(given.file.read_text(encoding="utf-8"))
    differences = [*compare(baseline, compute(given, names), names)]
    if not given.only or "committed" in given.only:
        differences += compare_committed(given.tree, baseline["environment"]["commit"], names)
    for line in differences:
        say(line)
    say(f"{len(differences)} differences" if differences else "No difference.")
    return 1 if differences else 0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def written(found: Mapping[str, Json]) -> str:
    """JSON with one line for each entry of each part, so that a change shows in a diff."""
    parts = []
    for part, entries in found.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in entries.items()]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


# --- a tree that is run


class FailedError(Exception):
    """A command of the tree failed."""


@dataclass(frozen=True)
class Tree:
    """A temporary copy of a tree, in which commands are run."""

    path: Path
    scratch: Path
    """Where commands write."""

    def environment(self) -> dict[str, str]:
        """The environment of a command: the copy's package, one thread, no GPU."""
        changed = {
            "PYTHONPATH": str(self.path / "src"),
            "OMP_NUM_THREADS": "1",
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "120",
        }
        return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | changed

    def start(self, words: Sequence[str | Path], folder: Path | None = None) -> "subprocess.Popen[str]":
        """Start Python with these arguments."""
        return subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=folder or self.scratch,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, words: Sequence[str | Path], folder: Path | None = None) -> str:
        """Run Python with these arguments, and return what it prints."""
        process = self.start(words, folder)
        out, errors = process.communicate()
        if process.returncode:
            raise FailedError(f"{shlex.join(map(str, words))}: {errors[-1000:].strip()}")
        return out

    def longtail(self, *words: str | Path) -> str:
        """Run a command of the package."""
        return self.run(["-m", "longtail", *words])


def compute(given: argparse.Namespace, names: "Names") -> dict[str, Json]:
    """Everything that is recorded of a tree."""
    source = given.tree.resolve()
    with tempfile.TemporaryDirectory(prefix="longtail-baseline-") as temporary:
        tree = Tree(Path(temporary) / "tree", Path(temporary) / "scratch")
        tree.scratch.mkdir()
        shutil.copytree(source, tree.path, ignore=lambda folder, _: NOT_COPIED if Path(folder) == source else set())
        found: dict[str, Json] = {"environment": environment(source)}
        parts = [part for part in PARTS if not given.only or part in given.only]
        with ThreadPoolExecutor(given.jobs) as pool:
            for part in parts:
                began = time.monotonic()
                try:
                    found[part] = PARTS[part](Work(tree, names, pool, given.cases or [*CASES], found))
                except FailedError as error:
                    found[part] = {"failed": str(error)}
                sys.stderr.write(f"{part}: {time.monotonic() - began:.0f} s\n")
    return found


@dataclass(frozen=True)
class Work:
    """What computing a part needs."""

    tree: Tree
    names: "Names"
    pool: ThreadPoolExecutor
    cases: Sequence[str]
    before: Mapping[str, Json]
    """The parts that are computed already."""


def environment(tree: Path) -> dict[str, str]:
    """What values may depend on besides the code."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    commit = subprocess.run(["git", "-C", tree, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        **versions,
        "cpu": cpu[1].strip() if cpu else platform.processor(),
    }


# --- runs


def train_words(work: Work, case: str) -> Words:
    """The arguments of a run, in the words of the tree that is run."""
    words = work.names.commands.get(case, CASES[case])
    common = FILES if words.startswith("FOLDER") else COMMON
    words = words.replace("FOLDER", str(work.tree.scratch / "images"))
    changed = {word for word in words.split() if word.startswith("--")}
    pairs = [pair for pair in re.findall(r"(--\S+) (\S+)", common) if pair[0] not in changed]
    return work.names.words(["train", *words.split(), *(word for pair in pairs for word in pair)])


def runs(work: Work) -> dict[str, Json]:
    """The content of every run of CASES."""
    make_images(work.tree.scratch / "images")

    def one(case: str) -> Json:
        folder = work.tree.scratch / "runs" / case
        try:
            work.tree.longtail(*train_words(work, case), "--out", folder)
        except FailedError as error:
            return {"failed": str(error)}
        return run_content(folder)

    return dict(zip(work.cases, work.pool.map(one, work.cases), strict=True))


def run_content(folder: Path) -> dict[str, Json]:
    """Digests of the tensors of a finished run, its log and its result."""
    found: dict[str, Json] = {name: tensor_digests(folder / f"{name}.safetensors") for name in TENSOR_FILES}
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    found["log"] = {
        f"{number}.{key}": value
        for number, line in enumerate(lines)
        for key, value in flat(line).items()
        if key not in TIMES
    }
    found["result"] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def tensor_digests(file: Path) -> dict[str, str]:
    """Type, shape and SHA-256 of every tensor in a safetensors file, by key."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    found = {}
    for key in sorted(header.keys() - {"__metadata__"}):
        first, last = header[key]["data_offsets"]
        shape = "x".join(map(str, header[key]["shape"]))
        found[key] = f"{header[key]['dtype']} {shape} {hashlib.sha256(data[first:last]).hexdigest()}"
    return found


def make_images(folder: Path) -> None:
    """Write PNG files of four classes, each with fewer images than the one before."""
    for split, times in (("train", 3), ("test", 1)):
        for label in range(4):
            (folder / split / f"class{label}").mkdir(parents=True)
            for number in range(4 * (4 - label) * times):
                side = 20 + number % 5
                pixels = bytes((x * (label + 1) * 7 + number * 13 + x * x % 251) % 256 for x in range(side * side * 3))
                (folder / split / f"class{label}" / f"{number:03}.png").write_bytes(png(pixels, side))


def png(pixels: bytes, side: int) -> bytes:
    """A square RGB image as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + pixels[row * side * 3 : (row + 1) * side * 3] for row in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# --- stopped and resumed


def resume(work: Work) -> dict[str, Json]:
    """For each run that is stopped and resumed, how it differs from the undisturbed one."""
    cases = [case for case in RESUMED if case in work.cases]

    def one(case: str) -> Json:
        undisturbed = work.before.get("runs", {}).get(case, {})
        if "model" not in undisturbed:
            folder = work.tree.scratch / "undisturbed" / case
            work.tree.longtail(*train_words(work, case), "--out", folder)
            undisturbed = run_content(folder)
        folder = work.tree.scratch / "resumed" / case
        stop_run(work, case, folder)
        work.tree.longtail(*work.names.words(["train", "--resume"]), folder)
        content = run_content(folder)
        none = Names.read(None)
        return [line for part in content for line in differences(part, undisturbed[part], content[part], none, part)]

    return dict(zip(cases, work.pool.map(one, cases), strict=True))


def stop_run(work: Work, case: str, folder: Path) -> None:
    """Start a run that writes a checkpoint after every step, and stop it after some of them."""
    number, after = RESUMED[case]
    often = work.names.words(["--checkpoint-minutes", "0"])
    while after > 0:
        shutil.rmtree(folder, ignore_errors=True)
        process = work.tree.start(["-m", "longtail", *train_words(work, case), *often, "--out", folder])
        seen: set[Path] = set()
        while process.poll() is None and len(seen) < after:
            seen |= set(folder.glob("*/[!.]*.safetensors"))
            time.sleep(0.002)
        process.send_signal(number)
        process.communicate()
        if seen and not (folder / "result.json").exists():
            last = max(folder.glob("*/[!.]*.safetensors"))
            sys.stderr.write(f"{case}: stopped by {number.name} with {last.name} written\n")
            return
        after -= 4  # it was over before the signal came
    raise FailedError(f"{case} could not be stopped before its end")


# --- a study


def study(work: Work) -> dict[str, Json]:
    """A small study: its runs, its search and its tables."""
    folder = work.tree.scratch / "study"
    words = work.names.commands.get("study", STUDY).split()
    work.tree.longtail(*work.names.words(["study", *words]), "--out", folder)
    found: dict[str, Json] = {}
    for result in sorted(folder.rglob("result.json")):
        tensors = tensor_digests(result.with_name("model.safetensors"))
        together = hashlib.sha256("\n".join(sorted(tensors.values())).encode()).hexdigest()
        found[result.parent.relative_to(folder).as_posix()] = {"study": {"tensors": together}}
    for file in sorted(folder.rglob("beta.json")):
        found[file.relative_to(folder).as_posix()] = {"search": search_content(file)}
    for file in sorted(folder.rglob("*.csv")):
        content = table_content(file.read_text(encoding="utf-8"))
        found[file.relative_to(folder).as_posix()] = {"tables": content}
    return found


def search_content(file: Path) -> Flat:
    """The numbers of a search for beta, without sentences."""
    content = flat(json.loads(file.read_text(encoding="utf-8")))
    return {key: value for key, value in content.items() if not isinstance(value, str)}


def table_content(text: str) -> dict[str, list[str]]:
    """The columns of a CSV table that hold numbers or marks of significance, without those that hold words."""
    rows = list(csv.reader(io.StringIO(text)))
    columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True)) if rows else {}
    return {name: list(cells) for name, cells in columns.items() if any(cells) and all(map(is_value, cells))}


def is_value(cell: str) -> bool:
    """Whether a cell holds a number or a mark, or nothing."""
    try:
        float(cell or "0")
    except ValueError:
        return not cell.strip("*")
    return True


# --- what is imported


MODULES = (
    "longtail.data",
    "longtail.data.long_tail",
    "longtail.data.datasets.long_tail",
    "longtail.data.draws",
    "longtail.data.sampling.draws",
    "longtail.data.samplers",
    "longtail.data.sampling.samplers",
    "longtail.data.augment",
)
"""Where a name may be, in old trees and in new ones."""

CIFAR_SIZES = {
    10: {10: 20431, 50: 13996, 100: 12406, 200: 11203},
    100: {10: 19573, 50: 12608, 100: 10847, 200: 9502},
}
"""Images in the long-tailed subsets, by number of classes and imbalance factor (recipes.md)."""
CIFAR_IMAGES = 50_000

MOMENTS = ((0, 0), (0, 7), (3, 1), (2**63 + 11, 5))
"""Seeds and epochs."""


def imported(name: str) -> Any:
    """A function or class of the tree, from whichever module has it."""
    for module in MODULES:
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"{name} is in none of {', '.join(MODULES)}")


def digest(values: Any) -> str:
    """Type, shape and SHA-256 of a tensor."""
    shape = "x".join(map(str, values.shape))
    return f"{str(values.dtype).removeprefix('torch.')} {shape} {digest_bytes(values)}"


def digest_bytes(values: Any) -> str:
    """SHA-256 of a tensor's bytes."""
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()


def either(function: Callable[..., Json], *arguments: Any) -> Json:
    """What a function returns, or its error: something missing is a difference, not the end."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def subsets() -> dict[str, Json]:
    """Digests of the indices of CIFAR's long-tailed subsets."""
    found: dict[str, Json] = {}
    for classes, sizes in CIFAR_SIZES.items():
        largest = CIFAR_IMAGES // classes
        labels = [number * 7919 % CIFAR_IMAGES // largest for number in range(CIFAR_IMAGES)]  # as many of each, mixed
        for factor, size in sizes.items():
            for seed in (0, 1):
                name = f"{classes} classes, factor {factor}, seed {seed}"
                found[name] = either(subset, classes, factor, seed, labels)
                if isinstance(found[name], dict) and found[name]["size"] != size:
                    found[name]["size"] = f"{found[name]['size']}, but recipes.md says {size}"
    for profile in ("exp", "step", "pareto"):
        found[f"counts, {profile}, label order"] = either(counts, profile)
    return found


def counts(profile: str) -> list[int]:
    """Class counts of one profile."""
    found: list[int] = imported("long_tail_counts")(10, 5000, 100, profile=profile).tolist()
    return found


def subset(classes: int, factor: int, seed: int, labels: list[int]) -> Json:
    """Size and digest of one subset."""
    wanted = imported("long_tail_counts")(classes, CIFAR_IMAGES // classes, factor)
    indices = imported("long_tail_indices")(labels, wanted, seed)
    return {"size": len(indices), "indices": digest(indices)}


def draws() -> dict[str, Json]:
    """Digests of random numbers, sample orders and augmented images."""
    import torch  # noqa: PLC0415 - the other commands do not need it

    labels = torch.arange(10).repeat_interleave(imported("long_tail_counts")(10, 300, 50))
    images = (torch.arange(16 * 3 * 32 * 32) * 7919 % 65521 % 256).to(torch.uint8).view(16, 3, 32, 32)
    found: dict[str, Json] = {}
    for seed, epoch in MOMENTS:
        numbers = imported("Draws")(seed=seed, epoch=epoch)
        makers: dict[str, Callable[[Any], Any]] = {
            "permutation": lambda draw: draw.permutation(1000),
            "uniforms": lambda draw: draw.uniforms(0, 64, 9),
            "uniforms, stream 2": lambda draw: draw.uniforms(10, 20, 5, stream=2),
            "Instance": lambda draw: imported("Instance")().order(labels, draw),
            "ClassAware": lambda draw: imported("ClassAware")().order(labels, draw),
            "ClassAware, 3 per class": lambda draw: imported("ClassAware")(per_class=3, length=500).order(labels, draw),
            "SquareRoot": lambda draw: imported("SquareRoot")().order(labels, draw),
            "Progressive": lambda draw: imported("Progressive")(total_epochs=8).order(labels, draw),
            "shard": lambda draw: imported("shard")(draw.permutation(1001), 1, 3, pad=True),
            **augmentations(images),
        }
        for name, make in makers.items():
            found[f"{name}, seed {seed}, epoch {epoch}"] = either(lambda: digest(make(numbers)))  # noqa: B023 - called at once
    return found


def augmentations(images: Any) -> dict[str, Callable[[Any], Any]]:
    """For each augmentation a function from an epoch's draws to augmented images."""
    settings: dict[str, tuple[Any, ...]] = {
        "RandomCrop": (32, 4),
        "RandomFlip": (),
        "Cutout": (16,),
        "RandomResizedCrop": (24,),
        "ColorJitter": (0.4, 0.4, 0.4, 0.1),
        "RandomGrey": (0.2,),
        "AutoAugmentCIFAR": (),
        "RandAugment": (2, 10),
        "CentreCrop": (24,),
        "Resize": (40,),
        "Blur": (5,),
    }

    def function(name: str) -> Callable[[Any], Any]:
        def augment(draw: Any) -> Any:
            one = imported(name)(*settings[name])
            return one(images, draw.uniforms(0, len(images), one.draws) if one.draws else None)

        return augment

    return {name: function(name) for name in settings}


def imported_part(part: str) -> Callable[[Work], dict[str, Json]]:
    """A function that computes subsets or draws in the tree."""

    def compute_part(work: Work) -> dict[str, Json]:
        found: dict[str, Json] = json.loads(work.tree.run([Path(__file__).resolve(), "imported"]))[part]
        return {"all": found}

    return compute_part


# --- the page of results


def page(work: Work) -> dict[str, Json]:
    """Numbers of results/README.md, of the results part of README.md, of the searches and of the tables."""
    tree = work.tree
    files = {name: (tree.path / name).read_bytes() for name in ("results/README.md", "README.md")}
    commands = [*page_commands(tree.path)]
    if not commands:
        raise FailedError("`make results-page` runs no command of the package")
    (tree.path / "results/README.md").unlink()  # so that a page that is not made shows
    readme = files["README.md"].decode()
    (tree.path / "README.md").write_text(RESULTS.sub(r"\1\n\3", readme), encoding="utf-8")
    for words in commands:
        tree.run(words, tree.path)
    found: dict[str, Json] = {
        "as committed": {name: (tree.path / name).read_bytes() == content for name, content in files.items()}
    }
    block = RESULTS.search((tree.path / "README.md").read_text(encoding="utf-8"))
    found["README.md"] = {"page": page_content(block[2] if block else "")}
    found["results/README.md"] = {"page": page_content((tree.path / "results/README.md").read_text(encoding="utf-8"))}
    for file in sorted((tree.path / "results").rglob("beta.json")):
        found[file.relative_to(tree.path).as_posix()] = {"search": search_content(file)}
    folders = sorted({file.parents[1] for file in (tree.path / "results").glob("*/*/result.json")})

    def table(what: str) -> Json:
        asked = work.names.words(["study", "table", *map(str, folders), "--what", what, "--format", "csv"])
        return {"tables": table_content(tree.longtail(*asked))}

    return found | dict(zip(TABLES, work.pool.map(table, TABLES), strict=True))


def page_commands(tree: Path) -> Iterator[Words]:
    """The commands of `make results-page`, as arguments of Python."""
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "results-page", "BIN=BINARIES"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in said.stdout.replace("\\\n", " ").splitlines():
        words = [word for word in shlex.split(line) if "=" not in word or word.startswith("-")]
        if words and words[0] == "BINARIES/longtail":
            yield ["-m", "longtail", *words[1:]]
        elif words and words[0] == "BINARIES/python" and words[1:3] != ["-m", "pip"]:
            yield words[1:]


RESULTS = re.compile(r"(<!-- results:.*?-->)(.*?)(<!-- results:.*?-->)", re.DOTALL)
"""The part of README.md that is made from results, between its marks."""
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w])")


def page_content(text: str) -> dict[str, Json]:
    """The numbers of a Markdown page by section: cells of tables in their order, and all numbers of the text sorted.

    Code and addresses of links are left out. Cells of numbers are kept with their marks, others by their numbers.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|`[^`]*`", "]", text)
    found: dict[str, dict[str, Json]] = {}
    title = ""
    for line in text.splitlines():
        heading = re.match(r"#+ (.*)", line)
        if heading:
            title = heading[1]
            continue
        section = found.setdefault(title, {"rows": [], "text": []})
        if re.match(r"\| *:?-+", line):
            continue
        if line.startswith("|"):
            section["rows"].append([cell_content(cell) for cell in line.strip().strip("|").split(" | ")])
        else:
            section["text"] += NUMBER.findall(line)
    for section in found.values():
        section["rows"] = [" | ".join(row) for row in section["rows"] if any(row)]
        section["text"].sort()
    return {title: section for title, section in found.items() if section["rows"] or section["text"]}


def cell_content(cell: str) -> str:
    """A cell without words."""
    return " ".join(NUMBER.findall(cell)) if re.search(r"[^\W\d_]", cell) else cell.strip()


PARTS: dict[str, Callable[[Work], dict[str, Json]]] = {
    "runs": runs,
    "resume": resume,
    "study": study,
    "subsets": imported_part("subsets"),
    "draws": imported_part("draws"),
    "page": page,
}


# --- comparison


@dataclass(frozen=True)
class Names:
    """The map of renamed things."""

    content: Mapping[str, Json]

    @staticmethod
    def read(file: Path | None) -> "Names":
        """The map in a file; without a file nothing is renamed."""
        return Names({} if file is None else json.loads(file.read_text(encoding="utf-8")))

    @property
    def commands(self) -> Mapping[str, str]:
        """Arguments that replace those of a case."""
        found: Mapping[str, str] = self.content.get("commands", {})
        return found

    def words(self, words: Sequence[str]) -> Words:
        """Arguments in the words of the new tree."""
        line = "\0".join(["", *words, ""])
        for old, new in self.content.get("words", []):
            line = line.replace("\0".join(["", *old.split(), ""]), "\0".join(["", *new.split(), ""]))
        return line.strip("\0").split("\0")

    def key(self, part: str, key: str) -> str | None:
        """The new name of a key; None if it was removed on purpose."""
        for pattern, replacement in self.content.get(part, []):
            if replacement is not None:
                key = re.sub(pattern, replacement, key)
            elif re.search(pattern, key):
                return None
        return key

    def is_added(self, part: str, key: str) -> bool:
        """Whether a key is new on purpose."""
        return any(re.search(pattern, key) for pattern in self.content.get("added", {}).get(part, []))

    def value(self, value: Json) -> Json:
        """A value with its text renamed."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return self.content.get("strings", {}).get(value, value) if isinstance(value, str) else value


def flat(value: Json, prefix: str = "") -> Flat:
    """Nested JSON as one dictionary; keys are joined by dots, lists of plain values are kept whole."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    found: Flat = {}
    for key, item in value.items():
        found |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def differences(part: str, old: Json, new: Json, names: Names, where: str) -> Iterator[str]:
    """How new content differs from old content, whose keys are renamed first."""
    nested = part in {"page", "subsets"}
    before, after = (dict(one) if nested else flat(one) for one in (old, new))
    wanted: Flat = {}
    for key, value in before.items():
        renamed = names.key(part, key)
        if renamed is not None:
            wanted[renamed] = names.value(value)
    for key in sorted(wanted.keys() | after.keys()):
        if key not in after:
            yield f"{where}: {key} is missing"
        elif key not in wanted:
            if not names.is_added(part, key):
                yield f"{where}: {key} is new"
        elif part == "page":
            yield from page_differences(wanted[key], after[key], f"{where}: {key}")
        elif not same(wanted[key], after[key]):
            yield f"{where}: {key}: {short(wanted[key])} != {short(after[key])}"


def page_differences(old: Mapping[str, Json], new: Mapping[str, Json], where: str) -> Iterator[str]:
    """How a section of a page differs: its tables row by row, its text as a bag of numbers."""
    if len(old["rows"]) != len(new["rows"]):
        yield f"{where}: {len(old['rows'])} rows != {len(new['rows'])} rows"
    for number, (row, now) in enumerate(zip(old["rows"], new["rows"], strict=False)):
        if row != now:
            yield f"{where}: row {number}: {row} != {now}"
    before, after = Counter[str](old["text"]), Counter[str](new["text"])
    if before != after:
        lost, gained = sorted((before - after).elements()), sorted((after - before).elements())
        yield f"{where}: numbers of the text: only before {lost}, only now {gained}"


def same(old: Json, new: Json) -> bool:
    """Whether two values are equal, bit by bit; 1 and True are not."""
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def short(value: Json) -> str:
    """A value in at most 100 characters."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:80]}… ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def compare(baseline: Mapping[str, Json], found: Mapping[str, Json], names: Names) -> Iterator[str]:
    """How what was found differs from the baseline, a line for each difference."""
    for key, value in baseline["environment"].items():
        if key != "commit" and found["environment"].get(key) != value:
            sys.stderr.write(f"note: {key} was {value}, is {found['environment'].get(key)}\n")
    for part in (part for part in PARTS if part in found):
        if "failed" in found[part]:
            yield f"{part} failed: {found[part]['failed']}"
        elif part == "resume":
            for case, lines in found["resume"].items():
                yield from (f"resume/{case}: undisturbed and resumed run differ: {line}" for line in lines)
        else:
            yield from compare_part(part, baseline[part], found[part], names)


def compare_part(part: str, old: Mapping[str, Json], new: Mapping[str, Json], names: Names) -> Iterator[str]:
    """How one part differs."""
    if part in {"subsets", "draws"}:
        yield from differences(part, old["all"], new["all"], names, part)
        return
    for entry, content in old.items():
        place = names.key("study", entry) if part == "study" else entry
        if place == "as committed":
            for name, equal in new[place].items():
                if not equal:
                    yield f"page: {name} as it is made now is not the committed one"
        elif place is not None and "failed" in new.get(place, {}):
            yield f"{part}/{entry} failed: {new[place]['failed']}"
        elif place is not None and place in new:
            for kind, inner in content.items():
                yield from differences(kind, inner, new[place].get(kind, {}), names, f"{part}/{entry}/{kind}")
        elif place is not None and part != "runs":  # some runs may have been asked for
            yield f"{part}/{entry} is missing"


def compare_committed(tree: Path, commit: str, names: Names) -> Iterator[str]:
    """How the committed results differ from those of the recorded commit."""
    archive = subprocess.run(
        ["git", "-C", tree, "archive", "--format=tar", commit, "results"], capture_output=True, check=False
    )
    if archive.returncode:
        sys.stderr.write(f"note: {commit} is not there, so the committed results are not compared\n")
        return
    compared = 0
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar.getmembers():
            old = Path(member.name)
            content = tar.extractfile(member)
            if old.name != "result.json" or content is None:
                continue
            folder = names.key("committed", old.parent.as_posix())
            if folder is None:
                continue
            new = tree / folder / "result.json"
            if not new.exists():
                yield f"committed/{old.parent} is missing"
                continue
            now = json.loads(new.read_text(encoding="utf-8"))
            yield from differences("result", json.load(content), now, names, f"committed/{old.parent}")
            compared += 1
    sys.stderr.write(f"committed: {compared} runs\n")


if __name__ == "__main__":
    sys.exit(main())

"""Kinds of cases: each makes an input, damages most of them, gives it to the program, and checks what was accepted."""

import csv
import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tomllib
import warnings
import zlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import tomli_w
import torch
from PIL import Image
from sklearn.metrics import recall_score
from tests.fuzz import seeds
from tests.fuzz.judge import Refused, call, command, expect
from tests.fuzz.mutate import ODD_TEXTS, changed_tree, damaged

from longtail.data.loaders.decode import IMAGE_FORMATS, MAX_PIXELS, decode, image_size
from longtail.diagnose import diagnose

# --- image files

_MODES = ["1", "L", "LA", "P", "RGB", "RGB", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr", "LAB", "HSV"]
_OTHERS = ["TGA", "ICO", "PCX", "SGI", "EPS", "PDF", "JPEG2000"]
_TIFF = ["raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg", "group4"]


def _huge(rng: Random) -> tuple[bytes, str, bool]:
    """Return a small file that says that it is a huge image."""
    width, height = (rng.choice((1, 4097, 8192, 30_000, 65_535, 10**6, 2**31 - 1)) for _ in "wh")
    if rng.random() < 0.5:
        depth, colour = rng.choice(((8, 2), (16, 6), (1, 0), (8, 3)))
        head = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        data = b"IDAT" + zlib.compress(b"\0" * 10_000)
        chunks = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, data, b"IEND")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks), ".png", False
    return f"P{rng.choice('123456')} {width} {height} {rng.choice((1, 255, 65535))}\n".encode() + b"0 1 " * 50, ".ppm", False


def _picture(rng: Random) -> tuple[bytes, str, bool]:
    """Return an image file, its suffix, and whether it has an orientation."""
    if rng.random() < 0.04:
        return _huge(rng)
    mode, side = rng.choice(_MODES), (rng.randrange(1, 40), rng.randrange(1, 40))
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if mode in {"I;16", "I", "F"}:
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).convert(mode) if mode != "I;16" else image
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200) if mode == "I;16" else image
    elif mode == "LAB":
        image = Image.merge("LAB", image.split())
    else:
        image = image.convert(mode)
    options: dict[str, Any] = {}
    known = rng.choice([*IMAGE_FORMATS, *IMAGE_FORMATS, "PNG", "JPEG", rng.choice(_OTHERS)])
    turned = rng.random() < 0.1
    if turned:
        exif = Image.Exif()
        exif[0x0112] = rng.randrange(10)
        options["exif"] = exif
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.copy() for _ in range(2)]}
    if known == "TIFF":
        options["compression"] = rng.choice(_TIFF)
    if known == "JPEG":
        options |= {"quality": rng.choice((1, 50, 95)), "progressive": rng.random() < 0.5}
    if known == "PNG" and mode in {"P", "L", "RGB"} and rng.random() < 0.3:
        options["transparency"] = 0 if mode != "RGB" else (0, 0, 0)
    for form, some in ((known, options), (known, {}), ("PNG", {})):  # not every format has every mode
        made = io.BytesIO()
        try:
            image.save(made, form, **some)
        except Exception:  # noqa: S112 - any encoder, any error
            continue
        suffix = IMAGE_FORMATS.get(form, (f".{form.lower()}",))[-1]
        return made.getvalue(), suffix, turned and "exif" in some
    Image.new("RGB", side).save(made := io.BytesIO(), "PNG")
    return made.getvalue(), ".png", False


def _as_pillow(path: Path) -> "np.ndarray[Any, Any] | None":
    """Return RGB pixels as Pillow reads them; ``None`` if it does not, or if we document that we do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(path, formats=list(IMAGE_FORMATS)) as image:
                if image.mode == "F" or image.width * image.height > MAX_PIXELS:
                    return None
                image.load()
                if image.mode.startswith("I"):
                    return np.repeat((np.asarray(image, np.float64) / 257).clip(0, 255).round()[..., None], 3, 2)
                return np.asarray(image.convert("RGB"))
        except Exception:
            return None


def image(rng: Random, folder: Path) -> None:
    """An image file in any format and mode."""
    content, suffix, turned = _picture(rng)
    if rng.random() < 0.7:
        content = damaged(rng, content)
    suffix = rng.choice([suffix, suffix, suffix, ".jpg", ".png"])
    path = folder / "pets" / "cat" / f"{rng.choice(('a', 'ü ', 'x,y'))}{suffix}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    what = rng.random()
    if what < 0.15:
        (folder / "pets" / "dog").mkdir()
        shutil.copy(seeds.ROOT / "pets" / "dog" / "0.png", folder / "pets" / "dog")
        command("data", "describe", folder / "pets")
        return
    if what < 0.25:
        words = ["--bad-images", rng.choice(("skip", "error")), "--format", rng.choice(("csv", "json"))]
        command("predict", seeds.ROOT / "of-pets", path, *words)
        return
    expected = _as_pillow(path)
    try:
        found = call(decode, path)
    except Refused:
        expect(expected is None, "Pillow reads the image that we refuse")
        raise
    assert expected is not None or expect(False, "Pillow does not read it") is None
    pixels = expected.transpose(2, 0, 1)
    if not turned:
        expect(np.array_equal(found.numpy(), pixels), "the pixels are not those of Pillow")
        expect(call(image_size, path) == pixels.shape[1:], "the size is not that of Pillow")
    else:
        expect(sorted(found.shape) == sorted(pixels.shape), "the size is not that of Pillow")


_NAMES = ["a", "b", "ü", "a b", " a", "a.", "A", "train", "val", "test", "x" * 200, "1", "01", "-1", "=1", "é", "[red]", "a\nb"]


def folder_of_images(rng: Random, folder: Path) -> None:
    """A folder of class folders with odd names, other files, links and nothing at all."""
    root = folder / "data"
    root.mkdir()
    picture = (seeds.ROOT / "pets" / "cat" / "0.png").read_bytes()
    top = [root / name for name in rng.sample(("train", "val", "test", "dev"), rng.randrange(1, 4))]
    number = 0
    for part in top if rng.random() < 0.4 else [root]:
        for name in rng.sample(_NAMES, rng.randrange(4)):
            place = part / name
            if place.exists():
                continue
            place.mkdir(parents=True)
            for one in range(rng.randrange(4)):
                file = rng.choice(("0.png", f"{one}.PNG", f"ü{one}.jpg", ".hidden.png", "notes.txt", "Thumbs.db", f"{one}"))
                (place / file).write_bytes(picture)
        if rng.random() < 0.1:
            (part / "stray.png").parent.mkdir(exist_ok=True)
            (part / "stray.png").write_bytes(picture)
        if rng.random() < 0.1:
            with_link = part / "link"
            part.mkdir(exist_ok=True)
            with_link.symlink_to(rng.choice((part, folder / "nowhere", seeds.ROOT / "pets" / "cat")))
    what = rng.randrange(3)
    if what == 0:
        command("data", "describe", root, *rng.choice(([], ["--no-read-images"])))
    elif what == 1:
        _short_training(command, "train", root, "--epochs", 1, "--model", "small-cnn", "--device", "cpu", "--batch-size", 4)
    else:
        from longtail.data import open_path

        found = call(open_path, root)
        for split in found.splits.values():
            for place, label in enumerate(split.labels.tolist()):
                name = split.images.names[place]
                number += 1
                expect((Path(split.images.root) / name).exists(), "a listed image does not exist")
                expect(found.class_names[label] in Path(name).parts, "an image is not in the folder of its class")


# --- lists of images


def _list_rows(rng: Random) -> tuple[list[str], list[list[Any]]]:
    header = rng.choice((["path", "label"], ["path", "label", "split"], ["Label", " path"], ["id", "path", "label"], ["path"]))
    names = rng.choice((["cat", "dog"], ["0", "1"], ["a,b", 'q"'], ["ü", " x"], ["", "a"], ["07", "7"], ["-1", "0"]))
    rows = []
    for place in range(rng.randrange(6)):
        values = {"path": f"pets/cat/{place}.png", "label": rng.choice(names), "split": rng.choice(("train", "val", "TEST", ""))}
        if rng.random() < 0.05:
            values["path"] = rng.choice(("../x.png", "/etc/passwd", "", "a\nb.png", "C:\\x.png", "x" * 5000))
        rows.append([values.get(name.strip().lower(), str(place)) for name in header])
    return header, rows


def image_list(rng: Random, folder: Path) -> None:
    """A list of images: .csv, .tsv, .txt or .parquet."""
    from longtail.data import open_path

    shutil.copytree(seeds.ROOT / "pets", folder / "pets")
    suffix = rng.choice((".csv", ".tsv", ".txt", ".parquet"))
    path, (header, rows) = folder / f"list{suffix}", _list_rows(rng)
    if suffix == ".parquet":
        columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
        if rng.random() < 0.3:
            columns["label"] = rng.choice(([1.5] * len(rows), [None] * len(rows), [b"\xff"] * len(rows), [[1]] * len(rows)))
        pq.write_table(pa.table(columns), path)
        content = path.read_bytes()
    elif suffix == ".txt":
        content = "".join(f"pets/cat/{place}.png {row[-1]}\n" for place, row in enumerate(rows)).encode()
    else:
        made = io.StringIO()
        csv.writer(made, delimiter=rng.choice(",;\t") if rng.random() < 0.5 else ",\t"[suffix == ".tsv"]).writerows([header, *rows])
        content = made.getvalue().encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin1")), "replace")
    if rng.random() < 0.6:
        content = damaged(rng, content)
    path.write_bytes(content)
    if rng.random() < 0.2:
        command("data", "describe", path)
        return
    if rng.random() < 0.1:
        command("predict", seeds.ROOT / "of-pets", path)
        return
    found = call(open_path, path)
    ours = Counter(
        (found.splits[part].images.names[place], found.class_names[label], part)
        for part in found.splits
        for place, label in enumerate(found.splits[part].labels.tolist())
    )
    expect(ours == _read_list(path, folder), "the rows are not those of an independent reader")


def _read_list(path: Path, folder: Path) -> "Counter[tuple[str, str, str]]":
    parts = {"": "train", "training": "train", "valid": "val", "validation": "val", "dev": "val"}
    rows: list[dict[str, Any]] = []
    if path.suffix == ".parquet":
        rows = pa.parquet.read_table(path).to_pylist()
    elif path.suffix == ".txt":
        for line in path.read_text("utf-8-sig").replace("\r\n", "\n").split("\n"):
            if line.strip():
                name, _, label = line.rstrip().rpartition(" ")
                rows.append({"path": name.strip(), "label": label})
    else:
        text = path.open(encoding="utf-8-sig", newline="").read()
        for delimiter in ("\t,;" if path.suffix == ".tsv" else ",\t;"):
            reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
            if {"path", "label"} <= {name.strip().lower() for name in reader.fieldnames or ()}:
                rows = list(reader)
                break
    counted: Counter[tuple[str, str, str]] = Counter()
    padded = path.suffix != ".parquet" and any(name != name.strip() for row in rows[:1] for name in row if name)
    cells = [
        {key.strip().lower(): str("" if value is None else value) for key, value in row.items() if key is not None}
        for row in rows
    ]
    cells = [{key: value.strip() if padded else value for key, value in row.items()} for row in cells]
    labels = [row["label"] for row in cells]
    numbers = all(label.isascii() and label.isdigit() for label in labels)
    for row in cells:
        part = row.get("split", "").lower()
        name = row["path"]
        if name.startswith("/"):
            name = os.path.relpath(name, folder)
        counted[name, str(int(row["label"])) if numbers else row["label"], parts.get(part, part)] += 1
    return counted


# --- predictions


def predictions(rng: Random, folder: Path) -> None:
    """A file of predictions for ``diagnose``, and the recall of every class from an independent reader."""
    generator = np.random.default_rng(rng.randrange(2**32))
    classes, samples = rng.randrange(2, 6), rng.randrange(1, 40)
    labels: Any = generator.integers(0, classes, samples)
    logits = generator.normal(0, 3, (samples, classes)).astype(rng.choice((np.float32, np.float64, np.float16)))
    kind = rng.choice(("logits", "probabilities", "predicted"))
    scores = logits.astype(np.float64)
    if kind == "probabilities":
        scores = np.exp(scores - scores.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    values = logits.argmax(1) if kind == "predicted" else logits if kind == "logits" else scores
    if rng.random() < 0.15:
        odd = rng.choice((np.nan, np.inf, -np.inf, 1e30, -1.0))
        values = values.astype(np.float64)
        values.flat[rng.randrange(values.size)] = odd
    if rng.random() < 0.15:
        labels = labels.astype(rng.choice((np.int8, np.uint64, np.float32, bool, object, "S3", "U3")))
    if rng.random() < 0.1:
        labels = rng.choice((labels[:-1], labels[:, None], np.arange(samples) - 1, np.arange(samples) + 1000))
    suffix = rng.choice((".npz", ".npz", ".safetensors", ".csv", ".parquet", ".npy"))
    path = folder / f"test{suffix}"
    try:
        _write_predictions(path, labels, values, kind)
    except Exception:  # a type that the format has not
        _write_predictions(path, generator.integers(0, classes, samples), logits, "logits")
        kind = "logits"
    content = path.read_bytes()
    if rng.random() < 0.4:
        path.write_bytes(damaged(rng, content))
    counts = folder / "counts.json"
    counts.write_text(json.dumps([rng.randrange(1, 300) for _ in range(classes)]))
    if rng.random() < 0.1:
        _quick_figures()
        command("diagnose", "--test", path, "--counts", counts, "--out", folder / "page.html")
        return
    found = call(diagnose, path, None, None, counts)
    call(str, found)
    arrays = _read_predictions(path)
    expected_labels = np.array([int(float(value)) for value in arrays["labels"]])
    expected = arrays["predicted"] if "predicted" in arrays else np.argmax(arrays.get("logits", arrays.get("probabilities")), 1)
    seen = expected_labels != -100
    truth, guess = expected_labels[seen], np.array([int(float(value)) for value in expected])[seen]
    recalls = recall_score(truth, guess, labels=range(classes), average=None, zero_division=0)
    ours = found.recall_of("test").per_class
    present = np.bincount(truth, minlength=classes) > 0
    expect(np.allclose(np.asarray(ours, np.float64)[present], recalls[present], atol=1e-6), "the recalls are others")


def _write_predictions(path: Path, labels: Any, values: Any, kind: str) -> None:
    if path.suffix == ".npz":
        np.savez(path, labels=labels, **{kind: values})
    elif path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file({"labels": np.ascontiguousarray(labels), kind: np.ascontiguousarray(values)}, path)
    else:
        prefix = {"logits": "logit_", "probabilities": "probability_"}.get(kind)
        columns = {"label": list(labels)}
        columns |= {f"{prefix}{c}": list(values[:, c]) for c in range(values.shape[1])} if prefix else {kind: list(values)}
        if path.suffix == ".parquet":
            pq.write_table(pa.table(columns), path)
        else:
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def _read_predictions(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        return {"labels" if name == "label" else name: value for name, value in arrays.items()}
    if path.suffix == ".safetensors":
        return safetensors.numpy.load_file(path)
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pydict()
    else:
        text = path.read_text("utf-8-sig")
        header, *lines = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        rows = {name.strip(): [line[place].strip() for line in lines] for place, name in enumerate(header)}
    found = {"labels": rows.get("labels", rows.get("label"))}
    for kind, prefix in (("logits", "logit_"), ("probabilities", "probability_")):
        names = sorted((name for name in rows if name.startswith(prefix)), key=lambda name: int(name.removeprefix(prefix)))
        if names:
            return found | {kind: np.stack([np.array(rows[name], np.float64) for name in names], 1)}
    return found | {"predicted": rows["predicted"]}


def counts_and_groups(rng: Random, folder: Path) -> None:
    """JSON files of class counts and groups."""
    names = rng.choice((["a", "b", "c"], ["0", "1", "2"]))
    labels = np.array(names)[np.random.default_rng(0).integers(0, 3, 30)]
    np.savez(folder / "test.npz", labels=labels, predicted=labels[::-1], classes=np.array(names))
    counts = rng.choice(([200, 50, 3], dict(zip(names, (200, 50, 3), strict=True))))
    groups = {"head": [names[0]], "medium": [names[1]], "tail": [names[2]]}
    for name, content in (("counts", counts), ("groups", groups)):
        if rng.random() < 0.6:
            content = changed_tree(rng, content)
        text = json.dumps(content).encode("utf-8", "surrogatepass")
        (folder / f"{name}.json").write_bytes(damaged(rng, text) if rng.random() < 0.2 else text)
    chosen = rng.choice((None, "auto", "100,20", "quantiles", folder / "groups.json", folder / "groups.json", "1,2,3", ""))
    found = call(diagnose, folder / "test.npz", None, None, folder / "counts.json", groups=None if chosen is None else str(chosen))
    given = json.loads((folder / "counts.json").read_text("utf-8-sig"))
    given = [given[name] for name in names] if isinstance(given, dict) else given
    expect(found.counts.tolist() == given, "the counts are others")
    call(str, found)


# --- recipes and plans


def _as_toml(rng: Random, content: dict[str, Any]) -> bytes:
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
    path.write_bytes(_as_toml(rng, some))
    found = call(read_recipe, path)
    content = tomllib.loads(path.read_text("utf-8"))
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    expected = {name: None if value == "none" and plain.get(name) is None else value for name, value in content.items()}
    expect(plain == expected, f"the settings are others: {plain} and {expected}")
    _short_training(command, "train", path, "--device", "cpu", "--out", folder / "run")


def plan(rng: Random, folder: Path) -> None:
    """A TOML plan of a study."""
    search = {"folds": 3, "start": [1.0, 1.5], "step": 0.25, "bounds": [0.0, 3.0]}
    content = {
        "data": ["digits-lt"], "imbalance": [10, 50], "methods": ["softmax", "cbs:beta=1.5", "cbs"],
        "betas": [1.5, "search", "auto"], "seeds": 2, "out": "runs/x", "reference": "softmax",
        "recipe": {"epochs": 3, "lr": 0.1, "model": "small-cnn"}, "search": search,
    }  # fmt: skip
    path = folder / "plan.toml"
    path.write_bytes(_as_toml(rng, content))
    _, printed = command("study", path, "--dry-run", *rng.choice(([], [], ["--seeds", 3], ["--epochs", 2])))
    given = tomllib.loads(path.read_text("utf-8"))
    expect(str(given.get("out", "runs/study")) in printed, "the folder is another")


# --- run folders


def _commands(rng: Random, folder: Path, run: Path) -> None:
    """Run a command that reads a run folder."""
    other = rng.choice(("evaluate", "posthoc", "predict", "diagnose", "resume", "resume", "table", "report", "again"))
    if other == "evaluate":
        command("evaluate", run)
    elif other == "posthoc":
        command("evaluate", run, "--posthoc", rng.choice(("tau", "adjust", "tau=0.5", "adjust=1")))
    elif other == "predict":
        command("predict", run, seeds.ROOT / "pets" / "cat" / "0.png")
    elif other == "diagnose":
        _quick_figures()
        command("diagnose", "--test", run, "--out", folder / "page.html")
    elif other == "resume":
        command("train", "--resume", run, "--device", "cpu")
    elif other == "table":
        command("study", "table", run, "--format", rng.choice(("terminal", "csv", "latex", "markdown")))
    elif other == "again":
        words = ["--data", "digits-lt", "--method", "softmax", "--epochs", 2, "--validation", 0.2]
        _short_training(command, "train", *words, "--device", "cpu", "--out", run)
    else:
        _quick_figures()
        command("report", run.parent, "--no-figures", "--out", folder / "page.html")


def record(rng: Random, folder: Path) -> None:
    """A run folder whose JSON, TOML or log was changed."""
    run = folder / "runs" / "run"
    shutil.copytree(seeds.ROOT / rng.choice(("run", "auto")), run)
    file = run / rng.choice(("result.json", "result.json", "environment.json", "log.jsonl", "recipe.toml", "unreadable.json"))
    if file.suffix == ".json" and rng.random() < 0.7:
        content = changed_tree(rng, json.loads(file.read_text())) if file.exists() else changed_tree(rng, {"a.png": "why"})
        file.write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))
    elif file.suffix == ".toml" and rng.random() < 0.7:
        file.write_bytes(_as_toml(rng, tomllib.loads(file.read_text())))
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
        _quick_figures()
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
    here = [file for file in run.glob("*.safetensors")] + [last, last]
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


# --- files of built-in data sets


def dataset(rng: Random, folder: Path) -> None:
    """Pickles of CIFAR and IDX files of Fashion-MNIST."""
    from longtail.data.datasets.builtin import read_idx
    from longtail.data.datasets.cifar import read_cifar

    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    if rng.random() < 0.3:
        path = folder / "images.gz"
        content = struct.pack(">HBBIII", 0, 8, 3, 4, 48, 64) + pixels.tobytes()
        if rng.random() < 0.4:
            path.write_bytes(gzip.compress(damaged(rng, content)))
        else:
            path.write_bytes(damaged(rng, gzip.compress(content)))
        found = call(read_idx, path)
        sizes = gzip.decompress(path.read_bytes())
        shape = struct.unpack_from(f">{sizes[3]}I", sizes, 4)
        values = np.frombuffer(sizes, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        expect(np.array_equal(found.numpy(), values), "the values are others")
        return
    root = folder / "cifar-100-python"
    root.mkdir()
    protocol = rng.choice((2, 4))
    batch = {b"data": pixels, b"fine_labels": [0, 1, 99, 3]}
    (root / "meta").write_bytes(pickle.dumps({b"fine_label_names": [str(c).encode() for c in range(100)]}, protocol))
    (root / "train").write_bytes(pickle.dumps(batch, protocol))
    file = root / rng.choice(("meta", "train", "train"))
    file.write_bytes(damaged(rng, file.read_bytes()))
    found = call(read_cifar, folder, "cifar100", train=True)
    same = [np.array_equal(found.images[place].numpy().reshape(-1), pixels[place]) for place in range(min(4, len(found.images)))]
    if file.name == "meta":
        expect(all(same) and found.labels.tolist() == batch[b"fine_labels"], "the images are others")


# --- command lines

_FLAGS: dict[tuple[str, ...], dict[str, Any]] = {}
_PREFIXES = [("train",), ("study",), ("study", "beta"), ("study", "table"), ("evaluate",), ("predict",), ("report",),
             ("methods",), ("diagnose",), ("data", "list"), ("data", "get"), ("data", "check"), ("data", "describe")]  # fmt: skip
_NUMBERS = ["0", "1", "2", "-1", "0.1", "1.5", "1e-9", "1e30", "nan", "inf", "-inf", "99999999999999999999", "0x10", "1_0", "٣"]
_LARGE = {"--workers", "--batch-size", "--image-size", "--together", "--accumulate", "--seeds"}  # what takes memory if large
_WORDS = ["digits-lt", "digits", "cifar10-lt", "softmax", "cbs", "crt", "ldam-drw", "auto", "none", "recipe", "search",
          "cpu", "cuda", "small-cnn", "resnet20", "timm:resnet10t", "timm:nonsense", "cosine", "step", "quantiles",
          "100,20", "tau", "adjust=1", "tau=", "csv", "json", "skip", "error", "bcl:beta=1.8", "cbs:beta=", "true"]  # fmt: skip


def _flags() -> None:
    """Find the flags of every command."""
    from longtail.cli.parsing import Parser

    class _Found(Exception):
        pass

    def note(parser: Parser, _: object) -> None:
        _FLAGS[tuple(parser.prog.split()[1:])] = dict(parser._option_string_actions)
        raise _Found

    before = Parser.read
    Parser.read = note  # type: ignore[assignment]
    from importlib import import_module

    for name, *rest in _PREFIXES:
        try:
            import_module(f"longtail.cli.{name}").run([*rest, "--x"])
        except _Found:
            pass
    Parser.read = before  # type: ignore[method-assign]
    assert len(_FLAGS) == len(_PREFIXES), _FLAGS.keys()


def command_line(rng: Random, folder: Path) -> None:
    """Random flags and values, some of which fit."""
    for name in ("run", "pets", "of-pets"):
        (folder / name).symlink_to(seeds.ROOT / name)
    np.savez(folder / "p.npz", labels=[0, 1, 1], predicted=[0, 1, 0])
    (folder / "c.json").write_text("[3, 4]")
    (folder / "r.toml").write_text('data = "digits-lt"\nepochs = 1\n')
    files = ["run", "pets", "of-pets", "p.npz", "c.json", "r.toml", "nowhere", ".", "pets/cat/0.png", "new", "new/deep/x.json"]
    prefix = rng.choice(_PREFIXES)
    usual = {
        ("train",): ["--data", "digits-lt", "--device", "cpu", "--epochs", "1"],
        ("study",): ["--data", "digits-lt", "--methods", "softmax", "--dry-run"],
        ("study", "beta"): ["--data", "digits-lt", "--dry-run"],
        ("evaluate",): ["run"], ("predict",): ["of-pets", "pets"], ("report",): ["run", "--no-figures", "--out", "x.html"],
        ("diagnose",): ["--test", "p.npz", "--counts", "c.json"], ("data", "describe"): ["pets"],
        ("data", "get"): ["digits"], ("data", "check"): ["digits-lt"], ("study", "table"): ["run"],
    }.get(prefix, [])  # fmt: skip
    words = list(usual) if rng.random() < 0.85 else rng.sample(usual, rng.randrange(len(usual) + 1))
    if prefix[0] == "study" and prefix != ("study", "table") and "--dry-run" not in words:
        words.append("--dry-run")
    pool = [*_NUMBERS, *_WORDS, *files, *(text for text in ODD_TEXTS if "\0" not in text and "\ud800" not in text and text != "/")]
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
    _quick_figures()
    _short_training(command, *prefix, *words)


def _quick_figures() -> None:
    """Figures are drawn, but not rendered, which takes most of the time of a report."""
    from longtail.report import page

    page.inline_svg = lambda *_: "<svg></svg>"


def _short_training(function: Any, *words: object) -> None:
    """Run a command, and stop training after two steps."""
    from itertools import islice

    from longtail.train import Trainer

    before = Trainer.steps
    Trainer.steps = lambda self: islice(before(self), 2)  # type: ignore[method-assign]
    try:
        function(*words)
    finally:
        Trainer.steps = before  # type: ignore[method-assign]


KINDS = {
    "image": image,
    "folder": folder_of_images,
    "list": image_list,
    "predictions": predictions,
    "counts": counts_and_groups,
    "recipe": recipe,
    "plan": plan,
    "record": record,
    "study": study,
    "tensors": tensors,
    "dataset": dataset,
    "command": command_line,
}
WEIGHTS = {"image": 6, "list": 4, "predictions": 4, "command": 4, "record": 3, "tensors": 3, "recipe": 3}
"""How often a kind is chosen; the others once."""


def preload() -> None:
    """Import all that a case may need before the first fork, and cut off the network."""
    import socket
    from importlib import import_module

    import matplotlib
    import scipy.stats  # noqa: F401
    import sklearn.datasets
    import timm  # noqa: F401

    from longtail.cli import COMMANDS

    matplotlib.use("agg")
    for name in COMMANDS:
        import_module(f"longtail.cli.{name}")
    sklearn.datasets.load_digits()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    _flags()

    def refuse(*_: object) -> None:
        raise OSError(101, "Network is unreachable")

    socket.socket.connect = refuse  # type: ignore[method-assign,assignment]

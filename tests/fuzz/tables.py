"""Lists of images, files of predictions, class counts and groups."""

import csv
import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import safetensors.torch
from sklearn.metrics import recall_score
from tests.fuzz import seeds
from tests.fuzz.judge import call, command, expect, quick_figures
from tests.fuzz.mutate import changed_tree, damaged

from longtail.diagnosis import diagnose

# --- lists of images


def _list_rows(rng: Random) -> tuple[list[str], list[list[Any]]]:
    header = rng.choice(
        (["path", "label"], ["path", "label", "split"], ["Label", " path"], ["id", "path", "label"], ["path"])
    )
    names = rng.choice((["cat", "dog"], ["0", "1"], ["a,b", 'q"'], ["ü", " x"], ["", "a"], ["07", "7"], ["-1", "0"]))
    rows = []
    for place in range(rng.randrange(6)):
        values = {
            "path": f"pets/cat/{place}.png",
            "label": rng.choice(names),
            "split": rng.choice(("train", "val", "TEST", "")),
        }
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
            columns["label"] = rng.choice(
                ([1.5] * len(rows), [None] * len(rows), [b"\xff"] * len(rows), [[1]] * len(rows))
            )
        pq.write_table(pa.table(columns), path)
        content = path.read_bytes()
    elif suffix == ".txt":
        content = "".join(f"pets/cat/{place}.png {row[-1]}\n" for place, row in enumerate(rows)).encode()
    else:
        made = io.StringIO()
        csv.writer(made, delimiter=rng.choice(",;\t") if rng.random() < 0.5 else ",\t"[suffix == ".tsv"]).writerows(
            [header, *rows]
        )
        content = made.getvalue().encode(
            rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin1")), "replace"
        )
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
        names = [name for name in pq.read_schema(path).names if name.strip().lower() in {"path", "label", "split"}]
        rows = pq.read_table(path, columns=names).to_pylist()
    elif path.suffix == ".txt":
        for line in path.read_text("utf-8-sig").replace("\r\n", "\n").split("\n"):
            if line.strip():
                name, _, label = line.rstrip().rpartition(" ")
                rows.append({"path": name.strip(), "label": label})
        if (
            rows
            and all("," in f"{row['path']} {row['label']}" for row in rows)
            and not rows[0]["path"].endswith(".png")
        ):
            pairs = [f"{row['path']} {row['label']}".rpartition(",") for row in rows]  # separated by commas
            rows = [{"path": name.strip(), "label": label.strip()} for name, _, label in pairs]
    else:
        text = path.read_text("utf-8-sig")  # line ends become \n, also in cells
        for delimiter in "\t,;" if path.suffix == ".tsv" else ",\t;":
            reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
            if {"path", "label"} <= {name.strip().lower() for name in reader.fieldnames or ()}:
                rows = list(reader)
                break
    counted: Counter[tuple[str, str, str]] = Counter()
    padded = path.suffix != ".parquet" and any(name != name.strip() for row in rows[:1] for name in row if name)
    cells = [
        {
            key.strip().lower(): value.decode() if isinstance(value, bytes) else str("" if value is None else value)
            for key, value in row.items()
            if key is not None
        }
        for row in rows
    ]
    cells = [{key: value.strip() if padded else value for key, value in row.items()} for row in cells]
    labels = [row["label"].strip() for row in cells]
    numbers = all(label.isascii() and label.isdigit() for label in labels)
    for row, label in zip(cells, labels, strict=True):
        part = row.get("split", "").lower()
        name = row["path"].replace("\\", "/")
        if name.startswith("/"):
            name = os.path.relpath(name, folder)
        counted[name, label.lstrip("0") or "0" if numbers else label, parts.get(part, part)] += 1
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
        quick_figures()
        command("diagnose", "--test", path, "--counts", counts, "--out", folder / "page.html")
        return
    found = call(diagnose, path, None, None, counts)
    call(str, found)
    arrays = _read_predictions(path)
    expected_labels = np.array([int(float(value)) for value in arrays["labels"]])
    expected = (
        arrays["predicted"]
        if "predicted" in arrays
        else np.argmax(arrays.get("logits", arrays.get("probabilities")), 1)
    )
    seen = expected_labels != -100
    truth, guess = expected_labels[seen], np.array([int(float(value)) for value in expected])[seen]
    recalls = recall_score(truth, guess, labels=range(classes), average=None, zero_division=0)
    ours = found.recalls["test"].per_class
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
        columns |= (
            {f"{prefix}{c}": list(values[:, c]) for c in range(values.shape[1])} if prefix else {kind: list(values)}
        )
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
        names = [name.removeprefix(prefix) for name in rows if name.startswith(prefix)]
        if set(names) == {str(place) for place in range(len(names))}:
            names.sort(key=int)
        elif set(map(str, found["labels"])) <= set(names):  # names, in the order of the columns
            found = {"labels": [names.index(str(label)) for label in found["labels"]]}
        if names:
            return found | {kind: np.stack([np.array(rows[prefix + name], np.float64) for name in names], 1)}
    return found | {"predicted": rows["predicted"]}


def counts_and_groups(rng: Random, folder: Path) -> None:
    """JSON files of class counts and groups."""
    names = rng.choice((["a", "b", "c"], ["0", "1", "2"]))
    labels = np.array(names)[np.random.default_rng(0).integers(0, 3, 30)]
    np.savez(folder / "test.npz", labels=labels, predicted=labels[::-1], classes=np.array(names))
    counts = rng.choice(([200, 50, 3], dict(zip(names, (200, 50, 3), strict=True))))
    groups = {"head": [names[0]], "medium": [names[1]], "tail": [names[2]]}
    for name, content in (("counts", counts), ("groups", groups)):
        changed = changed_tree(rng, content) if rng.random() < 0.6 else content
        text = json.dumps(changed).encode("utf-8", "surrogatepass")
        (folder / f"{name}.json").write_bytes(damaged(rng, text) if rng.random() < 0.2 else text)
    chosen = rng.choice(
        (None, "auto", "100,20", "quantiles", folder / "groups.json", folder / "groups.json", "1,2,3", "")
    )
    found = call(
        diagnose,
        folder / "test.npz",
        None,
        None,
        folder / "counts.json",
        groups=None if chosen is None else str(chosen),
    )
    given = json.loads((folder / "counts.json").read_text("utf-8-sig"))
    given = [given[name] for name in names] if isinstance(given, dict) else given
    expect(found.counts.tolist() == given, "the counts are others")
    call(str, found)

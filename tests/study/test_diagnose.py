"""A report from anybody's predictions: what files may hold, what is refused, and how a shift is chosen."""

import csv
import io
import json
import math
import pickle
import re
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from longtail import adjust_logits
from longtail.classes import Groups
from longtail.metrics import preference_scores, recall
from longtail.study.advice import _error, choose_shift
from longtail.study.diagnose import diagnose
from longtail.study.outside import Outside, read_counts, read_outside
from longtail.study.report import render
from longtail.study.report.diagnosis import report_of_diagnosis
from longtail.study.report.page import ClassCards
from longtail.study.report.words import next_steps, said_of

NAMES = ["cat", "dog", "emu", "fox"]
COUNTS = [400, 150, 30, 5]


def make(seed, samples, bias=0.9, separation=2.2):
    """Logits of a classifier that prefers frequent classes, as plain softmax does."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), samples)
    logits = generator.normal(size=(len(labels), 4)) + bias * np.log(COUNTS)
    logits[np.arange(len(labels)), labels] += separation
    return labels, logits.astype(np.float32)


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def write_columns(path, labels, scores=None, *, kind="logit", names=NAMES, predicted=None):
    header = ["label", *([f"{kind}_{name}" for name in names] if scores is not None else ["predicted"])]
    rows = [[label, *(scores[n].tolist() if scores is not None else [predicted[n]])] for n, label in enumerate(labels)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[k] for row in rows] for k, name in enumerate(header)}), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


@pytest.fixture
def files(tmp_path):
    """train, val and test as npz, and counts."""
    found = {}
    for place, (name, samples) in enumerate({"train": 60, "val": 400, "test": 400}.items()):
        labels, logits = make(place, samples, separation=9.0 if name == "train" else 2.2)
        found[name] = tmp_path / f"{name}.npz"
        np.savez(found[name], labels=labels, logits=logits)
    found["counts"] = tmp_path / "counts.json"
    found["counts"].write_text(json.dumps(dict(zip(NAMES, COUNTS, strict=True))))
    return found


# Files


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "predicted"])
def test_every_format_gives_the_same(tmp_path, suffix, kind):
    labels, logits = make(0, 10)
    scores = logits if kind == "logits" else softmax(logits.astype(np.float64))
    path = tmp_path / f"file.{suffix}"
    if suffix in {"npz", "safetensors"}:
        arrays = {"labels": labels, kind: logits.argmax(1) if kind == "predicted" else scores}
        np.savez(path, **arrays) if suffix == "npz" else save_file(arrays, path)
    elif kind == "predicted":
        write_columns(path, labels, predicted=logits.argmax(1))
    else:
        write_columns(path, labels, scores, kind={"logits": "logit", "probabilities": "probability"}[kind])
    found = read_outside(path, "test")
    assert found.labels.tolist() == labels.tolist()
    assert found.predicted.tolist() == logits.argmax(1).tolist()
    assert found.kind == ("labels only" if kind == "predicted" else kind)
    if kind == "predicted":
        assert found.logits is None
    else:
        expected = torch.from_numpy(logits).double().log_softmax(1)
        torch.testing.assert_close(found.logits.double().log_softmax(1), expected, atol=1e-5, rtol=0)
    assert found.names == (tuple(NAMES) if suffix in {"csv", "tsv", "parquet"} and kind != "predicted" else None)


def test_classes_may_go_by_name(tmp_path):
    labels, logits = make(0, 3)
    named = [NAMES[c] for c in labels]
    path = write_columns(tmp_path / "a.csv", named, logits)
    assert read_outside(path, "test").labels.tolist() == labels.tolist()
    guesses = write_columns(tmp_path / "b.csv", named, predicted=[NAMES[c] for c in logits.argmax(1)])
    assert read_outside(guesses, "test", NAMES).predicted.tolist() == logits.argmax(1).tolist()
    np.savez(tmp_path / "c.npz", labels=np.array(named), logits=logits, classes=np.array(NAMES))
    assert read_outside(tmp_path / "c.npz", "test").names == tuple(NAMES)
    numbered = write_columns(tmp_path / "d.csv", labels, logits, names=["0", "1", "2", "3"])
    assert read_outside(numbered, "test").names is None


@pytest.mark.parametrize("suffix", ["NPZ", "SafeTensors", "CSV", "Tsv", "PARQUET"])
def test_a_suffix_may_be_in_capitals(tmp_path, suffix):
    labels, logits = make(0, 3)
    path, small = tmp_path / f"file.{suffix}", tmp_path / f"file.{suffix.lower()}"
    if suffix == "NPZ":
        np.savez(small, labels=labels, logits=logits)
    elif suffix == "SafeTensors":
        save_file({"labels": labels, "logits": logits}, small)
    else:
        write_columns(small, labels, logits)
    small.rename(path)
    found = read_outside(path, "test")
    assert found.labels.tolist() == labels.tolist()
    assert found.predicted.tolist() == logits.argmax(1).tolist()


# Classes by name


def summary(found):
    """What a diagnosis says, by class name, so that the order of the classes has no part in it."""
    measured = {}
    for split in found.splits:
        recalls = found.recall_of(split).per_class.tolist()
        measured[split] = dict(zip(found.names, recalls, strict=True))
    counts = dict(zip(found.names, found.counts.tolist(), strict=True))
    groups = {name: {found.names[c] for c in found.groups.members(name)} for name in found.groups.names}
    shift = found.shift and (found.shift.strength, found.shift.trace, found.shift.after)
    return measured, counts, groups, shift, found.calibration(), found.upwards, said_of(found), next_steps(found)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("labelled", ["names", "indices"])
def test_counts_in_another_order_are_aligned_by_name(tmp_path, files, suffix, labelled):
    paths = {}
    for place, split in enumerate(("train", "val", "test")):
        labels, logits = make(place, 50)
        shown = [NAMES[c] for c in labels] if labelled == "names" else labels.tolist()
        paths[split] = write_columns(tmp_path / f"{split}.{suffix}", shown, logits)
    (tmp_path / "other.json").write_text(json.dumps({"fox": 5, "cat": 400, "emu": 30, "dog": 150}))
    ordered = diagnose(**paths, counts=files["counts"])
    found = diagnose(**paths, counts=tmp_path / "other.json")
    assert summary(found) == summary(ordered)
    assert found.names == ordered.names == tuple(NAMES)
    assert found.counts.tolist() == COUNTS


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_columns_in_another_order_are_aligned_by_name(tmp_path, files, suffix, split):
    paths, other = {}, [2, 0, 3, 1]
    for place, name in enumerate(("train", "val", "test")):
        labels, logits = make(place, 50)
        named = [NAMES[c] for c in labels]
        paths[name] = write_columns(tmp_path / f"{name}.{suffix}", named, logits)
        if name == split:
            names = [NAMES[c] for c in other]
            moved = write_columns(tmp_path / f"moved.{suffix}", named, logits[:, other], names=names)
    ordered = diagnose(**paths, counts=files["counts"])
    found = diagnose(**{**paths, split: moved}, counts=files["counts"])
    assert summary(found) == summary(ordered)


def test_numbered_columns_and_counts_may_come_in_any_order(tmp_path):
    labels, logits = make(0, 20)
    other = [2, 0, 3, 1]
    for suffix in ("csv", "parquet"):
        path = write_columns(tmp_path / f"a.{suffix}", labels, logits[:, other], names=[str(c) for c in other])
        found = read_outside(path, "test")
        assert found.labels.tolist() == labels.tolist()
        np.testing.assert_allclose(found.logits.numpy(), logits, atol=1e-6)
    (tmp_path / "c.json").write_text(
        '{"10": 1, "3": 5, "0": 400, "2": 30, "1": 150, "4": 9, "5": 8, "6": 7, "7": 6, "8": 3, "9": 2}'
    )
    assert read_counts(tmp_path / "c.json")[0].tolist() == [400, 150, 30, 5, 9, 8, 7, 6, 3, 2, 1]
    # Classes 1 to 4 rather than 0 to 3: a whole number is then a name, in every format.
    for suffix in ("csv", "parquet"):
        path = write_columns(tmp_path / f"b.{suffix}", labels + 1, logits, names=["1", "2", "3", "4"])
        assert read_outside(path, "test").labels.tolist() == labels.tolist()


def test_where_orders_differ_numbers_are_refused(tmp_path, files):
    """Which class a number stands for cannot be told then."""
    labels, logits = make(0, 5)
    named = [NAMES[c] for c in labels]
    train = write_columns(tmp_path / "train.csv", named, logits)
    test = write_columns(tmp_path / "test.csv", labels, logits, names=NAMES[::-1])
    with pytest.raises(
        ValueError, match=r"^Expected classes by name in .*test.csv, since .*train.csv and .*test.csv have"
    ):
        diagnose(test, train)
    (tmp_path / "other.json").write_text(json.dumps({"fox": 5, "cat": 400, "emu": 30, "dog": 150}))
    with pytest.raises(ValueError, match=r"^Expected classes by name in .*val.npz, since .*train.csv and .*other.json"):
        diagnose(train, train, files["val"], tmp_path / "other.json")
    moved = write_columns(tmp_path / "moved.csv", named, logits[:, ::-1], names=NAMES[::-1])
    (tmp_path / "list.json").write_text("[400, 150, 30, 5]")
    with pytest.raises(
        ValueError, match=r"^Expected classes by name in .*list.json, since .*train.csv and .*moved.csv"
    ):
        diagnose(moved, train, counts=tmp_path / "list.json")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_come_from_any_file_that_has_them(tmp_path, suffix):
    labels, logits = make(0, 30)
    train = write_columns(tmp_path / f"train.{suffix}", [NAMES[c] for c in labels], logits, names=NAMES)
    labels, logits = make(1, 30)
    guesses = [NAMES[c] for c in logits.argmax(1)]
    test = write_columns(tmp_path / f"test.{suffix}", [NAMES[c] for c in labels], predicted=guesses)
    found = diagnose(test, train)
    assert found.names == tuple(NAMES)
    assert found.notes == ()
    expected = [np.mean(logits.argmax(1)[labels == c] == c) for c in range(4)]
    assert found.recall_of("test").per_class.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_names_that_nothing_lists_are_read_in_training_data(tmp_path, suffix):
    def write(name, labels, predicted):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "npz":
            np.savez(path, labels=np.array(labels), predicted=np.array(predicted))
            return path
        return write_columns(path, labels, predicted=predicted)

    train = write("train", ["emu"] * 30 + ["cat"] * 200 + ["-100"], ["emu"] * 15 + ["yak"] * 15 + ["cat"] * 201)
    test = write("test", ["cat", "cat", "emu", "emu"], ["cat", "emu", "cat", "cat"])
    found = diagnose(test, train)
    assert found.names == ("cat", "emu", "yak")  # yak is predicted, but never true
    assert found.counts.tolist() == [200, 30, 0]
    assert found.recall_of("test").per_class.tolist()[:2] == [0.5, 0.0]
    assert found.notes == (f"The classes are the 3 names in {train}, sorted: nothing else names them.",)
    assert "The classes are the 3 names in" in render(report_of_diagnosis(found).page)


def test_names_are_not_guessed_where_the_order_matters(tmp_path, files):
    train = write_columns(tmp_path / "train.csv", ["b", "a"], predicted=["b", "a"])
    test = write_columns(tmp_path / "test.csv", [0, 1], predicted=[0, 1])
    with pytest.raises(
        ValueError, match=r"^Expected classes by name in .*test.csv, since nothing says how they are num"
    ):
        diagnose(test, train)
    other = write_columns(tmp_path / "other.csv", ["a", "c"], predicted=["a", "a"])
    with pytest.raises(
        ValueError, match=r"^Expected classes of .*other.csv to be among those of .*, but got 'c'; counts"
    ):
        diagnose(other, train)
    one = write_columns(tmp_path / "one.csv", ["a", "a"], predicted=["a", "a"])
    with pytest.raises(ValueError, match=r"^Expected two classes or more in .*one.csv, but it names only 'a'\.$"):
        diagnose(one, one)
    (tmp_path / "list.json").write_text("[4, 2]")
    with pytest.raises(ValueError, match="to be class indices, or named by the columns or --counts, but got 'b'"):
        diagnose(train, train, counts=tmp_path / "list.json")
    np.savez(tmp_path / "scores.npz", labels=np.array(["a", "b"]), logits=np.eye(2))
    with pytest.raises(ValueError, match="to be class indices, or named by the columns or --counts, but got 'b'"):
        diagnose(tmp_path / "scores.npz", train)


# A run's own predictions


def test_a_runs_own_predictions_do(finished):
    file = finished("softmax", validation=0.2) / "predictions.safetensors"
    found = diagnose(file, file, file)
    result = json.loads((file.parent / "result.json").read_text())
    for split in ("train", "val", "test"):
        recalls = found.recall_of(split)
        assert {"all": recalls.all, **recalls.groups} == pytest.approx(result["splits"][split]["recall"])
    assert found.counts.tolist() == result["counts"]
    assert found.names == tuple(result["classes"])
    assert found.groups.sizes == {"head": 3, "medium": 3, "tail": 4}  # by count it would be otherwise:
    assert Groups.from_counts(result["counts"]).sizes != found.groups.sizes
    assert found.cut == f"those of the run, from {file.parent / 'result.json'}"
    assert found.notes == (f"Class names and groups are those of the run, from {file.parent / 'result.json'}.",)
    asked = diagnose(file, file, head_over=50, tail_under=10)
    assert asked.groups == Groups.from_counts(result["counts"], 50, 10)
    assert asked.notes == (f"Class names are those of the run, from {file.parent / 'result.json'}.",)


def test_a_runs_counts_are_taken_where_nothing_else_tells_them(finished, tmp_path):
    file = finished("softmax", validation=0.2) / "predictions.safetensors"
    result = json.loads((file.parent / "result.json").read_text())
    found = diagnose(file)
    assert found.counts.tolist() == result["counts"]
    assert found.counts_from == f"from {file.parent / 'result.json'}"
    # Counts by name, in another order, do not move the run's groups.
    order = [7, 3, 0, 9, 1, 8, 2, 6, 4, 5]
    (tmp_path / "c.json").write_text(json.dumps({result["classes"][c]: result["counts"][c] for c in order}))
    assert summary(diagnose(file, counts=tmp_path / "c.json"))[:5] == summary(found)[:5]
    # Names of one's own replace the run's, and its groups with them.
    (tmp_path / "c.json").write_text(json.dumps({f"digit {c}": result["counts"][c] for c in range(10)}))
    own = diagnose(file, counts=tmp_path / "c.json")
    assert own.names[3] == "digit 3"
    assert own.groups == Groups.from_counts(result["counts"])
    assert own.notes == ()


def test_a_runs_step_after_training_is_told_of(finished):
    file = finished("logit-adjust-posthoc", validation=0.2) / "predictions.safetensors"
    assert "The run’s own step after training, adjust=1, is not in the logits that it stored." in diagnose(file).notes


@pytest.mark.parametrize("content", ["{", "[]", '{"classes": ["a"]}', '{"classes": 3, "groups": 4, "counts": 5}'])
def test_another_result_beside_the_file_is_left_alone(files, content):
    expected = summary(diagnose(files["test"], files["train"]))
    (files["test"].parent / "result.json").write_text(content)
    assert summary(diagnose(files["test"], files["train"])) == expected


def test_a_run_of_other_classes_beside_the_file_is_left_alone(files, finished):
    expected = summary(diagnose(files["test"], files["train"]))
    shutil.copy(finished("softmax", validation=0.2) / "result.json", files["test"].parent)
    assert summary(diagnose(files["test"], files["train"])) == expected  # four classes, and the run has ten


def test_a_split_that_a_run_does_not_have(finished, tmp_path):
    file = finished("softmax") / "predictions.safetensors"
    sentence = f"Expected {file} to have predictions on val, but it has none; train with --validation 0.1 to have them."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        diagnose(file, file, file)
    save_file({"test.labels": L, "test.logits": Z}, tmp_path / "large.safetensors")
    with pytest.raises(ValueError, match=r"to have predictions on train, but it has none: .*; give --counts\.$"):
        diagnose(tmp_path / "large.safetensors", tmp_path / "large.safetensors")


def test_samples_without_a_label_are_left_out_and_counted(tmp_path, files):
    labels, logits = make(0, 5)
    labels[3] = -100
    np.savez(tmp_path / "some.npz", labels=labels, logits=logits)
    found = read_outside(tmp_path / "some.npz", "test")
    assert found.left_out == 1
    assert len(found.labels) == len(found.logits) == 19
    page = report_of_diagnosis(diagnose(tmp_path / "some.npz", files["train"])).page
    assert "1 test sample without a label (-100), left out." in render(page)


L, Z = np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]])
BAD = {
    "no labels": ({"logits": Z}, "Expected {} to have `labels`, but it has `logits`."),
    "no scores": ({"labels": L}, "Expected {} to have `logits`, `probabilities` or `predicted`, but it has `labels`."),
    "rows": (
        {"labels": L, "logits": Z[:1]},
        "a row for each of 2 labels and two classes or more, but got shape (1, 2).",
    ),
    "one class": ({"labels": L * 0, "logits": Z[:, :1]}, "two classes or more, but got shape (2, 1)."),
    "shape": ({"labels": L, "logits": Z[None]}, "Expected logits of {} to be numbers of shape (N, C)"),
    "labels shape": ({"labels": Z, "logits": Z}, "Expected labels of {} to be one a sample, but got shape (2, 2)."),
    "range": ({"labels": L + 1, "logits": Z}, "Expected labels of {} to be in 0…1, but got 2 in sample 1."),
    "negative": ({"labels": L - 1, "logits": Z}, "Expected labels of {} to be in 0…1, but got -1 in sample 0."),
    "halves": ({"labels": L + 0.5, "logits": Z}, "Expected labels of {} to be whole numbers, but got 0.5."),
    "nan": (
        {"labels": L, "logits": Z * np.nan},
        "Expected logits of {} to be finite numbers, but got nan in sample 0.",
    ),
    "infinite": ({"labels": L, "logits": Z + np.inf}, "Expected logits of {} to be finite numbers, but got"),
    "all masked": (
        {"labels": L, "logits": Z - np.inf},
        "Expected logits of {} to be finite for a class of each sample",
    ),
    "sums": ({"labels": L, "probabilities": Z * 0.5}, "to sum to 1, but those of sample 0 sum to 0.5; give logits"),
    "below 0": ({"labels": L, "probabilities": Z * 2 - 0.5}, "Expected probabilities of {} to be in 0…1"),
    "lengths": ({"labels": L, "predicted": L[:1]}, "to predict a class for each of 2 labels, but got 1."),
    "empty": ({"labels": L[:0], "logits": Z[:0]}, "Expected {} to have samples, but it has none."),
    "unlabelled": ({"labels": L * 0 - 100, "logits": Z}, "to have samples with a label, but all are -100."),
    "truth": ({"labels": L == 1, "logits": Z}, "Expected labels of {} to be whole numbers, but got type bool."),
    "words": (
        {"labels": np.array(["a", "b"]), "logits": Z},
        "to be class indices, or named by the columns or --counts",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_content_is_one_sentence(tmp_path, name):
    arrays, sentence = BAD[name]
    path = tmp_path / "file.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=re.escape(sentence.format(path))) as error:
        read_outside(path, "test")
    assert "\n" not in str(error.value)


def test_bad_files_are_one_sentence(tmp_path):
    npy, npz, other = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, np.arange(3))
    np.savez_compressed(npz, labels=np.arange(1000), predicted=np.arange(1000))
    spoilt = npz.getvalue()[:100] + bytes(200) + npz.getvalue()[300:]
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("labels", "text, and no array")
    cases = {
        "a.pkl": (b"", "Expected .* to end in .npz, .safetensors, .csv, .tsv, .parquet, but it ends in .pkl"),
        "a.npz": (b"nothing", "Expected .*a.npz to be an npz file, but it is none"),
        "c.npz": (pickle.dumps({"labels": [1]}), "Expected .*c.npz to be an npz file, but it is none"),
        "d.npz": (npy.getvalue(), "Expected .*d.npz to be an npz file, but it is none"),
        "e.npz": (b"", "Expected .*e.npz to be an npz file, but it is none"),
        "f.npz": (spoilt, "Expected .*f.npz to be a whole npz file, but it is damaged"),
        "g.npz": (other.getvalue(), "Expected .*g.npz to have `labels`, but it has nothing"),
        "b.npz": (b"PK\x03\x04half", "Expected .* to be a whole npz file, but it is damaged"),
        "a.safetensors": (b"nothing", "Expected .* to be a whole safetensors file, but it is damaged"),
        "a.parquet": (b"nothing", "Expected .* to be a whole Parquet file, but it is not"),
        "a.csv": (b"label,predicted\n", "Expected .* to have a line of names and a line a sample, but it has 1 lines"),
        "b.csv": (b"label,predicted\n1,2,3\n", "Expected 2 values in every line of .*, but line 2 has 3"),
        "c.csv": (b"truth,predicted\n1,2\n", "Expected .* to have a column `label`, but it has `truth`, `predicted`"),
        "d.csv": (b"label,x\n1,2\n", "Expected .* to have columns `logit_…`, `probability_…` or `predicted`"),
        "e.csv": (b"label,logit_a,logit_b\n0,1,?\n", "Expected numbers in the columns `logit_…`"),
        "f.csv": (b"label,logit_a,logit_b\nz,1,2\n", "Expected labels of .* to be among a, b, but got 'z'"),
        "g.csv": (b"\xff\xfe", "Expected .* to be text in UTF-8"),
        "h.csv": (
            b"label,predicted\ncat,cat\n,cat\n",
            "Expected labels of .* to be one a sample, but sample 1 has none",
        ),
        "i.csv": (b"label,predicted\ncat,\n", "Expected predicted classes of .* to be one a sample, but sample 0 has"),
        "j.csv": (
            b"label,logit_a,logit_b,logit_a\n0,1,2,3\n",
            "Expected .* to have one column `logit_a`, but it has 2",
        ),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            read_outside(tmp_path / name, "test")
    with pytest.raises(FileNotFoundError, match=r"Expected predictions in .*, but there is no such file"):
        read_outside(tmp_path / "none.npz", "test")


def test_nothing_in_a_file_is_executed(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.array([{}], dtype=object), logits=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="but it holds Python objects"):
        read_outside(tmp_path / "a.npz", "test")


@pytest.mark.parametrize("content", ["{", "3", "[]", "[1.5, 2]", '["a"]', '{"a": "b"}', "[true, 1]"])
def test_bad_counts_are_one_sentence(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ValueError, match=r"Expected .*c\.json to (be JSON|hold a list of whole numbers)"):
        read_counts(tmp_path / "c.json")


def test_files_that_do_not_fit_together_are_refused(tmp_path, files):
    labels, logits = make(0, 4)
    np.savez(tmp_path / "three.npz", labels=labels.clip(max=2), logits=logits[:, :3])
    with pytest.raises(
        ValueError, match=r"Expected as many classes everywhere, but .*train.npz has 4 and .*three.npz has 3"
    ):
        diagnose(tmp_path / "three.npz", files["train"])
    (tmp_path / "five.json").write_text("[1, 2, 3, 4, 5]")
    with pytest.raises(ValueError, match="Expected as many classes everywhere, but the counts has 5 and"):
        diagnose(files["test"], counts=tmp_path / "five.json")
    with pytest.raises(ValueError, match=r"Expected `train` or `counts`, .* but got neither"):
        diagnose(files["test"])
    other = write_columns(tmp_path / "other.csv", labels, logits, names=["cat", "dog", "emu", "yak"])
    with pytest.raises(
        ValueError, match=r"Expected the same classes everywhere, but 'fox' is only among .*counts.json"
    ):
        diagnose(other, counts=files["counts"])
    guesses = write_columns(tmp_path / "guesses.csv", labels, predicted=labels + 3)
    with pytest.raises(ValueError, match=r"Expected predicted classes of .* to be in 0…3, but got 4"):
        diagnose(guesses, counts=files["counts"])


# What is found


def test_measures_are_those_of_the_library(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    groups = Groups.from_counts(COUNTS)
    assert found.groups == groups
    recalls = {}
    for split in ("train", "test"):
        with np.load(files[split]) as file:
            labels, predicted = torch.from_numpy(file["labels"]), torch.from_numpy(file["logits"]).argmax(1)
        right = torch.bincount(labels[labels == predicted], minlength=4)
        recalls[split] = recall(right, torch.bincount(labels, minlength=4), groups)
        assert found.recall_of(split).groups == recalls[split].groups
    expected = preference_scores(recalls["train"].per_class, recalls["test"].per_class, groups)
    assert found.preference.level == pytest.approx(expected.level)
    assert found.upwards > 90


def test_groups_are_thirds_where_a_cut_by_number_says_nothing(tmp_path, files):
    (tmp_path / "many.json").write_text("[900, 800, 700, 600]")
    found = diagnose(files["test"], counts=tmp_path / "many.json")
    assert found.groups.sizes == {"head": 1, "medium": 1, "tail": 2}
    assert found.cut.startswith("thirds of the classes by frequency")
    asked = diagnose(files["test"], counts=tmp_path / "many.json", head_over=750, tail_under=650)
    assert asked.groups.sizes == {"head": 2, "medium": 1, "tail": 1}


@pytest.mark.parametrize(
    ("counts", "asked", "advice"),
    [
        (
            COUNTS,
            {"head_over": 1000, "tail_under": 1},
            "numbers between 5 and 400, or neither: then it is 100 and 20, or thirds",
        ),
        ([50] * 4, {}, "each has 50 training samples."),
    ],
)
def test_one_group_gets_no_verdict(tmp_path, files, counts, asked, advice):
    (tmp_path / "c.json").write_text(json.dumps(counts))
    found = diagnose(files["test"], files["train"], counts=tmp_path / "c.json", **asked)
    assert found.groups.sizes == {"head": 0, "medium": 4, "tail": 0}
    text = " ".join(next_steps(found))
    assert "All classes are in one group, the medium, so nothing can be said of rare against common ones: " in text
    assert advice in text
    page = render(report_of_diagnosis(found).page)
    for said in (" ".join(said_of(found)), text, page):
        assert "behind the" not in said
        assert "little for a shift" not in said
        assert "than the medium" not in said
    assert "Model imbalance level I" not in page


def test_a_group_without_test_data_gets_no_verdict(tmp_path, files):
    labels, logits = make(0, 20)
    np.savez(tmp_path / "some.npz", labels=labels[labels != 3], logits=logits[labels != 3])
    text = " ".join(next_steps(diagnose(tmp_path / "some.npz", counts=files["counts"])))
    assert "There is no test sample of the tail" in text
    assert "little for a shift to win" not in text


def test_the_shift_is_found_on_validation_data_and_helps_the_tail(files):
    found = diagnose(files["test"], files["train"], files["val"], files["counts"])
    shift = found.shift
    assert 0.5 <= shift.strength <= 1.2  # the logits were made with 0.9 log N too much
    assert shift.change("test", "tail") > 10
    assert shift.change("test", "head") < 0
    with np.load(files["test"]) as file:
        labels, logits = torch.from_numpy(file["labels"]), torch.from_numpy(file["logits"])
    predicted = adjust_logits(logits, COUNTS, shift.strength).argmax(1)
    by_class = [100 * float((predicted[labels == c] == c).double().mean()) for c in range(4)]
    assert shift.after["test"]["all"] == pytest.approx(sum(by_class) / 4)
    assert shift.after["test"]["tail"] == pytest.approx(by_class[3])
    text = next_steps(found)[0]
    assert f"τ = {shift.strength:g}, chosen on 1,600 validation samples" in text
    assert "the tail wins" in text
    assert "the head pays" in text


def test_a_shift_at_the_end_of_the_grid_is_told_as_such(tmp_path, files):
    inside = diagnose(files["test"], val=files["val"], counts=files["counts"])
    assert "the largest" not in next_steps(inside)[0]
    for place, name in enumerate(("val", "test")):
        labels, logits = make(place, 300, bias=4.0, separation=1.5)
        np.savez(tmp_path / f"{name}.npz", labels=labels, logits=logits)
    found = diagnose(tmp_path / "test.npz", val=tmp_path / "val.npz", counts=files["counts"])
    assert 0 < found.shift.strength <= found.shift.best == 2
    assert "Recall on validation data is highest at τ = 2, the largest that is tried." in next_steps(found)[0]


def test_test_data_have_no_say_in_the_shift(files, tmp_path):
    first = diagnose(files["test"], counts=files["counts"], val=files["val"]).shift
    labels, logits = make(7, 50, bias=-2.0)
    np.savez(tmp_path / "other.npz", labels=labels, logits=logits)
    second = diagnose(tmp_path / "other.npz", counts=files["counts"], val=files["val"])
    assert second.shift.strength == first.strength
    assert second.shift.trace == first.trace
    assert second.shift.change("test", "all") < 0
    assert "That is worse than before" in next_steps(second)[0]


def test_without_validation_data_nothing_is_chosen(files):
    found = diagnose(files["test"], files["train"], counts=files["counts"])
    assert found.shift is None
    assert next_steps(found)[0].startswith("No validation data was given, so no post-hoc shift was chosen")
    page = render(report_of_diagnosis(found).page)
    assert "τ =" not in page
    assert "adjust_logits" not in page


def test_a_few_samples_do_not_choose_a_shift(tmp_path, files):
    labels = np.array([0] * 40 + [1] * 40 + [2] * 10 + [3])
    logits = np.zeros((len(labels), 4)) + 0.01 * np.log(COUNTS)
    logits[np.arange(len(labels)), labels] += 9
    logits[-1] = [0.5 + np.log(COUNTS)[0], 0, 0, np.log(COUNTS)[3]]  # one sample, which a shift of more than 0.5 wins
    np.savez(tmp_path / "val.npz", labels=labels, logits=logits)
    found = diagnose(files["test"], counts=files["counts"], val=tmp_path / "val.npz")
    assert found.shift.strength == 0
    assert found.shift.best > 0
    assert found.shift.lead == pytest.approx(25)
    assert (
        f"is ahead by 25.0 points there, within two standard errors ({2 * found.shift.error:.1f})"
        in next_steps(found)[0]
    )


def test_the_standard_error_by_hand():
    groups = Groups.from_indices(head=[0], tail=[1])
    labels = torch.tensor([0] * 4 + [1])
    one = torch.tensor([True, True, True, False, True])
    other = torch.tensor([True, True, False, True, False])
    # class 0 has 4: one right alone, one wrong alone, p = q = 1.5 / 5.5, variance 2p / 4; class 1: p = 0.6, q = 0.2
    expected = 100 * math.sqrt(2 * 1.5 / 5.5 / 4 + (0.6 + 0.2 - 0.4**2)) / 2
    assert _error(labels, one, other, groups) == pytest.approx(expected)
    only = Outside("x", "labels only", torch.tensor([0, 1]), torch.tensor([0, 0]), None, None, 0)
    with pytest.raises(ValueError, match="Expected logits or probabilities to shift, but got labels only"):
        choose_shift(only, only, torch.tensor([5, 1]), groups)


def test_labels_only_still_give_a_report(tmp_path, files):
    labels, logits = make(0, 20)
    path = write_columns(tmp_path / "only.csv", labels, predicted=logits.argmax(1))
    val = write_columns(tmp_path / "val.csv", labels, predicted=logits.argmax(1))
    found = diagnose(path, counts=files["counts"], val=val)
    assert found.shift is None
    assert f"{val} and {path} have predicted labels only." in next_steps(found)[0]
    assert f"; {path} has predicted labels only." in next_steps(diagnose(path, counts=files["counts"]))[0]
    text = render(report_of_diagnosis(found).page)
    assert "Target probability" not in text
    assert "calibration" not in text
    assert "there is no generalisation gap" in text
    assert text.count("<svg") == 1


def test_absent_classes_and_classes_never_seen_are_named(tmp_path, files):
    labels, logits = make(0, 20)
    np.savez(tmp_path / "some.npz", labels=labels[labels != 2], logits=logits[labels != 2])
    (tmp_path / "c.json").write_text(json.dumps({"cat": 400, "dog": 150, "emu": 30, "fox": 0}))
    found = diagnose(tmp_path / "some.npz", counts=tmp_path / "c.json", val=files["val"])
    text = render(report_of_diagnosis(found).page)
    assert "1 class without a test sample, left out of every mean: emu." in text
    assert "1 class without a training sample: fox." in text


def test_a_tail_that_is_behind_for_other_reasons_gets_other_advice(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 50)
    predicted = labels.copy()
    rare = labels >= 4
    predicted[rare] = np.where(generator.random(rare.sum()) < 0.5, labels[rare], 9 - labels[rare])  # 4 and 5 swapped
    (tmp_path / "c.json").write_text("[900, 800, 700, 600, 5, 5]")
    path = write_columns(tmp_path / "a.csv", labels, predicted=predicted)
    found = diagnose(path, counts=tmp_path / "c.json")
    assert found.upwards == 0
    assert "Only 0 % of the errors on the tail go to commoner classes" in " ".join(next_steps(found))
    even = diagnose(write_columns(tmp_path / "b.csv", labels, predicted=labels), counts=tmp_path / "c.json")
    assert "The tail is not behind the head" in " ".join(next_steps(even))
    assert "recognised as often as the head" in " ".join(said_of(even))


def test_one_file_for_two_splits_is_refused(files):
    """With its logits; the command's test has labels only. A run's file, which has each split apart, is taken above."""
    with pytest.raises(ValueError, match=r"^Expected predictions of its own .*test\.npz for both train and test\.$"):
        diagnose(files["test"], files["test"])


def test_a_shift_is_not_chosen_on_the_data_that_it_is_judged_by(files):
    with pytest.raises(ValueError, match=r"^Expected validation data of its own .* holds the same predictions as"):
        diagnose(files["test"], counts=files["counts"], val=files["test"])


# The page


def test_a_split_has_one_colour_in_all_figures(files):
    drawings = report_of_diagnosis(diagnose(files["test"], files["train"], counts=files["counts"])).drawings
    looks = {}
    for name in ("class-recall", "target-probability"):
        lines = drawings[name].figure.axes[0].get_lines()
        looks[name] = {line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
        assert set(looks[name]) == {"test", "training"}
    assert looks["class-recall"] == looks["target-probability"]
    assert looks["class-recall"]["test"] != looks["class-recall"]["training"]
    alone = report_of_diagnosis(diagnose(files["test"], counts=files["counts"])).drawings["target-probability"]
    (line,) = alone.figure.axes[0].get_lines()
    assert line.get_color() == looks["class-recall"]["test"][0]


@pytest.mark.parametrize(
    ("right", "shown"),
    [
        ([10, 9, 8, 7, 6, 5], ["class 5", "class 4"]),  # a third of six
        ([10, 10, 10, 10, 10, 2], ["class 5"]),  # only one is below the mean
        ([9, 8], ["class 1"]),
        ([1] * 1 + [9] * 29, ["class 0"]),
        (list(range(10)) * 3, ["class 0", "class 10", "class 20", "class 1", "class 11", "class 21"]),  # six at most
    ],
)
def test_the_worst_are_few_and_below_the_mean(tmp_path, right, shown):
    labels = np.repeat(np.arange(len(right)), 10)
    guesses = [c if n < good else (c + 1) % len(right) for c, good in enumerate(right) for n in range(10)]
    path = write_columns(tmp_path / "a.csv", labels, predicted=guesses)
    (tmp_path / "c.json").write_text(json.dumps([500 - c for c in range(len(right))]))
    page = report_of_diagnosis(diagnose(path, counts=tmp_path / "c.json")).page
    section = next(one for one in page.sections if one.name == "worst")
    cards = next(block for block in section.blocks if isinstance(block, ClassCards)).cards
    assert {card.name for card in cards} == set(shown)
    assert len(cards) == len(shown)


@pytest.mark.parametrize(("right", "words"), [(10, "No class has an error."), (7, "All classes have the same recall.")])
def test_no_class_is_the_worst_of_equals(tmp_path, right, words):
    labels = np.repeat(np.arange(3), 10)
    guesses = [c if n < right else (c + 1) % 3 for c in range(3) for n in range(10)]
    (tmp_path / "c.json").write_text("[300, 50, 5]")
    found = diagnose(write_columns(tmp_path / "a.csv", labels, predicted=guesses), counts=tmp_path / "c.json")
    assert words in render(report_of_diagnosis(found).page)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_numbers_of_one_file_are_all_indices_or_all_names(tmp_path, suffix):
    """Classes called 1, 2, 3; a model that never predicts index 0 has predictions that could be names."""
    labels, predicted = [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 2, 2]
    path = tmp_path / f"some.{suffix}"
    if suffix == "npz":
        np.savez(path, labels=np.array(labels), predicted=np.array(predicted))
    elif suffix == "parquet":
        pq.write_table(pa.table({"label": labels, "predicted": predicted, "boxes": [[0.5]] * 5 + [[]]}), path)
    else:
        rows = "".join(f"{label},{one}\n" for label, one in zip(labels, predicted, strict=True))
        path.write_text(f"label,predicted\n{rows}", "utf-8")
    found = read_outside(path, "test", ["1", "2", "3"])
    assert found.labels.tolist() == labels
    assert found.predicted.tolist() == predicted

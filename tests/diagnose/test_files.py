"""Files of predictions: what they may hold, and what is refused."""

import io
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.diagnose.predictions import make, read_predictions, write_columns

from longtail.diagnosis import diagnose
from longtail.diagnosis.inputs import read_counts

# Contents of files


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("npz", "logits"),
        ("npz", "predicted"),
        ("safetensors", "probabilities"),
        ("csv", "probabilities"),
        ("csv", "predicted"),
        ("parquet", "logits"),
    ],
)
def test_all_formats_give_the_same(tmp_path, suffix, kind):
    labels, logits = make(0, 10)
    scores = logits if kind == "logits" else softmax(logits.astype(np.float64))
    path = tmp_path / f"file.{suffix}"  # in capitals below: the case of suffixes does not matter
    if suffix in {"npz", "safetensors"}:
        arrays = {"labels": labels, kind: logits.argmax(1) if kind == "predicted" else scores}
        np.savez(path, **arrays) if suffix == "npz" else save_file(arrays, path)
    elif kind == "predicted":
        write_columns(path, labels, predicted=logits.argmax(1))
    else:
        write_columns(path, labels, scores, kind={"logits": "logit", "probabilities": "probability"}[kind])
    found = read_predictions(path.rename(tmp_path / f"file.{suffix.upper()}"), "test")
    assert found.labels.tolist() == labels.tolist()
    assert found.predicted.tolist() == logits.argmax(1).tolist()
    assert found.kind == kind
    if kind == "predicted":
        assert found.logits is None
    else:
        expected = torch.from_numpy(logits).double().log_softmax(1)
        torch.testing.assert_close(found.logits.double().log_softmax(1), expected, atol=1e-5, rtol=0)


def test_samples_without_a_label_are_ignored_and_counted(tmp_path, files):
    labels, logits = make(0, 5)
    labels[3] = -100
    np.savez(tmp_path / "some.npz", labels=labels, logits=logits)
    found = read_predictions(tmp_path / "some.npz", "test")
    assert found.ignored == 1
    assert len(found.labels) == len(found.logits) == 19
    page = diagnose(tmp_path / "some.npz", files["train"]).report()
    assert "1 test sample without a label (-100) ignored." in page.html


# Errors


L, Z = np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]])
BAD = {
    "no labels": ({"logits": Z}, 'Expected {} to have "labels", in a table "label", but it has "logits".'),
    "no scores": ({"labels": L}, 'Expected {} to have "logits", "probabilities" or "predicted", but it has "labels".'),
    "rows": (
        {"labels": L, "logits": Z[:1]},
        "of shape (2, C), with one row per label and at least two classes, but got float64 of shape (1, 2).",
    ),
    "one class": ({"labels": L * 0, "logits": Z[:, :1]}, "at least two classes, but got float64 of shape (2, 1)."),
    "shape": ({"labels": L, "logits": Z[None]}, "Expected logits of {} to be numbers of shape (2, C)"),
    "labels shape": ({"labels": Z, "logits": Z}, "Expected labels of {} to have one dimension, but got shape (2, 2)."),
    "range": ({"labels": L + 1, "logits": Z}, "Expected labels of {} to be in 0…1, but got 2 in sample 1."),
    "negative": ({"labels": L - 1, "logits": Z}, "Expected labels of {} to be in 0…1, but got -1 in sample 0."),
    "halves": ({"labels": L + 0.5, "logits": Z}, "Expected labels of {} to be whole numbers, but got 0.5."),
    "infinite labels": ({"labels": L + np.inf, "logits": Z}, "Expected labels of {} to be whole numbers, but got inf."),
    "nan": (
        {"labels": L, "logits": Z * np.nan},
        "Expected logits of {} to be finite numbers, but got nan in sample 0.",
    ),
    "infinite": ({"labels": L, "logits": Z + np.inf}, "Expected logits of {} to be finite numbers, but got"),
    "all masked": (
        {"labels": L, "logits": Z - np.inf},
        "Expected logits of {} to be finite numbers, but got -inf in sample 0.",
    ),
    "sums": ({"labels": L, "probabilities": Z * 0.5}, "with sum 1, but those of sample 0 sum to 0.5; give logits"),
    "below 0": ({"labels": L, "probabilities": Z * 2 - 0.5}, "Expected probabilities of {} to be in 0…1"),
    "lengths": ({"labels": L, "predicted": L[:1]}, "to have 2 predicted classes, but got shape (1,)."),
    "empty": ({"labels": L[:0], "logits": Z[:0]}, "Expected {} to have samples with a label, but it has none."),
    "unlabelled": ({"labels": L * 0 - 100, "logits": Z}, "to have samples with a label, but it has none."),
    "truth": ({"labels": L == 1, "logits": Z}, "Expected labels of {} to be whole numbers, but got type bool."),
    "words": (
        {"labels": np.array(["a", "b"]), "logits": Z},
        "to be class indices, or names that columns or --counts list",
    ),
}


def test_bad_content(tmp_path):
    path = tmp_path / "file.npz"
    for arrays, sentence in BAD.values():
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=re.escape(sentence.format(path))) as error:
            read_predictions(path, "test")
        assert "\n" not in str(error.value)


def test_bad_files(tmp_path):
    npy, npz, other = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, np.arange(3))
    np.savez_compressed(npz, labels=np.arange(1000), predicted=np.arange(1000))
    spoilt = npz.getvalue()[:100] + bytes(200) + npz.getvalue()[300:]
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("labels", "text, and no array")
    cases = {
        "a.pkl": (b"", "Expected .* to end in .npz, .safetensors, .csv, .tsv, .parquet, but it ends in .pkl"),
        "a.npz": (b"nothing", "Expected .*a.npz to be an npz file"),
        "c.npz": (pickle.dumps({"labels": [1]}), "Expected .*c.npz to be an npz file"),
        "d.npz": (npy.getvalue(), "d.npz: Expected an npz file .*, but it is an npy file"),
        "e.npz": (b"", "Expected .*e.npz to be an npz file"),
        "f.npz": (spoilt, "Expected .*f.npz to be an npz file"),
        "g.npz": (other.getvalue(), 'Expected .*g.npz to have "labels", in a table "label", but it has'),
        "b.npz": (b"PK\x03\x04half", "Expected .*b.npz to be an npz file"),
        "a.safetensors": (b"nothing", "Expected .* to be a whole safetensors file, but it is damaged"),
        "a.parquet": (b"nothing", "Expected .* to be a whole Parquet file, but it is damaged"),
        "a.csv": (b"label,predicted\n", "Expected .* to have a row per sample, but it has none"),
        "b.csv": (b"label,predicted\n1,2,3\n", "Expected 2 values in row 1 of .*, as in its first line, but got 3"),
        "k.csv": (b"path,predicted,confidence\na.png,cat,0.9\n", 'Expected .* "confidence"; `longtail evaluate RUN '),
        "c.csv": (b"truth,predicted\n1,2\n", 'Expected .* to have "labels", in a table "label", but it has "truth"'),
        "d.csv": (b"label,x\n1,2\n", 'Expected .* to have "logits", "probabilities" or "predicted"'),
        "e.csv": (b"label,logit_a,logit_b\n0,1,?\n", 'Expected numbers in the columns "logit_…"'),
        "f.csv": (b"label,logit_a,logit_b\nz,1,2\n", "Expected labels of .* to be among a, b, but got 'z'"),
        "g.csv": (b"\xff\xfe", "Expected .* to be text in UTF-8"),
        "h.csv": (
            b"label,predicted\ncat,cat\n,cat\n",
            'Expected "label" of .* for every sample, but sample 1 has none',
        ),
        "i.csv": (b"label,predicted\ncat,\n", 'Expected "predicted" of .* for every sample, but sample 0 has'),
        "j.csv": (
            b"label,logit_a,logit_b,logit_a\n0,1,2,3\n",
            'Expected .* to have one column "logit_a", but it has 2',
        ),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            read_predictions(tmp_path / name, "test")
    with pytest.raises(FileNotFoundError, match=r"Expected predictions in .*, but there is no such file"):
        read_predictions(tmp_path / "none.npz", "test")


def test_nothing_in_a_file_is_executed(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.array([{}], dtype=object), logits=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"arrays of numbers or text .* not read because they can run code"):
        read_predictions(tmp_path / "a.npz", "test")


def test_bad_counts(tmp_path):
    for content in ("{", "[" * 100_000, "3", "[]", "[1.5, 2]", '["a"]', '{"a": "b"}', "[true, 1]"):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(ValueError, match=r"Expected .*c\.json to (be JSON|hold whole numbers)"):
            read_counts(tmp_path / "c.json")


def test_files_must_fit_together(tmp_path, files):
    labels, logits = make(0, 4)
    np.savez(tmp_path / "three.npz", labels=labels.clip(max=2), logits=logits[:, :3])
    with pytest.raises(
        ValueError, match=r"Expected the same number of classes, but got 4 in .*train.npz and 3 in .*three.npz"
    ):
        diagnose(tmp_path / "three.npz", files["train"])
    (tmp_path / "five.json").write_text("[1, 2, 3, 4, 5]")
    with pytest.raises(ValueError, match="Expected the same number of classes, but got 5 in the counts and"):
        diagnose(files["test"], counts=tmp_path / "five.json")
    with pytest.raises(ValueError, match=r"Expected `train` or `counts`, .* but got neither"):
        diagnose(files["test"])
    other = write_columns(tmp_path / "other.csv", labels, logits, names=["cat", "dog", "emu", "yak"])
    with pytest.raises(ValueError, match=r"Expected the same classes in all files, but 'fox' is only in .*counts.json"):
        diagnose(other, counts=files["counts"])
    guesses = write_columns(tmp_path / "guesses.csv", labels, predicted=labels + 3)
    with pytest.raises(ValueError, match=r"Expected predicted classes of .* to be in 0…3, but got 4"):
        diagnose(guesses, counts=files["counts"])


def test_split_that_a_run_does_not_have(finished, tmp_path):
    file = finished("softmax") / "predictions.safetensors"
    sentence = f"Expected {file} to have predictions on val, but it has none; train with --validation 0.1 to have them."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        diagnose(file, file, file)
    save_file({"test.labels": L, "test.logits": Z}, tmp_path / "large.safetensors")
    with pytest.raises(ValueError, match=r"to have predictions on train, but it has none: .*; give --counts\.$"):
        diagnose(tmp_path / "large.safetensors", tmp_path / "large.safetensors")


@pytest.mark.parametrize(
    "labels", [[0, 1, 2**31 - 1], [0, 1, 2, 1_400], range(10_001)], ids=["huge", "gap", "one each"]
)
def test_ids_are_not_labels(labels):
    """They are refused before memory is allocated by the largest; with counts, the number of classes is known."""
    given = {"labels": list(labels), "predicted": [0] * len(labels)}
    with pytest.raises(ValueError, match=rf"{len(labels):,} different ones, up to {max(labels)}; is a column of IDs"):
        diagnose(given, given | {"predicted": [1] * len(labels)})
    if max(labels) < 1e6:
        assert len(diagnose(given, counts=[5] * (max(labels) + 1)).names) == max(labels) + 1


def test_classes_that_do_not_occur_are_allowed():
    """Ten of the thousand classes of ImageNet, with indices only."""
    labels = [3, 99, 120, 340, 400, 512, 700, 801, 900, 999] * 2
    found = diagnose({"labels": labels, "predicted": labels}, {"labels": labels * 2, "predicted": labels * 2})
    assert len(found.names) == 1000

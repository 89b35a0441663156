"""`longtail predict`: images as files, folders and lists; labels and probabilities as CSV and JSON."""

import csv
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.cli.conftest import one_sentence

import longtail
from longtail.cli import predict
from longtail.data import load as load_data

DIGITS = load_data("digits-lt").test


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Write a folder of digits with nested folders, names that CSV must quote, and files that are not images."""
    monkeypatch.chdir(tmp_path)
    names = ["b.png", "a, b.png", 'say "five".PNG', "inner/deep/ü.bmp", "inner/two\nlines.png", "=1+2.png"]
    for number, name in enumerate(names):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(DIGITS.images[50 * number][0].numpy()).save(path)
    (tmp_path / "photos" / "notes.txt").write_text("b.png")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"no image")
    return names


def expected(folder, names, top=1):
    """Return the predictions of the model."""
    model = longtail.load(folder)
    _, probabilities = model.predict([f"photos/{name}" for name in names])
    best = probabilities.topk(top)
    return [
        [(model.class_names[c], pytest.approx(p, rel=1e-5)) for c, p in zip(cs, ps, strict=True)]
        for cs, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


# A linear, a class-scaled and a ResLT head, and a post-hoc correction.
@pytest.mark.parametrize("method", ["cbs", "lws", "reslt", "logit-adjust-posthoc"])
def test_label_and_probability_of_each_image(run, finished, photos, method):
    code, out, err = run("predict", finished(method), "photos")
    assert (code, err) == (0, "")
    rows = table(out)
    assert [row["path"] for row in rows] == [f"photos/{name}" for name in sorted(photos, key=lambda n: n.split("/"))]
    assert list(rows[0]) == ["path", "predicted", "confidence"]
    names = [row["path"].removeprefix("photos/") for row in rows]
    assert [[(row["predicted"], float(row["confidence"]))] for row in rows] == expected(finished(method), names)


def test_top_k_classes(run, finished, photos):
    folder = finished("cbs")
    code, out, _ = run("predict", folder, "photos/b.png", "photos/=1+2.png", "--top", "3", "--batch-size", "1")
    assert code == 0
    header, *rows = csv.reader(io.StringIO(out))
    assert header == ["path", "predicted", "confidence", "predicted_2", "confidence_2", "predicted_3", "confidence_3"]
    best = expected(folder, ["b.png", "=1+2.png"], 3)
    assert [[(row[i], float(row[i + 1])) for i in (1, 3, 5)] for row in rows] == best
    code, out, _ = run("predict", folder, "photos", "--top", "99", "--format", "json")
    assert code == 0
    for image in json.loads(out):
        assert sum(value for name, value in image.items() if "confidence" in name) == pytest.approx(1, abs=1e-4)


def test_json_is_an_array_with_one_image_per_line(run, finished, photos, tmp_path):
    folder = finished("cbs")
    code, out, err = run("predict", folder, "photos", "--format", "json", "--out", tmp_path / "labels.json")
    assert (code, out, err) == (0, "", "")
    text = (tmp_path / "labels.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert [json.loads(line.rstrip(",")) for line in text.splitlines()[1:-1]] == found
    names = [one["path"].removeprefix("photos/") for one in found]
    assert sorted(names) == sorted(photos)
    assert [[(one["predicted"], one["confidence"])] for one in found] == expected(folder, names)


def test_paths_in_a_list_are_relative_to_the_list(run, finished, photos, tmp_path):
    absolute = tmp_path / "photos" / "b.png"
    (tmp_path / "photos" / "some.txt").write_text(f"a, b.png\n\ninner/deep/ü.bmp\r\n{absolute}\n", encoding="utf-8")
    (tmp_path / "photos" / "some.csv").write_text('label,path\n5,"a, b.png"\n1,=1+2.png\n')
    (tmp_path / "photos" / "some.tsv").write_text("path\tlabel\nb.png\t1\n")
    _, out, _ = run("predict", finished("cbs"), "photos/some.txt", "photos/some.csv", "photos/some.tsv", "photos/b.png")
    assert [row["path"] for row in table(out)] == [
        "photos/a, b.png",
        "photos/inner/deep/ü.bmp",
        str(absolute),
        "photos/a, b.png",
        "photos/=1+2.png",
        "photos/b.png",
        "photos/b.png",
    ]


@pytest.fixture
def digits(photos, tmp_path):
    """A Parquet list of digits with other columns, whose images are in another folder."""
    folder = tmp_path / "lists"
    folder.mkdir()
    rows = {"file": ["b.png", "inner\\deep\\ü.bmp"], "digit": ["5", "1"]}
    pq.write_table(pa.table(rows), folder / "train.parquet")
    return folder


def test_every_list_that_is_trained_on(run, digits):
    """The run's recipe says how lists are read, so that predict needs no flags."""
    settings = ["--path-column", "File", "--label-column", "digit", "--image-root", "photos"]
    model = ["--model", "resnet20", "--epochs", "1", "--validation", "0", "--device", "cpu"]
    assert run("train", "lists", "--method", "softmax", *settings, *model, "--out", "run")[0] == 0
    images = [("photos/b.png", "5"), ("photos/inner/deep/ü.bmp", "1")]
    for given in ("lists/train.parquet", "lists"):
        code, out, err = run("predict", "run", given)
        assert (code, err) == (0, "")
        assert [(row["path"], row["label"]) for row in table(out)] == images


def test_flags_say_how_a_list_is_read(run, finished, digits):
    flags = ["--path-column", "file", "--image-root", "photos"]
    code, out, err = run("predict", finished("cbs"), "lists/train.parquet", *flags)
    assert (code, err) == (0, "")
    assert [row["path"] for row in table(out)] == ["photos/b.png", "photos/inner/deep/ü.bmp"]


def test_a_text_list_may_have_labels(run, finished, photos):
    Path("photos/some.txt").write_text("a, b.png 5\nb.png 1\n")
    _, out, _ = run("predict", finished("cbs"), "photos/some.txt")
    assert [(row["path"], row["label"]) for row in table(out)] == [("photos/a, b.png", "5"), ("photos/b.png", "1")]


def test_unreadable_images_stop_or_are_skipped(run, finished, photos, tmp_path):
    folder = finished("cbs")
    (tmp_path / "photos" / "c.png").write_bytes(b"")
    whole = (tmp_path / "photos" / "b.png").read_bytes()
    (tmp_path / "photos" / "d.png").write_bytes(whole[:40])
    code, out, err = run("predict", folder, "photos", "--out", "labels.csv")
    assert (code, out) == (2, "")
    assert err.startswith(f"longtail: Expected {tmp_path}/photos/c.png to be an image, but it is empty")
    assert err.endswith("d.png); --bad-images skip leaves out such images.\n")
    assert not (tmp_path / "labels.csv").exists()  # no partial file
    code, _, err = run("predict", folder, "photos", "--bad-images", "skip", "--out", "labels.csv")
    assert code == 0
    assert err.startswith("2 of 8 images could not be read: ")
    assert "c.png: it is empty" in err
    assert "d.png" in err
    rows = table((tmp_path / "labels.csv").read_text(encoding="utf-8"))
    assert sorted(row["path"] for row in rows) == sorted(f"photos/{name}" for name in photos)
    again, _, err = run("predict", folder, "photos/c.png", "photos/nowhere.png", "--bad-images", "skip")
    assert again == 1
    assert "2 of 2 images could not be read" in err
    assert "it does not exist" in err


def test_file_name_that_is_not_utf8(run, finished, photos):
    Path("photos/b.png").rename(os.fsdecode(b"photos/\xff.png"))
    code, out, err = run("predict", finished("cbs"), "photos")
    assert (code, err) == (0, "")
    assert "photos/\ufffd.png" in {row["path"] for row in table(out)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.png"], "{here}/nowhere.png to be an image, but it does not exist; --bad-images skip"),
        (["empty"], "Expected images in empty"),
        (["empty/none.txt"], "Expected images"),
        (["empty/wrong.csv"], 'Expected empty/wrong.csv to have a column "path", but got file, label;'),
        (["photos", "--device", "abacus"], "--device"),
        (["photos", "--out", "nowhere/labels.csv"], "--out to be in an existing folder"),
    ],
)
@pytest.mark.usefixtures("photos")
def test_wrong_arguments(run, finished, words, message):
    Path("empty").mkdir()
    Path("empty/none.txt").write_text("\n")
    Path("empty/wrong.csv").write_text("file,label\na.png,1\n")
    code, out, err = run("predict", finished("cbs"), *words)
    assert (code, out) == (2, "")
    assert message.format(here=Path.cwd()) in one_sentence(err)


def test_nothing_is_printed_if_a_file_is_missing(run, finished, photos):
    code, out, err = run("predict", finished("cbs"), "photos", "nowhere.png", "--batch-size", 1)
    assert (code, out) == (2, "")
    assert err.startswith(f"longtail: Expected {Path.cwd()}/nowhere.png to be an image, but it does not exist; ")
    Path("bad.png").write_bytes(b"no image")
    code, out, err = run("predict", finished("cbs"), "bad.png")
    assert (code, out) == (2, "")
    assert "bad.png" in err


def test_missing_run(run, photos):
    code, _, err = run("predict", "nowhere", "photos")
    assert code == 2
    assert "a finished run in nowhere" in one_sentence(err)


def test_json_without_predictions_is_an_empty_array():
    file = io.StringIO()
    predict._write_json([], [], file)
    assert json.loads(file.getvalue()) == []


def test_output_is_an_input_of_diagnose(run, finished, photos, tmp_path):
    """Labels of a list come along, and the probabilities of all classes are in the columns that `diagnose` reads."""
    folder = finished("cbs")
    (tmp_path / "photos" / "known.csv").write_text('label,path\n5,"a, b.png"\n1,b.png\n')
    code, _, _ = run("predict", folder, "photos/known.csv", "--all-classes", "--out", "known.csv")
    assert code == 0
    rows = table(Path("known.csv").read_text())
    assert [(row["path"], row["label"]) for row in rows] == [("photos/a, b.png", "5"), ("photos/b.png", "1")]
    _, probabilities = longtail.load(folder).predict(["photos/a, b.png", "photos/b.png"])
    shown = [[float(row[f"probability_{c}"]) for c in range(10)] for row in rows]
    assert shown == [pytest.approx(row, rel=1e-5) for row in probabilities.tolist()]
    found = longtail.diagnose("known.csv", counts=[10] * 10)
    assert found.splits["test"].labels.tolist() == [5, 1]

"""``longtail diagnose``: the page, the summary, and wrong arguments."""

import html
import json

import numpy as np
import pytest
from tests.cli.conftest import one_sentence


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("train", "val", "test"):
        labels = np.repeat(np.arange(3), 100)
        logits = generator.normal(size=(300, 3)) + np.log([1000, 100, 10])
        logits[np.arange(300), labels] += 2.5
        np.savez(tmp_path / f"{name}.npz", labels=labels, logits=logits)
    (tmp_path / "counts.json").write_text(json.dumps({"ant": 1000, "bee": 100, "cow": 10}))
    return tmp_path


def test_page_is_written_and_the_summary_is_printed(run, files):
    given = [f"--{name}={files / f'{name}.npz'}" for name in ("train", "val", "test")]
    code, out, err = run("diagnose", *given, f"--counts={files / 'counts.json'}", f"--out={files / 'd.html'}")
    assert (code, err) == (0, "")
    assert "Apply a post-hoc shift, without training again: `longtail.adjust_logits(logits, counts, tau=" in out
    text = (files / "d.html").read_text(encoding="utf-8")
    assert "What to try next" in text
    assert "cow" in text
    assert "longtail diagnose --train" in text


def test_without_validation_data(run, files):
    code, out, _ = run(
        "diagnose", "--test", files / "test.npz", "--counts", files / "counts.json", "--out", files / "d.html",
        "--figures", files / "figures", "--title", "My model",
    )  # fmt: skip
    assert code == 0
    assert "Without validation data, no post-hoc shift was chosen" in out
    assert "<title>My model</title>" in (files / "d.html").read_text(encoding="utf-8")
    assert (files / "figures" / "class-recall.svg").exists()


def test_page_has_the_command_that_repeats_it(run, files, monkeypatch):
    monkeypatch.chdir(files)
    given = ["diagnose", "--test", "test.npz", "--counts", "counts.json", "--groups", "500,50"]
    assert run(*given)[0] == 0
    command = f"longtail {' '.join(given)}"
    assert f"{command}<" in (files / "diagnosis.html").read_text(encoding="utf-8")
    assert run(*given, "--out", "a b.html", "--figures", "drawn", "--title", "Mine")[0] == 0
    page = html.unescape((files / "a b.html").read_text(encoding="utf-8"))
    assert f"{command} --out 'a b.html' --figures drawn --title Mine<" in page


def test_source_of_class_names_and_groups_is_printed(run, files, finished):
    (files / "train.csv").write_text("label,predicted\n" + "cow,cow\n" * 300 + "ant,cow\n" * 30)
    (files / "test.csv").write_text("label,predicted\ncow,cow\nant,cow\n")
    code, out, err = run(
        "diagnose", "--test", files / "test.csv", "--train", files / "train.csv", "--out", files / "d.html"
    )
    assert (code, err) == (0, "")
    assert "The classes are the 2 names in the files, sorted.\n" in out
    folder = finished("softmax", validation=0.2)
    code, out, err = run("diagnose", "--test", folder / "predictions.safetensors", "--out", files / "d.html")
    assert (code, err) == (0, "")
    assert f"Class names and groups come from the run ({folder / 'result.json'}).\n" in out


def test_help_describes_the_formats(run):
    code, out, _ = run("diagnose", "--help")
    assert code == 0
    for word in (".npz, .safetensors", "probability_NAME", "-100", "maps each class name"):
        assert word in out


def test_same_file_for_two_splits_is_refused(run, files, monkeypatch):
    monkeypatch.chdir(files)
    labels = np.repeat(np.arange(3), 4)
    np.savez("test.npz", labels=labels, predicted=labels)
    (files / "link.npz").symlink_to("test.npz")
    code, out, err = run("diagnose", "--test", "test.npz", "--val", "link.npz", "--counts", "counts.json")
    assert (code, out) == (2, "")
    assert "the same predictions for --val and --test" in one_sentence(err)
    assert not (files / "diagnosis.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Expected --train or --counts"),
        (["--counts", "counts.json", "--groups", "200"], "--groups"),
    ],
)
def test_errors_name_flags(run, files, monkeypatch, arguments, said):
    monkeypatch.chdir(files)
    code, out, err = run("diagnose", "--test", "test.npz", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "`" not in err


def test_run_folder_is_enough(run, files, finished):
    folder = finished("softmax", validation=0.2)
    code, named, err = run("diagnose", folder, "--out", files / "d.html")
    assert (code, err) == (0, "")
    assert named == run("diagnose", "--test", folder, "--out", files / "d.html")[1]
    assert run("diagnose", folder, "--test", folder)[0] == 2
    assert "Expected the folder of a run or --test, but got neither" in one_sentence(run("diagnose")[2])


def test_missing_file(run, files):
    code, out, err = run(
        "diagnose", "--test", files / "none.npz", "--counts", files / "counts.json", "--out", files / "d.html"
    )
    assert (code, out) == (2, "")
    assert "none.npz" in one_sentence(err)
    assert not (files / "d.html").exists()

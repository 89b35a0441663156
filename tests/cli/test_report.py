"""``longtail report``, as a person uses it."""

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from longtail.methods import METHODS
from longtail.study.record import StudyRecord, write_study


@pytest.fixture(scope="module")
def runs(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("softmax", "cbs"):
        shutil.copytree(finished(method, evaluate_every=1), folder / method)
    return folder


def test_the_page_and_its_figures_are_written(run, runs, tmp_path):
    code, out, err = run("report", runs, "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "Report: " in out
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("\n<!doctype html>") or text.lstrip().startswith("<!doctype html>")
    assert f"longtail report {runs}" in text
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    for name in (
        "trade-off",
        "imbalance-level",
        "class-recall",
        "class-probability",
        "target-probability",
        "gradients",
    ):
        assert {f"digits-lt-50-{name}.{suffix}" for suffix in ("svg", "pdf", "png")} <= figures
    assert "digits-lt-50-curves-softmax.svg" in figures


def test_the_reference_is_the_studys_unless_it_is_given(run, finished, tmp_path):
    for method in ("softmax", "balanced-softmax"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), tmp_path / "s" / f"{method}-{seed}")
    planned = [f"{method}-{seed}" for method in ("softmax", "balanced-softmax") for seed in (0, 1)]
    write_study(tmp_path / "s", StudyRecord("longtail study x", "softmax", "greater", planned))
    for flags, against in (((), "Softmax"), (("--reference", "balanced-softmax"), "Balanced Softmax")):
        code, _, err = run("report", tmp_path / "s", "--no-figures", *flags)
        assert (code, err) == (0, "")
        text = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
        assert f"against {against} (paired t-test, one-sided)" in text
        assert shlex.join(["longtail", "report", str(tmp_path / "s"), *flags, "--no-figures"]) in text
    code, _, err = run("report", tmp_path / "s", "--reference", "balanced")
    assert (code, err) == (
        2,
        "longtail: Expected --reference to be a method that was run (balanced-softmax, softmax), but got 'balanced'.\n",
    )


def test_without_figures_only_the_page_is_written(run, runs, tmp_path):
    code, _, _ = run("report", runs, "--out", tmp_path / "page.html", "--no-figures")
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Expected a folder of runs, but got none."),
        (["/nowhere"], "Expected a folder of runs, but /nowhere does not exist."),
    ],
)
def test_mistakes_are_one_sentence(run, arguments, sentence):
    assert run("report", *arguments) == (2, "", f"longtail: {sentence}\n")


def test_a_page_must_be_html(run, runs, tmp_path):
    code, _, err = run("report", runs, "--out", tmp_path / "page.txt")
    assert code == 2
    assert err.startswith("longtail: Expected --out to end in .html, but got")
    assert not list(tmp_path.iterdir())


def test_what_a_method_of_ones_own_left_is_shown_without_its_file(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    flags = ("--data", "digits-lt", "--seeds", 2, "--epochs", 2, "--evaluate-every", 0, "--device", "cpu")
    with monkeypatch.context() as file:
        file.setitem(METHODS, "mine", replace(METHODS["softmax"], name="mine"))
        file.setattr(sys, "argv", ["mine.py"])
        code, out, err = run("study", *flags, "--methods", "mine", "softmax", "--out", "runs")
        assert code == 0, err
    assert "Command: python mine.py study --data digits-lt" in " ".join(out.split())
    assert "`longtail report runs` makes a page of it" in out
    code, out, err = run("study", "table", "runs")
    assert (code, err) == (0, "")
    assert "mine" in out
    for folder in (Path("runs"), Path("runs/digits-lt-50-mine-seed0")):
        assert run("report", folder, "--no-figures")[::2] == (0, "")
    page = Path("runs/digits-lt-50-mine-seed0/report.html").read_text("utf-8")
    assert "python mine.py study --data digits-lt" in page
    Path("runs/study.json").unlink()  # runs that no study tells of
    run("report", "runs", "--no-figures")
    page = Path("runs/report.html").read_text("utf-8")
    assert "python FILE.py train --data digits-lt --method mine" in page
    assert "# FILE.py: the file that adds mine" in page
    assert "longtail train --data digits-lt --method softmax" in page

"""``longtail report``: the page, its figures, and wrong arguments."""

import shlex
import shutil

import pytest
from tests.cli.conftest import one_sentence
from tests.report.pages import changed

from longtail.study.record import StudyRecord, write_study


@pytest.fixture(scope="module")
def runs(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("softmax", "cbs"):
        shutil.copytree(finished(method, evaluate_every=1), folder / method)
    return folder


def test_figures_of_two_pages_in_one_folder_are_apart(run, runs, tmp_path):
    for name in ("softmax", "cbs"):
        assert run("report", runs / name, "--out", tmp_path / f"{name}.html")[0] == 0
    curves = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*curves*.svg")}
    of_softmax, of_cbs = (f"{name}-figures/digits-lt-50-curves-{name}" for name in ("softmax", "cbs"))
    assert curves == {f"{of_softmax}.svg", f"{of_cbs}-1-5.svg"}


def test_page_and_its_figures_are_written(run, runs, tmp_path):
    code, out, err = run("report", runs, "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "Report: " in out
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("\n<!doctype html>") or text.lstrip().startswith("<!doctype html>")
    assert f"longtail report {runs}" in text
    figures = {path.name for path in (tmp_path / "page-figures").iterdir()}
    for name in (
        "trade-off",
        "imbalance-level",
        "class-recall",
        "class-probability",
    ):
        assert {f"digits-lt-50-{name}.{suffix}" for suffix in ("svg", "pdf", "png")} <= figures
    assert "digits-lt-50-curves-softmax.svg" in figures


def test_default_reference_is_that_of_the_study(run, finished, tmp_path):
    for method in ("softmax", "balanced-softmax"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), tmp_path / "s" / f"{method}-{seed}")
    planned = [f"{method}-{seed}" for method in ("softmax", "balanced-softmax") for seed in (0, 1)]
    write_study(tmp_path / "s", StudyRecord("longtail study x", "softmax", planned))
    for flags, against in (((), "Softmax"), (("--reference", "balanced-softmax"), "Balanced Softmax")):
        code, _, err = run("report", tmp_path / "s", "--no-figures", *flags)
        assert (code, err) == (0, "")
        text = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
        assert f"against {against} (paired t-test, two-sided)" in text
        assert shlex.join(["longtail", "report", str(tmp_path / "s"), "--no-figures", *flags]) in text
    code, _, err = run("report", tmp_path / "s", "--reference", "balanced")
    assert code == 2
    assert "--reference" in one_sentence(err)
    assert "(balanced-softmax, softmax), but got 'balanced'" in err


def test_without_figures_only_the_page_is_written(run, runs, tmp_path):
    code, _, _ = run("report", runs, "--out", tmp_path / "page.html", "--no-figures")
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_missing_folder(run):
    code, out, err = run("report", "/nowhere")
    assert (code, out) == (2, "")
    assert "/nowhere does not exist" in one_sentence(err)


def test_page_must_be_html(run, runs, tmp_path):
    code, _, err = run("report", runs, "--out", tmp_path / "page.txt")
    assert code == 2
    assert "--out to end in .html" in one_sentence(err)
    assert not list(tmp_path.iterdir())


def test_runs_of_an_unknown_method_are_shown(run, finished, tmp_path):
    """The plugin that registers the method is not needed."""
    changed(
        finished("softmax", evaluate_every=1),
        tmp_path / "mine",
        recipe=[('method = "softmax"', 'method = "mine"\nstrength = 3')],
        result=[('"softmax"', '"mine"')],
    )
    shutil.copytree(finished("cbs", evaluate_every=1), tmp_path / "cbs")
    assert run("report", tmp_path, "--no-figures")[::2] == (0, "")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "2 methods on digits-lt 50" in page
    assert f"longtail --plugin FILE.py train {tmp_path / 'mine' / 'recipe.toml'} --seed 0" in page
    assert "# FILE.py registers mine" in page
    assert f"longtail train {tmp_path / 'cbs' / 'recipe.toml'} --seed 0" in page

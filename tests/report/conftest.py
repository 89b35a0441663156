"""Fixtures for tests of reports: a small study and its report."""

import shutil

import pytest


@pytest.fixture(scope="session")
def study(finished, tmp_path_factory):
    """Three methods with two seeds, and an unfinished run."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("softmax", "cbs"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), folder / f"{method}-{seed}")
    shutil.copytree(finished("logit-adjust-posthoc", evaluate_every=1), folder / "posthoc")
    (folder / "begun").mkdir()
    for name in ("recipe.toml", "log.jsonl"):
        shutil.copy(folder / "cbs-0" / name, folder / "begun")
    return folder


@pytest.fixture(scope="session")
def made(study):
    """The report of the study, with its figures."""
    from longtail.report import report

    found = report(study, reference="softmax", command="longtail report study")
    assert found.html  # kept, before the next fixture applies
    return found


@pytest.fixture(autouse=True)
def quick_svg(monkeypatch):
    """All other reports draw figures, but do not render them, which takes most of the time."""
    monkeypatch.setattr("longtail.report.page.inline_svg", lambda *_: "<svg></svg>")

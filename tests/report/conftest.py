"""Fixtures of the tests of reports: a small study and its report."""

import shutil

import pytest


@pytest.fixture(scope="session")
def study(finished, tmp_path_factory):
    """Three methods, two seeds, as a study leaves them; one run is not finished."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("softmax", "cbs"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), folder / f"{method}-{seed}")
    shutil.copytree(finished("logit-adjust-posthoc", evaluate_every=1), folder / "posthoc")
    (folder / "begun").mkdir()
    shutil.copy(folder / "cbs-0" / "recipe.toml", folder / "begun")
    return folder


@pytest.fixture(scope="session")
def made(study):
    from longtail.report import report

    return report(study, reference="softmax", command="longtail report study")

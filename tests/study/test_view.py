"""What ``longtail study`` shows while it runs."""

import io
import json
import shutil
import time

import pytest
from rich.console import Console
from tests.study.conftest import plan_in

from longtail.cli import show
from longtail.cli.study import View
from longtail.study import PlannedRun, Progress
from longtail.study.runs import read_run
from longtail.study.search import fold_recipes
from longtail.train import Trainer
from longtail.train.recipe import write_recipe


@pytest.fixture
def view():
    return View(Console(file=io.StringIO(), width=200))


def printed(view):
    return view.console.file.getvalue()


def test_bar_counts_runs_and_epochs(view, study, tmp_path):
    done, waiting = plan_in(study).runs(), plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    view(Progress([*done[4:], *waiting]))
    (task,) = view.bar.tasks
    assert (task.description, task.completed, task.total) == ("2/5 runs done", 4, 10)


def test_pilots_count(tmp_path):
    run, other = plan_in(tmp_path, methods=["cbs"], betas=["auto"], seeds=2).runs()
    trainer = Trainer(run.recipe, run.folder)
    steps = trainer.steps()
    while trainer.epochs_done < 1:
        next(steps)
    steps.close()
    assert Progress([run]).epochs() == (1, trainer.epochs_total)
    assert trainer.epochs_total > sum(run.recipe.stage_epochs)
    assert Progress([run, other]).epochs() == (1, 2 * trainer.epochs_total)  # also those of a run that waits


def test_log_has_a_line_per_finished_run_and_per_minute(view, study, tmp_path, monkeypatch):
    shutil.copytree(study, tmp_path / "s")
    *before, last = plan_in(tmp_path / "s").runs()
    result = last.folder.result_file.rename(tmp_path / "result.json")
    waiting = plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    progress = Progress([*before, last, *waiting])
    progress.update()
    view(progress)
    assert printed(view) == ""  # they were done before
    result.rename(last.folder.result_file)
    progress.update()
    view(progress)
    assert "6/9 digits-lt-50-cbs-beta1.5-seed1: recall" in printed(view)
    progress.update()
    monkeypatch.setattr(show, "LOG_SECONDS", -1.0)
    view(progress)
    assert printed(view).endswith("\n6/9 runs done, 12/18 epochs\n")


def test_time_left_is_that_of_the_remaining_epochs_at_the_recent_speed(view, study, monkeypatch):
    now, epochs = [100.0], [12]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(show, "LOG_SECONDS", 5.0)
    monkeypatch.setattr(Progress, "epochs", lambda *_: (epochs[0], 18))
    view, progress = View(view.console), Progress(plan_in(study).runs())
    for done in (12, 13, 13, 12, 14):  # one every ten seconds; it goes back when a run was killed
        now[0] += 10
        epochs[0] = done
        view(progress)
    assert [line.partition(" epochs")[2] for line in printed(view).splitlines()] == [
        "", ", 0:00:50 left", ", 0:00:50 left", ", 0:01:00 left", ", 0:00:54 left"
    ]  # fmt: skip


def test_recall_is_on_validation_data_if_there_is_no_test_data(view, study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    runs = plan_in(tmp_path / "s", methods=["softmax"]).runs()
    for left in ("val", None):
        for place, run in enumerate(runs):
            result = json.loads((run.path / "result.json").read_text("utf-8"))
            found = result["splits"].pop("test", result["splits"].pop("val", None))
            if left is not None:
                result["splits"][left] = found | {"recall": {"all": 0.5 + 0.25 * place}}
            (run.path / "result.json").write_text(json.dumps(result), "utf-8")
        progress = Progress(runs)
        progress.news = [read_run(run.path) for run in runs]
        view(progress)
        lines = [line.partition(": ")[2] for line in printed(view).splitlines()[-2:]]
        if left is None:
            assert lines == ["done; there is neither test nor validation data"] * 2
        else:
            assert lines == ["recall 50.00 on validation data", "recall 75.00 on validation data"]


def test_recall_of_a_run_on_a_fold_is_that_of_the_held_out_fold(view, study, tmp_path):
    base, own = plan_in(study).base("digits-lt", None, "cbs"), plan_in(study, methods=["cbs:beta=1.5"], seeds=1).runs()
    trials = [PlannedRun(recipe, tmp_path / str(recipe.fold)) for recipe in fold_recipes(base, 1.5, 2, [0])]
    for run in trials:
        shutil.copytree(own[0].path, run.path)
        (run.path / "recipe.toml").write_text(write_recipe(run.recipe), "utf-8")
        result = json.loads((run.path / "result.json").read_text("utf-8"))
        result["splits"]["val"] = result["splits"]["test"] | {"recall": {"all": 0.5}}
        (run.path / "result.json").write_text(json.dumps(result), "utf-8")
    progress = Progress(own)
    progress.add(trials)
    progress.news = [read_run(run.path) for run in trials]
    view(progress)
    assert printed(view).count(": recall 50.00 on validation data\n") == 2

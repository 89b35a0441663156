"""What ``longtail study`` shows while it runs."""

import io
import json
import re
import shutil
import time

import pytest
from rich.console import Console
from tests.study.conftest import plan_in

from longtail.cli import study as command
from longtail.cli.study import View
from longtail.study import PlannedRun, Progress
from longtail.study.search import fold_recipes
from longtail.train.recipe import write_recipe


@pytest.fixture
def view():
    return View(Console(file=io.StringIO(), width=200))


def printed(view):
    return view.console.file.getvalue()


def bars(view, progress):
    """The lines that a terminal shows, without their bars."""
    view(progress)
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(view.bars.get_renderable())
    return [" ".join(line.replace("━", "").split()) for line in console.file.getvalue().splitlines()]


def test_bars_count_runs_and_show_the_recall_so_far(view, study, tmp_path):
    done, waiting = plan_in(study).runs(), plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    first, cbs, softmax = sorted(bars(view, Progress([*done[4:], *waiting])))
    assert first == "all 2/5 runs done"
    assert re.fullmatch(r"digits-lt 50, CBS \(β = 1.5\) 2/2, recall [\d.]+ ± [\d.]+", cbs)
    assert softmax == "digits-lt 50, Softmax 0/3"


def test_log_has_a_line_per_finished_run_and_per_minute(view, study, tmp_path, monkeypatch):
    waiting = plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    progress = Progress([*plan_in(study).runs(), *waiting])
    view(progress)
    assert printed(view) == ""  # they were done before
    progress.finished.popitem()
    progress.update()
    view(progress)
    assert "6/9 digits-lt-50-cbs-beta1.5-seed1: recall" in printed(view)
    progress.update()
    monkeypatch.setattr(command, "LOG_SECONDS", -1.0)
    view(progress)
    assert printed(view).endswith("\n6/9 runs done, 12/18 epochs\n")


def test_time_left_is_that_of_the_remaining_epochs_at_the_recent_speed(view, study, monkeypatch):
    now, epochs = [100.0], [12]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(command, "LOG_SECONDS", 5.0)
    monkeypatch.setattr(Progress, "epochs", lambda *_: (epochs[0], 18))
    view, progress = View(view.console), Progress(plan_in(study).runs())
    for done in (12, 13, 13, 12, 14):  # one every ten seconds; it goes back when a run was killed
        now[0] += 10
        epochs[0] = done
        view(progress)
    assert [line.partition(" epochs")[2] for line in printed(view).splitlines()] == [
        *[""] * 4, ", 0:01:00 left"
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
        progress.finished.clear()
        progress.update()
        view(progress)
        lines = [line.partition(": ")[2] for line in printed(view).splitlines()[-2:]]
        if left is None:
            assert lines == ["done; there is neither test nor validation data"] * 2
            assert "digits-lt 50, Softmax 2/2" in bars(view, progress)
        else:
            assert lines == ["recall 50.00 on validation data", "recall 75.00 on validation data"]
            assert "digits-lt 50, Softmax 2/2, recall 62.50 ± 17.68 on validation data" in bars(view, progress)


def test_runs_on_folds_have_their_own_bar_and_the_recall_of_the_held_out_fold(view, study, tmp_path):
    base, own = plan_in(study).base("digits-lt", None, "cbs"), plan_in(study, methods=["cbs"], seeds=1).runs()
    trials = [PlannedRun(recipe, tmp_path / str(recipe.fold)) for recipe in fold_recipes(base, 1.5, 2, [0])]
    for run in trials:
        shutil.copytree(own[0].path, run.path)
        (run.path / "recipe.toml").write_text(write_recipe(run.recipe), "utf-8")
        result = json.loads((run.path / "result.json").read_text("utf-8"))
        result["splits"]["val"] = result["splits"]["test"] | {"recall": {"all": 0.5}}
        (run.path / "result.json").write_text(json.dumps(result), "utf-8")
    progress = Progress(own)
    progress.runs += trials
    progress.update()
    view(progress)
    assert printed(view).count(": recall 50.00 on validation data\n") == 2
    rows = bars(view, progress)
    assert "digits-lt 50, CBS (β = 1.5), 2 folds 2/2, recall 50.00 ± 0.00 on validation data" in rows
    (alone,) = (row for row in rows if "CBS (β = 1.5) " in row)
    assert "1/1, recall" in alone
    assert "validation" not in alone

"""The live table: what is done, and what it says so far."""

import io
import json
import shutil
import time

from rich.console import Console
from tests.study.conftest import plan_in

from longtail.cli import study_view
from longtail.cli.study_view import Progress
from longtail.study.plan import Planned
from longtail.study.searching import fold_recipes
from longtail.train.recipe import write_recipe


def shown(view):
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(view.table())
    return console.file.getvalue()


def test_it_counts_runs_and_epochs_and_shows_the_recall_so_far(study, tmp_path):
    done, waiting = plan_in(study).runs(), plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    view = Progress([*done[2:], *waiting], Console(file=io.StringIO()), "The study")
    lines = shown(view).splitlines()
    assert any("CBS (β = 1.5)" in line and "2/2" in line and "4/4" in line and "±" in line for line in lines)
    assert any("Softmax" in line and "0/3" in line and "0/6" in line for line in lines)


def test_without_a_terminal_each_run_that_finishes_is_a_line(study):
    console = Console(file=io.StringIO(), width=200)
    view = Progress(plan_in(study).runs(), console, "The study")
    with view:
        view()
    assert console.file.getvalue() == ""  # they were done before
    view.finished.popitem()
    view()
    assert "6/6 digits-lt-50-cbs-beta1.5-seed1: recall" in console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then(study, tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    waiting = plan_in(tmp_path, methods=["softmax"], seeds=3).runs()
    view = Progress([*plan_in(study).runs(), *waiting], console, "The study")
    view()
    assert console.file.getvalue() == ""
    monkeypatch.setattr(study_view, "TOLD_SECONDS", -1.0)
    view()
    assert console.file.getvalue() == "6/9 runs done, 12/18 epochs\n"


def test_the_time_left_is_that_of_the_epochs_left_at_the_pace_so_far(study, tmp_path, monkeypatch):
    now, epochs = [100.0], [12]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(study_view, "TOLD_SECONDS", 5.0)
    monkeypatch.setattr(Progress, "_epochs", lambda *_: (epochs[0], 18))
    console = Console(file=io.StringIO(), width=200)
    view = Progress(plan_in(study).runs(), console, "The study")
    for done in (12, 13, 13, 12, 14):  # one every ten seconds; then it goes back, as a run does that was killed
        now[0] += 10
        epochs[0] = done
        view()
    assert [line.partition(" epochs")[2] for line in console.file.getvalue().splitlines()] == [
        "", ", 0:00:50 left", ", 0:00:50 left", "", ", 0:00:20 left"
    ]  # fmt: skip


def test_without_test_data_the_recall_is_that_on_validation_data(study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    runs = plan_in(tmp_path / "s", methods=["softmax"]).runs()
    for left in ("val", None):
        for place, run in enumerate(runs):
            result = json.loads((run.path / "result.json").read_text("utf-8"))
            found = result["splits"].pop("test", result["splits"].pop("val", None))
            if left is not None:
                result["splits"][left] = found | {"recall": {"all": 0.5 + 0.25 * place}}
            (run.path / "result.json").write_text(json.dumps(result), "utf-8")
        console = Console(file=io.StringIO(), width=200)
        view = Progress(runs, console, "The study")
        view.finished.clear()
        view()
        lines = console.file.getvalue().splitlines()
        if left is None:
            assert all(line.endswith(": done; there is neither test nor validation data") for line in lines)
            assert "nan" not in shown(view)
        else:
            assert [line.partition(": ")[2] for line in lines] == [
                "recall 50.00 on validation data",
                "recall 75.00 on validation data",
            ]
            assert "62.50 ± 17.68 (validation)" in shown(view)


def test_runs_on_folds_have_a_row_of_their_own_and_are_told_of_on_what_was_held_out(study, tmp_path):
    base, own = plan_in(study).base("digits-lt", None, "cbs"), plan_in(study, methods=["cbs"], seeds=1).runs()
    trials = [Planned(recipe, tmp_path / str(recipe.fold)) for recipe in fold_recipes(base, 1.5, 2, [0])]
    for run in trials:
        shutil.copytree(own[0].path, run.path)
        (run.path / "recipe.toml").write_text(write_recipe(run.recipe), "utf-8")
        result = json.loads((run.path / "result.json").read_text("utf-8"))
        result["splits"]["val"] = result["splits"]["test"] | {"recall": {"all": 0.5}}
        (run.path / "result.json").write_text(json.dumps(result), "utf-8")
    console = Console(file=io.StringIO(), width=200)
    view = Progress([*own, *trials], console, "The study")
    view.finished = {path: run for path, run in view.finished.items() if not run.recipe.folds}
    view()
    assert console.file.getvalue().count(": recall 50.00 on validation data\n") == 2
    rows = shown(view).splitlines()
    (of_folds,) = (row for row in rows if "CBS (β = 1.5), 2 folds" in row)
    assert "50.00 ± 0.00 (validation)" in of_folds
    (alone,) = (row for row in rows if "CBS (β = 1.5) " in row)
    assert "1/1" in alone
    assert "validation" not in alone

"""What `longtail train` prints: the status during training, and the results."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.cli.conftest import COLOURS, pictures

from longtail.cli import show
from longtail.cli.train import read_recipes
from longtail.train import Fleet, RunFolder, Trainer

pytestmark = pytest.mark.usefixtures("_here")


# --- the status


def member(done, live=(), label="cifar100-lt-100-balanced-softmax-tau1.5-seed12345"):
    """A trainer of 200 epochs of 100 steps, as the status sees it."""
    return SimpleNamespace(
        recipe=SimpleNamespace(label=label),
        folder=SimpleNamespace(done=False),
        epochs=[150, 50],
        epochs_total=200,
        steps_total=20_000,
        steps_done=done,
        epochs_done=done // 100,
        live=dict(live),
    )


def lines(status):
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(status)
    found = file.getvalue().splitlines()
    assert len(found) == 2
    assert all(len(line) <= 80 for line in found)
    return [line.rstrip() for line in found]


LIVE = {"epoch": 122, "loss": 123.45678, "lr": 0.000123456, "images_per_second": 123456.7}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    return now


def test_status_fits_into_80_columns(clock):
    one = member(12_249)
    fleet = SimpleNamespace(members=[one], failures=[])
    status = show.TrainingView(Console(file=io.StringIO()))
    assert lines(status)[1] == "starting"
    for _ in range(4):  # the remaining time is known after three steps
        clock[0] += 30.0
        one.steps_done += 1
        status(fleet, one)
    first, second = lines(status)
    assert first.startswith("cifar100-lt-100-balanced-softmax-ta… ")
    assert first.endswith(" 61% 64:33:30 left")
    assert second == "epoch 123/200"
    assert str(status) == f"{status.name}  61%  2 days, 16:33:30 left  epoch 123/200"
    one.live = {**LIVE, "loss": None}
    assert lines(status)[1] == "epoch 123/200  lr 0.000123  123,457 images/s"
    one.live = LIVE
    assert lines(status)[1] == "epoch 123/200  loss 123.457  lr 0.000123  123,457 images/s"
    one.steps_done, one.epochs_done = 20_000, 200
    assert lines(status)[0].endswith("100% 0:00:00 left")
    assert lines(status)[1] == "evaluating"


def test_status_of_several_runs(clock):
    members = [member(20_000), member(5_000, LIVE), member(0, LIVE), member(0)]
    members[0].folder.done = True
    fleet = SimpleNamespace(members=members, failures=[])
    status = show.TrainingView(Console(file=io.StringIO()))
    for _ in range(2_000):  # earlier steps do not count for the speed
        clock[0] += 1.0
        for one in members[1:3]:
            one.steps_done += 1
            status(fleet, one)
    first, second = lines(status)
    assert first.startswith("4 runs ")
    assert first.endswith(" 36% 7:04:39 left")
    assert second == "1 of 4 done  epoch 51/200  loss 123.457  lr 0.000123  246,913 images/s"
    fleet.failures.append((members[1], ValueError()))  # its steps no longer count, and the speed is measured again
    members[2].epochs_done = 20
    first, second = lines(status)
    assert first.endswith(" 37% -:--:-- left")
    assert second == "1 of 4 done  1 failed  epoch 21/200  loss 123.457  lr 0.000123  123,457 images/s"


def drive(folder, console, epochs=1):
    recipe = read_recipes(["--data", "digits-lt", "--beta", "1.5", "--epochs", str(epochs)])[0][0]
    trainer = Trainer(recipe, folder)
    fleet = Fleet([trainer])
    with show.TrainingView(console) as view:
        for member in fleet.steps():
            view(fleet, member)
    return trainer


def test_status_is_shown_in_a_terminal_only(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for file in (io.StringIO(), Terminal()):
        folder = RunFolder(tmp_path / type(file).__name__)
        drive(folder, Console(file=file, width=80, force_terminal=True, color_system=None))
        assert folder.done
        assert ("digits-lt-50-cbs" in file.getvalue()) == isinstance(file, Terminal)


def test_log_has_one_line_per_interval(tmp_path, monkeypatch):
    monkeypatch.setattr(show, "LOG_SECONDS", -1.0)
    file, quiet = io.StringIO(), io.StringIO()
    drive(RunFolder(tmp_path / "run"), Console(file=file, width=30, color_system=None), epochs=2)
    found = file.getvalue().splitlines()
    assert len(found) == 12
    assert re.fullmatch(r"digits-lt-50-cbs-beta1.5-seed0  \d+%  epoch 1/2", found[0])
    assert "epoch 2/2  loss " in found[-2]
    drive(RunFolder(tmp_path / "other"), Console(file=quiet, quiet=True))  # as on ranks that are not the first
    assert not quiet.getvalue()


# --- the results


def test_results_are_printed(run):
    code, out, err = run("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 1, "--out", "run")
    assert (code, err) == (0, "")
    assert "run: balanced-softmax on digits-lt" in out
    assert "model imbalance level I" in out
    assert "\x1b" not in out


def test_groups_are_printed(run, tmp_path):
    given = ("train", "--data", "digits-lt", "--method", "softmax", "--epochs", 1, "--out")
    (tmp_path / "groups.json").write_text('{"few": [0, 2, 4, 6, 8], "many": ["1", "3", "5", "7", "9"]}')
    code, out, _ = run(*given, "file", "--groups", "groups.json")
    assert code == 0
    assert "groups: those in groups.json\n" in out
    assert RunFolder("file").result()["groups"] == {"few": [0, 2, 4, 6, 8], "many": [1, 3, 5, 7, 9]}
    code, _, err = run(*given, "other", "--groups", "100;20")
    assert code == 2
    assert "100,20" in err


def test_scores_are_on_validation_data_without_test_data(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS | {"[odd]": (3, (90, 90, 90))}, lambda _: (8, 8), "png")
    code, out, _ = run("train", "photos", "--model", "resnet20", "--epochs", 1, "--out", "run")
    assert code == 0
    assert "preference P on val" in out
    assert "model imbalance level I on val" in out
    assert "groups: thirds of the classes by training samples, because" in out
    absent = RunFolder("run").result()["splits"]["val"]["absent_classes"]
    assert ("val: all is over 3 of 4 classes; no samples of [odd]" in out) == (absent != [])


def test_training_mode_has_a_row_if_it_makes_a_difference(capsys):
    result = {"groups": {"head": [0]}, "splits": {"train": {"recall": {"all": 0.5}}}}
    for recall, shown in ((0.5, False), (0.4, True)):
        result["splits"]["train_paper"] = {"recall": {"all": recall}}
        show.show_measures(result)
        assert ("training mode" in capsys.readouterr().out) is shown


def test_the_effect_of_beta_is_not_that_on_new_data(capsys):
    held_out = {"recall": [0.813, 0.82], "accuracy": [0.838, 0.834]}
    found = {"beta": 1.25, "measured": 1.5, "std_error": 0.27, "validation": True, "pilots": 0, "held_out": held_out}
    result = {"groups": {"head": [0]}, "splits": {"test": {"recall": {"all": 0.5}}}, "auto_beta": found}
    for more, shown in (({}, True), ({"trained_on": "mine"}, False)):
        show.show_measures(result | more)
        out = capsys.readouterr().out
        assert "beta = 1.25" in out
        assert ("81.3" in out) == shown


def test_absent_classes_are_named(capsys):
    split = {"recall": {"all": 0.5, "head": 0.5}, "absent_classes": [1, 2, 3, 4, 5, 6]}
    result = {"groups": {"head": [0]}, "splits": {"test": split, "val": split | {"absent_classes": []}}}
    show.show_measures(result | {"classes": list("abcdefgh")})
    out = capsys.readouterr().out
    assert "test: all is over 2 of 8 classes; no samples of b, c, d, e, f and 1 more" in out
    assert "val: " not in out

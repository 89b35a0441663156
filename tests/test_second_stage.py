"""examples/second_stage.py: with changing statistics it equals cRT and LWS of the library."""

from dataclasses import replace

import pytest
import torch

from longtail.train import RunFolder, Trainer, defaults

EPOCHS = 3


@pytest.fixture(scope="module")
def script(example):
    return example("second_stage")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, script):
    """Runs of softmax, cRT and LWS with one seed, whose first stages are the same."""
    torch.set_num_threads(1)
    found = {}
    for method in ("softmax", "crt", "lws"):
        recipe = replace(
            defaults("digits-lt", method), epochs=4, evaluate_every=0, device="cpu", weight_decay=script.DECAY
        )
        if method != "softmax":
            recipe = recipe.changed(classifier_epochs=EPOCHS, classifier_lr=script.LR, per_class=4)
        found[method] = RunFolder(tmp_path_factory.mktemp("runs") / method)
        Trainer(recipe, found[method]).run()
    return found


def recalls(folder):
    found = folder.result()["splits"]["test"]["recall"]
    return [100 * found[group] for group in ("all", "head", "medium", "tail")]


def test_second_stage_equals_that_of_the_library(script, runs):
    rows = dict(script.SoftmaxRun(runs["softmax"].path, "data", EPOCHS).rows())
    assert rows["softmax"] == pytest.approx(recalls(runs["softmax"]), abs=1e-9)
    assert rows["LWS, BatchNorm changes"] == pytest.approx(recalls(runs["lws"]), abs=1e-9)
    assert rows["cRT, BatchNorm changes"] == pytest.approx(recalls(runs["crt"]), abs=1e-9)
    assert len(rows) == 7
    assert len({tuple(row) for row in rows.values()}) > 4  # the statistics matter


def test_script_prints_every_row(script, runs, monkeypatch, capsys):
    folder = str(runs["softmax"].path)
    monkeypatch.setattr("sys.argv", ["second_stage.py", folder, folder, "--epochs", "1"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert lines[1].startswith("softmax ")
    one, two = lines[1].split()[-2:]
    assert one == two


def test_run_without_test_data_is_refused_in_one_sentence(script, runs, monkeypatch):
    opened = script.open_data
    monkeypatch.setattr(script, "open_data", lambda recipe: replace(opened(recipe), test=None))
    with pytest.raises(SystemExit, match="Expected a run on data with test images, but digits-lt"):
        script.SoftmaxRun(runs["softmax"].path, "data", EPOCHS)

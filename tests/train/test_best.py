"""`best_epoch`: the weights of the best epoch on validation data, and early stopping."""

import pytest
from tests.train.conftest import assert_same_run, logged, recipe_for, stop_and_resume, trained

from longtail.train import RunFolder, Trainer, evaluate_run

SETTINGS = {"validation": 0.3, "best_epoch": True, "epochs": 5, "lr": 0.3, "warmup": 0, "schedule": "constant"}


@pytest.mark.parametrize("method", ["cbs", "crt"])
def test_result_is_that_of_the_epoch_with_the_highest_recall_in_the_log(tmp_path, method):
    folder, result = trained(tmp_path, method, evaluate_every=1, **SETTINGS)
    last_stage = logged(folder)[sum(result["epochs"][:-1]) :]
    recalls = [line["recall"] for line in last_stage]
    on_val = [one["val"]["all"] for one in recalls]
    best = on_val.index(max(on_val))  # the first of several
    assert result["best"] == {"epoch": best + 1, "epochs_trained": len(on_val), "val_recall": on_val[best]}
    assert result["reported"] == "best epoch on validation data"
    for split in ("train", "val", "test"):
        assert result["splits"][split]["recall"] == pytest.approx(recalls[best][split])
    assert evaluate_run(folder) == result
    if method == "cbs":
        assert best < len(on_val) - 1  # otherwise the last epoch would do as well
        assert recalls[best]["test"] != recalls[-1]["test"]


def test_training_stops_when_patience_ends(tmp_path):
    _, whole = trained(tmp_path / "whole", "cbs", evaluate_every=1, **SETTINGS)
    folder, early = trained(tmp_path / "early", "cbs", evaluate_every=0, patience=2, **SETTINGS)
    on_val = [line["recall"]["val"]["all"] for line in logged(RunFolder(tmp_path / "whole"))]
    stop = next(n for n in range(3, 6) if max(on_val[: n - 2]) >= max(on_val[:n]))  # two epochs without a better one
    assert stop < 5
    assert len(logged(folder)) == early["best"]["epochs_trained"] == stop
    assert early["best"]["epoch"] == on_val.index(max(on_val[:stop])) + 1
    assert whole["best"]["epochs_trained"] == 5


def test_stopped_run_ends_like_an_undisturbed_one(tmp_path):
    """A checkpoint has the best weights so far, and a run that is resumed after its last epoch trains no more."""
    settings = SETTINGS | {"patience": 2, "checkpoint_epochs": 3}
    reference, _ = trained(tmp_path / "reference", "cbs", **settings)
    folder = RunFolder(tmp_path / "stopped")
    stop_and_resume(recipe_for("cbs", **settings), folder, 2, 9, 11, 6, 1)
    assert folder.done
    assert_same_run(folder, reference)


def test_best_needs_validation_data(tmp_path):
    with pytest.raises(ValueError, match="`best_epoch`"):
        Trainer(recipe_for("cbs", best_epoch=True), tmp_path)
    with pytest.raises(ValueError, match="`patience`"):
        recipe_for("cbs", patience=3)

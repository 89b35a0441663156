"""The estimate of ``--dry-run``."""

import time

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from longtail.data import FileImages
from longtail.study.estimate import estimate
from longtail.study.execute import execute
from longtail.study.planning import make_plan


def plan(tmp_path, **more):
    content = {"data": "digits-lt", "methods": ["softmax", "cbs"], "seeds": 1, "out": str(tmp_path), **more}
    return make_plan({**content, "recipe": {"epochs": 15, "device": "cpu"}})


def test_the_estimate_is_near_the_truth(tmp_path):
    """Loose, because other processes may run: half to three times, pilots of beta = auto included."""
    runs = plan(tmp_path).runs()
    each, total = estimate(runs, seconds=2.0)
    softmax, auto = (each[run.path] for run in runs)
    assert auto > 2 * softmax  # five pilots
    assert total == pytest.approx(softmax + auto)
    assert list(tmp_path.iterdir()) == []
    begin = time.perf_counter()
    execute(runs)
    assert 1 / 3 < total / (time.perf_counter() - begin) < 3
    assert estimate(runs[:0]) == ({}, 0.0)


def test_measuring_is_short_and_shared_by_runs_of_one_kind(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr("longtail.study.estimate._measure", _counted("_measure", built))
    runs = plan(tmp_path, seeds=4, betas=[1, 2, "auto"]).runs()
    each, _ = estimate(runs, seconds=0.2)
    assert len(each) == len(runs) == 16
    assert len(built) == 2  # softmax and CBS


def test_features_of_a_few_images_are_enough(tmp_path, monkeypatch):
    """A probe of many photographs: its estimate takes seconds, and the features count once, if they are not cached."""
    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
    for number in range(600):
        pixels = np.random.default_rng(number).integers(0, 255, (50, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[number % 3 == 0] / f"{number}.jpg")
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "vit.safetensors")
    recipe = {"recipe": "probe", "model": "timm:test_vit", "weights": str(tmp_path / "vit.safetensors"), "workers": 0}
    content = {"data": str(tmp_path / "photos"), "methods": ["softmax", "balanced-softmax"], "seeds": 2}
    content |= {"out": str(tmp_path / "runs"), "recipe": {**recipe, "image_size": 32, "epochs": 3, "device": "cpu"}}
    runs, read, real = make_plan(content).runs(), [], FileImages.__getitem__
    monkeypatch.setattr(FileImages, "__getitem__", lambda images, place: read.append(place) or real(images, place))
    each, total = estimate(runs, seconds=0.2)
    assert 0 < len(read) < 600  # of two kinds of runs
    assert total > sum(each.values())
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs" / "image-cache").mkdir(parents=True)
    execute(runs[:2])
    read.clear()
    each, total = estimate(runs[2:], seconds=0.2)
    assert len(read) < 10
    assert total == pytest.approx(sum(each.values()))


def _counted(name, calls):
    import longtail.study.estimate as module

    real = getattr(module, name)
    return lambda *given: calls.append(1) or real(*given)

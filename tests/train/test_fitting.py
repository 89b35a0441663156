"""Defaults for the user's own images fit their number and size."""

import math

import numpy as np
import pytest
from PIL import Image

from longtail.study.planning import make_plan
from longtail.train.dataset import open_data
from longtail.train.fitting import fitting_settings
from longtail.train.launch import describe_fit, make_recipe
from longtail.train.own import OwnImages

NUMBERS = [50, 155, 1_000, 20_000, 1_000_000]


def images(number, side, *, small=False):
    return OwnImages(number, 10, side, round(1.5 * side) if not small else side, small)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("side", "small"), [(32, True), (40, False), (200, False)])
@pytest.mark.parametrize("given", [{}, {"pretrained": True}])
def test_steps_are_bounded(number, side, small, given):
    found = fitting_settings(images(number, side, small=small), given)
    steps = math.ceil(number / found["batch_size"])
    assert steps >= min(number / 16, 8)  # never one step per epoch
    assert found["batch_size"] <= 256
    total = steps * found["epochs"]
    assert (150 if given else 800) <= total <= max(20_000, 90 * number / 128)
    assert 0 <= found["warmup"] < found["epochs"] / 5


def test_fewer_images_have_a_smaller_model_and_fewer_pixels():
    found = [fitting_settings(images(number, 300), {}) for number in NUMBERS]
    assert [one["model"] for one in found] == ["resnet18"] * 4 + ["resnet50"]
    assert [one["image_size"] for one in found] == [64, 64, 64, 224, 224]
    assert all(one["lr"] <= 0.1 for one in found)
    assert sorted(one["lr"] for one in found) == [one["lr"] for one in found]


def test_images_are_not_enlarged():
    assert fitting_settings(images(20_000, 96), {})["image_size"] == 96
    assert fitting_settings(images(500, 34), {})["image_size"] == 32
    assert "image_size" not in fitting_settings(images(500, 32, small=True), {})


def test_learning_rate_follows_the_users_batch_size():
    rates = {size: fitting_settings(images(1_000, 32, small=True), {"batch_size": size})["lr"] for size in (8, 32, 128)}
    assert rates[128] == 0.1  # that of CIFAR
    assert rates[32] == pytest.approx(rates[128] / 2)
    assert rates[8] == pytest.approx(rates[32] / 2)


@pytest.fixture
def pictures(tmp_path):
    for name, number in {"cat": 40, "dog": 12}.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for place in range(number):
            pixels = np.full((90 + place % 3, 130, 3), place, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{place}.png")
    return str(tmp_path / "pets")


def test_settings_of_the_user_win(pictures):
    given = {"model": "resnet34", "epochs": 3, "batch_size": 8, "lr": 0.5, "image_size": 96, "warmup": 0}
    recipe = make_recipe({"data": pictures, "method": "softmax", **given})
    assert {name: getattr(recipe, name) for name in given} == given


def test_the_line_says_what_was_chosen(pictures):
    recipe = make_recipe({"data": pictures, "method": "softmax", "epochs": 7})
    line = describe_fit(recipe)
    assert line.startswith("47 training images of about 130 x 91 pixels, 2 classes: resnet18 at 64 x 64, 7 epochs of 3")
    for held_out in ({"test": 0.2}, {"validation": 0.3, "test": 0.12}, {"validation": 0.0}):
        recipe = make_recipe({"data": pictures, "method": "softmax", **held_out})
        assert describe_fit(recipe).startswith(f"{len(open_data(recipe).train)} training images")
    assert describe_fit(make_recipe({"data": "digits-lt", "method": "softmax"})) == ""
    plan = make_plan({"data": pictures, "methods": ["softmax"], "seeds": 1, "recipe": {"epochs": 7}})
    assert describe_fit(plan.runs()[0].recipe) == line


@pytest.mark.parametrize("model", ["vit_small_patch16_224", "timm:swin_tiny_patch4_window7_224", "convnext_tiny"])
def test_transformers_have_adamw(model):
    pictures = OwnImages(number=5000, classes=8, height=300, width=300, small=False)
    fitted = fitting_settings(pictures, {"model": model})
    assert fitted["optimizer"] == "adamw"
    assert fitted["lr"] <= 1e-3
    assert "optimizer" not in fitting_settings(pictures, {"model": "resnet50"})
    assert fitting_settings(pictures, {"optimizer": "adamw"})["lr"] <= 1e-3
    tuned = fitting_settings(pictures, {"model": model, "weights": "a.safetensors"})
    assert (tuned["layer_decay"], tuned["lr"] < fitted["lr"]) == (0.75, True)


def test_adamw_with_the_rate_of_sgd_is_refused():
    with pytest.raises(ValueError, match="`lr` below"):
        make_recipe({"data": "digits-lt", "method": "softmax", "optimizer": "adamw"})
    assert make_recipe({"data": "digits-lt", "method": "softmax", "optimizer": "adamw", "lr": 0.001}).lr == 0.001

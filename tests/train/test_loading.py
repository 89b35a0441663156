"""One's own images: which are trained on as CIFAR's are, and which as ImageNet's; and made long-tailed."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from longtail.train.loading import in_memory, is_small, open_data
from longtail.train.recipe import defaults


def folder(root, *sizes):
    """Two classes of images with these sides (width, height), in turn."""
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for number in range(8):
            width, height = sizes[number % len(sizes)]
            pixels = np.full((height, width, 3), number * 20, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([(32, 32)], True),
        ([(32, 32), (200, 150)], False),
        ([(32, 32), (40, 36)], False),
        ([(28, 20)], False),
        ([(65, 65)], False),
    ],
)
def test_small_is_square_and_of_one_size(tmp_path, sizes, small):
    path = folder(tmp_path / "pets", *sizes)
    assert is_small(path) is small
    recipe = defaults(str(path), "cbs", small=small)
    assert recipe.model == ("resnet32" if small else "resnet50")
    dataset = open_data(replace(recipe, validation=0.0))
    assert (in_memory(dataset) is not None) is small


def test_ones_own_can_be_made_long_tailed(tmp_path):
    path = folder(tmp_path / "pets", (16, 16))
    recipe = replace(defaults(str(path), "cbs", 4.0, small=True), validation=0.0)
    assert open_data(recipe).counts.tolist() == [8, 2]


def test_what_is_as_it_is_takes_no_imbalance():
    with pytest.raises(ValueError, match="no `imbalance` for digits, but got 100; digits-lt takes it"):
        open_data(defaults("digits", "cbs", 100.0))

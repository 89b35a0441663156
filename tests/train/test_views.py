"""The views of a family: the whole image at the size that the model sees, as in evaluation; those of BCL and ProCo."""

from dataclasses import replace

import pytest
import torch
from tests.train.conftest import recipe_for

from longtail._ranks import Ranks
from longtail.data import ArrayImages, Normalisation, Split, load
from longtail.data.augment import ColorJitter, Compose, RandAugment, RandomFlip, RandomGrey, RandomResizedCrop
from longtail.data.sampling.samplers import Instance
from longtail.train import RunFolder, Trainer
from longtail.train.loaders import Loaders, evaluation_view, training_views

GREY = Normalisation((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("family", ["cifar", "shift"])
@pytest.mark.parametrize(("side", "size"), [(64, 16), (16, 64), (24, 24)])
def test_what_is_padded_and_cropped_is_the_whole_image(family, side, size):
    """Half of an image is white: so is half of each view, except what the crop moves out."""
    images = torch.zeros(50, 3, side, side, dtype=torch.uint8)
    images[..., : side // 2] = 255
    views = training_views(family, size, GREY, sized=side == size)
    seen = views["weak"](images, torch.rand(50, views["weak"].draws))
    assert seen.shape == (50, 3, size, size)
    shares = seen.mean((1, 2, 3))
    assert (shares - 0.5).abs().max() < 0.25
    tested = evaluation_view(family, size, GREY, sized=side == size)(images)
    assert float(shares.mean()) == pytest.approx(float(tested.mean()), abs=0.08)  # what is padded is black
    for name in ("strong", "contrast"):
        assert views[name](images, torch.rand(50, views[name].draws)).shape == (50, 3, size, size)


def test_images_of_another_size_are_learnt(tmp_path):
    """Digits of 16 x 16, shown as 8 x 8, are learnt and recognised."""
    digits = load("digits-lt")
    larger = {
        name: Split(ArrayImages(split.images.pixels.repeat_interleave(2, 2).repeat_interleave(2, 3)), split.labels)
        for name, split in digits.splits.items()
    }
    data = replace(digits, **larger)
    recipe = recipe_for("cbs", epochs=8, batch_size=32, image_size=8, augment="shift")
    recipe = replace(recipe, imbalance=None)
    result = Trainer(recipe, RunFolder(tmp_path / "run"), dataset=data).run()
    assert result["splits"]["train"]["recall"]["all"] > 0.8
    assert result["splits"]["test"]["recall"]["all"] > 0.7


def test_images_that_have_their_size_are_not_resized():
    """So that a crop and a flip of resident images stay one launch on a GPU."""
    loaders = Loaders(recipe_for("cbs", augment="cifar"), load("digits-lt"), torch.device("cpu"), Ranks())
    (view,) = loaders.training(("weak",), Instance(), drop_last=False).plan.views
    assert [type(step).__name__ for step in view.augmentations] == ["RandomCrop", "RandomFlip", "Normalise"]


def test_strong_and_contrast_of_imagenet_are_those_of_bcl_and_proco():
    for family in ("imagenet", "imagenet-plain"):
        views = training_views(family, 224, GREY, sized=False)
        cropped = (RandomResizedCrop(224), RandomFlip())
        jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
        end = views["strong"].augmentations[-1]
        assert views["strong"] == Compose((*cropped, ColorJitter(0.4, 0.4, 0.4), RandAugment(2, 30, p=0.5), end))
        assert views["contrast"] == Compose((*cropped, jitter, RandomGrey(0.2), end))
        coloured = () if family == "imagenet-plain" else (ColorJitter(0.4, 0.4, 0.4),)
        assert views["weak"] == Compose((*cropped, *coloured, end))

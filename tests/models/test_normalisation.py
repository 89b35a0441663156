"""The normalisation that pretrained weights need, in training, evaluation and prediction."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import longtail
from longtail.data import Normalisation
from longtail.models import build_backbone, pretrained_normalisation
from longtail.train import RunFolder, Trainer, defaults

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
ODD = Normalisation((0.1, 0.2, 0.6), (0.3, 0.4, 0.8))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm:vit_tiny_patch16_224", HALF),
        ("vit_tiny_patch16_224.augreg_in21k", HALF),
        ("timm:resnet10t", IMAGENET),
        ("resnet50", IMAGENET),
        ("torchvision:efficientnet_v2_l", HALF),
    ],
)
def test_values_of_the_library(name, expected):
    assert pretrained_normalisation(name, True) == expected
    assert pretrained_normalisation(name, False) is None


def test_other_channels_get_the_mean():
    found = pretrained_normalisation("resnet50", True, channels=1)
    assert found.mean == pytest.approx((0.449,))
    assert found.std == pytest.approx((0.226,))


def test_files(tmp_path):
    """The model file of a run stores its values; another file is taken for published weights."""
    save_file(build_backbone("timm:test_vit").network.state_dict(), tmp_path / "plain.safetensors")
    assert pretrained_normalisation("timm:test_vit", tmp_path / "plain.safetensors") == HALF
    assert pretrained_normalisation("resnet20", str(tmp_path / "plain.safetensors")) is None
    card = {"longtail": '{"mean": [0.1, 0.2, 0.6], "std": [0.3, 0.4, 0.8]}'}
    save_file({"backbone.x": torch.zeros(1)}, tmp_path / "run.safetensors", card)
    for name in ("timm:test_vit", "resnet20"):
        assert pretrained_normalisation(name, tmp_path / "run.safetensors") == ODD
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    save_file({"x": torch.zeros(1)}, tmp_path / "changed.safetensors", {"longtail": '{"mean": [], "std": [0.5]}'})
    for name in ("damaged", "changed"):  # not silently another normalisation
        with pytest.raises(ValueError, match=f"{name}.safetensors"):
            pretrained_normalisation("resnet20", tmp_path / f"{name}.safetensors")


def test_run_folders(tmp_path):
    """The model file of a run in a folder stores its values, which come before those of other files."""
    card = {"longtail": '{"mean": [0.5], "std": [0.5]}'}
    save_file({"backbone.x": torch.zeros(1)}, tmp_path / "model.safetensors", card)
    (tmp_path / "preprocessing.json").write_text('{"mean": [0.1], "std": [0.2]}')
    for weights in (tmp_path, str(tmp_path), tmp_path / "model.safetensors"):
        assert pretrained_normalisation("resnet20", weights, 1) == Normalisation((0.5,), (0.5,))


def test_exported_folders(tmp_path):
    save_file({"backbone.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    about = tmp_path / "preprocessing.json"
    about.write_text('{"input": "images", "mean": [0.1, 0.2, 0.6], "std": [0.3, 0.4, 0.8]}')
    assert pretrained_normalisation("resnet20", tmp_path) == ODD
    for features in ('{"input": "features"}', '{"input": "features", "mean": null, "std": null}'):
        about.write_text(features)
        assert pretrained_normalisation("resnet20", tmp_path) is None
    about.write_text('{"mean": [0.5]}')  # not silently another normalisation
    with pytest.raises(ValueError, match=r"preprocessing\.json"):
        pretrained_normalisation("resnet20", tmp_path)


@pytest.fixture
def photos(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            pixels = torch.randint(0, 256, (48, 48, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def published(monkeypatch):
    """Replaces the published weights of both libraries by ones without a download, with odd values."""
    make, get = timm.create_model, torchvision.models.get_model
    known = timm.get_pretrained_cfg("test_vit")

    class Weights:
        class DEFAULT:
            @staticmethod
            def transforms():
                return ODD

    monkeypatch.setattr(timm, "create_model", lambda *a, **o: make(*a, **{**o, "pretrained": False}))
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: replace(known, mean=ODD.mean, std=ODD.std))
    monkeypatch.setattr(torchvision.models, "get_model", lambda *a, **o: get(*a, **{**o, "weights": None}))
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda name: Weights)


@pytest.mark.parametrize(
    ("model", "pretrained", "expected"),
    [
        ("timm:test_vit", True, ODD),
        ("timm:test_vit", False, IMAGENET),  # the default for users' images
        ("torchvision:mobilenet_v3_small", True, ODD),
    ],
)
@pytest.mark.usefixtures("published")
def test_a_run_and_its_model_use_the_values_of_the_weights(photos, tmp_path, model, pretrained, expected):
    recipe = replace(
        defaults(str(photos), "balanced-softmax", small=True),
        model=model,
        pretrained=pretrained,
        image_size=48,  # not the size of the ViT
        epochs=1,
        batch_size=4,
        device="cpu",
    )
    folder = RunFolder(tmp_path / "run")
    trainer = Trainer(recipe, folder)
    for loader in (
        trainer.stages.start(trainer.stages.build(), 0).loader,
        trainer.loaders.evaluation(trainer.dataset.val),
    ):
        last = loader.plan.views[0].augmentations[-1]
        assert (last.mean, last.std) == (expected.mean, expected.std)
    trainer.run()
    loaded = longtail.load(folder.path)
    assert loaded.transforms.normalisation == expected
    val = trainer.dataset.val
    batch = loaded.transforms(val.images.pixels)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (expected.mean, expected.std))
    torch.testing.assert_close(batch, (val.images.pixels / 255 - mean) / std)
    with torch.no_grad():
        stored = load_file(folder.predictions_file)["val.logits"]
        torch.testing.assert_close(loaded(batch), stored, rtol=1e-4, atol=1e-4)
    # A run that starts from these weights normalises images in the same way.
    further = replace(recipe, pretrained=False, weights=str(folder.model_file))
    assert Trainer(further, RunFolder(tmp_path / "further")).loaders.normalisation == expected

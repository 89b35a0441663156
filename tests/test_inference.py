"""`longtail.load`: the model of a run predicts as in the run's evaluation, for all types of images."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import longtail
from longtail.data import Normalisation
from longtail.data import load as load_data
from longtail.inference import ToChannels, Transforms, _pixels

DIGITS = load_data("digits-lt")
PIXELS, LABELS = DIGITS.test.images.pixels, DIGITS.test.labels


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of a run that a test can damage."""

    def make(method, **changes):
        return shutil.copytree(finished(method, **changes), tmp_path / method)

    return make


def stored(folder):
    return load_file(folder / "predictions.safetensors")["test.logits"]


# Linear, cosine, class-scaled, ResLT's branches, projectors and prototypes, a second stage.
@pytest.mark.parametrize("method", ["softmax", "ldam", "lws", "reslt", "bcl", "crt"])
def test_logits_equal_those_of_the_evaluation(finished, method):
    model = longtail.load(finished(method))
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    batch = model.transforms(PIXELS)
    torch.testing.assert_close(batch, (PIXELS / 255 - 0.5) / 0.5)  # grey digits, normalised by 0.5 and 0.5
    with torch.no_grad():
        torch.testing.assert_close(model(batch), stored(finished(method)), rtol=1e-5, atol=1e-5)
    assert model.class_names == tuple("0123456789")
    assert not any("proj" in name or "prototypes" in name for name in model.state_dict())


def test_predict_returns_the_best_label_and_probabilities(finished):
    folder = finished("cbs")
    model = longtail.load(folder)
    labels, probabilities = model.predict(PIXELS, batch_size=33)
    expected = stored(folder).double().softmax(1)
    torch.testing.assert_close(probabilities.double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(labels, stored(folder).argmax(1))
    recall = json.loads((folder / "result.json").read_text())["splits"]["test"]["accuracy"]
    assert float((labels == LABELS).double().mean()) == recall


@pytest.mark.parametrize(
    ("method", "changes"),
    [("tau-norm", {"validation": 0.2}), ("logit-adjust-posthoc", {}), ("cbs", {"beta": "auto"})],
)
def test_posthoc_step_of_the_run_is_applied(finished, method, changes):
    folder = finished(method, **changes)
    result = json.loads((folder / "result.json").read_text())
    kind, strength = result["posthoc"].split("=")
    plain = stored(folder).double()
    if kind == "tau":
        state = load_file(folder / "model.safetensors")
        norms = state["head.linear.weight"].double().norm(dim=1)
        expected = (plain - state["head.linear.bias"].double()) / norms ** float(strength)
    else:
        counts = DIGITS.counts.double()
        expected = plain - float(strength) * (counts / counts.sum()).log()
    expected /= result.get("auto_beta", {}).get("temperature", 1)
    model = longtail.load(folder)
    with torch.no_grad():
        torch.testing.assert_close(model(model.transforms(PIXELS)).double(), expected, rtol=1e-5, atol=1e-5)


def test_posthoc_strength_is_not_rounded(finished):
    folder = finished("logit-adjust-posthoc", tau=0.123456789)
    assert longtail.load(folder).posthoc.strength == 0.123456789


def test_all_image_types_give_the_same_prediction(finished, tmp_path):
    model = longtail.load(finished("cbs"))
    expected = model.predict(PIXELS[:3]).probabilities
    grey = [pixels[0].numpy() for pixels in PIXELS[:3]]
    for number, image in enumerate(grey):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    forms = {
        "paths": [tmp_path / f"{number}.png" for number in range(3)],
        "names": tuple(str(tmp_path / f"{number}.png") for number in range(3)),
        "PIL": [Image.fromarray(image) for image in grey],
        "PIL in colour": [Image.fromarray(image).convert("RGB") for image in grey],
        "arrays": grey,
        "arrays in colour": [np.repeat(image[..., None], 3, 2) for image in grey],
        "arrays to be read only": [np.asarray(Image.fromarray(image)) for image in grey],
        "arrays turned over twice": [np.flip(image).copy()[::-1, ::-1] for image in grey],
        "a batch in an array": np.stack(grey)[..., None],
        "a batch in an array, in colour": np.repeat(np.stack(grey)[..., None], 3, 3),
        "tensors": list(PIXELS[:3]),
        "a batch in colour": PIXELS[:3].expand(-1, 3, -1, -1),
    }
    for name, images in forms.items():
        assert torch.equal(model.predict(images).probabilities, expected), name
    for one in (tmp_path / "0.png", str(tmp_path / "0.png"), forms["PIL"][0], grey[0], PIXELS[0]):
        torch.testing.assert_close(model.predict(one).probabilities, expected[:1])
    torch.testing.assert_close(model.predict(forms["a batch in an array"], batch_size=2).probabilities, expected)
    for none in ([], PIXELS[:0], np.zeros((0, 8, 8, 1), np.uint8)):
        assert model.predict(none).probabilities.shape == (0, 10)


def test_only_read_only_arrays_are_copied():
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert _pixels(image).data_ptr() == image.ctypes.data
    image.flags.writeable = False  # as np.asarray of a PIL image is; torch warns of it, but only once
    assert _pixels(image).data_ptr() != image.ctypes.data
    assert torch.equal(_pixels(image), torch.arange(64, dtype=torch.uint8).view(1, 8, 8))


# Linear, cosine, class-scaled and ResLT heads, and a post-hoc step.
@pytest.mark.parametrize("method", ["cbs", "ldam", "lws", "reslt", "logit-adjust-posthoc"])
@pytest.mark.parametrize(("dtype", "off"), [(torch.half, 0.01), (torch.double, 1e-5)])
def test_model_in_another_dtype_predicts_in_it(finished, tmp_path, method, dtype, off):
    model = longtail.load(finished(method))
    expected = model.predict(PIXELS[:20]).probabilities
    labels, probabilities = model.to(dtype).predict(PIXELS[:20])
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities, expected, rtol=0, atol=off)
    assert torch.equal(labels, probabilities.argmax(1))
    Image.fromarray(PIXELS[0, 0].numpy()).save(tmp_path / "0.png")
    ((_, found),) = model.files([tmp_path / "0.png"])
    torch.testing.assert_close(found, probabilities[0], rtol=0, atol=off)


def test_channels():
    image = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    grey = ToChannels(1)(image)
    red, green, blue = image.double().unbind(1)
    assert torch.equal(grey[:, 0].double(), ((299 * red + 587 * green + 114 * blue) / 1000 + 0.5).floor())
    for mine, pixels in zip(grey, image, strict=True):
        pil = np.asarray(Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")).astype(int)
        assert np.abs(mine[0].numpy().astype(int) - pil).max() <= 1  # its coefficients are rounded otherwise
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(ToChannels(1)(ToChannels(3)(levels)), levels)
    assert torch.equal(ToChannels(3)(levels), levels.repeat(1, 3, 1, 1))
    with pytest.raises(ValueError, match="Expected images with 1 channels, or grey or RGB, but got 4 channels"):
        ToChannels(1)(torch.zeros(1, 4, 2, 2, dtype=torch.uint8))


def test_error_for_wrong_channel_order_names_the_right_one():
    transforms = Transforms(3, 8, Normalisation((0.5,) * 3, (0.5,) * 3))
    order = r"but got 8 channels; a tensor is \(channels, height, width\), a NumPy array \(height, width, channels\)\."
    for images in (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), np.zeros((2, 3, 8, 8), np.uint8)):
        with pytest.raises(ValueError, match=order):
            transforms(images)
        with pytest.raises(ValueError, match=order):
            transforms(images[0])


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((2, 8, 8, 3)), r"an array of float64 and shape \(8, 8, 3\)"),
        (np.zeros((1, 2, 8, 8, 3), np.uint8), r"an array of uint8 and shape \(1, 2, 8, 8, 3\)"),
        (np.array(["a.png"]), r"an array of <U5 and shape \(1,\)"),
    ],
)
def test_array_that_is_not_an_image_is_described_by_type_and_shape(array, found):
    with pytest.raises(TypeError, match=rf"a NumPy array \(height, width, channels\), but got {found}\."):
        Transforms(3, 8, Normalisation((0.5,) * 3, (0.5,) * 3))(array)


def test_sizes():
    """Images are resized like PIL, whose rounding may differ by one level; ImageNet recipes crop the centre."""
    plain = Normalisation((0.0,) * 3, (1 / 255,) * 3)
    image = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    pil = Image.fromarray(image.permute(1, 2, 0).numpy())
    small = np.asarray(pil.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    found = Transforms(3, 16, plain, "cifar")([image, pil])
    assert found.shape == (2, 3, 16, 16)
    assert torch.equal(found[0], found[1])
    assert np.abs(found[0].numpy() - small).max() <= 1.01
    middle = pil.resize((48, 32), Image.Resampling.BILINEAR).crop((10, 2, 38, 30))
    found = Transforms(3, 28, plain, "imagenet")(pil)
    assert np.abs(found[0].numpy() - np.asarray(middle).transpose(2, 0, 1)).max() <= 1.01
    # Images that were in memory at their size were not cut in the run's evaluation, files were.
    sized = torch.randint(0, 256, (1, 3, 28, 28), dtype=torch.uint8)
    torch.testing.assert_close(Transforms(3, 28, plain, "imagenet", in_memory=True)(sized), sized.float())
    assert not torch.equal(Transforms(3, 28, plain, "imagenet")(sized), sized.float())


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 1, 8, 8),
        [torch.zeros(1, 8, 8)],
        [torch.zeros(8, 8, dtype=torch.uint8)],
        [np.zeros((8, 8))],
        3,
        [None],
        Image.new("F", (8, 8)),
    ],
)
def test_objects_that_are_not_images_are_refused(finished, images):
    with pytest.raises(TypeError, match="Expected"):
        longtail.load(finished("cbs")).predict(images)


def test_file_that_is_not_an_image_is_refused(finished, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.png to be an image, but it is empty"):
        longtail.load(finished("cbs")).predict(tmp_path / "a.png")


def test_predict_keeps_the_training_mode(finished):
    model = longtail.load(finished("cbs")).train()
    model.model.backbone.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = longtail.load(finished("cbs")).predict(PIXELS[:5])
    assert torch.equal(model.predict(PIXELS[:5]).probabilities, expected.probabilities)
    assert model.training
    assert not model.model.backbone.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_loaded_model_can_be_trained(finished):
    model = longtail.load(finished("cbs"))
    model(model.transforms(PIXELS[:4])).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_loading_needs_neither_method_nor_data(copy):
    """The plugin of a method need not be installed where the model is used."""
    folder = copy("cbs")
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('method = "cbs"', 'method = "mine"'))
    for name in ("statistics.safetensors", "predictions.safetensors", "log.jsonl"):
        (folder / name).unlink()
    assert longtail.load(folder).predict(PIXELS[:2]).labels.shape == (2,)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_executed(copy, tmp_path):
    folder = copy("cbs")
    for name in ("model.safetensors", "result.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
        with pytest.raises(ValueError, match=name):
            longtail.load(folder)
        torch.save({"a": Touch(tmp_path / "touched")}, folder / name)
        with pytest.raises(ValueError, match=name):
            longtail.load(folder)
        (folder / name).write_bytes(whole)
    assert not (tmp_path / "touched").exists()


def change_card(folder, **changes):
    """Replace or remove entries of the model file's header."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["longtail"])
    card.update(changes)
    card = {name: value for name, value in card.items() if value is not ...}
    save_file(load_file(path), path, {"longtail": json.dumps(card)})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": ...}, "has no 'model'"),
        ({"classes": ...}, "has no 'classes'"),
        ({"model": "os.system"}, "'os.system'"),
        ({"model": "resnet32"}, "Missing key"),
        ({"classes": ["a", "b"]}, "size mismatch"),
        ({"head": "cosine"}, "Missing key"),
        ({"head": "__import__"}, "'__import__'"),
        ({"counts": [1, 2]}, "10 classes, but got 2"),
        ({"mean": [0.5, 0.5], "std": [0.5, 0.5]}, "1 channels"),
        ({"std": [0.0]}, "`std` > 0"),
        ({"channels": 0}, "0 channels"),
        ({"image_size": 100_000}, "`image_size`"),
        ({"mean": 3}, "damaged (TypeError)"),
    ],
)
def test_wrong_model_header_is_refused(copy, changes, reason):
    folder = copy("cbs")
    change_card(folder, **changes)
    with pytest.raises(ValueError, match=r"model\.safetensors") as caught:
        longtail.load(folder)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unfinished_or_damaged_run_is_refused(copy, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected a finished run in .*nowhere, but there is no result\.json"):
        longtail.load(tmp_path / "nowhere")
    folder = copy("cbs")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="to be a whole safetensors file, but it is damaged"):
        longtail.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="Expected a model in"):
        longtail.load(folder)
    (folder / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match="Expected a finished run"):
        longtail.load(folder)


def test_load_is_exported_and_imported_on_use():
    from longtail.inference import load

    assert longtail.load is load
    with pytest.raises(AttributeError, match="no_such_name"):
        longtail.no_such_name  # noqa: B018

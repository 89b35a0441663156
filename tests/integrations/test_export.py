"""`longtail export`: the exported models, run by other libraries, have the logits of `longtail.load`."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms import v2

import longtail
from longtail.data import load as load_data
from longtail.integrations.export import export
from longtail.models import build_model
from longtail.train import Trainer, defaults

DIGITS = load_data("digits-lt")
PIXELS = DIGITS.test.images.pixels[:7]
COLOURS = {"r|ed": (24, (160, 0, 0)), "<b>green": (12, (0, 160, 0)), "blue": (6, (0, 0, 160))}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of colour images of several sizes, with class names that Markdown must escape."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, (number, colour) in COLOURS.items():
        (folder / name).mkdir()
        for one in range(number):
            size = (*generator.integers(66, 90, 2), 3)
            pixels = generator.integers(0, 90, size) + np.array(colour)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{one}.png")
    return folder


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """Return a function that trains a library's network on the photos for an epoch, once per network."""
    known = {}

    def run(model, **changes):
        if model not in known:
            settings = {"model": model, "epochs": 1, "batch_size": 16, "test": 0.25, "device": "cpu", **changes}
            known[model] = tmp_path_factory.mktemp("run") / "run"
            Trainer(
                defaults(str(photos), "logit-adjust-posthoc").changed(image_size=64, **settings), known[model]
            ).run()
        return known[model]

    return run


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """A run on feature vectors that are not standardised."""
    folder, generator = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], [60, 20, 8])
    vectors = generator.normal(size=(88, 12)) * 5 + 100 + np.repeat(np.eye(3, 12) * 9, [60, 20, 8], axis=0)
    np.savez(folder / "features.npz", features=vectors.astype(np.float32), labels=labels)
    recipe = defaults(str(folder / "features.npz"), "cbs").changed(beta=1.5, model="mlp-16", epochs=2, device="cpu")
    Trainer(recipe, folder / "run").run()
    return folder / "run"


def onnx_logits(folder, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert entry.shape[0] == "batch"
    return torch.from_numpy(session.run(None, {entry.name: inputs.numpy()})[0])


def program_logits(folder, inputs):
    return torch.export.load(folder / "model.pt2").module()(inputs)


def state_logits(folder, images):
    plain = build_model("small-cnn", 10, in_channels=1).eval()
    plain.load_state_dict(load_file(folder / "model.safetensors"))
    return plain(images).logits


def check(found, expected):
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-5, atol=2e-5)


# Linear, cosine and ResLT heads, learned scales, and all kinds of post-hoc steps.
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ldam", {}),
        pytest.param("reslt", {}, marks=pytest.mark.slow),
        pytest.param("lws", {}, marks=pytest.mark.slow),
        pytest.param("tau-norm", {"validation": 0.2}, marks=pytest.mark.slow),
        ("cbs", {"beta": "auto"}),
    ],
)
def test_programs_have_the_logits_of_load(finished, tmp_path, method, changes):
    run = finished(method, **changes)
    model = longtail.load(run)
    batch = model.transforms(PIXELS)
    for to, logits in (("onnx", onnx_logits), ("torch.export", program_logits)):
        found = export(run, to, tmp_path / to)
        assert found.difference < 1e-4
        assert {one.name for one in (tmp_path / to).iterdir()} == set(found.files)
        for number in (7, 1):
            check(logits(tmp_path / to, batch[:number]), model(batch[:number]))


@pytest.mark.parametrize(
    ("method", "changes"), [("lws", {}), ("tau-norm", {"validation": 0.2}), ("cbs", {"beta": "auto"})]
)
def test_state_dict_of_our_networks_has_the_step_in_its_classifier(finished, tmp_path, method, changes):
    run = finished(method, **changes)
    export(run, "state-dict", tmp_path / "out")
    model = longtail.load(run)
    check(state_logits(tmp_path / "out", model.transforms(PIXELS)), model(model.transforms(PIXELS)))


@pytest.mark.parametrize("to", ["onnx", "torch.export", "state-dict"])
def test_features(features, tmp_path, to):
    export(features, to, tmp_path / "out")
    model = longtail.load(features)
    vectors = 100 + 5 * torch.randn(6, 12)
    if to == "state-dict":
        plain = build_model("mlp-16", 3, in_channels=12).eval()
        plain.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
        found = plain(vectors).logits
    else:
        found = (onnx_logits if to == "onnx" else program_logits)(tmp_path / "out", vectors)
    check(found, model(vectors))
    about = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert about == {"input": "features", "shape": ["batch", 12], "dtype": "float32", "classes": ["a", "b", "c"]}


def test_plain_models_of_timm_and_torchvision_load_the_state_dict(trained, photos, tmp_path):
    import timm
    import torchvision

    files = sorted(photos.glob("*/1.png"))
    for name, make in (
        ("timm:test_vit", lambda: timm.create_model("test_vit", num_classes=3, img_size=64)),
        ("torchvision:shufflenet_v2_x0_5", lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=3)),
    ):
        run, out = trained(name), tmp_path / name.partition(":")[0]
        export(run, "state-dict", out)
        plain = make().eval()
        plain.load_state_dict(load_file(out / "model.safetensors"))
        model = longtail.load(run)
        assert model.posthoc is not None
        batch = model.transforms(files)
        check(plain(batch), model(batch))
        # The code of the card makes the same model.
        code = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)[1]
        space = {"images": batch}
        exec(code.replace('"model.safetensors"', repr(str(out / "model.safetensors"))), space)
        check(space["logits"], model(batch))


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet"])
def test_timm_reads_the_folder_and_prepares_images_alike(trained, photos, tmp_path, name):
    import timm

    run = trained(name)
    found = export(run, "timm", tmp_path / "out")
    assert found.files[:2] == ("model.safetensors", "config.json")
    plain = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    model = longtail.load(run)
    batch = model.transforms(sorted(photos.glob("*/1.png")))
    check(plain(batch), model(batch))
    config = timm.data.resolve_model_data_config(plain)
    prepare = timm.data.create_transform(**config)
    theirs = torch.stack([prepare(Image.open(file)) for file in sorted(photos.glob("*/1.png"))])
    # PIL rounds between rows and columns: by one level of 255, divided by the standard deviation.
    torch.testing.assert_close(theirs, batch, rtol=0, atol=1.01 / 255 / min(config["std"]))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["label_names"] == list(model.class_names)


def test_torchvision_resnet_is_one_of_timm(trained, tmp_path):
    """Both libraries name the weights of ResNets alike; the logits are compared before the folder is kept."""
    import timm

    run = trained("torchvision:resnet18")
    export(run, "timm", tmp_path / "out")
    model, inputs = longtail.load(run), torch.randn(2, 3, 64, 64)
    check(timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()(inputs), model(inputs))


def test_preprocessing_file_is_enough_to_prepare_images(trained, photos, tmp_path):
    run = trained("timm:test_resnet")
    export(run, "state-dict", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert (about["channels"], about["shape"]) == ("RGB", ["batch", 3, 64, 64])
    resize = about["resize"]
    steps = [v2.PILToTensor(), v2.Resize(resize["to"], antialias=resize["antialias"])]
    steps += [v2.CenterCrop(about["centre_crop"])] if about["centre_crop"] else []
    prepare = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(about["mean"], about["std"])])
    files = sorted(photos.glob("*/2.png"))
    model = longtail.load(run)
    theirs = torch.stack([prepare(Image.open(file)) for file in files])
    torch.testing.assert_close(theirs, model.transforms(files), rtol=0, atol=1.01 / 255 / min(about["std"]))
    assert tuple(about["classes"]) == model.class_names


def log(values):
    values = torch.tensor(values, dtype=torch.float64)
    return (values / values.sum()).log()


def test_prior_is_built_in(finished, tmp_path):
    counts = DIGITS.counts.tolist()
    wanted = [float(10 - c) for c in range(10)]
    wanted[3] = 0.0  # never predicted
    (tmp_path / "prior.json").write_text(json.dumps({str(c): wanted[c] for c in reversed(range(10))}))
    for method, subtracted in (("softmax", log(counts)), ("cbs", 0.0)):  # cbs is for equally frequent classes already
        model = longtail.load(finished(method))
        plain = model(model.transforms(PIXELS)).double()
        for name, prior, target in (
            ("file", tmp_path / "prior.json", log(wanted)),
            ("train", "train", log(counts)),
            ("uniform", "uniform", log([1.0] * 10)),
        ):
            out = tmp_path / f"{method}-{name}"
            export(finished(method), "state-dict", out, prior=prior)
            check(state_logits(out, model.transforms(PIXELS)).double(), plain - subtracted + target)
            assert "class probabilities" in (out / "README.md").read_text()
    export(finished("cbs"), "onnx", tmp_path / "onnx", prior=wanted)
    check(onnx_logits(tmp_path / "onnx", model.transforms(PIXELS)).double(), plain + log(wanted))


def test_card_has_measures_counts_and_how_beta_was_found(finished, tmp_path):
    run = finished("cbs", beta="auto")
    result = json.loads((run / "result.json").read_text())
    export(run, "torch.export", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    recalls = result["splits"]["test"]["recall"]
    cells = " | ".join(f"{100 * recalls[name]:.1f}" for name in ("head", "medium", "tail", "all"))
    assert f"| test | 500 | {cells} |" in card
    assert f"{result['auto_beta']['measured']:.2f} ± {result['auto_beta']['std_error']:.2f}" in card
    for c, count in enumerate(result["counts"]):
        recall = 100 * result["splits"]["test"]["recall_per_class"][c]
        assert f"| {c} | {count} | 50 | {recall:.1f} |" in card
    assert "one training run" in card
    assert str(tmp_path) not in card


def test_names_and_paths_in_a_card_are_escaped(trained, photos, tmp_path):
    export(trained("timm:test_resnet"), "torch.export", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert r"| r\|ed |" in card
    assert r"| \<b\>green |" in card
    assert str(photos) not in card
    assert "fewer than 20 test samples" in card
    assert "counting those held out for validation). " in card


def test_mistakes_are_one_sentence(finished, tmp_path, run, monkeypatch):
    here = tmp_path / "exists"
    here.mkdir()
    (tmp_path / "other.json").write_text('{"0": 1, "x": 1}')
    (tmp_path / "negative.json").write_text(json.dumps({str(c): -1 for c in range(10)}))
    (tmp_path / "text.json").write_text('{"0": "many"}')
    cbs, ldam = finished("cbs"), finished("ldam")
    for words, said in (
        ((cbs, "--to", "onnx", "--out", here), "--out to be a new folder"),
        ((here, "--to", "onnx", "--out", tmp_path / "new"), "a finished run"),
        ((cbs, "--to", "timm", "--out", tmp_path / "new"), "network of timm"),
        ((ldam, "--to", "state-dict", "--out", tmp_path / "new"), "linear classifier"),
        ((cbs, "--to", "tflite", "--out", tmp_path / "new"), "--to to be one of"),
        ((cbs, "--to", "onnx"), "--out"),
        ((cbs, "--to", "onnx", "--out", tmp_path / "new", "--prior", tmp_path / "no.json"), "no.json"),
        ((cbs, "--to", "onnx", "--out", tmp_path / "new", "--prior", tmp_path / "other.json"), "--prior"),
        ((cbs, "--to", "onnx", "--out", tmp_path / "new", "--prior", tmp_path / "negative.json"), "--prior to hold"),
        ((cbs, "--to", "onnx", "--out", tmp_path / "new", "--prior", tmp_path / "text.json"), "text.json"),
    ):
        code, out, err = run("export", *words)
        assert (code, out) == (2, ""), words
        assert said in err, (words, err)
        assert err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = run("export", cbs, "--to", "onnx", "--out", tmp_path / "new")
    assert (code, err.count("\n")) == (2, 1)
    assert "longtail[onnx]" in err
    assert {one.name for one in tmp_path.iterdir()} == {"exists", "other.json", "negative.json", "text.json"}


def test_command_says_what_it_wrote(finished, tmp_path, run):
    code, out, err = run("export", finished("cbs"), "--to", "state-dict", "--out", tmp_path / "new" / "model")
    assert (code, err) == (0, "")
    assert "model.safetensors, preprocessing.json, README.md" in out
    assert "logits are those of" in out

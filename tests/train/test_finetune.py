"""Training a pretrained network: what is trained, how it resumes, and what is saved."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.train.conftest import assert_same_run, logged, recipe_for, stop_and_resume

import longtail
from longtail.data import FeatureVectors, Split, load
from longtail.inference import evaluate_on
from longtail.methods import METHODS
from longtail.train import RunFolder, Trainer, defaults, train
from longtail.train.fitting import fitting_settings
from longtail.train.own import OwnImages

EVERYTHING = {"ema": 0.9, "cutmix": 1.0, "mixup": 0.3, "drop_path": 0.3, "optimizer": "lion", "warmup_steps": 9}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file with weights of timm's smallest ViT."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    return path


def recipe_with(weights, method="cbs", **settings):
    given = {
        "model": "timm:test_vit",
        "weights": weights and str(weights),
        "image_size": 32,
        "epochs": 2,
        "batch_size": 64,
    }
    return recipe_for(method, **given | {"lr": 1e-3, "optimizer": "adamw", "warmup": 0} | settings)


def finished(path, weights, **settings):
    folder = RunFolder(path)
    return folder, Trainer(recipe_with(weights, **settings), folder).run()


# --- what is trained


def changed(weights, tmp_path, **settings):
    """Return the names of weights that training changes, and the model file."""
    folder, _ = finished(tmp_path, weights, **settings)
    before = {f"backbone.network.{name}": value for name, value in load_file(weights).items()}
    del before["backbone.network.patch_embed.proj.weight"], before["backbone.network.pos_embed"]  # for other images
    after = load_file(folder.model_file)
    return {name for name, value in after.items() if name in before and not value.equal(before[name])}, after


def test_only_norms_change(weights, tmp_path):
    names, _ = changed(weights, tmp_path, train="norm")
    assert len(names) > 10
    assert all("norm" in name for name in names)


def test_only_linear_layers_change_with_lora_by_matrices_of_the_rank(weights, tmp_path):
    names, after = changed(weights, tmp_path, train="lora", rank=3)
    assert {name.rsplit(".", 2)[1] for name in names} == {"qkv", "proj", "fc1", "fc2"}
    before = load_file(weights)
    for name in names:
        assert name.endswith(".weight")
        change = (after[name] - before[name.removeprefix("backbone.network.")]).double()
        assert torch.linalg.matrix_rank(change, rtol=1e-3) == 3
    assert not any("lora" in name for name in after)


def test_a_model_trained_with_lora_needs_no_peft(weights, tmp_path):
    folder, _ = finished(tmp_path, weights, train="lora")
    code = f"""
import sys
sys.modules["peft"] = None
import longtail, torch
model = longtail.load({str(folder.path)!r})
print(model.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).labels.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert len(json.loads(done.stdout)) == 2


def test_only_adapters_change_and_the_run_is_theirs(weights, tmp_path):
    """The saved model and its programs have the logits of the run; a network of timm has no place for adapters."""
    names, after = changed(weights, tmp_path / "run", train="adapter", rank=3, drop_path=0.2)
    assert not names  # of those in the file that still have their name
    before, added = load_file(weights), {}
    for name, value in after.items():
        if ".mlp.mlp." in name:
            assert value.equal(before[name.replace(".mlp.mlp.", ".mlp.").removeprefix("backbone.network.")])
        elif ".adapter." in name:
            added[name.split("mlp.")[1], tuple(value.shape)] = value
    assert added.keys() == {
        ("adapter.0.weight", (3, 64)),
        ("adapter.0.bias", (3,)),
        ("adapter.2.weight", (64, 3)),
        ("adapter.2.bias", (64,)),
    }
    assert all(value.any() for value in added.values())
    dataset, expected = load("digits-lt"), load_file(tmp_path / "run" / "predictions.safetensors")["test.logits"]
    pixels = torch.stack([dataset.test.images[place] for place in range(50)])
    model = longtail.load(tmp_path / "run")
    torch.testing.assert_close(model(model.transforms(pixels)), expected[:50], rtol=1e-4, atol=1e-5)
    found = evaluate_on(tmp_path / "run", dataset).result["splits"]["test"]
    assert found["recall"] == pytest.approx(RunFolder(tmp_path / "run").result()["splits"]["test"]["recall"])
    for to in ("onnx", "torch.export"):  # each compares the logits
        longtail.export(tmp_path / "run", to, tmp_path / to)
    for to in ("timm", "state-dict"):
        with pytest.raises(ValueError, match=f"run without adapters with `to` = {to}"):
            longtail.export(tmp_path / "run", to, tmp_path / to)


def test_a_head_on_a_frozen_backbone_is_a_linear_model_of_its_features(weights, tmp_path):
    """The same as training on the features in an array, and the saved model works on images."""
    given = {"train": "head", "lr": 1e-2, "weight_decay": 1.0, "epochs": 5, "head_init": "means"}
    folder, result = finished(tmp_path / "head", weights, channels_last=True, **given)
    model = longtail.load(folder.path)
    longtail.export(folder.path, "state-dict", tmp_path / "exported")  # compares the logits
    dataset, parts = load("digits-lt"), {}
    for name, split in dataset.splits.items():
        images = torch.stack([split.images[place] for place in range(len(split))])
        with torch.no_grad():
            parts[name] = Split(FeatureVectors(model.model.backbone(model.transforms(images))), split.labels)
    features = replace(dataset, **parts)
    settings = {name: value for name, value in given.items() if name != "train"} | {"optimizer": "adamw", "warmup": 0}
    same = recipe_for("cbs", model="linear", augment="none", batch_size=64, **settings)
    Trainer(same.changed(imbalance=None), tmp_path / "linear", dataset=features).run()
    ours, expected = (load_file(tmp_path / one / "predictions.safetensors") for one in ("head", "linear"))
    torch.testing.assert_close(ours["test.logits"], expected["test.logits"], rtol=1e-3, atol=1e-3)
    pixels = torch.stack([dataset.test.images[place] for place in range(50)])
    torch.testing.assert_close(
        model.predict(pixels).probabilities, ours["test.logits"][:50].softmax(1), rtol=1e-4, atol=1e-5
    )
    assert result["splits"]["test"]["recall"]["all"] > 0.4
    assert (
        RunFolder(folder).checkpoints / "0-00005-0000000.safetensors"
    ).stat().st_size < 2**17  # without the backbone


@pytest.fixture
def pictures(tmp_path):
    """Forty files of different sizes in two classes."""
    for label, name in enumerate("ab"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(30 - 20 * label):
            pixels = np.random.default_rng(number).integers(100 * label, 155 + 100 * label, (20 + number, 80, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_runs_share_features_until_an_image_changes(weights, pictures, tmp_path):
    given = {"model": "timm:test_vit", "weights": str(weights), "recipe": "probe", "image_size": 32, "device": "cpu"}

    def train_two(*seeds):
        base = defaults(str(pictures), "softmax", given=given).changed(**given, epochs=2, workers=0)
        train([base.changed(seed=seed) for seed in seeds], tmp_path / "runs")
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("features-*")}

    first = train_two(0, 1)  # with different validation images
    assert len(first) == 1
    Image.new("RGB", (30, 40)).save(pictures / "a/3.png")
    second = train_two(2, 3)
    assert len(second) == 2
    assert first.items() < second.items()
    for file in second:
        file.write_bytes(file.read_bytes()[:-1])
    train_two(4, 5)  # a damaged file does not stop a run


def test_a_file_that_is_no_image_is_named_with_a_remedy_that_works(weights, pictures, tmp_path):
    (pictures / "a/3.png").write_bytes(b"<html>")
    given = {"model": "timm:test_vit", "weights": str(weights), "recipe": "probe", "image_size": 32, "device": "cpu"}
    given |= {"test": 0.3, "weight_decay": 1.0}  # one of 40 files is damaged
    recipe = defaults(str(pictures), "softmax", given=given).changed(**given, epochs=2, workers=0, checkpoint_epochs=1)
    with pytest.raises(ValueError, match=r"a/3\.png.*`bad_images` = skip"):
        train(recipe, tmp_path / "run")
    skipping = recipe.changed(bad_images="skip")
    skipped, again = (train([skipping], tmp_path / name)[0] for name in ("skipped", "skipped again"))
    for folder in (skipped, again):  # the features of the second one come from the cache
        assert set(json.loads(folder.unreadable_file.read_text())) == {str(pictures / "a/3.png")}
        read = {name: one["samples"] for name, one in folder.result()["splits"].items()}
        assert read == {"train": 25, "train_paper": 25, "val": 3, "test": 11}
    assert_same_run(again, skipped)
    stopped = RunFolder(tmp_path / "stopped")
    stop_and_resume(skipping, stopped, 1, 2)
    assert_same_run(stopped, skipped)


def test_a_head_from_class_means_predicts_the_nearest_one(weights, tmp_path):
    for head, part in (("linear", "head"), ("linear", "lora"), ("cosine", "lora")):
        recipe = recipe_with(weights, train=part, head_init="means", head=head)
        trainer = Trainer(recipe, tmp_path / head / part)
        model = trainer.stages.build().eval()
        batch = next(trainer.loaders.evaluation(trainer.dataset.train).evaluation())
        with torch.no_grad():
            outputs = model(batch.views[0])
        features = outputs.features.double()
        if head == "cosine":
            features = torch.nn.functional.normalize(features, dim=1)
            means = torch.stack([outputs.features.double()[batch.labels == c].mean(0) for c in range(10)])
            nearest = (features @ torch.nn.functional.normalize(means, dim=1).T).argmax(1)
        else:
            means = torch.stack([features[batch.labels == c].mean(0) for c in range(10)])
            nearest = torch.cdist(features, means).argmin(1)
        assert (outputs.logits.argmax(1) == nearest).double().mean() > 0.99


def embeddings(path, length=64, classes="9876543210x"):
    """Write an embedding for each digit, in another order than the classes, and one of another class."""
    rows = np.random.default_rng(0).normal(size=(len(classes) or 10, length)) + 0.5
    np.savez(path, features=rows, **({"classes": list(classes)} if classes else {}))
    return str(path), rows[9::-1]


@pytest.mark.parametrize(("head", "part"), [("linear", "head"), ("linear", "adapter"), ("cosine", "head")])
def test_a_head_from_class_embeddings_predicts_the_nearest_one(weights, tmp_path, head, part):
    """By cosine, of what the head reads: of a frozen backbone standardised features, and embeddings like them."""
    file, rows = embeddings(tmp_path / "names.npz", 64)
    trainer = Trainer(recipe_with(weights, train=part, head_init=file, head=head), tmp_path / "run")
    model = trainer.stages.build().eval()
    batch = next(trainer.loaders.evaluation(trainer.dataset.train).evaluation())
    with torch.no_grad():
        outputs = model(batch.views[0])
    features = outputs.features.double().numpy()
    if part == "head":
        stored = trainer.loaders.features[trainer.dataset.train].images.pixels.double().numpy()
        mean, std = stored.mean(0), stored.std(0)
        np.testing.assert_allclose(features, (batch.views[0].numpy() - mean) / std, rtol=1e-3, atol=1e-3)
        rows = (rows - mean) / std
    cosines = features @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
    assert len(set(cosines.argmax(1))) > 2
    assert (outputs.logits.argmax(1).numpy() == cosines.argmax(1)).mean() > 0.99


@pytest.mark.parametrize("method", ["crt", "ldam-drw", "bcl", "tau-norm"])
def test_methods_work_on_what_is_trained(weights, tmp_path, method):
    more = {"validation": 0.1} if method == "tau-norm" else {}
    if method == "bcl":
        more |= {"hidden": 16, "projection": 16}
    for part in ("head", "lora", "adapter"):
        _, result = finished(tmp_path / part, weights, method=method, train=part, epochs=1, **more)
        assert result["method"] == method


# --- resuming


CASES = {
    "all at once": EVERYTHING,
    "lamb": {"optimizer": "lamb"},
    "head": {"train": "head", "head_init": "means", "lr": 1e-2},
    "lora": {"train": "lora", "head_init": "means", "ema": 0.9},
    "adapter": {"train": "adapter", "method": "crt", "ema": 0.9, "classifier_epochs": 1, "drop_path": 0.2},
    "norm": {"train": "norm", "best_epoch": True, "validation": 0.2, "ema": 0.8},
    "two stages": {"method": "crt", "ema": 0.9, "classifier_epochs": 1, "drop_path": 0.2},
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_run_ends_like_an_undisturbed_one(weights, tmp_path, case):
    settings = CASES[case] | {"evaluate_every": 1, "train_stats": "paper"}
    reference, _ = finished(tmp_path / "reference", weights, **settings)
    folder = RunFolder(tmp_path / "stopped")
    stop_and_resume(recipe_with(weights, **settings), folder, 2, 5, 3)
    assert folder.done
    assert_same_run(folder, reference)


# --- what is drawn and averaged


def test_average_is_that_of_the_weights_after_each_step(tmp_path):
    """By hand, from the weights after each step of a run without it; the saved model is the average."""
    settings = {"epochs": 1, "batch_size": 48}
    trainer = Trainer(recipe_for("cbs", **settings), tmp_path / "plain")
    model = trainer.stages.build()
    trainer.stages.build = lambda fresh: model
    average = {name: value.clone().double() for name, value in model.state_dict().items()}
    for steps, _ in enumerate(trainer.steps(), 1):
        decay = min(0.6, steps / (steps + 9))
        for name, value in model.state_dict().items():
            average[name] = decay * average[name] + (1 - decay) * value.double()
    folder = RunFolder(tmp_path / "average")
    result = Trainer(recipe_for("cbs", ema=0.6, **settings), folder).run()
    assert result["reported"] == "last epoch, moving average of the weights"
    saved = load_file(folder.model_file)
    for name, value in average.items():
        if saved[name].is_floating_point():
            torch.testing.assert_close(saved[name].double(), value, rtol=1e-5, atol=1e-7)
    assert any(not saved[name].equal(value) for name, value in model.state_dict().items())


def test_rates_rise_over_steps(tmp_path, monkeypatch):
    trainer = Trainer(recipe_for("cbs", warmup_steps=10, lr=0.2, schedule="constant", epochs=3, warmup=2), tmp_path)
    rates, steps = [], trainer.loaders.steps_per_epoch
    start = trainer.stages.start

    def watched(model, number):
        running = start(model, number)
        step = running.step.optimizer.step
        optimizer = running.step.optimizer
        monkeypatch.setattr(optimizer, "step", lambda: (rates.append(optimizer.param_groups[0]["lr"]), step()))
        return running

    trainer.stages.start = watched
    trainer.run()
    assert rates == pytest.approx([0.2 * min(1, (n + 1) / 10) for n in range(3 * steps)])
    assert [line["lr"] for line in logged(trainer.folder)] == pytest.approx([rates[steps - 1], 0.2, 0.2])


# --- recipes


@pytest.mark.parametrize("name", ["finetune", "probe", "lora"])
def test_named_recipes(name, pictures):
    for method in METHODS:
        by_name = defaults("digits-lt", method, given={"recipe": name})
        assert by_name.recipe == name
        assert by_name.optimizer == "adamw"
        assert by_name.changed(seed=1, method="crt").params.classifier_lr < 0.1  # SGD's
    cifar = [
        defaults("cifar100-lt", method, 100, given={"recipe": name}) for method in ("softmax", "bcl", "ldam", "cbs")
    ]
    assert len({(one.lr, one.weight_decay, one.epochs) for one in cifar}) == 1  # nothing for another network
    assert cifar[-1].params.beta == "auto"
    own = defaults(str(pictures), "cbs", given={"recipe": name, "weights": "some.pt"})
    assert own.train == {"finetune": "all", "probe": "head", "lora": "lora"}[name]
    assert own.batch_size == 16  # fitted to the number of images


def test_defaults_fit_what_is_trained():
    images = OwnImages(number=5000, classes=8, height=200, width=300, small=False)
    tuned = {"weights": "some.pt", "model": "timm:vit_small_patch16_224"}
    lora = fitting_settings(images, {**tuned, "train": "lora"})
    assert fitting_settings(images, {**tuned, "train": "adapter"}) == lora
    assert (lora["optimizer"], lora["layer_decay"]) == ("adamw", 1.0)
    assert lora["lr"] > fitting_settings(images, tuned)["lr"]
    head = fitting_settings(images, {**tuned, "train": "head"})
    assert (head["optimizer"], head["lr"], head["weight_decay"]) == ("adamw", 1e-2, "auto")
    assert fitting_settings(images, {**tuned, "optimizer": "lion"})["optimizer"] == "lion"


# --- mistakes

MISTAKEN = {"short.npz": {"length": 32}, "incomplete.npz": {"classes": "0123456"}, "nameless.npz": {"classes": ""}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"train": "head", "weights": None}, "`weights` or `pretrained` with `train` = head"),
        ({"recipe": "finetune", "weights": None}, "`weights` or `pretrained` with `recipe` = finetune"),
        ({"train": "head", "mixup": 0.2}, "`mixup` = 0 with `train` = head"),
        ({"train": "head", "layer_decay": 0.5}, "`layer_decay` = 1 with `train` = head"),
        ({"train": "lora", "model": "timm:resnet10t"}, "linear layers for `train` = lora"),
        ({"train": "adapter", "model": "timm:resnet10t"}, "transformer blocks for `train` = adapter"),
        ({"train": "head", "method": "reslt", "model": "timm:resnet10t"}, "reslt reads maps"),
        ({"drop_path": 0.1, "model": "timm:vgg11"}, "no `drop_path` with vgg11"),
        ({"drop_path": 0.1, "model": "small-cnn"}, "no `drop_path` with small-cnn"),
        ({"head_init": "means", "method": "reslt", "model": "timm:resnet10t"}, "`head_init` = random"),
        ({"head_init": "mean"}, "`head_init` to be random, means or a file of embeddings, but got 'mean'"),
        ({"head_init": "nowhere.npz"}, "nowhere.npz to be a file of features"),
        ({"head_init": "short.npz"}, "`features` of 64 numbers"),
        ({"head_init": "incomplete.npz", "train": "head"}, "embedding of each class, but it has none of '7', '8', '9'"),
        ({"head_init": "nameless.npz"}, "10 rows and 0 names"),
        ({"optimizer": "adamz"}, "`optimizer` to be sgd, adamw or one of timm's, but got 'adamz'"),
        ({"optimizer": "adahessian"}, "but got adahessian"),
        ({"optimizer": "kron"}, "but got kron"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, weights, settings, named):
    name = settings.get("model", "")
    if name.startswith("timm:"):
        settings = settings | {"weights": str(tmp_path / "w.pt")}
        torch.save(timm.create_model(name.removeprefix("timm:")).state_dict(), tmp_path / "w.pt")
    elif name:
        settings = settings | {"weights": None}
    if settings.get("head_init") in MISTAKEN:
        settings["head_init"], _ = embeddings(tmp_path / "names.npz", **MISTAKEN[settings["head_init"]])
    with pytest.raises((ValueError, FileNotFoundError), match=named) as error:
        Trainer(recipe_with(**{"weights": weights} | settings), tmp_path / "run").run()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "recipe.toml").exists()

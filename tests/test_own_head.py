"""The head of examples/own_head.py works like a built-in one."""

import pytest
import torch
import torch.nn.functional as F

import longtail
from longtail._io import read_tensors, write_tensors
from longtail.models import HEADS, HeadSpec, build_model, replace_head
from longtail.train import Trainer, defaults


@pytest.fixture(autouse=True)
def _registered(example):
    example("own_head")
    yield
    HEADS.unregister("prototype")


def test_one_step_and_the_model_header(tmp_path):
    spec = HeadSpec("prototype", {"temperature": 64.0})
    model = build_model("small-cnn", 10, head=spec, in_channels=1)
    images, labels = torch.randn(20, 1, 8, 8), torch.arange(20) % 10
    optimizer = torch.optim.SGD(model.trainable("all"), lr=0.05)
    outputs = model(images)
    expected = -torch.cdist(outputs.features.double(), model.head.prototypes.double()).square() / 64
    torch.testing.assert_close(outputs.logits.double(), expected, rtol=1e-4, atol=1e-4)
    before = F.cross_entropy(outputs.logits, labels)
    before.backward()
    optimizer.step()
    assert F.cross_entropy(model(images).logits, labels) < before
    write_tensors(
        tmp_path / "model.safetensors", model.state_dict(), {"head": spec.name, "head_options": dict(spec.options)}
    )
    state, card = read_tensors(tmp_path / "model.safetensors")
    again = build_model("small-cnn", 10, head=HeadSpec(card["head"], card["head_options"]), in_channels=1)
    again.load_state_dict(state)
    assert again.head.temperature == 64
    assert torch.equal(again.eval()(images).logits, model.eval()(images).logits)
    assert replace_head(model, "linear", seed=1).head.weight.shape == (10, 64)
    with pytest.raises(ValueError, match="temperature"):
        build_model("small-cnn", 10, head=HeadSpec("prototype", {"temperature": 0}))


def test_run_is_trained_and_loaded(tmp_path):
    recipe = defaults("digits-lt", "balanced-softmax").changed(
        epochs=1, evaluate_every=0, device="cpu", head="prototype"
    )
    Trainer(recipe, tmp_path / "run").run()
    loaded = longtail.load(tmp_path / "run")
    assert type(loaded.model.head).__name__ == "PrototypeHead"
    assert loaded.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).probabilities.shape == (2, 10)

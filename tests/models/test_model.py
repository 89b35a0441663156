"""Models by name: drawn from a seed, compiled, saved, cast, frozen, and with a new head."""

import copy

import pytest
import torch
from torch import Tensor, nn

from longtail.models import (
    HEADS,
    Backbone,
    ClassScaledHead,
    HeadSpec,
    LinearHead,
    Model,
    Projector,
    ResLTHead,
    SmallCNN,
    build_model,
    replace_head,
)

BUILT_IN = ["linear", "cosine", "class-scaled", "reslt"]


def small(head: str | HeadSpec = "linear", **options: object) -> Model:
    return build_model("small-cnn", 10, head=head, in_channels=1, **options)


def images(number: int = 6) -> Tensor:
    return torch.randn(number, 1, 8, 8)


@pytest.mark.parametrize("head", BUILT_IN)
@pytest.mark.parametrize(("name", "size"), [("resnet20", 12), ("small-cnn", 8)])
def test_shapes(name: str, head: str, size: int) -> None:
    assert head in HEADS
    model = build_model(name, 7, head=head, projection=(16, 5), prototypes=True)
    outputs = model(torch.randn(4, 3, size, size))
    assert outputs.logits.shape == (4, 7)
    assert outputs.features.shape == (4, 64)
    assert outputs.extra["projection"].shape == (4, 5)
    assert outputs.extra["prototypes"].shape == (7, 5)
    assert ("branches" in outputs.extra) == (head == "reslt")
    for vectors in (outputs.extra["projection"], outputs.extra["prototypes"]):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    plain = model(torch.randn(4, 3, size, size), project=False).extra
    assert set(plain) == ({"branches"} if head == "reslt" else set())
    assert model.num_classes == 7


@pytest.mark.parametrize("head", ["linear", "reslt"])
def test_forward_combines_the_parts(head: str) -> None:
    model = small(head, projection=(16, 5), prototypes=True).eval()
    batch = images()
    maps = model.backbone.maps(batch)
    features = model.backbone.pool(maps)
    assert torch.equal(model.backbone(batch), features)
    outputs = model(batch)
    assert torch.equal(outputs.logits, model.head(maps if model.head.wants_maps else features).logits)
    assert torch.equal(outputs.extra["projection"], model.projector(features))
    assert torch.equal(outputs.extra["prototypes"], model.prototypes(model.head.class_vectors))
    outputs.extra["prototypes"][:, 0].sum().backward()
    assert model.head.class_vectors.grad.abs().sum() > 0


@pytest.mark.parametrize("head", BUILT_IN)
def test_parameters_depend_on_the_seed_alone(head: str) -> None:
    before = torch.get_rng_state()
    first = small(head, seed=3, projection=(16, 5), prototypes=True).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(11)
    with torch.device("meta"):
        again = small(head, seed=3, projection=(16, 5), prototypes=True).state_dict()
    other = small(head, seed=4, projection=(16, 5), prototypes=True).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["backbone.layers.0.weight"], other["backbone.layers.0.weight"])
    plain, without = small(seed=3).state_dict(), small(head, seed=3).state_dict()
    for key, value in without.items():
        assert torch.equal(value, first[key])  # projectors do not change the head
        assert not key.startswith("backbone.") or torch.equal(value, plain[key])  # nor the head the backbone


def test_parameters_of_published_runs() -> None:
    """Sums of the parameters that seed 0 gave when results/ was trained."""
    found = {
        name: [round(p.double().abs().sum().item(), 4) for p in (model.head.class_vectors, model.backbone.conv.weight)]
        for name in ("linear", "cosine", "reslt")
        for model in [build_model("resnet32", 10, head=name)]
    }
    assert found == {"linear": [91.7173, 91.5298], "cosine": [68.5127, 91.5298], "reslt": [41.8802, 91.5298]}


@pytest.mark.parametrize("head", ["reslt", pytest.param("cosine", marks=pytest.mark.slow)])
def test_compiles_into_one_graph(head: str) -> None:
    torch._dynamo.reset()
    model = small(head, projection=(16, 5), prototypes=True)
    batch = images()
    expected = copy.deepcopy(model)(batch)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(batch)
    torch.testing.assert_close(compiled.logits, expected.logits)
    torch.testing.assert_close(dict(compiled.extra), expected.extra)


@pytest.mark.slow
def test_resnet_compiles_into_one_graph() -> None:
    torch._dynamo.reset()
    model, batch = build_model("resnet20", 10), torch.randn(2, 3, 8, 8)
    expected = copy.deepcopy(model)(batch)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(batch)
    torch.testing.assert_close(compiled.logits, expected.logits)
    compiled.logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("head", BUILT_IN)
def test_state_can_be_saved(head: str, tmp_path: object) -> None:
    model = small(head, seed=1, projection=(16, 5), prototypes=True)
    model(images())  # changes BatchNorm statistics
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = small(head, seed=2, projection=(16, 5), prototypes=True)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    batch = images()
    assert torch.equal(model.eval()(batch).logits, other.eval()(batch).logits)


@pytest.mark.parametrize("head", BUILT_IN)
def test_bfloat16_autocast(head: str) -> None:
    model = small(head, projection=(16, 5), prototypes=True)
    batch = images(16)
    exact = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(batch)
    assert outputs.logits.isfinite().all()
    torch.testing.assert_close(
        outputs.logits.float(), exact.logits, rtol=0.1, atol=0.02 * exact.logits.abs().max().item()
    )
    assert outputs.extra["projection"].dtype == torch.float32
    outputs.logits.float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("head", ["linear", "reslt"])
@pytest.mark.parametrize("name", ["small-cnn", "resnet20"])
def test_channels_last_changes_nothing(name: str, head: str) -> None:
    model = build_model(name, 10, head=head)
    batch = torch.randn(4, 3, 10, 10)
    expected = copy.deepcopy(model)(batch)
    outputs = model.to(memory_format=torch.channels_last)(batch.to(memory_format=torch.channels_last))
    torch.testing.assert_close(outputs.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert model.backbone.maps(batch.to(memory_format=torch.channels_last)).is_contiguous(
        memory_format=torch.channels_last
    )


@pytest.mark.parametrize("head", BUILT_IN)
def test_forward_reads_no_values(head: str) -> None:
    """The meta device has no values: code that reads one would prevent a CUDA graph, and fails here."""
    model = small(head, projection=(16, 5), prototypes=True).to("meta")
    assert model(images().to("meta")).logits.shape == (6, 10)


@pytest.mark.parametrize("head", BUILT_IN)
def test_train_the_classifier_only(head: str) -> None:
    model = small(head, projection=(16, 5))
    chosen = model.trainable("classifier")
    assert {id(p) for p in chosen} == {id(p) for p in model.head.classifier_parameters()}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(chosen, lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(model(images(10)).logits, torch.arange(10)).backward()
    optimizer.step()
    moved = {key for key, value in model.state_dict().items() if not torch.equal(before[key], value)}
    assert any(key.startswith("backbone.") and "running_mean" in key for key in moved)  # as in cRT
    assert not any(key.startswith("backbone.") and key.endswith(("weight", "bias")) for key in moved)
    parameters = {key for key in moved if key.startswith("head.") and "running" not in key and "num_" not in key}
    names = {key for key, parameter in model.named_parameters() if any(parameter is one for one in chosen)}
    assert parameters == names
    if head == "class-scaled":
        assert names == {"head.scales"}
    assert len(model.trainable("all")) == len(list(model.parameters()))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_crt_draws_a_new_classifier() -> None:
    model = small(seed=1)
    backbone, old = model.backbone, model.head
    before = torch.get_rng_state()
    assert replace_head(model.eval(), "linear", seed=5) is model
    assert torch.equal(before, torch.get_rng_state())
    assert model.backbone is backbone
    assert model.head is not old
    assert not model.head.training
    assert not torch.equal(model.head.weight, old.weight)
    first = model.head.weight
    assert torch.equal(replace_head(model, "linear", seed=5).head.weight, first)


def test_lws_keeps_the_classifier() -> None:
    model = small(seed=1).eval()
    batch = images()
    before = model(batch).logits
    replace_head(model, "class-scaled", seed=5, keep_weights=True)
    assert isinstance(model.head, ClassScaledHead)
    assert torch.equal(model(batch).logits, before)
    assert [tuple(p.shape) for p in model.trainable("classifier")] == [(10,)]
    nn.init.uniform_(model.head.scales)
    before = model(batch).logits
    replace_head(model, "linear", seed=5, keep_weights=True)
    torch.testing.assert_close(model(batch).logits, before)


def test_a_new_head_has_its_options_and_the_models_type() -> None:
    model = small().double()
    replace_head(model, HeadSpec("cosine", {"scale": 2}), seed=0)
    assert model.head.directions.dtype == torch.float64
    assert model.head.scale == 2
    without = Model(SmallCNN(1), LinearHead(64, 3, bias=False))
    assert replace_head(without, "class-scaled", seed=0, keep_weights=True).head.bias is None


def test_trains_on_digits_in_a_moment() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    digits = sklearn.load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    model = small()
    optimizer = torch.optim.SGD(model.trainable("all"), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(60):
        rows = torch.arange(step * 64, step * 64 + 64) % 1400
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]).logits, y[rows]).backward()
        optimizer.step()
    assert (model.eval()(x[1400:]).logits.argmax(1) == y[1400:]).float().mean() > 0.85


class Pooled(Backbone):
    """A backbone without maps, as a user may write it."""

    num_features = 64
    has_maps = False

    def forward(self, batch: Tensor) -> Tensor:
        return batch.flatten(1)


def test_a_backbone_from_outside() -> None:
    model = Model(Pooled(), LinearHead(64, 3))
    assert model(torch.randn(2, 1, 8, 8)).logits.shape == (2, 3)
    head = model.head
    with pytest.raises(ValueError, match="ResLTHead"):
        replace_head(model, "reslt", seed=0)
    assert model.head is head


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Model(nn.Linear(2, 2), LinearHead(2, 2)), "backbone"),
        (lambda: Model(None, LinearHead(2, 2)), "backbone"),
        (lambda: Model(SmallCNN(), LinearHead(32, 2)), "head"),
        (lambda: Model(SmallCNN(), nn.Linear(64, 2)), "head"),
        (lambda: Model(Pooled(), ResLTHead(64, 2)), "backbone"),
        (lambda: Model(SmallCNN(), LinearHead(64, 2), projector=Projector(32, 4, 4)), "projector"),
        (lambda: Model(SmallCNN(), LinearHead(64, 2), prototypes=Projector(64, 4, 4)), "prototypes"),
        (
            lambda: Model(SmallCNN(), LinearHead(64, 2), projector=Projector(64, 4, 4), prototypes=Projector(64, 4, 5)),
            "prototypes",
        ),
        (lambda: small().trainable("backbone"), "part"),
        (lambda: small("round"), "head"),
        (lambda: small(prototypes=True), "prototypes"),
        (lambda: small(seed=-1), "seed"),
        (lambda: replace_head(small("cosine"), "class-scaled", seed=0, keep_weights=True), "keep_weights"),
        (lambda: replace_head(small(), "cosine", seed=0, keep_weights=True), "keep_weights"),
        (lambda: build_model("small-cnn", 0), "num_classes"),
        (lambda: build_model("small-cnn", 10, in_channels=0), "in_channels"),
    ],
)
def test_wrong_arguments_are_named(make: object, name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^Expected `{name}` to [^\n]*, but got [^\n]*\.$"):
        make()

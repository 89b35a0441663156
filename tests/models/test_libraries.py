"""Backbones of torchvision and timm: features and maps, pretrained weights, image sizes, names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail._progress import listening
from longtail.models import HeadSpec, build_backbone, build_model, check_takes, pretrained_normalisation

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")

NETWORKS = [
    ("torchvision:mobilenet_v3_small", 1024, False, 64),
    ("torchvision:resnet18", 512, True, 64),
    ("torchvision:regnet_x_400mf", 400, True, 64),
    ("timm:resnet10t", 512, True, 64),
    ("vit_tiny_patch16_224", 192, False, 224),  # not in torchvision, hence timm's
    ("timm:mobilenetv3_small_050", 1024, False, 64),  # maps of 288 channels, features of 1024
]
MORE = [
    ("torchvision:efficientnet_b0", 1280, False, 64),
    ("torchvision:swin_t", 768, False, 64),
    ("resnet50", 2048, True, 64),
    ("timm:convnext_atto", 320, True, 64),
]


@pytest.mark.parametrize(
    ("name", "features", "has_maps", "size"), [*NETWORKS, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_features_and_maps(name: str, features: int, has_maps: bool, size: int) -> None:
    model = build_model(name, 7)
    batch = torch.randn(2, 3, size, size)
    assert isinstance(model(batch).logits, torch.Tensor)  # in training mode too
    model.eval()
    with torch.no_grad():
        outputs = model(batch)
    assert outputs.features.shape == (2, features)
    assert model.backbone.num_features == features
    torch.testing.assert_close(outputs.logits, outputs.features @ model.head.weight.T + model.head.bias)
    assert model.backbone.has_maps == has_maps
    if has_maps:
        with torch.no_grad():
            maps = model.backbone.maps(batch)
            torch.testing.assert_close(model.backbone.pool(maps), outputs.features)
        assert maps.shape[:2] == (2, features)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_other_channels_and_seeds(name: str) -> None:
    before = torch.get_rng_state()
    first, again = (build_model(name, 3, in_channels=5, seed=2) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    state = again.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())
    assert first.eval()(torch.randn(2, 5, 64, 64)).logits.shape == (2, 3)


def test_resnet50_is_torchvisions_without_its_classifier() -> None:
    theirs = torchvision.models.resnet50(weights=None).eval()
    ours = build_backbone("resnet50").eval()
    theirs.fc = nn.Identity()
    ours.network.load_state_dict(theirs.state_dict())
    batch = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(batch), theirs(batch))
    count = sum(p.numel() for p in ours.parameters())
    assert count == 25_557_032 - 2048 * 1000 - 1000  # torchvision's published number, less the classifier


def test_reslt_needs_maps() -> None:
    for name in ("torchvision:resnet18", "timm:resnet10t"):
        model = build_model(name, 5, head=HeadSpec("reslt", {"branches": 2})).eval()
        assert model.head.form == "imagenet"
        assert model(torch.randn(2, 3, 64, 64)).extra["branches"].shape == (2, 2, 5)
    for name in ("torchvision:mobilenet_v3_small", "timm:mobilenetv3_small_050", "timm:vit_tiny_patch16_224"):
        with pytest.raises(ValueError, match=r"^Expected `backbone` to have feature maps"):
            build_model(name, 5, head="reslt")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "reslt"])
@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_compiles_into_one_graph(name: str, head: str) -> None:
    torch._dynamo.reset()
    model = build_model(name, 3, head=head)
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(torch.randn(2, 3, 64, 64))
    assert out.logits.shape == (2, 3)


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    else:
        torch.save(state, path)


@pytest.mark.parametrize(("name", "suffix"), [("torchvision:resnet18", ".safetensors"), ("timm:resnet10t", ".pt")])
def test_weights_from_a_file(name: str, suffix: str, tmp_path: Path) -> None:
    whole = timm.create_model("resnet10t") if name.startswith("timm") else torchvision.models.resnet18()
    path = tmp_path / f"weights{suffix}"
    state = whole.state_dict()
    save(state, path)
    backbone = build_backbone(name, pretrained=path)
    assert all(torch.equal(value, state[key]) for key, value in backbone.network.state_dict().items())
    save({key: value for key, value in state.items() if "layer3" not in key}, path)
    with pytest.raises(ValueError, match="these are missing: layer3"):
        build_backbone(name, pretrained=str(path))
    save({**state, "more": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="these are unexpected: more"):
        build_backbone(name, pretrained=path)
    save({**state, "bn1.weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"bn1.weight \(\(3,\), not \(64,\)\)"):
        build_backbone(name, pretrained=path)


@pytest.mark.parametrize("name", ["resnet20", "torchvision:resnet18"])
def test_weights_of_a_whole_model(name: str, tmp_path: Path) -> None:
    model = build_model(name, 10, seed=1, projection=(8, 4))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pt")
    other = build_model(name, 3, seed=2, pretrained=tmp_path / "model.pt")
    expected = model.backbone.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in other.backbone.state_dict().items())


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


def test_files_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"^Expected weights in .*, but there is no such file\.$"):
        build_backbone("resnet20", pretrained=tmp_path / "absent.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    (tmp_path / "text.pt").write_bytes(b"hello")
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    for name in ("cut.safetensors", "text.pt", "evil.pt"):
        with pytest.raises(ValueError, match="to hold tensors only"):
            build_backbone("resnet20", pretrained=tmp_path / name)
    assert capsys.readouterr().out == ""  # no code was run
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"to hold tensors only.*; for a whole model, save `model\.state_dict\(\)`\.$"):
        build_backbone("resnet20", pretrained=tmp_path / "model.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="to hold a state dict"):
        build_backbone("resnet20", pretrained=tmp_path / "list.pt")


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_a_failed_download_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **options: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(torchvision.models, "get_model", unreachable)
    with pytest.raises(
        OSError, match=r"^Expected to download [^\n]*ConnectionError \(no route\); [^\n]*--weights FILE"
    ):
        build_backbone(name, pretrained=True)


def test_unknown_names_come_with_close_matches() -> None:
    for name, near in (
        ("resnet33", "resnet32"),
        ("smal-cnn", "small-cnn"),
        ("torchvision:resnet5", "resnet50"),
        ("timm:resnet10tt", "resnet10t"),
    ):
        with pytest.raises(ValueError, match=rf"^Expected `name` to be a backbone of .*, but got '{name}'.* {near}"):
            build_backbone(name)
    with pytest.raises(ValueError, match=r"^Expected `name` to be a network of timm, but got [^\n]*nonsense[^\n]*\.$"):
        build_backbone("timm:test_vit.nonsense")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: build_backbone(32), "name"),
        (lambda: build_backbone("keras:resnet50"), "name"),
        (lambda: build_backbone("torchvision:fasterrcnn_resnet50_fpn"), "name"),
        (lambda: build_backbone("torchvision:squeezenet1_0"), "name"),
        (lambda: build_backbone("resnet32", pretrained=True), "pretrained"),
        (lambda: build_backbone("resnet32", pretrained=1), "pretrained"),
        (lambda: build_backbone("torchvision:resnet18", pretrained=True, in_channels=1), "in_channels"),
        (lambda: build_backbone("torchvision:resnet18", in_channels=0), "in_channels"),
    ],
)
def test_wrong_arguments_are_named(make: object, name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^Expected `{name}` "):
        make()


def test_libraries_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"^The backbone timm:resnet10t needs timm: pip install 'longtail\[vision\]'"):
        build_backbone("timm:resnet10t")
    with pytest.raises(ValueError, match="timm, which may have it, is not installed"):
        build_backbone("resnet10t")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"^The backbone resnet50 needs torchvision or timm: "):
        build_backbone("resnet50")
    assert build_backbone("resnet32").num_features == 64


def test_importing_models_imports_no_library() -> None:
    code = "import sys, longtail.models; print([m for m in ('torchvision', 'timm', 'triton') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Image sizes


@pytest.mark.parametrize(
    ("name", "size", "features"),
    [
        ("timm:vit_tiny_patch16_224.augreg_in21k", 48, 192),
        ("timm:resnet10t", 48, 512),
        ("torchvision:vit_b_32", 64, 768),
        ("torchvision:resnet18", 48, 512),
        pytest.param("timm:swin_tiny_patch4_window7_224", 64, 768, marks=pytest.mark.slow),
    ],
)
def test_networks_are_built_for_the_image_size(name: str, size: int, features: int) -> None:
    model = build_model(name, 3, image_size=size)
    check_takes(model, name, 3, size)
    assert model.training
    assert model(torch.zeros(2, 3, size, size)).features.shape == (2, features)


def test_the_size_of_the_network_changes_nothing() -> None:
    plain, sized = (build_model("timm:vit_tiny_patch16_224", 3, image_size=size).state_dict() for size in (None, 224))
    assert all(torch.equal(value, sized[key]) for key, value in plain.items())


def test_maps_are_tested_at_the_image_size() -> None:
    assert build_backbone("timm:vit_tiny_patch16_224", image_size=48).has_maps is False
    with pytest.raises(ValueError, match=r"^Expected efficientformer_l1 to take images of 96 x 96, but got [^\n]*\.$"):
        build_model("timm:efficientformer_l1", 3, head="reslt", image_size=96)


def test_unsupported_sizes_are_one_sentence() -> None:
    for name in ("torchvision:vit_b_16", "timm:nest_tiny"):  # 50 is no multiple of their patches
        with pytest.raises(ValueError, match=r"^Expected `image_size` [^\n]*, but got 50: [^\n]*\.$"):
            build_backbone(name, image_size=50)
    with pytest.raises(ValueError, match=r"^Expected `image_size` .*, but got 96: .*224"):
        build_backbone("torchvision:vit_b_16", pretrained=True, image_size=96)


@pytest.mark.parametrize(
    ("name", "size", "image_size"),
    [
        ("torchvision:alexnet", 16, None),
        ("timm:vit_tiny_patch16_224", 32, None),
        ("timm:halonet26t", 64, 64),  # an error without a message
    ],
)
def test_a_failed_first_forward_is_one_sentence(name: str, size: int, image_size: int | None) -> None:
    model = build_model(name, 3, image_size=image_size)
    with pytest.raises(ValueError, match=rf"^Expected {name} to take images of {size} x {size}, but got [^\n]*\.$"):
        check_takes(model, name, 3, size)
    assert model.training


# --- folders of weights


def test_weights_from_a_folder(tmp_path: Path) -> None:
    """As timm and Hugging Face publish them: one file or several, with a description."""
    state = timm.create_model("resnet10t").state_dict()
    save(state, tmp_path / "model.safetensors")
    about = {"architecture": "resnet10t", "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    backbone = build_backbone("timm:resnet10t", pretrained=tmp_path)
    assert all(torch.equal(value, state[key]) for key, value in backbone.network.state_dict().items())
    found = pretrained_normalisation("timm:resnet10t", tmp_path)
    assert (found.mean, found.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))

    parts = tmp_path / "parts"
    parts.mkdir()
    names = list(state)
    for number, keys in enumerate((names[:30], names[30:])):
        save({key: state[key] for key in keys}, parts / f"model-{number}.safetensors")
    where = {key: f"model-{int(place >= 30)}.safetensors" for place, key in enumerate(names)}
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (parts / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    again = build_backbone("timm:resnet10t", pretrained=parts)
    assert all(torch.equal(value, state[key]) for key, value in again.network.state_dict().items())
    assert pretrained_normalisation("timm:resnet10t", parts).std == (0.25,) * 3

    outside = dict.fromkeys(names, "../model.safetensors")
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": outside}))
    with pytest.raises(ValueError, match="in the same folder"):
        build_backbone("timm:resnet10t", pretrained=parts)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Expected weights in .*empty"):
        build_backbone("timm:resnet10t", pretrained=tmp_path / "empty")


def test_weights_of_another_network_and_of_other_images(tmp_path: Path) -> None:
    state = timm.create_model("test_vit").state_dict()
    save(state, tmp_path / "vit.pt")
    with pytest.raises(ValueError, match=r"these are missing: .*; these are unexpected: cls_token") as error:
        build_backbone("timm:resnet10t", pretrained=tmp_path / "vit.pt")
    assert "\n" not in str(error.value)
    small = build_backbone("timm:test_vit", pretrained=tmp_path / "vit.pt", image_size=32, in_channels=1)
    assert small.network.pos_embed.shape[1] < state["pos_embed"].shape[1]  # timm's resizing, not a random start
    torch.testing.assert_close(small.network.pos_embed[:, 0], state["pos_embed"][:, 0])
    weight = small.network.patch_embed.proj.weight
    torch.testing.assert_close(weight, state["patch_embed.proj.weight"].sum(1, keepdim=True))
    assert torch.equal(small.network.blocks[0].mlp.fc1.weight, state["blocks.0.mlp.fc1.weight"])


def test_probability_of_skipping_a_branch() -> None:
    found = build_backbone("timm:test_vit", drop_path=0.4)
    rates = [block.drop_path2.drop_prob for block in found.network.blocks if hasattr(block.drop_path2, "drop_prob")]
    assert rates[-1] == pytest.approx(0.4)
    vision = build_backbone("torchvision:efficientnet_b0", drop_path=0.4)
    rates = [m.p for m in vision.modules() if type(m).__name__ == "StochasticDepth"]
    assert 0.35 < max(rates) < 0.4
    for name in ("torchvision:resnet18", "resnet20", "mlp"):
        with pytest.raises(ValueError, match="Expected no `drop_path` with"):
            build_backbone(name, drop_path=0.4)


def renamed(state):
    """A state dict under the names of another implementation: only the last part of each name stays."""
    return {f"_layer{place}.{key.rpartition('.')[2]}": value for place, (key, value) in enumerate(state.items())}


def test_weights_of_another_implementation_are_used_in_their_order(tmp_path: Path) -> None:
    whole = timm.create_model("resnet10t")
    path = tmp_path / "other.pt"
    torch.save(renamed(whole.state_dict()), path)
    said: list[str] = []
    with listening(lambda _: None, said.append):
        found = build_backbone("timm:resnet10t", pretrained=path).network.state_dict()
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in found.items())
    assert str(path) in said[0]
    assert len(said) == 1


@pytest.mark.parametrize("change", ["shape", "kind", "order", "missing", "more"])
def test_weights_in_another_order_are_refused(change: str, tmp_path: Path) -> None:
    state = dict(renamed(timm.create_model("resnet10t").state_dict()))
    rows = list(state.items())
    if change == "shape":
        rows[0] = (rows[0][0], rows[0][1][:-1])
    elif change == "kind":
        rows[1] = (rows[1][0].replace("weight", "scale"), rows[1][1])
    elif change == "order":
        rows[0], rows[6] = rows[6], rows[0]
    elif change == "missing":
        del rows[3]
    else:
        rows += [("a.weight", torch.zeros(2, 2)), ("a.bias", torch.zeros(2)), ("b.weight", torch.zeros(2, 2))]
    torch.save(dict(rows), tmp_path / "other.pt")
    with pytest.raises(ValueError, match="another network: these are missing"):
        build_backbone("timm:resnet10t", pretrained=tmp_path / "other.pt")

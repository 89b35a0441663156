"""Backbones of other libraries by name, pretrained files, and names that are not there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail.models import HeadSpec, Model, build_backbone, build_model, check_takes

torchvision = pytest.importorskip("torchvision")

TORCHVISION = [
    ("torchvision:mobilenet_v3_small", 1024, False, 64),
    ("torchvision:resnet18", 512, True, 64),
    ("torchvision:regnet_x_400mf", 400, True, 64),
    ("torchvision:efficientnet_b0", 1280, False, 64),
    ("torchvision:swin_t", 768, False, 64),
    ("torchvision:inception_v3", 2048, False, 96),
    ("resnet50", 2048, True, 64),
]
TIMM = [
    ("timm:resnet10t", 512, True, 64),
    ("timm:vit_tiny_patch16_224", 192, False, 224),
    ("vit_tiny_patch16_224", 192, False, 224),  # not torchvision's, hence timm's
    ("timm:mobilenetv3_small_050", 1024, False, 64),  # maps of 288 channels, features of 1024
    ("timm:convnext_atto", 320, True, 64),
]


def check(name: str, features: int, has_maps: bool, size: int, channels: int = 3) -> Model:
    model = build_model(name, 7, in_channels=channels)
    batch = torch.randn(2, channels, size, size)
    assert isinstance(model(batch).logits, torch.Tensor)  # in training, too
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
    return model


@pytest.mark.parametrize(("name", "features", "has_maps", "size"), TORCHVISION)
def test_torchvision(name: str, features: int, has_maps: bool, size: int) -> None:
    check(name, features, has_maps, size)


@pytest.mark.parametrize(("name", "features", "has_maps", "size"), TIMM)
def test_timm(name: str, features: int, has_maps: bool, size: int) -> None:
    pytest.importorskip("timm")
    check(name, features, has_maps, size)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t", "torchvision:mobilenet_v3_small"])
@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels(name: str, channels: int) -> None:
    pytest.importorskip("timm")
    model = build_model(name, 3, in_channels=channels).eval()
    assert model(torch.randn(2, channels, 64, 64)).logits.shape == (2, 3)


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
    pytest.importorskip("timm")
    for name in ("torchvision:resnet18", "timm:resnet10t"):
        model = build_model(name, 5, head=HeadSpec("reslt", {"branches": 2})).eval()
        assert model.head.form == "imagenet"
        assert model(torch.randn(2, 3, 64, 64)).extra["branches"].shape == (2, 2, 5)
    for name in ("torchvision:mobilenet_v3_small", "timm:mobilenetv3_small_050", "timm:vit_tiny_patch16_224"):
        with pytest.raises(ValueError, match=r"^Expected `backbone` to have feature maps"):
            build_model(name, 5, head="reslt")


def test_a_library_network_is_a_function_of_the_seed() -> None:
    pytest.importorskip("timm")
    for name in ("torchvision:resnet18", "timm:resnet10t"):
        before = torch.get_rng_state()
        first, again = (build_model(name, 3, seed=2).state_dict() for _ in range(2))
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(first[key], again[key]) for key in first)


def test_compiles_into_one_graph() -> None:
    pytest.importorskip("timm")
    for name in ("torchvision:resnet18", "timm:resnet10t"):
        torch._dynamo.reset()
        for head in ("linear", "reslt"):
            model = build_model(name, 3, head=head)
            out = torch.compile(model, fullgraph=True, backend="aot_eager")(torch.randn(2, 3, 64, 64))
            assert out.logits.shape == (2, 3)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_weights_from_a_file(name: str, suffix: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    whole = timm.create_model("resnet10t") if name.startswith("timm") else torchvision.models.resnet18()
    path = tmp_path / f"weights{suffix}"
    state = whole.state_dict()
    save(state, path)
    backbone = build_backbone(name, pretrained=path)
    assert all(torch.equal(value, state[key]) for key, value in backbone.network.state_dict().items())
    save({key: value for key, value in state.items() if "layer3" not in key}, path)
    with pytest.raises(ValueError, match=r"^Expected .* to hold the weights of the network, but got layer3.* missing"):
        build_backbone(name, pretrained=str(path))
    save({**state, "more": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="but got more unexpected"):
        build_backbone(name, pretrained=path)
    save({**state, "bn1.weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"but got bn1.weight of shape \(3,\) for \(64,\)\.$"):
        build_backbone(name, pretrained=path)


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    else:
        torch.save(state, path)


@pytest.mark.parametrize("name", ["small-cnn", "resnet20", "torchvision:resnet18"])
def test_weights_of_a_whole_model_of_ours(name: str, tmp_path: Path) -> None:
    model = build_model(name, 10, seed=1, projection=(8, 4))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pt")
    other = build_model(name, 3, seed=2, pretrained=tmp_path / "model.pt")
    expected = model.backbone.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in other.backbone.state_dict().items())


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^Expected weights in .*, but there is no such file\.$"):
        build_backbone("resnet20", pretrained=tmp_path / "absent.safetensors")
    for name, content in (("cut.safetensors", b"\x10"), ("text.pt", b"hello")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"to hold tensors only, .*, but got \w+\.$"):
            build_backbone("resnet20", pretrained=tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="to hold a state dict"):
        build_backbone("resnet20", pretrained=tmp_path / "list.pt")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


def test_a_file_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="tensors only"):
        build_backbone("resnet20", pretrained=tmp_path / "evil.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_no_network_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")

    def unreachable(*args: object, **options: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(torchvision.models, "get_model", unreachable)
    with pytest.raises(
        OSError, match=r"^Expected to download .* but got ConnectionError \(no route\); .*--weights FILE.*\.$"
    ):
        build_backbone(name, pretrained=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet33", "resnet32"),
        ("resnet_50", "resnet50"),
        ("smal-cnn", "small-cnn"),
        ("torchvision:resnet5", "resnet50"),
        ("timm:resnet10tt", "resnet10t"),
    ],
)
def test_unknown_names_come_with_near_ones(name: str, near: str) -> None:
    pytest.importorskip("timm")
    with pytest.raises(
        ValueError, match=rf"^Expected `name` to be a backbone of .*, but got '{name}'; close matches are.* {near}"
    ):
        build_backbone(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: build_backbone(32),
        lambda: build_backbone("keras:resnet50"),
        lambda: build_backbone("qqqqzzzz"),
        lambda: build_backbone("torchvision:fasterrcnn_resnet50_fpn"),
        lambda: build_backbone("torchvision:squeezenet1_0"),
        lambda: build_backbone("resnet32", pretrained=True),
        lambda: build_backbone("resnet32", pretrained=1),
        lambda: build_backbone("torchvision:resnet18", pretrained=True, in_channels=1),
        lambda: build_backbone("torchvision:resnet18", in_channels=0),
    ],
)
def test_wrong_arguments_are_named(make: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^Expected `\w+` to [^\n]*, but got [^\n]*\.$"):
        make()


def test_libraries_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ImportError, match=r"^The backbone timm:resnet10t needs timm: pip install 'longtail\[vision\]'\.$"
    ):
        build_backbone("timm:resnet10t")
    with pytest.raises(ValueError, match="timm, which may have it, is not installed"):
        build_backbone("resnet10t")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"^The backbone resnet50 needs torchvision or timm: "):
        build_backbone("resnet50")
    assert build_backbone("resnet32").num_features == 64


def test_importing_models_loads_no_library() -> None:
    code = "import sys, longtail.models; print([m for m in ('torchvision', 'timm', 'safetensors') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "size", "features"),
    [
        ("timm:vit_tiny_patch16_224", 48, 192),
        ("timm:vit_tiny_patch16_224.augreg_in21k", 48, 192),
        ("timm:swin_tiny_patch4_window7_224", 64, 768),
        ("timm:resnet10t", 48, 512),
        ("torchvision:vit_b_32", 64, 768),
        ("torchvision:resnet18", 48, 512),
    ],
)
def test_networks_are_made_for_the_images_size(name: str, size: int, features: int) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm")
    model = build_model(name, 3, image_size=size)
    check_takes(model, name, 3, size)
    assert model.training
    assert model(torch.zeros(2, 3, size, size)).features.shape == (2, features)


def test_the_size_that_a_network_has_anyway_changes_nothing() -> None:
    pytest.importorskip("timm")
    plain, sized = (build_model("timm:vit_tiny_patch16_224", 3, image_size=size).state_dict() for size in (None, 224))
    assert all(torch.equal(value, sized[key]) for key, value in plain.items())


def test_resnets_of_longtail_take_every_size() -> None:
    assert build_backbone("resnet20", image_size=48)(torch.zeros(1, 3, 48, 48)).shape == (1, 64)


def test_maps_are_looked_for_at_the_images_size() -> None:
    pytest.importorskip("timm")
    assert build_backbone("timm:vit_tiny_patch16_224", image_size=48).has_maps is False
    with pytest.raises(ValueError, match=r"^Expected efficientformer_l1 to take images of 96 x 96, but got [^\n]*\.$"):
        build_model("timm:efficientformer_l1", 3, head="reslt", image_size=96)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("torchvision:vit_b_16", 50),  # no multiple of its patches
        ("timm:nest_tiny", 50),
    ],
)
def test_a_size_that_a_network_cannot_be_made_for_is_one_sentence(name: str, size: int) -> None:
    pytest.importorskip("timm")
    with pytest.raises(
        ValueError, match=rf"^Expected `image_size` to be one that \S+ supports, but got {size}: [^\n]*\.$"
    ):
        build_backbone(name, image_size=size)


def test_published_weights_of_another_size_are_refused_before_they_are_downloaded() -> None:
    with pytest.raises(ValueError, match=r"^Expected `image_size` to be 224 for pretrained weights .* but got 96; "):
        build_backbone("torchvision:vit_b_16", pretrained=True, image_size=96)


@pytest.mark.parametrize(
    ("name", "size", "told"),
    [
        ("torchvision:alexnet", 16, None),
        ("timm:vit_tiny_patch16_224", 32, None),
        ("timm:efficientformer_l1", 96, 96),
        ("timm:halonet26t", 64, 64),  # which says nothing
    ],
)
def test_a_first_forward_that_fails_is_one_sentence(name: str, size: int, told: int | None) -> None:
    pytest.importorskip("timm")
    model = build_model(name, 3, image_size=told)
    with pytest.raises(ValueError, match=rf"^Expected {name} to take images of {size} x {size}, but got [^\n]*\.$"):
        check_takes(model, name, 3, size)
    assert model.training


def test_a_tag_that_timm_has_not_is_one_sentence() -> None:
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=r"^Expected `name` to be a network of timm, but got [^\n]*nonsense[^\n]*\.$"):
        build_backbone("timm:test_vit.nonsense")

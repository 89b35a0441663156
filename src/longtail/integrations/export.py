"""A trained run as ONNX, `torch.export`, a state dict or a model of timm, with its preprocessing and a model card."""

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from longtail._checks import Vector, as_distribution, by_class, check_choice
from longtail._io import import_extra, read_json, write_json, write_tensors, write_text
from longtail.classes import Groups
from longtail.data.augment import CentreCrop, Compose, Resize
from longtail.inference import FeatureTransforms, TrainedClassifier, Transforms, load
from longtail.integrations.model_card import model_card
from longtail.methods import Task
from longtail.models import FeatureNet, LinearHead, build_model
from longtail.models.libraries import TimmBackbone, TorchvisionBackbone
from longtail.models.tuning import Adapter
from longtail.posthoc import adjust_logits
from longtail.train.folder import RunFolder

__all__ = ["Export", "Format", "export"]

Format = Literal["onnx", "torch.export", "state-dict", "timm"]
Prior = str | Path | Mapping[str, float] | Vector
_CHECKED = 3  # random samples on which the exported model is compared with the run
_TOLERANCE = 1e-4  # of the largest logit: float32, in another order
_LARGEST = 1.9e9  # bytes of an ONNX file; larger weights are in a file beside it


class Export(NamedTuple):
    """What was exported."""

    folder: Path
    files: tuple[str, ...]
    """The names of the files in it: the model first, then its preprocessing and its card."""
    difference: float
    """The largest difference of a logit from that of the run, on random inputs."""


def export(run: Path | str, to: Format, out: Path | str, *, prior: Prior | None = None) -> Export:
    """Write the model of a finished run for use without longtail, and compare its logits with those of the run.

    The new folder has the model, ``preprocessing.json`` (size, resizing, mean, standard deviation, class names) and
    ``README.md``, a model card. The run's post-hoc step is part of the model, as in :func:`longtail.load`; the number
    of images per batch is free.

    Args:
        run: the run folder.
        to: ``"onnx"``; ``"torch.export"``; ``"state-dict"``: the weights of a plain model of torchvision or timm, or of
            ``longtail.models.build_model``, with a linear classifier; ``"timm"``: a folder that
            ``timm.create_model("local-dir:FOLDER", pretrained=True)`` reads.
        out: the new folder.
        prior: class probabilities where the model will be used, up to a factor: a mapping from class names, a JSON file
            of one, numbers in the order of the classes, ``"train"`` (the training counts) or ``"uniform"``. Default:
            the logits of the run, which most methods make for equally frequent classes.
    """
    check_choice("to", to, Format)
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise FileExistsError(f"Expected `out` to be a new folder, but {out} exists.")
    classifier, folder = load(run), RunFolder(run)
    target = None if prior is None else _read_prior(prior, classifier)
    change = _after_training(folder, classifier, target)
    parts = _Parts(
        classifier, folder.recipe(unknown_methods=True).model, change, *_affine(change, len(classifier.class_names))
    )
    with _new_folder(out) as temporary:
        files, use, run_exported = _WRITERS[to](parts, temporary)
        difference = _compare(parts, run_exported)
        write_json(temporary / "preprocessing.json", preprocessing(classifier))
        write_text(temporary / "README.md", model_card(folder, use, target))
        for file in temporary.iterdir():
            file.chmod((temporary / "README.md").stat().st_mode)  # libraries write files for this user alone
    return Export(out, (*files, "preprocessing.json", "README.md"), difference)


def preprocessing(classifier: TrainedClassifier) -> dict[str, Any]:
    """What happens to an image or a feature vector before the model, and the class names, as plain data."""
    names, transforms = list(classifier.class_names), classifier.transforms
    if isinstance(transforms, FeatureTransforms):
        columns = {"columns": list(transforms.columns)} if transforms.columns else {}
        shape = ["batch", transforms.channels]
        return {"input": "features", "shape": shape, **columns, "dtype": "float32", "classes": names}
    view = transforms.view()
    assert isinstance(view, Compose)
    resize = next(step for step in view.augmentations if isinstance(step, Resize))
    crop = next((step for step in view.augmentations if isinstance(step, CentreCrop)), None)
    size = [transforms.size, transforms.size]
    return {
        "input": "images",
        "shape": ["batch", transforms.channels, *size],
        "dtype": "float32",
        "orientation": "turned as EXIF says",
        "channels": "grey" if transforms.channels == 1 else "RGB",
        "resize": {
            "to": resize.size if isinstance(resize.size, int) else list(resize.size),
            "means": "length of the shorter side" if isinstance(resize.size, int) else "height and width",
            "interpolation": "bilinear",
            "antialias": True,
            "rounded": "to whole pixel values, before the division",
        },
        "centre_crop": None if crop is None else size,
        "keep_if_size": size if transforms.in_memory else None,
        "divide_by": 255,
        "mean": list(transforms.normalisation.mean),
        "std": list(transforms.normalisation.std),
        "classes": names,
    }


class _Parts(NamedTuple):
    """What the writers need."""

    classifier: TrainedClassifier
    model: str
    change: Callable[[Tensor], Tensor]
    """What happens to the logits after training."""
    scale: Tensor
    """After training, the logit of class c is ``scale[c] * logit + shift[c]``; float64."""
    shift: Tensor

    def inputs(self, number: int) -> Tensor:
        """Random inputs as the model reads them."""
        generator, transforms = torch.Generator().manual_seed(0), self.classifier.transforms
        if isinstance(transforms, FeatureTransforms):
            backbone = self.classifier.model.backbone
            assert isinstance(backbone, FeatureNet)
            return backbone.mean + backbone.std * torch.randn(number, transforms.channels, generator=generator)
        size = (number, transforms.channels, transforms.size, transforms.size)
        return transforms(torch.randint(0, 256, size, generator=generator, dtype=torch.uint8))


# What happens to the logits after training


def _after_training(
    folder: RunFolder, classifier: TrainedClassifier, target: Mapping[str, float] | None
) -> Callable[[Tensor], Tensor]:
    """The run's post-hoc step and the target prior, as a function of logits."""
    counts = torch.tensor(classifier.counts)
    tau = 0.0 if target is None or _is_balanced(folder, counts) else 1.0

    def change(logits: Tensor) -> Tensor:
        after = classifier.after_training(logits)
        if target is None:
            return after
        return adjust_logits(after, counts, tau, target_prior=list(target.values()), zero_counts="mask")

    return change


def _affine(change: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
    """``scale`` and ``shift`` of a function that changes each logit by itself; a registered step may do otherwise."""
    shift = change(torch.zeros(1, classes, dtype=torch.float64))[0]
    scale = torch.where(shift.isfinite(), change(torch.ones(1, classes, dtype=torch.float64))[0] - shift, 1.0)
    some = torch.linspace(-3.0, 5.0, classes, dtype=torch.float64)
    expected = change(some[None])[0]
    if not torch.allclose(scale * some + shift, expected, rtol=1e-9, atol=1e-9):
        raise ValueError("Expected a post-hoc step that scales and shifts each logit, but the run has another one.")
    return scale, shift


def _is_balanced(folder: RunFolder, counts: Tensor) -> bool:
    """Whether the logits are those for equally frequent classes: a loss, a sampler or a step corrects for counts."""
    result, recipe = folder.result(), folder.recipe()
    stage, params = recipe.spec.stages[-1], recipe.spec.training_params(recipe.params)
    if result["posthoc"] is not None or stage.sampler is not None or recipe.sampler not in {None, "instance"}:
        return True
    task = Task(counts, Groups.from_indices(**result["groups"]), recipe.stage_epochs[-1], params)
    return stage.objective(task).rebalances


def _read_prior(prior: Prior, classifier: TrainedClassifier) -> dict[str, float]:
    """The class probabilities that ``prior`` gives, by name."""
    names = classifier.class_names
    if isinstance(prior, str | Path) and str(prior) in {"train", "uniform"}:
        prior = [float(count) for count in classifier.counts] if str(prior) == "train" else [1.0] * len(names)
    elif isinstance(prior, str | Path):
        if not Path(prior).is_file():
            raise FileNotFoundError(f"Expected `prior` to be train, uniform or a JSON file, but got {str(prior)!r}.")
        prior = read_json(Path(prior), {str: (int, float)})
    checked = as_distribution("prior", by_class("prior", prior, names), len(names), zeros=True)
    return dict(zip(names, (checked / checked.sum()).tolist(), strict=True))


# The formats: each writes a model, and returns its files, the code that uses it, and a function that runs it

_Written = tuple[tuple[str, ...], str, Callable[[Tensor], Tensor]]


class _Logits(nn.Module):
    """The model of a run as a function of one tensor, after its post-hoc step."""

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.model = parts.classifier.model
        self.register_buffer("scale", None if bool((parts.scale == 1).all()) else parts.scale.float())
        self.register_buffer("shift", parts.shift.float() if bool(parts.shift.any()) else None)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs, project=False).logits
        logits = logits if self.scale is None else logits * self.scale
        return logits if self.shift is None else logits + self.shift


def _write_onnx(parts: _Parts, folder: Path) -> _Written:
    for needed in ("onnx", "onnxscript"):
        import_extra(needed, "onnx")
    runtime = import_extra("onnxruntime", "onnx")
    module, file, name = _Logits(parts).eval(), folder / "model.onnx", _input_name(parts)
    weights = sum(one.numel() * one.element_size() for one in module.state_dict().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and onnxscript, about themselves
        torch.onnx.export(
            module,
            (parts.inputs(2),),
            str(file),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[name],
            output_names=["logits"],
            external_data=weights > _LARGEST,
            verbose=False,
        )
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    use = f"""import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(None, {{"{name}": {name}}})  # {_input_type(parts)}, a NumPy array"""
    return (
        tuple(sorted(one.name for one in folder.iterdir())),
        use,
        lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0]),
    )


def _write_program(parts: _Parts, folder: Path) -> _Written:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            _Logits(parts).eval(), (parts.inputs(2),), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
        torch.export.save(program, folder / "model.pt2")
        read = torch.export.load(folder / "model.pt2").module()
    use = f"""import torch

model = torch.export.load("model.pt2").module()
logits = model({_input_name(parts)})  # {_input_type(parts)}, a tensor"""
    return ("model.pt2",), use, read


def _write_state(parts: _Parts, folder: Path) -> _Written:
    backbone, linear = parts.classifier.model.backbone, _linear_classifier(parts, "state-dict")
    own = not isinstance(backbone, TimmBackbone | TorchvisionBackbone)
    if isinstance(backbone, TimmBackbone | TorchvisionBackbone):
        network, make = _plain_network(parts, backbone, linear)
    else:
        classes, channels = len(parts.classifier.class_names), parts.classifier.transforms.channels
        network = build_model(parts.model, classes, in_channels=channels).eval()
        state = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
        network.load_state_dict(state | {f"head.linear.{name}": value for name, value in linear.items()})
        make = "from longtail.models import build_model\n\n"
        make += f"model = build_model({parts.model!r}, {classes}, in_channels={channels}).eval()"
    write_tensors(folder / "model.safetensors", network.state_dict(), {})
    use = f"""from safetensors.torch import load_file
{make}
model.load_state_dict(load_file("model.safetensors"))
logits = model({_input_name(parts)}){".logits" if own else ""}  # {_input_type(parts)}, a tensor"""
    return ("model.safetensors",), use, (lambda inputs: network(inputs).logits) if own else network


def _write_timm(parts: _Parts, folder: Path) -> _Written:
    timm = import_extra("timm", "vision")
    backbone = parts.classifier.model.backbone
    name = backbone.name if isinstance(backbone, TimmBackbone | TorchvisionBackbone) else parts.model
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(
            f"Expected a network of timm with `to` = timm, but the run's is {parts.model}; choose onnx, torch.export "
            "or state-dict."
        )
    assert isinstance(backbone, TimmBackbone | TorchvisionBackbone)
    assert isinstance(parts.classifier.transforms, Transforms)
    network, _ = _plain_network(parts, backbone, _linear_classifier(parts, "timm"), library="timm")
    transforms, known = parts.classifier.transforms, preprocessing(parts.classifier)
    cropped = known["centre_crop"] is not None
    # timm resizes the shorter side to size / crop_pct.
    size, share = transforms.size, transforms.size / known["resize"]["to"] if cropped else 1.0
    plain: Any = network
    plain.pretrained_cfg = {
        "architecture": name.partition(".")[0],
        "input_size": (transforms.channels, size, size),
        "mean": transforms.normalisation.mean,
        "std": transforms.normalisation.std,
        "interpolation": "bilinear",
        "crop_pct": share,
        "crop_mode": "center" if cropped else "squash",
        "num_classes": len(parts.classifier.class_names),
        **{key: plain.default_cfg[key] for key in ("first_conv", "classifier") if key in plain.default_cfg},
    }
    options = dict(backbone.size_options)
    if transforms.channels != 3:
        options["in_chans"] = transforms.channels
    import_extra("timm.models", "vision").save_for_hf(
        plain,
        folder,
        model_config={"label_names": list(parts.classifier.class_names)},
        model_args=options,
        safe_serialization=True,
    )
    use = f"""import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # FOLDER is this folder
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))  # resizes differently, no EXIF
logits = model(images)  # {_input_type(parts)}, a tensor"""
    again: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return ("model.safetensors", "config.json"), use, again


_WRITERS: dict[str, Callable[[_Parts, Path], _Written]] = {
    "onnx": _write_onnx,
    "torch.export": _write_program,
    "state-dict": _write_state,
    "timm": _write_timm,
}


def _linear_classifier(parts: _Parts, to: str) -> dict[str, Tensor]:
    """Weight and bias of a linear classifier that has the post-hoc step in it."""
    head = parts.classifier.model.head
    if any(isinstance(module, Adapter) for module in parts.classifier.model.modules()):
        raise ValueError(
            f"Expected a run without adapters with `to` = {to}, whose networks have no place for them, but got one of "
            "`train` = adapter; choose onnx or torch.export."
        )
    if not isinstance(head, LinearHead):
        raise ValueError(
            f"Expected a linear classifier with `to` = {to}, but the run has a {type(head).__name__}; choose onnx or "
            "torch.export."
        )
    weight = head.weight.detach().double()
    bias = torch.zeros(()).double() if head.bias is None else head.bias.detach().double()
    scaler = parts.classifier.model.scaler
    if scaler is not None:  # the head reads standardised features
        weight = weight / scaler.std.double()
        bias = bias - weight @ scaler.mean.double()
    return {
        "weight": (parts.scale[:, None] * weight).float(),
        "bias": (parts.scale * bias + parts.shift).float(),
    }


def _plain_network(
    parts: _Parts, backbone: TimmBackbone | TorchvisionBackbone, linear: Mapping[str, Tensor], library: str = ""
) -> tuple[nn.Module, str]:
    """The run's network as its library, or ``library``, makes it, with a linear classifier; and the code for it."""
    classes, options = len(parts.classifier.class_names), dict(backbone.size_options)
    library = library or ("timm" if isinstance(backbone, TimmBackbone) else "torchvision")
    module = import_extra(library, "vision")
    given = {"num_classes": classes, **options}
    if library == "timm":
        if backbone.in_channels != 3:
            given["in_chans"] = backbone.in_channels
        network = module.create_model(backbone.name, **given)
        paths = network.default_cfg.get("classifier")
        make = "import timm\n\nmodel = timm.create_model"
    else:
        network = module.models.get_model(backbone.name, **given)
        paths = [path for path, one in network.named_modules() if isinstance(one, nn.Linear)][-1]
        make = "from torchvision.models import get_model\n\nmodel = get_model"
    make += f"({', '.join([repr(backbone.name), *(f'{name}={value!r}' for name, value in given.items())])}).eval()"
    state = dict(backbone.network.state_dict())
    own = network.state_dict()
    try:
        for name, value in linear.items():
            state[f"{paths}.{name}"] = value.view_as(own[f"{paths}.{name}"])
        network.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"Expected the weights of {parts.model} to be those of {library}'s {backbone.name} with a linear "
            f"classifier, but they differ; choose onnx or torch.export."
        ) from error
    return network.eval(), make


def _input_name(parts: _Parts) -> str:
    return "features" if isinstance(parts.classifier.transforms, FeatureTransforms) else "images"


def _input_type(parts: _Parts) -> str:
    shape = preprocessing(parts.classifier)["shape"]
    return f"float32 ({', '.join(map(str, shape))})"


@torch.no_grad()
def _compare(parts: _Parts, run_exported: Callable[[Tensor], Tensor]) -> float:
    """The largest difference of a logit; raises an error if it is more than rounding, or if a batch size fails."""
    largest = 0.0
    for number in (_CHECKED, 1):
        inputs = parts.inputs(number)
        expected = parts.change(parts.classifier.model(inputs, project=False).logits.double())
        found = run_exported(inputs).double()
        same = found == expected  # also where both are -inf
        off = float(torch.where(same, 0.0, (found - expected).abs()).max())
        size = max(1.0, float(expected[expected.isfinite()].abs().max()))
        if math.isnan(off) or off > _TOLERANCE * size:
            raise RuntimeError(
                f"Expected the exported model to have the logits of the run, but they differ by {off:g}."
            )
        largest = max(largest, off)
    return largest


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` after the block, or is removed when the block raises."""
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.absolute().parent))
    try:
        yield temporary
        with suppress(OSError):  # mkdtemp makes a folder for its owner only
            temporary.chmod(0o755)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise

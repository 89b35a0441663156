"""A whole CIFAR ResNet, forward and backward, as one autograd function over the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longtail._gpu import device_guard
from longtail.kernels import launch
from longtail.kernels.launch import NormState
from longtail.kernels.plan import Layer, NetworkPlan, layers_of
from longtail.models import CifarResNet

# Plans are kept as long as the network, because captured graphs read their tables.
_plans: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], NetworkPlan]] = WeakKeyDictionary()


def _plan_of(
    owner: nn.Module, images: Tensor, weights: Sequence[Tensor], strides: Sequence[int], dtype: torch.dtype
) -> NetworkPlan:
    batch, _, height, width = images.shape
    # The tables hold addresses and strides of the parameters.
    key = (batch, height, width, dtype, *((weight.data_ptr(), weight.stride()) for weight in weights))
    plans = _plans.setdefault(owner, {})
    if key not in plans:
        plans[key] = NetworkPlan(layers_of(batch, height, width, weights, strides), weights, dtype)
    return plans[key]


@dataclass
class _Saved:
    """Results of the forward pass for the backward pass, one entry per layer."""

    plan: NetworkPlan
    weights: Tensor
    """As cast, plain and transposed."""
    norms: Tensor
    images: Tensor
    """As packed."""
    y: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    """After BatchNorm and ReLU, except the last, which autograd saves; ``y`` if the next layer applies them itself."""

    def norm(self, number: int) -> Tensor:
        """Mean and 1/std."""
        start, end = self.plan.channels_at[number : number + 2]
        return self.norms[2 * start : 2 * end]

    def state(self, number: int, parameters: Sequence[Tensor]) -> NormState:
        """BatchNorm of a layer."""
        return NormState(self.y[number], self.norm(number), parameters[3 * number + 1], parameters[3 * number + 2])


_Running = tuple[Tensor, Tensor, Tensor]


def _running(norm: nn.BatchNorm2d) -> _Running:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    return norm.running_mean, norm.running_var, norm.num_batches_tracked


def _forward(
    images: Tensor, plan: NetworkPlan, norms: Sequence[nn.BatchNorm2d], parameters: Sequence[Tensor]
) -> _Saved:
    device = images.device
    norms_found = torch.empty(2 * plan.channels_at[-1], dtype=torch.float32, device=device)
    saved = _Saved(plan, launch.cast(plan), norms_found, launch.pack(images, plan.layers[0], plan.dtype))

    def layer(number: int, x: Tensor, skip: Tensor | None = None, entry: Layer | None = None) -> Tensor:
        shape, norm = plan.layers[number], norms[number]
        start, end, _ = plan.cast_at[number]
        enter = saved.state(number - 1, parameters) if plan.enters[number] else None
        y, found = launch.convolve(x, saved.weights[start:end], shape, enter)
        saved.y.append(y)
        assert norm.momentum is not None
        running = _running(norm) if norm.track_running_stats else None
        if plan.enters[number + 1]:
            launch.join(shape, found, saved.norm(number), running, momentum=norm.momentum, eps=norm.eps)
            saved.outputs.append(y)
            return y
        out = launch.normalised(
            shape, y, found, saved.norm(number), (parameters[3 * number + 1], parameters[3 * number + 2]), running,
            momentum=norm.momentum, eps=norm.eps, skip=skip, entry=entry,
        )  # fmt: skip
        saved.outputs.append(out)
        return out

    maps = layer(0, saved.images)
    for number in range(1, len(plan.layers), 2):
        inner = layer(number, maps)
        maps = layer(number + 1, inner, skip=maps, entry=plan.layers[number])
    return saved


def _evaluate(images: Tensor, plan: NetworkPlan, norms: Sequence[nn.BatchNorm2d]) -> Tensor:
    """The last maps, by the running statistics; the others are freed, because batches may be large."""
    weights = launch.cast(plan)

    def layer(number: int, x: Tensor, skip: Tensor | None = None, entry: Layer | None = None) -> Tensor:
        shape, norm = plan.layers[number], norms[number]
        start, end, _ = plan.cast_at[number]
        y, found = launch.convolve(x, weights[start:end], shape)
        return launch.normalised(
            shape, y, found, None, (norm.weight, norm.bias), _running(norm),
            momentum=0.0, eps=norm.eps, skip=skip, entry=entry,
        )  # fmt: skip

    maps = layer(0, launch.pack(images, plan.layers[0], plan.dtype))
    for number in range(1, len(plan.layers), 2):
        maps = layer(number + 1, layer(number, maps), skip=maps, entry=plan.layers[number])
    return maps


def _as_images(maps: Tensor, layer: Layer) -> Tensor:
    shape = (layer.batch, layer.out_height, layer.out_width, layer.written)
    return maps.view(shape).permute(0, 3, 1, 2)


class _Chain(torch.autograd.Function):
    """Stem and blocks in one function, not one per block.

    The kernel that computes the gradient of a block's input can then mask it and sum it for the BatchNorm below, and
    one launch casts all weights, one sums the parts of all gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, plan: NetworkPlan, norms: Sequence[nn.BatchNorm2d], *parameters: Tensor
    ) -> Tensor:
        """The last maps, of shape ``(B, channels, h, w)``."""
        saved = _forward(images, plan, norms, parameters)
        maps = _as_images(saved.outputs.pop(), plan.layers[-1])
        ctx.save_for_backward(maps, *parameters)
        ctx.state = saved
        return maps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all parameters, each in its parameter's layout, so that autograd need not copy them."""
        maps, *parameters = ctx.saved_tensors
        saved: _Saved = ctx.state
        plan = saved.plan
        last = len(plan.layers) - 1
        outputs = [*saved.outputs, maps.permute(0, 2, 3, 1).reshape(plan.layers[-1].pixels, -1)]
        new = {"dtype": torch.float32, "device": maps.device}
        parts = torch.empty(plan.parts_at[-1], **new)
        affine = torch.empty((2, plan.channels_at[-1]), **new)

        def channels(number: int) -> slice:
            return slice(*plan.channels_at[number : number + 2])

        def gradients_to(number: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            to = (affine[0, channels(number)], affine[1, channels(number)])
            return parts[plan.parts_at[number] : plan.parts_at[number + 1]], to

        def transposed(number: int) -> Tensor:
            _, start, end = plan.cast_at[number]
            return saved.weights[start:end]

        def layer(
            number: int, gradient: Tensor, sums: launch.Statistics, skip: Tensor | None = None
        ) -> tuple[Tensor, launch.Statistics]:
            """Gradients of a layer; returns the gradient for the layer below and its sums."""
            shape, x = plan.layers[number], outputs[number - 1]
            above, below = saved.state(number, parameters), saved.state(number - 1, parameters)
            enter = below if plan.enters[number] else None
            d = launch.weight_part(x, gradient, shape, above, sums, *gradients_to(number), enter=enter)
            return launch.input_gradient(
                d, transposed(number), shape, below, skip=skip, seen=None if skip is None else x
            )

        g, sums = launch.mask(gradient, outputs[last], plan.layers[last], saved.state(last, parameters))
        for second in range(last, 0, -2):
            end = g
            g, sums = layer(second, end, sums)
            g, sums = layer(second - 1, g, sums, skip=end)
        launch.weight_part(
            saved.images, g, plan.layers[0], saved.state(0, parameters), sums, *gradients_to(0), keep=False
        )
        weights = launch.sum_up(parts, plan)
        found: list[Tensor | None] = []
        for number in range(len(plan.layers)):
            weight = parameters[3 * number]
            found.append(weights.as_strided(weight.shape, weight.stride(), plan.gradients_at[number]))
            found += [affine[0, channels(number)], affine[1, channels(number)]]
        wanted = ctx.needs_input_grad[3:]
        return None, None, None, *(one if want else None for one, want in zip(found, wanted, strict=True))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run_chain(network: CifarResNet, images: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The last maps of a CIFAR ResNet, shape ``(B, channels, h, w)``, ``channels_last``.

    BatchNorm is in training mode or, without gradients, in evaluation mode. Nothing waits for the device, and after
    the first call with a batch size nothing is copied to it, so a CUDA graph can hold it.

    Args:
        network: its plans are kept as long as it exists.
        images: shape ``(B, channels, height, width)``, up to four channels, any strides.
        dtype: of maps; float32 is for checking the kernels' arithmetic.
    """
    convolutions, norms = network.layers()
    weights = [conv.weight for conv in convolutions]
    plan = _plan_of(network, images, weights, [conv.stride[0] for conv in convolutions], dtype)
    parameters = [
        one for conv, norm in zip(convolutions, norms, strict=True) for one in (conv.weight, norm.weight, norm.bias)
    ]
    if torch.is_grad_enabled() and any(one.requires_grad for one in parameters):
        with device_guard(images):
            maps: Tensor = _Chain.apply(images, plan, norms, *parameters)
        return maps
    with torch.no_grad(), device_guard(images):
        if not norms[0].training:
            return _as_images(_evaluate(images, plan, norms), plan.layers[-1])
        return _as_images(_forward(images, plan, norms, parameters).outputs[-1], plan.layers[-1])

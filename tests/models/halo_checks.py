"""The kernels of ``kernels/cuda/`` in an emulator of CUDA threads on a CPU.

``test_halo.py`` runs this in a new process, because the emulator aborts it if a kernel accesses memory out of bounds.
Maps are whole numbers, so products and sums are exact; only sums that involve BatchNorm are compared with float64.
Prints the largest error of each quantity as JSON. The argument ``all`` adds the other shapes and a whole network.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from tests.models import emulator
from tests.models.kernel_checks import check_network, mend_bfloat16, rows
from torch import Tensor

from longtail.kernels import launch
from longtail.kernels.configs import Tile, use_tiles
from longtail.kernels.plan import Layer, Work


def tile(pixels: int, programs: int, warps: int) -> Tile:
    return Tile(pixels, 0, programs, warps, halo=True)


# Tiles that are part of an image, an image, or several; a last program with fewer tiles, a last tile with fewer images.
CONVOLUTIONS = [
    (Layer(3, 16, 16, 1, 8, 8), tile(128, 5, 4)),
    (Layer(2, 16, 16, 1, 32, 32), tile(128, 5, 4)),
    (Layer(1, 16, 16, 1, 16, 16), tile(256, 5, 4)),
    (Layer(2, 32, 32, 1, 16, 16), tile(256, 5, 8)),
    (Layer(5, 32, 32, 1, 4, 8), tile(128, 2, 4)),
    (Layer(3, 64, 64, 1, 8, 8), tile(128, 1, 4)),
    (Layer(1, 16, 16, 1, 64, 64), tile(256, 3, 4)),
    (Layer(1, 32, 32, 1, 32, 32), tile(128, 3, 4)),
]
WEIGHTS = [
    (Layer(2, 16, 16, 1, 32, 32), tile(128, 5, 4)),
    (Layer(5, 16, 16, 1, 8, 8), tile(256, 5, 4)),
    (Layer(2, 32, 32, 1, 16, 16), tile(128, 3, 4)),
    (Layer(5, 32, 32, 1, 8, 8), tile(128, 3, 8)),
    (Layer(5, 64, 64, 1, 8, 8), tile(128, 2, 8)),
    (Layer(1, 16, 16, 1, 64, 64), tile(256, 3, 4)),
    (Layer(1, 64, 64, 1, 16, 16), tile(128, 3, 8)),
]


def whole(*shape: int, most: int = 3) -> Tensor:
    return torch.randint(-most, most + 1, shape).float()


def images(maps: Tensor, layer: Layer) -> Tensor:
    return maps.double().view(layer.batch, layer.height, layer.width, -1).permute(0, 3, 1, 2)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def different(found: Tensor, wanted: Tensor) -> float:
    return float(not torch.equal(found.double(), wanted.bfloat16().double()))


def below_of(layer: Layer) -> tuple[launch.NormState, Tensor]:
    """A BatchNorm before a layer, and its normalised input."""
    channels = layer.read
    y, norm = whole(layer.pixels, channels), torch.rand(2 * channels) + 0.5
    below = launch.NormState(y.bfloat16(), norm, torch.rand(channels) + 0.5, torch.rand(channels) - 0.5)
    return below, (y.double() - norm[:channels].double()) * norm[channels:].double()


def entry_of(layer: Layer) -> tuple[launch.NormState, Tensor]:
    """A BatchNorm whose output are whole numbers, and that output after the ReLU."""
    channels = layer.read
    y, mean = whole(layer.pixels, channels), whole(channels)
    gamma, beta = 2.0 ** torch.randint(0, 2, (channels,)), whole(channels)
    enter = launch.NormState(y.bfloat16(), torch.cat([mean, torch.ones(channels)]), gamma, beta)
    return enter, ((y - mean) * gamma + beta).relu()


def check_convolution(layer: Layer, work: Tile) -> Iterator[tuple[str, float]]:
    channels = layer.read
    use_tiles({(operation, channels, channels): work for operation in ("forward", "input")})
    weight, x = whole(channels, channels, 3, 3, most=2), whole(layer.batch, channels, layer.height, layer.width)
    cast = weight.permute(2, 3, 1, 0).reshape(-1).bfloat16()
    y, found = launch.convolve(rows(x).bfloat16(), cast, layer)
    wanted = rows(F.conv2d(x.double(), weight.double(), padding=1))
    yield "convolution", different(y, wanted)
    parts = wanted.split(found.work.run)
    yield "mean", relative(found.rows[:, 0], torch.stack([part.mean(0) for part in parts]))
    yield "m2", relative(found.rows[:, 1], torch.stack([(part - part.mean(0)).square().sum(0) for part in parts]))
    enter, entered = entry_of(layer)
    y, _ = launch.convolve(enter.y, cast, layer, enter)
    yield "entered", different(y, rows(F.conv2d(images(entered, layer), weight.double(), padding=1)))

    turned = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(-1).bfloat16()
    d = whole(layer.pixels, channels)
    into = rows(torch.nn.grad.conv2d_input(list(x.shape), weight.double(), images(d, layer), padding=1))
    below, normal = below_of(layer)
    skip, seen = whole(layer.pixels, channels), whole(layer.pixels, channels).relu()
    joined = {"skip": skip.bfloat16(), "seen": seen.bfloat16()}
    passed = normal * below.gamma.double() + below.beta.double() > 0
    for name, more, wanted in (
        ("gradient", {}, torch.where(passed, into, 0.0)),
        ("gradient, joined", joined, torch.where(seen > 0, into + skip, 0.0)),
    ):
        g, sums = launch.input_gradient(d.bfloat16(), turned, layer, below, **more)
        yield name, different(g, wanted)
        total, rounded = sums.rows.double().sum(0), g.double()
        yield "sums", max(relative(total[0], rounded.sum(0)), relative(total[1], (rounded * normal).sum(0)))


def check_weight(layer: Layer, work: Tile) -> Iterator[tuple[str, float]]:
    channels, pixels = layer.read, layer.pixels
    use_tiles({("weight", channels, channels): work})
    x, gradient = whole(pixels, channels), whole(pixels, channels)
    above, normal = below_of(layer)
    enter, entered = entry_of(layer)
    sums = launch.Statistics(pixels / 7 * torch.randn(7, 2, channels), Work(Tile(1, 0, 7), 7))
    parts = torch.empty(layer.work("weight").programs, 9, channels, channels)
    to = (torch.empty(channels), torch.empty(channels))
    d = launch.weight_part(x.bfloat16(), gradient.bfloat16(), layer, above, sums, parts, to)
    first, second = sums.rows.double().sum(0)
    scale = above.norm[channels:].double() * above.gamma.double()
    yield "through", relative(d, scale * (gradient.double() - first / pixels - normal * second / pixels))
    shape = [channels, channels, 3, 3]
    for name, read, how in (("weight", x, None), ("weight, entered", entered, enter)):
        from_ = x.bfloat16() if how is None else how.y
        launch.weight_part(from_, gradient.bfloat16(), layer, above, sums, parts, to, enter=how)
        wanted = torch.nn.grad.conv2d_weight(images(read, layer), shape, images(d, layer), padding=1)
        yield name, relative(parts.double().sum(0), wanted.permute(2, 3, 1, 0).reshape(9, channels, channels))
    yield "affine", max(relative(to[0], second), relative(to[1], first))


def check_large_mean() -> float:
    """The variance of maps with mean 100 and deviation 0.1: bfloat16 resolves 0.5 there, but sums are exact."""
    layer = Layer(4, 16, 16, 1, 8, 8)
    use_tiles({("forward", 16, 16): tile(128, 2, 4)})
    weight = torch.zeros(9, 16, 16)
    weight[4] = torch.eye(16)
    weight[4, 0] = 1 / 1024  # a little of channel 0 is added to all others
    x = torch.full((layer.pixels, 16), 100.0)
    x[:, 0] = whole(layer.pixels, most=128)
    _, found = launch.convolve(x.bfloat16(), weight.flatten().bfloat16(), layer)
    y = (x.bfloat16().double() @ weight[4].double())[:, 1:]
    parts = y.split(found.work.run)
    return relative(found.rows[:, 1, 1:], torch.stack([(part - part.mean(0)).square().sum(0) for part in parts]))


def m2_errors(x: Tensor, weight: Tensor, layer: Layer, device: str) -> tuple[float, float]:
    """The largest relative error of M2 over runs and channels, and that in units of eps (1 + d²/var), where d is the
    distance of the run's first pixel from the mean. Maps are whole numbers, so the convolution adds no error.
    """
    cast = weight.permute(2, 3, 1, 0).reshape(-1).bfloat16()
    _, found = launch.convolve(x.bfloat16().to(device), cast.to(device), layer)
    y = rows(F.conv2d(images(x.bfloat16(), layer), weight.double(), padding=1)).numpy()
    runs = y.reshape(-1, found.work.run, layer.written)
    var = runs.var(1)
    errors = np.abs(found.rows[:, 1].cpu().numpy() / (var * found.work.run) - 1)
    units = np.finfo(np.float32).eps * (1 + (runs[:, 0] - runs.mean(1)) ** 2 / var)
    return float(errors.max()), float((errors / units).max())


def check_first_pixel(device: str) -> dict[str, float]:
    """M2 of runs whose first pixel, from which deviations are measured, is unlike the others: a corner, where most of
    the nine taps read zeros; or an outlier.
    """
    corner, outlier = [], []
    for layer, work in (  # a run is one image, or two
        (Layer(2, 16, 16, 1, 32, 32), tile(128, 2, 4)),
        (Layer(4, 64, 64, 1, 8, 8), tile(128, 2, 4)),
    ):
        channels = layer.read
        use_tiles({("forward", channels, channels): work})
        weight = whole(channels, channels, 3, 3, most=1) + 1
        for mean, step in ((100, 1), (1000, 4)):  # the resolution of bfloat16 near 1000 is 4
            corner.append(m2_errors(mean + step * whole(layer.pixels, channels), weight, layer, device))
        centre = F.pad(torch.eye(channels)[:, :, None, None], (1, 1, 1, 1))
        for away in (10, 100, 1000):
            x = 100 + whole(layer.pixels, channels)
            x[:: layer.work("forward").run] += away
            outlier.append(m2_errors(x, centre, layer, device))
    found = {}
    for name, errors in (("corner", corner), ("outlier", outlier)):
        found[f"first pixel: {name}"], found[f"first pixel: {name}, in eps"] = np.max(errors, axis=0).tolist()
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    emulator.use()
    found: dict[str, float] = {}
    everything = "all" in sys.argv[1:]
    cases = [(check_convolution, case) for case in CONVOLUTIONS] + [(check_weight, case) for case in WEIGHTS]
    for check, case in cases if everything else cases[:1]:
        for name, value in islice(check(*case), None if everything else 3):  # each kernel takes seconds to compile
            found[name] = max(found.get(name, 0.0), value)
    if everything:
        found["large mean"] = check_large_mean()
        found |= check_first_pixel("cpu")
        mend_bfloat16()
        chosen = {(operation, 16, 16): tile(128, 3, 4) for operation in ("forward", "input", "weight")}
        chosen |= {(operation, 32, 32): tile(128, 1, 4) for operation in ("forward", "input", "weight")}
        use_tiles(chosen)
        torch.manual_seed(1)
        errors = check_network(16, 16, torch.channels_last, torch.bfloat16)
        found |= {f"network: {what}": value for what, value in errors.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

"""The effect of BatchNorm in the second stage of cRT and LWS, measured on finished softmax runs.

Claim: LWS is not better than softmax on C10-LT100 because the statistics of BatchNorm change while the second stage
trains on balanced classes (also in its authors' code). That alone costs the old classifier 22 points, and the scales of
LWS regain 21 of them. With fixed statistics, LWS and cRT gain 3.3 and 3.5 points.
n: two softmax runs (seeds 3 and 4) of results/plans/cifar10-lt.toml, 10,000 test images each; on a CPU in float32.
Result, recall over all classes / tail, means of the two: softmax 72.3 / 54.7; only BatchNorm changed, by balanced
batches 50.0 / 14.9, by ordinary batches 72.5 / 55.2; changed: LWS 71.3 / 54.1, cRT 74.8 / 61.4; fixed: LWS 75.6 / 62.1,
cRT 75.8 / 62.9.

The weights of the backbone are not trained, so its features do not depend on the classifier. They are computed once
with changing and once with fixed statistics, and both classifiers are trained on them. It takes ten minutes per run on
one core.

    longtail study results/plans/cifar10-lt.toml     # keeps the models
    python examples/second_stage.py runs/cifar10-lt/cifar10-lt-100-softmax-seed3 …  [--root data]
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._io import read_tensors
from longtail._ranks import Ranks
from longtail.data.sampling.batch_plan import Batch
from longtail.data.sampling.samplers import ClassAware, Instance
from longtail.metrics import class_statistics, recall
from longtail.models import Model, build_head
from longtail.train import RunFolder
from longtail.train.dataset import open_data
from longtail.train.loaders import Loaders
from longtail.train.stages import Stages

LR, MOMENTUM, DECAY = 0.1, 0.9, 5e-4  # of the second stage


@dataclass
class Features:
    """Features of all batches of a second stage, and of the test images after it."""

    batches: list[Tensor]
    test: Tensor


class SoftmaxRun:
    """A finished softmax run.

    Args:
        path: the run folder.
        root: the folder of the data.
        epochs: epochs of the second stage.
    """

    def __init__(self, path: Path, root: str, epochs: int) -> None:
        folder = RunFolder(path)
        recipe = replace(folder.recipe(), root=root, device="cpu", precision="fp32", kernels="torch")
        self.weights = read_tensors(folder.model_file)[0]
        self.loaders = Loaders(recipe, open_data(recipe), torch.device("cpu"), Ranks())
        self.stages, self.recipe, self.data, self.epochs = Stages(self.loaders), recipe, self.loaders.dataset, epochs
        if self.data.test is None:
            raise SystemExit(f"Expected a run on data with test images, but {recipe.data}, of {path}, has none.")
        self.test = self.data.test
        self.labels = [batch.labels for batch in self.balanced()]

    def model(self) -> Model:
        """The trained model."""
        model = self.stages.build()
        model.load_state_dict(self.weights)
        return model

    def balanced(self) -> Iterator[Batch]:
        """The batches of a second stage: four samples per class, class after class."""
        loader = self.loaders.training(("weak",), ClassAware(4), drop_last=self.recipe.drop_last)
        for epoch in range(self.epochs):
            yield from loader.training(self.recipe.seed, self.recipe.epochs + epoch)

    def ordinary(self) -> Iterator[Batch]:
        """The batches of one epoch of the first stage."""
        loader = self.loaders.training(("weak",), Instance(), drop_last=self.recipe.drop_last)
        yield from loader.training(self.recipe.seed, self.recipe.epochs)

    def features(self, batches: Iterable[Batch], *, moves: bool) -> Features:
        """Features of the batches and of the test images, with changing or fixed statistics of BatchNorm."""
        model = self.model().train(moves)
        with torch.no_grad():
            seen = [model.backbone(batch.views[0]) for batch in batches]
            model.eval()
            tested = self.loaders.evaluation(self.test).evaluation()
            return Features(seen, torch.cat([model.backbone(batch.views[0]) for batch in tested]))

    def recalls(self, logits: Tensor) -> list[float]:
        """Recall on the test images in per cent: all classes, head, medium, tail."""
        statistics = class_statistics(logits, self.test.labels)
        found = recall(statistics.correct, statistics.samples, self.data.groups)
        return [100 * value for value in (found.all, *found.groups.values())]

    def trained(self, classifier: Callable[[Tensor], Tensor], weights: list[nn.Parameter], given: Features) -> Tensor:
        """Train a classifier on the batches by SGD with a cosine schedule; return its logits of the test images."""
        optimizer = torch.optim.SGD(weights, LR, momentum=MOMENTUM, weight_decay=DECAY)
        steps = len(given.batches) // self.epochs
        for step, (features, labels) in enumerate(zip(given.batches, self.labels, strict=True)):
            optimizer.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * (step // steps) / self.epochs)) / 2
            optimizer.zero_grad()
            F.cross_entropy(classifier(features), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            return classifier(given.test)

    def rows(self) -> Iterator[tuple[str, list[float]]]:
        """Yield the name and the recalls of each variant."""
        model = self.model()
        head = model.head
        weight, bias = head.weight.detach(), head.bias.detach()  # type: ignore[union-attr]

        def old(features: Tensor) -> Tensor:
            return F.linear(features, weight, bias)

        held, moved = (self.features(self.balanced(), moves=moves) for moves in (False, True))
        yield "softmax", self.recalls(old(held.test))
        yield "only BatchNorm changed, balanced batches", self.recalls(old(moved.test))
        natural = self.features(self.ordinary(), moves=True)
        yield "only BatchNorm changed, ordinary batches", self.recalls(old(natural.test))
        for name, given in {"changes": moved, "is fixed": held}.items():
            scales = nn.Parameter(torch.ones(self.data.num_classes))
            logits = self.trained(lambda features, scales=scales: scales * old(features), [scales], given)  # type: ignore[misc]
            yield f"LWS, BatchNorm {name}", self.recalls(logits)
            torch.manual_seed(self.recipe.seed + 1)
            new = build_head("linear", model.backbone, self.data.num_classes)
            logits = self.trained(lambda features, new=new: new(features).logits, list(new.parameters()), given)  # type: ignore[misc]
            yield f"cRT, BatchNorm {name}", self.recalls(logits)


def main() -> None:
    """Print the mean recalls of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--root", default="data")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    found = [dict(SoftmaxRun(path, given.root, given.epochs).rows()) for path in given.runs]
    print(f"{'recall on test data, per cent':44}   all   head medium   tail   all, each run")
    for name in found[0]:
        mean = torch.tensor([rows[name] for rows in found], dtype=torch.float64).mean(0)
        each = " ".join(f"{rows[name][0]:.1f}" for rows in found)
        print(f"{name:44}" + "".join(f"{value:7.1f}" for value in mean.tolist()) + f"   {each}")


if __name__ == "__main__":
    main()

"""Detection: Mask R-CNN with a shift under its own loss.

This example shows how to use Class-Balanced Softmax in a model that computes its loss itself: `shift_in_training`
hooks the layer that classifies boxes, and the background is neutral. Average precision is reported for rare, common
and frequent classes, without classes that are absent from the test images. The images are generated, and the network
is tiny, so that everything takes seconds; average precision is low, and rare classes do not gain here.
"""

import argparse
import copy
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from longtail import class_counts, shift_in_training

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# Two coloured discs per image. The class is the colour: six similar colours, from frequent to rare. Class 0 is the
# background.

COLOURS = torch.tensor([[9, 2, 2], [9, 5, 2], [8, 8, 2], [5, 9, 2], [2, 9, 4], [2, 8, 8]]) / 10
GROUPS = {"frequent": [1, 2], "common": [3, 4], "rare": [5, 6]}


def draw(images: int, shares: list[float], seed: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Return images and targets as torchvision's detectors take them."""
    random, found = torch.Generator().manual_seed(seed), []
    row, column = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    for _ in range(images):
        image = 0.25 + 0.1 * torch.randn(3, 64, 64, generator=random)
        labels = 1 + torch.multinomial(torch.tensor(shares), 2, replacement=True, generator=random)
        masks, boxes = [], []
        for place, label in enumerate(labels.tolist()):
            y, x = int(torch.randint(14, 50, (), generator=random)), 16 + 32 * place
            radius = int(torch.randint(7, 13, (), generator=random))
            mask = (row - y) ** 2 + (column - x) ** 2 <= radius**2
            tint = COLOURS[label - 1] + 0.12 * torch.randn(3, generator=random)
            image = torch.where(mask, tint[:, None, None] + 0.05 * torch.randn(3, 64, 64, generator=random), image)
            masks.append(mask)
            boxes.append([x - radius, y - radius, x + radius + 1, y + radius + 1])
        target = {"boxes": torch.tensor(boxes).float(), "labels": labels, "masks": torch.stack(masks).to(torch.uint8)}
        found.append((image.clamp(0, 1), target))
    return found


train = draw(160, [0.5**c for c in range(6)], seed=0)
test = draw(60, [1.0] * 6, seed=1)
counts = class_counts(torch.cat([target["labels"] for _, target in train]), num_classes=7)

# ## The model
#
# An ordinary Mask R-CNN with a backbone of four layers.


def make_model() -> MaskRCNN:
    """Return a small Mask R-CNN of six classes and the background."""
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 16, 2), (16, 32, 2), (32, 32, 2), (32, 32, 1)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU()]
    backbone = nn.Sequential(*layers)
    backbone.out_channels = 32
    return MaskRCNN(
        backbone, min_size=64, max_size=64, image_mean=[0.4] * 3, image_std=[0.25] * 3,
        rpn_anchor_generator=AnchorGenerator(((14, 20, 26),), ((1.0,),)), rpn_batch_size_per_image=32,
        rpn_pre_nms_top_n_train=100, rpn_post_nms_top_n_train=50, rpn_pre_nms_top_n_test=50,
        rpn_post_nms_top_n_test=20, box_batch_size_per_image=24, box_detections_per_img=10,
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2), box_head=TwoMLPHead(32 * 9, 64),
        box_predictor=FastRCNNPredictor(64, 7), mask_roi_pool=MultiScaleRoIAlign(["0"], 7, 2),
        mask_head=MaskRCNNHeads(32, (16,), 1), mask_predictor=MaskRCNNPredictor(16, 16, 7),
    )  # fmt: skip


# ## Training
#
# A plain detector first. Then its classifier is trained again, as it is and with the shift. The hook is one line. It
# acts in training only: detections, and losses in evaluation, are plain.


def fit(model: MaskRCNN, parameters: Iterable[nn.Parameter], steps: int) -> None:
    """Train some of the parameters."""
    optimizer = torch.optim.AdamW(parameters, lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        images, targets = zip(*(train[i] for i in torch.randint(len(train), (8,)).tolist()), strict=True)
        optimizer.zero_grad()
        sum(model(list(images), list(targets)).values()).backward()
        optimizer.step()
        schedule.step()


def precision(model: MaskRCNN) -> Tensor:
    """Return the average precision of masks per class; -1 for a class without test objects."""
    metric = MeanAveragePrecision(iou_type="segm", class_metrics=True)
    with torch.no_grad():
        found = model.eval()([image for image, _ in test])
    found = [{**one, "masks": one["masks"][:, 0] > 0.5} for one in found]
    metric.update(found, [{**target, "masks": target["masks"].bool()} for _, target in test])
    result, values = metric.compute(), torch.full((7,), -1.0)
    values[result["classes"]] = result["map_per_class"]
    return values


torch.manual_seed(0)
start = make_model()
fit(start, start.parameters(), steps=160)

# ## Average precision by group
#
# The shift does not raise the average precision of rare classes here, neither in this run nor in the mean of the four
# seeds that were tried: six training objects are too few to rank a rare class better. Trained from the start with the
# shift, 160 steps were too few: all groups were worse.

figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for place, beta in enumerate((0.0, 1.0)):
    model = copy.deepcopy(start.train())
    layer = model.roi_heads.box_predictor.cls_score
    shift_in_training(layer, counts, beta=beta, neutral=[0])
    fit(model, layer.parameters(), steps=40)
    values = precision(model)
    means = [100 * values[members][values[members] >= 0].mean().item() for members in GROUPS.values()]
    label = "plain Mask R-CNN" if beta == 0 else f"shift_in_training, beta = {beta:g}"
    print(f"{label}:", ", ".join(f"{name} {mean:.1f}" for name, mean in zip(GROUPS, means, strict=True)))
    bars = axes.bar(torch.arange(3) + 0.4 * place - 0.2, means, 0.38, label=label, color=("#b8bec6", "#1f6feb")[place])
    axes.bar_label(bars, fmt="%.0f", fontsize=8)
boxes = {name: [int(counts[c]) for c in members] for name, members in GROUPS.items()}
axes.set_xticks(
    range(3), [f"{name}\n{', '.join(map(str, numbers))} training objects" for name, numbers in boxes.items()]
)
axes.set(ylabel="mask AP on test images")
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "detection.png", dpi=150)

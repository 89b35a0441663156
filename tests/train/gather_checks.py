"""A batch by one kernel against the same by torch's operations, in Triton's interpreter: bit for bit.

``test_gathering.py`` runs this in a separate process, because the interpreter is chosen when a kernel is defined.
"""

import torch

from longtail.data import ArrayImages, BatchPlan, Resident, Split
from longtail.data.augment import Compose, Normalise, RandomCrop, RandomFlip
from longtail.train.gathering import Gathering, can_gather

COLOURS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def main() -> None:
    torch.manual_seed(0)
    end, grey = Normalise(*COLOURS), Normalise((0.13,), (0.31,), torch.bfloat16)
    for channels, high, wide, view in (
        (3, 32, 32, Compose((RandomCrop(32, padding=4), RandomFlip(), end))),
        (3, 9, 8, Compose((RandomCrop((5, 7), padding=1), RandomFlip(0.3), end))),
        (1, 8, 8, Compose((RandomCrop(8, padding=1), grey))),
    ):
        pixels = torch.randint(0, 256, (40, channels, high, wide), dtype=torch.uint8)
        split = Split(ArrayImages(pixels), torch.randint(0, 10, (40,)))
        loader = Resident(split, BatchPlan(split.labels, (view,), 8))
        assert can_gather(view, loader.pixels)
        order, uniforms, row = torch.randperm(40), torch.rand(40, view.draws), torch.tensor(11)
        uniforms[12], uniforms[13] = 0.0, 1 - 2.0**-24
        for layout in (torch.channels_last, torch.contiguous_format):
            images, labels = Gathering(loader, order, uniforms, row, layout)(7)
            chosen = order[11:18]
            wanted = view(pixels[chosen], uniforms[11:18]).contiguous(memory_format=layout)
            assert images.dtype == wanted.dtype
            assert channels == 1 or images.stride() == wanted.stride()
            assert torch.equal(images, wanted)
            assert torch.equal(labels, split.labels[chosen])
    print("the same")


if __name__ == "__main__":
    main()

"""Mixup and CutMix: what is drawn, and that labels have the shares of the pixels."""

import numpy as np
import pytest
import torch

from longtail.train.mixing import mix_images, mixed_rows, mixed_shares, share_of


def test_draws_are_data():
    rows = mixed_rows(3, 2, 0.4, 1.0, 4000)
    assert torch.equal(rows, mixed_rows(3, 2, 0.4, 1.0, 4000))
    assert torch.equal(rows[:10], mixed_rows(3, 2, 0.4, 1.0, 10))
    assert not torch.equal(rows, mixed_rows(3, 3, 0.4, 1.0, 4000))
    boxes = rows[:, 2] > rows[:, 1]
    assert float(boxes.float().mean()) == pytest.approx(0.5, abs=0.03)  # half of the steps
    assert torch.equal(rows[~boxes, 0], mixed_shares(3, 2, 0.4, 4000)[~boxes])
    assert mixed_rows(3, 2, 0.0, 0.0, 5) is None
    assert torch.equal(mixed_rows(3, 2, 0.4, 0.0, 5), mixed_shares(3, 2, 0.4, 5))


def test_boxes_have_the_area_of_the_paper():
    """A box that lies inside the image has area 1 - lambda, with lambda uniform for alpha 1, and equal sides."""
    rows = mixed_rows(0, 0, 0.0, 1.0, 20000).double()
    height, width = rows[:, 2] - rows[:, 1], rows[:, 4] - rows[:, 3]
    inside = (rows[:, 1] > 0) & (rows[:, 2] < 1) & (rows[:, 3] > 0) & (rows[:, 4] < 1)
    torch.testing.assert_close(height[inside], width[inside], rtol=0, atol=1e-6)
    # The centre is uniform, so a box of side s is inside with probability (1 - s)^2; s^2 is uniform.
    s = np.linspace(0, 1, 10001)
    assert float(inside.double().mean()) == pytest.approx(np.trapezoid((1 - s) ** 2 * 2 * s, s), abs=0.01)


def test_labels_have_the_share_of_the_pixels():
    images = torch.stack([torch.full((3, 7, 9), float(n)) for n in range(4)])
    for row in mixed_rows(1, 1, 0.0, 1.0, 50):
        mixed = mix_images(images, row)
        assert set(mixed[0].unique().tolist()) <= {0.0, 3.0}
        share = float((mixed[0] == 0).double().mean())
        assert float(share_of(row, images)) == pytest.approx(share, abs=1e-6)
        assert torch.equal(mixed[1] == 1, mixed[0] == 0)  # one box for the batch
    mixup = torch.tensor([0.25, 0.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(mix_images(images, mixup), mix_images(images, torch.tensor(0.25)))
    assert float(share_of(mixup, images)) == 0.25

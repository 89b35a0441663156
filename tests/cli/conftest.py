"""Helpers for tests of the command line: a working directory, images, and the form of an error message."""

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_sentence(text):
    """Return the message of an error, and check that it is one line."""
    text = text.strip()
    assert text.startswith("longtail: ")
    assert text.endswith(".")
    assert "\n" not in text
    return text.removeprefix("longtail: ")


def picture(path, seed, suffix="PNG"):
    """Write a small image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, suffix)


def pictures(folder, counts, size, suffix):
    """Write a folder of images per class, in the colour of the class."""
    generator = np.random.default_rng(0)
    for name, (number, colour) in counts.items():
        (folder / name).mkdir(parents=True)
        for one in range(number):
            height, width = size(generator)
            pixels = generator.integers(0, 90, (height, width, 3)) + np.array(colour)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{one}.{suffix}")


COLOURS = {"red": (40, (160, 0, 0)), "green": (20, (0, 160, 0)), "blue": (10, (0, 0, 160))}


@pytest.fixture(autouse=True)
def quick_svg(monkeypatch):
    """Figures are drawn, but not rendered for the page, which takes most of the time."""
    monkeypatch.setattr("longtail.report.page.inline_svg", lambda *_: "<svg></svg>")

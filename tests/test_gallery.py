"""Every script of the gallery runs and writes its figure."""

import ast
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.train.conftest import mostly_slow
from tools.site_hooks import gallery
from torchmetrics.detection import MeanAveragePrecision

from longtail.methods import METHODS

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))
SLOW = {"deploy", "detection", "segmentation", "timm_finetune"}


@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize(
    "script", mostly_slow(SCRIPTS, {one for one in SCRIPTS if one.stem not in SLOW}), ids=lambda script: script.stem
)
def test_script_writes_its_figure(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [script.name, "--out", str(tmp_path)])
    known = set(METHODS)
    try:
        with mock.patch.dict(os.environ):  # scripts may set variables
            runpy.run_path(str(script), run_name="__main__")
    finally:
        for name in set(METHODS) - known:
            METHODS.unregister(name)
    figure = tmp_path / f"{script.stem}.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == [figure.name]
    assert capsys.readouterr().out


def test_page_of_the_gallery_has_every_script():
    assert sorted(gallery()) == SCRIPTS
    for script in SCRIPTS:
        assert (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").splitlines()[0].endswith(".")


def test_average_precision_of_the_detection_example_masks_absent_classes():
    """Class 1 is found, class 2 is missed, class 3 is found but absent, and the others are neither."""
    tree = ast.parse((GALLERY / "detection.py").read_text(encoding="utf-8"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "precision"]
    masks = torch.zeros(3, 16, 16, dtype=torch.uint8)
    for place, mask in enumerate(masks):
        mask[4 * place : 4 * place + 4] = 1
    target = {"boxes": torch.zeros(2, 4), "labels": torch.tensor([1, 2]), "masks": masks[:2]}
    found = {"boxes": torch.zeros(2, 4), "labels": torch.tensor([1, 3]), "scores": torch.tensor([0.9, 0.8])}
    found["masks"] = masks[[0, 2]].float()[:, None]

    class Found(torch.nn.Module):
        def forward(self, images):
            return [found for _ in images]

    names = {"MaskRCNN": Found, "Tensor": torch.Tensor, "torch": torch, "MeanAveragePrecision": MeanAveragePrecision}
    names["test"] = [(torch.zeros(3, 16, 16), target)]
    exec(compile(ast.Module([function], []), "detection.py", "exec"), names)
    assert names["precision"](Found()).tolist() == pytest.approx([-1, 1, 0, -1, -1, -1, -1])

"""Every script of the gallery runs and writes its figure."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

from longtail.methods import METHODS

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))


@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_writes_its_figure(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [script.name, "--out", str(tmp_path)])
    known = set(METHODS)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        for name in set(METHODS) - known:
            METHODS.unregister(name)
    figure = tmp_path / f"{script.stem}.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == [figure.name]
    assert capsys.readouterr().out


def test_gallery_is_complete():
    names = "detection diagnose_predictions lightning_trainer own_method plain_loop segmentation sklearn_features text"
    assert {script.stem for script in SCRIPTS} == {*names.split(), "timm_finetune", "transformers_trainer"}
    for script in SCRIPTS:
        assert (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").splitlines()[0].endswith(".")

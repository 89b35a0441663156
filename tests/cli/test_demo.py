"""`longtail demo`: a study and its report, in one command and without a clone."""

import torch

from longtail.cli import demo
from longtail.train import RunFolder


def test_demo_trains_and_writes_a_report(run, tmp_path, monkeypatch):
    quick = demo._STUDY.replace("--seeds 5", "--seeds 1").replace("--epochs 60", "--epochs 1")
    assert quick != demo._STUDY
    monkeypatch.setattr(demo, "_STUDY", quick)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    code, out, _ = run("demo")
    assert code == 0
    assert torch.get_num_threads() == threads
    runs = [RunFolder(path.parent) for path in (tmp_path / "runs/demo").glob("*/result.json")]
    assert sorted(one.result()["method"] for one in runs) == ["balanced-softmax", "cbs", "softmax"]
    assert {one.recipe().nesterov for one in runs} == {True}
    assert "Report: runs/demo/report.html" in out
    assert (tmp_path / "runs/demo/report.html").read_text().startswith("<!")
    assert run("demo", "--seeds", "1")[0] == 2

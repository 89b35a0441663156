"""`make demo` as a new user runs it, with fewer epochs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "digits_lt.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_demo_reports_what_training_gave(tmp_path):
    done = run("--seeds", "2", "--epochs", "12", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert {method: len(results) for method, results in runs.items()} == {"Softmax": 2, "Balanced Softmax": 2, "CBS": 2}
    for method, results in runs.items():
        mean = 50 * (results[0]["all"] + results[1]["all"])
        row = next(line for line in done.stdout.splitlines() if line.strip().startswith(method) and "±" in line)
        assert f"{mean:.1f}±" in row
        for result in results:
            assert sum(result["per_class"]) / 10 == pytest.approx(result["all"])
            assert sum(result["per_class"][6:]) / 4 == pytest.approx(result["tail"])
    tail = {method: sum(result["tail"] for result in results) for method, results in runs.items()}
    assert tail["CBS"] > tail["Softmax"]
    assert (tmp_path / "digits_lt.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "digits_lt.svg").read_bytes()[:1000]


@pytest.mark.parametrize("arguments", [("--seeds", "1"), ("--beta", "-1"), ("--beta", "nan"), ("--epochs", "0")])
def test_demo_refuses_bad_arguments_in_one_sentence(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("digits_lt.py: error: ")

"""Many workers on one study, killed again and again: nothing is lost, nothing is done twice, no claim stays.

    python -m tests.cluster.soak [--runs 500] [--workers 8] [--kills 100] [--claims lock]

Workers are forked from a process that has imported torch, because importing it takes longer than a run. A run that a
worker finished is counted by a line that the worker adds to a file just after it wrote the result. Afterwards a single
process trains some of the runs again, and they must be bit-identical.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.train.warm import Run, Warm

PLAN = """data = "digits-lt"
methods = ["softmax", "cbs"]
betas = [{betas}]
seeds = {seeds}
out = "study"
[recipe]
epochs = 3
evaluate_every = 0
checkpoint_epochs = 1
device = "cpu"
"""
COUNT = """
import os
from longtail.train.trainer import Trainer

write, lines = Trainer._write, os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def counted(self, *args):
    write(self, *args)
    os.write(lines, (self.folder.path.name + chr(10)).encode())

Trainer._write = counted
"""
KEPT = ("model.safetensors", "predictions.safetensors", "statistics.safetensors", "result.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--claims", choices=("lock", "lease"), default="lock")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return soak(Path(temporary), given)


def soak(folder: Path, given: argparse.Namespace) -> int:
    (folder / "logs").mkdir()
    betas = ", ".join(f"{1 + 0.25 * number:g}" for number in range(4))
    (folder / "plan.toml").write_text(PLAN.format(betas=betas, seeds=given.runs // 5))  # softmax, and four betas
    study, warm, draw = folder / "study", Warm(folder / "logs"), random.Random(0)
    environment = {"LONGTAIL_CLAIMS": given.claims}

    def start() -> Run:
        hook = COUNT.format(file=str(folder / "finished"))
        return warm.start("study", "plan.toml", "--join", cwd=folder, environment=environment, hook=hook)

    def done() -> int:
        return len(list(study.glob("*/result.json")))

    began = time.monotonic()
    workers, ended, kills = [start() for _ in range(given.workers)], list[Run](), 0
    while kills < given.kills and time.monotonic() - began < given.seconds:
        before = done()
        if before >= given.runs:
            break
        # as many kills as fit into the work: the next one when another share of the runs is done
        while done() < given.runs * kills / given.kills and time.monotonic() - began < given.seconds:
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 0.3))
        place = draw.randrange(given.workers)
        workers[place].send(signal.SIGKILL)
        ended.append(workers[place].wait())
        kills += ended[-1].code == -signal.SIGKILL
        workers[place] = start()
    codes = [one.wait().code for one in workers]
    seconds = time.monotonic() - began
    finished = Counter((folder / "finished").read_text().splitlines())
    files = [file for file in study.rglob("*") if file.is_file()]
    problems = {
        "runs that are lost": given.runs - done(),
        "runs that were finished twice": sum(count > 1 for count in finished.values()),
        "runs with another number of epochs in the log": sum(
            len(file.read_text().splitlines()) != 3 for file in study.glob("*/log.jsonl")
        ),
        "stale claims": sum(file.name == ".lease" for file in files),
        "leftovers": sum(file.name.endswith(".part") or file.parent.name == "workers" for file in files),
        "workers that ended with an error": sum(code != 0 for code in codes),
        "runs that differ from those of one process": _differing(folder, warm, draw),
    }
    warm.close()
    print(f"{done()} runs by {given.workers} workers with {kills} kills, {given.claims}s: {seconds:.0f} s")
    print(f"{finished.total()} trainings were finished; of the others the worker was killed before it could count them")
    for what, number in problems.items():
        print(f"{number:>5} {what}")
    return 1 if any(problems.values()) or kills < given.kills else 0


def _differing(folder: Path, warm: Warm, draw: random.Random) -> int:
    """How many of some runs differ if a single process trains them again."""
    found = 0
    for run in draw.sample(sorted(folder.glob("study/*/result.json")), 20):
        again = folder / "again" / run.parent.name
        code = warm.run("train", run.parent / "recipe.toml", "--out", again).code
        found += code != 0 or any((again / name).read_bytes() != (run.parent / name).read_bytes() for name in KEPT)
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Where a study runs: the flags of ``longtail study`` for Slurm and Ray."""

import argparse
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from longtail._program import program
from longtail.cli.parsing import Parser, positive_integer
from longtail.cli.show import console, print_line
from longtail.integrations.slurm import array_script, submit
from longtail.study.planning import StudyPlan, write_plan

_FLAGS = {
    "on": "slurm or ray: share the study among workers on a cluster",
    "gpus": "GPUs per worker (default: 1; with Ray, 1 if the cluster has GPUs)",
    "time": "Slurm: the time limit of a worker, such as 4:00:00; then it is queued again",
    "sbatch": 'Slurm: more options of sbatch, as in --sbatch="--partition=gpu --account=me"',
    "address": "Ray: a cluster that runs, or auto (default: one that runs, else a new one on this machine)",
}
_ABOUT = "With --on, --workers is the number of workers, and `workers` in [recipe] of a plan that of loading processes."


def add_launch(parser: Parser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("on a cluster", _ABOUT)
    kinds: dict[str, dict[str, Any]] = {"on": {"choices": ("slurm", "ray")}, "gpus": {"type": float}}
    for name, help in _FLAGS.items():
        names = ["--gpus", "--gpus-per-worker"] if name == "gpus" else [f"--{name}"]
        group.add_argument(*names, dest=name, help=help, metavar=name.upper(), **kinds.get(name, {}))
    group.add_argument("--print", action="store_true", help="Slurm: show the script, and submit nothing")


def read_launch(given: argparse.Namespace) -> argparse.Namespace | None:
    """Take the flags, and the number of workers, out of a command line; ``None`` without ``--on``."""
    launch = argparse.Namespace(**{name: vars(given).pop(name) for name in (*_FLAGS, "print")})
    names = [name for name, value in vars(launch).items() if value is not None and value is not False]
    if launch.on is None:
        if names:
            raise ValueError(f"Expected --on slurm or --on ray with --{names[0]}, but got none.")
        return None
    for name in ("dry_run", "status", "commands", "join"):
        if getattr(given, name):
            raise ValueError(f"Expected --on or --{name.replace('_', '-')}, but got both.")
    for name in ("address",) if launch.on == "slurm" else ("time", "sbatch", "print"):
        if name in names:
            raise ValueError(f"Expected --{name} with --on {'ray' if launch.on == 'slurm' else 'slurm'} only.")
    workers = vars(given).pop("workers", None)  # not the setting of that name
    try:
        launch.workers = None if workers is None else positive_integer(" ".join(workers))
    except ValueError:
        raise ValueError(f"Expected --workers to be an integer >= 1, but got {' '.join(workers)!r}.") from None
    if launch.on == "slurm" and workers is None:
        raise ValueError("Expected --workers N with --on slurm, but got none.")
    return launch


def with_sbatch(words: Sequence[str]) -> list[str]:
    """Return the words with ``--sbatch VALUE`` as one word, because the value may look like a flag."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--sbatch":
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def submit_to_slurm(launch: argparse.Namespace, plans: Sequence[StudyPlan], together: int | None) -> int:
    """Submit workers on plans to Slurm, and print what comes next."""
    gpus = 1.0 if launch.gpus is None else launch.gpus
    if not gpus.is_integer() or gpus < 0:
        raise ValueError(f"Expected --gpus to be an integer >= 0 with --on slurm, but got {gpus:g}.")
    folder = Path(plans[0].out) / "slurm"
    made = partial(
        array_script,
        folder=folder,
        workers=launch.workers,
        gpus=int(gpus),
        time=launch.time,
        sbatch=launch.sbatch or "",
    )
    made([])  # refuses wrong flags, before anything is written
    words = [*(str(write_plan(plan)) for plan in plans), *([] if together is None else ["--together", str(together)])]
    script = made(words)
    if launch.print:
        console.file.write(script)
        return 0
    job = submit(script, folder)
    print_line(f"Slurm job {job}: {launch.workers} workers; script and logs in {folder}.")
    watch = f"{program()} study {shlex.join([*words, '--status'])}"
    print_line(f"Watch it with `{watch}`, stop it with `scancel {job}`.")
    return 0

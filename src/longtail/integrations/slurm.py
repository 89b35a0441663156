"""Slurm: an array job of workers that share a study. It needs Slurm's commands, and no package."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from longtail._checks import check_integer
from longtail._io import write_text
from longtail._program import printable, program

__all__ = ["array_script", "submit"]

_LEAD = 120
"""Seconds before the time limit at which a worker saves and its job is queued again."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")

_SCRIPT = """#!/bin/bash
{options}

# {command}
#
# Each task is a worker of this study. It saves and ends on SIGUSR1, which Slurm sends before the time limit, and on
# SIGTERM (scancel, preemption). After SIGUSR1 the task is queued again, and continues from the checkpoints.
cd {here} && [ -e {script} ] || {{
    echo "longtail: Expected a file system that $(hostname) shares with the machine that submitted this job," \\
        "but "{script}" is not there; choose another folder with --out." >&2
    exit 2
}}
requeue=
trap 'requeue=yes; kill -TERM "$worker"' USR1
trap 'kill -TERM "$worker"' TERM
{worker} &
worker=$!
wait "$worker"
code=$?
while kill -0 "$worker" 2>/dev/null; do # a signal ended the wait, not the worker
    wait "$worker"
    code=$?
done
if [ -n "$requeue" ] && [ "$code" -gt 128 ]; then
    # Not SLURM_JOB_ID, which for the last task is that of the whole array.
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
"""


def array_script(
    words: Sequence[str],
    folder: Path,
    *,
    workers: int,
    gpus: int = 1,
    time: str | None = None,
    sbatch: str = "",
) -> str:
    """Return the script of an array job whose tasks are workers of one study.

    Args:
        words: the arguments of ``longtail study`` in the current folder, without ``--join``.
        folder: where the script and the logs of the job are.
        workers: the number of tasks.
        gpus: GPUs per worker.
        time: the time limit of a worker as Slurm writes it, for example ``4:00:00``; default: that of the partition.
        sbatch: further options of ``sbatch``, which override ours.

    Example:
        >>> script = array_script(["plan.toml"], Path("/study/slurm"), workers=8, time="4:00:00", sbatch="--qos=low")
        >>> print(script.partition("\\n\\n")[0])
        #!/bin/bash
        #SBATCH --job-name=longtail-study
        #SBATCH --array=1-8
        #SBATCH --ntasks=1
        #SBATCH --gres=gpu:1
        #SBATCH --time=4:00:00
        #SBATCH --signal=B:USR1@120
        #SBATCH --requeue
        #SBATCH --open-mode=append
        #SBATCH --output=/study/slurm/%A_%a.log
        #SBATCH --qos=low
    """
    check_integer("workers", workers, minimum=1)
    check_integer("gpus", gpus, minimum=0)
    place = folder.absolute()
    options = {"job-name": f"longtail-{place.parent.name}", "array": f"1-{workers}", "ntasks": "1"}
    options |= {"gres": f"gpu:{gpus}"} if gpus else {}
    options |= {} if time is None else {"time": time}
    lead = _LEAD if time is None else min(_LEAD, _seconds(time) // 2)
    options |= {"signal": f"B:USR1@{lead}", "requeue": "", "open-mode": "append"}
    options["output"] = str(place).replace("%", "%%") + "/%A_%a.log"
    try:
        more = shlex.split(sbatch)
    except ValueError as error:
        raise ValueError(f"Expected `sbatch` to be options of sbatch, but got {sbatch!r}: {error}.") from None
    lines = [f"--{name}" + (f"={_quoted(value)}" if value else "") for name, value in options.items()]
    plugins = shlex.split(program())[1:]
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {line}" for line in [*lines, *map(_quoted, more)]),
        command=printable(f"longtail study {shlex.join(words)}").replace("\n", " "),
        here=shlex.quote(str(Path.cwd())),
        script=shlex.quote(str(place / "job.sh")),
        worker=shlex.join([sys.executable, "-m", "longtail", *plugins, "study", *words, "--join"]),
    )


def submit(script: str, folder: Path) -> str:
    """Write a script as ``job.sh`` in a folder, submit it, and return the number of the job."""
    if shutil.which("sbatch") is None:
        raise ValueError(
            "Expected Slurm on this machine, but there is no command sbatch; run this on a login node of the cluster, "
            "or show the script with --print."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "job.sh", script)
    done = subprocess.run(["sbatch", "--parsable", str(folder / "job.sh")], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1].rstrip(".")
        said = re.sub(r"^sbatch: (error|fatal): ", "", said)
        raise ValueError(f"Expected sbatch to accept {folder / 'job.sh'}, but it says: {said}.")
    return done.stdout.strip().partition(";")[0]  # the cluster may follow


def _seconds(time: str) -> int:
    """The seconds of a time limit as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours…

    Example:
        >>> [_seconds(text) for text in ("90", "1:30", "4:00:00", "1-12", "1-12:30")]
        [5400, 90, 14400, 129600, 131400]
    """
    parts = _TIME.fullmatch(time)
    days, *rest = (int(part or 0) for part in parts.groups()) if parts else (0, 0)
    first = 3600 if parts and (parts[1] or parts[4]) else 60  # the first number is hours, or minutes
    found = 86400 * days + sum(number * unit for number, unit in zip(rest, (first, first // 60, 1), strict=False))
    if not found:
        raise ValueError(
            f"Expected `time` to be a time limit such as 90 (minutes), 4:00:00 or 1-12:00:00, but got {time!r}."
        )
    return found


def _quoted(text: str) -> str:
    """A value as Slurm reads it in an ``#SBATCH`` line."""
    if "\n" in text or "\\" in text:  # a line end would end the option, and a backslash turns off %A and %a
        raise ValueError(f"Expected names without line ends and backslashes in options of Slurm, but got {text!r}.")
    return text if re.fullmatch(r"[\w@%:,./=+-]+", text) else '"' + text.replace('"', '\\"') + '"'

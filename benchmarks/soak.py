"""Memory of a long study: thousands of one-epoch runs in one process.

Resident memory, open descriptors and threads are read about twice per second while the study trains. None of them may
grow with the number of runs, neither of finished nor of waiting ones. The script exits with 1 if a figure of the last
quarter exceeds its limit over the second quarter: 10 MB, or a single descriptor or thread.

    python benchmarks/soak.py [--runs 2000] [--out DIR]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from longtail.study import Study

LIMITS = {"resident MB": 10.0, "descriptors": 0.0, "threads": 0.0}


def sample() -> dict[str, float]:
    """Return what the process uses now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident MB": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,
        "threads": int(status["Threads"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--out", help="folder of the runs (default: a temporary one)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        recipe = {"epochs": 1, "device": "cpu", "evaluate_every": 0}
        plan = {"data": "digits-lt", "imbalance": [100], "methods": ["softmax"], "seeds": given.runs, "recipe": recipe}
        samples: list[tuple[int, dict[str, float]]] = []
        began, used = time.monotonic(), time.process_time()
        Study({**plan, "out": given.out or temporary}).run(
            on_progress=lambda progress: samples.append((len(progress.finished), sample()))
        )
        seconds, spent = time.monotonic() - began, time.process_time() - used
    of_cpu = f"{1000 * spent / given.runs:.0f} ms of CPU time per run"
    print(f"{given.runs} runs in {seconds:.0f} s, {1000 * seconds / given.runs:.0f} ms and {of_cpu}")
    print(f"{'quarter':<12}" + "".join(f"{name:>14}" for name in LIMITS))
    quarters = [
        [one for done, one in samples if part * given.runs / 4 < done <= (part + 1) * given.runs / 4]
        for part in range(4)
    ]
    medians = [
        {name: statistics.median(one[name] for one in quarter) for name in LIMITS} for quarter in quarters if quarter
    ]
    for number, of_quarter in enumerate(medians, 1):
        print(f"{number:<12}" + "".join(f"{of_quarter[name]:>14.1f}" for name in LIMITS))
    print(f"{'highest':<12}" + "".join(f"{max(one[name] for _, one in samples):>14.1f}" for name in LIMITS))
    grown = [name for name, limit in LIMITS.items() if medians[-1][name] - medians[1][name] > limit]
    print(f"Grows: {', '.join(grown)}" if grown else "Nothing grows.")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())

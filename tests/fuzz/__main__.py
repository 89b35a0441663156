"""``python -m tests.fuzz``: thousands of damaged inputs; each must be refused in one sentence or read correctly.

Cases are a function of the seed and their number, so that each can be repeated alone.
"""

import argparse
import collections
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import seeds
from tests.fuzz.engine import run_cases
from tests.fuzz.kinds import KINDS, WEIGHTS, preload


def numbered(cases: int, only: str | None = None) -> list[tuple[str, int]]:
    """Return kind and number of each case; kinds take turns, some more often."""
    turn = [kind for kind in KINDS for _ in range(WEIGHTS.get(kind, 1))]
    turn = [only] if only else turn[::2] + turn[1::2]
    return [(turn[case % len(turn)], case) for case in range(cases)]


def main() -> int:
    """Run cases, print failures with the command that repeats them, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--case", type=int, metavar="N", help="one case of the kind")
    parser.add_argument("--slots", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    given = parser.parse_args()
    began = time.monotonic()
    preload()
    cases = numbered(given.cases, given.only) if given.case is None else [(given.only, given.case)]
    counted: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    spent: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        seeds.prepare(Path(temporary) / "seeds")
        for result in run_cases(cases, KINDS, given.seed, Path(temporary) / "cases", given.slots):
            counted[result.kind][result.outcome] += 1
            spent[result.kind] += result.seconds
            if result.outcome == "failed":
                print(f"{result.kind} {result.case}: {result.why}")
                print(
                    f"  python -m tests.fuzz --seed {given.seed} --only {result.kind} --case {result.case}\n",
                    flush=True,
                )
            elif given.verbose:
                print(f"{result.kind} {result.case} {result.seconds:.2f} s: {result.outcome} {result.why}", flush=True)
    print(f"{'kind':<12}{'accepted':>10}{'refused':>10}{'failed':>10}{'ms':>8}")
    for kind, outcomes in counted.items():
        numbers = "".join(f"{outcomes[name]:>10}" for name in ("accepted", "refused", "failed"))
        print(f"{kind:<12}{numbers}{1000 * spent[kind] / outcomes.total():>8.0f}")
    failed = sum(outcomes["failed"] for outcomes in counted.values())
    print(f"{len(cases)} cases, seed {given.seed}, {time.monotonic() - began:.0f} s: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""``longtail evaluate``: the measures of a finished run again, or after a post-hoc step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from longtail._io import write_json
from longtail.cli.parsing import call
from longtail.cli.show import console, show_result
from longtail.study.captions import some_of
from longtail.train.folder import RunFolder
from longtail.train.stored import evaluate_run

__all__ = ["run"]

_DEPTHS = ("*", "*/*", "*/*/*")  # where a study has runs: its own first, then those of its searches


def evaluate(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="folder of a finished run")],
    posthoc: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="STEP",
            help="tau=0.7 divides each class's weight by a power of its length, adjust=1 takes the log prior off; "
            "without a number the strength is chosen on validation data",
        ),
    ] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json", help="write the measures there too")] = None,
) -> int:
    """Recompute all measures of a finished run from what it left; nothing is trained, and the run is not changed."""
    if out is not None:
        _check(out)
    folder = RunFolder(path)
    _check_run(folder)
    result = evaluate_run(folder, posthoc)
    show_result(folder, result)
    chosen = result["posthoc_chosen_on_val"]
    if chosen:
        step = result["posthoc"]
        best = f"{100 * chosen[step]:.2f}"
        line = f"{step} chosen on validation data: of {len(chosen)} strengths the best recall there, {best}"
        if step == list(chosen)[-1]:
            line += (
                f"; it is the largest that is tried, so a larger one may do better: --posthoc {step.split('=')[0]}=…"
            )
        _tell(line)
    missing = result.get("without_logits")
    if missing:
        _tell(f"not measured, because their logits were not kept: {', '.join(missing)}")
    if out is not None:
        write_json(out, result)
        _tell(f"Measures: {out}")
    return 0


def _check_run(folder: RunFolder) -> None:
    """Name the runs in a folder that is none, as a study's is."""
    if folder.done or not folder.path.is_dir():
        return
    found = (file.parent for depth in _DEPTHS for file in sorted(folder.path.glob(f"{depth}/result.json")))
    inside = [str(path) for path in found if RunFolder(path).begun]
    if inside:
        raise ValueError(
            f"Expected a finished run in {folder.path}, but it has none of its own; those below it are "
            f"{some_of(inside)}."
        )


def _check(out: Path) -> None:
    """A run's own record is not written over."""
    if out.suffix != ".json":
        raise ValueError(f"Expected `out` to end in .json, but got {out}.")
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected `out` to be in a folder that is there, but got {out}.")
    if RunFolder(out.parent).begun and out.name in {"result.json", "environment.json"}:
        raise ValueError(f"Expected `out` to leave a run's own files alone, but got {out}.")


def _tell(line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def run(arguments: Sequence[str]) -> int:
    """Parse, recompute, print."""
    return call(evaluate, arguments, "longtail evaluate")

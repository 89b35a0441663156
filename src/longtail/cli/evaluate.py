"""``longtail evaluate``: the metrics of a finished run, recomputed, or after a post-hoc correction."""

from collections.abc import Sequence
from pathlib import Path

from longtail._io import write_json
from longtail.cli.parsing import Parser, check_folder_of
from longtail.cli.show import print_line, show_result
from longtail.train.folder import RunFolder
from longtail.train.stored import evaluate_run

__all__ = ["run"]


def run(words: Sequence[str]) -> int:
    """Parse, recompute, print."""
    parser = Parser(
        "longtail evaluate",
        "Recompute all metrics of a finished run from its files. Nothing is trained and the run is not changed.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.flag(
        "--posthoc",
        "tau=0.7 is tau-normalisation, adjust=1 is logit adjustment; without a number the strength is chosen on "
        "validation data",
        metavar="STEP",
    )
    parser.flag("--out", "also write the metrics to this file", type=Path, metavar="FILE.json")
    given = parser.read(words)
    if given.out is not None:
        _check_out(given.out)
    folder = RunFolder(given.run)
    with parser.errors_name_flags():
        result = evaluate_run(folder, given.posthoc)
    show_result(folder, result)
    chosen = result["posthoc_chosen_on_val"]
    if chosen:
        step = result["posthoc"]
        best = f"{100 * chosen[step]:.2f}"
        line = f"{step} was chosen on validation data: the best recall of {len(chosen)} strengths, {best}"
        if step == list(chosen)[-1]:
            line += f"; it is the largest tried, so a larger one may be better: --posthoc {step.split('=')[0]}=…"
        print_line(line)
    if result.get("without_logits"):
        print_line(f"not measured, because their logits were not stored: {', '.join(result['without_logits'])}")
    if given.out is not None:
        write_json(given.out, result)
        print_line(f"Metrics: {given.out}")
    return 0


def _check_out(out: Path) -> None:
    if out.suffix != ".json":
        raise ValueError(f"Expected --out to end in .json, but got {out}.")
    check_folder_of("--out", out)
    if RunFolder(out.parent).begun and out.name in {"result.json", "environment.json"}:
        raise ValueError(f"Expected --out not to overwrite a file of a run, but got {out}.")

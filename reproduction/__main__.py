"""The reproduction's commands; run them from the root of the repository."""

import argparse
import sys
from pathlib import Path

from longtail._io import write_text
from longtail.study.figures.style import save_figure
from longtail.study.runs import read_runs
from reproduction.figures import paper_drawings
from reproduction.lvis import register
from reproduction.measure import measure
from reproduction.page import write_page
from reproduction.significance import significance_page


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one command."""
    given = _parser().parse_args(arguments)
    register()
    try:
        if given.command == "page":
            print(*write_page(given.plans, given.out, given.readme), sep="\n")
        elif given.command == "measure":
            print(*measure(read_runs(*given.runs)) or ["Nothing to measure."], sep="\n")
        else:
            _paper(given.out, given.figures)
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description="The paper's tables and figures.")
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="write the page of results from the runs of plans")
    page.add_argument("plans", nargs="+", metavar="PLAN.toml")
    page.add_argument("--out", type=Path, required=True, help="folder for the small files of the runs and the page")
    page.add_argument("--readme", type=Path, help="a README whose table is updated too")
    paper = commands.add_parser("paper", help="test the paper's claims on the authors' own numbers")
    paper.add_argument("--out", type=Path, help="file to write (default: print)")
    paper.add_argument("--figures", type=Path, help="also draw the paper's figures into this folder")
    measured = commands.add_parser("measure", help="evaluate finished models on what the paper reports besides recall")
    measured.add_argument("runs", nargs="+", type=Path, help="folders of runs, with weights and data on this machine")
    return parser


def _paper(out: Path | None, figures: Path | None) -> None:
    if out is None:
        sys.stdout.write(significance_page())
    else:
        write_text(out, significance_page())
    for drawing in paper_drawings() if figures is not None else ():
        assert figures is not None
        save_figure(drawing.figure, figures / drawing.name)


if __name__ == "__main__":
    sys.exit(main())

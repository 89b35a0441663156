"""The reproduction's commands; run them from the root of the repository."""

import argparse
import sys
from pathlib import Path

from longtail._io import write_text
from longtail.study.figures.writing import save_figure
from longtail.study.runs import read_runs
from reproduction.balanced import measure_balanced
from reproduction.lvis import register
from reproduction.of_paper import paper_drawings
from reproduction.page import write_page
from reproduction.redrawn import measure_redrawn
from reproduction.significance_text import significance_page
from reproduction.untrained import measure_untrained


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one command."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description="The paper's tables and figures.")
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="write the page of results from the runs of plans")
    page.add_argument("plans", nargs="+", metavar="PLAN.toml")
    page.add_argument("--out", type=Path, required=True, help="folder for the small files of the runs and the page")
    page.add_argument("--readme", type=Path, help="a README whose table is updated too")
    paper = commands.add_parser("paper", help="test the paper's claims on the authors' own numbers")
    paper.add_argument("--out", type=Path, help="file to write (default: print)")
    paper.add_argument("--figures", type=Path, help="also draw the paper's figures into this folder")
    measure = commands.add_parser("measure", help="evaluate finished models on what the paper reports besides recall")
    measure.add_argument("runs", nargs="+", type=Path, help="folders of runs, with weights and data on this machine")
    given = parser.parse_args(arguments)
    register()
    try:
        _run(given)
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


def _run(given: argparse.Namespace) -> None:
    if given.command == "page":
        for line in write_page(given.plans, given.out, given.readme):
            print(line)
    elif given.command == "measure":
        runs = read_runs(*given.runs)
        measure_balanced(runs)
        measure_redrawn(runs)
        measure_untrained(runs)
    else:
        if given.out is None:
            sys.stdout.write(significance_page())
        else:
            write_text(given.out, significance_page())
        for drawing in paper_drawings() if given.figures else []:
            save_figure(drawing.figure, given.figures / drawing.name)


if __name__ == "__main__":
    sys.exit(main())

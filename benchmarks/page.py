"""The tables of docs/speed.md, from the results that are committed.

A table stands between ``<!-- name -->`` and ``<!-- /name -->``; under it stand the command, GPU, version and date. All
that was measured comes from the results; what was expected and the goals are written in ``page_fleet.py`` and
``page_tables.py``.

    python benchmarks/page.py [--gpu h200] [--check]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from page_fleet import fleet, members, same, tiles
from page_results import Results
from page_tables import classes, contrastive, data, evaluation, imagenet, loss, samples

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
NOTHING = "*Not measured yet.*"


def figure(_: Results) -> str | None:
    there = PAGE.parent / "images" / "growth.png"
    return "![Time and memory against classes, members and samples](images/growth.png)" if there.exists() else None


TABLES: dict[str, Callable[[Results], str | None]] = {
    "loss": loss,
    "contrastive": contrastive,
    "data": data,
    "fleet": fleet,
    "tiles": tiles,
    "same": same,
    "imagenet": imagenet,
    "evaluation": evaluation,
    "classes": classes,
    "members": members,
    "samples": samples,
    "figure": figure,
}


def filled(text: str, results: Results) -> str:
    """The page with its tables as they should be."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"Expected one {begin.strip()} and one {end} in {PAGE.name}.")
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}{make(results) or NOTHING}\n{end}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200", help="whose results")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is not up to date")
    given = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text, Results(HERE / "results", given.gpu))
    if given.check and new != text:
        sys.exit(f"{PAGE.name} is not up to date: python benchmarks/page.py")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()

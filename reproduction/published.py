"""Our recall over all classes beside what others published."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail.study.runs import Cell, Run

__all__ = ["beside_published"]

_FAR = 2.0  # points


def beside_published(data: str, cells: Sequence[Cell]) -> list[str]:
    """A table and what is to be said of large differences, in Markdown; empty where nothing is known of a data set."""
    file = Path(__file__).parent / "data" / "published.json"
    published: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if published["data"] != data:
        return []
    lines = ["| Method | runs | here | published | difference | source |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    notes = []
    for cell in cells:
        known = published["methods"].get(cell.method)
        if known is None:
            continue
        ours = cell.summary(Run.recall)
        low, high = known["low"], known["high"]
        difference = ours.mean - min(max(ours.mean, low), high)
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(
            f"| {cell.title} | {ours.runs} | {ours.mean:.2f} | {span} | {difference:+.2f} | {known['source']} |"
        )
        if abs(difference) > _FAR:
            notes.append(f"- **{cell.title}**: {known.get('note', 'no cause is known.')}")
    found = [f"**Recall over all classes beside what others published**\n\n{published['what']}.", "\n".join(lines)]
    told = "\n".join(notes) or "nothing."
    return [*found, f"A difference is to the nearer end of the span. Off by more than {_FAR:g} points:\n\n{told}"]

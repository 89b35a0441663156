"""What benchmarks left, and the forms in which docs/speed.md says it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Content = dict[str, Any]


class Results:
    """What benchmarks left, by file name."""

    def __init__(self, folder: Path, gpu: str = "h200") -> None:
        self.folder, self.gpu = folder, gpu

    def file(self, name: str, where: str | None = None) -> Content | None:
        path = self.folder / f"{name}-{where or self.gpu}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def parts(self, name: str, where: str | None = None) -> dict[str, Content]:
        """What a file holds, each part with its own command and date."""
        found = self.file(name, where)
        return {} if found is None else found["parts"]

    def part(self, name: str, part: str) -> Content | None:
        return self.parts(name).get(part)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *sources: Content) -> str:
    """A Markdown table, the first column text and the others numbers, and where it is from."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *dict.fromkeys(source(one) for one in sources)])


def source(found: Content) -> str:
    """Where, when and how something was measured."""
    return f"`{found['command']}`; {found['device']}, torch {found['torch']}, {found['date']}."


def wrong(*parts: Content | None) -> str:
    """What the scripts said was wrong, to stand under a table."""
    said = [sentence for part in parts if part for sentence in part.get("wrong", [])]
    return "".join(f"\n\n**Wrong:** {sentence}." for sentence in said)


def reached(value: float, goal: float, *, at_most: bool = False) -> str:
    """Whether a goal is."""
    return "yes" if (value <= goal if at_most else value >= goal) else "no"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"

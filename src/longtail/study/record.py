"""The record of studies, ``study.json`` beside their runs: one entry per study, written before its first run."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from longtail._io import NUMBER, map_files, read_json, write_json
from longtail._program import count

STUDY_FILE = "study.json"


@dataclass(frozen=True)
class Choice:
    """How a beta was chosen; as text, the words of a caption."""

    by: Literal["given", "recipe", "search"]
    select_on: Literal["", "val", "test"] = ""
    """The data that a search chose on."""
    folds: int = 0
    """Folds of the cross-validation of a search."""
    runs: int = 0
    """Runs per beta of a search."""

    @classmethod
    def of_search(cls, record: Mapping[str, Any]) -> "Choice":
        """Return how a search chose, from its ``beta.json``."""
        runs = max((len(point["scores"]) for point in record.get("points", ())), default=0)
        return cls("search", record.get("select_on", "val"), record.get("folds", 0), runs)

    def __str__(self) -> str:
        if self.by != "search":
            return {"given": "β as given", "recipe": "β of the data set's recipe"}[self.by]
        where = f"{self.folds}-fold cross-validation within training data" if self.folds else "validation data"
        where = "TEST data" if self.select_on == "test" else where
        runs = f", {count(self.runs, 'run')} per β" if self.runs else ""
        return f"β chosen on {where} by recall over all classes{runs}"


@dataclass(frozen=True)
class StudyRecord:
    """A study: what was planned, and its outcome."""

    command: str
    reference: str
    planned: Sequence[str] = ()
    """Folders of its runs, relative to the file; those with a searched beta are added when it is found."""
    selected: Mapping[str, Sequence[Choice]] = field(default_factory=dict)
    """How the beta of each run was chosen; several ways may have led to the same beta."""
    searches: Mapping[str, float | None] = field(default_factory=dict)
    """Searches for beta and their results; ``None``: not done."""
    ended: str = ""
    """When; empty while the study runs, and if it was stopped."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Runs that failed, and why."""

    def covers(self, other: "StudyRecord") -> bool:
        """Whether this entry can replace another one without losing how runs were chosen and compared."""
        return (
            self.reference == other.reference
            and set(other.planned) <= set(self.planned)
            and other.searches.keys() <= self.searches.keys()
            and all(set(ways) <= set(self.selected.get(run, ())) for run, ways in other.selected.items())
        )


_SHAPE: dict[str, Any] = {
    "studies": [
        {
            "command": str,
            "reference": str,
            "planned": [str],
            "selected": {str: [{"by": {"given", "recipe", "search"}, "select_on": str, "folds": int, "runs": int}]},
            "searches": {str: NUMBER},
            "ended": str,
            "failed": {str: str},
        }
    ]
}


_SEARCH_SHAPE = {
    "beta": NUMBER,
    "command?": str,
    "choice?": str,
    "select_on?": {"val", "test"},
    "folds?": int,
    "points?": [{"scores": [NUMBER]}],
}


def read_search(file: Path) -> dict[str, Any]:
    """Return the record of a search for beta, from its ``beta.json``."""
    found: dict[str, Any] = read_json(file, _SEARCH_SHAPE)
    return found


def now() -> str:
    """Return the time, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_studies(folder: Path) -> list[StudyRecord]:
    """Return the studies of a folder, oldest first."""
    file = folder / STUDY_FILE
    if not file.exists():
        return []
    try:
        entries = [{name: one[name] for name in _SHAPE["studies"][0]} for one in read_json(file, _SHAPE)["studies"]]
    except ValueError as error:
        why = str(error).removesuffix(".")
        raise ValueError(f"{why}; move the file away and run the study's command again.") from error
    for one in entries:
        one["selected"] = {run: [Choice(**way) for way in ways] for run, ways in one["selected"].items()}
    return [StudyRecord(**one) for one in entries]


def write_study(folder: Path, record: StudyRecord) -> None:
    """Add a study to the record of a folder, in place of the entries that it covers; an empty command keeps theirs."""
    before = read_studies(folder)
    covered = [one for one in before if record.covers(one)]
    command = record.command or next((one.command for one in reversed(covered) if one.command), "")
    entries = [*(one for one in before if one not in covered), replace(record, command=command)]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STUDY_FILE, {"studies": [asdict(one) for one in entries]})


def missing_of(folder: Path, records: Iterable[StudyRecord], done: Collection[Path] = ()) -> str:
    """Return which planned runs are missing, in words; empty if none is missing.

    Args:
        folder: of the studies.
        records: of the studies.
        done: runs that are known to be done, and are not checked.
    """
    given = list(records)
    planned = sorted({run for one in given for run in one.planned})
    there = map_files(lambda run: folder / run in done or (folder / run / "result.json").exists(), planned)
    missing = [run for run, found in zip(planned, there, strict=True) if not found]
    found = {name for one in given for name, beta in one.searches.items() if beta is not None}
    searches = {name for one in given for name in one.searches} - found
    parts = [f"{len(missing)} of {len(planned)} planned runs are missing"] if missing else []
    if searches:
        parts.append(f"{count(len(searches), 'search')} for β and the runs with that β are missing")
    return "; ".join(parts)

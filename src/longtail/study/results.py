"""The results of finished runs: tables, significance tests, a data frame, a report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.study.captions import NO_DATA, Recorded, measured_on, recorded_for
from longtail.study.comparisons import Contrast, Contrasts, check_reference, contrasts_of
from longtail.study.conduct import Outcome, Searches
from longtail.study.decision import Decision, decide
from longtail.study.rendering import Table, save
from longtail.study.runs import Cell, Run, by_data, group_runs, groups_of, held_out, ordered, read_runs
from longtail.study.tables import measures_table, recall_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Results:
    """Finished runs, with what their studies recorded about them.

    :meth:`Study.run <longtail.study.Study.run>` returns one, and :meth:`read` reads one from folders. Recall and
    differences are in per cent, as in all tables.

    Args:
        runs: the runs.
        folders: the folders that they are from, whose ``study.json`` says how beta was chosen and what is missing.
        reference: the method that others are tested against; default: as the studies recorded, or
            :func:`longtail.methods.default_reference`.
        command: the command to show in captions in addition to those that the studies recorded.

    Example:
        >>> results = Results.read("runs/study")  # doctest: +SKIP
        >>> results.to_pandas().groupby("method")["recall_tail"].mean()  # doctest: +SKIP
        >>> print(results.compare(reference="balanced-softmax"))  # doctest: +SKIP
        >>> results.report("report.html")  # doctest: +SKIP
    """

    runs: tuple[Run, ...]
    folders: tuple[Path, ...] = ()
    reference: str | None = None
    command: str = ""
    missing: str | None = None
    """Which planned runs are missing, in words; default: as the studies recorded."""
    outcome: Outcome | None = None
    """What failed in the study that was run now, and what other processes train."""
    searches: Searches = field(default_factory=dict)
    """The searches for beta of the study that was run now."""

    @classmethod
    def read(cls, *folders: Path | str, reference: str | None = None) -> "Results":
        """Return the results of all finished runs in folders and their subfolders."""
        if not folders:
            raise ValueError("Expected `folders` to have a folder of runs, but got none.")
        runs = read_runs(*folders)
        if not runs:
            raise ValueError(f"Expected finished runs in {', '.join(map(str, folders))}, but there are none.")
        found = cls(tuple(runs), tuple(map(Path, folders)), reference)
        if reference is not None:
            check_reference(reference, found.cells)
        return found

    @cached_property
    def cells(self) -> list[Cell]:
        """The runs in groups that differ only in the seed, one per row of a table."""
        return group_runs(self.runs)

    @cached_property
    def recorded(self) -> Recorded:
        """What the studies recorded about the runs."""
        return recorded_for(self.folders, self.runs)

    def table(self, what: str = "recall", *, about: bool = True) -> Table:
        """Return a table.

        Args:
            what: ``"recall"``, or ``"measures"``: accuracy, macro F1, training recall and model imbalance level.
            about: whether the caption says how the runs were made.
        """
        recorded = self.recorded
        if what == "recall":
            made = recall_table(
                self.cells,
                reference=self.reference or recorded.reference,
                selected=recorded.selected,
                command=self._commands,
            )
        elif what == "measures":
            selected, command = recorded.selected(self.cells), self._commands if about else ""
            made = measures_table(self.cells, selected=selected, command=command, about=about)
        else:
            raise ValueError(f"Expected `what` to be recall or measures, but got {what!r}.")
        missing = recorded.missing if self.missing is None else self.missing
        return replace(made, caption=f"{missing}. {made.caption}") if missing else made

    @property
    def _commands(self) -> str:
        return "; ".join([*self.recorded.commands, *([self.command] if self.command else [])])

    def compare(self, reference: str | None = None, *, group: str = "all") -> Contrasts:
        """Test the recall of every method against that of a reference, on each data set.

        Two-sided t-tests; runs of the same seed are paired, and p-values have Holm's correction over the methods of a
        data set.

        Args:
            reference: the method that others are tested against.
            group: the group of classes whose recall is compared; ``"all"``: all classes.

        Returns:
            one contrast per method and data set, which prints as sentences.
        """
        if reference is not None:
            check_reference(reference, self.cells)
        known = (*groups_of(self.cells), "all")
        if group not in known:
            raise ValueError(f"Expected `group` to be one of {', '.join(known)}, but got {group!r}.")
        contrasts: list[Contrast] = []
        notes: list[str] = []
        for data, of_data in by_data(self.cells).items():
            part = held_out(of_data)
            if part is None:
                notes.append(f"{data}: not compared, {NO_DATA}.")
                continue
            against = reference or self.reference or self.recorded.reference
            found = contrasts_of(of_data, against, partial(Run.recall, group=group, part=part))
            contrasts += found.contrasts
            notes += found.without
        return Contrasts(tuple(contrasts), tuple(notes))

    def decisions(self) -> dict[str, Decision]:
        """Return which method to use on each data set, by its name."""
        reference = self.reference or self.recorded.reference
        return {data: decide(of_data, reference) for data, of_data in by_data(self.cells).items()}

    def sentences(self) -> list[str]:
        """Return one sentence per method and data set about recall over all classes, and what was not tested."""
        found = []
        tested = self.compare()
        for data, of_data in by_data(self.cells).items():
            on = "" if held_out(of_data) in {"test", None} else f" on {measured_on(of_data)}"
            contrasts = [one for one in tested.contrasts if one.cell.data == data]
            found += [f"{data}, recall over all classes{on}: {one}" for one in contrasts]
        return [*found, *tested.without]

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per run: settings, recall of each group in per cent, model imbalance level."""
        import pandas as pd  # noqa: PLC0415 - an extra

        rows = [_row(run) for cell in ordered(self.cells) for run in cell.runs]
        parameters = {name: None for run in self.runs for name in run.recipe.spec.parameters}
        names = ["data", "imbalance", "method", *parameters, *(name for row in rows for name in row)]
        return pd.DataFrame(rows, columns=list(dict.fromkeys(names)))

    def save_tables(self, folder: Path | str) -> None:
        """Write the tables of recall and of other measures to a folder, as Markdown and CSV."""
        save(self.table("recall"), Path(folder), "recall")
        save(self.table("measures"), Path(folder), "measures")

    def report(self, path: Path | str, figures: Path | str | None = None, *, reference: str | None = None) -> Path:
        """Write a report of the runs as one HTML page, and its figures to the folder ``figures``."""
        from longtail.report import report  # noqa: PLC0415 - it is built on this package

        made = report(*self.folders, runs=self.runs, reference=reference or self.reference, command=self.command)
        return made.write(path, figures)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __repr__(self) -> str:
        seeds = {run.recipe.seed for run in self.runs}
        names = {"data sets": {cell.data for cell in self.cells}, "methods": {cell.title for cell in self.cells}}
        listed = ", ".join(f"{name}: {', '.join(sorted(found))}" for name, found in names.items())
        return f"Results({len(self.runs)} runs, {len(seeds)} seeds; {listed})"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() if self.runs else "<p>No finished runs.</p>"


def _row(run: Run) -> dict[str, Any]:
    part = run.held_out
    recipe = run.recipe
    row: dict[str, Any] = {"data": run.data, "imbalance": recipe.imbalance, "method": recipe.method}
    row |= recipe.spec.values(recipe.params)
    row |= {"seed": recipe.seed, "epochs": sum(run.result["epochs"]), "measured_on": part}
    groups: Sequence[str] = [name for name, members in run.result["groups"].items() if members]
    row |= {f"recall_{group}": float("nan") if part is None else run.recall(group, part) for group in (*groups, "all")}
    row["imbalance_level"] = float("nan") if part is None else run.level(part)
    return row | {"path": str(run.path)}

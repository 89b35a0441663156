"""How results look in a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from longtail.train.folder import RunFolder

__all__ = ["show_measures", "show_result"]

console = Console()


def show_result(folder: RunFolder, result: dict[str, Any] | None = None) -> None:
    """A run's recalls and its imbalance level; those of ``result``, where one is given."""
    result = folder.result() if result is None else result
    console.print(
        f"{folder.path}: {result['method']} on {result['data']}", style="bold", highlight=False, soft_wrap=True
    )
    show_measures(result)


def show_measures(result: dict[str, Any]) -> None:
    """Recall of each group on every split, and the preference scores."""
    groups = [name for name, members in result["groups"].items() if members]
    table = Table("recall %", *groups, "all", box=None, header_style="bold")
    names = {"train": "train", "train_paper": "train, as in training", "val": "val", "test": "test"}
    for split, shown in names.items():
        if split in result["splits"]:
            recalls = result["splits"][split]["recall"]
            cells = [recalls.get(name) for name in [*groups, "all"]]
            table.add_row(shown, *("-" if cell is None else f"{100 * cell:.2f}" for cell in cells))
    preference = result.get("preference_test")
    if preference is not None:
        scores = [preference["score"].get(name) for name in groups]
        table.add_row("preference P", *("-" if score is None else f"{score:.2f}" for score in scores), "")
    console.print(table)
    if preference is not None:
        level = preference["model_imbalance_level"]
        shown_level = "undefined" if level is None else f"{level:.2f}"
        taken = "as the paper took them" if result["train_stats"] == "paper" else "in evaluation mode"
        console.print(f"model imbalance level I {shown_level} (training recalls {taken})", highlight=False)
    if result.get("posthoc"):
        console.print(f"after {result['posthoc']}", highlight=False)

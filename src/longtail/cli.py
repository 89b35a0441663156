"""The command ``longtail``: parse, call, print. Needs ``longtail[cli]``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from longtail.data import CATALOG, Description, check, describe, long_tail_counts, open_path
from longtail.data.describe import draw_tail
from longtail.data.fetch import get_cifar10, get_cifar100, get_fashion_mnist

console = Console()
FETCHERS = {"cifar10": get_cifar10, "cifar100": get_cifar100, "fashion-mnist": get_fashion_mnist}

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Root = Annotated[Path, tyro.conf.arg(help="the data folder", metavar="DIR")]
data = tyro.extras.SubcommandApp()


@data.command(name="list")
def list_data(root: Root = Path("data")) -> int:
    """Show the data sets that are known by name, and which of them are on this machine."""
    table = Table("name", "classes", "train", "val", "test", "imbalance", "here", box=None, header_style="bold")
    for entry in CATALOG.values():
        sizes = dict(entry.sizes)
        imbalance = ""
        if entry.train_range is not None:
            low, high = entry.train_range
            if entry.imbalance is not None:
                counts = long_tail_counts(entry.num_classes, low, entry.imbalance)
                sizes["train"], low, high = int(counts.sum()), int(counts.min()), int(counts.max())
            imbalance = f"{high / low:.0f}"
        here = "yes" if entry.is_here(root) else "no"
        table.add_row(
            entry.name,
            str(entry.num_classes),
            *(f"{sizes[p]:,}" if p in sizes else "-" for p in _PARTS),
            imbalance,
            here,
        )
    console.print(table)
    return 0


_PARTS = ("train", "val", "test")


@data.command(name="get")
def get_data(name: Name, root: Root = Path("data")) -> int:
    """Fetch a data set into the data folder, or say how to."""
    if name not in CATALOG:
        raise ValueError(f"Expected a data set that `longtail data list` shows, but got {name!r}.")
    base = name.removesuffix("-lt") if CATALOG[name].imbalance is not None else name
    if CATALOG[base].is_here(root):
        console.print(f"{base} is there already." if CATALOG[base].files else f"{base} comes with scikit-learn.")
        return check_data(base, root=root)
    if base not in FETCHERS:
        console.print(f"{name} cannot be fetched for you: {CATALOG[name].steps}", soft_wrap=True)
        return 1
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"getting {base}", total=None)
        FETCHERS[base](
            root, progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        )
    return check_data(base, root=root)


@data.command(name="check")
def check_data(name: Name, root: Root = Path("data"), imbalance: float | None = None) -> int:
    """Compare a data set on disk with what should be there."""
    differences = check(name, root, **({} if imbalance is None else {"imbalance": imbalance}))
    for difference in differences:
        console.print(str(difference), soft_wrap=True, markup=False, highlight=False)
    if not differences:
        console.print(f"{name} is as it should be.")
    return 1 if differences else 0


@data.command(name="describe")
def describe_data(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    figure: Annotated[Path | None, tyro.conf.arg(help="draw the tail into this PNG")] = None,
    read_images: Annotated[bool, tyro.conf.arg(help="read every image, to find bad and repeated ones")] = True,
) -> int:
    """Show what there is in your own data: classes, counts, imbalance, groups, repeated and unreadable images."""
    dataset = open_path(path)
    total = sum(len(split) for split in dataset.splits.values())
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading images", total=total, visible=read_images)
        found = describe(dataset, read_images=read_images, progress=lambda n: bar.advance(task, n))
    show(found)
    if figure is not None:
        draw_tail(found, figure)
        console.print(f"Figure: {figure}", soft_wrap=True, markup=False, highlight=False)
    return 1 if found.unreadable or found.across or found.empty else 0


def show(found: Description) -> None:
    """Print a description."""
    sizes = ", ".join(f"{size:,} {part}" for part, size in found.sizes.items())
    heading = f"{found.name}: {len(found.class_names)} classes, {sizes} images"
    console.print(heading, soft_wrap=True, markup=False, highlight=False, style="bold")
    groups = ", ".join(f"{size} {name}" for name, size in found.groups.sizes.items())
    cut = f"imbalance factor {found.imbalance_factor:.0f}; {groups} classes (head > 100, tail < 20 images)"
    console.print(cut, soft_wrap=True, highlight=False)
    order = found.counts.argsort(descending=True, stable=True).tolist()
    widest = int(found.counts.max())
    shown = order if len(order) <= 30 else [*order[:10], -1, *order[-19:]]
    for c in shown:
        if c < 0:
            console.print("  …", highlight=False)
            continue
        count = int(found.counts[c])
        bar = "█" * max(round(40 * count / max(widest, 1)), 1 if count else 0)
        console.print(f"  {found.class_names[c][:20]:<20} {count:>7,} {bar}", highlight=False, markup=False)
    for what, items in (
        ("classes without a training image", found.empty),
        ("images in more than one split", [" = ".join(names) for names in found.across]),
        ("images more than once in a split", [" = ".join(names) for names in found.within]),
        ("unreadable files", found.unreadable),
    ):
        if items:
            console.print(f"{len(items)} {what}:", highlight=False)
            for item in items[:5]:
                console.print(f"  {item}", soft_wrap=True, highlight=False, markup=False)
            if len(items) > 5:
                console.print(f"  … and {len(items) - 5} more", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what a person did wrong is one sentence and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    groups: dict[str, tyro.extras.SubcommandApp] = {"data": data}
    if not given or given[0] not in groups:
        asked: Literal[0, 2] = 0 if given[:1] in ([], ["-h"], ["--help"]) else 2
        Console(stderr=bool(asked)).print(
            f"usage: longtail {{{','.join(groups)}}} …; `longtail data --help` tells more"
        )
        return asked
    try:
        return int(groups[given[0]].cli(prog=f"longtail {given[0]}", args=given[1:], description="Data sets.") or 0)
    except (ValueError, TypeError, OSError, ImportError) as error:
        Console(stderr=True).print(f"longtail: {error}", soft_wrap=True, highlight=False, markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""``longtail data``: list, get, check, and describe your own."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

import tyro
from rich.cells import set_cell_size
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from longtail._checks import nearest
from longtail.cli.parsing import flags_of, read, read_later
from longtail.data import CATALOG, Description, check, describe, long_tail_counts, open_path
from longtail.data.datasets.describe import draw_tail
from longtail.data.datasets.own import empty_folders

console = Console()

_Command = TypeVar("_Command", bound=Callable[..., int])
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help="as `longtail data list` shows it")]
Root = Annotated[Path, tyro.conf.arg(help="the data folder", metavar="DIR")]
Imbalance = Annotated[float | None, tyro.conf.arg(help="factor, where it is made long-tailed here")]
data = tyro.extras.SubcommandApp()
_commands: dict[str, Callable[..., int]] = {}


def _command(name: str) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        data.command(name=name)(read_later(command))
        _commands[name] = command
        return command

    return add


@_command("list")
def list_data(root: Root = Path("data")) -> int:
    """Show the data sets that are known by name, and which of them are on this machine."""
    rows: list[tuple[str, ...]] = [("name", "classes", *_PARTS, "imbalance", "here")]
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
        shown = (f"{sizes[part]:,}" if part in sizes else "-" for part in _PARTS)
        rows.append((entry.name, str(entry.num_classes), *shown, imbalance, here))
    table = Table(box=None, header_style="bold")
    for heading, *cells in zip(*rows, strict=True):
        table.add_column(heading, min_width=max(map(len, (heading, *cells))))
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table, crop=False)  # a narrow terminal breaks lines, and nothing is cut off
    return 0


_PARTS = ("train", "val", "test")


@_command("get")
def get_data(name: Name, root: Root = Path("data")) -> int:
    """Fetch a data set into the data folder, or say how to; what is there already is looked through."""
    _check_known(name)
    whole = name.removesuffix("-lt")
    base = whole if CATALOG[name].imbalance is not None and whole in CATALOG else name
    fetch = CATALOG[base].fetch
    if fetch is None:
        if CATALOG[base].is_here(root):
            where = f"is there already, in {_places(base, root)}" if CATALOG[base].files else "comes with scikit-learn"
            _tell(f"{base} {where}.")
            return check_data(base, root=root)
        console.print(f"{name} cannot be fetched for you: {CATALOG[name].steps}", soft_wrap=True, markup=False)
        return 1
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"getting {base}", total=None)
        fetch(root, lambda what, done, total: bar.update(task, description=what, completed=done, total=total))
    _tell(f"{base} is in {_places(base, root)}.")
    return check_data(base, root=root)


def _check_known(name: str) -> None:
    if name not in CATALOG:
        near = nearest(name, CATALOG)
        raise ValueError(f"Expected a data set that `longtail data list` shows, but got {name!r}{near}.")


def _places(name: str, root: Path) -> str:
    """The folders in which a data set lies."""
    folders = dict.fromkeys(PurePosixPath(file).parts[0] for file in CATALOG[name].files)
    return " and ".join(str(root / folder) for folder in folders)


def _tell(line: str) -> None:
    """Print a line as it is: whole, whatever brackets or numbers are in it."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


@_command("check")
def check_data(name: Name, root: Root = Path("data"), imbalance: Imbalance = None) -> int:
    """Compare a data set on disk with what should be there."""
    _check_known(name)
    differences = check(name, root, **({} if imbalance is None else {"imbalance": imbalance}))
    for difference in differences:
        _tell(str(difference))
    if not differences:
        console.print(f"{name} is as it should be.")
    return 1 if differences else 0


@_command("describe")
def describe_data(
    path: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH", help="a folder of class folders, or a list")
    ],
    figure: Annotated[Path | None, tyro.conf.arg(help="draw the tail into this PNG")] = None,
    read_images: Annotated[bool, tyro.conf.arg(help="read every image, to find bad and repeated ones")] = True,
) -> int:
    """Show what there is in your own data: classes, counts, imbalance, groups, repeated and unreadable images."""
    if figure is not None and not figure.absolute().parent.is_dir():  # or all images would be read first
        raise FileNotFoundError(f"Expected `figure` to be in a folder that is there, but got {figure}.")
    dataset = open_path(path)
    total = sum(len(split) for split in dataset.splits.values())
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading images", total=total, visible=read_images)
        found = describe(dataset, read_images=read_images, progress=lambda n: bar.advance(task, n))
    show(found, empty_folders(path, dataset))
    if figure is not None:
        draw_tail(found, figure)
        _tell(f"Figure: {figure}")
    return 1 if found.unreadable or found.across or found.conflicting or found.empty else 0


def show(found: Description, folders: Sequence[Path] = ()) -> None:
    """Print a description, and which class folders are empty."""
    sizes = ", ".join(f"{size:,} {part}" for part, size in found.sizes.items())
    classes = "1 class" if len(found.class_names) == 1 else f"{len(found.class_names):,} classes"
    heading = f"{found.name}: {classes}, {sizes} {'image' if sum(found.sizes.values()) == 1 else 'images'}"
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
        name = set_cell_size(found.class_names[c], 20)
        console.print(f"  {name} {count:>7,} {bar}", highlight=False, markup=False)
    for one, many, items in (
        ("class", "classes without a training image", found.empty),
        ("folder", "folders without an image, to be filled or removed", [str(folder) for folder in folders]),
        ("image", "images in more than one split", [" = ".join(names) for names in found.across]),
        ("image", "images more than once in a split", [" = ".join(names) for names in found.within]),
        ("image", "images under different labels", [" = ".join(names) for names in found.conflicting]),
        ("file", "files that cannot be read", found.unreadable),
    ):
        if items:
            what = one + many[many.index(" ") :] if len(items) == 1 else many
            console.print(f"{len(items)} {what}:", highlight=False)
            for item in items[:5]:
                console.print(f"  {item}", soft_wrap=True, highlight=False, markup=False)
            if len(items) > 5:
                console.print(f"  … and {len(items) - 5} more", highlight=False)


def run(arguments: Sequence[str]) -> int:
    """Run one of the data commands."""
    prog = "longtail data"
    chosen = _commands.get(arguments[0]) if arguments else None
    known = _commands if chosen is None else flags_of(chosen).values()
    return read(lambda words: data.cli(prog=prog, args=words, description="Data sets."), arguments, prog, known)()

"""``longtail data``: list, get and check data sets, and describe your own."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from longtail._checks import check_number
from longtail._program import printable
from longtail._registry import load_plugins, nearest
from longtail.cli.parsing import Parser, add_opening, open_given
from longtail.cli.show import Phases, SafeConsole, print_line
from longtail.data import CATALOG, Description, check_dataset, describe_dataset
from longtail.data.datasets.own import empty_folders

_PARTS = ("train", "val", "test")
_USAGE = """usage: longtail data COMMAND …

  list             data sets known by name, and which of them are on this machine
  get NAME         download a data set, or show how to get it
  check NAME       compare a data set on disk with what should be there
  describe DATA    classes, counts, imbalance, duplicate and unreadable images of your own data, or of one by name

`longtail data COMMAND --help` shows the flags."""


def run(words: Sequence[str]) -> int:
    """Run one of the data commands."""
    if not words or words[0] in {"-h", "--help"}:
        print_line(_USAGE)
        return 0
    if words[0] not in _COMMANDS:
        near = nearest(words[0], _COMMANDS)
        raise ValueError(f"Expected a command that `longtail data --help` shows, but got {words[0]!r}{near}.")
    load_plugins()
    return _COMMANDS[words[0]](words[1:])


def _parser(command: str, description: str) -> Parser:
    parser = Parser(f"longtail data {command}", description)
    parser.flag("--root", "the data folder, for data sets by name", type=Path, default=Path("data"), metavar="DIR")
    if command in {"get", "check"}:
        parser.add_argument("name", metavar="NAME", help="a name that `longtail data list` shows")
    return parser


def _list(words: Sequence[str]) -> int:
    root = _parser("list", "Show the data sets known by name.").read(words).root
    table = Table("name", "classes", *_PARTS, "imbalance", "here", box=None, header_style="bold")
    for entry in CATALOG.values():
        sizes, train_range, counts = dict(entry.sizes), entry.train_range, entry.train_counts(None)
        if counts is not None:
            sizes["train"], train_range = int(counts.sum()), (int(counts.min()), int(counts.max()))
        imbalance = "" if train_range is None else f"{train_range[1] / train_range[0]:.0f}"
        here = "yes" if entry.is_here(root) else "no"
        shown = (f"{sizes[part]:,}" if part in sizes else "-" for part in _PARTS)
        table.add_row(entry.name, str(entry.num_classes), *shown, imbalance, here)
    SafeConsole(width=200).print(table)  # complete in a narrow terminal
    return 0


def _get(words: Sequence[str]) -> int:
    given = _parser("get", "Download a data set into the data folder, or show how to get it.").read(words)
    name, root = given.name, given.root
    CATALOG.find(name)
    whole = name.removesuffix("-lt")
    base = whole if CATALOG[name].imbalance is not None and whole in CATALOG else name
    fetch = CATALOG[base].fetch
    if fetch is None:
        if not CATALOG[base].is_here(root):
            print_line(f"{name} cannot be downloaded automatically: {CATALOG[name].steps}")
            return 1
        where = f"is already in {_places(base, root)}" if CATALOG[base].files else "comes with scikit-learn"
        print_line(f"{base} {where}.")
        return _compare(base, root)
    fetch(root)
    print_line(f"{base} is in {_places(base, root)}.")
    return _compare(base, root)


def _check(words: Sequence[str]) -> int:
    parser = _parser("check", "Compare a data set on disk with what should be there.")
    parser.flag("--imbalance", "imbalance factor of a data set that is made long-tailed here", type=float, metavar="N")
    given = parser.read(words)
    with parser.errors_name_flags():
        return _compare(given.name, given.root, given.imbalance)


def _compare(name: str, root: Path, imbalance: float | None = None) -> int:
    CATALOG.find(name)
    more = {} if imbalance is None else {"imbalance": check_number("imbalance", imbalance, minimum=1)}
    differences = check_dataset(name, root, **more)
    for difference in differences:
        print_line(str(difference))
    if not differences:
        print_line(f"{name} is complete and correct.")
    return 1 if differences else 0


def _describe(words: Sequence[str]) -> int:
    parser = _parser("describe", "Show what is in data: classes, counts, groups, duplicates, bad files.")
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a folder of class folders, a list of images, features (a file of arrays or a table of numbers), with "
        "--text a table of texts, or a data set by name",
    )
    parser.flag("--text", "your own table of texts: the column with the texts", metavar="COLUMN")
    parser.flag("--no-read-images", "do not open the images: finds no bad or duplicate ones", action="store_true")
    parser.flag("--all", "list every class, duplicate and bad file, not only the first ones", action="store_true")
    add_opening(parser)
    given = parser.read(words)
    with parser.errors_name_flags(), Phases():
        dataset = open_given(given.data, given)
        found = describe_dataset(dataset, read_images=not given.no_read_images)
    folders = [] if given.data in CATALOG else empty_folders(given.data, dataset)
    show(found, folders, everything=given.all)
    return 1 if found.unreadable or found.across or found.empty or found.leaking else 0


_COMMANDS = {"list": _list, "get": _get, "check": _check, "describe": _describe}


def _places(name: str, root: Path) -> str:
    folders = dict.fromkeys(PurePosixPath(file).parts[0] for file in CATALOG[name].files)
    return " and ".join(str(root / folder) for folder in folders)


def show(found: Description, folders: Sequence[Path] = (), *, everything: bool = False) -> None:
    """Print a description, and the class folders that are empty; ``everything``: all classes and all problems."""
    print_line(found.title, style="bold")
    print_line(found.imbalance)
    widest, shown = int(found.counts.max()), found.shown_classes(everything=everything)
    width = min(28, max(cell_len(printable(found.class_names[c])) for c in shown if c is not None))
    for c in shown:
        if c is None:
            print_line("  …")
            continue
        count = int(found.counts[c])
        bar = "█" * max(round(40 * count / max(widest, 1)), 1 if count else 0)
        print_line(f"  {set_cell_size(printable(found.class_names[c]), width)} {count:>7,} {bar}")
    for fact in found.facts:
        print_line(fact)
    problems = {**found.problems, "folders without an image": [str(folder) for folder in folders]}
    for problem, items in problems.items():
        if items:
            print_line(f"{problem} ({len(items)}):")
            for item in items if everything else items[:5]:
                print_line(f"  {item}")
            if len(items) > 5 and not everything:
                print_line(f"  … and {len(items) - 5} more; `--all` lists them")

"""Text lists: one ``relative/path.jpg label`` a line, as ImageNet-LT, Places-LT and iNaturalist2018 publish them."""

from pathlib import Path, PurePosixPath

import torch

from longtail.data.datasets.dataset import FileImages, Split

__all__ = ["inside", "read_lines", "read_list"]


def read_list(path: Path, root: Path) -> Split:
    """The images and labels of a text list.

    Args:
        path: the list. Blank lines are passed over; paths may have spaces, and Windows line ends do no harm.
        root: the folder that its paths start from. They may not leave it.
    """
    names, labels = [], []
    for number, line in enumerate(read_lines(path), 1):
        if not line or line.isspace():
            continue
        name, _, label = line.rstrip().rpartition(" ")
        if not name or name.isspace() or not (label.isascii() and label.isdigit() and len(label) < 19):
            raise ValueError(f"Expected `path label` in line {number} of {path}, but got {line.strip()[:80]!r}.")
        if not inside(name):
            raise ValueError(f"Expected line {number} of {path} to stay in the data folder, but got {name!r}.")
        names.append(name)
        labels.append(int(label))
    return Split(FileImages(root, names), torch.tensor(labels, dtype=torch.int64))


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without their ends."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut at exotic characters too
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected {path} to be text in UTF-8, but byte {error.start} is none.") from None


def inside(name: str) -> bool:
    """Whether a relative path stays in its folder."""
    if ".." not in name and "\\" not in name and name[0] != "/" and name[1:2] != ":":
        return True  # nearly all; PurePosixPath is slow
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and name[1:2] != ":"

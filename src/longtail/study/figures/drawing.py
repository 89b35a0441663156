"""A figure with its name, its title and what it shows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Drawing"]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its name, its title and what it shows."""

    name: str
    """Of its files: letters, digits and hyphens."""
    title: str
    figure: "Figure"
    caption: str

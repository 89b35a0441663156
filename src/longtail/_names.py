"""Names that a person has misspelt."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as the end of a sentence; nothing where no name is near.

    Example:
        >>> f"got 'trian'{nearest('trian', ['train', 'study'])}."
        "got 'trian'; the nearest is train."
    """
    near = get_close_matches(name, list(known), n=1)
    return f"; the nearest is {near[0]}" if near else ""

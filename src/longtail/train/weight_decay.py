"""``weight_decay = "auto"``: the one of a few with the highest recall over all classes on held-out data."""

from collections.abc import Mapping, Sequence
from typing import Any

DECAYS = (1.0, 0.1, 3.0, 0.01)
"""What is tried, each in a pilot; of equally good ones the first is used."""


def choose_decay(recalls: Sequence[float]) -> dict[str, Any]:
    """The weight decay with the highest recall on held-out data, and all recalls, as a result records them.

    Args:
        recalls: over all classes, in the order of :data:`DECAYS`.

    Example:
        >>> choose_decay([0.5, 0.6, 0.4, 0.6])["chosen"]
        0.1
    """
    found = dict(zip(DECAYS, recalls, strict=True))
    return {"chosen": max(found, key=found.__getitem__), "recall": {f"{one:g}": found[one] for one in sorted(found)}}


def describe_decay(found: Mapping[str, Any]) -> str:
    """How the weight decay was chosen, in words, from the ``auto_weight_decay`` of a result."""
    each = ", ".join(f"{decay}: {100 * recall:.1f}" for decay, recall in found["recall"].items())
    return f"weight decay {found['chosen']:g}, chosen by recall on held-out data ({each} %)"

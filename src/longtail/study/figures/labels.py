"""Names beside points, each where it hides least: no name over a marker or another name where there is room."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

__all__ = ["Box", "Offset", "is_crowded", "is_far", "place_labels"]

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

Offset = tuple[float, float, str]
"""Where a name begins, ends or has its middle, from its point, in points; and which of the three."""

_HEIGHT = 11.0
_LETTER = 5.4  # an average one, at nine points
_MARKER = 6.0
_ROUNDS = 6  # of moving each name where it is best, the others staying


def _offsets() -> list[Offset]:
    found: list[Offset] = [(8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center")]
    for far in (11, 18, 26, 36, 48):
        for x in (4, 10, 24):
            found += [(x, far, "left"), (x, -far, "left"), (-x, far, "right"), (-x, -far, "right")]
        found += [(0, far + 3, "center"), (0, -far - 3, "center")]
    return found


_OFFSETS = _offsets()


def place_labels(
    spots: Mapping[str, tuple[float, float]], inner: tuple[float, float], taken: Sequence[Box] = ()
) -> dict[str, Offset]:
    """Where each name goes.

    Args:
        spots: the points, in points from the lower left corner of the axes.
        inner: width and height of the axes.
        taken: what else must not be hidden, such as a legend or error bars.
    """
    orders = [sorted(spots, key=key) for key in (lambda n: -spots[n][1], lambda n: -len(n), lambda n: -spots[n][0])]
    found = [_settle(order, spots, inner, taken) for order in orders]
    return min(found, key=lambda one: one[1])[0]


def is_crowded(
    spots: Mapping[str, tuple[float, float]], inner: tuple[float, float], placed: Mapping[str, Offset]
) -> bool:
    """Whether names are not easily read where they were placed: they are more than a dozen, one hides another name or a
    point, is partly outside, or more than two, and than a quarter of them, are far from their points.
    """
    boxes = {name: _box(name, spots[name], offset) for name, offset in placed.items()}
    dots = {name: (x - 3, y - 3, x + 3, y + 3) for name, (x, y) in spots.items()}
    hidden = any(_overlap(one, other) for one, other in combinations(boxes.values(), 2))
    hidden |= any(_overlap(box, dots[other]) for name, box in boxes.items() for other in dots if other != name)
    outside = any(_outside(box, inner) > _HEIGHT for box in boxes.values())
    return hidden or outside or len(placed) > 12 or sum(map(is_far, placed.values())) > max(2, len(placed) / 4)


def _settle(
    order: Sequence[str], spots: Mapping[str, tuple[float, float]], inner: tuple[float, float], taken: Sequence[Box]
) -> tuple[dict[str, Offset], float]:
    """Names placed one after the other, then moved as long as that helps; and what all of it costs."""
    markers = {name: (x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for name, (x, y) in spots.items()}
    chosen: dict[str, Offset] = {}
    costs: dict[str, float] = {}
    for _ in range(_ROUNDS):
        before = dict(chosen)
        for name in order:
            placed = [other for other in order if other != name and other in chosen]
            lines = [_line(spots[other], chosen[other]) for other in placed]
            hidden = [(_box(other, spots[other], chosen[other]), 3.0) for other in placed]
            hidden += [(box, 1.0) for box in taken] + [(box, 4.0) for box in markers.values()]
            of_offset = {o: _cost(_box(name, spots[name], o), _line(spots[name], o), hidden, lines) for o in _OFFSETS}
            for offset in _OFFSETS:
                of_offset[offset] += 30 * _outside(_box(name, spots[name], offset), inner)
                of_offset[offset] += 2.0 * math.hypot(offset[0], offset[1])
            chosen[name] = min(of_offset, key=lambda offset: of_offset[offset])
            costs[name] = of_offset[chosen[name]]
        if chosen == before:
            break
    return chosen, sum(costs.values())


def _cost(
    box: Box,
    line: Sequence[tuple[float, float]],
    hidden: Sequence[tuple[Box, float]],
    lines: Sequence[Sequence[tuple[float, float]]],
) -> float:
    """What a name in a box, and the line to it, hide."""
    crossed = sum(_holds(box, dot) for other in lines for dot in other)
    crossed += sum(_holds(other, dot) for other, _ in hidden for dot in line)
    return 200 * crossed + sum(weight * _overlap(box, other) for other, weight in hidden)


def _outside(box: Box, inner: tuple[float, float]) -> float:
    return max(0, -box[0]) + max(0, box[2] - inner[0]) + max(0, -box[1]) + max(0, box[3] - inner[1])


def _box(name: str, spot: tuple[float, float], offset: Offset) -> Box:
    width = _LETTER * len(name) + 4
    start = spot[0] + offset[0] - {"left": 0.0, "right": width, "center": width / 2}[offset[2]]
    middle = spot[1] + offset[1]
    return (start, middle - _HEIGHT / 2, start + width, middle + _HEIGHT / 2)


def _line(spot: tuple[float, float], offset: Offset) -> list[tuple[float, float]]:
    """Dots along the line from a point's marker to a name that is far from it; none to one that is near."""
    length = math.hypot(offset[0], offset[1])
    if not is_far(offset):
        return []
    steps = [at / length for at in range(int(1.5 * _MARKER), int(length), 3)]
    return [(spot[0] + share * offset[0], spot[1] + share * offset[1]) for share in steps]


def is_far(offset: Offset) -> bool:
    """Whether a name needs a line to its point."""
    return math.hypot(offset[0], offset[1]) > 15


def _holds(box: Box, dot: tuple[float, float]) -> bool:
    return box[0] < dot[0] < box[2] and box[1] < dot[1] < box[3]


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0

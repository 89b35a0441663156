"""Names beside points: none over a marker, another name or out of the figure, where there is room."""

from itertools import combinations

from longtail.study.figures.labels import _box, _overlap, is_crowded, is_far, place_labels

INNER = (253.0, 208.0)
SPOTS = {  # C10-LT100's, two long names at the right edge and two points that nearly touch
    **{
        "CBS (β = 1.8)": (65.0, 181.0),
        "ProCo + Balanced Softmax": (221.0, 181.0),
        "BCL + Balanced Softmax": (199.0, 180.5),
    },
    **{"CBS (β = 1.5)": (121.0, 157.0), "Balanced Softmax": (175.0, 125.0), "Logit adjustment": (168.0, 127.0)},
    **{"ResLT": (94.0, 122.0), "LDAM-DRW": (168.0, 114.0), "cRT": (175.0, 78.0)},
}


def test_names_hide_neither_each_other_nor_points():
    placed = place_labels(SPOTS, INNER)
    boxes = {name: _box(name, SPOTS[name], offset) for name, offset in placed.items()}
    assert list(boxes) != []
    for one, other in combinations(boxes.values(), 2):
        assert _overlap(one, other) == 0
    for name, box in boxes.items():
        assert box[0] >= 0
        assert box[2] <= INNER[0]
        for point, (x, y) in SPOTS.items():
            assert point == name or _overlap(box, (x - 4, y - 4, x + 4, y + 4)) == 0, (name, point)


def test_a_point_alone_has_its_name_beside_it():
    assert place_labels({"a": (100.0, 100.0)}, INNER) == {"a": (8, 0, "left")}
    assert not is_far((8, 0, "left"))
    assert is_far((4, 26, "left"))


def test_a_pile_of_points_is_crowded_and_a_few_apart_are_not():
    apart = {"Softmax": (30.0, 30.0), "CBS": (120.0, 150.0), "Focal loss": (200.0, 60.0)}
    assert not is_crowded(apart, INNER, place_labels(apart, INNER))
    pile = {f"a method, no. {k}": (150.0 + 3 * k, 2.0) for k in range(7)}
    assert is_crowded(pile, INNER, place_labels(pile, INNER))
    over = dict.fromkeys(("one name", "another"), (0.0, 0.0, "left"))
    assert is_crowded(dict.fromkeys(over, (50.0, 50.0)), INNER, over)

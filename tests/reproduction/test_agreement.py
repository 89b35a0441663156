"""Agreement with the paper: the authors' own numbers agree, and reversed ones do not."""

import math

import pytest

from longtail.study.runs import group_runs
from longtail.study.stats import Summary
from reproduction import paper
from reproduction.agreement import agreement, far_off, level_order, level_orders, same_order, same_signs

C10 = ("C10-LT10", "C10-LT50", "C10-LT100")


def test_the_authors_levels_are_in_order_on_every_data_set():
    for data in paper.figures()["imbalance_level_I"]["datasets"]:
        found = paper.imbalance_level(data)
        assert level_order(found["softmax"], found["balanced-softmax"], found["cbs"])
        assert not level_order(found["cbs"], found["balanced-softmax"], found["softmax"])


@pytest.mark.parametrize("data", C10)
def test_a_balanced_model_and_softmax_differ_in_sign_and_order(data):
    """The paper's two tables: the head below its frequency and the tail above it, then the opposite."""
    balanced = paper.tables()["probability_shift_balanced_model"][data]
    softmax = paper.tables()["probability_shift_softmax"][data]
    assert same_signs(balanced, balanced)
    assert not same_signs(balanced, softmax)
    assert not same_order(balanced, softmax)
    halved = {group: Summary(value / 2, math.nan, 1) for group, value in softmax.items()}
    assert agreement("Δp̂", halved, softmax).count("**yes**") == 2
    assert agreement("Δp̂", halved, balanced).count("**no**") == 2


def test_levels_of_runs_are_compared_per_data_set(made):
    runs = []
    for imbalance, data in zip((10, 50, 100), C10, strict=True):
        runs += [made(m, level=v, imbalance=imbalance) for m, v in paper.imbalance_level(data).items()]
    found = level_orders(group_runs(runs))
    assert [line.partition(":")[0] for line in found] == list(C10)
    assert all(line.endswith("(a single run of some): **yes**.") for line in found)
    reversed_ = [made(m, level=v) for m, v in {"softmax": 10.0, "balanced-softmax": 20.0, "cbs": 30.0}.items()]
    assert level_orders(group_runs(reversed_))[0].endswith("**no**.")
    assert level_orders(group_runs(reversed_[:2])) == []


def test_differences_of_more_than_two_of_the_papers_sds_are_listed(made):
    """C10-LT100, CBS over all classes: 81.43 ± 0.24."""
    near, far = (90.0, 74.8, 81.9, 81.43 + 0.47), (87.5, 74.8, 81.9, 81.43 - 0.49)
    assert [line for line in far_off(group_runs([made("cbs", 0, near)])) if ", all:" in line] == []
    (line,) = [line for line in far_off(group_runs([made("cbs", 0, far)])) if ", all:" in line]
    assert "80.94 here, 0.49 below the paper's 81.43 ± 0.24 (2.0 of its SDs)." in line
    assert far_off(group_runs([made("softmax")])) == []  # the paper's table has no softmax

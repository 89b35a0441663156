"""Networks before their first step: what a theorem says of them, and what the authors' gradient table looks like."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from longtail.classes import Groups
from longtail.data import long_tail_counts
from longtail.metrics import gradient_sums
from longtail.study import paper, untrained
from longtail.study.mechanism import untrained_gradient_table
from longtail.study.runs import one_cell, read_run
from longtail.study.untrained import (
    UNTRAINED_FILE,
    balance_at_chance,
    losses_of,
    measure_untrained,
    untrained_gradients,
)
from longtail.train import RunFolder, Trainer, defaults

GROUPS = Groups.from_indices(head=[0, 1, 2], medium=[3, 4, 5], tail=[6, 7, 8, 9])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A softmax run on digits, without its weights, and one of CBS."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("untrained")
    for method in ("softmax", "cbs"):
        recipe = replace(defaults("digits-lt", method), epochs=1, evaluate_every=0, device="cpu", train_stats="paper")
        run = RunFolder(out / method)
        Trainer(recipe, run).run()
        run.model_file.unlink()
    return out


@pytest.fixture
def known(monkeypatch):
    """As if the paper had the digits."""
    rows = {name: {"head": 1.0, "medium": -1.0, "tail": -20.0} for name in ("softmax", "balanced-softmax", "cbs")}
    monkeypatch.setattr(untrained.paper, "gradient_balance", lambda data: rows if data == "digits-lt 50" else {})


@pytest.mark.parametrize("beta", [0.0, 1.0, 1.8])
def test_equal_logits_are_worked_out_by_hand(beta):
    counts = torch.tensor([50, 30, 20, 10, 8, 6, 4, 3, 2, 1])
    labels = torch.repeat_interleave(torch.arange(10), counts)
    reward, penalty = gradient_sums(torch.zeros(len(labels), 10), labels, shift=beta * counts.double().log())
    ratio = 100 * (1 - penalty / reward)
    found = balance_at_chance(counts, beta, GROUPS)
    for name, members in (("head", slice(3)), ("medium", slice(3, 6)), ("tail", slice(6, 10))):
        assert found[name] == pytest.approx(ratio[members].mean().item(), rel=1e-5, abs=1e-4)
    if beta == 1.0:  # the paper's theorem on Balanced Softmax
        assert max(map(abs, found.values())) < 1e-3
    else:
        assert (found["head"] > 0 > found["tail"]) == (beta == 0.0)


def test_others_are_not_asked(folder):
    measure_untrained([read_run(folder / "softmax")])
    assert not (folder / "softmax" / UNTRAINED_FILE).exists()


def test_a_network_is_asked_once_and_needs_no_weights(folder, known):
    run = read_run(folder / "softmax")
    measure_untrained([run, read_run(folder / "cbs")])
    assert not (folder / "cbs" / UNTRAINED_FILE).exists()
    file = folder / "softmax" / UNTRAINED_FILE
    before = file.stat().st_mtime_ns
    measure_untrained([run])
    assert file.stat().st_mtime_ns == before
    found = json.loads(file.read_text("utf-8"))
    assert found["betas"] == losses_of(run.recipe)
    assert sum(found["probability"]) == pytest.approx(1, abs=1e-5)
    tails = [found["gradient_balance"][name]["tail"] for name in ("softmax", "balanced-softmax", "cbs")]
    assert tails == sorted(tails)  # a larger beta favours the tail, whatever the network
    table = untrained_gradient_table([one_cell([run])])
    assert [row.source for row in table.rows] == ["here", "here", "paper"] * 3
    assert "digits-lt 50 1;" in table.caption
    assert untrained_gradients(one_cell([run]))["cbs"]["tail"].mean == tails[-1]
    assert untrained_gradients(one_cell([read_run(folder / "cbs")])) == {}


def test_it_is_the_network_that_training_began_with(folder, known):
    run = read_run(folder / "softmax")
    with untrained.asked_about(run, trained=False) as (trainer, model):
        begun = Trainer(run.recipe, RunFolder(folder / "again")).stages.build()
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), begun.parameters(), strict=True))
        assert trainer.dataset.counts.sum() == len(trainer.dataset.train)


def test_the_authors_numbers_are_about_those_of_ten_probabilities():
    """27 numbers of three data sets and three losses, from -5491 to 97, by nine that are free."""
    wanted = {
        (imbalance, method): paper.gradient_balance(f"C10-LT{imbalance}")[method]
        for imbalance in (10, 50, 100)
        for method in ("softmax", "balanced-softmax", "cbs")
    }
    cbs = {10: 1.6, 50: 1.5, 100: 1.8}
    groups = {"head": slice(3), "medium": slice(3, 6), "tail": slice(6, 10)}

    def ratios(logits: np.ndarray, imbalance: int, method: str) -> dict[str, float]:
        """Penalty over reward."""
        counts = long_tail_counts(10, 5000, imbalance).double().numpy()
        beta = {"softmax": 0.0, "balanced-softmax": 1.0, "cbs": cbs[imbalance]}[method]
        shifted = logits + beta * np.log(counts)
        p = np.exp(shifted - shifted.max())
        p /= p.sum()
        each = (counts.sum() - counts) * p / (counts * (1 - p))
        return {name: each[members].mean() for name, members in groups.items()}

    def off(logits: np.ndarray) -> np.ndarray:
        found = {key: ratios(logits, *key) for key in wanted}
        return np.log([found[key][name] / (1 - of[name] / 100) for key, of in wanted.items() for name in of])

    starts = [np.where(np.arange(10) == place, 2.0, 0.0) for place in range(10)]
    best = min((least_squares(off, start, bounds=(-8, 8)) for start in starts), key=lambda one: one.cost)
    p = np.exp(best.x - best.x.max())
    p /= p.sum()

    def typical(logarithms: np.ndarray) -> float:
        return float(np.exp(np.sqrt(np.mean(logarithms**2))))

    assert len(best.fun) == 27
    # What results/notes.md says.
    assert typical(best.fun) == pytest.approx(1.18, abs=0.005)  # each is met within this factor, typically
    assert np.exp(np.abs(best.fun).max()) == pytest.approx(1.55, abs=0.005)
    spread = [1 - value / 100 for of in wanted.values() for value in of.values()]
    assert max(spread) / min(spread) == pytest.approx(2000, rel=0.05)
    assert p.argmax() == 6
    assert p.max() == pytest.approx(0.80, abs=0.005)
    assert typical(off(np.zeros(10))) == pytest.approx(5.3, abs=0.05)  # equal probabilities are far off

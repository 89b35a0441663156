"""The Gaussian mixtures: the Bayes error against formulas, the protocol, and a tiny run."""

import json
from math import log

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from longtail.losses import class_shift


@pytest.fixture
def module(load):
    return load("gaussian_mixtures")


def posterior_of(module, means, variances, number=200_000):
    mixture = module.Mixture(torch.as_tensor(np.asarray(means)), torch.as_tensor(np.asarray(variances)))
    points, labels = mixture.sample(torch.tensor([number, number]), torch.Generator().manual_seed(0))
    return mixture.posterior(points), labels


def test_bayes_error_with_equal_covariances(module):
    """The distance of the means, in standard deviations, halved."""
    means, deviations = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0]]), np.array([1.0, 0.8, 1.5])
    expected = norm.cdf(-np.linalg.norm((means[0] - means[1]) / deviations) / 2)
    posterior, labels = posterior_of(module, means, [deviations**2, deviations**2])
    assert module.bayes_error(posterior) == pytest.approx(expected, abs=0.002)
    assert (posterior.argmax(1) != labels).double().mean() == pytest.approx(expected, abs=0.003)


def test_bayes_error_with_unequal_covariances(module):
    """Equal means: the squared radius decides, and it is chi-squared."""
    dim, small, large = 5, 0.5, 2.0
    threshold = dim * log(large / small) / (1 / small - 1 / large)
    expected = (chi2.sf(threshold / small, dim) + chi2.cdf(threshold / large, dim)) / 2
    posterior, _ = posterior_of(module, np.zeros((2, dim)), [[small] * dim, [large] * dim])
    assert module.bayes_error(posterior) == pytest.approx(expected, abs=0.002)
    assert module.excess_error(posterior.log(), posterior) == 0
    always_first = torch.tensor([1.0, 0.0]).expand_as(posterior)
    assert module.bayes_error(posterior) + module.excess_error(always_first, posterior) == pytest.approx(0.5, abs=0.003)


def test_beta_of_logistic_regression_is_a_shift(module):
    generator = torch.Generator().manual_seed(0)
    mixture = module.mixture_of(module.Regime("", dim=3), generator)
    counts = torch.tensor([200, 150, 100, 80, 60, 40, 30, 20, 15, 10])
    x, y = mixture.sample(counts, generator)
    weight, bias = module.fit_linear(x, y, counts, 1.0, decay=1.0)
    again, lower = module.fit_linear(x, y, counts, 2.5, decay=1.0)
    torch.testing.assert_close(again, weight, atol=2e-3, rtol=0)
    shift = (bias - lower) - (bias - lower).mean()
    torch.testing.assert_close(shift, class_shift(counts, 1.5).double(), atol=2e-3, rtol=0)


def test_quick_run(command, tmp_path, capsys):
    out, figure = tmp_path / "gaussian.json", tmp_path / "figure"
    command("gaussian_mixtures.py", "--quick", "--only", "mlp", "linear-10", "--out", out)
    measured = capsys.readouterr().out
    command("gaussian_mixtures.py", "--show", out, "--figure", figure)
    assert capsys.readouterr().out.splitlines()[:-1] == measured.splitlines()[1:]  # the table, without the time
    part = json.loads(out.read_text())["parts"]["linear-10"]
    assert [row["n"] for row in part["rows"]] == [118, 240]
    for row in part["rows"]:
        assert row["pilots"] == 5
        assert all(mean >= 0 for mean, _ in row["excess"].values())
        assert row["excess"]["best beta of each seed (oracle)"][0] <= row["excess"]["best fixed beta (oracle)"][0]
        assert row["excess"]["auto"][0] - row["loss_to_best"][0] == pytest.approx(
            row["excess"]["best fixed beta (oracle)"][0], abs=1e-4
        )
    assert part["verdicts"].keys() == {"H2"}  # H1 needs the largest n
    assert figure.with_suffix(".png").stat().st_size > 10_000


def test_verdicts(module):
    def row(smallest, auto, best, gain, p):
        others = {name: [0.05, 0.0] for name in ("softmax", "beta 1.5", "beta 2")}
        return {
            "smallest": smallest,
            "n": smallest,
            "excess": {"auto": [auto, 0.0], **others},
            "beta": {"auto": [1.05, 0.0]},
            "best_fixed": best,
            "gain_over_balanced": [gain, 0.0],
            "gain_p": p,
            "loss_to_best": [0.004, 0.0],
        }

    found = module.verdicts(
        [row(5, 0.1, 1.5, 0.01, 0.01), row(17, 0.06, 1.3, 0.01, 0.2), row(640, 0.03, 1.0, 0.0, 1.0)]
    )
    assert list(found["H1"].values()) == [True, True, False]
    assert {n: list(cell.values()) for n, cell in found["H2"].items()} == {"5": [True, True], "17": [False, True]}

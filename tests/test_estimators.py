"""The scikit-learn estimators: scikit-learn's own checks, and independent formulas."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import longtail
from longtail.estimators import LongTailClassifier, PriorAdjustedClassifier

# The data of scikit-learn's checks is tiny: beta cannot be measured there, and this is said in a warning.
quiet = pytest.mark.filterwarnings("ignore:beta could not be measured:UserWarning")


def gaussians(counts, seed=0, dim=4, distance=2.0):
    """Rows of Gaussian classes with identity covariance, whose means are unit vectors times a distance."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(size=(len(y), dim)) + distance * np.eye(len(counts), dim)[y], y


@quiet
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        # Tight tolerances: a check compares weights with repeated rows to seven digits.
        PriorAdjustedClassifier(LogisticRegression(tol=1e-10, max_iter=10_000)),
        LongTailClassifier(C=1.0, tol=1e-9, max_iter=1000),
        LongTailClassifier(hidden=(8,), epochs=60, cv=2),
    ]
)
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)


def test_given_beta_is_a_change_of_the_intercept():
    X, y = gaussians([300, 60, 12])
    model = PriorAdjustedClassifier(LogisticRegression(), beta=1.3).fit(X, y)
    shifted = LogisticRegression().fit(X, y)
    shifted.intercept_ = shifted.intercept_ - 1.3 * np.log([300, 60, 12])
    new, _ = gaussians([200, 200, 200], seed=1)
    assert np.array_equal(model.predict(new), shifted.predict(new))
    assert not np.array_equal(model.predict(new), model.estimator_.predict(new))
    np.testing.assert_allclose(model.predict_proba(new), shifted.predict_proba(new), rtol=1e-5)
    assert model.beta_ == 1.3
    assert model.shift_ is None


def test_auto_beta_is_the_shift_of_out_of_fold_predictions():
    X, y = gaussians([600, 120, 24], distance=1.5)
    model = PriorAdjustedClassifier(LogisticRegression(), cv=4).fit(X, y)
    found = cross_val_predict(LogisticRegression(), X, y, cv=StratifiedKFold(4), method="predict_log_proba")
    expected = longtail.fit_shift(found, y, [600, 120, 24])
    assert model.beta_ == pytest.approx(expected.delta, rel=1e-9)
    assert model.temperature_ == pytest.approx(expected.temperature, rel=1e-9)
    assert model.shift_.std_error == pytest.approx(expected.std_error, rel=1e-9)
    assert model.smoothing_ == 0


@pytest.mark.parametrize(
    "model", [PriorAdjustedClassifier(LogisticRegression()), LongTailClassifier()], ids=["wrapped", "trained"]
)
def test_bayes_rule_is_recovered(model):
    """Much data: beta is 1, and the posterior under a prior is that of the Gaussians."""
    X, y = gaussians([20_000, 4000, 1000], distance=1.5)
    model.fit(X, y)
    assert model.beta_ == pytest.approx(1, abs=0.05)
    assert model.temperature_ == pytest.approx(1, abs=0.05)
    new, _ = gaussians([50, 50, 50], seed=1, distance=1.5)
    prior = np.array([0.2, 0.5, 0.3])
    likelihood = 1.5 * new[:, :3]  # log density up to a term that all classes share
    np.testing.assert_allclose(
        model.predict_proba(new, prior=100 * prior), softmax(likelihood + np.log(prior), 1), atol=0.06
    )
    np.testing.assert_allclose(model.predict_proba(new), softmax(likelihood, 1), atol=0.06)


def test_probabilities_under_a_prior_are_those_of_bayes():
    X, y = gaussians([200, 50, 10], distance=1.0)
    model = LongTailClassifier().fit(X, y)
    balanced, prior = model.predict_proba(X), np.array([0.7, 0.3, 0.0])
    expected = balanced * prior / (balanced @ prior)[:, None]
    np.testing.assert_allclose(model.predict_proba(X, prior=prior), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="prior"):
        model.predict_proba(X, prior=[1, 1])


def test_linear_classifier_is_logistic_regression():
    """With features of unit length and the same C, the optimum is that of scikit-learn."""
    X, y = gaussians([200, 50, 10], distance=1.0)
    X = (X - X.mean(0)) / np.sqrt(((X - X.mean(0)) ** 2).sum(1).mean())
    model = LongTailClassifier(beta=1.0, C=10.0, tol=1e-8, max_iter=1000).fit(X, y)
    reference = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000).fit(X, y)
    expected = reference.decision_function(X) - np.log([200, 50, 10])
    found = model._logits(X).numpy()
    np.testing.assert_allclose(log_softmax(found, 1), log_softmax(expected, 1), atol=1e-4)


def test_smoothing_of_zeros_is_chosen_by_the_held_out_cross_entropy():
    X, y = gaussians([300, 60, 20], distance=2.0)
    base = KNeighborsClassifier(5)
    model = PriorAdjustedClassifier(base).fit(X, y)
    found = cross_val_predict(base, X, y, cv=StratifiedKFold(5), method="predict_proba")
    losses = {}
    for epsilon in (1e-4, 0.1, model.smoothing_):
        z = np.log(found + epsilon / 3)
        shift = longtail.fit_shift(z, y, [300, 60, 20])
        own = log_softmax((z - shift.delta * np.log([300, 60, 20])) / shift.temperature, 1)[np.arange(len(y)), y]
        losses[epsilon] = -np.mean([own[y == label].mean() for label in range(3)])
    assert model.smoothing_ > 0
    assert min(losses, key=losses.get) == model.smoothing_
    new, labels = gaussians([300, 300, 300], seed=1)
    plain = balanced_accuracy_score(labels, model.estimator_.predict(new))
    assert balanced_accuracy_score(labels, model.predict(new)) > plain + 0.02


def test_frozen_estimator_needs_the_counts_of_its_training_data():
    X, y = gaussians([2000, 200, 40], distance=1.5)
    trained = LogisticRegression().fit(X, y)
    held_out, labels = gaussians([300, 300, 300], seed=1, distance=1.5)
    model = PriorAdjustedClassifier(FrozenEstimator(trained), counts=[2000, 200, 40]).fit(held_out, labels)
    expected = longtail.fit_shift(trained.predict_log_proba(held_out), labels, [2000, 200, 40])
    assert model.beta_ == pytest.approx(expected.delta)
    assert model.estimator_.estimator is trained
    with pytest.raises(ValueError, match="counts"):
        PriorAdjustedClassifier(FrozenEstimator(trained)).fit(held_out, labels)
    with pytest.raises(ValueError, match="frozen"):
        PriorAdjustedClassifier(FrozenEstimator(trained), counts=[2000, 200, 40]).fit(held_out, labels + 1)


def test_smoothing_leaves_a_class_without_held_out_rows_as_it_is():
    """A constant for it, which no held-out row can limit, would flood the predictions with it."""
    X, y = gaussians([300, 60, 20])
    trained = KNeighborsClassifier(10).fit(X, np.array(["a", "b", "rare"])[y])
    held_out, labels = gaussians([100, 100], seed=1)
    model = PriorAdjustedClassifier(FrozenEstimator(trained), counts=[300, 60, 20])
    with pytest.warns(UserWarning, match="rare"):
        model.fit(held_out, np.array(["a", "b"])[labels])
    assert model.smoothing_ > 0
    new, _ = gaussians([200, 200, 200], seed=2)
    p, epsilon = trained.predict_proba(new), model.smoothing_
    smoothed = np.stack([p[:, 0] + epsilon / 3, p[:, 1] + epsilon / 3, p[:, 2] * (1 + epsilon)], 1)
    weighted = (smoothed / np.array([300, 60, 20]) ** model.beta_) ** (1 / model.temperature_)
    np.testing.assert_allclose(model.predict_proba(new), weighted / weighted.sum(1, keepdims=True), rtol=1e-5)
    assert (p[:, 2] == 0).any()
    assert model.predict(new).tolist() == model.classes_[weighted.argmax(1)].tolist()


@pytest.mark.parametrize("model", [PriorAdjustedClassifier(LogisticRegression()), LongTailClassifier(C=10.0)])
def test_rare_classes_and_folds(model):
    """A class with one row is never held out; a fold may lack a class; both are predicted."""
    X, y = gaussians([200, 40, 3, 1], distance=2.0)
    model = clone(model).fit(X, y)
    assert model.shift_.problem is None
    assert model.predict_proba(X).shape == (244, 4)
    groups = np.where(y == 2, 0, np.arange(len(y)) % 5)  # all rows of class 2 are held out together
    grouped = clone(model).set_params(cv=GroupKFold(5)).fit(X, y, groups=groups)
    assert grouped.shift_.problem is None
    assert grouped.beta_ != model.beta_
    assert np.isfinite(grouped.predict_proba(X)).all()


@quiet
@pytest.mark.parametrize("model", [PriorAdjustedClassifier(LogisticRegression()), LongTailClassifier()])
def test_class_without_weight_is_never_predicted(model):
    X, y = gaussians([100, 40, 20], distance=1.0)
    names = np.array(["cat", "dog", "eel"])[y]
    fitted = clone(model).fit(X, names, sample_weight=np.where(y == 1, 0.0, 0.5))
    assert fitted.classes_.tolist() == ["cat", "dog", "eel"]
    assert fitted.counts_.tolist() == [50, 0, 10]
    assert (fitted.predict_proba(X)[:, 1] == 0).all()
    assert set(fitted.predict(X)) == {"cat", "eel"}
    without = clone(model).fit(X[y != 1], names[y != 1])
    np.testing.assert_allclose(fitted.predict_proba(X)[:, [0, 2]], without.predict_proba(X), atol=0.02)


def test_weights_of_samples_are_repetitions_in_fit_shift():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 40, 30])
    z, weights = rng.normal(size=(130, 3)) + 1.5 * np.eye(3)[y], rng.integers(1, 4, 130)
    weighted = longtail.fit_shift(z, y, [100, 10, 1], sample_weight=weights)
    repeated = longtail.fit_shift(z.repeat(weights, 0), y.repeat(weights), [100, 10, 1])
    assert weighted[:2] == pytest.approx(repeated[:2], rel=1e-6)
    assert weighted.delta != pytest.approx(longtail.fit_shift(z, y, [100, 10, 1]).delta, rel=1e-3)
    scaled = longtail.fit_shift(z, y, [100, 10, 1], sample_weight=np.full(130, 0.3))
    assert scaled == pytest.approx(longtail.fit_shift(z, y, [100, 10, 1]), nan_ok=True)
    with pytest.raises(ValueError, match="sample_weight"):
        longtail.fit_shift(z, y, [100, 10, 1], sample_weight=weights[1:])


def test_unmeasurable_beta_is_one_with_a_warning():
    X, y = gaussians([50, 10], distance=30.0)  # nothing is misclassified
    for model in (PriorAdjustedClassifier(LogisticRegression()), LongTailClassifier(C=10.0)):
        with pytest.warns(UserWarning, match="fewer than 10"):
            model.fit(X, y)
        assert model.beta_ == model.temperature_ == 1
        assert "misclassified" in model.shift_.problem
    with pytest.warns(UserWarning, match="held out"):  # two classes with one row each
        LongTailClassifier(C=1.0).fit(X[[0, 0, -1]], [0, 1, 2], sample_weight=[1, 2, 3])


def test_mistakes_are_one_sentence():
    X, y = gaussians([50, 20], distance=0.5)
    for model in (PriorAdjustedClassifier(LogisticRegression()), LongTailClassifier()):
        with pytest.raises(ValueError, match="class"):
            model.fit(X, np.zeros(70))
        with pytest.raises(ValueError, match="NaN"):
            model.fit(np.where(X > 1, np.nan, X), y)
        with pytest.raises(ValueError, match="beta"):
            clone(model).set_params(beta="best").fit(X, y)
        with pytest.raises(ValueError, match="3 features"):
            model.fit(X, y).predict(X[:, :3])
    with pytest.raises(ValueError, match="predict_proba"):
        PriorAdjustedClassifier(LinearSVC()).fit(X, y)
    with pytest.raises(ValueError, match="sample_weight"):
        PriorAdjustedClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(70))
    for hidden in (256, (0,)):
        with pytest.raises(ValueError, match="hidden"):
            LongTailClassifier(hidden=hidden).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        LongTailClassifier(C=1.0, beta=1.0, max_iter=2).fit(X, y)


def test_mlp_learns_what_a_linear_classifier_cannot_and_repeats_itself():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 2)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0.5).astype(int)  # two opposite corners, about 8 %
    before = torch.random.get_rng_state()
    first, second = (LongTailClassifier(hidden=(32,), cv=2, random_state=0).fit(X, y) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert not np.array_equal(
        first.predict_proba(X), clone(first).set_params(random_state=1).fit(X, y).predict_proba(X)
    )
    assert balanced_accuracy_score(y, first.predict(X)) > 0.95
    assert balanced_accuracy_score(y, LongTailClassifier(beta=1.0, C=10.0).fit(X, y).predict(X)) < 0.8
    assert np.array_equal(pickle.loads(pickle.dumps(first)).predict_proba(X), first.predict_proba(X))


def test_tools_of_scikit_learn():
    pandas = pytest.importorskip("pandas")
    X, y = gaussians([300, 60, 20], distance=1.5)
    frame, names = pandas.DataFrame(X, columns=list("abcd")), np.array(["x", "y", "z"])[y]
    forest = PriorAdjustedClassifier(RandomForestClassifier(10, random_state=0), n_jobs=1)
    search = GridSearchCV(forest, {"estimator__max_depth": [2, 4]}, scoring="balanced_accuracy", cv=2).fit(frame, names)
    assert search.best_estimator_.feature_names_in_.tolist() == list("abcd")
    linear = make_pipeline(StandardScaler(), LongTailClassifier(C=10.0))
    plain = cross_val_score(LogisticRegression(), frame, names, scoring="balanced_accuracy", cv=3)
    assert cross_val_score(linear, frame, names, scoring="balanced_accuracy", cv=3).mean() > plain.mean() + 0.05
    direct = LongTailClassifier(C=10.0).fit(frame, names)  # the arrays of pandas are read-only
    assert np.array_equal(direct.predict(frame), direct.set_params(C=1.0).predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        search.predict(frame[["b", "a", "c", "d"]])


@pytest.mark.parametrize("model", [LongTailClassifier(), PriorAdjustedClassifier(LogisticRegression())])
def test_a_missing_label_is_refused_with_its_row(model):
    y = np.array(["a", "b", None, "a"], dtype=object)
    with pytest.raises(ValueError, match="1 have none, first row 2"):
        model.fit(np.eye(4), y)


def test_priors_and_counts_by_label():
    """The order of ``value_counts`` is by frequency, not that of the classes."""
    X, y = make_classification(600, n_informative=4, n_classes=3, weights=[0.1, 0.7, 0.2], random_state=0)
    names = pd.Series(np.array(["rare", "often", "middle"])[y])
    model = PriorAdjustedClassifier(LogisticRegression(), beta=1.0).fit(X, names)
    by_label = names.value_counts()
    assert list(by_label.index) != list(model.classes_)
    expected = model.predict_proba(X, prior=by_label[model.classes_].to_numpy())
    for prior in (by_label, dict(by_label), by_label / 600):
        np.testing.assert_allclose(model.predict_proba(X, prior=prior), expected)
    given = PriorAdjustedClassifier(LogisticRegression(), beta=1.0, counts=by_label).fit(X, names)
    np.testing.assert_array_equal(given.counts_, model.counts_)
    with pytest.raises(ValueError, match=r"`prior` .* lacks rare"):
        model.predict_proba(X, prior=by_label.drop("rare"))
    with pytest.raises(ValueError, match=r"`prior` .* also has new"):
        model.predict_proba(X, prior={**by_label, "new": 3})

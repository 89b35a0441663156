"""A data set that a plugin registers works like a built-in one."""

import os
from pathlib import Path

import pytest

from longtail import _registry
from longtail._registry import load_plugin
from longtail.data import CATALOG, check_dataset, data_title, load
from longtail.train.folder import RunFolder
from longtail.train.recipe import defaults
from longtail.train.trainer import Trainer

FILE = Path(__file__).parents[1] / "examples" / "own_dataset.py"


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGTAIL_PLUGINS", "")
        load_plugin(FILE)
        yield
    CATALOG.unregister("stripes")


def test_data_set_is_loaded_long_tailed_by_name():
    assert load("stripes").counts.tolist() == [200, 91, 41, 19, 8, 4]
    assert load("stripes", imbalance=10).counts.max() == 200
    assert check_dataset("stripes", imbalance=10) == []


def test_title():
    assert CATALOG["stripes"].title(20) == data_title("stripes", 20) == "Stripes-LT20"


def test_defaults_have_the_recipe_and_imbalance_of_the_data_set():
    recipe = defaults("stripes", "balanced-softmax")
    assert (recipe.data, recipe.imbalance, recipe.epochs, recipe.batch_size, recipe.model) == (
        "stripes",
        50.0,
        10,
        32,
        "resnet20",
    )
    assert defaults("stripes", "softmax", 20).imbalance == 20


def test_training(tmp_path):
    from dataclasses import replace

    recipe = replace(defaults("stripes", "balanced-softmax"), epochs=1, device="cpu")
    Trainer(recipe, RunFolder(tmp_path)).run()
    assert RunFolder(tmp_path).done


def test_child_process_loads_the_plugins_of_its_parent(monkeypatch):
    assert os.environ["LONGTAIL_PLUGINS"] == str(FILE)
    CATALOG.unregister("stripes")
    monkeypatch.setattr(_registry, "_loaded", set())  # as in a new process
    assert CATALOG.find("stripes").num_classes == 6


def test_names_are_unique():
    with pytest.raises(ValueError, match="stripes"):
        CATALOG.register("stripes", CATALOG["stripes"])

"""A data set that a plugin registers works like a built-in one."""

import subprocess
import sys
from pathlib import Path

import pytest

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
        entry = CATALOG["stripes"]
        yield
    CATALOG.unregister(entry.name)


def test_it_is_loaded_long_tailed_by_name():
    assert load("stripes").counts.tolist() == [200, 91, 41, 19, 8, 4]
    assert load("stripes", imbalance=10).counts.max() == 200
    assert check_dataset("stripes", imbalance=10) == []


def test_its_title():
    assert CATALOG["stripes"].title(20) == data_title("stripes", 20) == "Stripes-LT20"


def test_its_recipe_and_imbalance_are_the_defaults():
    recipe = defaults("stripes", "cbs")
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


def test_processes_that_are_started_know_it_too(monkeypatch):
    monkeypatch.setenv("LONGTAIL_PLUGINS", str(FILE))
    code = "from longtail.data import CATALOG; print('stripes' in CATALOG)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"


def test_names_are_unique():
    with pytest.raises(ValueError, match="stripes"):
        CATALOG.register("stripes", CATALOG["stripes"])

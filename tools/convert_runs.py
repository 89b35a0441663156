"""Convert committed runs to the settings of today: `python tools/convert_runs.py results`.

Before, BCL and ProCo had the setting `balance` beside `beta`, `result.json` had `knobs` instead of `params`, and the
name of a run folder left out settings that had their default. The script rewrites `recipe.toml` and `result.json`,
renames folders to the label of their recipe, and replaces old folder names in text files. Numbers do not change.
Running it again changes nothing.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from longtail._io import write_json, write_text
from longtail.train.recipe import Recipe, read_recipe

_BETAS = {"softmax": 0.0, "balanced-softmax": 1.0}


def convert(root: Path) -> None:
    """Convert all runs in a folder, and the plans and notes beside them."""
    renamed = {}
    for file in sorted(root.rglob("recipe.toml")):
        convert_recipe(file)
        if (result := file.with_name("result.json")).exists():
            convert_result(result)
        recipe = Recipe.from_settings(read_recipe(file), unknown_methods=True)
        old, new = file.parent.name, recipe.label
        if old != new and is_label(old, recipe):
            file.parent.rename(file.parent.with_name(new))
            renamed[old] = new
            print(f"{file.parent} -> {new}")
    for file in sorted([*root.rglob("*.json"), *root.rglob("*.md"), *root.rglob("*.toml")]):
        replace_names(file, renamed)


def convert_recipe(file: Path) -> None:
    """Replace `balance` in a recipe by the beta that it stood for."""
    text = file.read_text(encoding="utf-8")
    found = re.search(r'^balance = "(.+)"\n', text, re.MULTILINE)
    if found is None:
        return
    text = text.replace(found[0], "")
    if found[1] in _BETAS:
        text = re.sub(r"^beta = .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(method = .*\n)", rf"\1beta = {_BETAS[found[1]]}\n", text, flags=re.MULTILINE)
    write_text(file, text)


def convert_result(file: Path) -> None:
    """Rename `knobs` to `params` in a result, without `balance`."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if "knobs" not in content:
        return
    write_json(file, {"params" if key == "knobs" else key: _params(key, value) for key, value in content.items()})


def _params(key: str, value: Any) -> Any:
    if key != "knobs" or "balance" not in value:
        return value
    beta = _BETAS.get(value["balance"], value["beta"])
    return {name: beta if name == "beta" else one for name, one in value.items() if name != "balance"}


def is_label(name: str, recipe: Recipe) -> bool:
    """Whether a folder has the name that `longtail` gave it, and not one that a person chose."""
    begin = re.escape(f"{recipe.data}-{recipe.imbalance:g}-{recipe.method}" if recipe.imbalance else recipe.data)
    middle = r"(-softmax|-balanced-softmax|-cbs)?(-beta[\d.]+)?(-tau[\d.]+)?"
    return re.fullmatch(rf"{begin}{middle}-seed{recipe.seed}", name) is not None


def replace_names(file: Path, renamed: dict[str, str]) -> None:
    """Replace old folder names in a file."""
    text = before = file.read_text(encoding="utf-8")
    for old, new in renamed.items():
        text = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text)
    if text != before:
        write_text(file, text)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        convert(Path(folder))

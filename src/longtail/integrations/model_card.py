"""A model card in Markdown: what a run's model is, its measures by group, its data and training, and its limits."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from longtail import __version__
from longtail._io import read_json
from longtail._program import count, printable
from longtail.classes import describe_groups
from longtail.data import CATALOG
from longtail.metrics import ClassStatistics
from longtail.study.captions import recorded_for
from longtail.study.runs import HELD_WORDS, Run, read_run
from longtail.train.folder import RunFolder
from longtail.train.measures import predicted_classes, why_no_level
from longtail.train.pilots import describe_beta
from longtail.train.recipe import HOUSEKEEPING
from longtail.train.stored import read_statistics

__all__ = ["model_card"]

_CLASSES = 40  # that are listed; of more, the most frequent and the rarest
_FEW = 20  # test images per class, below which a recall says little
_PATHS = ("data", "image_root", "weights", "groups")  # settings that may be paths; a card shows their last part
_SPLITS = {"test": "test", "val": "validation", "train": "training"}


def model_card(folder: RunFolder, use: str = "", prior: Mapping[str, float] | None = None) -> str:
    """Return the model card of a finished run as Markdown; names of classes and data are escaped.

    Args:
        folder: the run.
        use: code that uses the model.
        prior: class probabilities that were built into the exported model; the measures are those without it.
    """
    run, (statistics, _) = read_run(folder.path), read_statistics(folder.statistics_file)
    parts = [f"# {_text(run.title)} on {_text(_data_name(run))}", _summary(run)]
    if use:
        parts += ["## Use", f"```python\n{use}\n```", _inputs(prior)]
    parts += ["## Measures", *_measures(run)]
    parts += ["## Data", _data(run), _class_table(run, statistics)]
    parts += ["## Training", *_training(run, folder)]
    parts += ["## How the strength of the correction was found", _how_beta(run)]
    parts += ["## Limits", "\n".join(f"- {line}" for line in _limits(run, statistics, prior))]
    return printable("\n\n".join(parts) + "\n")


def _text(value: object) -> str:
    """A text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(str(value).split()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _per_cent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def _data_name(run: Run) -> str:
    """The name of the data; of your own data the folder or the file, without the path to it."""
    return run.data if run.recipe.data in CATALOG else _last_part(run.recipe.data)


def _last_part(path: str) -> str:
    return PureWindowsPath(Path(path).name).name


def _summary(run: Run) -> str:
    classes, recipe = len(run.result["classes"]), run.recipe
    return (
        f"A classifier of {classes:,} classes (`{recipe.model}`), trained by {_text(run.title)} on data with "
        f"unequal class counts. It was exported by longtail {__version__} from one run, seed {recipe.seed}."
    )


def _inputs(prior: Mapping[str, float] | None) -> str:
    said = "`preprocessing.json` says how inputs are prepared, and has the class names in the order of the logits."
    if prior is None:
        return said
    most = sorted(prior, key=lambda name: -prior[name])
    named = ", ".join(f"{_text(name)} {100 * prior[name]:.3g} %" for name in most[:5])
    more = f", and those of {len(most) - 5:,} more classes" if len(most) > 5 else ""
    return f"{said} The logits are those for these class probabilities: {named}{more}."


def _measures(run: Run) -> list[str]:
    groups = [name for name, members in run.result["groups"].items() if members]
    rows = []
    for split, words in _SPLITS.items():
        found = run.result["splits"].get(split)
        if found is not None:
            recalls = (_per_cent(found["recall"].get(name)) for name in [*groups, "all"])
            error = (found.get("calibration_error") or {}).get("all")
            more = map(_per_cent, (found.get("accuracy"), found.get("macro_f1"), error))
            rows.append([words, f"{found.get('samples', 0):,}", *recalls, *more])
    head = ["data", "samples", *(f"{name} recall" for name in groups), "recall, all", "accuracy", "macro F1", "ECE"]
    after = [_table([*map(_text, head)], rows)]
    line = "In per cent. A group's recall is the mean over its classes; ECE is the expected calibration error."
    held = run.held_out
    if held is not None:
        why, level = run.why_no_level(held), run.level(held)
        shown = f"undefined ({why_no_level(run.result, held)})" if why else f"{level:.1f}"
        line += f" Model imbalance level I on {HELD_WORDS[held]}: {shown}; at 0 no group is preferred."
    return [*after, line]


def _data(run: Run) -> str:
    result, counts = run.result, run.result.get("counts")
    lines = f"{_text(_data_name(run))}: "
    if counts:
        low, high = min(counts), max(counts)
        factor = f", imbalance factor {high / low:.0f}" if low else ""
        lines += f"{sum(counts):,} training samples of {len(counts):,} classes, {low:,} to {high:,} per class{factor}. "
    lines += f"Groups: {_text(describe_groups(result['groups'], counts))}"
    lines += f" ({_text(made)})." if (made := run.result.get("groups_from")) else "."
    for split, share in result.get("held_out", {}).items():
        groups = f", whole groups by {_text(run.recipe.split_by)}," if run.recipe.split_by else ""
        lines += (
            f" {100 * share:g} % of each class of the training data{groups} were held out as {_SPLITS[split]} data."
        )
    return lines


def _class_table(run: Run, statistics: Mapping[str, ClassStatistics]) -> str:
    names, counts, held = run.result["classes"], run.result.get("counts"), run.held_out
    found: dict[str, Any] = run.result["splits"].get(held, {}) if held else {}
    order = sorted(range(len(names)), key=lambda c: -counts[c]) if counts else list(range(len(names)))
    listed = order if len(order) <= _CLASSES else [*order[: _CLASSES // 2], *order[-_CLASSES // 2 :]]
    samples = statistics[held].samples.tolist() if held else []
    rows = []
    for c in listed:
        row = [_text(names[c]), f"{counts[c]:,}" if counts else "-"]
        if held:
            row += [f"{samples[c]:,}", _per_cent(found["recall_per_class"][c])]
            low, high = (found.get(name, [None] * len(names))[c] for name in ("recall_low", "recall_high"))
            row.append("-" if low is None or high is None else f"{_per_cent(low)} to {_per_cent(high)}")
        rows.append(row)
    if len(listed) < len(order):
        rows.insert(_CLASSES // 2, [f"… {len(order) - len(listed):,} more", *["…"] * (len(rows[0]) - 1)])
    words = _SPLITS[held] if held else ""
    head = ["class", "training samples", *([f"{words} samples", "recall, %", "95 % interval"] if held else [])]
    return _table(head, rows)


def _training(run: Run, folder: RunFolder) -> list[str]:
    recipe, result = run.recipe, run.result
    epochs = " + ".join(map(str, result["epochs"]))
    line = f"{_text(run.title)}, {epochs} epochs; the weights are those of the {_text(result['reported'])}."
    file = folder.path / "environment.json"
    if file.exists():
        about = read_json(file, {"versions?": dict})
        versions = [f"{name} {version}" for name, version in about.get("versions", {}).items()]
        line += f" Trained on {_text(about.get('device', '?'))} with {_text(', '.join(versions))}."
    settings = {name: value for name, value in recipe.settings().items() if name not in HOUSEKEEPING}
    for name in _PATHS:
        if isinstance(settings.get(name), str):
            settings[name] = _last_part(settings[name])
    shown = [f"{name} = {value!r}" for name, value in settings.items() if value is not None]
    block = "\n".join(shown).replace("`", "'")
    return [line, f"<details><summary>All settings</summary>\n\n```\n{block}\n```\n\n</details>"]


def _how_beta(run: Run) -> str:
    result, choices = run.result, recorded_for([run.path.parent], [run]).choices.get(run.path, ())
    step = re.sub(r"[\d.]+$", lambda number: f"{float(number[0]):.4g}", result["posthoc"] or "")
    if "auto_beta" in result:
        line = f"{_text(describe_beta(result['auto_beta']))}. The model was trained with beta = 1"
        return f"{line}, and `{step}` was applied." if result["posthoc"] else f"{line}."
    if result["posthoc_chosen_on_val"]:
        tried = len(result["posthoc_chosen_on_val"])
        return f"`{step}` had the best recall on validation data of {tried} strengths."
    chosen = f" ({'; '.join(dict.fromkeys(map(str, choices)))})" if choices else ""
    if run.beta is not None:
        return f"beta = {run.beta:g} was given{_text(chosen)}."
    if result["posthoc"]:
        return f"`{step}` was given."
    shift = run.recipe.spec.shift_factor(run.recipe.params) if run.recipe.spec.stages else None
    if shift is not None:
        return f"The method adds {shift:g} log N to the logits in training; nothing was chosen."
    return "The method has no strength that could be chosen."


def _limits(run: Run, statistics: Mapping[str, ClassStatistics], prior: Mapping[str, float] | None) -> list[str]:
    held, result = run.held_out, run.result
    lines = ["The figures are those of one training run; another seed gives others."]
    if held is None:
        return [*lines, "There was neither test nor validation data: nothing is known about new samples."]
    if held == "val":
        lines.append("There was no test data; validation data may also have been used to choose settings.")
    choices = recorded_for([run.path.parent], [run]).choices.get(run.path, ())
    if any(choice.select_on == "test" for choice in choices):
        lines.append("Beta was chosen on test data, so the figures are optimistic.")
    if "best" in result:
        lines.append("The epoch was chosen on validation data, so figures on validation data are optimistic.")
    samples = statistics[held].samples.tolist()
    few, absent = [n for n in samples if 0 < n < _FEW], [n for n in samples if n == 0]
    if few:
        lines.append(
            f"{len(few):,} of {len(samples):,} classes have fewer than {_FEW} {_SPLITS[held]} samples: their recalls "
            "are uncertain, as the intervals show."
        )
    if absent:
        lines.append(f"Recall was not measured for {count(len(absent), 'class')} without {_SPLITS[held]} samples.")
    said = predicted_classes(result, held)
    if said:
        lines.append(f"On {HELD_WORDS[held]}, the model {said}.")
    if prior is not None:
        lines.append("The figures were measured before the class probabilities above were built in.")
    else:
        lines.append(
            "Probabilities are those for the class frequencies that the training corrects to, for most methods equal "
            "ones; where classes have other frequencies, adjust them (`longtail.adjust_logits`, `export --prior`)."
        )
    lines.append("Data that differs from the training data in other ways than class frequencies was not tested.")
    return lines

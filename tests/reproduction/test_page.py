"""From plans to the page of results; and the committed page is what the command writes."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.reproduction.conftest import ROOT

from longtail.study.planning import read_plan
from longtail.study.runs import read_runs
from reproduction import page as page_module
from reproduction import paper
from reproduction.__main__ import main
from reproduction.collection import collect, keep, state_of
from reproduction.page import BEGIN, END, readme_text, with_results, write_page

PLANS = sorted((ROOT / "results" / "plans").glob("*.toml"))

LONG_TAILED = """
data = ["digits-lt"]
imbalance = [50]
methods = ["softmax", "balanced-softmax", "cbs"]
betas = ["recipe", "search"]
seeds = 2
out = "runs/digits-lt"
[recipe]
epochs = 3
batch_size = 16
evaluate_every = 0
device = "cpu"
[search]
folds = 2
start = [1.0, 1.5]
step = 0.5
bounds = [1.0, 1.5]
"""
BALANCED = """
data = ["digits"]
methods = ["softmax"]
seeds = 1
out = "runs/digits"
[recipe]
epochs = 2
evaluate_every = 0
device = "cpu"
"""


def test_from_plans_to_the_page_and_back(run, tmp_path, monkeypatch, capsys):
    """Train, measure, write the page; write it again from the kept files; nothing is trained again from them."""
    monkeypatch.chdir(tmp_path)
    Path("long-tailed.toml").write_text(LONG_TAILED, "utf-8")
    Path("balanced.toml").write_text(BALANCED, "utf-8")
    Path("README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    plans = ("long-tailed.toml", "balanced.toml")
    assert run("study", *plans)[0] == 0
    assert main(["measure", "runs"]) == 0
    assert main(["page", *plans, "--out", "results", "--readme", "README.md"]) == 0
    assert "Missing" not in capsys.readouterr().out
    page = Path("results/README.md").read_text("utf-8")
    for part in ("## Rows for a CPU", "The search for β on digits-lt 50", "Sensitivity to β on digits-lt 50"):
        assert part in page
    assert "CBS (β auto): β = " in page
    assert list(Path("runs").rglob("pilot0"))
    assert not list(Path("results").rglob("pilot*"))  # a pilot is not a result
    for file in Path("results").rglob("*"):
        assert file.is_dir() or file.suffix in {".toml", ".json", ".jsonl", ".md", ".png"}
    kept = json.loads(Path("results/digits/digits-softmax-seed0/balanced.json").read_text("utf-8"))
    assert set(kept) == {"digits-lt 50"}
    shutil.rmtree("runs")
    assert main(["page", *plans, "--out", "results"]) == 0
    assert Path("results/README.md").read_text("utf-8") == page
    shutil.copytree("results", "runs", ignore=shutil.ignore_patterns("*.md", "figures"))
    before = {file: file.stat().st_mtime_ns for file in Path("runs").rglob("result.json")}
    assert run("study", *plans)[0] == 0
    assert {file: file.stat().st_mtime_ns for file in Path("runs").rglob("result.json")} == before


def test_runs_are_kept_without_weights_and_without_the_path_of_the_data(runs, tmp_path):
    one = sorted(runs.glob("*cbs*"))[0]
    recipe = (one / "recipe.toml").read_text("utf-8")
    (one / "recipe.toml").write_text(recipe.replace('root = "data"', 'root = "/somewhere/else"'), "utf-8")
    (one / "model.safetensors").write_bytes(b"weights")
    (runs / "unfinished").mkdir()
    (runs / "unfinished" / "recipe.toml").write_text(recipe, "utf-8")
    assert keep(runs, tmp_path / "kept") == 6
    names = {file.name for file in (tmp_path / "kept").rglob("*") if file.is_file()}
    assert names == {"recipe.toml", "environment.json", "log.jsonl", "result.json"}
    assert tomllib.loads((tmp_path / "kept" / one.name / "recipe.toml").read_text("utf-8"))["root"] == "data"
    assert len(read_runs(tmp_path / "kept")) == 6
    assert keep(tmp_path / "nowhere", tmp_path / "kept") == 0


def test_files_of_another_run_with_the_same_name_are_removed(runs, tmp_path):
    keep(runs, tmp_path / "kept")
    (one, other) = sorted((tmp_path / "kept").glob("*softmax*"))[:2]
    for folder in (one, other):
        (folder / "balanced.json").write_text("{}")
    result = json.loads((one / "result.json").read_text("utf-8"))
    (one / "result.json").write_text(json.dumps({**result, "reported": "another run"}), "utf-8")
    keep(runs, tmp_path / "kept")
    assert not (one / "balanced.json").exists()
    assert (other / "balanced.json").exists()
    assert (one / "result.json").read_bytes() == (runs / one.name / "result.json").read_bytes()


PLAN = 'data = ["digits-lt"]\nimbalance = [50]\nmethods = ["softmax"]\nseeds = 3\nout = "runs/digits-lt"\n'
RECIPE = '[recipe]\nbatch_size = 32\nnesterov = true\nsubset_seed = "run"\nevaluate_every = 0\nepochs = 9\n'


def test_the_page_lists_missing_runs_settings_notes_and_its_command(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN + RECIPE, "utf-8")
    Path("out").mkdir()
    Path("out/notes.md").write_text("## Why\n\nA reason.\n", "utf-8")
    write_page(["plan.toml"], Path("out"))
    page = Path("out/README.md").read_text("utf-8")
    assert "| digits-lt 50 Softmax | 0, 1 | 2 |" in page
    assert "Missing of plan.toml: 1 runs. `longtail study plan.toml` runs them." in page
    assert "differ from the plan (“here”) in `epochs` (60 there, 9 here)" in page
    assert "## Why\n\nA reason.\n\n## Plans" in page
    assert "\nlongtail study plan.toml\npython -m reproduction page plan.toml --out out\n" in page
    assert "Nothing was chosen on test data." in page
    assert "| `plan.toml` |" in page  # no link, since it is not below the page
    assert "cifar10" not in page


def test_the_page_states_that_beta_was_chosen_on_test_data(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    searched = PLAN.replace('["softmax"]', '["cbs"]') + 'betas = ["search"]\n[search]\nselect_on = "test"\n'
    Path("plan.toml").write_text(searched, "utf-8")
    write_page(["plan.toml"], Path("out"))
    page = Path("out/README.md").read_text("utf-8")
    assert "β was chosen on TEST data in plan.toml." in page
    assert "Nothing was chosen" not in page


def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN, "utf-8")
    assert main(["page", "plan.toml", "--out", "out", "--readme", "nowhere.md"]) == 2
    assert "`readme`" in capsys.readouterr().err
    with pytest.raises(ValueError, match="`readme`"):
        with_results("no marks", collect([]), Path("results"))
    assert readme_text(collect([]), Path("results")) == "No runs yet."


# --- What is committed


def test_the_plans_are_the_authors_recipe():
    plan = read_plan(ROOT / "results" / "plans" / "cifar10-lt.toml", to_run=False)
    runs = plan.runs()
    assert len(runs) == 3 * 3 * 5
    betas = {f"C10-LT{run.recipe.imbalance:g}": run.recipe.beta for run in runs if run.recipe.method == "cbs"}
    assert betas == {name: paper.figures()["beta"][name] for name in ("C10-LT10", "C10-LT50", "C10-LT100")}
    assert {run.recipe.seed for run in runs} == set(range(paper.AUTHORS_RUNS))
    for recipe in (run.recipe for file in PLANS for run in read_plan(file, to_run=False).runs()):
        if recipe.data.startswith("digits"):
            continue
        shared = (recipe.epochs, recipe.model, recipe.subset_seed, recipe.train_stats)
        assert shared == (200, "resnet32", "run", "paper")
        if recipe.method in {"softmax", "balanced-softmax", "cbs"}:
            settings = (recipe.batch_size, recipe.lr, recipe.warmup, recipe.momentum, recipe.weight_decay)
            assert settings == (128, 0.1, 5, 0.9, 5e-4)
            assert not recipe.drop_last
            assert not recipe.nesterov


def test_every_method_of_the_papers_table_was_run():
    """The ImageNet-LT table: its LDAM is LDAM-DRW, and CAL and DisA are quoted."""
    collection = collect([state_of(file, ROOT / "results") for file in PLANS])
    found = {paper.method_key(cell) for cells in collection.others.values() for cell in cells}
    assert set(paper.recalls("ImageNet-LT")) - {"CAL", "DisA", "ldam"} | {"ldam-drw"} <= found


def test_the_committed_runs_are_complete():
    for file in PLANS:
        state = state_of(file, ROOT / "results")
        assert state.is_complete
        assert state.describe_missing() == ""
        if file.stem == "digits-lt":
            assert len(state.runs) == 5 * (3 + 4)  # on imbalance 10 the search ended at 1.5 too
            assert state.other_settings() == []


def test_make_runs_every_plan():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(file.name in makefile for file in PLANS)


def test_committed_results_are_small_and_name_no_machine():
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 12_000_000
    for file in files:
        assert file.stat().st_size < (200_000 if file.suffix == ".png" else 1_000_000), file
        assert file.suffix != ".safetensors", file
        if file.name == "recipe.toml":
            assert tomllib.loads(file.read_text("utf-8"))["root"] == "data", file


def test_readme_and_page_are_up_to_date(tmp_path, monkeypatch):
    """Except for the pixels of the figures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page_module, "save_figure", lambda *_: None)
    shutil.copytree(ROOT / "results", "results")
    before = (ROOT / "README.md").read_text("utf-8")
    Path("README.md").write_text(before, "utf-8")
    names = ("cifar10", "cifar10-lt", "c10-lt100", "c10-lt100-tau", "digits-lt")
    write_page([f"results/plans/{name}.toml" for name in names], Path("results"), Path("README.md"))
    assert Path("README.md").read_text("utf-8") == before, "run: make results-page"
    page = Path("results/README.md").read_text("utf-8")
    assert page == (ROOT / "results" / "README.md").read_text("utf-8"), "run: make results-page"
    figures = {file.name for file in (ROOT / "results" / "figures").iterdir()}
    assert {file.name for file in Path("results/figures").iterdir()} == figures


def test_the_page_explains_its_rows():
    """What was tested, the origin of each beta, unplanned rows, missing images, and methods that are not drawn."""
    page = (ROOT / "results" / "README.md").read_text("utf-8")
    methods = page[page.index("## All methods on C10-LT100") : page.index("## Rows for a CPU")]
    rows = [line for line in methods.splitlines() if line.startswith("| C10-LT100 |")]
    assert any(r"\*\*\*" in row for row in rows if "CBS (β = 2)" in row)
    unplanned = [row.split("|")[2].strip() for row in rows if "§" in row]
    assert unplanned == 2 * ["Logit adjustment §", "LDAM §", "CBS (β = 1.5) §"]
    for part in (
        "C10-LT100, Logit adjustment, LDAM, CBS (β = 1.5): fewer than two seeds",
        "τ-norm, validation 0.1 on C10-LT100: not tested",
        "CAL and DisA from the paper's ImageNet-LT table were not run",
        "BCL + Balanced Softmax, seed 0 (12,288 of 12,406 images)",
        "A point without error bars is one run.",
        "trained on other images: τ-norm, validation 0.1.",
    ):
        assert part in methods
    for part in (
        "CBS is shown with one β, the authors’ where it was run.",
        "β as given: digits-lt 10 1.5, digits-lt 50 1.5; β chosen on",
        "Models: C10-LT10 3 (seeds 2…4), C10-LT50 2 (seeds 3, 4), C10-LT100 2 (seeds 3, 4).",
    ):
        assert part in page


def test_the_notes_about_the_searches_agree_with_the_records():
    notes = " ".join((ROOT / "results" / "notes.md").read_text("utf-8").split())
    found = {}
    for file in (ROOT / "results").glob("*/search/*/beta.json"):
        record = json.loads(file.read_text("utf-8"))
        found[record["data"]] = record
    peaks = {name: f"{found[name]['quadratic']['peak']:.2f}" for name in ("C10-LT50", "C10-LT100")}
    assert f"peaks at {peaks['C10-LT50']} on C10-LT50 and at {peaks['C10-LT100']}, beyond what was tried" in notes


def test_the_table_in_the_readme_agrees_with_the_results():
    """Each row against the means of result.json and natural.csv, read without the study's code."""
    text = (ROOT / "README.md").read_text("utf-8")
    lines = text[text.index(BEGIN) : text.index(END)].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]
    assert len(rows) == 7
    with (ROOT / "results" / "natural.csv").open(encoding="utf-8") as file:
        natural = list(csv.DictReader(file))
    for data, *cells in rows:
        for method, cell in zip(("softmax", "balanced-softmax", "cbs"), cells, strict=True):
            found = [
                [float(row[f"recall_{group}"]) for group in ("head", "tail", "all")]
                for row in natural
                if (row["data"], row["method"]) == (f"data/natural/{data.lower()}.npz", method)
            ]
            imbalance = data.removeprefix("C10-LT")
            name = f"cifar10-lt-{imbalance}-{method}"
            if method == "cbs" and imbalance != data:
                (search,) = (ROOT / "results").glob(f"cifar10-lt/search/*-{imbalance}-*/beta.json")
                name += f"-beta{json.loads(search.read_text('utf-8'))['beta']:g}"
            for file in (ROOT / "results").glob(f"cifar10-lt/{name}-seed*/result.json"):
                recall = json.loads(file.read_text("utf-8"))["splits"]["test"]["recall"]
                found.append([100 * recall[group] for group in ("head", "tail", "all")])
            assert len(found) == 5, (data, method)
            means = [sum(column) / 5 for column in zip(*found, strict=True)]
            assert [float(part.strip("* ")) for part in cell.split("/")] == pytest.approx(means, abs=0.0501)

"""From plans to the page of results; and the committed page is what the command writes."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.reproduction.conftest import ROOT

from longtail.study.plan import read_plan
from longtail.study.runs import read_runs
from reproduction import paper
from reproduction.__main__ import main
from reproduction.keeping import keep
from reproduction.material import material_of
from reproduction.page import write_page
from reproduction.readme import BEGIN, END, results_text, with_results
from reproduction.standing import standing_of

PLANS = sorted((ROOT / "results" / "plans").glob("*.toml"))

PLAN = """
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


def written(folder):
    (folder / "plans").mkdir(parents=True)
    (folder / "plans" / "digits-lt.toml").write_text(PLAN, "utf-8")
    (folder / "plans" / "digits.toml").write_text(BALANCED, "utf-8")
    return ["plans/digits-lt.toml", "plans/digits.toml"]


def test_from_plans_to_the_page_and_back(run, tmp_path, monkeypatch, capsys):
    """Train, measure, write the page; write it again from what is kept; go on from what is kept."""
    folder = tmp_path / "whole"
    plans = written(folder)
    monkeypatch.chdir(folder)
    assert run("study", *plans)[0] == 0
    assert main(["measure", "runs"]) == 0
    (folder / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    assert main(["page", *plans, "--out", "results", "--readme", "README.md"]) == 0
    assert "Missing" not in capsys.readouterr().out
    page = (folder / "results" / "README.md").read_text("utf-8")
    for part in ("## Rows for a CPU", "The search for β on digits-lt 50", "Sensitivity to β on digits-lt 50"):
        assert part in page
    assert "long-tailed subset: seed 0" in page
    assert "β chosen on 2-fold cross-validation within training data" in page
    for file in (folder / "results").rglob("*"):
        assert file.is_dir() or file.suffix in {".toml", ".json", ".jsonl", ".md", ".png"}
        assert not file.is_file() or file.stat().st_size < 200_000
    kept = json.loads((folder / "results" / "digits" / "digits-softmax-seed0" / "balanced.json").read_text("utf-8"))
    assert set(kept) == {"digits-lt 50"}
    shutil.rmtree(folder / "runs")  # what is kept is enough to make the page again, and counts as done
    assert main(["page", *plans, "--out", "results"]) == 0
    assert (folder / "results" / "README.md").read_text("utf-8") == page
    shutil.copytree(folder / "results", folder / "runs", ignore=shutil.ignore_patterns("*.md", "figures"))
    code, _, err = run("study", *plans)
    assert code == 0
    assert "trying" not in err
    assert "1/" not in err  # nothing is trained


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


def test_nothing_stays_of_another_run_of_the_same_name(runs, tmp_path):
    keep(runs, tmp_path / "kept")
    (one, other) = sorted((tmp_path / "kept").glob("*softmax*"))[:2]
    for folder in (one, other):
        (folder / "statistics.safetensors").write_bytes(b"of the run that is kept")
    result = json.loads((one / "result.json").read_text("utf-8"))
    (one / "result.json").write_text(json.dumps({**result, "reported": "another run"}), "utf-8")
    keep(runs, tmp_path / "kept")
    assert not (one / "statistics.safetensors").exists()
    assert (other / "statistics.safetensors").exists()
    assert (one / "result.json").read_bytes() == (runs / one.name / "result.json").read_bytes()


def test_the_page_lists_missing_runs_and_settings_that_differ_from_the_plan(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = 'data = ["digits-lt"]\nimbalance = [50]\nmethods = ["softmax"]\nseeds = 3\nout = "runs/digits-lt"\n'
    settings = "[recipe]\nbatch_size = 32\nnesterov = true\nsubset_seed = 'run'\nevaluate_every = 0\nepochs = 9\n"
    (tmp_path / "plan.toml").write_text(content + settings, "utf-8")
    write_page(["plan.toml"], tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "| digits-lt 50 Softmax | 0, 1 | 2 |" in page
    assert "Missing of plan.toml: 1 runs. `longtail study plan.toml` runs it." in page
    assert "differ from the plan (“here”) in `epochs` (60 there, 9 here)" in page
    (tmp_path / "out" / "notes.md").write_text("## Why\n\nIt is so.\n", "utf-8")
    write_page(["plan.toml"], tmp_path / "out")
    assert "## Why\n\nIt is so.\n\n## To repeat it" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_a_page_states_what_was_chosen_on_test_data_and_its_command(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = (
        'data = ["digits-lt"]\nimbalance = [50]\nmethods = ["softmax", "cbs"]\nseeds = 2\nout = "runs/digits-lt"\n'
    )
    (tmp_path / "plan.toml").write_text(content, "utf-8")
    write_page(["plan.toml"], Path("out"))
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "\nlongtail study plan.toml\npython -m reproduction page plan.toml --out out\n" in page
    assert "Nothing was chosen on test data." in page
    assert "| `plan.toml` |" in page  # no link to where it does not lie
    assert "cifar10" not in page
    assert "make " not in page
    (tmp_path / "plan.toml").write_text(content + 'betas = ["search"]\n[search]\nselect_on = "test"\n', "utf-8")
    write_page(["plan.toml"], Path("out"))
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "β was chosen on TEST data in plan.toml." in page
    assert "Nothing was chosen" not in page
    with pytest.raises(FileNotFoundError, match=r"Expected a file nowhere\.md"):
        write_page(["plan.toml"], Path("out"), Path("nowhere.md"))


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match=r"^Expected the lines .* in README, once each"):
        with_results("no marks", material_of([]), Path("results"))
    assert results_text(material_of([]), Path("results")) == "No runs yet."


# --- What is committed


def test_the_plans_are_the_authors_recipe():
    plan = read_plan(ROOT / "results" / "plans" / "cifar10-lt.toml", to_run=False)
    runs = plan.runs()
    assert len(runs) == 3 * 3 * 5
    betas = {f"C10-LT{run.recipe.imbalance:g}": run.recipe.beta for run in runs if run.recipe.method == "cbs"}
    assert betas == {name: paper.figures()["beta"][name] for name in ("C10-LT10", "C10-LT50", "C10-LT100")}
    assert {run.recipe.seed for run in runs} == set(range(paper.AUTHORS_RUNS))
    for file in PLANS:
        if file.name.startswith("digits"):
            continue
        for run in read_plan(file, to_run=False).runs():
            recipe = run.recipe
            assert (recipe.epochs, recipe.model, recipe.subset_seed, recipe.train_stats) == (
                *(200, "resnet32", "run", "paper"),
            )
            if recipe.method in {"softmax", "balanced-softmax", "cbs"}:
                assert (recipe.batch_size, recipe.lr, recipe.warmup, recipe.momentum, recipe.weight_decay) == (
                    *(128, 0.1, 5, 0.9, 5e-4),
                )
                assert not recipe.drop_last
                assert not recipe.nesterov


def test_every_method_of_the_papers_table_is_planned():
    """Those of ImageNet-LT that it ran; its LDAM there is LDAM-DRW, and CAL and DisA are quoted."""
    planned = set()
    for file in PLANS:
        plan = read_plan(file, to_run=False)
        planned |= {run.recipe.method for run in plan.runs()}
    wanted = set(paper.recalls("ImageNet-LT")) - {"CAL", "DisA", "ldam"} | {"ldam-drw"}
    assert wanted <= planned


def test_make_runs_every_plan():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "reproduce-cifar10:" in makefile
    for file in PLANS:
        assert file.name in makefile


def test_committed_results_are_small_and_name_no_machine():
    total = 0
    for file in (ROOT / "results").rglob("*"):
        if file.is_file():
            total += file.stat().st_size
            assert file.stat().st_size < (200_000 if file.suffix == ".png" else 1_000_000), file
            assert file.name not in {"model.safetensors", "predictions.safetensors"}, file
            if file.name == "recipe.toml":
                assert tomllib.loads(file.read_text("utf-8"))["root"] == "data", file
    assert total < 12_000_000


def test_readme_and_page_are_what_the_tool_makes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "results", "results")
    before = (ROOT / "README.md").read_text("utf-8")
    Path("README.md").write_text(before, "utf-8")
    names = ("cifar10", "cifar10-lt", "c10-lt100", "c10-lt100-tau", "digits-lt")
    assert {f"{name}.toml" for name in names} == {file.name for file in PLANS}
    write_page([f"results/plans/{name}.toml" for name in names], Path("results"), Path("README.md"))
    assert Path("README.md").read_text("utf-8") == before
    assert Path("results/README.md").read_text("utf-8") == (ROOT / "results" / "README.md").read_text("utf-8")


def test_the_page_says_what_its_rows_are():
    """What was tested and what not, which betas are whose, what comes from no plan, and what is not drawn."""
    page = (ROOT / "results" / "README.md").read_text("utf-8")
    methods = page[page.index("## All methods on C10-LT100") : page.index("## Rows for a CPU")]
    rows = [line for line in methods.splitlines() if line.startswith("| C10-LT100 |")]
    assert any(r"\*\*\*" in row for row in rows if "CBS (β = 2)" in row)
    assert [row.split("|")[2].strip() for row in rows if "§" in row] == 2 * [
        *("Logit adjustment §", "LDAM §", "CBS (β = 1.5) §"),
    ]
    assert methods.count("§ from no plan, but in a plan's folder.") == 2
    assert "- C10-LT100, Logit adjustment, LDAM, CBS (β = 1.5): fewer than two seeds, so no test.\n" in methods
    assert "- τ-norm, validation 0.1 on C10-LT100: not tested, Balanced Softmax was not run with these" in methods
    assert "CAL and DisA were not run here" in methods
    assert methods.count("as not trained on the same images: τ-norm, validation 0.1.") == 2
    assert "Bars: SD over runs. A point without bars is one run." in methods
    assert "Of CBS one β is drawn, the authors’ where it was run." in page
    assert "β of the data set's recipe: digits-lt 10 1.5, digits-lt 50 1.5; β chosen on" in page
    assert "models asked: C10-LT10 3 (seeds 2…4), C10-LT50 2 (seeds 3, 4), C10-LT100 2 (seeds 3, 4)." in page
    assert "Mean ± SD over seeds 2…4; 7 runs in total;" in page
    assert "Mean ± SD over seeds 0, 1; 2 runs in total;" in page  # not seeds 0, 1 and 2
    assert "1. Begin with 1, 1.1, 1.2, 1.3, or the β that the plan says." in page
    part = (ROOT / "README.md").read_text("utf-8")
    part = part[part.index(BEGIN) : part.index(END)]
    assert "\nThe authors’ β: C10-LT10 1.6, C10-LT50 1.5, C10-LT100 1.8; β chosen on 3-fold cross-validation" in part


def test_what_notes_say_of_the_searches_is_what_they_found():
    notes = " ".join((ROOT / "results" / "notes.md").read_text("utf-8").split())
    found = {}
    for file in (ROOT / "results").glob("*/search/*/beta.json"):
        record = json.loads(file.read_text("utf-8"))
        found[record["data"]] = record
        assert "on the quadratic are within one standard error of its highest at a β tried" in record["choice"]
    peaks = {name: f"{found[name]['quadratic']['peak']:.2f}" for name in ("C10-LT50", "C10-LT100")}
    assert f"peaks at {peaks['C10-LT50']} on C10-LT50 and at {peaks['C10-LT100']}, beyond what was tried" in notes


def test_the_table_in_readme_is_what_the_runs_found():
    """Each row read back, against result.json itself."""
    text = (ROOT / "README.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text[text.index(BEGIN) : text.index(END)].splitlines()
        if line.startswith("| C10")
    ]
    assert rows
    titles = {"Softmax": "softmax", "cRT": "crt", "LDAM-DRW": "ldam-drw", "Balanced Softmax": "balanced-softmax"}
    titles |= {"BCL + Balanced Softmax": "bcl", "ProCo + Balanced Softmax": "proco"}
    for data, title, runs, *shown in rows:
        method, beta = titles.get(title, "cbs"), title.partition("= ")[2].rstrip(")")
        found = []
        for file in (ROOT / "results").glob("c*/*/result.json"):
            recipe = tomllib.loads((file.parent / "recipe.toml").read_text("utf-8"))
            balance = recipe.get("balance", "balanced-softmax")
            if (recipe["method"], f"C10-LT{recipe.get('imbalance', 0):g}", balance) != (
                method,
                data,
                "balanced-softmax",
            ):
                continue
            if beta and recipe["beta"] != float(beta):
                continue
            result = json.loads(file.read_text("utf-8"))
            recall = result["splits"]["test"]["recall"]
            values = [100 * recall[group] for group in ("head", "medium", "tail", "all")]
            found.append([*values, result["preference_test"]["model_imbalance_level"]])
        assert len(found) == int(runs)
        means = [sum(column) / len(found) for column in zip(*found, strict=True)]
        printed = [float(shown[place].partition(" ")[0]) for place in (0, 1, 2, 3, 5)]
        assert printed == pytest.approx(means, abs=0.0501)


def test_standing_counts_what_a_plan_lacks():
    one = standing_of(ROOT / "results" / "plans" / "digits-lt.toml", ROOT / "results")
    assert one.whole
    assert len(one.runs) == 5 * (3 + 4)  # on imbalance 10 the search ended at the recipe's beta
    assert one.lacks() == ""
    assert one.other_settings() == []

"""``longtail study`` as a person runs it."""

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from longtail.study.record import StudyRecord, read_studies, write_study
from longtail.train.trainer import StoppedError

SHORT = ("--epochs", 2, "--evaluate-every", 0, "--checkpoint-epochs", 0, "--device", "cpu")
SMALL = ("--data", "digits-lt", "--methods", "balanced-softmax", "cbs", "--seeds", 2, "--out", "out", *SHORT)


def test_a_study_from_flags_ends_with_tables_and_sentences(run, tmp_path):
    code, out, err = run("study", *SMALL, "--dry-run")
    assert code == 0
    assert "4 runs, 0 of them done, in out:" in out
    assert "4 runs to do, about" in out
    assert "going by a few steps tried here, of one run alone." in out
    assert not (tmp_path / "out").exists()
    code, out, err = run("study", *SMALL)
    assert code == 0, err
    assert "4/4 digits-lt-50-cbs-beta1.5-seed1: recall" in err
    assert "Recall on test data, per cent" in out
    assert "Model imbalance level" in out
    assert "digits-lt 50, recall over all classes: CBS (β = 1.5)" in out
    (kept,) = read_studies(tmp_path / "out")
    assert kept.command.startswith("longtail study --data digits-lt")
    assert len(kept.planned) == len(kept.done) == 4
    assert kept.ended >= kept.began > "2026"
    for name in ("recall.md", "recall.tex", "recall.csv", "level.md"):
        assert (tmp_path / "out" / "tables" / name).exists()
    code, out, _ = run("study", *(3 if word == 2 else word for word in SMALL[:7]), *SMALL[7:], "--dry-run")
    assert "6 runs, 4 of them done" in out
    assert "2 runs to do, about" in out
    code, _, err = run("study", *SMALL)  # all is done: the same tables, nothing trained
    assert code == 0
    assert err == ""


def test_a_plan_file_with_a_search_for_beta(run, tmp_path):
    (tmp_path / "plan.toml").write_text(
        'data = ["digits-lt"]\nmethods = ["balanced-softmax", "cbs"]\nbetas = ["search", 1.3]\nseeds = 1\nout = "out"\n'
        '[recipe]\nepochs = 2\nevaluate_every = 0\ndevice = "cpu"\n'
        "[search]\nfolds = 2\nstart = [1.0, 1.1]\nbounds = [1.0, 1.1]\n",
        "utf-8",
    )
    code, out, _ = run("study", "plan.toml", "--dry-run")
    assert code == 0
    search = "the search for the beta of cbs on digits-lt:"
    assert f"  to do  {search} 4 runs or more, now with beta 1, 1.1 (2 runs each), then up to 1 run with" in out
    assert "At least: 6 runs to do" in out
    assert (
        "At least: 5 runs to do" in run("study", "plan.toml", "--methods", "cbs", "--betas", "search", "--dry-run")[1]
    )
    code, out, err = run("study", "plan.toml")
    assert code == 0, err
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, again, _ = run("study", "plan.toml", "--dry-run")
    assert "3 runs, 3 of them done, in out:" in again
    assert f"  done   {search} beta = 1" in again
    assert again.endswith("\n0 runs to do: all are done.\n")
    shutil.copytree(tmp_path / "out", tmp_path / "partly")
    for lost in (tmp_path / "partly" / "search").rglob("*beta1.1-seed0-fold1of2"):
        shutil.rmtree(lost)
    code, partly, _ = run("study", "plan.toml", "--out", "partly", "--dry-run")
    assert f"  begun  {search} 1 run or more, now with beta 1, 1.1 (2 runs each), then up to 1 run" in partly
    assert "At least: 1 run to do" in partly
    shutil.rmtree(tmp_path / "partly")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (kept,) = read_studies(tmp_path / "out")
    ((place, beta),) = kept.searches.items()
    assert place == "digits-lt cbs"
    assert beta in {1.0, 1.1}
    (way,) = kept.selected[f"digits-lt-50-cbs-beta{beta:g}-seed0"]
    assert way.startswith("β chosen on 2-fold cross-validation within training data")
    assert kept.selected["digits-lt-50-cbs-beta1.3-seed0"] == ["β as given"]
    assert "fewer than two seeds, so no test" in out
    code, out, _ = run("study", "table", "out", "--format", "markdown")
    assert code == 0
    assert out.count("| digits-lt 50 |") == 3  # no run on a fold
    assert "2-fold cross-validation" in out


def test_several_plans_are_trained_together_and_told_each(run, tmp_path):
    for name, data in {"a": "digits-lt", "b": "digits"}.items():
        (tmp_path / f"{name}.toml").write_text(
            f'data = ["{data}"]\nmethods = ["softmax"]\nseeds = 1\nout = "out/{name}"\n[recipe]\nepochs = 1\n'
            'evaluate_every = 0\ndevice = "cpu"\n',
            "utf-8",
        )
    code, out, _ = run("study", "a.toml", "b.toml", "--dry-run")
    assert code == 0
    assert "in out/a:" in out
    assert "in out/b:" in out
    code, out, err = run("study", "a.toml", "b.toml")
    assert code == 0, err
    assert "2/2" in err  # one fleet
    for name in ("a", "b"):
        assert len(read_studies(tmp_path / "out" / name)[0].done) == 1
    code, _, err = run("study", "a.toml", "b.toml", "--out", "other")
    assert code == 2
    assert "no --out beside several plans" in err


def test_a_second_study_in_a_folder_says_whose_tables_are_there(run, tmp_path):
    for method, told in (
        ("softmax", "Tables: s/tables; `longtail report s` makes a page of it.\n"),
        ("cbs", "Tables of this study: s/tables; of all in s: `longtail study table s`, `longtail report s`.\n"),
    ):
        code, out, err = run("study", "--data", "digits-lt", "--methods", method, "--seeds", 1, "--out", "s", *SHORT)
        assert code == 0, err
        assert out.endswith(told)
    assert "Softmax" not in (tmp_path / "s" / "tables" / "recall.md").read_text(encoding="utf-8").splitlines()[4]
    code, out, err = run("study", "table", "s")
    assert code == 0, err
    assert "Softmax" in out
    assert "CBS" in out


def test_beta_shows_its_trace_and_sensitivity(run, tmp_path):
    flags = ("--folds", 2, "--start", 1.0, 1.1, "--bounds", 1.0, 1.1, "--out", "beta", *SHORT)
    code, out, err = run("study", "beta", "--data", "digits-lt", *flags)
    assert code == 0, err
    assert "The search for β" in out
    assert "Sensitivity to β on digits-lt 50" in out
    assert "digits-lt 50: beta = 1" in out
    assert out.endswith("Tables: beta/search; `longtail report beta` makes a page of it.\n")
    found = list(tmp_path.rglob("beta.json"))
    assert len(found) == 1
    assert (found[0].parent / "trace.md").exists()
    assert "train head" in (found[0].parent / "sensitivity.tex").read_text("utf-8")


def test_a_dry_run_of_a_search(run):
    code, out, _ = run("study", "beta", "--data", "digits-lt", "--epochs", 2, "--folds", 2, "--dry-run")
    assert code == 0
    search = "the search for the beta of cbs on digits-lt: 8 runs or more, now with beta 1, 1.1, 1.2, 1.3 (2 runs each)"
    assert f"In runs/beta:\n  to do  {search}\nAt least: 8 runs to do" in out
    assert not Path("runs").exists()


@pytest.mark.parametrize("what", ["recall", "level", "gradient", "shift"])
@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_tables_of_what_is_there(run, study, what, form):
    code, out, err = run("study", "table", study, "--what", what, "--format", form)
    assert code == 0, err
    assert "CBS" in out


def test_a_table_tests_as_its_study_did_and_flags_win(run, study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    on_test = "β chosen on TEST data: digits-lt 50 1.5"
    planned = [path.name for path in study.iterdir() if path.is_dir()]
    chosen = {name: ["β chosen on TEST data"] for name in planned if "cbs" in name}
    write_study(tmp_path / "s", StudyRecord("longtail study x", "softmax", "greater", planned, chosen))

    def table(*flags):
        code, out, err = run("study", "table", *flags, "--format", "markdown")
        assert code == 0, err
        assert on_test in out
        return out

    told = table("s")
    assert "against Softmax (paired t-test, one-sided, after Holm" in told
    assert "Command: longtail study x\n" in told.replace("`", "")
    assert "against Balanced Softmax (paired t-test, one-sided" in table("s", "--reference", "balanced-softmax")
    given = table("s", "--reference", "cbs", "--no-one-sided")
    assert "against CBS (β = 1.5) (paired t-test, two-sided" in given
    assert "longtail study x; longtail study table s --reference cbs --no-one-sided" in given
    shutil.copytree(study, tmp_path / "t" / "u")
    assert "against Balanced Softmax (paired t-test, two-sided" in run("study", "table", "t", "--format", "markdown")[1]
    for what in ("level", "gradient", "shift"):
        table("s", "--what", what)
    (tmp_path / "other").mkdir()
    table("s", "other")  # several folders
    assert run("study", "table", "s", "--reference", "cb")[2] == (
        "longtail: Expected `reference` to be a method that was run (balanced-softmax, cbs, softmax), but got 'cb'.\n"
    )
    write_study(tmp_path / "s", StudyRecord("longtail study y", "softmax", planned=["a", *planned]))
    assert f"1 of {len(planned) + 1} planned runs are missing. " in table("s")
    assert run("study", "table", "s", "--reference")[2] == (
        "longtail: Expected a method after --reference, but got nothing.\n"
    )


def test_own_images_without_test_data_are_told_of_on_validation_data(run, tmp_path):
    for name, number in {"cat": 40, "dog": 20, "emu": 10}.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for place in range(number):
            Image.new("RGB", (8, 8), (4 * place, 3 * number, 9)).save(tmp_path / "pets" / name / f"{place}.png")
    flags = ("--methods", "softmax", "balanced-softmax", "--seeds", 2, "--model", "resnet20", "--out", "out", *SHORT)
    code, out, err = run("study", "--data", "pets", *flags)
    assert code == 0, err
    assert "4/4 pets-balanced-softmax-seed1: recall " in err
    assert err.count(" on validation data\n") == 4
    assert "Recall on validation data (there is no test data), per cent" in out
    assert "pets, recall over all classes on validation data (there is no test data): Softmax" in out
    assert not re.search(r"\bnan\b", out + err)
    assert run("report", "out", "--no-figures")[0] == 0
    assert "on validation data (there is no test data)" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_a_study_is_written_down_before_its_first_run(run, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise StoppedError("Stopped.")

    with monkeypatch.context() as patched:
        patched.setattr("longtail.cli.study.execute", stopped)
        assert run("study", *SMALL)[0] == 130
    (kept,) = read_studies(tmp_path / "out")
    assert (len(kept.planned), kept.ended, kept.done) == (4, "", [])
    assert kept.selected == {f"digits-lt-50-cbs-beta1.5-seed{n}": ["β of the data set's recipe"] for n in (0, 1)}
    assert run("study", *SMALL)[0] == 0
    (whole,) = read_studies(tmp_path / "out")
    assert (whole.began, sorted(whole.done)) == (kept.began, sorted(kept.planned))
    assert whole.ended


def test_a_beta_chosen_on_test_data_stays_so(run, tmp_path):
    """A later command that gives the same beta does not hide how an earlier one found it."""
    base = ("--data", "digits-lt", "--methods", "cbs", "--seeds", 1, "--out", "out", *SHORT)
    search = ("--betas", "search", "--select-on", "test", "--start", 1.0, 1.2, "--bounds", 1.0, 1.2)
    code, out, err = run("study", *base, *search)
    assert code == 0, err
    beta = read_studies(tmp_path / "out")[0].searches["digits-lt cbs"]
    way = f"β chosen on TEST data by recall over all classes, 1 run a β: digits-lt 50 {beta:g}"
    assert way in " ".join(out.split())
    code, out, err = run("study", *base, "--betas", beta)
    assert code == 0, err
    assert f"{way}; β as given: digits-lt 50 {beta:g}" in " ".join(out.split())
    assert [len(one.planned) for one in read_studies(tmp_path / "out")] == [1, 1]
    (tmp_path / "out" / "study.json").unlink()  # as if the study had been stopped between its search and its end
    assert way in " ".join(run("study", "table", "out")[1].split())
    code, _, err = run("study", *base, "--betas", "search", "--criterion", "level", *search[2:])
    assert code == 2
    assert "a search with `criterion` level to have a folder of its own" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("plan.yaml",), "a plan that ends in .toml, beta, table, or flags, but got 'plan.yaml'"),
        (("--methods", "cbs", "--methods", "focal"), "--methods once, with all its values, but it was given twice"),
        (("missing.toml",), "missing.toml"),
        (("--data", "digits-lt", "--methods", "cbs", "--seeds", "0"), "at least one seed"),
        (("--data", "digits-lt", "--methods", "cbs", "--seeds", "1", "--together", "none"), "--together"),
        (("--data", "digits-lt", "--methods", "cbs", "--seeds", "1", "--dry-run", "now"), "nothing after --dry-run"),
        (
            ("--data", "digits-lt", "--methods", "cbs", "--seeds"),
            "how many seeds, or which, after --seeds, but got nothing",
        ),
        (("--data", "digits-lt", "--methods", "cbs", "--seeds", "1", "--out"), "a folder after --out, but got nothing"),
        (("--data", "digits-lt", "--methods", "cbs", "--seeds", "1", "--out", "a", "b"), "after --out, but got a b"),
        (
            ("--data", "digits-lt", "--search-seeds", "--methods", "cbs"),
            "a value after --search-seeds, but got nothing",
        ),
        (("--data", "digits-lt", "--epochs", "--methods", "cbs"), "a value after --epochs, but got nothing"),
        (
            ("beta", "--data", "digits-lt", "--seeds", "2"),
            "--search-seeds after `longtail study beta`, but got --seeds",
        ),
        (("beta", "--data", "digits-lt", "--methods", "cbs"), "--method after `longtail study beta`"),
        (("beta", "digits-lt"), "flags after `longtail study beta`"),
        (("beta", "--data", "digits-lt", "--method", "softmax"), "a method that takes one"),
        (("table",), "folders of runs, but got none"),
        (("table", "nowhere"), "nowhere is not there"),
        (("table", ".", "--format", "html"), "--format to be one of"),
        (("table", "."), "finished runs in ., but there are none"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, part):
    code, _, err = run("study", *arguments)
    assert code == 2
    assert part in err
    assert err.startswith("longtail: ")
    assert err.count("\n") == 1


def test_several_mistakes_are_told_at_once(run):
    code, _, err = run("study", "--data", "nope", "--methods", "cbss", "--betas", "-1", "--seeds", "0")
    assert code == 2
    for part in ("'nope'", "'cbss'", "-1", "at least one seed"):
        assert part in err


def test_help_tells_all_of_it(run):
    code, out, _ = run("study", "--help")
    assert code == 0
    assert "longtail study PLAN.toml" in out
    assert "--select-on" in out

"""``longtail study`` on the command line."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longtail.study.planning import read_plan, write_plan
from longtail.study.record import Choice, StudyRecord, read_studies, write_study
from longtail.study.results import Results
from longtail.train.trainer import StoppedError

SHORT = ("--epochs", 1, "--evaluate-every", 0, "--checkpoint-epochs", 0, "--device", "cpu")
SMALL = ("--data", "digits-lt", "--methods", "balanced-softmax", "cbs:beta=1.5", "--seeds", 2, "--out", "out", *SHORT)


def test_a_study_from_flags_ends_with_tables_and_sentences(run, tmp_path, monkeypatch):
    code, out, err = run("study", *SMALL, "--dry-run")
    assert code == 0
    assert out.startswith("4 runs, 0 done; about 0:")
    assert not (tmp_path / "out").exists()

    def stop(*_, **__):
        raise StoppedError("Stopped.")

    with monkeypatch.context() as patched:
        patched.setattr("longtail.study.study.execute", stop)
        assert run("study", *SMALL)[0] == 130
    (begun,) = read_studies(tmp_path / "out")  # recorded before the first run
    assert (len(begun.planned), begun.ended) == (4, "")
    assert begun.selected == {f"digits-lt-50-cbs-beta1.5-seed{n}": [Choice("given")] for n in (0, 1)}

    code, out, err = run("study", *SMALL)
    assert code == 0, err
    assert "4/4 " in err
    assert "digits-lt-50-cbs-beta1.5-seed1: recall" in err
    assert "Recall on test data, per cent" in out
    assert "Other measures on test data, per cent" in out
    assert "Macro F1" in out
    assert "digits-lt 50, recall over all classes: CBS (β = 1.5)" in out
    (kept,) = read_studies(tmp_path / "out")
    assert kept.command == "longtail study out/plan.toml"
    assert sorted(kept.planned) == sorted(begun.planned)
    assert kept.ended > "2026"
    assert (tmp_path / "out" / "tables" / "recall.csv").exists()
    code, out, _ = run("study", *(3 if word == 2 else word for word in SMALL[:7]), *SMALL[7:], "--dry-run")
    assert "6 runs, 4 done; about 0:" in out
    code, out, err = run("study", *SMALL)  # all is done: the same tables, nothing trained
    assert (code, err) == (0, "")
    end = "Tables: out/tables; `longtail report out` writes an HTML report.\ndigits-lt 50: "
    assert str(Results.read(tmp_path / "out").decisions()["digits-lt 50"]) == out.partition(end)[2].strip() != ""
    code, out, err = run("study", *SMALL, "--methods=softmax", "--seeds=1")
    assert "--methods once" in err
    code, out, err = run("study", "--data", "digits-lt", "--methods", "softmax", "--seeds", 1, "--out", "out", *SHORT)
    assert code == 0, err
    assert "Tables of all studies in out: out/tables; `longtail report out` writes an HTML report.\n" in out
    tables = (tmp_path / "out" / "tables" / "recall.csv").read_text("utf-8")
    assert all(f",{name}" in tables for name in ("Softmax", "CBS (β = 1.5)"))  # the last study and the first one


def test_a_plan_file_with_a_search_for_beta(run, tmp_path):
    (tmp_path / "plan.toml").write_text(
        'data = ["digits-lt"]\nmethods = ["balanced-softmax", "cbs"]\nbetas = ["search", 1.3]\nseeds = 1\nout = "out"\n'
        '[recipe]\nepochs = 1\nevaluate_every = 0\ndevice = "cpu"\n'
        "[search]\nfolds = 2\nstart = [1.0, 1.1]\nbounds = [1.0, 1.1]\n",
        "utf-8",
    )
    code, out, _ = run("study", "plan.toml", "--dry-run")
    assert code == 0
    search = "search for the beta of cbs on digits-lt:"
    assert out.startswith("6 runs, 0 done; about 0:")
    assert f"  {search} not done, more runs will follow\n" in out
    code, out, err = run("study", "plan.toml")
    assert code == 0, err
    assert "digits-lt, cbs: trying β = 1, 1.1" in err
    assert "fewer than two seeds, so no test" in out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, again, _ = run("study", "plan.toml", "--dry-run")
    assert again.startswith("3 runs, 3 done:")
    assert f"  {search} beta = 1" in again
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for lost in (tmp_path / "out" / "search").rglob("*beta1.1-seed0-fold1of2"):
        shutil.rmtree(lost)
    code, partly, _ = run("study", "plan.toml", "--dry-run")
    assert partly.count("  to do ") == 1
    (kept,) = read_studies(tmp_path / "out")
    ((place, beta),) = kept.searches.items()
    assert place == "digits-lt cbs"
    assert beta in {1.0, 1.1}
    (way,) = kept.selected[f"digits-lt-50-cbs-beta{beta:g}-seed0"]
    assert way == Choice("search", "val", folds=2, runs=2)
    assert kept.selected["digits-lt-50-cbs-beta1.3-seed0"] == [Choice("given")]
    code, out, _ = run("study", "table", "out", "--format", "markdown")
    assert code == 0
    assert out.count("| digits-lt 50 |") == 3  # no run on a fold
    assert "2-fold cross-validation" in out


def test_a_study_keeps_its_plan(run, tmp_path):
    flags = ("--data", "digits-lt", "--methods", "cbs", "--betas", 1.5, "auto", "--seeds", 1, 4, "--out", "my out")
    flags += ("--imbalance", 10, "--sampler", "none", "--augment", "none", *SHORT)
    assert run("study", *flags, "--on", "slurm", "--workers", 2, "--print")[0] == 0
    plan = read_plan("my out/plan.toml")
    assert (plan.seeds, plan.betas, plan.imbalance, plan.out) == ((1, 4), (1.5, "auto"), (10,), "my out")
    assert (plan.recipe["sampler"], plan.recipe["augment"], plan.recipe["device"]) == (None, "none", "cpu")
    assert write_plan(plan) == Path("my out/plan.toml")
    other = replace(plan, seeds=(0,))
    assert write_plan(other) == write_plan(other) == Path("my out/plan2.toml")  # the first one stays
    assert read_plan("my out/plan2.toml") == other


def test_several_plans_are_trained_together(run, tmp_path):
    for name, data in {"a": "digits-lt", "b": "digits"}.items():
        (tmp_path / f"{name}.toml").write_text(
            f'data = ["{data}"]\nmethods = ["softmax"]\nseeds = 1\nout = "out/{name}"\n[recipe]\nepochs = 1\n'
            'evaluate_every = 0\ndevice = "cpu"\n',
            "utf-8",
        )
    code, _, err = run("study", "a.toml", "b.toml")
    assert code == 0, err
    assert "2/2" in err  # one fleet
    for name in ("a", "b"):
        assert len(read_studies(tmp_path / "out" / name)[0].planned) == 1
    code, _, err = run("study", "a.toml", "b.toml", "--out", "other")
    assert code == 2
    assert "no --out with several plans" in err


def test_beta_shows_its_trace_and_sensitivity(run, tmp_path):
    flags = ("--folds", 2, "--start", 1.0, 1.1, "--bounds", 1.0, 1.1, "--out", "beta", *SHORT)
    code, out, _ = run("study", "beta", "--data", "digits-lt", *flags, "--dry-run")
    assert code == 0
    assert out.startswith("4 runs, 0 done; about 0:")
    assert not Path("beta").exists()
    code, out, err = run("study", "beta", "--data", "digits-lt", *flags)
    assert code == 0, err
    assert "The search for β" in out
    assert "Sensitivity to β on digits-lt 50" in out
    assert "digits-lt 50: Use β = 1" in out
    assert "Tables: beta/search; `longtail report beta` writes an HTML report.\n" in out
    words = shlex.split(out.splitlines()[-1].partition("seeds: longtail ")[2])
    code, planned, err = run(*words, "--dry-run")  # the next command, as it is printed
    assert code == 0, err
    assert planned.startswith("10 runs, 0 done; about")
    plan = read_plan(words[-1])
    assert (plan.recipe["epochs"], plan.methods[0], plan.out) == (1, "balanced-softmax", "runs/study")
    (found,) = tmp_path.rglob("beta.json")
    assert (found.parent / "trace.md").exists()
    assert "| 1 | train | " in (found.parent / "sensitivity.md").read_text("utf-8")


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "html"])
def test_tables_of_finished_runs(run, study, form):
    for what in ("recall", "measures"):
        code, out, err = run("study", "table", study, "--what", what, "--format", form)
        assert code == 0, err
        assert "CBS" in out


def test_a_table_tests_as_its_study_did_and_flags_win(run, study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    planned = [path.name for path in study.iterdir() if path.is_dir()]
    chosen = {name: [Choice("search", "test")] for name in planned if "cbs" in name}
    write_study(tmp_path / "s", StudyRecord("longtail study x", "softmax", planned, chosen))

    def table(*flags):
        code, out, err = run("study", "table", *flags, "--format", "markdown")
        assert code == 0, err
        assert "β chosen on TEST data by recall over all classes: CBS (β = 1.5)" in out
        return out

    plain = table("s")
    assert "against Softmax (paired t-test, two-sided, after Holm" in plain
    assert "Command: longtail study x\n" in plain.replace("`", "")
    assert "against Balanced Softmax (paired t-test, two-sided" in table("s", "--reference", "balanced-softmax")
    given = table("s", "--reference", "cbs")
    assert "against CBS (β = 1.5) (paired t-test, two-sided" in given
    assert "longtail study x; longtail study table s --reference cbs" in given
    table("s", "--what", "measures")
    (tmp_path / "other").mkdir()
    table("s", "other")  # several folders
    shutil.copytree(study, tmp_path / "t" / "u")
    assert "against Balanced Softmax (paired t-test, two-sided" in run("study", "table", "t", "--format", "markdown")[1]


def test_a_measured_beta_is_in_every_caption(run, tmp_path):
    flags = ("--data", "digits-lt", "--methods", "softmax", "cbs", "--seeds", 2, "--out", "out", *SHORT)
    code, out, err = run("study", *flags)
    assert code == 0, err
    assert "4/4 " in err
    assert "digits-lt-50-cbs-beta-auto-seed1: recall" in err  # a pilot is no run of the study
    (kept,) = read_studies(tmp_path / "out")
    assert kept.selected == {}  # nothing was chosen
    found = [
        json.loads((tmp_path / "out" / f"digits-lt-50-cbs-beta-auto-seed{seed}" / "result.json").read_text("utf-8"))
        for seed in (0, 1)
    ]
    betas, pilots = zip(*((one["auto_beta"]["beta"], one["auto_beta"]["pilots"]) for one in found), strict=True)
    number = re.escape("–".join(map(str, sorted(set(pilots)))))
    shown = f"{sum(betas) / 2:.2f} ({min(betas):.2f} to {max(betas):.2f})"
    said = rf"CBS \(β auto\): β = {re.escape(shown)}, measured on {number} pilot runs? per run, a tenth"
    for what in ("recall", "measures"):
        code, out, _ = run("study", "table", "out", "--what", what, "--format", "markdown")
        assert re.search(said, out), out
        assert out.count("| digits-lt 50 |") == 2


def test_a_study_says_what_was_really_held_out(run, tmp_path):
    """The recipe of own images holds out a tenth, but only if there is no validation split."""
    for place in range(40):
        Image.new("RGB", (8, 8), (6 * place, 90, 9)).save(tmp_path / f"{place}.png")
    rows = [
        f"{place}.png,{'cat' if place % 4 else 'dog'},{'val' if place < 10 else 'train'},{place // 2}"
        for place in range(40)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["path,label,split,owner", *rows]))
    flags = ("--methods", "softmax", "--seeds", 2, "--model", "resnet20", "--out", "out", *SHORT)
    code, out, err = run("study", "--data", "own.csv", *flags, "--test", 0.2)
    assert code == 0, err
    held = "Held out 20 % of each class of own as test data, the same for every seed: 6 samples.\n"
    assert err.count(held) == 1
    caption = " ".join(out.split())
    assert "20 % of each class held out as test" in caption
    assert "of training samples held out" not in caption
    code, out, err = run("study", "--data", "own.csv", *flags, "--test", 0.2)
    assert (code, err) == (0, "")
    grouped = [*flags, "--test", 0.2, "--split-by", "owner"]
    code, out, err = run("study", "--data", "own.csv", *("grouped" if one == "out" else one for one in grouped))
    assert code == 0, err
    assert "20 % of each class held out as test (whole groups by owner)" in " ".join(out.split())
    code, _, err = run("study", "--data", "own.csv", *flags, "--split-by", "patient")
    assert code == 2
    assert "path, label and patient, but got path, label, split, owner" in err


def test_images_without_test_data_are_measured_on_validation_data(run, tmp_path):
    for name, number in {"cat": 40, "dog": 20, "emu": 10}.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for place in range(number):
            Image.new("RGB", (8, 8), (4 * place, 3 * number, 9)).save(tmp_path / "pets" / name / f"{place}.png")
    flags = ("--methods", "softmax", "balanced-softmax", "--seeds", 2, "--model", "resnet20", "--out", "out", *SHORT)
    code, out, err = run("study", "--data", "pets", *flags)
    assert code == 0, err
    assert "4/4 " in err
    assert "pets-balanced-softmax-seed1: recall " in err
    assert err.count(" on validation data\n") == 4
    assert "Recall on validation data (there is no test data), per cent" in out
    assert "pets, recall over all classes on validation data (there is no test data): Softmax" in out
    assert not re.search(r"\bnan\b", out + err)


def test_a_beta_chosen_on_test_data_stays_so(run, tmp_path):
    """A later command that gives the same beta does not hide how an earlier one found it."""
    base = ("--data", "digits-lt", "--methods", "cbs", "--seeds", 1, "--out", "out", *SHORT)
    search = ("--betas", "search", "--select-on", "test", "--start", 1.0, 1.2, "--bounds", 1.0, 1.2)
    code, out, err = run("study", *base, *search)
    assert code == 0, err
    beta = read_studies(tmp_path / "out")[0].searches["digits-lt cbs"]
    way = f"β chosen on TEST data by recall over all classes, 1 run per β: CBS (β = {beta:g})"
    assert way in " ".join(out.split())
    code, out, err = run("study", *base, "--betas", beta)
    assert code == 0, err
    assert f"{way}; β as given: CBS (β = {beta:g})" in " ".join(out.split())
    assert [len(one.planned) for one in read_studies(tmp_path / "out")] == [1, 1]
    (tmp_path / "out" / "study.json").unlink()  # as if the study had been stopped between its search and its end
    assert way in " ".join(run("study", "table", "out")[1].split())
    code, _, err = run("study", *base, "--betas", "search", "--select-on", "val", *search[4:])
    assert code == 2
    assert "--select-on val" in err


ONE = ("--data", "digits-lt", "--methods", "cbs", "--seeds", "1")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("plan.yaml",), "'plan.yaml'"),
        (("missing.toml",), "missing.toml"),
        ((*ONE, "--together", "none"), "--together"),
        ((*ONE, "--dry-run", "now"), "'now'"),
        ((*ONE, "--out", "a", "b"), "'b'"),
        ((*ONE, "--epochs"), "a value after --epochs"),
        ((*ONE, "--seds=3"), "--seds; the closest match is --seeds"),
        ((*ONE, "--validation", ".1x"), "--validation"),
        (("beta", "--data", "digits-lt", "--seeds", "2"), "--search-seeds"),
        (("beta", "--data", "digits-lt", "--method", "softmax"), "a method that has a beta"),
        (("table",), "RUNS"),
        (("table", "nowhere"), "nowhere"),
        (("table", ".", "--format", "html5"), "--format"),
        (("table", "."), "finished runs in ., but there are none"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, part):
    code, _, err = run("study", *arguments)
    assert code == 2
    assert part in err
    assert err.startswith("longtail: ")
    assert err.count("\n") == 1


def test_settings_are_read_as_in_train(run):
    code, _, err = run("study", *ONE, "--validation", ".1", "--nesterov", "True", "--no-tensorboard", "--dry-run")
    assert code == 0, err


def test_help_has_all_of_it(run):
    code, out, _ = run("study", "--help")
    assert code == 0
    assert "longtail study PLAN.toml" in out
    assert "--select-on" in out


def test_search_needs_one_test_split(run, tmp_path):
    """Otherwise test data of one seed would be training data of the search."""
    np.savez(tmp_path / "f.npz", features=np.random.default_rng(0).normal(size=(60, 3)), labels=np.arange(60) % 3)
    words = ("--methods", "cbs", "--betas", "search", "--seeds", "2", "--test", "0.2", "--test-seed", "run")
    code, _, err = run("study", "--data", tmp_path / "f.npz", *words, "--epochs", "1", "--out", tmp_path / "out")
    assert code == 2
    assert "--test-seed" in err

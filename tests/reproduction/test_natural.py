"""Lists of natural data from files as they are published, and the weight decay that is chosen for each run."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from longtail.study.runs import Run
from longtail.train.recipe import Recipe
from reproduction import natural


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_lists(tmp_path, capsys):
    files = {
        "trec/train_5500.label": "DESC:manner How did it end ?\nNUM:date When , \xe9 ?\n".encode("latin1"),
        "goemotions/emotions.txt": b"joy\nanger\n",
        "goemotions/train.tsv": b"so good\t0\tid1\nboth\t0,1\tid2\n",
        "goemotions/dev.tsv": b"bad, bad\t1\tid3\n",
        "goemotions/test.tsv": b"fine\t0\tid4\n",
        "gtsrb/7/00001_00000.ppm": b"",
        "gtsrb/12/00001_00002.ppm": b"",
        "ham10000/HAM10000_metadata.csv": b"lesion_id,image_id,dx\nH1,I1,nv\nH1,I2,nv\nH2,I3,mel\n",
        "ham10000/part/I1.jpg": b"",
        "ham10000/part/I3.jpg": b"",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    natural.write_lists(tmp_path)
    assert "trec.csv: 2 rows" in capsys.readouterr().out
    assert rows(tmp_path / "trec.csv")[1] == {"text": "When , é ?", "label": "NUM:date"}
    emotions = [tuple(row.values()) for row in rows(tmp_path / "goemotions.csv")]
    assert emotions == [("so good", "joy", "train"), ("bad, bad", "anger", "val"), ("fine", "joy", "test")]
    signs = rows(tmp_path / "gtsrb.csv")
    assert [row["track"] for row in signs] == ["12-00001", "7-00001"]  # tracks of different classes share numbers
    assert all((tmp_path / row["path"]).is_file() for row in signs)
    lesions = [tuple(row.values()) for row in rows(tmp_path / "ham10000.csv")]
    assert lesions == [("ham10000/part/I1.jpg", "nv", "H1"), ("ham10000/part/I3.jpg", "mel", "H2")]


def made(method, seed, decay, val, test, **result):
    """A run with these recalls."""
    recipe = Recipe.from_settings({"data": "a.npz", "method": method, "seed": seed, "weight_decay": decay})
    splits = {"val": {"recall": {"all": val}}, "test": {"recall": {"all": test}}}
    return Run(Path(f"{decay}/{method}-seed{seed}"), recipe, {"splits": splits, **result})


def test_weight_decay_is_chosen_for_each_method_and_seed_on_its_validation_data():
    runs = [
        made("softmax", 0, 1.0, val=0.5, test=0.1),
        made("softmax", 0, 0.1, val=0.4, test=0.9),  # better on test data only
        made("softmax", 1, 0.1, val=0.7, test=0.1),
        made("softmax", 1, 1.0, val=0.7, test=0.9),  # equal
        made("cbs", 0, 1.0, val=0.2, test=0.2),
        made("cbs", 0, 0.1, val=0.3, test=0.1),
    ]
    found = {(run.method, run.recipe.seed): natural.strength(run) for run in natural.chosen(runs)}
    assert found == {("softmax", 0): 1.0, ("softmax", 1): 0.1, ("cbs", 0): 0.1}
    assert natural.strength(made("softmax", 0, 1.0, val=0.5, test=0.5, C=0.01)) == 0.01
    with pytest.raises(ValueError, match="softmax"):  # a weight decay of one seed is missing
        natural.chosen(runs[:3])


def test_the_table_of_weight_decays_has_a_column_for_each():
    runs = [
        made("softmax", 0, 0.1, val=0.4, test=0.5),
        made("softmax", 0, 1.0, val=0.6, test=0.3),
        made("softmax", 1, 0.1, val=0.6, test=0.7),
        made("softmax", 1, 1.0, val=0.5, test=0.5),
        made("cbs", 0, 1.0, val=0.2, test=0.1, C=0.01),
    ]
    cells = [SimpleNamespace(method="softmax", title="Softmax"), SimpleNamespace(method="cbs", title="LR")]
    head, _, *rows = natural._choices(runs, cells).splitlines()
    assert head == "| Method | Chosen (runs) | 0.01 | 0.1 | 1 |"
    assert rows == [
        "| Softmax | 0.1 (1), 1 (1) |  | 50.0 / 60.0 | 55.0 / 40.0 |",
        "| LR | 0.01 (1) | 20.0 / 10.0 |  |  |",
    ]

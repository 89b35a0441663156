"""Lists of natural data from files as they are published."""

import csv

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

"""Data sets that are long-tailed by nature: small copies of the files of their authors."""

import json

import pytest
import torch
from PIL import Image

from longtail.data import CATALOG, DataSet, Split, Texts, check_dataset, describe_dataset, hold_out, hold_out_fold, load
from longtail.train import Trainer, defaults
from longtail.train.launch import describe_fit
from longtail.train.own import in_memory

TEXTS = {  # what each split has: texts and labels
    "trec": {
        "train": [("How did it end ?", "DESC:manner"), ("When , é ?", "NUM:date"), ("Why ?", "DESC:reason")],
        "test": [("When ?", "NUM:date")],
    },
    "goemotions": {
        "train": [(" so “good” ", "joy"), ("bad", "anger"), ("fine", "joy")],
        "val": [("bad, bad", "anger")],
        "test": [("fine", "joy")],
    },
    "banking77": {
        "train": [("My card?", "card_arrival"), ("Hi,\nwhere is it?", "card_arrival"), ("A fee", "fee")],
        "test": [("A “fee”, why?", "fee")],
    },
    "clinc150-imbalanced": {
        "train": [("turn it up", "volume"), ("hey", "greeting")],
        "val": [("turn it up", "greeting")],
        "test": [("hello", "greeting")],
    },
}
FILES = {
    "trec/train_5500.label": "DESC:manner How did it end ?\nNUM:date When , é ?\nDESC:reason Why ?\n".encode("latin1"),
    "trec/TREC_10.label": b"NUM:date When ?\n",
    "goemotions/emotions.txt": b"joy\nanger\n",
    "goemotions/train.tsv": " so “good” \t0\tid1\nboth\t0,1\tid2\nbad\t1\tid3\nfine\t0\tid4\n".encode(),
    "goemotions/dev.tsv": b"bad, bad\t1\tid5\n",
    "goemotions/test.tsv": b"fine\t0\tid6\n",
    "banking77/train.csv": b"text,category\r\nMy card?,card_arrival\r\n"
    b'"Hi,\nwhere is it?",card_arrival\r\nA fee,fee\r\n',
    "banking77/test.csv": 'text,category\r\n"A “fee”, why?",fee\r\n'.encode(),
    "clinc150/data_imbalanced.json": json.dumps(
        {**TEXTS["clinc150-imbalanced"], "oos_train": [["what is x", "oos"]], "oos_val": [], "oos_test": []}
    ).encode(),
}


@pytest.fixture
def texts(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", TEXTS)
def test_texts(texts, name):
    data = load(name, texts)
    found = {
        part: [(split.images[i], data.class_names[c]) for i, c in enumerate(split.labels)]
        for part, split in data.splits.items()
    }
    assert found == TEXTS[name]
    assert len(data.train.images) == len(TEXTS[name]["train"])
    expected = ("joy", "anger") if name == "goemotions" else tuple(sorted({label for _, label in TEXTS[name]["train"]}))
    assert data.class_names == expected
    differences = {difference.what: difference.found for difference in check_dataset(name, texts)}
    assert differences["train texts"] == len(TEXTS[name]["train"])
    assert CATALOG[name].texts


@pytest.mark.parametrize(
    ("name", "file", "added", "place"),
    [
        ("trec", "trec/TREC_10.label", b"ENTY:other What ?\n", "line 2 of"),  # an unknown class
        ("trec", "trec/train_5500.label", b"What ?\n", "line 4 of"),
        ("goemotions", "goemotions/dev.tsv", b"no label\n", "line 2 of"),
        ("goemotions", "goemotions/test.tsv", b"fine\t2\tid7\n", "line 2 of"),
        ("banking77", "banking77/train.csv", b"no label\r\n", "row 4 of"),
        ("banking77", "banking77/test.csv", b" ,fee\r\n", "row 2 of"),
    ],
)
def test_malformed_texts(texts, name, file, added, place):
    (texts / file).write_bytes(FILES[file] + added)
    with pytest.raises(
        ValueError, match=rf"^Expected (a text and one of . classes|2 values) in {place} .*{file}, .*but got .*\.$"
    ):
        load(name, texts)


def test_malformed_json_and_no_texts(texts):
    path = texts / "clinc150/data_imbalanced.json"
    for content in ({"train": [["a", "b"]], "val": []}, {"train": [["a"]], "val": [], "test": []}):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"^Expected .*data_imbalanced\.json.*\.$|data_imbalanced\.json: Expected"):
            load("clinc150-imbalanced", texts)
    (texts / "trec/train_5500.label").write_bytes(b"")
    with pytest.raises(ValueError, match="trec to have training texts"):
        load("trec", texts)


def test_describe_finds_equal_texts():
    def split(texts, labels):
        return Split(Texts(tuple(texts)), torch.tensor(labels))

    data = DataSet("mine", ("x", "y"), split(["a", "b", "b", "c" * 99], [0, 1, 1, 0]), split(["a", "A"], [1, 1]))
    found = describe_dataset(data)
    assert found.title == "mine: 4 train, 2 test texts, 2 classes"
    assert found.across == ("train: 'a' = test: 'a'",)
    assert found.within == ("train: 'b' 2 times",)
    assert found.conflicting == ("train: 'a' = test: 'a' (x 1, y 1)",)
    assert describe_dataset(data, read_images=False).across == ()
    assert len({part.images.identity() for part in data.splits.values()}) == 2


def test_texts_are_not_trained_on(texts, tmp_path):
    for method in ("softmax", None):
        with pytest.raises(ValueError, match=r"trec has texts; `.*embed trec --model FOLDER --out trec\.npz` makes"):
            defaults("trec", method)
    mine = DataSet("mine", ("x", "y", "z"), load("trec", texts).train)
    with pytest.raises(ValueError, match=r"mine has texts; `longtail\.embedding\.embed_texts`"):
        Trainer(defaults("digits", "softmax"), tmp_path / "run", dataset=mine)
    with pytest.raises(ValueError, match="mine has texts"):
        in_memory(mine)


# --- images


def picture(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), colour).save(path)


@pytest.fixture
def signs(tmp_path):
    """Write two tracks of class 0, three of class 42 and one of class 7, of three pictures each."""
    folder = tmp_path / "gtsrb" / "GTSRB"
    for c, tracks in {0: 2, 7: 1, 42: 3}.items():
        for track in range(tracks):
            for frame in range(3):
                picture(folder / f"Final_Training/Images/{c:05}/{track:05}_{frame:05}.ppm", (c, track, frame))
        (folder / f"Final_Training/Images/{c:05}/GT-{c:05}.csv").write_text("Filename;Width\n")
    rows = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for place, c in enumerate((42, 0)):
        picture(folder / f"Final_Test/Images/{place:05}.ppm", (c, 99, 99))
        rows.append(f"{place:05}.ppm;8;6;1;1;6;4;{c}")
    (tmp_path / "gtsrb" / "GT-final_test.csv").write_bytes("\r\n".join([*rows, ""]).encode())
    return tmp_path


def test_gtsrb(signs):
    data = load("gtsrb", signs)
    assert (data.num_classes, data.class_names[14], len(set(data.class_names))) == (43, "Stop", 43)
    assert {c: n for c, n in enumerate(data.counts.tolist()) if n} == {0: 6, 7: 3, 42: 9}
    assert data.test.labels.tolist() == [42, 0]
    assert data.test.images[0][:, 0, 0].tolist() == [42, 99, 99]
    names = [data.group_names[g] for g in data.train.groups]
    assert names[:4] == ["00000/00000"] * 3 + ["00000/00001"]
    assert [data.train.images[i][:2, 0, 0].tolist() for i in (3, 6)] == [[0, 1], [7, 0]]
    for held in (hold_out(data, 0.4), hold_out(data, 0.4, part="test"), hold_out_fold(data, 0, 2)):
        moved = held.val or held.test
        assert len(moved) % 3 == 0 < len(moved)
        assert not set(held.train.groups.tolist()) & set(moved.groups.tolist())
    found = {difference.what: difference.found for difference in check_dataset("gtsrb", signs)}
    assert found["train images"] == 18
    assert "missing" not in str(found)
    (signs / "gtsrb/GTSRB/Final_Test/Images/00001.ppm").unlink()
    assert any("00001.ppm" in difference.what for difference in check_dataset("gtsrb", signs))


@pytest.mark.parametrize("row", ["00002.ppm;8;6;1;1;6;4;43", "00002.ppm;8", "../2.ppm;8;6;1;1;6;4;1"])
def test_malformed_answers_of_gtsrb(signs, row):
    path = signs / "gtsrb" / "GT-final_test.csv"
    path.write_text(path.read_text() + row)
    with pytest.raises(ValueError, match=r"(a file and a class|8 values) in row 3 of .*GT-final_test\.csv"):
        load("gtsrb", signs)


LESIONS = [("H1", "I1", "nv"), ("H1", "I2", "nv"), ("H2", "I3", "nv"), ("H3", "I4", "mel"), ("H4", "I5", "mel")]


@pytest.fixture(params=["HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab"])
def lesions(tmp_path, request):
    separator = "\t" if request.param.endswith(".tab") else ","
    for _, image, _ in LESIONS:
        picture(tmp_path / f"ham10000/HAM10000_images_part_{1 + (image > 'I2')}/{image}.jpg", (0, 0, 0))
    rows = [("lesion_id", "image_id", "dx"), *LESIONS]
    (tmp_path / "ham10000" / request.param).write_text("\n".join(map(separator.join, rows)))
    return tmp_path / "ham10000" / request.param


def test_ham10000(lesions):
    root = lesions.parents[1]
    data = load("ham10000", root)
    assert data.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert data.train.labels.tolist() == [5, 5, 5, 4, 4]
    assert data.train.images.names[1:3] == ["HAM10000_images_part_1/I2.jpg", "HAM10000_images_part_2/I3.jpg"]
    assert [data.group_names[g] for g in data.train.groups] == ["H1", "H1", "H2", "H3", "H4"]
    assert data.test is None
    held = hold_out(data, 0.5, part="test")
    assert not set(held.train.groups.tolist()) & set(held.test.groups.tolist())
    before = lesions.read_text()
    for row, found in (("H9,I9,nv", "no I9.jpg"), ("H9,I5,naevus", "'naevus'"), (",I5,nv", "''")):
        lesions.write_text(f"{before}\n{row.replace(',', chr(9)) if lesions.suffix == '.tab' else row}")
        with pytest.raises(ValueError, match=rf"row 6 of {lesions}, but .*{found}"):
            load("ham10000", root)
    lesions.unlink()
    with pytest.raises(FileNotFoundError, match="HAM10000_metadata"):
        load("ham10000", root)


def test_default_settings_fit_the_images():
    """They need no file, and are those of a folder of as many images of this size."""
    signs, lesions = (defaults(name, "softmax") for name in ("gtsrb", "ham10000"))
    assert (signs.model, signs.augment, signs.image_size, signs.validation) == ("resnet32", "cifar", 48, 0.1)
    assert (lesions.model, lesions.augment, lesions.image_size) == ("resnet18", "imagenet", 128)
    small = defaults("ham10000", "softmax", given={"test": 0.5, "pretrained": True})
    assert (small.image_size, small.lr) != (lesions.image_size, lesions.lr)
    assert "9,013 training images of about 600 x 450 pixels" in describe_fit(lesions)
    assert describe_fit(defaults("digits", "softmax")) == ""

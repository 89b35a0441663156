"""`longtail embed`: features of images and texts equal those of the network applied one by one."""

import json
import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from tests.cli.conftest import one_sentence

from longtail.data import open_path
from longtail.train import RunFolder
from longtail.train.dataset import open_data

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "rare", "word"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pictures(tmp_path):
    """Write images of two classes and different sizes, with splits."""
    generator = np.random.default_rng(0)
    for number in range(12):
        part, name = "test" if number > 8 else "train", "cat" if number % 3 else "dog"
        path = tmp_path / "pictures" / part / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (70 + number, 64, 3), dtype=np.uint8)).save(path)
    return tmp_path / "pictures"


def test_features_of_images(run, pictures, tmp_path):
    """The network of torchvision with its classifier removed, and torchvision's preprocessing, image by image."""
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=5)
    network.bn1.running_var.uniform_(0.5, 2)  # otherwise training mode would give nearly the same
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    words = ("--model", "resnet18", "--weights", "weights.safetensors", "--image-size", "64", "--device", "cpu")
    code, out, err = run("embed", pictures, *words, "--out", "features.npz", "--batch-size", "5")
    assert code == 0, err
    assert "12 vectors of 512 numbers, 2 classes" in out
    network.fc = torch.nn.Identity()
    network.eval()
    found, original = open_path("features.npz"), open_path(pictures)
    assert found.class_names == original.class_names == ("cat", "dog")
    transforms = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(round(64 * 256 / 224)),
            torchvision.transforms.CenterCrop(64),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    for part, split in original.splits.items():
        assert found.splits[part].labels.tolist() == split.labels.tolist()
        for place, vector in enumerate(found.splits[part].images.pixels):
            with Image.open(split.images.path(place)) as image, torch.no_grad():
                expected = network(transforms(image)[None])[0]
            assert torch.nn.functional.cosine_similarity(vector, expected, dim=0) > 0.999  # resized by other code
    code, _, err = run(
        "train", "features.npz", "--method", "softmax", "--epochs", "2", "--device", "cpu", "--out", "run"
    )
    assert code == 0, err


@pytest.fixture
def encoder(tmp_path):
    """Write a small random BERT with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained("bert")
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained("bert")
    return tmp_path / "bert"


def test_features_of_texts(run, encoder):
    """The mean over the tokens of each text alone, without padding."""
    import transformers

    texts = ["a b", "rare word c d a", "d", "c c c c c c c c", "b, a"]
    rows = [
        'text,label,split\n"' + '\n"'.join(f'{t}",{"xy"[n % 2]},{"test" if n > 3 else ""}' for n, t in enumerate(texts))
    ]
    with open("table.csv", "w") as file:  # noqa: PTH123
        file.write("\n".join(rows) + "\n")
    words = ("--text", "Text", "--model", encoder, "--out", "features.npz", "--batch-size", "2", "--device", "cpu")
    code, out, err = run("embed", "table.csv", *words)
    assert code == 0, err
    assert "5 vectors of 16 numbers, 2 classes" in out
    model = transformers.AutoModel.from_pretrained(encoder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    found = np.load("features.npz")
    for vector, text in zip(found["features"], texts, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)
    dataset = open_path("features.npz")
    assert (len(dataset.train), len(dataset.test), dataset.class_names) == (4, 1, ("x", "y"))


def test_long_texts_are_named(run, encoder, tmp_path):
    """Two texts that differ after 256 tokens have the same vector, and a sentence says so."""
    texts = ["a " * 300, "a " * 300 + "b", "a b"]
    (tmp_path / "a.csv").write_text("\n".join(["text", *texts]))
    words = ("--text", "text", "--model", encoder, "--device", "cpu", "--out", "a.npz")
    code, _, err = run("embed", "a.csv", *words)
    assert code == 0
    assert "2 of 3 texts have 256 tokens or more; only the first 256 are read." in err
    first, second, _ = np.load("a.npz")["features"]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pictures", "--model", "resnet18"], "--weights"),
        (["pictures", "--model", "linear", "--weights", "nowhere"], "`model` to be a network"),
        (["pictures", "--model", "resnet18", "--weights", "other.safetensors"], "other.safetensors"),
        (["table.csv", "--text", "text", "--model", "nowhere"], "there is no such folder"),
        (["table.csv", "--text", "text", "--model", "pictures"], "config.json"),
        (["table.csv", "--text", "body", "--model", "nowhere"], "body"),
        (["empty.csv", "--text", "text", "--model", "nowhere"], "row 2"),
        (["table.csv", "--text", "text", "--split-by", "Who", "--model", "nowhere"], "columns text and Who"),
        (["nolabel.csv", "--text", "text", "--split-by", "label", "--model", "nowhere"], "columns text and label"),
        (["pictures", "--text", "text", "--model", "nowhere"], "to be a table"),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_wrong_arguments(run, tmp_path, words, message):
    (tmp_path / "table.csv").write_text("text,label\na,x\n")
    (tmp_path / "empty.csv").write_text("text,label\na,x\n,y\n")
    (tmp_path / "nolabel.csv").write_text("text\na\n")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    code, _, err = run("embed", *words, "--out", "features.npz", "--device", "cpu")
    assert code == 2
    assert message in one_sentence(err) or message.replace("`model`", "--model") in err
    assert not (tmp_path / "features.npz").exists()


def test_names_survive(run, encoder, tmp_path):
    """Labels may be any text."""
    rows = [{"text": "a", "label": "ü, “x”"}, {"text": "b", "label": "=1+2"}, {"text": "c", "label": "=1+2"}]
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    code, _, err = run(
        "embed", "table.parquet", "--text", "text", "--model", encoder, "--out", "f.npz", "--device", "cpu"
    )
    assert code == 0, err
    assert open_path("f.npz").class_names == tuple(sorted({row["label"] for row in rows}))
    assert json.dumps(open_path("f.npz").train.labels.tolist()) == "[1, 0, 0]"


def test_texts_with_other_columns_and_without_labels(run, encoder, tmp_path):
    (tmp_path / "a.csv").write_text("message,kind,author,split\na b,x,u1,train\nc,y,u2,validation\nd,x,u1,dev\n")
    words = ("--model", encoder, "--device", "cpu")
    flags = ("--label-column", "kind", "--split-by", "author")
    code, _, err = run("embed", "a.csv", "--text", "message", *flags, *words, "--out", "a.npz")
    assert code == 0, err
    dataset = open_path("a.npz", split_by="group")
    assert dataset.class_names == ("x", "y")
    assert (len(dataset.train), len(dataset.val)) == (1, 2)
    assert [dataset.group_names[g] for g in dataset.val.groups] == ["u2", "u1"]
    (tmp_path / "b.csv").write_text("message\na b\nc\n")
    code, out, err = run("embed", "b.csv", "--text", "message", *words, "--out", "b.npz")
    assert code == 0
    assert "without labels" in out
    assert 'b.csv has no column "label"' in err
    with pytest.raises(ValueError, match=r"\"labels\".* only for `longtail predict`"):
        open_path("b.npz")


def test_a_folder_with_a_table_per_split(run, encoder, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "train.csv").write_text("text,label\na b,x\nc,y\nd,y\n")
    (tmp_path / "texts" / "test.tsv").write_text("text\tlabel\nb\tx\n")
    words = ("--text", "text", "--model", encoder, "--out", "a.npz", "--device", "cpu")
    code, _, err = run("embed", "texts", *words)
    assert code == 0, err
    dataset = open_path("a.npz")
    assert (len(dataset.train), len(dataset.test), dataset.counts.tolist()) == (3, 1, [1, 2])
    code, out, err = run("data", "describe", "texts", "--text", "text")
    assert code == 0, err
    assert out.startswith("texts: 3 train, 1 test texts, 2 classes")
    (tmp_path / "texts" / "test.tsv").write_text("text\nb\n")
    code, _, err = run("embed", "texts", *words)
    assert code == 2
    assert 'all tables in texts to have a column "label"' in err


def test_groups_are_kept_together_by_default(run, encoder, tmp_path):
    """As `--split-by group` does; `--split-by none` splits the rows freely."""
    rows = [f"a b,{'xy'[n % 2]},u{n // 2 % 10}" for n in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,author", *rows]))
    words = ("--text", "text", "--model", encoder, "--device", "cpu")
    code, out, _ = run("embed", "a.csv", *words, "--split-by", "author", "--out", "a.npz")
    assert code == 0
    assert "10 groups of author" in out
    shutil.copy("a.npz", "b.npz")
    for file, flags, split_by in (("a.npz", (), "group"), ("b.npz", ("--split-by", "none"), None)):
        settings = ("--method", "softmax", "--epochs", 1, "--weight-decay", 1, "--test", 0.2, "--device", "cpu")
        code, _, err = run("train", file, *settings, *flags, "--out", file[0])
        assert code == 0, err
        recipe = RunFolder(file[0]).recipe()
        assert recipe.split_by == split_by
        dataset = open_data(recipe)
        if split_by is not None:
            train, test = (set(split.groups.tolist()) for split in (dataset.train, dataset.test))
            assert not train & test
        else:
            assert dataset.train.groups is None


def test_data_sets_by_name(run, encoder, tmp_path):
    """Texts of the catalogue, and images of which only the training split has groups."""
    (tmp_path / "trec").mkdir()
    (tmp_path / "trec" / "train_5500.label").write_bytes(b"NUM:date a b\nDESC:def c\nDESC:def d a\n")
    (tmp_path / "trec" / "TREC_10.label").write_bytes(b"DESC:def b, a\n")
    words = ("trec", "--root", ".", "--device", "cpu", "--out", "trec.npz")
    code, out, err = run("embed", *words, "--model", encoder)
    assert code == 0, err
    assert "4 vectors of 16 numbers, 2 classes" in out
    (tmp_path / "table.csv").write_text('text,label\nd a,x\n"b, a",x\n')
    run("embed", "table.csv", "--text", "text", "--model", encoder, "--device", "cpu", "--out", "table.npz")
    found, expected = np.load("trec.npz"), np.load("table.npz")["features"]
    np.testing.assert_allclose(found["features"][2:], expected, rtol=1e-4, atol=1e-5)
    assert open_path("trec.npz").class_names == ("DESC:def", "NUM:date")
    assert found["split"].tolist() == ["train"] * 3 + ["test"]
    for more in (["--text", "text"], ["--pretrained"], ["--split-by", "author"]):
        code, _, err = run("embed", *words, "--model", encoder, *more)
        assert code == 2
        assert more[0] in one_sentence(err) or "no other weights" in err

    folder = tmp_path / "gtsrb" / "GTSRB"
    names = ["Final_Training/Images/00000/00001_00000.ppm", "Final_Training/Images/00000/00001_00001.ppm"]
    for name in (*names, "Final_Training/Images/00004/00001_00000.ppm", "Final_Test/Images/00000.ppm"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (len(name), 0, 0)).save(folder / name)
    (tmp_path / "gtsrb" / "GT-final_test.csv").write_text("Filename;ClassId\n00000.ppm;4\n")
    save_file(torchvision.models.resnet18(num_classes=5).state_dict(), tmp_path / "weights.safetensors")
    words = ("--model", "resnet18", "--weights", "weights.safetensors", "--image-size", "32", "--device", "cpu")
    code, _, err = run("embed", "gtsrb", "--root", ".", *words, "--out", "gtsrb.npz")
    assert code == 0, err
    signs = open_path("gtsrb.npz", split_by="group")
    assert [signs.group_names[g] for g in signs.train.groups] == ["00000/00001", "00000/00001", "00004/00001"]
    assert [signs.group_names[g] for g in signs.test.groups] == ["test 0"]

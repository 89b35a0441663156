"""``longtail data describe``: classes, counts and problems of your own data."""

import pytest
from PIL import Image
from tests.cli.conftest import one_sentence, picture


@pytest.fixture
def birds(tmp_path):
    root = tmp_path / "birds"
    for seed in range(30):
        picture(root / "train" / "sparrow" / f"{seed}.png", seed)
    picture(root / "train" / "鷲 [rare]" / "30.png", 30)
    picture(root / "test" / "sparrow" / "31.png", 31)
    return root


def test_describe_folder_without_problems(run, birds):
    code, out, _ = run("data", "describe", birds)
    assert code == 0
    assert "birds: 31 train, 1 test images, 2 classes" in out
    assert "imbalance factor 30" in out
    assert "1 head, 0 medium, 1 tail classes (thirds of the classes" in out
    rows = [line.split() for line in out.splitlines() if "█" in line]
    assert [row[:-1] for row in rows] == [["sparrow", "30"], ["鷲", "[rare]", "1"]]
    assert len(rows[0][-1]) == 40 > len(rows[1][-1]) >= 1  # every bar is visible
    assert not out.startswith("\n")  # the progress bar is removed
    for fault in ("cannot be read", "more than", "without", "different"):
        assert fault not in out


def test_names_of_similar_classes_stay_different(run, birds):
    for number, name in enumerate(["Tomato leaf bacterial blight", "Tomato leaf bacterial spot"]):
        picture(birds / "train" / name / "one.png", 100 + number)
    _, out, _ = run("data", "describe", birds)
    assert "  Tomato leaf bacterial blight       1 " in out
    assert "  Tomato leaf bacterial spot         1 " in out


def test_describe_finds_every_problem(run, birds):
    (birds / "train" / "empty").mkdir()
    picture(birds / "test" / "sparrow" / "copy.png", 3)
    picture(birds / "train" / "sparrow" / "twice.png", 4)
    for number in range(7):
        (birds / "train" / "sparrow" / f"bad {number}.jpg").write_bytes(b"no image")
    code, out, _ = run("data", "describe", birds)
    assert code == 1
    lines = out.splitlines()
    assert "classes without a training image (1):" in lines
    assert "  empty" in lines
    folder = lines.index("folders without an image (1):")
    assert lines[folder + 1] == f"  {birds / 'train' / 'empty'}"
    assert "  train: sparrow/3.png = test: sparrow/copy.png" in lines
    assert "  train: sparrow/4.png = train: sparrow/twice.png" in lines
    assert "files that cannot be read (7):" in lines
    assert sum(line.startswith("  Expected ") for line in lines) == 5
    assert "  … and 2 more; `--all` lists them" in lines
    assert str(birds / "train" / "sparrow" / "bad 0.jpg") in out  # not wrapped
    for number in range(40):
        picture(birds / "train" / f"bird {number}" / "one.png", 200 + number)
    shown = {flags: run("data", "describe", birds, *flags)[1].splitlines() for flags in ((), ("--all",))}
    few, every = ([line for line in lines if line.startswith("  bird ") and "█" in line] for lines in shown.values())
    assert len(few) < len(every) == 40
    assert sum(line.startswith("  Expected ") for line in shown[("--all",)]) == 7


def test_describe_without_reading_images(run, birds):
    (birds / "train" / "sparrow" / "bad.jpg").write_bytes(b"no image")
    code, out, _ = run("data", "describe", birds, "--no-read-images")
    assert code == 0
    assert "32 train" in out
    assert "unreadable" not in out


def test_control_characters_are_printed_as_escapes(run, tmp_path):
    """A name must not clear the screen or change the title of the terminal."""
    root = tmp_path / "birds"
    picture(root / "sparrow\x1b[2J" / "1\x1b]0;x\x07.png", 0)
    (root / "eagle" / "\x1b[31m.png").parent.mkdir()
    (root / "eagle" / "\x9b31m.png").write_bytes(b"no image")
    code, out, _ = run("data", "describe", root)
    assert code == 1
    assert "sparrow\\x1b[2J" in out
    assert "\\x9b31m.png" in out
    code, _, err = run("data", "describe", root / "none\x1b[2J")
    assert "none\\x1b[2J" in one_sentence(err)
    assert not {"\x1b", "\x9b", "\x07"} & set(out + err)


def test_describe_many_classes_shows_both_ends(run, tmp_path):
    for c in range(100):
        for number in range(100 - c):
            path = tmp_path / f"class {c:02d}" / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    code, out, _ = run("data", "describe", tmp_path, "--no-read-images")
    assert code == 0
    assert "100 classes" in out
    assert "class 00" in out
    assert "class 99" in out
    assert "class 50" not in out
    assert len(out.splitlines()) < 40


@pytest.mark.parametrize("name", ["[/]", "[red]"])
def test_describe_prints_no_markup(run, tmp_path, name):
    folder = tmp_path / "list"
    folder.mkdir()
    picture(folder / "a.png", 0)
    path = folder / f"{name.replace('/', '')}.csv"
    path.write_text(f"path,label\na.png,{name}\nb.png,{name}\n")
    code, out, _ = run("data", "describe", path)
    assert code == 1  # b.png does not exist
    assert f"{path.stem}: 2 train images, 1 class" in out
    assert any(line.split("█")[0].rsplit(maxsplit=1)[0].strip() == name for line in out.splitlines() if "█" in line)
    assert str(folder / "b.png") in out


def test_describe_list_of_images(run, tmp_path):
    for seed in range(3):
        picture(tmp_path / f"{seed}.png", seed)
    (tmp_path / "mine.csv").write_text("path,label,split\r\n0.png,cat,train\r\n1.png,dog,train\r\n2.png,cat,test\r\n")
    code, out, _ = run("data", "describe", tmp_path / "mine.csv")
    assert code == 0
    assert "mine: 2 train, 1 test images, 2 classes" in out


def test_a_table_of_texts(run, tmp_path):
    """It needs labels; names of columns are not printed as flags; an error about numbers names --text."""
    (tmp_path / "a.csv").write_text("text,emotion,dialogue\nwhy?,joy,1\nno,,2\n")
    code, _, err = run("data", "describe", tmp_path / "a.csv", "--text", "text")
    assert code == 2
    assert "columns text and label, but got text, emotion, dialogue; --label-column names another" in one_sentence(err)
    code, _, err = run("data", "describe", tmp_path / "a.csv", "--text", "body", "--label-column", "emotion")
    assert code == 2
    assert "columns body and emotion, but got text, emotion, dialogue; the first line" in one_sentence(err)
    code, _, err = run("data", "describe", tmp_path / "a.csv", "--label-column", "dialogue")
    assert code == 2
    assert "texts need `--text COLUMN` of `longtail data describe`" in one_sentence(err)
    code, _, err = run("data", "describe", tmp_path / "a.csv", "--label-column", "Emotion", "--text", "text")
    assert code == 2
    assert 'Expected a value in column "Emotion" of' in one_sentence(err)
    (tmp_path / "b.csv").write_text("text,label,dialogue\nwhy?,joy,1\n,joy,2\n")
    code, _, err = run("data", "describe", tmp_path / "b.csv")
    assert code == 2
    assert "\"text\" has 'why?' in row 1; " in one_sentence(err)
    assert "texts need `--text COLUMN` of `longtail data describe`" in err
    code, _, err = run("data", "describe", tmp_path / "b.csv", "--text", "text")
    assert code == 2
    assert 'Expected a value in column "text" of' in one_sentence(err)


def test_describe_image_with_two_labels(run, tmp_path):
    picture(tmp_path / "a.png", 0)
    (tmp_path / "mine.csv").write_text("path,label\na.png,cat\na.png,[dog]\n")
    code, out, _ = run("data", "describe", tmp_path / "mine.csv")
    assert code == 0
    lines = out.splitlines()
    assert lines[lines.index("images with different labels (1):") + 1] == "  a.png 2 times (cat 1, [dog] 1)"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nowhere", None),
        ("list.csv", b"file,class\na.png,x\n"),
        ("list.txt", b"\xff\xfea\x00\n"),
        ("list.xlsx", b"PK"),
        ("list.parquet", b"PAR1 but not really"),
    ],
)
def test_paths_that_cannot_be_described(run, tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = run("data", "describe", tmp_path / name)
    assert (code, out) == (2, "")
    assert str(tmp_path / name) in one_sentence(err)


def test_describe_finds_groups_in_two_splits_ignored_files_and_turned_images(run, tmp_path):
    for seed in range(5):
        picture(tmp_path / f"{seed}.png", seed)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "5.jpg", exif=exif)
    rows = ["0.png,cat,train,ann", "1.png,cat,train,[bob]", "2.png,cat,test,ann", "3.png,dog,train,eve"]
    rows += ["4.png,dog,train,eve", "5.jpg,cat,train,bob"]
    (tmp_path / "mine.csv").write_text("\n".join(["file,label,split,patient", *rows]))
    flags = ("--path-column", "file", "--split-by", "patient")
    code, out, _ = run("data", "describe", tmp_path / "mine.csv", *flags)
    assert code == 1
    lines = out.splitlines()
    assert lines[lines.index("groups in more than one split (1):") + 1] == "  ann is in train and test"
    assert lines[lines.index("classes in one group, of which nothing can be held out (1):") + 1] == "  dog"
    assert "4 groups, which are never split" in lines
    assert "1 image turned or mirrored by EXIF orientation" in lines
    code, _, err = run("data", "describe", tmp_path / "mine.csv", "--path-column", "nothing")
    assert code == 2
    assert "the columns nothing and label, but got file, label, split, patient" in one_sentence(err)
    code, _, err = run("data", "describe", tmp_path / "mine.csv", *flags, "--image-root", tmp_path / "none")
    assert one_sentence(err).startswith("Expected --image-root to be a folder")


def test_describe_says_what_was_ignored_and_how_nested_folders_were_read(run, birds):
    picture(birds / "train" / "finch" / "gold" / "1.png", 40)
    picture(birds / "train" / "finch" / "green" / "1.png", 41)
    (birds / "train" / "sparrow" / "clip.mov").touch()
    code, out, _ = run("data", "describe", birds)
    assert code == 0
    assert f"Ignored 1 file in {birds}: 1 .mov." in out
    assert "Made 4 classes from folders at different levels, named by their path, such as finch/gold; " in out


def test_data_sets_by_name(run, tmp_path):
    """Texts; a name takes no options of one's own data."""
    (tmp_path / "trec").mkdir()
    (tmp_path / "trec" / "train_5500.label").write_bytes(b"NUM:date When ?\nNUM:date When ?\nDESC:def What ?\n")
    (tmp_path / "trec" / "TREC_10.label").write_bytes(b"DESC:def When ?\n")
    code, out, _ = run("data", "describe", "trec", "--root", tmp_path)
    assert code == 1
    assert "trec: 3 train, 1 test texts, 2 classes" in out
    assert "texts with different labels (1):" in out
    code, out, _ = run("data", "check", "trec", "--root", tmp_path)
    assert code == 1
    assert "train texts: expected 5452, found 3" in out
    assert "smallest training class: expected 4, found 1" in out
    code, _, err = run("data", "describe", "trec", "--root", tmp_path, "--label-column", "kind")
    assert code == 2
    assert "Expected no --label-column for trec" in one_sentence(err)
    code, _, err = run("data", "describe", "goemotions", "--root", tmp_path)
    assert code == 2
    assert "emotions.txt (CC BY 4.0)" in one_sentence(err)
    code, out, _ = run("data", "describe", "digits-lt")
    assert code == 0
    assert "digits-lt: 342 train, 500 test images" in out
    for words in (["train", "--data", "trec"], ["study", "--data", "trec", "--methods", "softmax", "--dry-run"]):
        code, _, err = run(*words, "--root", tmp_path)
        assert code == 2
        assert "embed trec --model FOLDER --out trec.npz` makes features" in one_sentence(err)

"""The data commands: what they print and exit with; a person's mistake is one sentence without a traceback."""

import json

import pytest
from tests.cli.conftest import one_sentence, picture

import longtail.cli.data
from longtail.data import CATALOG

# --- help and mistakes of usage


def test_help_of_the_data_commands(run):
    code, out, _ = run("data", "--help")
    assert code == 0
    for command in ("list", "get", "build-lvis-crops", "check", "describe"):
        assert command in out


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [
        ("list", ["--root"]),
        ("get", ["NAME", "--root"]),
        ("build-lvis-crops", ["--root", "--annotations", "--images", "--size", "--workers", "--bad-images"]),
        ("check", ["NAME", "--root", "--imbalance"]),
        ("describe", ["PATH", "--figure"]),
    ],
)
def test_help_of_each_command(run, command, mentioned):
    code, out, _ = run("data", command, "--help")
    assert code == 0
    for word in mentioned:
        assert word in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["data"],
        ["data", "nonsense"],
        ["data", "get"],
        ["data", "check"],
        ["data", "describe"],
        ["data", "list", "--nonsense"],
        ["data", "check", "digits-lt", "--imbalance", "many"],
    ],
)
def test_what_is_no_command_exits_with_2(run, arguments):
    code, _, err = run(*arguments)
    assert code == 2
    assert err.strip()


# --- list


def rows_of(out):
    return {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}


def test_list_shows_every_data_set(run, tmp_path):
    code, out, _ = run("data", "list", "--root", tmp_path)
    assert code == 0
    rows = rows_of(out)
    assert rows["name"] == ["name", "classes", "train", "val", "test", "imbalance", "here"]
    assert set(rows) == {"name", *CATALOG}
    assert rows["imagenet-lt"] == ["imagenet-lt", "1000", "115,846", "20,000", "50,000", "256", "no"]
    assert rows["places-lt"] == ["places-lt", "365", "62,500", "7,300", "36,500", "996", "no"]
    assert rows["inaturalist2018"] == ["inaturalist2018", "8142", "437,513", "-", "24,426", "500", "no"]
    assert rows["cifar10"] == ["cifar10", "10", "50,000", "-", "10,000", "1", "no"]
    assert rows["cifar10-lt"] == ["cifar10-lt", "10", "12,406", "-", "10,000", "100", "no"]
    assert rows["cifar100-lt"] == ["cifar100-lt", "100", "10,847", "-", "10,000", "100", "no"]
    assert rows["digits"][-1] == "yes"  # they come with scikit-learn


def test_list_knows_what_is_here(run, tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    _, out, _ = run("data", "list", "--root", tmp_path)
    rows = rows_of(out)
    assert (rows["cifar100"][-1], rows["cifar100-lt"][-1], rows["cifar10"][-1]) == ("yes", "yes", "no")


def test_list_in_a_narrow_terminal_keeps_the_names(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("data", "list")
    assert set(CATALOG) <= set(rows_of(out))


def test_list_is_cut_off_nowhere(run, monkeypatch):
    wide = run("data", "list")[1]
    monkeypatch.setenv("COLUMNS", "40")
    assert run("data", "list") == (0, wide, "")


# --- get


def test_get_what_is_there_already(run, tmp_path):
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    code, out, err = run("data", "get", "imagenet", "--root", tmp_path)
    assert code == 2  # what is there is looked at: nothing is in it
    assert f"imagenet is there already, in {tmp_path / 'imagenet'}." in out.splitlines()
    assert "class folders" in err
    code, out, _ = run("data", "get", "digits-lt", "--root", tmp_path)
    assert code == 0
    assert "scikit-learn" in out


def test_get_goes_on_with_what_is_there_in_part(run, tmp_path, monkeypatch):
    """A download that was cut off has left a folder behind; and what is whole is checked by its content."""
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    (tmp_path / "cifar-10-batches-py").mkdir()
    called = []
    for name in ("fashion-mnist", "cifar10"):

        def fetch(root, progress, name=name):
            called.append(name)
            raise ValueError("Expected the right pixels, but got others.")

        monkeypatch.setitem(longtail.cli.data.FETCHERS, name, fetch)
        code, _, err = run("data", "get", name, "--root", tmp_path)
        assert code == 2
        assert "the right pixels" in one_sentence(err)
    assert called == ["fashion-mnist", "cifar10"]
    _, out, _ = run("data", "list", "--root", tmp_path)
    assert rows_of(out)["fashion-mnist"][-1] == "no"


@pytest.mark.parametrize(
    "name", ["imagenet", "imagenet-lt", "places-lt", "inaturalist2018", "tiny-imagenet-lt", "lvis-crops"]
)
def test_get_says_how_where_it_cannot(run, tmp_path, name):
    code, out, _ = run("data", "get", name, "--root", tmp_path)
    assert code == 1
    assert CATALOG[name].steps in out  # whole, on one line: to be copied
    assert name in out


def test_get_an_unknown_name(run, tmp_path):
    for command in ("get", "check"):
        code, out, err = run("data", command, "cifar11", "--root", tmp_path)
        assert (code, out) == (2, "")
        assert one_sentence(err).endswith(
            "`longtail data list` shows, but got 'cifar11'; the closest match is cifar10."
        )


def test_get_says_where_it_is(run, tmp_path, monkeypatch):
    monkeypatch.setitem(longtail.cli.data.FETCHERS, "fashion-mnist", lambda root, progress: None)
    monkeypatch.setattr(longtail.cli.data, "check", lambda name, root: [])
    code, out, err = run("data", "get", "fashion-mnist-lt", "--root", tmp_path)
    assert (code, err) == (0, "")
    assert out == f"fashion-mnist is in {tmp_path / 'FashionMNIST'}.\nfashion-mnist is as it should be.\n"


def test_get_fetches_what_it_can_and_checks_it(run, tmp_path, monkeypatch):
    called = []

    def fetch(root, progress):
        called.append(root)
        progress("somewhere", 5, 10)
        progress("somewhere", 10, None)
        raise OSError("Expected the net to be there, but it is not.")

    monkeypatch.setitem(longtail.cli.data.FETCHERS, "cifar10", fetch)
    code, _, err = run("data", "get", "cifar10-lt", "--root", tmp_path)
    assert called == [tmp_path]
    assert code == 2
    assert "Expected the net to be there" in one_sentence(err)


# --- check


def test_check_without_differences(run):
    code, out, _ = run("data", "check", "digits-lt", "--imbalance", "20")
    assert code == 0
    assert "digits-lt is as it should be." in out


def write_places(root):
    (root / "places-lt").mkdir(parents=True)
    for part in ("train", "val", "test"):
        (root / "places-lt" / f"Places_LT_{part}.txt").write_text(f"{part}/a b.jpg 0\n{part}/鳥.jpg 364\n")


def test_check_with_differences(run, tmp_path):
    write_places(tmp_path)
    picture(tmp_path / "places365" / "train" / "a b.jpg", 0)
    code, out, _ = run("data", "check", "places-lt", "--root", tmp_path)
    assert code == 1
    lines = out.splitlines()
    assert "train images: expected 62500, found 2" in lines
    assert "smallest training class: expected 5, found 0" in lines
    assert "largest training class: expected 4980, found 1" in lines
    assert "head, medium and tail classes: expected (131, 163, 71), found (0, 0, 365)" in lines
    first = tmp_path / "places365" / "train" / "鳥.jpg"
    assert f"train files that are not there (the first: {first}): expected 0, found 1" in lines


@pytest.mark.parametrize("name", ["[red]", "[/]", "[data] of mine"])
def test_check_prints_names_as_they_are(run, tmp_path, name):
    write_places(tmp_path / name)
    code, out, _ = run("data", "check", "places-lt", "--root", tmp_path / name)
    assert code == 1
    assert str(tmp_path / name / "places365" / "train" / "a b.jpg") in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["cifar11"],
        ["cifar10"],
        ["imagenet-lt"],
        ["digits", "--imbalance", "10"],
        ["digits-lt", "--imbalance", "0.5"],
        ["digits-lt", "--imbalance", "0"],
        ["digits-lt", "--imbalance", "nan"],
    ],
)
def test_check_and_mistakes(run, tmp_path, arguments):
    code, out, err = run("data", "check", *arguments, "--root", tmp_path)
    assert code == 2
    assert out == ""
    assert "Expected" in one_sentence(err)


def test_check_of_damaged_files_is_no_crash(run, tmp_path):
    write_places(tmp_path)
    (tmp_path / "places-lt" / "Places_LT_val.txt").write_text("a.jpg -3\n")
    code, _, err = run("data", "check", "places-lt", "--root", tmp_path)
    assert code == 2
    assert "line 1 of" in one_sentence(err)
    (tmp_path / "places-lt" / "Places_LT_val.txt").write_bytes(b"\xff\xfe\x00")
    code, _, err = run("data", "check", "places-lt", "--root", tmp_path)
    assert code == 2
    assert "Places_LT_val.txt" in one_sentence(err)
    (tmp_path / "cifar-10-batches-py").mkdir()
    code, _, err = run("data", "check", "cifar10", "--root", tmp_path)
    assert code == 2
    assert "batches.meta" in one_sentence(err)
    (tmp_path / "tiny-imagenet-200" / "val").mkdir(parents=True)
    picture(tmp_path / "tiny-imagenet-200" / "train" / "n01" / "images" / "1.JPEG", 0)
    code, _, err = run("data", "check", "tiny-imagenet", "--root", tmp_path)
    assert code == 2
    assert "val_annotations.txt" in err
    (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    code, _, err = run("data", "check", "tiny-imagenet", "--root", tmp_path)
    assert code == 2
    assert "n99" in one_sentence(err)


# --- build-lvis-crops


@pytest.fixture
def lvis(tmp_path):
    """A data folder with LVIS's files and COCO's images: two sound boxes, an empty one, one on an image of its own."""
    (tmp_path / "lvis").mkdir()
    for number, part in enumerate(("train", "val")):
        for image in range(2):
            picture(tmp_path / "coco" / f"{part}2017" / f"{image}.png", 10 * number + image)
        content = {
            "images": [
                {"id": i, "width": 5, "height": 6, "coco_url": f"http://x/{part}2017/{i}.png"} for i in range(2)
            ],
            "categories": [{"id": 1, "name": "[apple]", "image_count": 2, "frequency": "r"}],
            "annotations": [
                {"id": n, "image_id": image, "category_id": 1, "bbox": box}
                for n, (image, box) in enumerate(
                    [(0, [0, 0, 3, 3]), (0, [1, 1, 4, 4]), (0, [1, 1, 0, 2]), (1, [0, 0, 2, 2])]
                )
            ],
        }
        (tmp_path / "lvis" / f"lvis_v1_{part}.json").write_text(json.dumps(content))
    return tmp_path


def test_building_lvis_crops(run, lvis):
    code, out, _ = run("data", "build-lvis-crops", "--root", lvis, "--size", "8", "--workers", "0")
    lines = out.splitlines()
    assert code == 1  # it is not the official LVIS: `check` says so
    assert "classes: expected 1203, found 1" in lines
    assert "train images: expected 1270141, found 4" in lines
    for part in ("train", "val"):
        folder = lvis / "lvis-crops" / part
        assert f"{part}: 3 crops of 4 boxes in {folder}" in lines
        assert f"  each is listed in {folder / 'dropped.jsonl'}" in lines
    assert lines.count("  1 dropped: empty") == 2
    assert run("data", "build-lvis-crops", "--root", lvis, "--size", "8", "--workers", "0")[1] == out  # again, at once


def test_building_lvis_crops_from_elsewhere(run, lvis, tmp_path):
    root = tmp_path / "other"
    places = ("--annotations", lvis / "lvis", "--images", lvis / "coco")
    code, out, _ = run("data", "build-lvis-crops", "--root", root, "--size", "8", "--workers", "0", *places)
    assert code == 1
    assert f"val: 3 crops of 4 boxes in {root / 'lvis-crops' / 'val'}" in out.splitlines()


def test_bad_images_of_lvis_stop_the_build_or_are_left_out(run, lvis):
    path = lvis / "coco" / "train2017" / "1.png"
    path.write_bytes(b"no image")
    options = ("--root", lvis, "--size", "8", "--workers", "0")
    code, out, err = run("data", "build-lvis-crops", *options)
    assert code == 2
    assert out.strip() == ""
    assert str(path) in one_sentence(err)
    code, out, _ = run("data", "build-lvis-crops", *options, "--bad-images", "skip")
    assert code == 1
    assert "  1 dropped: unreadable-image" in out.splitlines()
    assert "train boxes left out (unreadable-image): expected 0, found 1" in out.splitlines()
    assert run("data", "build-lvis-crops", *options, "--bad-images", "repair")[0] == 2


def test_building_lvis_crops_without_its_files(run, lvis):
    (lvis / "lvis" / "lvis_v1_val.json").unlink()
    code, _, err = run("data", "build-lvis-crops", "--root", lvis)
    assert code == 2
    assert str(lvis / "lvis" / "lvis_v1_val.json") in one_sentence(err)
    assert not (lvis / "lvis-crops").exists()  # found before hours are spent on the first half
    code, out, _ = run("data", "get", "lvis-crops", "--root", lvis)
    assert code == 1
    assert "longtail data build-lvis-crops" in out

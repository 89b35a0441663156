"""``longtail data list``, ``get`` and ``check``: output and exit codes."""

from dataclasses import replace

import pytest
from tests.cli.conftest import one_sentence, picture

import longtail.cli.data
from longtail.data import CATALOG

# --- help


def test_help_of_the_data_commands(run):
    for words in ([], ["--help"]):
        code, out, _ = run("data", *words)
        assert code == 0
        assert all(command in out for command in ("list", "get NAME", "check NAME", "describe DATA"))
    for command, flag in {
        "list": "--root",
        "get": "NAME",
        "check": "--imbalance",
        "describe": "--no-read-images",
    }.items():
        code, out, _ = run("data", command, "--help")
        assert code == 0
        assert flag in out


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


def test_list_shows_which_data_sets_exist(run, tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    _, out, _ = run("data", "list", "--root", tmp_path)
    rows = rows_of(out)
    assert (rows["cifar100"][-1], rows["cifar100-lt"][-1], rows["cifar10"][-1]) == ("yes", "yes", "no")


def test_list_is_complete_in_a_narrow_terminal(run, monkeypatch):
    wide = run("data", "list")[1]
    monkeypatch.setenv("COLUMNS", "40")
    assert run("data", "list") == (0, wide, "")


# --- get


def test_get_a_data_set_that_exists(run, tmp_path):
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    code, out, err = run("data", "get", "imagenet", "--root", tmp_path)
    assert code == 2  # it is checked, and empty
    assert f"imagenet is already in {tmp_path / 'imagenet'}." in out.splitlines()
    assert "class folders" in err
    code, out, _ = run("data", "get", "digits-lt", "--root", tmp_path)
    assert code == 0
    assert "scikit-learn" in out


def test_get_continues_a_partial_download(run, tmp_path, monkeypatch):
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    (tmp_path / "cifar-10-batches-py").mkdir()
    called = []
    for name in ("fashion-mnist", "cifar10"):

        def fetch(root, name=name):
            called.append(name)
            raise ValueError("Expected the right pixels, but got others.")

        monkeypatch.setitem(CATALOG._entries, name, replace(CATALOG[name], fetch=fetch))
        code, _, err = run("data", "get", name, "--root", tmp_path)
        assert code == 2
        assert "the right pixels" in one_sentence(err)
    assert called == ["fashion-mnist", "cifar10"]
    _, out, _ = run("data", "list", "--root", tmp_path)
    assert rows_of(out)["fashion-mnist"][-1] == "no"


@pytest.mark.parametrize("name", ["imagenet", "places-lt"])
def test_get_shows_how_to_get_a_data_set_that_it_cannot_download(run, tmp_path, name):
    code, out, _ = run("data", "get", name, "--root", tmp_path)
    assert code == 1
    assert CATALOG[name].steps in out  # on one line, so that it can be copied
    assert name in out


def test_unknown_data_set(run, tmp_path):
    for command in ("get", "check"):
        code, out, err = run("data", command, "cifar11", "--root", tmp_path)
        assert (code, out) == (2, "")
        assert one_sentence(err).endswith("but got 'cifar11'; the closest match is cifar10.")


def test_get_prints_the_folder(run, tmp_path, monkeypatch):
    entry = replace(CATALOG["fashion-mnist"], fetch=lambda root: None)
    monkeypatch.setitem(CATALOG._entries, "fashion-mnist", entry)
    monkeypatch.setattr(longtail.cli.data, "check_dataset", lambda name, root: [])
    code, out, err = run("data", "get", "fashion-mnist-lt", "--root", tmp_path)
    assert (code, err) == (0, "")
    assert out == f"fashion-mnist is in {tmp_path / 'FashionMNIST'}.\nfashion-mnist is complete and correct.\n"


def test_get_fetches_what_it_can_and_checks_it(run, tmp_path, monkeypatch):
    called = []

    def fetch(root):
        called.append(root)
        raise OSError("Expected the net to be there, but it is not.")

    monkeypatch.setitem(CATALOG._entries, "cifar10", replace(CATALOG["cifar10"], fetch=fetch))
    code, _, err = run("data", "get", "cifar10-lt", "--root", tmp_path)
    assert called == [tmp_path]
    assert code == 2
    assert "Expected the net to be there" in one_sentence(err)


# --- check


def test_check_without_differences(run):
    code, out, _ = run("data", "check", "digits-lt", "--imbalance", "20")
    assert code == 0
    assert "digits-lt is complete and correct." in out


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
    first = tmp_path / "places365" / "train" / "鳥.jpg"
    assert f"train missing files (the first: {first}): expected 0, found 1" in lines


@pytest.mark.parametrize("name", ["[red]", "[/]"])
def test_check_prints_no_markup(run, tmp_path, name):
    write_places(tmp_path / name)
    code, out, _ = run("data", "check", "places-lt", "--root", tmp_path / name)
    assert code == 1
    assert str(tmp_path / name / "places365" / "train" / "a b.jpg") in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["cifar10"],
        ["digits", "--imbalance", "10"],
        ["digits-lt", "--imbalance", "0.5"],
    ],
)
def test_wrong_arguments_of_check(run, tmp_path, arguments):
    code, out, err = run("data", "check", *arguments, "--root", tmp_path)
    assert (code, out) == (2, "")
    assert ("--imbalance" if len(arguments) > 1 else arguments[0]) in one_sentence(err)


def test_check_of_damaged_files(run, tmp_path):
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

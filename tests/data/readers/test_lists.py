"""Text lists: what people's lists look like, what must be refused, and how fast the largest one is read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.data.datasets.readers.files import inside, read_list


def listed(folder: Path, content: str | bytes):
    path = folder / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    split = read_list(path, folder / "images")
    return list(zip(split.images.names, split.labels.tolist(), strict=True))


OFFICIAL = [("train/n01440764/n01440764_190.JPEG", 0), ("train/n01443537/n01443537_16693.JPEG", 1)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_mark(tmp_path, end, last, bom):
    text = end.join(f"{name} {label}" for name, label in OFFICIAL) + (end if last else "")
    assert listed(tmp_path, bom + text.encode()) == OFFICIAL


def test_paths_start_from_the_root(tmp_path):
    (tmp_path / "list.txt").write_text("train/a.jpg 3\n")
    split = read_list(tmp_path / "list.txt", tmp_path / "elsewhere")
    assert split.images.path(0) == tmp_path / "elsewhere" / "train" / "a.jpg"
    assert split.labels.dtype.is_signed
    assert split.labels.itemsize == 8


@pytest.mark.parametrize(
    "name",
    [
        "a b/c d.jpg",
        "鳥/すずめ.jpg",
        "Ünïcode/ñ.png",
        "طائر/عصفور.jpg",
        "птица/воробей.jpg",
        "a 1/b 2.jpg",
        "x.y..z/w.jpg",
    ],
)
def test_names_with_spaces_and_in_any_script(tmp_path, name):
    assert listed(tmp_path, f"{name} 12\n") == [(name, 12)]


def test_blank_lines_are_passed_over(tmp_path):
    assert listed(tmp_path, "\n\na.jpg 0\n   \n\t\nb.jpg 1 \n\n") == [("a.jpg", 0), ("b.jpg", 1)]


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", " \r\n"])
def test_an_empty_list_has_no_images(tmp_path, content):
    assert listed(tmp_path, content) == []


def test_the_same_line_twice_stays_twice(tmp_path):
    assert listed(tmp_path, "a.jpg 0\na.jpg 0\n") == [("a.jpg", 0)] * 2  # to be reported, not to be lost


@pytest.mark.parametrize(
    "line",
    ["a.jpg -1", "a.jpg 1.5", "a.jpg 1e3", "a.jpg cat", "a.jpg", "7", " 7", "  7", "a.jpg,3", "a.jpg ٣", "a.jpg ²"],
)
def test_a_line_without_a_path_and_a_label_is_named(tmp_path, line):
    with pytest.raises(ValueError, match=r"^Expected `path label` in line 2 of .*list\.txt, but got .*\.$") as caught:
        listed(tmp_path, f"ok.jpg 0\n{line}\n")
    assert "\n" not in str(caught.value)
    assert line.strip() in str(caught.value)


def test_a_long_line_is_not_repeated_whole(tmp_path):
    with pytest.raises(ValueError, match="line 1") as caught:
        listed(tmp_path, "x" * 100_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("label", ["9223372036854775808", "9" * 40])
def test_a_label_that_no_integer_holds_is_named(tmp_path, label):
    with pytest.raises(ValueError, match="line 2"):
        listed(tmp_path, f"ok.jpg 0\na.jpg {label}\n")


LEAVING = [
    "../x.jpg",
    "a/../../x.jpg",
    "a/..",
    "..",
    "/etc/passwd",
    "//server/x.jpg",
    "C:/x.jpg",
    "c:x.jpg",
    "C:\\x.jpg",
]
LEAVING += ["..\\x.jpg", "a\\..\\..\\x.jpg", "\\\\server\\share\\x.jpg", "\\x.jpg", "./../x.jpg"]


@pytest.mark.parametrize("name", LEAVING)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, name):
    assert not inside(name)
    with pytest.raises(ValueError, match=r"^Expected line 2 of .*list\.txt to stay in the data folder, but got .*\.$"):
        listed(tmp_path, f"ok.jpg 0\n{name} 0\n")


@pytest.mark.parametrize(
    "name", ["a.jpg", "a/b.jpg", "a..b/..c/d...jpg", "./a.jpg", "...", "a/…/b.jpg", "ab:c.jpg", "~/a.jpg"]
)
def test_a_path_that_stays_is_not(name):
    assert inside(name)


def test_a_list_in_another_encoding_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"list\.txt"):
        listed(tmp_path, "oiseau/é.jpg 0\n".encode("latin1"))


MEASURE = """
import json, resource, sys, time
from pathlib import Path
from longtail.classes import class_counts
from longtail.data.datasets.readers.files import read_list
import torch
class_counts([0, 1], 2)  # what is loaded on the first call is not the list's
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
split = read_list(Path(sys.argv[1]), Path(sys.argv[2]))
counts = class_counts(split.labels, 8142)
seconds = time.process_time() - start
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([len(split), counts.tolist(), seconds, (after - before) / 1024]))
"""


@pytest.mark.slow
def test_inaturalist2018_is_opened_and_counted_in_2_s_and_300_mb(tmp_path):
    counts = [1000 if c < 400 else 2 for c in range(8142)]
    counts[-1] += 437_513 - sum(counts)
    path = tmp_path / "iNaturalist18_train.txt"
    with path.open("w") as file:
        for c, count in enumerate(counts):  # names as long as the official ones
            file.writelines(f"train_val2018/Plantae/{c}/{c:08x}{n:024x}.jpg {c}\n" for n in range(count))
    command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    total, found, seconds, megabytes = json.loads(printed)
    assert total == 437_513
    assert found == counts
    assert seconds < 2
    assert megabytes < 300

"""Text lists: their formats, what is refused, and how fast the largest one is read."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from longtail.data.datasets.image_files import inside, read_list


def listed(folder: Path, content: str | bytes):
    path = folder / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    split = read_list(path, folder / "images")
    return list(zip(split.images.names, split.labels.tolist(), strict=True))


OFFICIAL = [("train/n01440764/n01440764_190.JPEG", 0), ("train/n01443537/n01443537_16693.JPEG", 1)]


def test_line_ends_and_byte_order_mark(tmp_path):
    for end, last, bom in product(["\n", "\r\n", "\r"], [True, False], [b"", b"\xef\xbb\xbf"]):
        text = end.join(f"{name} {label}" for name, label in OFFICIAL) + (end if last else "")
        assert listed(tmp_path, bom + text.encode()) == OFFICIAL


def test_paths_start_from_the_root(tmp_path):
    (tmp_path / "list.txt").write_text("train/a.jpg 3\n")
    split = read_list(tmp_path / "list.txt", tmp_path / "elsewhere")
    assert split.images.path(0) == tmp_path / "elsewhere" / "train" / "a.jpg"
    assert split.labels.dtype.is_signed
    assert split.labels.itemsize == 8


def test_names_with_spaces_and_in_any_script(tmp_path):
    for name in ("a b/c d.jpg", "鳥/すずめ.jpg", "Ünïcode/ñ.png", "طائر/عصفور.jpg", "a 1/b 2.jpg", "x.y..z/w.jpg"):
        assert listed(tmp_path, f"{name} 12\n") == [(name, 12)]


def test_blank_lines_are_skipped_and_repeated_lines_kept(tmp_path):
    assert listed(tmp_path, "\n\na.jpg 0\n   \n\t\nb.jpg 1 \n\n") == [("a.jpg", 0), ("b.jpg", 1)]
    assert listed(tmp_path, "a.jpg 0\na.jpg 0\n") == [("a.jpg", 0)] * 2
    for empty in ("", "\n\n", "\ufeff", " \r\n"):
        assert listed(tmp_path, empty) == []


def test_a_line_without_a_path_and_a_label_is_refused(tmp_path):
    lines = [
        "a.jpg -1",
        "a.jpg 1.5",
        "a.jpg cat",
        "a.jpg",
        "7",
        "  7",
        "a.jpg,3",
        "a.jpg ٣",
        "a.jpg ²",
        "a.jpg " + "9" * 40,
    ]
    for line in lines:
        with pytest.raises(ValueError, match=r"`path label` in line 2 of .*list\.txt, but got") as caught:
            listed(tmp_path, f"ok.jpg 0\n{line}\n")
        assert "\n" not in str(caught.value)
        assert line.strip() in str(caught.value)
    with pytest.raises(ValueError, match="line 1") as caught:
        listed(tmp_path, "x" * 100_000)
    assert len(str(caught.value)) < 400
    with pytest.raises(ValueError, match=r"list\.txt"):
        listed(tmp_path, "oiseau/é.jpg 0\n".encode("latin1"))


OUTSIDE = ["../x.jpg", "a/../../x.jpg", "a/..", "..", "/etc/passwd", "//server/x.jpg", "C:/x.jpg", "c:x.jpg"]
OUTSIDE += ["C:\\x.jpg", "..\\x.jpg", "a\\..\\..\\x.jpg", "\\\\server\\share\\x.jpg", "\\x.jpg", "./../x.jpg"]


def test_a_path_outside_the_folder_is_refused(tmp_path):
    for name in OUTSIDE:
        assert not inside(name)
        with pytest.raises(ValueError, match=r"line 2 of .*list\.txt to stay in the data folder"):
            listed(tmp_path, f"ok.jpg 0\n{name} 0\n")
    for name in ("a.jpg", "a/b.jpg", "a..b/..c/d...jpg", "./a.jpg", "...", "a/…/b.jpg", "ab:c.jpg", "~/a.jpg"):
        assert inside(name)


MEASURE = """
import json, resource, sys, time
from pathlib import Path
from longtail.classes import class_counts
from longtail.data.datasets.image_files import read_list
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

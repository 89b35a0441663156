"""Data sets by name: counts of the paper, CIFAR-LT of the literature, and small trees in the official formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.classes import Groups
from longtail.data import CATALOG, ArrayImages, Split, expected_counts, load
from longtail.data.datasets import builtin

NAMED = "cifar10 cifar100 cifar10-lt cifar100-lt imagenet imagenet-lt places-lt inaturalist2018 digits digits-lt"
NAMED += " fashion-mnist fashion-mnist-lt tiny-imagenet tiny-imagenet-lt gtsrb ham10000"
NAMED += " trec goemotions banking77 clinc150-imbalanced"


def test_every_data_set_is_known():
    assert set(NAMED.split()) <= set(CATALOG)


# --- the paper's table of data sets, as corrected

TABLE = [  # name, head, medium, tail, training images, smallest, largest class, test images
    ("imagenet-lt", 385, 479, 136, 115846, 5, 1280, 50000),
    ("places-lt", 131, 163, 71, 62500, 5, 4980, 36500),
    ("inaturalist2018", 842, 4076, 3224, 437513, 2, 1000, 24426),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_shipped_counts_equal_the_table_of_the_paper(row):
    name, head, medium, tail, train, low, high, test = row
    shipped = expected_counts(name)
    counts = shipped["train"]
    assert len(counts) == head + medium + tail == CATALOG[name].num_classes
    assert sum(counts) == train == CATALOG[name].sizes["train"]
    assert (min(counts), max(counts)) == (low, high) == CATALOG[name].train_range
    assert sum(n > 100 for n in counts) == head
    assert sum(20 <= n <= 100 for n in counts) == medium
    assert sum(n < 20 for n in counts) == tail
    assert Groups.from_counts(counts).sizes == {"head": head, "medium": medium, "tail": tail}
    assert shipped["test"] * len(counts) == test == CATALOG[name].sizes["test"]
    if "val" in shipped:
        assert shipped["val"] * len(counts) == CATALOG[name].sizes["val"]


def test_validation_splits_are_the_official_ones():
    assert CATALOG["imagenet-lt"].sizes["val"] == 20_000
    assert CATALOG["places-lt"].sizes["val"] == 7_300


def test_every_entry_agrees_with_itself():
    for name, entry in CATALOG.items():
        assert entry.name == name
        assert entry.steps.endswith(".")
        assert "train" in entry.sizes
        assert "test" in entry.sizes or name == "ham10000"
        assert all(not Path(file).is_absolute() for file in entry.files)


# --- CIFAR, with small images that say which they are


def stamped(labels):
    """Images of 12 bytes: the label, then the index in three bytes, then zeros."""
    rows = np.zeros((len(labels), 12), dtype=np.uint8)
    rows[:, 0] = labels
    rows[:, 1:4] = np.arange(len(labels), dtype="<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return torch.from_numpy(rows).view(-1, 3, 2, 2)


def places_of(split):
    """Which images of the official training set a split has."""
    first = split.images.pixels.flatten(1)[:, :4].to(torch.int64)
    assert torch.equal(first[:, 0], split.labels)
    return (first[:, 1] + 256 * first[:, 2] + 65536 * first[:, 3]).tolist()


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar")
    labels = {}
    for num_classes in (10, 100):
        random = np.random.default_rng(num_classes)
        for train, size in ((True, 50_000), (False, 10_000)):
            repeated = np.repeat(np.arange(num_classes), size // num_classes)
            labels[f"cifar{num_classes}", train] = random.permutation(repeated)

    def read(_, name, train):
        found = labels[name, train]
        names = tuple(f"class {c}" for c in range(int(name.removeprefix("cifar"))))
        return Split(ArrayImages(stamped(found)), torch.from_numpy(found)), names

    (root / "cifar-10-batches-py").mkdir()
    (root / "cifar-100-python").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtin, "read_cifar", read)
        yield root, {name: labels[name, True] for name in ("cifar10", "cifar100")}


CIFAR_TABLE = [
    ("cifar10", 10, 20431, 500, 5000, (3, 3, 4)),
    ("cifar10", 50, 13996, 100, 5000, (3, 3, 4)),
    ("cifar10", 100, 12406, 50, 5000, (3, 3, 4)),
    ("cifar100", 10, 19573, 50, 500, (35, 35, 30)),
    ("cifar100", 50, 12608, 10, 500, (35, 35, 30)),
    ("cifar100", 100, 10847, 5, 500, (35, 35, 30)),
]


@pytest.fixture(scope="module")
def tails(cifar):
    """All six, read once; the pixels are not kept, only which images they are."""
    root, _ = cifar
    found = {}
    for name, imbalance, *_ in CIFAR_TABLE:
        data = load(f"{name}-lt", root, imbalance=imbalance)
        found[name, imbalance] = (data.counts.tolist(), data.groups, places_of(data.train), len(data.test), data.name)
    return found


@pytest.mark.parametrize("row", CIFAR_TABLE, ids=lambda row: f"{row[0]}-lt{row[1]}")
def test_cifar_lt_has_the_counts_of_the_paper(tails, row):
    name, imbalance, total, low, high, groups = row
    counts, cut, places, tested, called = tails[name, imbalance]
    assert sum(counts) == len(places) == len(set(places)) == total
    assert (min(counts), max(counts)) == (counts[-1], counts[0]) == (low, high)
    assert sorted(counts, reverse=True) == counts
    assert tuple(cut.sizes.values()) == groups
    head, medium, _ = groups
    assert cut.members("head") == tuple(range(head))
    assert cut.members("medium") == tuple(range(head, head + medium))
    assert cut.members("tail") == tuple(range(head + medium, len(counts)))
    assert tested == 10000
    assert called == f"{name}-lt"


def protocol(labels, imbalance, seed=0):
    """CIFAR-LT as LDAM-DRW's imbalance_cifar.py makes it (Cao et al., 2019), with one RandomState for all classes."""
    num_classes = int(labels.max()) + 1
    img_max = len(labels) / num_classes
    img_num_per_cls = [int(img_max * (1 / imbalance) ** (c / (num_classes - 1.0))) for c in range(num_classes)]
    generator = np.random.RandomState(seed)
    chosen = []
    for the_class, the_img_num in enumerate(img_num_per_cls):
        idx = np.where(labels == the_class)[0]
        generator.shuffle(idx)
        chosen.extend(idx[:the_img_num].tolist())
    return chosen


def test_cifar_lt_has_the_indices_of_the_literature(cifar, tails):
    for name, imbalance, *_ in CIFAR_TABLE:
        assert tails[name, imbalance][2] == protocol(cifar[1][name], imbalance)
    for name in ("cifar10", "cifar100"):
        subsets = [set(tails[name, imbalance][2]) for imbalance in (100, 50, 10)]
        assert subsets[0] < subsets[1] < subsets[2]


def test_the_subset_is_fixed_or_drawn_from_the_runs_seed(cifar, tails):
    root, labels = cifar
    for seed in (0, 7):
        drawn = load("cifar10-lt", root, subset_seed="run", seed=seed)
        assert places_of(drawn.train) == protocol(labels["cifar10"], 100, seed)
    assert places_of(load("cifar10-lt", root, seed=7).train) == tails["cifar10", 100][2]  # does not depend on the run
    with pytest.raises(ValueError, match=r"^Expected `seed` together with subset_seed='run', but got None\.$"):
        load("cifar10-lt", root, subset_seed="run")


def test_the_step_profile(cifar):
    data = load("cifar10-lt", cifar[0], imbalance=100, profile="step")
    assert data.counts.tolist() == [5000] * 5 + [50] * 5


def test_cifar_itself(cifar):
    root, labels = cifar
    for name, num_classes in (("cifar10", 10), ("cifar100", 100)):
        data = load(name, root)
        assert data.counts.tolist() == [50000 // num_classes] * num_classes
        assert places_of(data.train) == list(range(50000))
        assert data.train.labels.tolist() == labels[name].tolist()
        assert torch.bincount(data.test.labels).tolist() == [10000 // num_classes] * num_classes
        assert data.class_names[3] == "class 3"
        assert data.val is None
        assert data.groups.sizes == (
            {"head": 3, "medium": 3, "tail": 4} if num_classes == 10 else {"head": 35, "medium": 35, "tail": 30}
        )
    assert load("cifar10", root).normalisation.mean == (0.4914, 0.4822, 0.4465)
    assert load("cifar10", root).normalisation.std == (0.2023, 0.1994, 0.2010)
    assert data.normalisation.mean == (0.5071, 0.4867, 0.4408)
    assert data.normalisation.std == (0.2673, 0.2564, 0.2762)
    with pytest.raises(ValueError, match="no `imbalance` for cifar10"):
        load("cifar10", root, imbalance=10)


# --- text lists and image folders, a few images each


def picture(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), colour).save(path, "PNG")  # PNG has exact colours


LISTS = {
    "imagenet-lt": (
        "imagenet",
        {
            "train": ("ImageNet_LT_train.txt", "train/n01440764/n01440764_{}.JPEG"),
            "val": ("ImageNet_LT_val.txt", "train/n01440764/n01440764_9{}.JPEG"),
            "test": ("ImageNet_LT_test.txt", "val/n01440764/ILSVRC2012_val_0000000{}.JPEG"),
        },
    ),
    "places-lt": (
        "places365",
        {
            "train": ("Places_LT_train.txt", "data_256/a/airfield/0000000{}.jpg"),
            "val": ("Places_LT_val.txt", "data_256/a/airfield/0000009{}.jpg"),
            "test": ("Places_LT_test.txt", "val_256/Places365_val_0000000{}.jpg"),
        },
    ),
    "inaturalist2018": (
        "inaturalist2018",
        {
            "train": ("iNaturalist18_train.txt", "train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4{}.jpg"),
            "test": ("iNaturalist18_val.txt", "train_val2018/Aves/3106/aaaac9486db1d2ee875f11a669fbde4{}.jpg"),
        },
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_from_end_to_end(tmp_path, name):
    images, parts = LISTS[name]
    last = CATALOG[name].num_classes - 1
    labels = {"train": [0, 0, 7, last], "val": [last, 3], "test": [1, 2, 3]}
    for part, (listing, pattern) in parts.items():
        lines = []
        for place, label in enumerate(labels[part]):
            picture(tmp_path / images / pattern.format(place), (10 * place, len(part), label % 251))
            lines.append(f"{pattern.format(place)} {label}\n")
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / listing).write_text("".join(lines))
    data = load(name, tmp_path)
    assert data.name == name
    assert set(data.splits) == set(parts)
    assert data.num_classes == last + 1
    assert (int(data.counts.sum()), int(data.counts[0]), int(data.counts[last])) == (4, 2, 1)
    for part, split in data.splits.items():
        assert split.labels.tolist() == labels[part]
        for place, label in enumerate(labels[part]):
            pixels = split.images[place]
            assert pixels.shape == (3, 6, 8)
            assert pixels[:, 0, 0].tolist() == [10 * place, len(part), label % 251]
    resnet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    inaturalist = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))
    expected = inaturalist if name == "inaturalist2018" else resnet
    assert (data.normalisation.mean, data.normalisation.std) == expected


@pytest.mark.parametrize(
    ("folder", "named"),
    [("train/scene {}", True), ("train/a/scene {}/outdoor", False), ("train", False), ("train/scene {}", None)],
    ids=["a folder each", "one name for all", "one folder for all", "a class without an image"],
)
def test_classes_of_lists_have_the_names_of_their_folders(tmp_path, folder, named):
    (tmp_path / "places-lt").mkdir()
    for part in ("train", "val", "test"):
        classes = reversed(range(365 if named is not None else 364))  # in any order
        lines = [f"{folder.format(c)}/{n}.jpg {c}\n" for c in classes for n in range(2)]
        (tmp_path / "places-lt" / f"Places_LT_{part}.txt").write_text("".join(lines))
    names = load("places-lt", tmp_path).class_names
    assert names == tuple(f"scene {c}" if named else str(c) for c in range(365))


def test_a_label_out_of_range_and_a_path_outside(tmp_path):
    name = "places-lt"
    _, parts = LISTS[name]
    (tmp_path / name).mkdir()
    for listing, _ in parts.values():
        (tmp_path / name / listing).write_text("a.jpg 0\n")
    listing = parts["test"][0]
    wrong = CATALOG[name].num_classes
    (tmp_path / name / listing).write_text(f"a.jpg 0\nb.jpg {wrong}\n")
    with pytest.raises(ValueError, match=rf"^Expected labels of {name} .*, but got {wrong} in test\.$"):
        load(name, tmp_path)
    (tmp_path / name / listing).write_text("a.jpg 0\n../../etc/passwd 0\n")
    with pytest.raises(ValueError, match=rf"line 2 of .*{listing} to stay in the data folder"):
        load(name, tmp_path)


def test_imagenet_folders(tmp_path):
    for c, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        for place in range(2):
            picture(tmp_path / "imagenet" / "train" / wnid / f"{wnid}_{place}.JPEG", (c, place, 0))
        picture(tmp_path / "imagenet" / "val" / wnid / f"ILSVRC2012_val_{c:08d}.JPEG", (c, 0, 99))
    data = load("imagenet", tmp_path)
    assert data.class_names == ("n01440764", "n01443537", "n01484850")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test.labels.tolist() == [0, 1, 2]
    assert data.test.images[2][:, 0, 0].tolist() == [2, 0, 99]
    (tmp_path / "imagenet" / "val" / "n99999999").mkdir()
    with pytest.raises(ValueError, match="'n99999999'"):
        load("imagenet", tmp_path)


def test_imagenet_has_the_groups_of_imagenet_lt(tmp_path):
    for c in range(1000):
        (tmp_path / "imagenet" / "train" / f"n{c:08d}").mkdir(parents=True)
        (tmp_path / "imagenet" / "val" / f"n{c:08d}").mkdir(parents=True)
    (tmp_path / "imagenet" / "train" / "n00000000" / "x.JPEG").touch()
    groups = load("imagenet", tmp_path).groups
    counts = expected_counts("imagenet-lt")["train"]
    assert groups.sizes == {"head": 385, "medium": 479, "tail": 136}
    assert groups.members("tail") == tuple(c for c in range(1000) if counts[c] < 20)


@pytest.fixture
def tiny(tmp_path):
    """Tiny ImageNet: boxes beside the images, validation answers in a table."""
    folder = tmp_path / "tiny-imagenet-200"
    wnids = ("n01443537", "n01629819", "n01641577")
    for c, wnid in enumerate(wnids):
        for place in range(20):
            picture(folder / "train" / wnid / "images" / f"{wnid}_{place}.JPEG", (c, place, 0))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t62\t63\t0\n")
    rows = []
    for place, c in enumerate((2, 0, 1, 2)):
        picture(folder / "val" / "images" / f"val_{place}.JPEG", (c, place, 255))
        rows.append(f"val_{place}.JPEG\t{wnids[c]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "test" / "images").mkdir(parents=True)
    return tmp_path


def test_tiny_imagenet(tiny):
    data = load("tiny-imagenet", tiny)
    assert data.counts.tolist() == [20, 20, 20]
    assert data.test.labels.tolist() == [2, 0, 1, 2]
    assert data.test.images[3][:, 0, 0].tolist() == [2, 3, 255]
    assert load("tiny-imagenet-lt", tiny, imbalance=20).counts.tolist() == [20, 4, 1]


def test_the_answers_of_tiny_imagenet_are_checked(tiny):
    path = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    before = path.read_text()
    wrong = ["val_9.JPEG\tn00000000\t0\t0\t1\t1", "val_9.JPEG", "../../../x.JPEG\tn01443537\t0\t0\t1\t1", "\tn01443537"]
    for row in wrong:
        path.write_text(before + row + "\n")
        with pytest.raises(ValueError, match=r"line 5.*val_annotations\.txt"):
            load("tiny-imagenet", tiny)


# --- mistakes


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"`data` to be one of .*cifar10.*, but got 'cifar11'"):
        load("cifar11")


def test_missing_files_are_named_with_how_to_get_them(tmp_path):
    for name, entry in CATALOG.items():
        if entry.files:
            with pytest.raises(FileNotFoundError) as caught:
                load(name, tmp_path)
            message = str(caught.value)
            assert message.startswith(f"Expected {tmp_path / entry.files[0]} for {name}, but it does not exist; ")
            assert entry.steps in message
            assert message.endswith(".")
            assert "\n" not in message


def test_digits():
    data = load("digits")
    assert (len(data.train), len(data.test)) == (1297, 500)
    assert torch.bincount(data.test.labels).tolist() == [50] * 10
    assert data.train.images[0].shape == (1, 8, 8)
    assert int(data.train.images.pixels.max()) == 255

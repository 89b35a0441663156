"""The data set of a recipe: own images, small ones in memory, made long-tailed, held out."""

import gc
import json
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import longtail
from longtail._ranks import Ranks
from longtail.data import (
    DataSet,
    FileImages,
    Resident,
    Split,
    Streaming,
    from_dataset,
)
from longtail.data.loaders.decode import UnreadableImageError, decode
from longtail.study.planning import make_plan
from longtail.train import RunFolder, Trainer, own
from longtail.train.dataset import open_data
from longtail.train.launch import make_recipe
from longtail.train.loaders import Loaders
from longtail.train.own import in_memory, measure_images, measure_path, open_own
from longtail.train.recipe import defaults
from longtail.train.trainer import StoppedError


def folder(root, *sizes):
    """Two classes of images with these sides (width, height), in turn."""
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for number in range(8):
            width, height = sizes[number % len(sizes)]
            pixels = np.full((height, width, 3), number * 20, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([(32, 32)], True),
        ([(32, 32), (200, 150)], False),
        ([(32, 32), (40, 36)], False),
        ([(28, 20)], False),
        ([(65, 65)], False),
    ],
)
def test_small_is_square_and_of_one_size(tmp_path, sizes, small):
    path = folder(tmp_path / "pets", *sizes)
    assert measure_path(path).small is small
    recipe = defaults(str(path), "balanced-softmax")
    assert recipe.image_size is None if small else recipe.image_size % 16 == 0
    dataset = open_data(replace(recipe, validation=0.0))
    assert (in_memory(dataset) is not None) is small


def test_added_images_and_changed_labels_are_noticed(tmp_path):
    path = folder(tmp_path / "pets", (32, 32))
    assert measure_path(path).number == 16
    Image.new("RGB", (32, 32)).save(path / "a" / "new.png")
    assert measure_path(path).number == 17
    np.save(tmp_path / "f.npy", np.ones((8, 3), dtype=np.float32))
    for names in ("ab", "wxyz"):
        np.save(tmp_path / "labels.npy", np.repeat(list(names), 8 // len(names)))
        assert open_own(tmp_path / "f.npy").class_names == tuple(names)
        assert measure_path(tmp_path / "f.npy").classes == len(names)


def test_pixels_that_memory_does_not_hold_stay_in_their_files(tmp_path, monkeypatch):
    path = folder(tmp_path / "pets", (16, 16), (16, 16))
    whole = in_memory(open_own(path))
    images = sum(map(len, whole.splits.values()))
    for most, held in ((3 * 16 * 16 * images, True), (3 * 16 * 16 * images - 1, False)):
        monkeypatch.setattr("longtail.train.own._MOST", most)
        assert (in_memory(open_own(path)) is not None) is held
        assert measure_images(open_own(path)).small
    recipe = make_recipe({"data": str(path), "method": "softmax", "model": "small-cnn", "epochs": 1, "workers": 0})
    result = Trainer(recipe.changed(device="cpu"), tmp_path / "run").run()
    assert result["splits"]["train"]["samples"] == sum(result["counts"])


def test_own_images_can_be_made_long_tailed(tmp_path):
    path = folder(tmp_path / "pets", (16, 16))
    recipe = replace(defaults(str(path), "balanced-softmax", 4.0), validation=0.0)
    assert open_data(recipe).counts.tolist() == [8, 2]


def test_a_data_set_that_is_not_long_tailed_takes_no_imbalance():
    with pytest.raises(ValueError, match="no `imbalance` for digits, but got 100; digits-lt takes it"):
        open_data(defaults("digits", "balanced-softmax", 100.0))


@pytest.mark.parametrize("side", [16, 80])
def test_a_data_set_from_python(tmp_path, side):
    """In the form of Hugging Face's; small images are held in memory, others are streamed."""

    class Columns(list):
        column_names = ("picture", "kind")

        def __getitem__(self, key):
            return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    generator = np.random.default_rng(0)
    rows = Columns(
        {"picture": Image.fromarray(generator.integers(0, 255, (side, side, 3), dtype=np.uint8)), "kind": c}
        for c in (0, 1)
        for _ in range(12 // (c + 1))
    )
    own = DataSet("mine", ("a", "b"), train=from_dataset(rows, image="picture", label="kind"))
    settings = {"model": "small-cnn", "epochs": 1, "batch_size": 8, "image_size": 16, "workers": 0, "device": "cpu"}
    recipe = replace(defaults("mine", "balanced-softmax", small=side == 16), **settings)
    folder = RunFolder(tmp_path / "run")
    result = Trainer(recipe, folder, dataset=own).run()
    assert result["data"] == "mine"
    assert longtail.load(folder.path).class_names == ("a", "b")
    assert result["counts"] == [11, 5]  # one of each class is held out
    assert folder.recipe().data == "mine"


def test_an_empty_class_folder_is_named(tmp_path):
    path = folder(tmp_path / "pets", (32, 32))
    (path / "none").mkdir()
    (path / "none" / "clip.mov").touch()
    with pytest.raises(
        ValueError, match=r"but there is none of 'none'; .*pets/none has no image: fill or remove it \(.*1 \.mov\)\.$"
    ):
        open_data(defaults(str(path), "balanced-softmax"))


def test_runs_share_small_images_until_a_file_changes(tmp_path):
    path = folder(tmp_path / "pets", (32, 32))
    recipe = replace(defaults(str(path), "balanced-softmax"), validation=0.0)
    first, second = (open_data(replace(recipe, seed=seed)).train.images for seed in (0, 1))
    assert first.stored is second.stored
    Image.fromarray(np.full((32, 32, 3), 255, dtype=np.uint8)).save(path / "a" / "0.png")
    changed = open_data(recipe).train.images
    assert changed.stored is not first.stored
    assert int(changed[0].min()) == 255


def test_a_split_is_held_once_and_released_when_the_run_is_done(tmp_path, monkeypatch):
    """The trainers of a study's runs all stay until the last is done; their images may not."""
    path = folder(tmp_path / "photos", (32, 32))
    settings = {"model": "small-cnn", "epochs": 1, "batch_size": 8, "image_size": 16, "workers": 0, "device": "cpu"}
    recipe = replace(defaults(str(path), "balanced-softmax", small=True), **settings, evaluate_every=1)
    made = []
    begin = Resident.__init__

    def seen(self, split, *rest, **named):
        begin(self, split, *rest, **named)
        made.append((split, weakref.ref(self.pixels)))

    monkeypatch.setattr(Resident, "__init__", seen)
    trainer = Trainer(recipe, RunFolder(tmp_path / "run"))
    trainer.run()
    splits = [split for split, _ in made]
    assert len(splits) == len(set(splits)) == len(trainer.dataset.splits) > 1
    gc.collect()
    assert not [split for split, pixels in made if pixels() is not None]


@pytest.mark.parametrize(
    ("suffixes", "where"), [(["JPEG"], "device"), (["jpg", "jpg", "png"], "device"), (["png", "webp"], "workers")]
)
def test_a_gpu_decodes_jpegs_and_workers_the_rest(tmp_path, suffixes, where):
    names = [f"{i}.{suffix}" for i, suffix in enumerate(suffixes)]
    for name in names:
        Image.new("RGB", (40, 30)).save(tmp_path / name)
    split = Split(FileImages(tmp_path, names), torch.zeros(len(names), dtype=torch.int64))
    recipe = replace(defaults("mine", "balanced-softmax", small=False), image_size=16)
    loader = Loaders(recipe, DataSet("mine", ("a",), split), torch.device("cuda"), Ranks()).evaluation(split)
    assert isinstance(loader, Streaming)
    assert loader.decode_in == where


SMALL = {"model": "small-cnn", "epochs": 1, "batch_size": 4, "workers": 0, "device": "cpu"}


def test_a_training_split_without_an_image_is_refused(tmp_path):
    folder(tmp_path / "pets" / "test", (16, 16))
    (tmp_path / "pets" / "train" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="a training sample of every class"):
        open_data(make_recipe({"data": str(tmp_path / "pets")}))


def test_a_split_without_an_image_is_none(tmp_path):
    path = folder(tmp_path / "pets" / "train", (16, 16)).parent
    (path / "val").mkdir()
    (path / "test" / "a").mkdir(parents=True)
    result = Trainer(replace(defaults(str(path), "balanced-softmax"), **SMALL), tmp_path / "run").run()
    assert result["splits"].keys() == {"train", "train_paper", "val"}  # held out, since the folder has none
    assert result["counts"] == [7, 7]


def test_classes_of_one_image_each_have_none_to_hold_out(tmp_path):
    for name in "ab":
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "pets" / name / "1.png")
    recipe = replace(defaults(str(tmp_path / "pets"), "balanced-softmax"), **SMALL)
    assert recipe.validation > 0
    assert Trainer(recipe, tmp_path / "run").run()["splits"].keys() == {"train", "train_paper"}


def test_small_images_that_cannot_be_read_stop_the_run_before_training(tmp_path):
    path = folder(tmp_path / "pets", (16, 16))
    for name in ("a/0.png", "b/3.png"):
        (path / name).write_bytes(b"no image")
    recipe = defaults(str(path), "balanced-softmax")
    assert recipe.model == "resnet32"
    with pytest.raises(UnreadableImageError, match=r"a/0\.png .*\(2 images of pets .*b/3\.png\); `bad_images` = skip"):
        open_data(recipe)


def test_other_small_images_stay_in_memory(tmp_path, monkeypatch):
    path = folder(tmp_path / "pets", (16, 16))
    whole = open_data(defaults(str(path), "balanced-softmax").changed(validation=0.0))
    (path / "a" / "0.png").write_bytes(b"")
    (path / "b" / "7.png").write_bytes((path / "b" / "7.png").read_bytes()[:60])
    recipe = defaults(str(path), "balanced-softmax").changed(validation=0.0, bad_images="skip")
    for _ in range(2):  # decoded, and from the cache on disk
        own._read.clear()
        data = open_data(recipe, cache=tmp_path / "cache")
        assert data.counts.tolist() == [7, 7]
        assert torch.equal(data.train.images.pixels, whole.train.images.pixels[1:-1])
        assert data.unreadable.keys() == {str(path / "a" / "0.png"), str(path / "b" / "7.png")}
        monkeypatch.setattr(own, "_decoded", None)


@pytest.mark.parametrize("shown", [None, 24])
def test_small_images_of_which_some_cannot_be_read_are_seen_as_they_are(tmp_path, shown):
    path = folder(tmp_path / "pets", (16, 16))
    (path / "a" / "0.png").write_bytes(b"")
    recipe = replace(
        defaults(str(path), "balanced-softmax"), **SMALL, bad_images="skip", validation=0.0, image_size=shown
    )
    assert recipe.augment == "cifar"
    run = RunFolder(tmp_path / "run")
    result = Trainer(recipe, run).run()
    assert result["counts"] == [7, 8]
    assert list(json.loads(run.unreadable_file.read_text())) == [str(path / "a" / "0.png")]
    assert longtail.load(run.path).transforms.size == (shown or 16)


@pytest.mark.parametrize("augment", ["cifar", "shift"])
def test_images_of_many_sizes_are_brought_to_one_by_every_family(tmp_path, augment):
    path = folder(tmp_path / "pets", (20, 30), (16, 16), (40, 24))
    recipe = replace(defaults(str(path), "balanced-softmax"), **SMALL, augment=augment, image_size=16, validation=0.0)
    assert Trainer(recipe, tmp_path / "run").run()["counts"] == [8, 8]


def test_own_grey_images_are_normalised_as_one_channel(tmp_path):
    rows = [(np.full((16, 16), 30 * c + number, dtype=np.uint8), c) for c in range(2) for number in range(8)]
    own = DataSet("grey", ("a", "b"), train=from_dataset(rows))
    recipe = replace(defaults("grey", "balanced-softmax", small=True), **SMALL, validation=0.0)
    loaders = Loaders(recipe, open_data(recipe, own), torch.device("cpu"), Ranks())
    assert loaders.normalisation.mean == pytest.approx((np.mean([0.485, 0.456, 0.406]),))
    assert loaders.normalisation.std == pytest.approx((np.mean([0.229, 0.224, 0.225]),))
    assert Trainer(recipe, tmp_path / "run", dataset=own).run()["counts"] == [8, 8]


def test_labels_that_begin_at_one_make_no_empty_class(tmp_path):
    folder(tmp_path / "pets", (16, 16))
    rows = [f"pets/{name}/{number}.png,{label}" for label, name in ((1, "a"), (2, "b")) for number in range(8)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    data = open_data(defaults(str(tmp_path / "list.csv"), "balanced-softmax"))
    assert data.class_names == ("1", "2")


def test_a_class_that_is_in_validation_data_only_is_refused_with_the_remedy(tmp_path):
    path = folder(tmp_path / "pets" / "train", (16, 16)).parent
    folder(path / "val", (16, 16))
    (path / "val" / "a").rename(path / "val" / "c")
    with pytest.raises(ValueError, match=r"none of 'c'; add some, or remove the validation and test samples"):
        open_data(defaults(str(path), "balanced-softmax"))


def test_unreadable_files_of_a_whole_split_are_listed(tmp_path):
    path = folder(tmp_path / "pets" / "train", (16, 16)).parent
    for file in folder(path / "val", (16, 16)).rglob("*.png"):
        file.write_bytes(b"")
    run = RunFolder(tmp_path / "run")
    with pytest.raises(ValueError, match="a split with a sample"):
        Trainer(replace(defaults(str(path), "balanced-softmax"), **SMALL, bad_images="skip"), run).run()
    assert len(json.loads(run.unreadable_file.read_text())) == 16


def test_a_finished_run_is_not_taken_for_that_of_other_data(tmp_path):
    rows = [(np.full((16, 16, 3), 30 * c + number, dtype=np.uint8), c) for c in range(2) for number in range(8)]
    recipe = replace(defaults("mine", "balanced-softmax", small=True), **SMALL, validation=0.0)

    def run(some):
        data = DataSet("mine", ("a", "b"), train=from_dataset(some))
        return Trainer(recipe, tmp_path / "run", dataset=data).run()

    result = run(rows)
    assert run(rows) == result
    others = {
        "labels": [(image, 1 - label) for image, label in rows],
        "pixels": [(image + np.uint8(1), label) for image, label in rows],
        "number": rows[:-1],
    }
    for some in others.values():
        with pytest.raises(ValueError, match=r"with which the run in .*run began, but got other images"):
            run(some)
    environment = tmp_path / "run" / "environment.json"
    environment.write_text(json.dumps({"world": 1}))  # of before digests were kept there
    assert run(rows[:-1]) == result


def test_a_run_folder_is_not_a_data_set(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin(defaults("digits-lt", "balanced-softmax"), torch.device("cpu"), 1)
    said = r"but it is a run folder: `longtail train --resume .*run` continues the run\.$"
    with pytest.raises(ValueError, match=said):
        defaults(str(run.path), "balanced-softmax")


def test_small_images_have_their_recipe_everywhere(tmp_path):
    path = str(folder(tmp_path / "pets", (32, 32)))
    recipe = defaults(path, "balanced-softmax")
    assert recipe == make_recipe({"data": path, "method": "balanced-softmax"})
    assert recipe.augment == defaults("mine", "balanced-softmax", small=True).augment
    bcl = recipe.changed(method="bcl")
    assert bcl.params == make_recipe({"data": path, "method": "bcl"}).params
    assert bcl.label == "pets-bcl-beta1-seed0"
    shutil.rmtree(path)  # a finished run can be read without its data
    assert bcl.label == "pets-bcl-beta1-seed0"
    with pytest.raises(ValueError, match="does not exist"):
        defaults(path, "balanced-softmax")


def test_small_images_are_read_once_per_study(tmp_path, monkeypatch):
    path, read = folder(tmp_path / "pets", (32, 32)), []
    monkeypatch.setattr("longtail.data.loaders.decode.decode", lambda file: read.append(file) or decode(file))
    plan = make_plan({"data": str(path), "methods": ["softmax", "cbs"], "betas": [1, 2], "seeds": 2})
    for run in plan.runs():
        open_data(run.recipe)
    assert sorted(read) == sorted(path.resolve().rglob("*.png"))


def test_many_small_images_are_read_by_several_processes_in_order(tmp_path):
    shades = torch.arange(1200) % 251
    for number, shade in enumerate(shades.tolist()):
        Image.new("L", (8, 8), shade).save(tmp_path / f"{number:04}.png")
    images = FileImages(tmp_path, [f"{number:04}.png" for number in range(1200)])
    dataset = in_memory(DataSet("grey", ("a", "b"), Split(images, torch.arange(1200) % 2)))
    assert torch.equal(dataset.train.images.pixels, shades.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8))
    (tmp_path / "0900.png").write_bytes(b"not an image")
    dataset = DataSet("grey", ("a", "b"), Split(images, torch.arange(1200) % 2))
    with pytest.raises(UnreadableImageError, match=r"0900\.png"):
        in_memory(dataset)
    found = in_memory(dataset, bad_images="skip").train
    kept = torch.arange(1200) != 900
    assert torch.equal(found.images.pixels[:, 0, 0, 0], shades[kept].to(torch.uint8))
    assert torch.equal(found.labels, (torch.arange(1200) % 2)[kept])
    Image.new("L", (8, 9)).save(tmp_path / "0900.png")
    assert in_memory(dataset) is None


def test_other_groups_are_not_the_same_run(tmp_path):
    file = tmp_path / "groups.json"
    recipe = defaults("digits-lt", "reslt").changed(groups=str(file))

    def run_with(head, *, stop):
        file.write_text(json.dumps({"head": list(range(head)), "medium": [8], "tail": [*range(head, 8), 9]}))
        trainer = Trainer(recipe, tmp_path / "run", device=torch.device("cpu"))
        trainer.stop_requested = stop
        next(trainer.steps())

    with pytest.raises(StoppedError):
        run_with(3, stop=True)
    with pytest.raises(ValueError, match=r"to have the groups of digits-lt"):
        run_with(4, stop=False)
    run_with(3, stop=False)


# --- groups and test data


def patients(root, **columns):
    """A list of 16 x 16 images of three classes by ten patients, imbalance 4; class c is of one patient."""
    generator, lines = np.random.default_rng(0), []
    root.mkdir()
    for label, number in {"a": 40, "b": 20, "c": 10}.items():
        for one in range(number):
            name = f"{label}{one}.png"
            Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(root / name)
            part = f",{columns['split'](label, one)}" if columns else ""
            lines.append(f"{name},{label},{'p' if label == 'c' else one % 10}{part}")
    (root / "list.csv").write_text("\n".join([f"file,label,patient{',split' * bool(columns)}", *lines]))
    return str(root / "list.csv")


OPENING = {"path_column": "file", "split_by": "patient"}


def groups_of(dataset):
    return {part: set(split.groups.tolist()) for part, split in dataset.splits.items()}


@pytest.mark.parametrize("held", [{"validation": 0.2}, {"folds": 4, "fold": 1, "validation": 0.0}])
def test_every_hold_out_keeps_patients_together(tmp_path, held):
    recipe = defaults(patients(tmp_path / "scans"), "balanced-softmax", **OPENING).changed(test=0.2, **held)
    dataset = open_data(recipe)
    train, val, test = (groups_of(dataset)[part] for part in ("train", "val", "test"))
    assert not train & val
    assert not (train | val) & test
    assert sum(map(len, dataset.splits.values())) == 70
    assert dataset.splits["test"].labels.bincount(minlength=3).tolist() == [8, 4, 0]  # two of ten patients
    assert dataset.notes[0].startswith("No test image of 1 class")
    assert dataset.counts[2] == 10


def test_test_images_are_the_same_for_every_seed_and_method(tmp_path):
    path = patients(tmp_path / "scans")
    made = [
        open_data(defaults(path, method, path_column="file").changed(test=0.25, validation=0.2, seed=seed))
        for method, seed in (("softmax", 0), ("cbs", 1))
    ]
    pixels = [dataset.test.images.pixels for dataset in made]
    assert torch.equal(*pixels)
    assert len(pixels[0]) == 10 + 5 + 2  # 2.5 is rounded to even
    assert not torch.equal(made[0].val.images.pixels, made[1].val.images.pixels)
    assert made[0].cut_by.tolist() == [30, 15, 8]
    assert dict(made[0].held_out) == {"test": 0.25, "val": 0.2}
    other = defaults(path, "softmax", path_column="file").changed(test=0.25, test_seed="run", seed=1)
    assert not torch.equal(open_data(other).test.images.pixels, pixels[0])
    assert "different images for each seed" in open_data(other).notes[0]


def test_a_test_split_is_not_replaced_and_leaking_groups_are_refused(tmp_path):
    path = patients(tmp_path / "scans", split=lambda _, one: "test" if one % 5 == 0 else "train")
    with pytest.raises(ValueError, match=r"^Expected no `test` for list, which has 14 test images, but got 0\.2\.$"):
        open_data(defaults(path, "balanced-softmax", path_column="file").changed(test=0.2))
    with pytest.raises(ValueError, match=r"^Expected no `test` for .* each class has one group, but got 0\.2\.$"):
        open_data(defaults(patients(tmp_path / "more"), "cbs", path_column="file", split_by="label").changed(test=0.2))
    with pytest.raises(ValueError, match=r"each value of patient in one split of list, but p is in train and test"):
        open_data(defaults(path, "balanced-softmax", **OPENING))


def test_pilots_keep_patients_together(tmp_path):
    recipe = defaults(patients(tmp_path / "scans"), "cbs", **OPENING).changed(test=0.2, validation=0.0, **SMALL)
    trainer = Trainer(recipe, tmp_path / "run")
    trainer.run()
    assert len(trainer.pilots) == 5
    test = groups_of(trainer.dataset)["test"]
    for pilot in trainer.pilots:
        groups = groups_of(pilot.dataset)
        assert groups["test"] == test
        assert not groups["train"] & groups["val"]
        assert not (groups["train"] | groups["val"]) & test
        assert 2 not in pilot.dataset.val.labels.tolist()  # class c is of one patient
    assert RunFolder(tmp_path / "run").result()["held_out"] == {"test": 0.2}


def test_groups_of_a_data_set_from_python():
    pixels = torch.zeros(30, 3, 8, 8, dtype=torch.uint8)
    split = from_dataset([(image, i % 2) for i, image in enumerate(pixels)], groups=torch.arange(30) // 3)
    recipe = defaults("mine", "balanced-softmax", small=True).changed(validation=0.3)
    groups = groups_of(open_data(recipe, DataSet("mine", ("a", "b"), split)))
    assert not groups["train"] & groups["val"]
    with pytest.raises(ValueError, match=r"^Expected `groups` in the splits of mine to split by patient"):
        open_data(recipe.changed(split_by="patient"), DataSet("mine", ("a", "b"), replace(split, groups=None)))


@pytest.mark.parametrize("changed", [{"test": 0.3}, {"split_by": None}, {"image_root": "."}])
def test_a_run_does_not_resume_on_other_data(tmp_path, monkeypatch, changed):
    path = patients(tmp_path / "scans")
    monkeypatch.chdir(tmp_path / "scans")
    recipe = defaults(path, "balanced-softmax", **OPENING).changed(test=0.2, **SMALL)
    trainer = Trainer(recipe, tmp_path / "run")
    trainer.stop_requested = True
    with pytest.raises(StoppedError):
        trainer.run()
    with pytest.raises(ValueError, match=f"differs in `{next(iter(changed))}`"):
        trainer.folder.check(recipe.changed(**changed))


@pytest.mark.parametrize("name", ["split_by", "image_root", "path_column"])
def test_data_sets_by_name_are_not_opened_in_another_way(name):
    with pytest.raises(ValueError, match=f"^Expected no `{name}` for digits-lt"):
        defaults("digits-lt", "cbs").changed(**{name: "x"})

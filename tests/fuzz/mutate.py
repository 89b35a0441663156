"""Damage: of bytes, and of what JSON and TOML files hold."""

import copy
from random import Random
from typing import Any

ODD_TEXTS = [
    "",
    " ",
    "x",
    "none",
    "nan",
    "-1",
    "1e999",
    "\0",
    "a\nb",
    "../..",
    "/",
    "\ud800",
    "\u202e",
    "=1+1",
    "é" * 300,
]
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 10**30, -(10**18), 2**31, 2**63, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), [], {}, [[]], [None], {"": 0}, {"a": {"b": []}}, *ODD_TEXTS,
]  # fmt: skip


def damaged(rng: Random, content: bytes) -> bytes:
    """Return bytes after one to three accidents."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(_ACCIDENTS)(rng, content)
    return content


def _place(rng: Random, content: bytes) -> int:
    """Return a position; headers are short, and more interesting."""
    return rng.randrange(min(len(content), rng.choice((16, 64, 512, 1 << 30))) + 1)


def _cut(rng: Random, content: bytes) -> bytes:
    return content[: _place(rng, content)]


def _flip(rng: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
        changed[_place(rng, content) - 1] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(rng: Random, content: bytes) -> bytes:
    place, value = _place(rng, content), rng.choice((b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\0" * 4))
    return content[:place] + value + content[place + len(value) :]


def _drop(rng: Random, content: bytes) -> bytes:
    place = _place(rng, content)
    return content[:place] + content[place + rng.choice((1, 2, 16, 100)) :]


def _repeat(rng: Random, content: bytes) -> bytes:
    begin = _place(rng, content)
    return content[:begin] + content[begin : begin + rng.randrange(200)] * rng.choice((2, 3, 50)) + content[begin:]


def _insert(rng: Random, content: bytes) -> bytes:
    place = _place(rng, content)
    words = (
        rng.randbytes(rng.randrange(1, 20)),
        b"\n",
        b'"',
        b",",
        b"[" * 5000,
        b"\xef\xbb\xbf",
        b"9" * 5000,
        b"\0",
        b"\r",
    )
    return content[:place] + rng.choice(words) + content[place:]


def _number(rng: Random, content: bytes) -> bytes:
    """Replace a number in text, such as one in the header of a file."""
    places = [place for place, byte in enumerate(content[:4000]) if 48 <= byte < 58]
    if not places:
        return _set(rng, content)
    place = rng.choice(places)
    value = rng.choice((b"0", b"-1", b"99999999999", b"1e9", b"nan", b"0x10", b"4294967296", b"9223372036854775808"))
    return content[:place] + value + content[place + 1 :]


def _replace(rng: Random, content: bytes) -> bytes:
    return rng.choice(
        (b"", b"\n", rng.randbytes(100), b"{}", b"[]", b"null", content.decode("latin1").encode("utf-16"))
    )


_ACCIDENTS = [_cut, _flip, _flip, _set, _drop, _repeat, _insert, _number, _number, _replace]


def places_in(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values in nested lists and dictionaries."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in items for place in places_in(value, (*path, key)))]


def changed_tree(rng: Random, tree: Any) -> Any:
    """Return nested lists and dictionaries with one to three values replaced, removed, renamed or repeated."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 3))):
        *way, last = rng.choice(places_in(tree)[1:] or [(None,)])
        if last is None:
            return rng.choice(ODD_VALUES)
        parent = tree
        for key in way:
            parent = parent[key]
        what = rng.randrange(5)
        if what == 0:
            del parent[last]
        elif what == 1 and isinstance(parent, dict):
            parent[rng.choice((*ODD_TEXTS, str(last) + "s"))] = parent.pop(last)
        elif what == 2 and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(rng.choice(parent)))
        else:
            parent[last] = copy.deepcopy(rng.choice(ODD_VALUES))
    return tree

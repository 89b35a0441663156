"""Helpers for tests of reports: a parsed page, and copies of runs with changed files."""

import shutil
from html.parser import HTMLParser


class Reader(HTMLParser):
    """The elements of a page with their attributes, its tables as text, and its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.tables, self.text = [], [], []
        self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def all(self, name):
        return [found for tag, found in self.elements if tag == name]


def changed(source, folder, recipe=(), result=()):
    """A copy of a run, with some text of its files replaced."""
    shutil.copytree(source, folder)
    for name, changes in (("recipe.toml", recipe), ("result.json", result)):
        text = (folder / name).read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (folder / name).write_text(text)
    return folder

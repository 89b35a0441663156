"""The documentation site: it builds without a warning or the network, its links work, and it has every public name."""

import functools
import importlib
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tools.site_hooks import gallery_page, public_modules, public_names

from longtail import cli
from longtail.cli.parsing import Parser
from longtail.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in (
            *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
            *("results/README.md", "results/natural.md", "results/unseen.md", "reproduction/README.md"),
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Links(HTMLParser):
    """The ids of a page, its links, and what a browser would load with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in {"script", "img", "iframe", "source"} and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preconnect", "preload"}:
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site once."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**environment, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return {file.relative_to(folder): Links(file.read_text("utf-8")) for file in folder.rglob("*.html")}, folder


def test_nothing_is_loaded_from_the_network(site):
    """Besides what tags load: diagrams and the repository's stars, which the theme's script would fetch, and styles."""
    pages, folder = site
    for page in pages:
        text = (folder / page).read_text("utf-8")
        assert 'class="mermaid"' not in text
        assert 'data-md-component="source"' not in text
    for style in folder.rglob("*.css"):
        assert not re.search(r"(@import|url\()[^;)]{0,9}(https?:)?//", style.read_text("utf-8")), style


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        used = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9-]+)", page.read_text("utf-8"), re.MULTILINE))
        assert used <= targets, page


def test_links_and_loaded_files_are_in_the_site(site):
    pages, folder = site
    for page, found in pages.items():
        if page.name == "404.html":
            continue  # its links are absolute
        for target in found.loaded:
            assert not re.match(r"(https?:)?//", target), (page, target)
        for target in (*found.links, *found.loaded):
            if re.match(r"(https?|data|mailto):", target):
                continue
            path, _, anchor = target.partition("#")
            there = (folder / page.parent / path.partition("?")[0]).resolve() if path else folder / page
            there = there / "index.html" if there.is_dir() else there
            assert there.is_file(), (page, target)
            if anchor and there.suffix == ".html":
                assert anchor in pages[there.relative_to(folder.resolve())].ids, (page, target)


def test_every_public_name_is_in_the_reference(site):
    pages, _ = site
    for name in public_modules():
        ids = pages[Path("api") / f"{name.removeprefix('longtail.')}.html"].ids
        module = importlib.import_module(name)
        for one in public_names(module):
            defined = f"{getattr(getattr(module, one), '__module__', name)}.{one}"
            assert {f"{name}.{one}", defined} & ids, f"{name}.{one}"
    assert {"longtail.losses", "longtail.metrics", "longtail.train", "longtail.estimators"} <= set(public_modules())


def test_formulas_and_roles_of_docstrings_become_html(site):
    _, folder = site
    text = (folder / "api/losses.html").read_text("utf-8")
    assert "<mfrac>" in text
    for page in (folder / "api").glob("*.html"):
        assert not re.search(r":(math|func|class|meth|attr):|\.\. math", page.read_text("utf-8")), page.name


def test_settings_have_plain_defaults_and_their_help(site):
    text = (site[1] / "api/train.html").read_text("utf-8")
    assert "at_least" not in text
    assert "the data folder, for data sets by name" in text


def test_a_docstring_returns_one_thing(site):
    """Griffe can take every line of a return value for another one."""
    text = (site[1] / "api/beta.html").read_text("utf-8")
    returned = re.findall(r"<p>.*?Returns:.*?</p>\s*<ul>(.*?)</ul>", text, re.DOTALL)
    assert [items.count("<li") for items in returned] == [1] * len(returned)
    assert "for example because all classes\nhave the same count" in text


def test_flags_are_not_broken_after_their_hyphens(site):
    text = (site[1] / "training.html").read_text("utf-8")
    assert '<code><span class="flag">--warmup-steps</span></code>' in text
    assert 'class="flag"' not in "".join(re.findall(r"<pre.*?</pre>", text, re.DOTALL))


def slugs(text):
    """Return the anchors of the headings of a Markdown file, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_work_in_the_repository_too(page):
    """A page may be read there, without the site."""
    text = FENCE.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text):
        path, _, anchor = "".join(target).partition("#")
        if path.startswith(("http:", "https:")) or path.startswith("api/"):
            continue  # the reference exists in the site only, and is tested there
        there = (page.parent / path) if path else page
        assert there.exists(), target
        assert not anchor or anchor in slugs(there.read_text("utf-8")), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_start_after_a_blank_line(page):
    """GitHub shows a list without one, the site does not."""
    text = FENCE.sub("", page.read_text("utf-8"))
    assert not re.findall(r"^(?!- |\d+\. |\s|<!--)\S.*\n(?:- |1\. ).*", text, re.MULTILINE)


class Parsed(BaseException):
    """A command line was read; nothing more is to happen. No handler of the program catches it."""


@functools.cache
def command_lines(page):
    """Return the commands of a page: lines of code blocks, and code in the text."""
    text = page.read_text("utf-8")
    lines = [line for _, block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(longtail [^`\n]+ --[^`\n]+)`", FENCE.sub("", text))
    found = [re.search(r"^(?:torchrun .*-m )?(longtail [a-z].*)", line) for line in lines]
    return [re.split(r"  #| \| ", one[1])[0] for one in found if one and "…" not in one[1] and "--help" not in one[1]]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if command_lines(page) and page.stem != "CHANGELOG"], ids=lambda page: page.stem
)
def test_commands_have_existing_flags(page, monkeypatch, capsys):
    read = Parser.read

    def stop(self, words):
        raise Parsed(read(self, words))

    monkeypatch.setattr(Parser, "read", stop)
    for line in command_lines(page):
        words = shlex.split(line)[1:]
        if "--plugin" in words:
            continue  # test_docs.py runs them
        try:
            cli.main(words)
        except Parsed as parsed:
            given = vars(parsed.args[0])
        else:  # text may mention a flag without its value
            assert f"Expected a value after {words[-1]}, but got none." in capsys.readouterr().err, line
            continue
        named = [*(given.get("methods") or []), *(given.get("method") or [])]
        assert not {name.partition(":")[0] for name in named} - set(METHODS), line


def test_a_page_of_the_gallery_has_prose_figure_and_code(tmp_path):
    script = tmp_path / "plain_loop.py"
    docstring, prose = '"""A plain loop.\n\nWhat it shows.\n"""', "# ## The end\n#\n# Zeros."
    script.write_text(f"{docstring}\n\nimport torch\n\n{prose}\n\nprint(torch.zeros(1))\n", "utf-8")
    page = gallery_page(script, Path("plain_loop.png"))
    assert page.startswith("# A plain loop\n\nWhat it shows.\n")
    assert "not evidence" in page
    assert "![Figure of plain_loop](plain_loop.png)" in page
    code = [text for language, text in FENCE.findall(page) if language == "python"]
    assert code == ["import torch\n", "print(torch.zeros(1))\n"]
    assert "```\n\n## The end\n\nZeros.\n\n```python" in page
    assert "![" not in gallery_page(script, None)

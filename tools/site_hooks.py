"""MkDocs hook: pages of the gallery, the API and the results, and links to files of the repository outside docs/."""

import ast
import importlib
import pkgutil
import posixpath
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"
FIGURES = ROOT / "build" / "gallery"  # `make gallery` writes NAME.png there; a build runs nothing
OUTSIDE = ("results/README.md", "results/natural.md", "results/unseen.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the site that are not in docs/."""
INTERNAL = {"cli", "kernels"}
FIRST = {
    *("ClassBalancedSoftmaxLoss", "class_balanced_softmax", "load", "open_path", "Model", "build_model"),
    *("Recipe", "defaults", "train", "Study", "StudyPlan", "Results", "diagnose", "export"),
}
"""Names that the reference of a module starts with; constants come last."""

DEMONSTRATION = (
    "A demonstration of the code, not evidence for a method: the data is small, and settings were tuned to make a "
    "clear figure quickly. Evidence is in the [results](../../results/README.md)."
)

SCRIPT = re.compile(r"^- \[.*\]\(../../examples/gallery/(\w+)\.py\)$", re.MULTILINE)
LINK = re.compile(r"(\]\(|<img src=\")([^)\s\"#]+)((?:#[^)\s\"]*)?[)\"])")
PROSE = re.compile(r"(^# ## .*(?:\n#.*)*)", re.MULTILINE)
CODE = re.compile(r"(<pre\b.*?</pre>)|<code>([^<]*)</code>", re.DOTALL)
LONG_CELL = re.compile(r'<td(?: style="text-align: right;")?>([^<]{26,}</td>)')
FLAG = re.compile(r"(?<![\w-])-{1,2}[a-z][\w-]*")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def public_modules(package: str = "longtail") -> list[str]:
    """Return the modules below a package that have an ``__all__``; of a subpackage without one, its modules."""
    found = []
    for one in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        name = one.name.rpartition(".")[2]
        if name.startswith("_") or name in INTERNAL:
            continue
        if hasattr(importlib.import_module(one.name), "__all__"):
            found.append(one.name)
        elif one.ispkg:
            found += public_modules(one.name)
    return found


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module, also those that it imports on use."""
    return [*module.__all__, *sorted(set(dir(module)) - set(vars(module)) - set(module.__all__))]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    for section in config.nav or []:
        if "Gallery" in section:
            section["Gallery"] += [f"gallery/{script.stem}.md" for script in gallery()]
        if "API" in section:
            section["API"] += [f"api/{name.removeprefix('longtail.')}.md" for name in public_modules()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for script in gallery():
        figure = figure_of(script)
        if figure is not None:
            files.append(File.generated(config, f"gallery/{script.stem}{figure.suffix}", abs_src_path=str(figure)))
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=gallery_page(script, figure)))
    modules = public_modules()
    for name in modules:
        page = f"api/{name.removeprefix('longtail.')}.md"
        files.append(File.generated(config, page, content=api_page(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill lists of generated pages, and let links to files of the repository lead to copies of them in the site."""
    if page.file.src_uri == "gallery/index.md":
        markdown = SCRIPT.sub(lambda match: card(SCRIPTS / f"{match[1]}.py"), markdown)
    if page.file.src_uri == "api/index.md":
        lines = []
        for name in public_modules():
            summary = (importlib.import_module(name).__doc__ or "").partition("\n")[0]
            short = name.removeprefix("longtail.")
            lines.append(f"- [`{short}`]({short}.md): {summary}\n")
        markdown += "\n" + "".join(lines) + "\n" + top_level_names()
    home = page.file.src_uri if page.file.src_uri in OUTSIDE else f"docs/{page.file.src_uri}"

    def relative(match: re.Match[str]) -> str:
        opening, target, closing = match.groups()
        if ":" in target or target.startswith("/"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        uri = path.removeprefix("docs/")
        if path == "README.md":
            uri = "index.md"
        if files.get_file_from_path(uri) is None and (ROOT / path).is_file():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
        return opening + posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + closing

    parts = FENCE.split(markdown)
    return "".join(part if place % 2 else LINK.sub(relative, part) for place, part in enumerate(parts))


def on_page_content(html: str, **_: Any) -> str:
    """Keep a browser from breaking a flag such as ``--out`` after its hyphens; mark cells of text in tables."""

    def whole(match: re.Match[str]) -> str:
        block, code = match.groups()
        return block or "<code>" + FLAG.sub(r'<span class="flag">\g<0></span>', code) + "</code>"

    return CODE.sub(whole, LONG_CELL.sub(r'<td class="long">\1', html))


def gallery() -> list[Path]:
    """Return the scripts of the gallery, in the order of its page."""
    return [SCRIPTS / f"{name}.py" for name in SCRIPT.findall((ROOT / "docs/gallery/index.md").read_text("utf-8"))]


def figure_of(script: Path) -> Path | None:
    """Return the figure that `make gallery` made, if any."""
    found = [FIGURES / f"{script.stem}.{suffix}" for suffix in ("png", "svg")]
    return next((path for path in found if path.is_file()), None)


def card(script: Path) -> str:
    """Return a script's card: its figure, its title, and what it shows, up to the first ``.``, ``:`` or ``;``."""
    title, _, text = (ast.get_docstring(ast.parse(script.read_text("utf-8"))) or "").partition(".\n\n")
    shown = re.split(r"[.:;]\s", text.removeprefix("This example shows "))[0].replace("\n", " ")
    figure = figure_of(script)
    picture = f"![]({figure.name}) " if figure is not None else ""
    return f"- [{picture}**{title}**]({script.stem}.md)\n\n    {shown[:1].upper()}{shown[1:]}.\n"


def gallery_page(script: Path, figure: Path | None) -> str:
    """Return the page of a script: docstring and comments below ``# ## Title`` as prose, the figure, and the code."""
    source = script.read_text("utf-8")
    tree = ast.parse(source)
    first, _, rest = (ast.get_docstring(tree) or script.stem).partition("\n")
    code = source
    if ast.get_docstring(tree) is not None:
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno or 0 :])
    command = f"`python examples/gallery/{script.name} --out FOLDER`"
    parts = [f"# {first.rstrip('.')}", rest.strip(), DEMONSTRATION, command]
    parts += [f"![Figure of {script.stem}]({script.stem}{figure.suffix})"] if figure is not None else []
    for number, part in enumerate(PROSE.split(code)):  # code and prose in turn
        prose = re.sub(r"^# ?", "", part, flags=re.MULTILINE)
        parts.append(prose.strip() if number % 2 else f"```python\n{part.strip()}\n```" if part.strip() else "")
    return "\n\n".join(filter(None, parts)) + "\n"


def api_page(name: str) -> str:
    """Return the page of a module for mkdocstrings."""
    module = importlib.import_module(name)
    members, hidden = public_names(module), []
    members.sort(key=lambda one: (one not in FIRST, one.isupper()))
    for one in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if one.name in members:  # Griffe takes the name for the submodule that defines it
            members.remove(one.name)
            hidden.append(f"{name}.{one.name}.{one.name}")
    options = "    options:\n      members: [{}]\n"
    page = f"# {name.replace('.', '.<wbr>')}\n\n"
    if hidden:
        links = ", ".join(f"[`{path.rpartition('.')[2]}`][{path}]" for path in hidden)
        page += f"At the end of this page: {links}.\n\n"
    page += f"::: {name}\n" + options.format(", ".join(members))
    for path in hidden:
        page += f"\n::: {path}\n    options:\n      show_root_heading: true\n      show_root_toc_entry: true\n"
    return page


def top_level_names() -> str:
    """Return links to the names that ``import longtail`` has, in Markdown."""
    import longtail  # noqa: PLC0415

    modules = {name.removeprefix("longtail.") for name in public_modules()}
    names = sorted(set(public_names(longtail)) - modules, key=str.lower)
    links = []
    for name in names:
        value: Any = getattr(longtail, name)
        links.append(f"[`{name}`][{value.__module__}.{value.__qualname__}]")
    return "## Names of `longtail` itself\n\nThese can be imported from `longtail`:\n" + ",\n".join(links) + ".\n"

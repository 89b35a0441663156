"""Check and print the import graph of ``src/longtail``: packages import only packages above them, and no module cycle.

    python tools/import_graph.py            print every edge between packages, exit 1 if one points the wrong way
    python tools/import_graph.py --dot      the same as Graphviz source

Only imports that run at import time count; an import inside a function is allowed where :data:`LAZY` names it.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ORDER = (
    "_checks",
    "_registry",
    "_program",
    "_progress",
    "_io",
    "_claims",
    "_gpu",
    "classes",
    "losses",
    "posthoc",
    "metrics",
    "_ranks",
    "beta",
    "estimators",
    "data",
    "models",
    "kernels",
    "methods",
    "train",
    "inference",
    "embedding",
    "study",
    "report",
    "diagnosis",
    "integrations",
    "cli",
    "__main__",
)
"""The packages in import order: each imports only those before it."""

LAZY = {("study", "report")}
"""Edges against the order that exist inside functions only: ``Results.report`` opens the report on use."""


class Edge(NamedTuple):
    """An import statement between two modules."""

    source: str
    target: str
    lazy: bool

    @property
    def packages(self) -> tuple[str, str]:
        """The packages directly below ``longtail`` that the modules belong to."""
        return _package(self.source), _package(self.target)


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def modules_in(src: Path) -> dict[str, Path]:
    """Return the modules below ``src`` by dotted name."""
    found = {}
    for file in sorted(src.glob("longtail/**/*.py")):
        parts = file.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _imports(tree: ast.AST, lazy: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, lazy
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        else:
            yield from _imports(node, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def edges_in(src: Path) -> list[Edge]:
    """Return every import of one of our modules by another."""
    modules = modules_in(src)
    found = []
    for name, file in modules.items():
        for node, lazy in _imports(ast.parse(file.read_text(encoding="utf-8")), lazy=False):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                assert node.level == 0, f"{file}: relative import"
                module = node.module or ""
                names = [alias.name for alias in node.names if (module, alias.name) != ("longtail", "__version__")]
                targets = [sub if (sub := f"{module}.{name}") in modules else module for name in names]
            found += [Edge(name, target, lazy) for target in dict.fromkeys(targets) if target.startswith("longtail")]
    return found


def back_edges(edges: list[Edge]) -> list[Edge]:
    """Return imports that point to a package further down, or to one that is not in :data:`ORDER`, as ``longtail``."""
    place = {name: number for number, name in enumerate(ORDER)}
    found = []
    for edge in edges:
        source, target = edge.packages
        if not source or source == target:  # the top-level package imports on use
            continue
        unknown = source not in place or target not in place
        if unknown or (place[target] > place[source] and not (edge.lazy and (source, target) in LAZY)):
            found.append(edge)
    return found


def cycles(edges: list[Edge]) -> list[list[str]]:
    """Return the groups of modules that import each other at import time (Tarjan's strongly connected components)."""
    graph = defaultdict(set)
    for edge in edges:
        if not edge.lazy and edge.source != edge.target and not edge.source.startswith(f"{edge.target}."):
            graph[edge.source].add(edge.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main() -> int:
    """Print the graph and what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--dot", action="store_true", help="print Graphviz source")
    given = parser.parse_args()
    edges = edges_in(given.src)
    packages: dict[tuple[str, str], int] = defaultdict(int)
    for edge in edges:
        if edge.packages[0] != edge.packages[1] and "" not in edge.packages:
            packages[edge.packages] += 1
    if given.dot:
        print("digraph longtail {")
    for (source, target), count in sorted(packages.items()):
        print(f'  "{source}" -> "{target}" [label={count}];' if given.dot else f"{source} -> {target} ({count})")
    if given.dot:
        print("}")
    wrong, loops = back_edges(edges), cycles(edges)
    for edge in wrong:
        print(f"against the order: {edge.source} imports {edge.target}", file=sys.stderr)
    for loop in loops:
        print(f"cycle: {' <-> '.join(loop)}", file=sys.stderr)
    return 1 if wrong or loops else 0


if __name__ == "__main__":
    sys.exit(main())

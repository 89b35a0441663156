"""Packages import only packages above them, and no modules import each other in a circle."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRAPH = runpy.run_path(str(ROOT / "tools" / "import_graph.py"))


def write(root, files):
    for name, text in files.items():
        file = root / "longtail" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return GRAPH["edges_in"](root)


def test_package_has_no_back_edge_and_no_cycle():
    edges = GRAPH["edges_in"](ROOT / "src")
    assert len(edges) > 300
    assert GRAPH["back_edges"](edges) == []
    assert GRAPH["cycles"](edges) == []


def test_back_edge_is_found(tmp_path):
    edges = write(tmp_path, {"losses/a.py": "from longtail.train import b", "train/b.py": ""})
    assert [edge.packages for edge in GRAPH["back_edges"](edges)] == [("losses", "train")]


def test_import_from_the_top_level_package_is_found(tmp_path):
    """It has every name, so it would hide a back edge; only the version may come from there."""
    files = {
        "__init__.py": "",
        "losses/a.py": "from longtail import Study",
        "cli/b.py": "from longtail import __version__",
    }
    assert [edge.source for edge in GRAPH["back_edges"](write(tmp_path, files))] == ["longtail.losses.a"]


def test_import_inside_a_function_counts_unless_it_is_listed(tmp_path):
    lazy = "def f():\n    from longtail.{} import x\n"
    edges = write(tmp_path, {"study/a.py": lazy.format("report"), "data/b.py": lazy.format("cli")})
    assert [edge.packages for edge in GRAPH["back_edges"](edges)] == [("data", "cli")]


def test_package_that_is_not_in_the_order_is_found(tmp_path):
    assert GRAPH["back_edges"](write(tmp_path, {"new/a.py": "import longtail.losses"}))


def test_cycle_is_found(tmp_path):
    edges = write(tmp_path, {"data/a.py": "import longtail.data.b", "data/b.py": "from longtail.data import a"})
    assert GRAPH["cycles"](edges) == [["longtail.data.a", "longtail.data.b"]]

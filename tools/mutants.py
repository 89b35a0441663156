"""Measure how many small faults a test suite finds: mutation testing with a fixed draw.

`draw` picks mutants of a tree once, before any test is removed, and stores them in tools/mutants.json. `score` plants
each of them into a copy of a tree and runs the tests that reach it. The same mutants can be planted into a refactored
tree, so two test suites can be compared. Only the standard library is used, besides pytest in the tree.

    python tools/mutants.py draw ../old                                 # writes tools/mutants.json
    python tools/mutants.py locate .                           # where each mutant is in a tree, or why it is removed
    python tools/mutants.py apply . --id 17                                # plants one mutant into a tree, in place
    python tools/mutants.py score . --jobs 14 --budget 540 --out $OUT/scores.json
    python tools/mutants.py score . --jobs 14 --budget 540 --out $OUT/more.json --skip scores.json
    python tools/mutants.py report old.json new.json

A mutant is stored as the file, the qualified name of the function, the statement (only its head, such as `if x > 0:`,
where it has a body), the changed statement, and which of several equal statements of that function is meant.
Statements are compared by their syntax tree, so comments and line breaks do not matter. In another tree, the statement
is looked for in the function of the same name in any file. A mutant whose statement no longer exists is "gone":
`report` leaves it out of both scores. Where names of functions and variables were changed, add them to "identifiers" in
tools/renamed.json, {"old": "new"}; they are renamed in the stored statements. Where code was rewritten,
tools/mutants_successors.json has, by the number of the mutant, either its successor (the statement that does the same
job now, and the same fault in it) or why there is none, {"removed": "reason"}. If a tree has the original statement in
its old place, that one counts.

`score` has two phases. First, every test file runs once without a mutant. This finds the tests that fail anyway, which
are then left out, how long each file takes, and which mutated statements it executes. Doctests count as tests, one set
per package. Then each mutant is run with the files that execute it: the test file of its module, then the other tests
and the doctests of its package, then all others, quick ones first. A file that does not fit into --limit seconds (as
measured without a mutant) is left out, which the result says. A mutant is killed by a test that fails twice, by a
failing import, or by a time limit: one and a half times the time without a mutant, and 45 seconds. Results are appended
to --out, one line of JSON each, as they come; --skip reads such files and goes on. Tests run without a GPU and with one
thread. Packages that a machine lacks may be in folders that PYTHONPATH names.
"""

import argparse
import ast
import copy
import fnmatch
import importlib.util
import io
import json
import math
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MUTANTS = HERE / "mutants.json"
RENAMED = HERE / "renamed.json"
SUCCESSORS = HERE / "mutants_successors.json"
PACKAGES = ("losses", "metrics", "data", "train", "study")
PER_PACKAGE = 24
PER_KIND = 5
"""At most this many mutants of a package are of one kind."""
SEED = 17
FOLDERS = ("src/longtail", "reproduction")
"""Where a statement may be."""
LONGEST = 600
"""Statements of more characters are tables of data."""

GPU_FILES = ("*_kernel.py", "device_decode.py", "capturing.py", "graphs.py", "streams.py", "gathering.py")
"""Files whose code runs on a GPU only."""
GPU_WORDS = ("cuda", "triton", "mps", "pinned", "pin_memory", "Stream")
"""A statement with one of these, and the body of an `if` with one of these, is left alone."""

Compound = ast.If | ast.While | ast.For | ast.With
Simple = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr | ast.Continue | ast.Break

NO_EFFECT_CALLS = {"fsync", "flush", "close", "collect", "empty_cache", "sleep", "unlink", "rmtree", "manual_seed"}
"""Calls that a test cannot miss, or that only tidy up."""
MESSAGE_CALLS = {"warn", "info", "debug", "exception", "told", "nearest", "cast", "TypeVar", "overload"}
"""Calls whose arguments are messages or types."""
NO_EFFECT_KEYWORDS = {
    *("strict", "indent", "encoding", "errors", "timeout", "daemon", "exist_ok", "parents", "missing_ok", "stacklevel"),
    *("non_blocking", "num_workers", "prefetch_factor", "ensure_ascii", "allow_nan", "digest_size", "check", "dpi"),
    *("check_labels", "set_to_none", "full_state_update"),
}
"""Arguments whose change has no visible effect, or one on speed or looks alone."""
SKIPPED_FUNCTIONS = {"__repr__", "__del__"}

EQUIVALENT: dict[str, str] = {
    "src/longtail/metrics/streaming.py ClassStatisticsMetric: full_state_update = True": "the same values, slower",
    "src/longtail/data/resident_files.py ResidentFiles._shrunk: together = max(1, _VALUES * shape.numel())": "memory",
    "src/longtail/train/fleet.py Fleet.steps: pass": "CUDA streams",
    "src/longtail/train/drivers.py Captured.settle: pass": "CUDA streams",
    "src/longtail/study/estimate.py _try: "
    "trainer = Trainer(replace(recipe, evaluate_every=0, checkpoint_epochs=1), RunFolder(nowhere))": "a trial of steps",
}
"""Drawn mutants that cannot be told from the original, "file function: mutated statement", and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("draw", "choose mutants of a tree"),
        ("locate", "say where the mutants are in a tree"),
        ("apply", "plant one mutant into a tree"),
        ("score", "run the tests on every mutant"),
    ):
        one = commands.add_parser(name, help=about)
        one.add_argument("tree", type=Path, help="the top folder of a checkout")
        one.add_argument("--mutants", type=Path, default=MUTANTS, help="default: tools/mutants.json")
        if name != "draw":
            one.add_argument("--renamed", type=Path, default=RENAMED, help="has renamed identifiers")
            one.add_argument("--successors", type=Path, default=SUCCESSORS, help="has successors and reasons")
        if name == "apply":
            one.add_argument("--id", type=int, required=True)
        if name == "score":
            one.add_argument("--tests", nargs="+", default=["tests", "src"], help="folders or files with tests")
            one.add_argument("--ids", type=int, nargs="+", help="some of the mutants")
            one.add_argument("--jobs", type=int, default=1, help="processes at a time")
            one.add_argument("--limit", type=float, default=240.0, help="seconds of tests per mutant")
            one.add_argument("--budget", type=float, default=math.inf, help="seconds after which it stops")
            one.add_argument("--out", type=Path, required=True, help="results, one line of JSON each")
            one.add_argument("--skip", type=Path, nargs="+", default=[], help="earlier results to go on from")
    one = commands.add_parser("report", help="scores by package, and survivors")
    one.add_argument("scores", type=Path, nargs="+", help="results of one tree, or of the old one and the new one")
    one.add_argument("--mutants", type=Path, default=MUTANTS)
    one.add_argument("--successors", type=Path, default=SUCCESSORS)
    given = parser.parse_args(arguments)
    return COMMANDS[given.command](given)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Mutant:
    """One changed statement."""

    id: int
    package: str
    kind: str
    file: str
    function: str
    """Its qualified name, or "" outside functions and classes."""
    statement: str
    mutated: str
    occurrence: int
    """Which of the equal statements of the function, from 0."""

    def renamed(self, names: Mapping[str, str]) -> "Mutant":
        """The same mutant where identifiers have other names."""
        if not names:
            return self
        function = ".".join(names.get(part, part) for part in self.function.split("."))
        texts = [rename_identifiers(text, names) for text in (self.statement, self.mutated)]
        return Mutant(
            self.id, self.package, self.kind, self.file, function, texts[0], texts[1], occurrence=self.occurrence
        )


def rename_identifiers(text: str, names: Mapping[str, str]) -> str:
    """A statement with other names in it."""
    node = parsed(text)
    for one in ast.walk(node):
        for field in ("id", "attr", "arg"):
            value = getattr(one, field, None)
            if isinstance(value, str) and value in names:
                setattr(one, field, names[value])
    return head_text(node)


def read_mutants(file: Path) -> list[Mutant]:
    """The mutants in a file."""
    return [Mutant(**one) for one in json.loads(file.read_text(encoding="utf-8"))["mutants"]]


def read_names(file: Path) -> dict[str, str]:
    """Renamed identifiers."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found: dict[str, str] = content.get("identifiers", {})
    return found


def read_successors(file: Path) -> dict[int, dict[str, Any]]:
    """By mutant: the fields of its successor, or ``{"removed": reason}``."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {int(number): one for number, one in content.items()}


def reason(successors: Mapping[int, Mapping[str, Any]], number: int) -> str | None:
    """Why a mutant has no place in the new code."""
    found: str | None = successors.get(number, {}).get("removed")
    return found


# --- statements


@dataclass(frozen=True)
class Place:
    """A statement in a file."""

    file: str
    function: str
    node: ast.stmt
    guarded: bool
    """Whether it is run on a GPU only."""


def head(node: ast.stmt) -> ast.stmt:
    """A statement without its body."""
    if not isinstance(node, Compound):
        return node
    short = copy.copy(node)
    short.body = [ast.Pass()]
    if not isinstance(short, ast.With):
        short.orelse = []
    return short


def head_text(node: ast.stmt) -> str:
    """The source of a statement, up to the colon where it has a body."""
    text = ast.unparse(head(node))
    return text.removesuffix("\n    pass") if isinstance(node, Compound) else text


def parsed(text: str) -> ast.stmt:
    """The statement of a source text as :func:`head_text` writes it."""
    inside = f"{text}\n    pass" if text.endswith(":") else text
    loop = ast.parse("while True:\n" + "\n".join(f" {line}" for line in inside.splitlines()))  # allows `continue`
    outer = loop.body[0]
    assert isinstance(outer, ast.While)
    return outer.body[0]


def fingerprint(node: ast.stmt) -> str:
    """What equal statements have in common, in any version of Python that reads both."""
    return ast.dump(head(node))


def statements(path: Path, root: Path) -> Iterator[Place]:
    """All statements of a file with the function that they are in."""
    file = path.relative_to(root).as_posix()

    def visit(body: Iterable[ast.AST], function: str, guarded: bool) -> Iterator[Place]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                on_gpu = any(mentions_gpu(one) for one in node.decorator_list)
                yield from visit(node.body, f"{function}.{node.name}".lstrip("."), guarded or on_gpu)
                continue
            if isinstance(node, ast.stmt):
                here = guarded or mentions_gpu(head(node))
                yield Place(file, function, node, here)
                inner = here if isinstance(node, ast.If | ast.With) else guarded
                yield from visit(getattr(node, "body", []), function, inner)
                for field in ("handlers", "orelse", "finalbody", "cases"):
                    yield from visit(getattr(node, field, []), function, guarded)
            else:  # an exception handler or a case
                yield from visit(getattr(node, "body", []), function, guarded)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")).body, "", False)


def mentions_gpu(node: ast.AST) -> bool:
    """Whether code is about a GPU."""
    return any(word in ast.unparse(node) for word in GPU_WORDS)


# --- drawing


def draw(given: argparse.Namespace) -> int:
    """Choose mutants and write them down."""
    root = given.tree.resolve()
    found: list[Mutant] = []
    for package in PACKAGES:
        chosen = draw_package(root, package)
        found += [Mutant(len(found) + number, *one) for number, one in enumerate(chosen)]
    commit = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    about = {"commit": commit.stdout.strip(), "seed": SEED}
    lines = ",\n".join(f"  {json.dumps(asdict(one), ensure_ascii=False)}" for one in found)
    given.mutants.write_text(f'{{\n "drawn": {json.dumps(about)},\n "mutants": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    say(f"{given.mutants}: {len(found)} mutants; kinds: {dict(Counter(one.kind for one in found))}")
    return 0


def draw_package(root: Path, package: str) -> list[tuple[str, str, str, str, str, str, int]]:
    """The mutants of one package: statements by their number of lines, then any kind, then any change of that kind."""
    chance = random.Random(f"{SEED} {package}")
    weighted = []
    for path in sorted((root / "src/longtail" / package).rglob("*.py")):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in GPU_FILES):
            continue
        seen: Counter[tuple[str, str]] = Counter()
        for place in statements(path, root):
            key = (place.function, fingerprint(place.node))
            occurrence, seen[key] = seen[key], seen[key] + 1
            size = len(head_text(place.node)) // 100 + 1  # lines of a formatted statement
            weighted.append((-math.log(1.0 - chance.random()) / size, place, occurrence))
    weighted.sort(key=lambda one: one[0])
    found: list[tuple[str, str, str, str, str, str, int]] = []
    kinds: Counter[str] = Counter()
    for _, place, occurrence in weighted:
        options = changes(place)
        if not options:
            continue
        kind = chance.choice(sorted(options))
        mutated = chance.choice(options[kind])
        if f"{place.file} {place.function}: {mutated}" in EQUIVALENT or kinds[kind] == PER_KIND:
            continue
        kinds[kind] += 1
        found.append((package, kind, place.file, place.function, head_text(place.node), mutated, occurrence))
        if len(found) == PER_PACKAGE:
            return found
    raise SystemExit(f"Expected {PER_PACKAGE} mutants of {package}, but there are only {len(found)}.")


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES = {
    **{"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "any": "all", "floor": "ceil"},
    **{"nanmin": "nanmax", "clamp_min": "clamp_max"},
}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}


def changes(place: Place) -> dict[str, list[str]]:
    """The mutated texts of a statement, by kind."""
    node = place.node
    if place.guarded or not isinstance(node, Compound | Simple) or not is_code(node) or has_prose(node):
        return {}
    if set(place.function.split(".")) & SKIPPED_FUNCTIONS:
        return {}
    found: dict[str, list[str]] = defaultdict(list)
    short, original = head(node), head_text(node)
    for target in expressions(short):
        for kind, new in replacements(target):
            found[kind].append(head_text(replaced(short, target, new)))
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        found["negated condition"].append(head_text(replaced(short, node.test, negated(node.test))))
    if isinstance(node, ast.Return) and node.value is not None and not is_constant(node.value, None):
        found["return None"].append("return None")
    if is_droppable(node):
        found["dropped statement"].append("pass")
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC and not joins(node):
        changed = copy.copy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        found["arithmetic operator"].append(head_text(changed))
    if isinstance(node, ast.Continue | ast.Break):
        found["dropped statement"].append("break" if isinstance(node, ast.Continue) else "continue")
    kept = {kind: [text for text in texts if text != original and compiles(text)] for kind, texts in found.items()}
    return {kind: texts for kind, texts in kept.items() if texts}


def compiles(text: str) -> bool:
    """Whether a changed statement is Python."""
    try:
        parsed(text)
    except SyntaxError:
        return False
    return True


def is_code(node: ast.stmt) -> bool:
    """Whether a statement computes something: no docstring, list of names, alias of a type or message."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name, text = node.targets[0].id, ast.unparse(node.value)
        is_alias = name[:1].isupper() and not name.isupper() and "(" not in text
        return not (name.startswith("__") or is_alias or text.startswith(("Literal[", "TypeVar(")))
    return not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def is_constant(node: ast.AST, value: object) -> bool:
    """Whether an expression is this constant."""
    return isinstance(node, ast.Constant) and node.value is value


def is_droppable(node: ast.stmt) -> bool:
    """Whether a statement can be left out without an undefined name, and with an effect."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return called(node.value) not in NO_EFFECT_CALLS | MESSAGE_CALLS
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign)


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement, without types, messages and text."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "type_comment", "body"} and not isinstance(node, ast.IfExp | ast.Lambda):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.keyword) and child.arg in NO_EFFECT_KEYWORDS:
                continue
            if isinstance(child, ast.Call) and called(child) in MESSAGE_CALLS:
                continue
            if isinstance(node, ast.Call) and called(node) in {"isinstance", "issubclass"} and child is node.args[-1]:
                continue
            yield child
            yield from expressions(child)


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What an expression may be replaced by, with the kind of the change."""
    new: Any = copy.copy(node)
    if isinstance(node, ast.BoolOp):
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean operator", new
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not joins(node):
        new.op = ARITHMETIC[type(node.op)]()
        yield "arithmetic operator", new
    elif isinstance(node, ast.IfExp):
        new.test = negated(node.test)
        yield "negated condition", new
    elif isinstance(node, ast.comprehension) and node.ifs:
        new.ifs = [negated(node.ifs[0]), *node.ifs[1:]]
        yield "negated condition", new
    for kind, change in SPECIAL.items():
        if isinstance(node, kind):
            yield from change(node)


def other_comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    """The comparison with another operator."""
    for operator in COMPARISONS[type(node.ops[0])] if len(node.ops) == 1 else ():
        new = copy.copy(node)
        new.ops = [operator()]
        yield "comparison operator", new


def without_sign(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    """The operand of `not`, `-` or `~`."""
    if isinstance(node.op, ast.Not | ast.USub | ast.Invert) and not isinstance(node.operand, ast.Constant):
        yield "boolean operator" if isinstance(node.op, ast.Not) else "arithmetic operator", node.operand


def other_slices(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    """The slice with one of its bounds moved by one."""
    for side in ("lower", "upper"):
        bound = getattr(node, side)
        if bound is not None:
            new = copy.copy(node)
            setattr(new, side, ast.BinOp(bound, ast.Add(), ast.Constant(1)))
            yield "slice", new


def other_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """The call of the opposite function, such as max for min."""
    new, name = copy.copy(node), called(node)
    if name in OPPOSITES and (node.args or node.keywords):
        new.func = copy.copy(node.func)
        setattr(new.func, "attr" if isinstance(node.func, ast.Attribute) else "id", OPPOSITES[name])
        yield "min or max", new
    elif name == "clamp" and len(node.keywords) == 1 and not node.args:
        (bound,) = node.keywords
        new.keywords = [ast.keyword(OPPOSITES.get(bound.arg or "", bound.arg), bound.value)]
        yield "min or max", new


def other_constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    """Constants that differ a little; none for text and for tiny numbers, which only avoid a division by zero."""
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
        if value:
            yield "constant", ast.Constant(value - 1)
    elif isinstance(value, float) and (value == 0 or abs(value) >= 1e-6):
        yield "constant", ast.Constant(value + 1)
        if value:
            yield "constant", ast.Constant(value * 2)


SPECIAL: dict[type[ast.AST], Callable[[Any], Iterator[tuple[str, ast.AST]]]] = {
    ast.Compare: other_comparisons,
    ast.UnaryOp: without_sign,
    ast.Slice: other_slices,
    ast.Call: other_calls,
    ast.Constant: other_constants,
}


def joins(node: ast.AST) -> bool:
    """Whether an expression has text or a list in it, so that + and * join and repeat."""
    kinds = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    return any(
        isinstance(one, kinds) or (isinstance(one, ast.Constant) and isinstance(one.value, str | bytes))
        for one in ast.walk(node)
    )


def has_prose(node: ast.stmt) -> bool:
    """Whether a statement has a sentence in it, which will be rewritten, or is a table of data."""
    texts = [one.value for one in ast.walk(head(node)) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(len(text) >= 12 and " " in text.strip() for text in texts) or len(head_text(node)) > LONGEST


def negated(node: ast.expr) -> ast.expr:
    """The opposite of a condition."""
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return node.operand if is_not else ast.UnaryOp(ast.Not(), node)  # type: ignore[attr-defined]


def replaced(statement: ast.stmt, target: ast.AST, new: ast.AST) -> ast.stmt:
    """A statement with another expression in the place of one."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is target else self.generic_visit(shallow(node))

    def shallow(node: ast.AST) -> ast.AST:
        fresh = copy.copy(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(fresh, field, list(value))
        return fresh

    found: ast.stmt = Replace().visit(statement)
    return found


# --- finding mutants in a tree, and planting them


class Sources:
    """The statements of a tree, by what they say."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.places: dict[str, list[Place]] = defaultdict(list)
        for path in (path for folder in FOLDERS for path in sorted((self.root / folder).rglob("*.py"))):
            for place in statements(path, self.root):
                self.places[fingerprint(place.node)].append(place)

    def settle(
        self, mutant: Mutant, names: Mapping[str, str], successors: Mapping[int, Mapping[str, Any]]
    ) -> tuple[Mutant, Place | None]:
        """A mutant as this tree has it: in its old place, or its successor, or moved or renamed; and where it is."""
        given = successors.get(mutant.id, {})
        tried = [(mutant, True)]
        if "statement" in given:
            tried.append((replace(mutant, **given), True))
        else:
            tried += [(mutant.renamed(names), False), (mutant, False)]
        for one, exact in tried:
            place = self.find(one, exact=exact)
            if place is not None:
                return one, place
        return mutant, None

    def find(self, mutant: Mutant, *, exact: bool = False) -> Place | None:
        """Where a mutant's statement is; None if it is gone or there are several that it might be."""
        equal = self.places.get(fingerprint(parsed(mutant.statement)), [])
        bare = mutant.function.rpartition(".")[2].strip("_")
        rules: list[Callable[[Place], bool]] = [
            lambda place: place.function == mutant.function and place.file == mutant.file,
            lambda place: place.function == mutant.function and Path(place.file).name == Path(mutant.file).name,
            lambda place: place.function == mutant.function,
            lambda place: bool(bare) and place.function.rpartition(".")[2].strip("_") == bare,
        ]
        for rule in rules[:1] if exact else rules:
            functions: dict[tuple[str, str], list[Place]] = defaultdict(list)
            for place in filter(rule, equal):
                functions[place.file, place.function].append(place)
            if len(functions) == 1:
                (there,) = functions.values()
                return there[mutant.occurrence] if mutant.occurrence < len(there) else None
        return None


def planted(content: str, place: Place, mutated: str) -> str:
    """A file's content with a mutant in it."""
    lines = content.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data, node = b"".join(lines), place.node
    first = starts[node.lineno - 1] + node.col_offset
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    last = starts[node.end_lineno - 1] + node.end_col_offset
    if isinstance(node, Compound):
        inner = node.body[0]
        until = starts[inner.lineno - 1] + inner.col_offset
        last = first + colon(data[first:until].decode())
        mutated = mutated.removesuffix(":")
        if data[first:].startswith(b"elif"):
            mutated = "el" + mutated
    return (data[:first] + mutated.encode() + data[last:]).decode()


def colon(text: str) -> int:
    """Where the colon is, in bytes, that ends the head of a statement."""
    lines = text.splitlines(keepends=True)
    depth, found = 0, None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if token.string == ":" and depth == 0:
                    found = token.start
    except (tokenize.TokenError, IndentationError):  # the body is missing
        pass
    assert found is not None, text
    row, column = found
    return len("".join([*lines[: row - 1], lines[row - 1][:column]]).encode())


def locate(given: argparse.Namespace) -> int:
    """Print where each mutant is, or why it is nowhere."""
    sources, names, successors = Sources(given.tree), read_names(given.renamed), read_successors(given.successors)
    number: Counter[str] = Counter()
    for mutant in read_mutants(given.mutants):
        one, place = sources.settle(mutant, names, successors)
        why = reason(successors, mutant.id)
        kind = ("found" if one == mutant else "renamed") if place else "removed" if why else "gone"
        if place and "statement" in successors.get(mutant.id, {}) and one != mutant:
            kind = "successor"
        number[kind] += 1
        where = f"{kind} {place.file}:{place.node.lineno}" if place else f"removed ({why})" if why else "gone"
        say(f"{mutant.id:3} {where}  {mutant.file} {one.function}: {one.statement}  ->  {one.mutated}")
    say(", ".join(f"{many} {kind}" for kind, many in number.items()))
    return 0


def apply(given: argparse.Namespace) -> int:
    """Plant one mutant."""
    mutant = next(one for one in read_mutants(given.mutants) if one.id == given.id)
    successors = read_successors(given.successors)
    mutant, place = Sources(given.tree).settle(mutant, read_names(given.renamed), successors)
    if place is None:
        why = reason(successors, mutant.id) or "it is gone"
        say(f"{mutant.id}: {why}: {mutant.file} {mutant.function}: {mutant.statement}")
        return 1
    path = given.tree / place.file
    path.write_text(planted(path.read_text(encoding="utf-8"), place, mutant.mutated), encoding="utf-8")
    say(f"{place.file}:{place.node.lineno} {mutant.statement}  ->  {mutant.mutated}")
    return 0


# --- running tests

PROBE = '''
"""Notes which lines are executed; loaded by every Python process of a test run as sitecustomize."""

import os
import sys

FILE, ROOT = os.environ.get("MUTANTS_REACHED"), os.environ.get("MUTANTS_ROOT", "")
TARGETS = {}
for part in filter(None, os.environ.get("MUTANTS_TARGETS", "").split(";")):
    name, first, last, number = part.split(":")
    for line in range(int(first), int(last) + 1):
        TARGETS.setdefault((os.path.join(ROOT, name), line), set()).add(number)
FILES = {name for name, _ in TARGETS}


def note(numbers):
    descriptor = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, "".join(f"{number}\\n" for number in numbers).encode())
    os.close(descriptor)


def watch():
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring

        def line_run(code, line):
            if code.co_filename in FILES and (code.co_filename, line) in TARGETS:
                note(TARGETS[code.co_filename, line])
            return monitoring.DISABLE

        monitoring.use_tool_id(4, "mutants")
        monitoring.register_callback(4, monitoring.events.LINE, line_run)
        monitoring.set_events(4, monitoring.events.LINE)
        return
    import threading

    def inside(frame, event, _):
        key = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and key in TARGETS:
            note(TARGETS.pop(key))
        return inside

    def outside(frame, *_):
        return inside if frame.f_code.co_filename in FILES else None

    sys.settrace(outside)
    threading.settrace(outside)


if FILE and TARGETS:
    watch()
'''
PLUGIN = '''
"""Notes which tests fail."""

import os


def failed(name):
    with open(os.environ["MUTANTS_FAILED"], "a", encoding="utf-8") as file:
        file.write(name + "\\n")


def pytest_runtest_logreport(report):
    if report.failed:
        failed(report.nodeid)


def pytest_collectreport(report):
    if report.failed:
        failed("import of " + report.nodeid)
'''
LEFT_AT_HOME = {".git", ".venv", "runs", "data", "packs", "vendor", "shared", ".hypothesis", ".pytest_cache"}
"""Of the top folder; not copied."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run of tests."""

    code: int
    """The exit code; -1 where it took too long."""
    seconds: float
    cpu: float
    failed: tuple[str, ...]
    reached: tuple[int, ...]
    said: str

    @property
    def killed_by(self) -> str | None:
        """The first test that failed, or what else went wrong."""
        if self.code in {0, NO_TESTS}:
            return None
        if self.failed:
            return self.failed[0]
        if self.code == WRONG_USE and "while loading conftest" in self.said:
            return f"{IMPORT}conftest.py"
        return "time limit" if self.code == TIMEOUT else f"exit code {self.code}"


IMPORT = "import of "
NO_TESTS = 5  # pytest's exit code
WRONG_USE = 4
TIMEOUT = -1000


class Copy:
    """A copy of a tree in which one job runs tests."""

    def __init__(self, template: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self.probe = folder / "probe"
        self.scratch = folder / "scratch"
        self.cpu = 0.0
        """Seconds that all test runs here took."""
        shutil.copytree(template, self.root)
        self.probe.mkdir()
        (self.probe / "sitecustomize.py").write_text(PROBE, encoding="utf-8")
        (self.probe / "mutants_plugin.py").write_text(PLUGIN, encoding="utf-8")

    def environment(self, targets: str) -> dict[str, str]:
        """Of pytest: this copy's package, one thread, no GPU."""
        more = [str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        changed = {
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.probe), *more]),
            "OMP_NUM_THREADS": "1",
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.scratch),
            "MUTANTS_ROOT": str(self.root),
            "MUTANTS_FAILED": str(self.scratch / "failed"),
            "MUTANTS_REACHED": str(self.scratch / "reached"),
            "MUTANTS_TARGETS": targets,
        }
        dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
        return {key: value for key, value in os.environ.items() if key not in dropped} | changed

    def pytest(self, words: Sequence[str], limit: float, targets: str = "") -> Outcome:
        """Run pytest in the copy, for at most ``limit`` seconds."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        self.scratch.mkdir()
        seed = ["--hypothesis-seed=0"] if importlib.util.find_spec("hypothesis") else []
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "mutants_plugin", *seed]
        began, log = time.monotonic(), self.scratch / "said"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *words],
                cwd=self.root,
                env=self.environment(targets),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code, cpu = wait(process, began + limit)
        self.cpu += cpu
        failed, reached = (read_lines(self.scratch / name) for name in ("failed", "reached"))
        said = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        numbers = tuple(sorted({int(number) for number in reached}))
        return Outcome(code, time.monotonic() - began, cpu, tuple(dict.fromkeys(failed)), numbers, said)


def wait(process: "subprocess.Popen[bytes]", until: float) -> tuple[int, float]:
    """The exit code and CPU seconds of a process; what is left of its group is ended."""
    code = None
    while code is None:
        number, status, usage = os.wait4(process.pid, os.WNOHANG)
        if number:
            code, cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        elif time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
            code, cpu = TIMEOUT, usage.ru_utime + usage.ru_stime
        else:
            time.sleep(0.05)
    process.returncode = code
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # processes that tests have left
    return code, cpu


def read_lines(file: Path) -> list[str]:
    """The lines of a file that may be missing."""
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


# --- scoring


@dataclass(frozen=True)
class Tests:
    """A test file, or the doctests of a package, as it is without a mutant."""

    path: str
    seconds: float
    cpu: float
    failing: tuple[str, ...]
    broken: tuple[str, ...]
    """Files that cannot be imported."""
    reached: tuple[int, ...]
    usable: bool
    """Whether it could be imported and came to its end."""

    def arguments(self) -> list[str]:
        """Of pytest: the path, without what fails anyway."""
        deselected = [word for name in self.failing for word in ("--deselect", name)]
        return [self.path, *deselected, *(f"--ignore={name}" for name in self.broken)]


def test_files(root: Path, given: Sequence[str]) -> list[str]:
    """Test files, and the packages and modules that have doctests; the longest first."""
    found: dict[str, int] = {}
    for name in given:
        top = root / name
        files = [top] if top.is_file() else sorted(top.rglob("*.py"))
        for path in files:
            file, text = path.relative_to(root), path.read_text(encoding="utf-8")
            if file.parts[0] == "src":
                if ">>> " in text:
                    unit = Path(*file.parts[:3]).as_posix()  # src/longtail/package
                    found[unit] = found.get(unit, 0) + text.count(">>> ")
            elif path.name.startswith("test_"):
                found[file.as_posix()] = len(text) // 10
    return sorted(found, key=lambda one: -found[one])


class Scoring:
    """Everything that jobs share."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.root = given.tree.resolve()
        self.began = time.monotonic()
        names, self.successors = read_names(given.renamed), read_successors(given.successors)
        sources = Sources(self.root)
        wanted = [one for one in read_mutants(given.mutants) if not given.ids or one.id in given.ids]
        settled = [sources.settle(one, names, self.successors) for one in wanted]
        self.places = {one.id: place for one, place in settled}
        self.mutants = {one.id: one for one, _ in settled}
        self.tests: dict[str, Tests] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.copies: dict[int, Copy] = {}
        self.lock = threading.Lock()
        before = [json.loads(line) for file in given.skip for line in read_lines(file)]
        for record in before:  # so that one file has all results
            self.take(record) if given.out in given.skip else self.write(record)
        self.template = folder / "template"
        kept_out = LEFT_AT_HOME
        shutil.copytree(
            self.root, self.template, ignore=lambda at, _: kept_out if Path(at).resolve() == self.root else set()
        )
        subprocess.run([sys.executable, "-m", "compileall", "-q", self.template / "src"], check=False)

    def take(self, record: dict[str, Any]) -> None:
        """Remember a result."""
        if "tests" in record:
            one = record["tests"]
            self.tests[one["path"]] = Tests(
                **{**one, "failing": tuple(one["failing"]), "reached": tuple(one["reached"])}
            )
        else:
            self.done[record["mutant"]] = record

    def write(self, record: dict[str, Any]) -> None:
        """Remember a result, and append it to the file."""
        with self.lock:
            self.take(record)
            with self.given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float(self.given.budget) - (time.monotonic() - self.began)

    def targets(self) -> str:
        """The lines of all mutants, for the probe."""
        parts = []
        for number, place in self.places.items():
            if place is not None:
                node = place.node
                last = node.body[0].lineno - 1 if isinstance(node, Compound) else node.end_lineno
                parts.append(f"{place.file}:{node.lineno}:{max(node.lineno, last or 0)}:{number}")
        return ";".join(parts)

    def run(self, tasks: Sequence[Any], work: Callable[[Copy, Any], None]) -> None:
        """Do all tasks, in order, in as many copies as there are jobs; stop when the budget is spent."""
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        errors: list[BaseException] = []

        def job(number: int) -> None:
            folder = self.folder / f"job{number}"
            try:
                if number not in self.copies:
                    self.copies[number] = Copy(self.template, folder)
                while self.left > 0 and not errors:
                    work(self.copies[number], waiting.get_nowait())
            except queue.Empty:
                return
            except BaseException as error:  # raised again below
                errors.append(error)

        threads = [threading.Thread(target=job, args=(number,)) for number in range(min(self.given.jobs, len(tasks)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def measure(self, at: Copy, path: str) -> None:
        """Run a test file without a mutant."""
        limit = min(600.0, self.left)
        outcome = at.pytest(["--continue-on-collection-errors", path], limit, self.targets())
        if outcome.code == TIMEOUT and self.left <= 0:
            return
        broken = tuple(name.removeprefix(IMPORT) for name in outcome.failed if name.startswith(IMPORT))
        failing = tuple(name for name in outcome.failed if not name.startswith(IMPORT))
        usable = outcome.code == 0 or (outcome.code == 1 and bool(outcome.failed) and path not in broken)
        seconds, cpu = round(outcome.seconds, 1), round(outcome.cpu, 1)
        tests = Tests(path, seconds, cpu, failing, broken, outcome.reached, usable)
        self.write({"tests": asdict(tests)} | ({} if outcome.code == 0 else {"said": outcome.said}))
        about = f", {len(failing)} failing" * bool(failing) + f", {len(broken)} not imported" * bool(broken)
        last = outcome.said.strip().splitlines()[-1] if outcome.said.strip() else f"exit code {outcome.code}"
        say(f"{path}: {outcome.seconds:.0f} s{about}{'' if usable else f', not usable: {last}'}")

    def plan(self, mutant: Mutant) -> tuple[list[list[Tests]], list[Tests]]:
        """The tests of a mutant in up to three stages, and those that do not fit into the limit."""
        place = self.places[mutant.id]
        assert place is not None
        parts = Path(place.file).parts
        module, package = Path(place.file).stem.strip("_"), parts[2] if parts[0] == "src" else parts[0]
        stages: list[list[Tests]] = [[], [], []]
        for one in self.tests.values():
            if one.usable and mutant.id in one.reached:
                path = Path(one.path)
                named = path.stem in {f"test_{module}", f"test_{Path(package).stem}"} or one.path == place.file
                nearby = len(path.parts) > 2 and (
                    path.parts[1] == package or path.parts[:3] == ("src", "longtail", package)
                )
                stages[0 if named else 1 if nearby else 2].append(one)
        left_out: list[Tests] = []
        seconds = 0.0
        for stage in stages:
            stage.sort(key=lambda one: one.seconds)
            for one in list(stage):
                seconds += one.seconds
                if seconds > self.given.limit and seconds > one.seconds:
                    stage.remove(one)
                    left_out.append(one)
        return [stage for stage in stages if stage], left_out

    def cost(self, mutant: Mutant) -> float:
        """Seconds that a mutant takes if it survives."""
        return sum(one.seconds for stage in self.plan(mutant)[0] for one in stage)

    def score(self, at: Copy, mutant: Mutant) -> None:
        """Plant a mutant, run its tests, and take it out again."""
        place = self.places[mutant.id]
        assert place is not None
        path = at.root / place.file
        content, stat = path.read_text(encoding="utf-8"), path.stat()
        stages, left_out = self.plan(mutant)
        began, cpu = time.monotonic(), at.cpu
        path.write_text(planted(content, place, mutant.mutated), encoding="utf-8")
        os.utime(path, (stat.st_atime, stat.st_mtime + 1000 + mutant.id))  # no compiled file of before counts
        try:
            by, stage = self.run_stages(at, mutant, stages)
        finally:
            path.write_text(content, encoding="utf-8")
            os.utime(path, (stat.st_atime, stat.st_mtime))
        if by is None and self.left <= 0:
            return  # it was cut short
        record = {
            "mutant": mutant.id,
            "status": "survived" if by is None else "killed",
            "by": by or ("" if stages else "no test reaches it"),
            "stage": stage,
            "seconds": round(time.monotonic() - began, 1),
            "cpu": round(at.cpu - cpu, 1),
            "left_out": [one.path for one in left_out] if by is None else [],
            "at": f"{place.file} {place.function}: `{mutant.statement}` -> `{mutant.mutated}`",
        }
        self.write(record)
        say(f"{mutant.id} {mutant.package} {record['status']} {record['by']} ({record['seconds']} s)")

    def run_stages(self, at: Copy, mutant: Mutant, stages: Sequence[Sequence[Tests]]) -> tuple[str | None, int]:
        """What kills a mutant, and in which stage."""
        place = self.places[mutant.id]
        assert place is not None
        for number, stage in enumerate(stages):
            limit = 45 + 1.5 * sum(one.seconds for one in stage)
            words = [word for one in stage for word in one.arguments()]
            flaky: list[str] = []
            while self.left > 0:
                deselected = [word for name in flaky for word in ("--deselect", name)]
                outcome = at.pytest(["-x", *words, *deselected], min(limit, self.left))
                if outcome.code == TIMEOUT and self.left <= 0:
                    return None, number
                by = outcome.killed_by
                if by == f"exit code {WRONG_USE}":
                    raise SystemExit(f"pytest refused its arguments: {outcome.said}")
                if by is None:
                    break
                if by not in outcome.failed or by.startswith(IMPORT):
                    return by, number
                again = at.pytest(["-x", by], min(limit, self.left))
                if again.killed_by is not None:
                    return by, number
                flaky.append(by)  # it fails now and then, so it says nothing about the mutant
        return None, len(stages)


def score(given: argparse.Namespace) -> int:
    """Run the tests on every mutant."""
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="longtail-mutants-") as temporary:
        scoring = Scoring(given, Path(temporary))
        for number, place in scoring.places.items():
            if place is None and number not in scoring.done:
                why = reason(scoring.successors, number)
                scoring.write({"mutant": number, "status": "gone" if why is None else "removed"})
        files = [path for path in test_files(scoring.root, given.tests) if path not in scoring.tests]
        scoring.run(files, scoring.measure)
        say(f"{len(scoring.tests)} test files after {time.monotonic() - scoring.began:.0f} s")
        if scoring.tests and not any(one.usable for one in scoring.tests.values()):
            raise SystemExit("No test file can be run here; --out has what pytest says.")
        if scoring.left > 0:
            rest = [one for one in scoring.mutants.values() if one.id not in scoring.done]
            scoring.run(sorted(rest, key=scoring.cost, reverse=True), scoring.score)
        missing = scoring.mutants.keys() - scoring.done.keys()
        say(f"{len(scoring.done)} mutants done, {len(missing)} to do, after {time.monotonic() - scoring.began:.0f} s")
    return 0


def report(given: argparse.Namespace) -> int:
    """Print scores by package and the survivors; of two trees, only of mutants that are in both."""
    mutants = {one.id: one for one in read_mutants(given.mutants)}
    trees = [read_scores(file) for file in given.scores]
    without = {"gone", "removed"}
    gone = {number for scores in trees for number, record in scores.items() if record["status"] in without}
    counted = [number for number in mutants if number not in gone and all(number in scores for scores in trees)]
    say(f"{len(counted)} of {len(mutants)} mutants counted")
    say("| package | mutants | " + " | ".join(f"killed in {file.name}" for file in given.scores) + " |")
    say("| --- | ---: |" + " ---: |" * len(trees))
    for package in (*PACKAGES, "all"):
        some = [number for number in counted if package in {"all", mutants[number].package}]
        killed = [sum(scores[number]["status"] == "killed" for number in some) for scores in trees]
        say(f"| {package} | {len(some)} | " + " | ".join(map(str, killed)) + " |")
    for file, scores in zip(given.scores, trees, strict=True):
        say(f"\nSurvivors in {file.name}:")
        for number in counted:
            record, one = scores[number], mutants[number]
            if record["status"] == "survived":
                more = f" [not run: {', '.join(record['left_out'])}]" if record["left_out"] else ""
                why = f" ({record['by']})" if record["by"] else ""
                at = record.get("at") or f"{one.file} {one.function}: `{one.statement}` -> `{one.mutated}`"
                say(f"- {number} {at}{why}{more}")
    if gone:
        successors = read_successors(given.successors)
        say("\nNot counted, because the new code has nothing like it:")
        for number in sorted(gone):
            one, why = mutants[number], reason(successors, number) or "unknown"
            killed = [scores.get(number, {}).get("status") == "killed" for scores in trees]
            before = " (killed before)" if killed[0] else ""
            say(f"- {number} {one.file} {one.function}: `{one.statement}` -> `{one.mutated}`: {why}{before}")
    return 0


def read_scores(file: Path) -> dict[int, dict[str, Any]]:
    """The results of the mutants in a file."""
    records = [json.loads(line) for line in read_lines(file)]
    return {record["mutant"]: record for record in records if "mutant" in record}


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "draw": draw,
    "locate": locate,
    "apply": apply,
    "score": score,
    "report": report,
}

if __name__ == "__main__":
    sys.exit(main())

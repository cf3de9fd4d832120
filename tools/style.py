"""Count what makes code hard to read aloud. It is a mirror, no gate.

.venv/bin/python tools/style.py                              # interp, tools and benchmarks
.venv/bin/python tools/style.py interp/models interp/hooks.py

Vague names are in percent of the bound names in functions of more than three lines; comprehensions, dict unions and
tuple assignments of unrelated values are per 1,000 lines of code. The length of a function is without docstrings.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from size import ROOT, code_lines, docstrings, statements

WORDS = """about alone apart asked at beside each every found given gone held how it its kept known left made more most
now of of_it on one ones others own rest said same sent shown so some such taken that them there these they thing
things this those told wanted what which whole why"""
VAGUE = frozenset(WORDS.split())
"""Names that do not say what is in them."""
SHORT = 3
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
HEADINGS = ("statements", "code", "vague", "compreh.", "unions", "tuples", "function")


@dataclass
class Style:
    """Counts in some files."""

    statements: int = 0
    code: int = 0
    bound: int = 0
    vague: int = 0
    comprehensions: int = 0
    unions: int = 0
    assignments: int = 0
    functions: int = 0
    lines_of_functions: int = 0

    def __add__(self, other: "Style") -> "Style":
        return Style(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def row(self) -> str:
        """A line of the table."""
        cells = [f"{self.statements:,}", f"{self.code:,}", f"{100 * self.vague / max(self.bound, 1):.2f} %"]
        for count in (self.comprehensions, self.unions, self.assignments):
            cells.append(f"{1000 * count / max(self.code, 1):.1f}")
        cells.append(f"{self.lines_of_functions / max(self.functions, 1):.1f}")
        return "".join(f"{cell:>12}" for cell in cells)


def bindings(function: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a function binds, with their lines: parameters, targets and names of errors."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def is_union(node: ast.AST) -> bool:
    """Whether a node joins dicts, with `|`, `|=` or `**`, as far as can be seen without types."""
    if isinstance(node, ast.Dict):
        return None in node.keys
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
        return isinstance(node.value, ast.Dict | ast.DictComp)
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) else []
    calls = {side.func.id for side in sides if isinstance(side, ast.Call) and isinstance(side.func, ast.Name)}
    return any(isinstance(side, ast.Dict | ast.DictComp) for side in sides) or bool(calls & {"dict", "asdict"})


def is_unrelated(node: ast.AST) -> bool:
    """Whether a node is `a, b = x, y`, where x and y are of different forms, such as a call and a number."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    values = node.value.elts if isinstance(node.value, ast.Tuple) else []
    return len({(type(value), ast.unparse(value.func) if isinstance(value, ast.Call) else "") for value in values}) > 1


def length(node: ast.stmt) -> int:
    """The number of lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def style(text: str) -> Style:
    """Count in one file."""
    tree = ast.parse(text)
    counts = Style(statements(tree), code_lines(text, tree))
    names: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = length(node) - sum(map(length, docstrings(node)))
            counts.functions += 1
            counts.lines_of_functions += lines
            if lines > SHORT:
                names.update(bindings(node))
        counts.comprehensions += isinstance(node, COMPREHENSIONS)
        counts.unions += is_union(node)
        counts.assignments += is_unrelated(node)
    counts.bound = len(names)
    counts.vague = sum(word in VAGUE for _, word in names)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Count vague names and dense statements.")
    parser.add_argument("paths", nargs="*", help="files or folders; default: interp, tools and benchmarks")
    options = parser.parse_args()
    total = Style()
    print(f"{'':24}" + "".join(f"{heading:>12}" for heading in HEADINGS))
    for path in map(Path, options.paths or [ROOT / "interp", ROOT / "tools", ROOT / "benchmarks"]):
        counts = Style()
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            counts += style(file.read_text(encoding="utf-8"))
        total += counts
        print(f"{str(path)[-23:]:24}{counts.row()}")
    print(f"{'all':24}{total.row()}")


if __name__ == "__main__":
    main()

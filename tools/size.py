"""Print the size of interp: of its code, its public names and options, its docs, and the tables of a run.

.venv/bin/python tools/size.py          # needs no package
.venv/bin/python tools/size.py RUN      # and the tables in a run directory
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "interp"
ANALYSES = PACKAGE / "analyses"
QUESTIONS = sorted(path.parent.name for path in ANALYSES.glob("*/options.py"))


def docstrings(tree: ast.AST) -> list[ast.Expr]:
    """All strings that stand alone as a statement."""
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [node for node in expressions if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]


def statements(tree: ast.AST) -> int:
    """The number of statements, without docstrings."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - len(docstrings(tree))


def code_lines(text: str, tree: ast.AST) -> int:
    """Lines that are neither blank nor only a comment or docstring."""
    lines: set[int] = set()
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(tree):
        lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def imported(tree: ast.AST) -> set[str]:
    """The modules that a file imports by their whole names."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def between_questions(trees: dict[Path, ast.Module]) -> int:
    """In how many places a file of one question imports a module of another."""
    count = 0
    for path, tree in trees.items():
        question = path.relative_to(ANALYSES).parts[0] if path.is_relative_to(ANALYSES) else ""
        if question in QUESTIONS:
            other_questions = "|".join(other for other in QUESTIONS if other != question)
            count += sum(
                bool(re.match(rf"interp\.analyses\.({other_questions})\b", module)) for module in imported(tree)
            )
    return count


def listed(trees: Iterable[ast.Module]) -> int:
    """The names in all lists called `__all__`."""
    count = 0
    for tree in trees:
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            named = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
            if named and isinstance(value := getattr(node, "value", None), ast.List):
                count += len(value.elts)
    return count


def options(question: str) -> int:
    """The options that the dataclass of an analysis adds to those it inherits."""
    tree = ast.parse((ANALYSES / question / "options.py").read_text(encoding="utf-8"))
    options_class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Options"))
    return sum(isinstance(node, ast.AnnAssign) for node in options_class.body)


def tables(run: Path) -> list[tuple[str, int]]:
    """The tables and columns in a run directory."""
    import pyarrow.parquet

    files = [pyarrow.parquet.read_metadata(path) for path in sorted(run.glob("*/*.parquet"))]
    return [
        ("tables", len(files)),
        ("empty tables", sum(file.num_rows == 0 for file in files)),
        ("columns of tables", sum(file.num_columns for file in files)),
    ]


def sizes() -> list[tuple[str, int]]:
    """The size of the code and of the docs, each with its name."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    entries = [path for path in PACKAGE.iterdir() if not path.name.startswith((".", "__pycache__"))]
    docs = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [
        ("statements", sum(map(statements, trees.values()))),
        ("lines", sum(len(text.splitlines()) for text in texts.values())),
        ("lines of code", sum(code_lines(text, trees[path]) for path, text in texts.items())),
        ("files", len(texts)),
        ("entries of interp/", len(entries)),
        ("names in __all__", listed(trees.values())),
        ("imports between questions", between_questions(trees)),
        *((f"own options of {question}", options(question)) for question in QUESTIONS),
        ("words of docs", sum(len(path.read_text(encoding="utf-8").split()) for path in docs)),
    ]


if __name__ == "__main__":
    for name, size in sizes() + [row for run in sys.argv[1:] for row in tables(Path(run))]:
        print(f"{name:28} {size:>8,}")

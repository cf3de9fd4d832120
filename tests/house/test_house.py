"""The architecture: what may import what, and that an analysis is declared in one place."""

import ast
import importlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from toys import ROOT

import interp

HOME = Path(interp.__file__).parent
QUESTIONS = {
    f"analyses.{name}"
    for name in (
        "attention",
        "controls",
        "directions",
        "encoding",
        "frequency",
        "generation",
        "probing",
        "sinks",
        "units",
    )
}
LEVELS = (
    {"support"},
    {"models"},
    {"corpora"},
    {"results"},
    {"analyses"},  # the declaration and the list, without the questions themselves and the report
    {"passes"},
    {"hooks", "figures", "testing"},
    {"instruments"},
    QUESTIONS,  # none knows another
    {"plots"},
    {"pages"},
    {"analyses.report"},
    {"cli"},
)


def imports(path: Path) -> set[str]:
    """The modules of interp that a module imports, at its top or in a function, except those for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = [
        set(ast.walk(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    found = set()
    for node in ast.walk(tree):
        if any(node in part for part in checking):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "interp":
            for item in node.names:
                inside = HOME.joinpath(*f"{node.module}.{item.name}".split(".")[1:])
                is_module = inside.is_dir() or inside.with_suffix(".py").is_file()
                found.add(f"{node.module}.{item.name}" if is_module else node.module)
        elif isinstance(node, ast.Import):
            found |= {item.name for item in node.names if item.name.split(".")[0] == "interp"}
    return {_defined_in(name) for name in found}


def _defined_in(name: str) -> str:
    return name if HOME.joinpath(*name.split(".")[1:]).with_suffix(".py").is_file() else f"{name}.__init__"


@cache
def graph() -> dict[str, set[str]]:
    named = {".".join(["interp", *path.relative_to(HOME).with_suffix("").parts]): path for path in HOME.rglob("*.py")}
    return {name: imports(path) for name, path in named.items()}


def room(module: str) -> str:
    """The part of interp that a module belongs to: of the analyses, each question and the report are one by itself."""
    parts = module.split(".")[1:]
    inside = ".".join(parts[:2])
    return inside if inside in QUESTIONS | {"analyses.report"} else parts[0]


def test_imports_go_one_way():
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    rooms = {room(module) for module in graph()}
    assert rooms - {"__init__", "__main__"} == set(level)
    wrong = []
    for module, imported in graph().items():
        for other in imported:
            here, into = room(module), room(other)
            if here in ("__init__", "__main__") or into in (here, "__init__"):
                continue
            if level[into] >= level[here]:
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_no_circular_imports():
    known = graph()
    done: set[str] = set()

    def walk(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " → ".join((*above[above.index(module) :], module))
        if module not in done:
            for other in sorted(known.get(module, ())):
                walk(other, (*above, module))
            done.add(module)

    for module in known:
        walk(module, ())


def test_the_analyses_are_listed_once():
    """Only one file contains the names of all of them, so a new analysis is one folder and one line."""
    names = ("frequency", "generation", "attention", "sinks", "encoding", "probing", "units")
    lists = [
        path.relative_to(HOME).as_posix()
        for path in HOME.rglob("*.py")
        if all(f'"{name}"' in path.read_text(encoding="utf-8") for name in names)
    ]
    assert lists == ["analyses/registry.py"]


def test_only_figures_and_pages_know_plotly():
    files = {"figures.py", "page.py", "plots.py"}
    others = [
        path.relative_to(HOME).as_posix()
        for path in HOME.rglob("*.py")
        if any(line.startswith(("import plotly", "from plotly")) for line in path.read_text("utf-8").splitlines())
        and path.name not in files
        and path.relative_to(HOME).parts[0] not in ("figures", "pages")
    ]
    assert not others


def test_figures_run_no_model():
    """They draw what they are given: none imports code that runs a model, or takes or calls a model."""
    wrong = []
    for path in (*HOME.rglob("figures.py"), *HOME.glob("figures/*.py"), HOME / "plots.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        named = {node.id for node in nodes if isinstance(node, ast.Name)}
        named |= {node.arg for node in nodes if isinstance(node, ast.arg)} & {"model"}
        found = [name for name in imports(path) if f"{name}.".startswith(("interp.passes.", "interp.models.running."))]
        found += sorted(named & {"model", "Model", "torch"})
        wrong += [f"{path.relative_to(HOME).as_posix()}: {name}" for name in found]
    assert not wrong


PUBLIC = ["", ".analyses", *(f".{name}" for name in sorted(QUESTIONS)), ".corpora", ".hooks", ".models", ".pages"]
PUBLIC += [".passes", ".results"]


def test_every_module_says_what_it_offers():
    for name in graph():
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name.removesuffix(".__init__"))
        assert all(hasattr(module, offered) for offered in module.__all__), name


def test_public_names_are_few():
    """This counts what the packages themselves offer; their modules offer more to developers who build on them."""
    modules = [importlib.import_module(f"interp{name}") for name in PUBLIC]
    offered = [getattr(module, name) for module in modules for name in module.__all__]
    assert len({id(thing) for thing in offered if not isinstance(thing, ModuleType)}) <= 71


MANY_OPTIONS = {
    "analyses.attention.ablation.ablation_effect", "analyses.attention.scores.score_contributions",
    "analyses.encoding.pruning.pruning_curve",
    "analyses.encoding.steering.steering_report", "instruments.decoding.generate",
    "instruments.prompts.prompts", "analyses.probing.accuracy.ablation_effect",
    "analyses.probing.sweeps.sweep", "corpora.batching.batches", "results.verdicts.judged",
}  # fmt: skip
"""Measures that users call; their options are keywords."""


def test_functions_fit_a_screen():
    """They have at most 60 lines without the docstring, and at most eight parameters."""
    long, many = [], set()
    for path in HOME.rglob("*.py"):
        module = ".".join(path.relative_to(HOME).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                said = node.body[0] if ast.get_docstring(node) else None
                lines = node.end_lineno - node.lineno + 1 - (said.end_lineno - said.lineno + 1 if said else 0)
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if lines > 60:
                    long.append(f"{module}.{node.name}: {lines} lines")
                if len(given) - (given[:1] != [] and given[0].arg in ("self", "cls")) > 8:
                    many.add(f"{module}.{node.name}")
    assert not long
    assert many == MANY_OPTIONS


def test_oracles_know_nothing_of_interp():
    """They import only libraries and each other; their functions and modules say what they are."""
    for path in (ROOT / "tests" / "oracles").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {part.name for node in ast.walk(tree) if isinstance(node, ast.Import) for part in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        libraries = {*sys.stdlib_module_names, "numpy", "scipy", "torch", "oracles"}
        assert {name.split(".")[0] for name in modules} <= libraries, path.name
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert all(map(ast.get_docstring, [tree, *functions])), path.name


def test_lint_looks_at_the_sources_whatever_folders_lie_beside_them(tmp_path):
    """ruff would take a folder beside the sources for a package of the project, and want imports in another order."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("[!a-z]*"))
    for name in ("dist", "site", *(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "benchmarks"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout

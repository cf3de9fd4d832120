"""What `mkdocs build` does besides, as an MkDocs hook and a Griffe extension."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from griffe import Alias, Class, Extension, Function, Module, Parameter, ParameterKind, Parameters
from latex2mathml.converter import convert

from interp.analyses.declare import Options
from interp.analyses.registry import OWN, load
from interp.results.columns import COMMON, Column
from interp.results.contents import columns_of_tables

_ROOT = Path(__file__).parents[1]
_OF_ROOT = {"index.md": "README.md", "index.ja.md": "README.ja.md", "contributing.md": "CONTRIBUTING.md"}
_LINKS = {"](docs/": "](", "](interp/bundled/README.md)": "](bundled.md)", "](benchmarks/RESULTS.md)": "](speed.md)"}
_LINKS |= {
    "](CONTRIBUTING.md)": "](contributing.md)",
    "](README.md)": "](index.md)",
    "](README.ja.md)": "](index.ja.md)",
}
_COLUMNS = "<!-- columns -->"
_BLOCK = re.compile(r'<div class="arithmatex">\\\[(.+?)\\\]</div>', re.S)
_FLAG = re.compile(r"<code>(--[\w-]+(?: \w{1,10})?)</code>")
_INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.S)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put files of the root in place of empty pages; their links start at the root. Put tables of
    columns where a page asks for them."""
    if page.file.src_uri not in _OF_ROOT:
        return markdown.replace(_COLUMNS, _columns()) if _COLUMNS in markdown else markdown
    text = (_ROOT / _OF_ROOT[page.file.src_uri]).read_text(encoding="utf-8")
    for found, wanted in _LINKS.items():
        text = text.replace(found, wanted)
    return text


def _columns() -> str:
    """The columns that several analyses have with one meaning, and the others of each analysis."""
    parts = [f"## In several analyses\n\n{_table_of_columns(COMMON)}"]
    for analysis in OWN:
        columns = load(analysis).kind.columns
        others = {name: column for name, column in columns.items() if COMMON.get(name) != column}
        parts.append(f"## {analysis}\n\n{_table_of_columns(others)}")
    return "\n\n".join(parts)


def _table_of_columns(columns: Mapping[str, Column]) -> str:
    rows = []
    for name, one in columns.items():
        words = "; ".join(f"`{code}`: {word}" for code, word in one.words.items() if code)
        meaning = f"{one.meaning} Shown in words: {words}." if words else one.meaning
        label, meaning = (escape(text, quote=False).replace("|", "\\|") for text in (one.label, meaning))
        rows.append(f"| `{name}` | {f'*{label}*: ' * (label != name)}{meaning} |")
    return "\n".join(["| Column | *Heading* and meaning |", "|---|---|", *rows])


def on_page_content(html: str, **_: Any) -> str:
    """Make MathML of the formulas, which a browser draws without a script and without a network; mark flags, so that
    no line ends within one; keep source code out of the search, where it would hide what is said about it."""
    html = html.replace(
        '<details class="mkdocstrings-source"', '<details class="mkdocstrings-source" data-search-exclude'
    )
    html = _FLAG.sub(r'<code class="flag">\1</code>', html)
    html = _BLOCK.sub(lambda math: convert(unescape(math[1]), display="block"), html)
    return _INLINE.sub(lambda math: convert(unescape(math[1])), html)


class Exports(Extension):
    """What the stub of a package exports is a part of it, as in Python."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for module in _packages(pkg):
            stub = Path(str(module.filepath)).with_suffix(".pyi")
            if stub.name != "__init__.pyi" or not stub.is_file():
                continue
            module.exports = []
            for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.ImportFrom) or node.module is None:
                    continue
                for item in node.names:
                    module.set_member(
                        item.name, Alias(item.name, f"{module.path}.{node.module}.{item.name}", parent=module)
                    )
                    module.exports.append(item.name)


def _packages(module: Module) -> Iterator[Module]:
    """A package and all that are in it; what a package imports from elsewhere is not."""
    yield module
    for inside in [*module.modules.values()]:
        if not isinstance(inside, Alias):
            yield from _packages(inside)


class Meanings(Extension):
    """The docstring of a result has the meanings of its columns only at run time; see `interp.results.contents`."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        if cls.docstring and "analysis" in cls.members and columns_of_tables(cls.docstring.value):
            cls.docstring.value = getattr(import_module(cls.module.path), cls.name).__doc__


class OnlyFields(Extension):
    """A signature of a dataclass has its fields, without its class variables."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for module in _packages(pkg):
            for one in module.classes.values():
                init = None if isinstance(one, Alias) else one.members.get("__init__")
                if isinstance(init, Function):
                    init.parameters = Parameters(
                        *(item for item in init.parameters if not str(item.annotation).startswith("ClassVar"))
                    )


class Asked(Extension):
    """The functions that `interp.passes.execution` makes of analyses: they return a result, and `asks` gives them the
    fields of a class of options as keywords."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        made = {item.callable_path: item.value for item in func.decorators}
        if not {"interp.passes.execution.asks", "interp.passes.execution.runs"} & set(made):
            return
        func.returns = func.returns.slice  # of Passes[…]
        if "interp.passes.execution.asks" not in made:
            return
        (options,) = made["interp.passes.execution.asks"].arguments
        declared = {item.name: item for item in fields(resolve_name(":".join(options.canonical_path.rsplit(".", 1))))}
        members = func.module[options.name].all_members
        names = sorted(declared, key=lambda name: name in {shared.name for shared in fields(Options)})
        keywords = []
        for name in names:
            kind, default = ParameterKind.keyword_only, repr(declared[name].default)
            keywords.append(Parameter(name, annotation=members[name].annotation, kind=kind, default=default))
        func.parameters = Parameters(*list(func.parameters)[:2], *keywords)
        told = [f"    {item.name}: {declared[item.name].metadata['help']}" for item in keywords]
        text, *after = re.split(r"\n\n(?=Returns|Raises|Examples)", func.docstring.value, maxsplit=1)
        func.docstring.value = "\n\n".join([text, "\n".join(["Args:", *told]), *after])

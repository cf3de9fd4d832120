"""What `mkdocs build` does besides, as an MkDocs hook and a Griffe extension."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from griffe import Alias, Extension, Module
from latex2mathml.converter import convert

_README = Path(__file__).parents[1] / "README.md"
_LINKS = {"](docs/": "](", "](interp/bundled/README.md)": "](bundled.md)", "](benchmarks/RESULTS.md)": "](speed.md)"}
_BLOCK = re.compile(r'<div class="arithmatex">\\\[(.+?)\\\]</div>', re.S)
_INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.S)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the README in place of the empty first page; its links start at the root of the repository."""
    if page.file.src_uri != "index.md":
        return markdown
    text = _README.read_text(encoding="utf-8")
    for found, wanted in _LINKS.items():
        text = text.replace(found, wanted)
    return text


def on_page_content(html: str, **_: Any) -> str:
    """Make MathML of the formulas, which a browser draws without a script and without a network."""
    html = _BLOCK.sub(lambda math: convert(unescape(math[1]), display="block"), html)
    return _INLINE.sub(lambda math: convert(unescape(math[1])), html)


class Exports(Extension):
    """A function that a package exports under the name of the module it comes from is the function, as in Python."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for module in list(pkg.modules.values()):
            shadowed = [name for name in module.exports or [] if name in module.modules]
            if not shadowed:
                continue
            found = {
                name: pkg.modules_collection[module.members[name].target_path]
                for name in module.exports
                if module.members[name].is_alias
            }
            found |= {name: module.members[name].members[name] for name in shadowed}
            for name, target in found.items():
                module.set_member(name, Alias(name, target, parent=module))

"""The notebooks as pages, an MkDocs hook: their text, their code, and the outputs that they keep."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from interp import plots

_NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_LINK = re.compile(r"\]\((?:\.\./)?((?:\.\./)*notebooks/[\w.]+)\.ipynb\)")
_FIGURE = re.compile(r"interp\.plots\.(\w+)\(")
_STYLES = re.compile(r'<style scoped>.*?</style>|\s(?:border="1"|class="dataframe")', re.S)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its figures as images."""
    for path in sorted(_NOTEBOOKS.glob("*.ipynb")):
        text = "\n\n".join(_parts(path, files, config))
        title, _, rest = text.partition("\n")
        whole = f"{title}\n\n`notebooks/{path.name}`{{ .source }}\n{rest}\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=whole))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to notebooks, which are right in the repository, lead to their pages."""
    return _LINK.sub(r"](\1.md)", markdown)


def _parts(path: Path, files: Files, config: MkDocsConfig) -> Iterator[str]:
    """The Markdown of a notebook, cell by cell; its figures become files."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace(".ipynb)", ".md)").replace("](../docs/", "](../")
            continue
        yield f"```python\n{source}\n```"
        drawn = iter(_FIGURE.findall(source))
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                function = next(drawn)
                image = f"{path.stem}-{number}-{function}.png"
                content = b64decode(output["data"]["image/png"])
                files.append(File.generated(config, f"notebooks/{image}", content=content))
                yield f"![{_described(function)}]({image}){{ .figure }}"
            else:
                yield _shown(output)


def _described(function: str) -> str:
    """What a figure shows, by the first sentence of the function that draws it."""
    told = " ".join((getattr(plots, function).__doc__ or "").split("\n\n")[0].split())
    return re.sub(r"([\[\]])", r"\\\1", re.split(r"(?<=[.:;])\s", told)[0].rstrip(".:;"))


def _shown(output: dict[str, Any]) -> str:
    """A table as Markdown's own look; any other text as it was printed."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        return f'<div class="output">{_STYLES.sub("", "".join(data["text/html"]))}</div>'
    return f'<pre class="output">{escape("".join(data["text/plain"]).rstrip(), quote=False)}</pre>'

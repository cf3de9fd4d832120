"""The documentation builds without warnings, lists every public name and needs no network; its example is right."""

import ast
import base64
import dataclasses
import html
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import torch
from browser import CHROMIUM, Browser
from toys import ROOT

import interp
from interp.analyses.registry import OWN, load

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the documentation needs pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def public_names(module: str) -> list[str]:
    found = importlib.import_module(f"interp.{module}")
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
    public = getattr(found, "__all__", [name for name in own if not name.startswith("_")])
    return [name for name in public if not isinstance(getattr(found, name), ModuleType)]


@pytest.mark.slow
def test_every_public_name_has_its_place(site):
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    modules = [module for name in interp.__all__ if isinstance(module := getattr(interp, name), ModuleType)]
    names = [module.__name__.removeprefix("interp.") for module in modules]
    public = {f"interp.{module}.{name}" for module in names for name in public_names(module)}
    assert len(public) > 80
    assert sorted(public - listed) == []
    assert not [name for name in listed if "._" in name]


def test_pages_need_no_network(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(pages) > 15
    for path, page in pages.items():
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(https?:[^\"]*)", page)
        assert not loaded, path.name


def test_formulas_are_drawn_by_the_browser(site):
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert sum(page.count("<math") for page in pages) > 100
    assert not [page for page in pages if "arithmatex" in page or "merror" in page]


def test_every_link_leads_somewhere(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    places = {path: set(re.findall(r'\s(?:id|name)="([^"]+)"', page)) for path, page in pages.items()}
    for path, page in pages.items():
        for link in map(urlsplit, re.findall(r'\s(?:href|src)="([^"]+)"', page)):
            if link.scheme:
                assert (link.scheme, bool(link.netloc)) in [("https", True), ("data", False)], link.geturl()
                continue
            target = (path.parent / unquote(link.path)).resolve() if link.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link.geturl()}"
            if link.fragment:
                assert unquote(link.fragment) in places[target], f"{path.name}: {link.geturl()}"


def test_what_is_named_in_docs_and_docstrings_exists():
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    for path in (ROOT / "interp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                texts.append(ast.get_docstring(node) or "")
    named = set(re.findall(r"(?<![\w./-])interp(?:\.[a-zA-Z_]\w*)+", "\n".join(texts)))
    assert len(named) > 100
    for name in sorted(named):
        assert resolve_name(name) is not None, name


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_what_it_shows(path, site):
    page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    figures = [
        base64.b64decode(output["data"]["image/png"]) for output in shown if "image/png" in output.get("data", {})
    ]
    images = re.findall(r'<img alt="([^"]+)" class="figure" src="([^"]+)"', page)
    assert [(site / "notebooks" / source).read_bytes() for _, source in images] == figures
    assert page.count('class="output"') == len(shown) - len(figures)
    assert page.count('<div class="highlight">') >= sum(cell["cell_type"] == "code" for cell in cells)


_LOADED = "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
_AT_REST = """Promise.allSettled(
    document.getAnimations().filter(one => one instanceof CSSTransition).map(one => one.finished)
).then(() => null)"""
_OVER_THE_EDGE = """(() => {
    const width = document.documentElement.clientWidth, right = one => one.getBoundingClientRect().right;
    const scrolls = one => getComputedStyle(one).overflowX === "auto";
    const shown = [...document.querySelectorAll(".md-content :is(table, img, pre, figure)")];
    const wide = shown.filter(one => right(one) > width + 1);
    const lost = wide.filter(one => {
        const frame = one.closest(".md-typeset__scrollwrap, figure.layers, pre");
        return !frame || !scrolls(frame) || right(frame) > width + 1;
    });
    return [document.documentElement.scrollWidth - width, lost.map(one => one.outerHTML.slice(0, 80))];
})()"""


_FOUND = """(async () => {
    let links = [];
    for (let i = 0; i < 600; i++) {
        links = [...document.querySelectorAll(".md-search-result__link")].map(one => one.href);
        if (links.some(link => link.includes("/reference/attention.html"))) break;
        await new Promise(done => setTimeout(done, 50));
    }
    return links;
})()"""


@pytest.mark.slow
@pytest.mark.browser
def test_pages_are_searched_from_disk(site):
    if CHROMIUM is None:
        pytest.skip("no chromium; .ci/run installs it")
    with Browser() as browser:
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        browser.call("Page.navigate", url=(site / "index.html").as_uri())
        browser.run(_LOADED)
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.call("Input.insertText", text="massive activations")
        browser.run("document.querySelector('.md-search__input').dispatchEvent(new Event('keyup'))")  # as typing would
        links = browser.run(_FOUND)
        assert any("/reference/attention.html" in link for link in links), links
        assert all(address.startswith("file:") for address in browser.requests)
        assert not browser.problems


@pytest.mark.slow
@pytest.mark.browser
def test_what_is_wider_than_the_page_scrolls_by_itself(site):
    if CHROMIUM is None:
        pytest.skip("no chromium; .ci/run installs it")
    with Browser() as browser:
        for page in site.rglob("*.html"):
            browser.call("Page.navigate", url=page.as_uri())
            browser.run(_LOADED)
            for width in (1400, 400):
                browser.resize(width)
                browser.run("new Promise(requestAnimationFrame)")
                browser.run(_AT_REST)
                assert browser.run(_OVER_THE_EDGE) == [0, []], (page.name, width)


@pytest.mark.parametrize("name", OWN)
def test_options_are_on_the_page_as_they_are_declared(name, site):
    page = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub("<[^>]+>", "", page))
    analysis = load(name)
    function = analysis.answer.partition(":")[2]
    signature = re.search(rf"^{function}\((.*?)\n\) -> (\w+)", text, re.S | re.M)
    assert signature
    assert re.findall(r"^ +(\w+):", signature[1], re.M) == list(
        inspect.signature(resolve_name(analysis.answer)).parameters
    )
    assert signature[2] == analysis.kind.__name__
    for item in dataclasses.fields(analysis.options):
        assert item.metadata["help"] in text


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", ROOT / "docs" / "example.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_counts_what_a_cache_holds(example, tmp_path):
    model = interp.load("tiny-gpt2")
    batches = interp.corpora.batches(model, interp.corpora.load("bundled", limit=40), bos=True)
    found = example.previous_token_heads(model, batches, progress=False)

    shares = []
    for batch in batches:
        for row in batch.tokens:
            _, cache = model.run_with_cache(row[None])
            patterns = torch.stack([cache["pattern", layer][0] for layer in range(model.cfg.n_layers)])
            shares += [patterns[:, :, query, query - 1] for query in range(1, len(row))]
    expected = torch.stack(shares).double().mean(0)
    assert found.heads["attention"].to_numpy().reshape(6, 6) == pytest.approx(expected.numpy(), abs=1e-6)
    assert set(found.heads["n_queries"]) == {len(shares)}
    assert expected.max() > 0.3 > 0.1 > expected.min()

    found.save(tmp_path)
    assert example.PreviousTokenHeads.load(tmp_path).heads.equals(found.heads)
    assert len(example.heads_figure(found).data) == 1


def test_the_example_leaves_padding_out(example, load_toy):
    bert, texts = load_toy("bert"), ["w1 w2", "w3 w4 w5 w6 w7 w8 w9"]
    together, apart = (
        example.previous_token_heads(bert, batches, progress=False)
        for batches in (interp.corpora.batches(bert, texts, batch_size=size) for size in (2, 1))
    )
    assert together.heads["attention"].to_numpy() == pytest.approx(apart.heads["attention"].to_numpy(), abs=1e-6)
    assert set(together.heads["n_queries"]) == {3 + 8}


def test_two_analyses_share_a_pass(example, monkeypatch):
    model = interp.load("tiny-gpt2")
    batches = interp.corpora.batches(model, interp.corpora.load("bundled", limit=40), bos=True)
    forwards = []
    monkeypatch.setattr(
        model, "forward", lambda *a, _forward=model.forward, **k: forwards.append(1) or _forward(*a, **k)
    )
    two = interp.passes.execution.side_by_side(*(example.previous_token_heads.passes(model, batches) for _ in range(2)))
    first, second = interp.passes.execution.execute(model, two, progress=False)
    assert first.heads.equals(second.heads)
    assert len(forwards) == len(list(batches))

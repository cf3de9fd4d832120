"""The documentation builds without a warning, misses no public name and needs no network; its example is right."""

import dataclasses
import html
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from toys import ROOT

import interp
from interp.analyses import OWN, load
from interp.declare import find

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


def test_every_public_name_has_its_place(site):
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    modules = [name for name in interp.__all__ if isinstance(getattr(interp, name), ModuleType)]
    public = {f"interp.{module}.{name}" for module in modules for name in public_names(module)}
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
    pages = [path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html")]
    assert sum(page.count("<math") for page in pages) > 100
    assert not [page for page in pages if "arithmatex" in page or "merror" in page]


@pytest.mark.parametrize("name", OWN)
def test_options_are_on_the_page_as_they_are_declared(name, site):
    page = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub("<[^>]+>", "", page))
    analysis = load(name)
    function = analysis.answer.partition(":")[2]
    signature = re.search(rf"^{function}\((.*?)\n\) -> (\w+)", text, re.S | re.M)
    assert signature
    assert re.findall(r"^ +(\w+):", signature[1], re.M) == list(inspect.signature(find(analysis.answer)).parameters)
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
    two = interp.run.passes.side_by_side(*(example.previous_token_heads.passes(model, batches) for _ in range(2)))
    first, second = interp.run.passes.execute(model, two, progress=False)
    assert first.heads.equals(second.heads)
    assert len(forwards) == len(list(batches))

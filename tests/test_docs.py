"""The documentation builds without a warning, misses no public name and needs no network; its example is right."""

import importlib
import importlib.util
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import interp

ROOT = Path(__file__).parents[1]


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
    return getattr(found, "__all__", [name for name in own if not name.startswith("_")])


def test_every_public_name_has_its_place(site):
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    public = {f"interp.{module}.{name}" for module in interp._MODULES for name in public_names(module)}
    assert len(public) > 150
    assert not public - listed
    assert not [name for name in listed if "._" in name]


def test_pages_need_no_network(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(pages) > 20
    for path, html in pages.items():
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(https?:[^\"]*)", html)
        assert not loaded, path.name


def test_formulas_are_drawn_by_the_browser(site):
    pages = [path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html")]
    assert sum(html.count("<math") for html in pages) > 100
    assert not [html for html in pages if "arithmatex" in html or "merror" in html]

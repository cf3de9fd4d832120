"""What other sites show with a link to a page: its address, its title and text, and a picture."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from naming import naming

import interp
from interp import pages
from interp.cli import main
from interp.testing import toy_decoder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    classes = {"first": [7, 8]}
    found = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, k=1.5, progress=False)
    found.save(tmp_path / "run")
    return tmp_path / "run"


def said(page: Path) -> dict[str, str]:
    """What the page tells other sites about itself."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[^"]+)" content="([^"]*)">', text))


@pytest.mark.slow
@pytest.mark.parametrize("address", ["https://example.org/runs/a/", "https://example.org/runs/a"])
def test_a_page_with_an_address_has_a_picture(run: Path, address: str) -> None:
    told = said(pages.write_page(run, url=address))
    assert told["og:url"] == "https://example.org/runs/a/"
    assert told["og:image"] == "https://example.org/runs/a/index.png"
    assert (told["og:image:width"], told["og:image:height"]) == ("1200", "630")
    assert told["og:title"].startswith("interp · ")
    assert "sets one class of keys apart most" in told["og:description"]
    drawn = imread(run / "index.png")[..., :3]
    assert drawn.shape == (630, 1200, 3)
    dark = (drawn < 0.6).all(2)
    for part in (dark[:, :500], dark[:, 560:]):
        assert part.mean() > 0.005, "text on the left, a figure on the right"
    edges = np.concatenate([drawn[:15].ravel(), drawn[-15:].ravel(), drawn[:, :15].ravel(), drawn[:, -15:].ravel()])
    assert (edges == 1).all(), "nothing is cut at the edge"


@pytest.mark.slow
def test_the_picture_lies_beside_a_page_with_a_name(run: Path) -> None:
    told = said(pages.write_page(run, url="http://example.org/a/run.html"))
    assert told["og:url"] == "http://example.org/a/run.html"
    assert told["og:image"] == "http://example.org/a/index.png"


@pytest.mark.slow
def test_a_page_without_an_address_has_no_picture(run: Path) -> None:
    assert set(said(pages.write_page(run))) == {"og:title", "og:description"}
    assert not (run / "index.png").exists()


@pytest.mark.slow
def test_the_command_says_what_it_wrote(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", str(run), "--url", "https://example.org/", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == [str(run / "index.html"), str(run / "index.png")]
    found = interp.attention.AttentionStudy.load(run).findings
    assert [one["question"] for one in told["findings"]] == [one.question for one in found]
    assert main(["page", str(run), "--url", "https://example.org/"]) == 0, "its own picture is replaced"


@pytest.mark.slow
@pytest.mark.parametrize("address", ["example.org/run", "runs/a", "file:///tmp/run", "https://", ""])
def test_half_an_address_is_refused(run: Path, address: str) -> None:
    with pytest.raises(ValueError, match=naming("https://example.org/run/")):
        pages.write_page(run, url=address)
    assert not (run / "index.html").exists()


@pytest.mark.slow
def test_the_users_own_picture_is_left_alone(run: Path) -> None:
    (run / "index.png").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=naming("index.png", "interp")):
        pages.write_page(run, url="https://example.org/")
    assert (run / "index.png").read_bytes() == b"mine"
    assert not (run / "index.html").exists()


@pytest.mark.slow
def test_without_matplotlib_it_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=naming("matplotlib", "pip install 'interp[figures]'")):
        pages.write_page(run, url="https://example.org/")
    assert not (run / "index.html").exists()

"""The notebooks as they are committed: run from top to bottom, with outputs that a code host can show.

`make notebooks` runs them, and `make test-tl4` on bridges; here they are only read.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest
from toys import ROOT

from interp import plots
from interp.support.paths import bundled_models

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REDO = "; run it again with: TQDM_DISABLE=1 PYTHONWARNINGS=ignore jupyter execute --inplace"
OF_A_MACHINE = re.compile(r"(?<![\w.:/])/(home|root|Users|tmp|usr|opt|var|work|mnt|private)/|[A-Z]:\\\\")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in code_cells(path) for output in cell["outputs"]]


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in code_cells(path)]


def test_begins_with_a_model_and_a_text(notebook):
    if notebook.stem == "published":
        pytest.skip("it reads what make demo has written")
    settings, *others = sources(notebook)
    given = {}
    for node in ast.parse(settings).body:
        assert isinstance(node, ast.Assign), f"the first cell of {notebook.name} sets names, and nothing else"
        given |= {target.id: ast.literal_eval(node.value) for target in node.targets}
    assert given["MODEL"] in bundled_models()
    assert given["TEXT"] == "bundled"
    assert re.search(r"^# MODEL, (MASKED, )?TEXT = ", settings, re.M), "published models are there too, commented out"
    used = {node.id for source in others for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert set(given) <= used
    assert "interp.load(MODEL)" in "\n".join(others)
    assert not [name for name in bundled_models() if name in "\n".join(others)]


def without_prose(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
            node.value = ""
    return ast.unparse(tree)


def test_the_tour_is_the_same_in_japanese():
    english, japanese = (
        [without_prose(source) for source in sources(ROOT / "notebooks" / name)]
        for name in ("tour.ipynb", "tour.ja.ipynb")
    )
    assert english == japanese


def test_was_run_in_order(notebook):
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), f"{notebook.name} was not run from top to bottom{REDO}"


def test_keeps_its_outputs_without_noise(notebook):
    kinds = {output["output_type"] for output in outputs(notebook)}
    assert kinds
    assert "error" not in kinds
    noise = [output["text"] for output in outputs(notebook) if output.get("name") == "stderr"]
    assert not noise, f"{notebook.name} keeps warnings or progress bars{REDO}"


def test_shows_without_javascript(notebook):
    shown = [output["data"] for output in outputs(notebook) if "data" in output]
    assert not [kind for data in shown for kind in data if "plotly" in kind or "widget" in kind or "javascript" in kind]
    assert not any("<script" in "".join(data.get("text/html", "")) for data in shown)
    if notebook.stem != "recipes":
        assert sum("image/png" in data for data in shown) >= 2


def test_is_small(notebook):
    longest = max(len("".join(cell["source"]).splitlines()) for cell in code_cells(notebook))
    assert longest <= 25, f"a cell of {notebook.name} has {longest} lines; a screen has 25"
    assert notebook.stat().st_size < 1_500_000


def test_contains_no_path_of_a_machine(notebook):
    text = re.sub(r'"image/png": "[^"]*"', "", notebook.read_text(encoding="utf-8"))
    assert not OF_A_MACHINE.findall(text)


@pytest.fixture
def renderers():
    before = pio.renderers.default
    yield
    pio.renderers.default = before


def test_figures_become_images_on_white(renderers, monkeypatch):
    drawn = []

    def draw(figure, *_args, **_options):
        drawn.append(figure)
        return b"PNG"

    monkeypatch.setattr(go.Figure, "to_image", draw)
    monkeypatch.setattr("plotly.io._base_renderers.to_image", draw)
    plots.show_images()
    figure = go.Figure(layout={"paper_bgcolor": "rgba(0,0,0,0)", "title": "as it was"})
    assert pio.renderers[pio.renderers.default].to_mimebundle(figure.to_dict()) == {"image/png": "UE5H"}
    assert drawn[-1]["layout"]["paper_bgcolor"] == "white"
    assert drawn[-1]["layout"]["title"] == {"text": "as it was"}
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_without_a_browser_figures_remain_plotly(renderers, monkeypatch):
    def cannot(*_args, **_options):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    before = pio.renderers.default
    monkeypatch.setattr(go.Figure, "to_image", cannot)
    plots.show_images()
    assert pio.renderers.default == before

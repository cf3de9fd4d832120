"""The notebooks' code on bridges, with little text and without drawing."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from toys import ROOT

from interp import plots

LIMITS = {"frequency": 80}  # number of texts; 40 prompts are taken from them
OTHERS = ("tour.ja", "published")  # a translation; and one that reads saved results
NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.stem not in OTHERS]


@pytest.mark.skipif(int(version("transformer-lens").split(".")[0]) < 4, reason="`make test-tl4` runs it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_on_a_bridge(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plots, "show_images", lambda: None)
    settings, *others = [
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    space = {"display": lambda *_: None}
    exec(settings, space)
    space["LIMIT"] = LIMITS.get(path.stem, 20)
    with torch.enable_grad():  # a notebook may turn it off
        for source in others:
            exec(source.replace("interp.load(MODEL)", 'interp.load(MODEL, backend="bridge")'), space)
    assert type(space.get("model", space.get("gpt2"))).__name__ == "TransformerBridge"

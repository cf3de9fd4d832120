"""The README's picture: one figure per question, from the results of a run.

    make demo
    python docs/picture.py

Writes docs/picture.png: all-MiniLM-L6-v2 for attention and probes, SmolLM2 for the other questions. Needs kaleido and
Pillow, and Chromium or Chrome.
"""

import io
from pathlib import Path

import plotly.graph_objects as go
from PIL import Image

from interp import plots
from interp.analyses.attention import AttentionStudy
from interp.analyses.encoding import EncodingStudy
from interp.analyses.frequency import FrequencyStudy
from interp.analyses.probing import ProbingStudy

WIDTH, HEIGHT, SCALE = 760, 420, 1.5


DEMO = Path(__file__).parents[1] / "runs/demo"
SMOLLM2 = DEMO / "SmolLM2-135M-Instruct (4-bit, dequantised)"
MINILM = DEMO / "all-MiniLM-L6-v2"


def figures() -> list[go.Figure]:
    return [
        plots.bias_ratio(FrequencyStudy.load(SMOLLM2), "mean"),
        plots.ablation(AttentionStudy.load(MINILM), "cls"),
        plots.probability_fit(EncodingStudy.load(SMOLLM2)),
        plots.sparse_probes(ProbingStudy.load(MINILM)),
    ]


def drawn(figure: go.Figure) -> Image.Image:
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    return Image.open(io.BytesIO(figure.to_image("png", width=WIDTH, height=HEIGHT, scale=SCALE)))


def main() -> None:
    tiles = [drawn(figure) for figure in figures()]
    width, height = tiles[0].size
    picture = Image.new("RGB", (2 * width, 2 * height), "white")
    for number, tile in enumerate(tiles):
        picture.paste(tile, (number % 2 * width, number // 2 * height))
    picture.quantize(128).save(Path(__file__).with_name("picture.png"), optimize=True)


if __name__ == "__main__":
    main()

"""The README's picture: one figure per question, from the results of a run.

    interp report --model tiny-bert --out runs/tiny-bert
    python docs/picture.py runs/tiny-bert

Writes docs/picture.png. Needs kaleido and Pillow, and Chromium or Chrome.
"""

import io
import sys
from pathlib import Path

import plotly.graph_objects as go
from PIL import Image

from interp import plots
from interp.analyses.attention import AttentionStudy
from interp.analyses.encoding import EncodingStudy
from interp.analyses.frequency import BiasEffect
from interp.analyses.probing import ProbingStudy

WIDTH, HEIGHT, SCALE = 760, 420, 1.5


def figures(run: Path) -> list[go.Figure]:
    return [
        plots.bias_ratio(BiasEffect.load(run), "ln"),
        plots.dimension_means(AttentionStudy.load(run)),
        plots.probability_fit(EncodingStudy.load(run)),
        plots.sparse_probes(ProbingStudy.load(run)),
    ]


def drawn(figure: go.Figure) -> Image.Image:
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    return Image.open(io.BytesIO(figure.to_image("png", width=WIDTH, height=HEIGHT, scale=SCALE)))


def main(run: Path) -> None:
    tiles = [drawn(figure) for figure in figures(run)]
    width, height = tiles[0].size
    picture = Image.new("RGB", (2 * width, 2 * height), "white")
    for number, tile in enumerate(tiles):
        picture.paste(tile, (number % 2 * width, number // 2 * height))
    picture.quantize(128).save(Path(__file__).with_name("picture.png"), optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

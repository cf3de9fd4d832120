"""The gallery in `docs/figures.md`: the figures of a run, as for one column of a paper.

    interp report --model tiny-gpt2 --more --out runs/gallery
    python docs/gallery.py runs/gallery

Writes docs/gallery.md and the pictures in docs/gallery/; of figures with the same axes the first one.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from interp.analyses.registry import load
from interp.figures.paper import caption, save
from interp.pages.page import find_runs

HOME = Path(__file__).parent
WIDTH, FEWER, COLOURS = 3.3, 2, 128


def main(directory: Path) -> None:
    shelf = HOME / "gallery"
    shelf.mkdir(exist_ok=True)
    for old in shelf.glob("*.png"):
        old.unlink()
    lines = ["<!-- made by docs/gallery.py -->"]
    [run] = find_runs(directory)
    for analysis, result in run.results.items():
        lines += ["", f"### {load(analysis).title}", ""]
        seen = set()
        for name, figure in result.figures().items():
            axes = tuple(axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes()))
            if axes in seen:
                continue
            seen.add(axes)
            with TemporaryDirectory() as folder:
                large = Image.open(save(figure, Path(folder) / "figure.png", width=WIDTH)).convert("RGB")
            large.reduce(FEWER).quantize(COLOURS).save(shelf / f"{analysis}_{name}.png", optimize=True)
            told = caption(figure).replace("<", "&lt;")
            lines.append(f'![{name}](gallery/{analysis}_{name}.png){{ width="330" title="{name}" }}')
            lines.append(f"<br>`{name}`: {told}\n")
    (HOME / "gallery.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

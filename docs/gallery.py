"""The gallery in `docs/figures.md`: every figure of a run, as for one column of a paper.

    interp report --model tiny-gpt2 --more --out runs/gallery
    python docs/gallery.py runs/gallery

Writes docs/gallery.md and the pictures in docs/gallery/.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from interp.analyses import load
from interp.pages.paper import write_figures

HOME = Path(__file__).parent
WIDTH, PIXELS, COLOURS = 3.3, 660, 64


def main(run: Path) -> None:
    shelf = HOME / "gallery"
    shelf.mkdir(exist_ok=True)
    for old in shelf.glob("*.png"):
        old.unlink()
    lines, heading = ["<!-- made by docs/gallery.py -->"], ""
    with TemporaryDirectory() as folder:
        for row in write_figures(run, folder + "/figures", formats=["png"], width=WIDTH).to_dict("records"):
            analysis, _, name = row["file"].removesuffix(".png").partition("_")
            if analysis != heading:
                lines += ["", f"### {load(analysis).title}", ""]
                heading = analysis
            with Image.open(Path(folder, "figures", row["file"])) as picture:
                small = picture.convert("RGB").resize((PIXELS, round(PIXELS * picture.height / picture.width)))
            small.quantize(COLOURS).save(shelf / row["file"], optimize=True)
            caption = row["caption"].replace("<", "&lt;").replace("|", "&#124;")
            lines.append(f'![{name}](gallery/{row["file"]}){{ width="330" title="{name}" }}')
            lines.append(f"<br>`{name}`: {caption}\n")
    (HOME / "gallery.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

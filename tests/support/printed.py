"""Figures as they are printed: checks of a PDF, and of a figure without its colours."""

import io
import re

import numpy as np
import plotly.graph_objects as go
import pypdfium2 as pdfium
import pytest
from PIL import Image
from pypdfium2 import raw

__all__ = ["GREY", "alike", "brightness", "check", "in_grey", "legend_samples"]

INDEX = 0.7  # the size of an index relative to the type around it
GREY = "#777777"


def check(path, width):
    """The letters of a PDF of the given width in inches; none may be cut off, and all type must be as required."""
    page = pdfium.PdfDocument(path)[0]
    across, up = page.get_size()
    assert across == pytest.approx(72 * width, abs=0.1)
    text = page.get_textpage()
    shown = [i for i in range(text.count_chars()) if text.get_text_range(i, 1).strip()]
    for i in shown:
        left, bottom, right, top = text.get_charbox(i)
        assert 0 <= left <= right <= across, path.name
        assert 0 <= bottom <= top <= up, path.name
    sizes = {round(raw.FPDFText_GetFontSize(text, i), 2) for i in shown}
    assert sizes <= {8.0, 8 * INDEX}
    texts = page.get_objects(filter=[raw.FPDF_PAGEOBJ_TEXT], max_depth=4)
    assert all(raw.FPDFFont_GetIsEmbedded(raw.FPDFTextObj_GetFont(one.raw)) for one in texts)
    found = "".join(text.get_text_range(i, 1) for i in shown)
    return re.sub(r"(\w[\u0300-\u036f])\1", r"\1", found)  # a separate accent is read together with its letter, twice


def in_grey(one):
    """The figure with every series in the same grey."""
    figure = go.Figure(one)
    for trace in figure.data:
        if trace.type == "scatter" and trace.line.color:
            trace.line.color = GREY
        if trace.type != "heatmap" and isinstance(trace.marker.color, str):
            trace.marker.color = GREY
        if trace.fillcolor if trace.type == "scatter" else None:
            trace.visible = False
    return figure


def legend_samples(drawn):
    """The symbol in front of each name in the legend, as pixels."""
    if not drawn.legends:
        return []
    drawn.draw_without_rendering()
    boxes = [one.get_window_extent() for one in drawn.legends[0].get_texts()]
    picture = io.BytesIO()
    drawn.savefig(picture, format="png", dpi=drawn.dpi)
    pixels = np.array(Image.open(picture).convert("L"))
    high = pixels.shape[0]
    return [
        pixels[high - round(box.y1) : high - round(box.y0), round(box.x0) - 31 : round(box.x0) - 4] for box in boxes
    ]


def alike(one, two):
    rows = min(len(one), len(two))
    return np.array_equal(one[:rows], two[:rows])


def brightness(colours):
    return np.asarray(colours)[:, :3] @ [0.2126, 0.7152, 0.0722]

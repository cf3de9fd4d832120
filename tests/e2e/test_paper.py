"""Every figure of a report for a paper, and every result of it in a notebook."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from printed import alike, brightness, check, in_grey, legend_samples

from interp.figures import paper

pytestmark = pytest.mark.e2e


def wide(figure):
    """Whether more space changes the layout of a figure."""
    return "xaxis2" in figure.layout.to_plotly_json() or any(trace.type == "heatmap" for trace in figure.data)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "chosen", "least"), [(3.3, lambda _: True, 30), (6.8, wide, 10)])
def test_every_figure_of_a_report_fits(reported, tmp_path, width, chosen, least):
    seen = 0
    for analysis, result in reported["tiny-gpt2"].items():
        for name, one in result.section.figures.items():
            if not chosen(one):
                continue
            text = check(paper.save(one, tmp_path / f"{analysis}_{name}.pdf", width=width), width)
            said = {trace.name for trace in one.data if trace.name and trace.showlegend}
            said |= {axis.title.text for axis in (one.layout.xaxis, one.layout.yaxis) if axis.title.text}
            for words in said:
                assert re.sub(r"<.*?>|\s", "", words) in text, (analysis, name)
            seen += 1
    assert seen > least


@pytest.mark.slow
def test_figures_of_a_report_can_be_read_in_grey(reported):
    seen = 0
    for result in reported["tiny-gpt2"].values():
        for name, one in result.section.figures.items():
            drawn = paper.drawn(in_grey(one), width=6.8)
            samples = legend_samples(drawn)
            if 1 < len(samples) <= 6:
                assert not any(alike(*two) for two in itertools.combinations(samples, 2)), name
                seen += 1
            for mesh in (mesh for axes in drawn.axes for mesh in axes.collections):
                if isinstance(mesh, QuadMesh):
                    steps = np.diff(brightness(mesh.cmap(np.linspace(0, 1, 20))))
                    assert (steps > 0).all() or (steps < 0).all(), name
    assert seen > 15


def said(html):
    return " ".join(re.sub("<[^>]*>", "", html).split())


def test_every_result_of_a_report_is_shown_as_on_its_page(report, reported):
    page = said((report / "index.html").read_text(encoding="utf-8"))
    for result in reported["tiny-gpt2"].values():
        assert len(repr(result).splitlines()) <= 6
        card = result._repr_html_()
        answer, figure = card[card.index('<div class="answer">') :].split('<figure class="figure">')
        assert said(answer) in page
        assert figure.count('src="data:image/svg+xml;base64,') == 1

"""Figures for a paper: nothing is cut off, all type is embedded and 8 points high, and no series relies on colour."""

import importlib.util
import itertools

import numpy as np
import pandas as pd
import plotly.io
import pypdfium2 as pdfium
import pytest
from matplotlib import font_manager
from naming import naming
from PIL import Image
from printed import GREY, alike, check, in_grey, legend_samples

import interp
from interp.cli import main
from interp.figures import paper
from interp.figures.draw import add_grid
from interp.figures.figure import Figure
from interp.figures.style import figure, panels
from interp.testing import toy_decoder


def lines(*colours):
    """Series that differ only in their colours."""
    out = figure("Title", "x", "y")
    for number, colour in enumerate(colours):
        out.add_scatter(x=[0, 1, 2], y=[number, number + 1, 0], name=f"series {number}", line_color=colour)
    return out


def test_series_that_look_alike_are_made_distinct():
    samples = legend_samples(paper.drawn(in_grey(lines("#0072b2", "#d55e00", "#009e73")), width=6.8))
    assert not any(alike(*two) for two in itertools.combinations(samples, 2))


def test_a_legend_and_labels_that_are_too_long_are_folded(tmp_path):
    out = lines("#0072b2", "#d55e00")
    out.data[0].name = "a name of very many words that one column of a paper does not have the room for " * 2
    out.update_xaxes(title_text="a label of very many words that one column of a paper does not have the room for")
    out.update_yaxes(title_text="another label of very many words, which is longer than the axis is high")
    text = check(out.save(tmp_path / "long.pdf", width=3.3), 3.3)
    for words in (out.data[0].name, out.layout.xaxis.title.text, out.layout.yaxis.title.text):
        assert words.replace(" ", "") in text


def test_the_values_are_drawn_as_they_are():
    out = figure("Title", "x", "y").add_scatter(x=[1, 10, 100], y=[3.0, 1.0, 2.0], name="one")
    out.update_xaxes(type="log")
    (axes,) = paper.drawn(out, width=3.3).axes
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_xdata().tolist() == [1, 10, 100]
    assert axes.lines[0].get_ydata().tolist() == [3, 1, 2]


def test_a_figure_of_plotly_alone_has_the_colours_of_plotly():
    out = Figure(layout_colorway=["#ff0000", "#00ff00"]).add_scatter(x=[1, 2], y=[1, 2]).add_bar(x=[1], y=[2])
    out.add_scatter(x=[1, 2], y=[2, 1], line_color="#0000ff")
    (axes,) = paper.drawn(out, width=3.3).axes
    assert [line.get_color() for line in axes.lines] == [(1, 0, 0, 1), (0, 0, 1, 1)]
    assert axes.patches[0].get_edgecolor() == (0, 1, 0, 1)
    assert [trace.marker.color for trace in out.data] == [None] * 3


def test_quartiles_of_a_box_are_those_of_plotly():
    """For eight numbers, plotly's `linear` method puts each quartile half-way between two of them."""
    out = figure("Title", "", "y").add_box(x=["a"] * 8, y=[1, 2, 3, 4, 5, 6, 7, 8], name="one", marker_color=GREY)
    (axes,) = paper.drawn(out, width=3.3).axes
    corners = axes.patches[0].get_path().vertices[:, 1]
    assert (corners.min(), corners.max()) == (2.5, 6.5)


def test_a_grid_has_its_first_row_above_and_its_numbers():
    out = figure("Title", "x", "y").add_heatmap(
        x=["a", "b"], y=["first", "second"], z=[[0.5, -0.5], [0.0, 1.0]], zmin=-1, zmax=1, texttemplate="%{z:.1f}",
        colorscale=["#2166ac", "#f7f7f7", "#b2182b"],
    )  # fmt: skip
    axes = paper.drawn(out.update_yaxes(autorange="reversed"), width=3.3).axes[0]
    places = {one.get_text(): one.get_position() for one in axes.texts}
    assert places == {"0.5": (0, 0), "−0.5": (1, 0), "0.0": (0, 1), "1.0": (1, 1)}
    assert axes.yaxis.get_inverted()


def test_a_grid_without_numbers_is_drawn_anyway():
    out = figure("overlap", "", "")
    add_grid(out, pd.DataFrame(np.nan, ["a", "b"], ["a", "b"]), "%{z}")
    assert (out.data[0].zmin, out.data[0].zmax) == (-1, 1)


def test_a_named_level_is_in_the_legend():
    out = lines("#0072b2").add_hline(y=0.5, line={"dash": "dot", "color": GREY}, annotation_text="chance")
    drawn = paper.drawn(out.update_traces(showlegend=True), width=3.3)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["series 0", "chance"]
    assert not drawn.axes[0].texts


@pytest.mark.parametrize("width", [3.3, 6.8])
def test_the_name_of_a_panel_stands_above_its_notes(width):
    black = {"color": "#000000"}
    out = panels("Title", "x", names=["block 0", "block 1"]).add_scatter(x=[0, 15], y=[0, 1], line=black, row=1, col=1)
    for x in (8, 9, 15):
        out.add_vline(x=x, line=black, annotation_text=str(x), row=1, col=1)
    axes = paper.drawn(out.add_scatter(x=[0, 15], y=[1, 0], line=black, row=1, col=2), width=width).axes[0]
    assert len(axes.texts) == 3
    assert not any(axes.title.get_window_extent().overlaps(note.get_window_extent()) for note in axes.texts)


def test_names_of_points_are_beside_them_and_do_not_overlap():
    """Three points are close together; of names stacked upwards, the last ones would otherwise be above the axes."""
    out = figure("Title", "x", "y").add_scatter(x=[0, 1], y=[0, 1], line={"color": "#000000"})
    for x, y in ((0.5, 0.8), (0.52, 0.84), (0.54, 0.82)):
        out.add_annotation(x=x, y=y, text="672", showarrow=False, yshift=11)
    axes = paper.drawn(out, width=3.3).axes[0]
    inside, boxes = axes.get_window_extent(), [note.get_window_extent() for note in axes.texts]
    assert len(boxes) == 3
    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
    assert max(box.y1 for box in boxes) < inside.y1


def test_every_row_of_a_grid_has_its_name_in_type_of_8_points():
    names = [f"row {number}" for number in range(30)]
    drawn = paper.drawn(figure("Title", "", "").add_heatmap(x=["a"], y=names, z=[[0.5]] * 30), width=3.3)
    labels = drawn.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == names
    assert {label.get_size() for label in labels} == {8}
    boxes = [label.get_window_extent() for label in labels]
    assert not any(one.overlaps(two) for one, two in itertools.pairwise(boxes))


def test_panels_lie_below_one_another_in_one_column():
    out = panels("Title", "x")
    for column in (1, 2):
        out.add_scatter(x=[0, 1], y=[0, column], name=f"series {column}", row=1, col=column)
    narrow, wide = ([axes.get_position() for axes in paper.drawn(out, width=width).axes] for width in (3.3, 6.8))
    assert narrow[0].y0 > narrow[1].y1
    assert wide[0].y0 == pytest.approx(wide[1].y0)


def test_a_figure_that_was_read_from_a_page_is_the_same(tmp_path):
    out = figure("Squares", "x", "y").add_scatter(x=np.arange(4), y=np.arange(4.0) ** 2, name="squares")
    out.add_scatter(x=np.arange(4), y=np.ones(4), error_y={"array": np.full(4, 0.5)}, marker_size=np.arange(4))
    out.write_json(tmp_path / "squares.json")
    grid = Figure().add_heatmap(z=np.arange(6.0).reshape(2, 3), texttemplate="%{z:.1f}")
    grid.write_json(tmp_path / "grid.json")
    for drawn in (out, grid):
        read = plotly.io.read_json(tmp_path / ("grid.json" if drawn is grid else "squares.json"))
        once, twice = paper.save(drawn, tmp_path / "one.svg"), paper.save(read, tmp_path / "two.svg")
        assert once.read_bytes() == twice.read_bytes()


@pytest.mark.slow
def test_a_file_is_the_same_each_time_and_has_its_title(tmp_path):
    out = lines("#0072b2")
    for ending in paper.FORMATS:
        once, twice = (out.save(tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
        assert once == twice
    assert pdfium.PdfDocument(tmp_path / "one.pdf").get_metadata_value("Title") == "Title"
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.width == 990
    assert "Title" in check(out.save(tmp_path / "titled.pdf", style="titled"), 3.3)


def test_letters_without_a_font_are_reported_once(tmp_path):
    out = figure("𒀀𒀁", "𒀀", "y").add_scatter(x=[0, 1], y=[0, 1])
    with pytest.warns(UserWarning, match="no installed font has 𒀀 𒀁, drawn as boxes") as told:
        out.save(tmp_path / "one.pdf", style="titled")
    assert len(told) == 1


def test_a_font_that_was_installed_later_is_found():
    for path in set(font_manager.findSystemFonts()) - {font.fname for font in font_manager.fontManager.ttflist}:
        with pytest.raises(RuntimeError):  # the file is not a font
            font_manager.fontManager.addfont(path)


def test_a_caption_has_whole_sentences():
    told = {
        ("Is it so?", "means over tasks"): "Is it so? Means over tasks.",
        ("Kept", "λ = 1"): "Kept. λ = 1.",
        ("Kept", ""): "Kept.",
        ("Kept", "b<sub>LN</sub> alone"): "Kept. b_LN alone.",
    }
    for (title, below), expected in told.items():
        assert paper.caption(figure(title, "x", "y", subtitle=below)) == expected


@pytest.mark.parametrize(
    ("values", "call"),
    [
        (("one.jpg", ".jpg", ".pdf, .svg, .png"), lambda path: lines(GREY).save(path / "one.jpg")),
        (("width", 33, 2.5, 20), lambda path: lines(GREY).save(path / "one.pdf", width=33)),
        (("style", "'large'", "paper, titled"), lambda path: lines(GREY).save(path / "one.pdf", style="large")),
        (("'violin'", "scatter, bar, box, heatmap"), lambda path: Figure().add_violin(y=[1, 2]).save(path / "one.pdf")),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(values, call, tmp_path):
    with pytest.raises(Exception, match=naming(*values)):
        call(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=naming("matplotlib", "pip install 'interp[figures]'")):
        lines(GREY).save(tmp_path / "one.pdf")
    assert main(["figures", str(tmp_path)]) == 2
    assert "interp[figures]" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path):
    classes = {"first": [7, 8]}
    study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
    study.save(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.e2e
def test_the_command_writes_every_figure(run, capsys):
    assert main(["figures", str(run), "--format", "pdf,png", "--width", "3.3", "--json"]) == 0
    shown = interp.attention.AttentionStudy.load(run).section.figures
    names = {f"attention_{name}.{ending}" for name in shown for ending in ("pdf", "png")}
    assert {path.name for path in (run / "figures").iterdir()} == names | {".interp"}
    assert "Attention by class of the key. Mean over heads" in capsys.readouterr().out
    assert main(["figures", str(run)]) == 0
    assert not [*(run / "figures").glob("*.png")]
    assert main(["page", str(run)]) == 0


def test_the_command_refuses_and_leaves_what_is_there(run, capsys):
    for flags, said in (
        (["--format", "pdf,jpg"], "unknown format 'jpg' (did you mean 'png'?); expected one of pdf, svg, png"),
        (["--width", "1"], "width is 1 inches"),
        (["--style", "large"], "'large' is not one of 'paper', 'titled'"),
    ):
        assert main(["figures", str(run), *flags]) == 2
        assert said in capsys.readouterr().err
    assert not (run / "figures").exists()
    (run / "figures").mkdir()
    (run / "figures" / "thesis.tex").write_text("mine")
    assert main(["figures", str(run)]) == 2
    assert (run / "figures" / "thesis.tex").read_text() == "mine"

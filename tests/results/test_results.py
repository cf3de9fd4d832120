"""What a result shows about itself, and single names where lists of names are accepted."""

import dataclasses
import importlib.util
import inspect
import pydoc
from pkgutil import resolve_name

import numpy as np
import pandas as pd
import pytest
from naming import naming

import interp
from interp import corpora, plots
from interp.analyses.frequency.options import FrequencyOptions
from interp.analyses.probing.options import ProbingOptions
from interp.analyses.registry import analyses
from interp.cli import main
from interp.results.findings import counted
from interp.results.result import Result
from interp.testing import toy_decoder

TEXT = ["w0 w0 w0 w1 w1 w2"] * 20
CLASSES = {"key_classes": {"first": [7, 8]}, "progress": False}


@pytest.fixture(scope="module")
def effect():
    model = toy_decoder()
    unigram = corpora.count_unigrams(model, TEXT)
    return interp.frequency.study(model, TEXT, unigram=unigram, scales=[0, 1], progress=False)


@pytest.fixture(scope="module")
def study():
    return interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, **CLASSES)


@pytest.mark.slow
def test_a_result_is_shown_in_six_lines(effect, study):
    for result in (effect, study):
        lines = repr(result).splitlines()
        assert 4 <= len(lines) <= 6
        assert max(map(len, lines)) < 120
        assert lines[0] == f"{type(result).__name__}: {result.where}"
        assert lines[1][:40] == result.answer.text[:40]
        assert counted(result.findings) in lines[3] or len(result.findings) < 3


def test_a_notebook_shows_verdict_number_and_figure(effect, monkeypatch):
    shown = effect._repr_html_()
    first = effect.findings[0]
    assert f">{first.verdict.capitalize()}</strong>" in shown
    value, gap, reason = first.number.partition(" (no interval")
    assert f'<strong class="number">{value}</strong>{gap}{reason}' in shown
    assert "data:image/svg+xml" in shown
    assert "<script" not in shown
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    without = effect._repr_html_()
    assert value in without
    assert "data:image" not in without
    assert "pip install &#39;interp[figures]&#39;" in without


def test_the_summary_has_every_finding_and_its_rule(effect):
    said = " ".join(effect.summary().split())
    for finding in effect.findings:
        assert str(finding) in said
        assert finding.rule in said


def test_warnings_stay_with_the_result(tmp_path):
    told = "no token of class rare in this text, so the tables have no rows for it"
    with pytest.warns(UserWarning, match=told):
        found = interp.attention.study(
            toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"first": [7, 8], "rare": [20]}, progress=False
        )
    found.save(tmp_path)
    kept = interp.load_result(tmp_path)
    assert kept.caveats[0] == told
    assert f"Note: {told}." in kept.summary()
    assert told[1:] in kept._repr_html_()


def test_a_model_that_cannot_predict_the_text_is_noted(effect):
    """The toy model is random, so its perplexity is about 67, the size of its vocabulary; the text has three words."""
    copies, caveat = effect.caveats
    assert copies.startswith("95% of the texts repeat an earlier one")
    assert "no better than that of word frequencies alone, 2.7" in caveat
    well = dataclasses.replace(effect, kl=effect.kl.assign(perplexity=2.5))
    assert well.caveats == (copies,)


def test_figures_are_those_of_the_page(effect, study):
    for result in (effect, study):
        assert list(result.figures()) == list(result.section.figures)


def test_tables_go_to_csv_and_latex(effect, tmp_path):
    written = effect.to_csv(tmp_path)
    assert {path.name for path in written} == {
        *(f"frequency_{name}.csv" for name in [*effect.tables, *effect.dense, "findings"])
    }
    read = pd.read_csv(tmp_path / "frequency_kl.csv")
    pd.testing.assert_frame_equal(read, effect.kl, check_dtype=False)
    with pytest.raises(FileExistsError):
        effect.to_csv(tmp_path)
    table = effect.to_latex("kl")
    assert effect.to_latex() == table
    assert table.count("\\\\") == 1 + len(effect.kl)
    assert table.splitlines()[2].startswith(r"bias & $\lambda$ & $\Delta$KL, nats & perplexity & KL(u$\|$q), nats")
    assert len(max(table.splitlines()[:-1], key=len)) < 150
    assert effect.to_latex("kl", columns=["scale", "js"]).splitlines()[2] == r"$\lambda$ & JS, nats \\"
    with pytest.raises(ValueError, match=naming("columns", ["jss"], "bias, scale")):
        effect.to_latex("kl", columns=["jss"])
    with pytest.raises(ValueError, match=naming("'kll'", "kl, types")):
        effect.to_latex("kll")


def test_a_result_is_opened_by_its_directory(effect, study, tmp_path):
    folder = effect.save(tmp_path)
    assert type(interp.load_result(tmp_path)) is type(effect)
    assert interp.load_result(folder).kl.equals(effect.kl)
    study.save(tmp_path)
    assert type(interp.load_result(tmp_path, "attention")) is type(study)
    with pytest.raises(ValueError, match=naming(tmp_path, "frequency, attention", "load_result")):
        interp.load_result(tmp_path)
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, "encoding", "frequency, attention")):
        interp.load_result(tmp_path, "encoding")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "gone")):
        interp.load_result(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path.parent, tmp_path.name)):
        interp.load_result(tmp_path.parent)


def test_a_tilde_is_the_home_directory(effect, tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    assert effect.save("~/run") == home / "run" / "frequency"
    pd.testing.assert_frame_equal(interp.load_result("~/run").kl, effect.kl)
    assert main(["page", "~/run"]) == 0
    assert (home / "run" / "index.html").is_file()
    assert {path.parent for path in effect.to_csv("~/csv")} == {home / "csv"}
    corpora.Unigrams(np.array([0, 3, 5]), "counts").save("~/counts.safetensors")
    assert corpora.unigrams.load("~/counts.safetensors").counts.tolist() == [0, 3, 5]
    pair = {"sentence_good": ["w1"], "sentence_bad": ["w2"]}
    pd.DataFrame(pair).to_csv(home / "pairs.csv", index=False)
    assert corpora.pairs.load("~/pairs.csv")["UID"].tolist() == ["pairs"]
    assert not list(elsewhere.iterdir())


def test_a_plot_says_what_it_draws(effect, study):
    draws = ("plots.bias_curve", "FrequencyStudy", "interp.frequency.study")
    with pytest.raises(TypeError, match=naming(*draws, "AttentionStudy", ".figures()")):
        plots.bias_curve(study)
    with pytest.raises(TypeError, match=naming(*draws, "'runs/demo'")):
        plots.bias_curve("runs/demo")
    with pytest.raises(
        TypeError, match=naming("plots.dimension_means", "AttentionStudy", "interp.attention.study", "FrequencyStudy")
    ):
        plots.dimension_means(study=effect)
    assert plots.bias_curve(effect=effect, bias="ln").data


def test_a_result_of_no_analysis_has_no_figures():
    class Lengths(Result):
        analysis = "lengths"

    found = Lengths(provenance={})
    assert repr(found).splitlines() == ["Lengths", "also: summary(), figures(), to_csv(…), to_latex()"]
    assert found._repr_html_() is None
    with pytest.raises(ValueError, match=naming("Lengths", "interp.plots")):
        found.figures()


def test_figures_are_found_by_the_beginning_of_a_name(effect):
    figures = effect.figures()
    assert figures["curve"] is figures["curve_ln"]
    with pytest.raises(KeyError, match=naming("'curv'", "curve_ln")):
        figures["curv"]


@pytest.mark.slow
def test_one_name_or_number_is_taken_as_a_list(effect):
    model = toy_decoder()
    one = interp.frequency.study(
        model, TEXT, unigram=corpora.count_unigrams(model, TEXT), biases="ln", scales=0, progress=False
    )
    removed = effect.kl[effect.kl["scale"] == 0].set_index("bias").loc["ln", "kl_unigram_model"]
    assert one.kl["kl_unigram_model"].tolist() == [removed]
    studied = interp.attention.study(model, ["w0 w1 w2"] * 20, layers=1, **CLASSES)
    assert studied.attention["layer"].unique().tolist() == [1]
    by_class = interp.attention.attention_by_class(model, ["w0 w1 w2"] * 20, layers=1, **CLASSES)
    assert by_class["layer"].unique().tolist() == [1]
    (hook,), (same,) = (interp.hooks.ablate_dims(model, 1, dims, where="residual") for dims in (3, [3]))
    assert hook[0] == same[0]


def test_options_hold_what_they_are_given_as_a_tuple():
    asked = FrequencyOptions(biases="ln", scales=0.5, directions="mean", column="text")
    assert (asked.biases, asked.scales, asked.directions) == (("ln",), (0.5,), ("mean",))
    assert (asked.column, asked.seed) == ("text", None)
    asked = ProbingOptions(states=3, methods="dense", tasks="causative", state=2)
    assert (asked.states, asked.methods, asked.tasks, asked.state) == ((3,), ("dense",), ("causative",), 2)


def test_help_fits_a_screen():
    for name, one in analyses().items():
        function = resolve_name(one.answer)
        said = inspect.getdoc(function)
        assert len(said.splitlines()) <= 57, name  # `help` prints the signature above it, one parameter per line
        assert "Args:\n" in said
        assert "Examples:\n" in said
        printed = pydoc.render_doc(function, renderer=pydoc.plaintext)
        assert f") -> {one.kind.__module__}.{one.kind.__name__}\n" in printed

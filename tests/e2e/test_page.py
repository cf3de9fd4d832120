"""Figures, and the page in a browser."""

import dataclasses
import io
import json
import re
from html import unescape
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.io
import pypdfium2
import pytest
from browser import Browser
from naming import naming
from plotly.colors import hex_to_rgb
from toys import ROOT, every_table, with_tables

import interp
from interp import pages, plots, probing
from interp.analyses.frequency import study
from interp.analyses.registry import analyses
from interp.figures import style
from interp.figures.section import Section
from interp.pages.page import render
from interp.pages.undrawn import Written
from interp.results.columns import displayed
from interp.support import disk
from interp.support.words import count
from interp.testing import toy_decoder

HOSTILE = "<script>alert(1)</script><a href='https://x.invalid'>b</a><b>"


@pytest.fixture
def effect(load_toy, texts):
    return study(load_toy("bert"), texts, unigram=np.arange(67), scales=np.linspace(0, 1, 11), progress=False)


def test_figures_are_labelled_and_small(effect):
    figures = [plots.bias_curve(effect, bias) for bias in ("ln", "fc", "last")]
    figures += [plots.kl_by_scale(effect), plots.projection(effect, "ln"), plots.projection(effect, "last")]
    for figure in figures:
        assert figure.layout.xaxis.title.text
        assert figure.layout.yaxis.title.text
        assert len(figure.to_json()) < 200_000
    names = [trace.name for trace in figures[0].data if trace.name]
    assert names[0] == "λ = 0 (removed)"
    assert {"q = u (unigram)", "q = 1/V (uniform)"} <= set(names)
    dashes = [trace.line.dash for trace in figures[0].data if trace.mode == "lines+markers"]
    assert len(set(dashes)) == 5, "readable without colour"
    with pytest.raises(ValueError, match=naming("b_FC", "logits")):
        plots.projection(effect, "fc")


def test_curves_draw_the_table(effect):
    figure = plots.bias_curve(effect, "ln")
    drawn = next(trace for trace in figure.data if trace.name == "λ = 1 (as trained)")
    table = effect.curve.query("bias == 'ln' and scale == 1")
    np.testing.assert_allclose(drawn.y, table["geometric_mean"])


def test_a_ratio_of_geometric_means_is_that_of_the_curves(effect):
    curve = effect.curve.query("bias == 'ln'").pivot(index="bin", columns="scale", values="geometric_mean")
    drawn = {trace.name: trace for trace in plots.bias_ratio(effect, "ln").data if trace.name}
    assert np.ptp(drawn["λ = 0 (removed)"].y) > 1e-3
    np.testing.assert_allclose(drawn["λ = 0 (removed)"].y, curve[0.0] / curve[1.0], rtol=1e-6)
    unscaled = with_tables(effect, kl=effect.kl, probabilities=effect.probabilities(scale=[0.0, 0.5]))
    with pytest.raises(ValueError, match=naming("ratio", "λ = 1", "0, 0.5")):
        plots.bias_ratio(unscaled, "ln")


def test_a_large_vocabulary_is_summarised(effect):
    many = pd.concat([effect.types] * 600, ignore_index=True)
    figure = plots.projection(with_tables(effect, types=many), "ln")
    assert len(figure.data[0].x) == 1500
    assert figure.data[0].name == f"1,500 of {66 * 600:,} types"
    assert len(figure.to_json()) < 200_000


def test_absent_biases_are_refused(load_toy, texts):
    effect = study(load_toy("gpt2"), texts, unigram=np.arange(67), progress=False)
    with pytest.raises(ValueError, match=naming("'fc'", "ln")):
        plots.bias_curve(effect, "fc")


def test_no_page_without_a_result(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming(tmp_path)):
        pages.write_page(tmp_path)


@pytest.fixture(scope="module")
def written(reported):
    return reported["tiny-gpt2"]["generation"]


def test_figures_of_generated_text(written):
    figures = {name: plots.text_measure(written, name) for name in ("diversity", "mauve", "frequent_share")}
    for measure, figure in figures.items():
        assert figure.layout.xaxis.title.text
        assert figure.layout.yaxis.title.text
        assert len(figure.to_json()) < 200_000
        names = [trace.name for trace in figure.data if "highest" not in trace.name]
        assert names == ["beam", "top-k", *([] if measure == "mauve" else ["human"])]
    table = written.metrics.query("decoder == 'top_k'").sort_values("scale")
    np.testing.assert_allclose(figures["mauve"].data[1].y, table["mauve_mean"])
    np.testing.assert_allclose(figures["mauve"].data[1].error_y.array, table["mauve_sd"])
    np.testing.assert_allclose(figures["diversity"].data[1].error_y.array, table["diversity_se"])
    assert len({trace.line.dash for trace in figures["diversity"].data}) == 3, "readable without colour"
    tradeoff = plots.generation_tradeoff(written)
    np.testing.assert_allclose(tradeoff.data[1].x, table["perplexity"])
    np.testing.assert_allclose(tradeoff.data[1].y, table["diversity"])
    assert {"λ = 0", "λ = 1"} <= {note.text for note in tradeoff.layout.annotations}
    bare = with_tables(written, metrics=written.metrics.assign(mauve_mean=np.nan))
    with pytest.raises(ValueError, match=naming("mauve")):
        plots.text_measure(bare, "mauve")


def in_words(change):
    return f"{change:+z.3f}".replace("-", "−")


def test_the_section_says_what_the_table_says(written):
    section = written.section
    table = written.metrics.set_index(["decoder", "scale"])
    before, after = table.loc[("top_k", 1)], table.loc[("top_k", 0)]
    (found,) = (one for one in section.findings if "top-k sampling more diverse" in one.question)
    assert found.value == pytest.approx(after["diversity"] - before["diversity"])
    assert f"{before['diversity']:.3f} as trained" in str(found)
    assert f"changes by {in_words(found.value)} [" in str(found)
    (said,) = section.notes
    assert said.startswith(f"Perplexity on human text is {before['perplexity']:.1f} (no interval) at λ = 1 and ")
    assert said.endswith(f" {after['perplexity']:.1f} (no interval) at λ = 0.")
    samples = section.tables["Samples by scale"]
    assert list(samples.columns) == ["prompt", "decoder", "λ = 1", "λ = 0.5", "λ = 0", "human"]
    assert list(samples["decoder"]) == ["beam", "top_k"] * 2
    texts = written.texts.set_index(["decoder", "scale", "prompt_id"])["text"]
    assert samples["λ = 0"][3] == texts["top_k", 0, 1]
    assert len(section.figures) == 5


@pytest.fixture(scope="module")
def probed(reported):
    return reported["tiny-gpt2"]["probing"]


def test_figures_of_probes(probed):
    figures = [
        plots.sparse_probes(probed), plots.topk_probes(probed), plots.gate_agreement(probed), plots.random_dims(probed),
        plots.beyond_words(probed), plots.transfer_matrix(probed), plots.transfer_matrix(probed, difference=True),
        plots.general_probes(probed), plots.neuron_overlap(probed), plots.probe_ablation(probed),
    ]  # fmt: skip
    for figure in figures:
        assert figure.layout.xaxis.title.text or figure.layout.title.text.startswith("Does the model need")
        assert figure.layout.yaxis.title.text
        assert len(figure.to_json()) < 200_000
    plain = probed.probes.query("control == 'none'")
    lines = {trace.name: trace for trace in figures[0].data if trace.xaxis == "x"}
    means = plain.query("method == 'l0' and l0_strength == 0.4").groupby("state")["accuracy"].mean()
    np.testing.assert_allclose(lines["λ = 0.4"].y, means.round(4))
    assert {"dense", "dense, labels flipped", "dense, untrained", "bag of words"} <= set(lines)
    transfer = probed.transfer.query("method == 'l0' and l0_strength == 0.4").set_index(["train_task", "test_task"])
    names = figures[5].data[0].x
    shown = [f"{name.replace('_', ' ')} {number}" for number, name in enumerate(names, 1)]
    assert list(figures[5].layout.yaxis.ticktext) == shown
    assert figures[5].data[0].z[0][2] == pytest.approx(transfer.loc[(names[0], names[2]), "pair_accuracy"], abs=1e-3)
    own, dense = (
        probed.transfer[probed.transfer["l0_strength"] == one].set_index(["train_task", "test_task"])["accuracy"]
        for one in (0.4, 1.0)
    )
    of_sentences = plots.transfer_matrix(probed, measure="accuracy").data[0].z[0][2]
    assert of_sentences == pytest.approx(own.loc[(names[0], names[2])], abs=1e-3)
    minus = plots.transfer_matrix(probed, difference=True, measure="accuracy").data[0].z[0][2]
    assert minus == pytest.approx((own - dense).loc[(names[0], names[2])], abs=1e-3)
    by_state = {trace.name: trace for trace in plots.random_dims_by_state(probed).data}
    drawn = probed.random_k.query("k == 4").groupby("state")["accuracy"].mean()
    assert list(by_state["4 random"].x) == [0, 3, 6]
    np.testing.assert_allclose(by_state["4 random"].y, drawn.round(4))
    np.testing.assert_allclose(
        by_state["top 1 by |t|"].y, probed.equivalence.groupby("state")["top_accuracy"].mean().round(4)
    )
    without = with_tables(probed, ablation=pd.DataFrame())
    with pytest.raises(ValueError, match=naming("ablation")):
        plots.probe_ablation(without)
    with pytest.raises(ValueError, match=naming("state 5")):
        plots.random_dims(probed, 5)


def test_the_probing_section_says_what_the_tables_say(probed):
    section = probed.section
    state = probed.provenance["state"]
    at = probed.probes.query(f"state == {state}")
    dense = at.query("method == 'dense' and control == 'none'").set_index("task")["accuracy"]
    phenomena = probed.tasks.set_index("task")["linguistics_term"].reindex(dense.index)
    dense = dense.groupby(phenomena).mean().mean()
    assert f"dense probes {dense:.3f}" in str(probed.answer)
    zeroed = probed.ablation.query("mode == 'zero'")
    change = (zeroed["accuracy_after"] - zeroed["accuracy_before"]).groupby([zeroed["task"], zeroed["set"]]).mean()
    apart = change.unstack()["found"] - change.unstack()["matched"]
    (needed,) = (str(one) for one in section.findings if "set to zero" in one.measure)
    assert f"Its accuracy on {count(len(apart), 'task')} with them set to zero, minus" in needed
    assert f" is {in_words(apart.groupby(phenomena).mean().mean())} (no interval: fewer than 5 " in needed
    told = probed.comparisons.query(f"state == {state} and probe == 'dense' and against == 'bag_of_words'")
    sure = told[told["p_adjusted"] < 0.05]
    above, below = (sure["difference"] > 0).sum(), (sure["difference"] < 0).sum()
    assert f"better on {above} of {count(len(told), 'task')} and worse on {below} (McNemar" in " ".join(
        map(str, section.findings)
    )
    assert {"random_states", "transfer", "transfer_difference"} <= set(section.figures)


def test_a_probe_is_shown_at_every_token(probed):
    probe = probing.probe(probed, "left_branch", 6)
    sentence = "Whose </script> hat should Tonya wear?"
    view = plots.probe_view(*probing.token_scores(interp.load("tiny-gpt2"), probe, sentence, bos=True))
    assert "</script> hat" not in view.local_src
    assert '"&lt;"' in view.local_src


def renamed(result, old, new):
    """The result with one name replaced in every table and in the provenance."""
    tables = {}
    for name, table in every_table(result).items():
        words = [column for column in table if pd.api.types.is_string_dtype(table[column])]
        tables[name] = table.assign(**{column: table[column].replace(old, new) for column in words})
    about = {key: [new if one == old else one for one in value] if isinstance(value, list) else value
             for key, value in result.provenance.items()}  # fmt: skip
    about |= {"model": HOSTILE, "corpus": HOSTILE}
    return dataclasses.replace(with_tables(result, **tables), provenance=about)


@pytest.fixture(scope="module")
def results(reported, written, probed):
    """A result of each analysis, with a hostile name wherever there may be a name."""
    gpt2, bert = reported["tiny-gpt2"], reported["tiny-bert"]
    types = bert["frequency"].types
    return {
        "frequency": renamed(bert["frequency"], types.loc[types["count"].idxmax(), "token"], HOSTILE),
        "generation": renamed(written, "beam", HOSTILE),
        "attention": renamed(bert["attention"], "sep", HOSTILE),
        "encoding": renamed(gpt2["encoding"], "b_LN", HOSTILE),
        "probing": renamed(probed, "left_branch", HOSTILE),
    }


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    for result in results.values():
        result.save(root)
    return pages.write_page(root)


@pytest.fixture(scope="module")
def opened(browser, page):
    """The page with everything expanded."""
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    browser.settle()
    return browser


@pytest.fixture(scope="module")
def short(browser, results, reported, tmp_path_factory):
    """A page about two questions and two models, in its own browser, which is resized and recoloured."""
    root = tmp_path_factory.mktemp("short")
    for name in ("frequency", "probing"):
        results[name].save(root / "a")
    reported["tiny-gpt2"]["frequency"].save(root / "b")
    with Browser() as one:
        one.open(pages.write_page(root))
        yield one


_SUBJECTS = "[...document.querySelectorAll('header dd')].map(facts => facts.textContent)"


def test_the_page_is_one_file(page, results):
    text = page.read_text(encoding="utf-8")
    assert HOSTILE not in text
    has_part = f"plotly=={version('plotly')}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert len(text.encode()) < (5_000_000 if has_part else 7_500_000)
    assert text.count("* plotly.js (cartesian - minified) v" if has_part else "* plotly.js v") == 1
    assert text.count("var CircuitsVis=") == 1
    assert not re.search(r"<(script|link|img|iframe)[^>]* (src|href)=.https?:", text)


def test_the_page_says_what_was_left_out_and_how_to_repeat_the_run(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    assert "<dt>Generation (tiny-bert)</dt><dd>An encoder (BERT) does not continue text" in text
    assert "<code>interp report --config tiny-gpt2/frequency/options.yaml --out DIR</code>" in text


def test_terms_and_rules_stand_once_and_are_printed(short, tmp_path):
    """Each model is introduced with its size, what it read, and when."""
    terms = short.run("[...document.querySelectorAll('.glossary dt')].map(term => term.textContent)")
    rules = short.run("[...document.querySelectorAll('.glossary li')].map(rule => rule.textContent)")
    assert len(terms) > 5
    assert len(rules) > 0
    assert len({*terms}) == len(terms)
    assert len({*rules}) == len(rules)
    assert all(
        re.search("[0-9]+ layers, d_model .* read .* with interp .* on 20", text) for text in short.run(_SUBJECTS)
    )
    short.pdf(tmp_path / "page.pdf")
    printed = [page.get_textpage().get_text_range() for page in pypdfium2.PdfDocument(tmp_path / "page.pdf")]
    text = " ".join(" ".join(printed).split())
    assert all(term in text for term in terms)
    assert "How verdicts follow from numbers" in text
    short.open(Path(short.run("location.pathname")))


def test_the_page_shows_what_the_report_command_writes(results):
    assert tuple(name for name, analysis in analyses().items() if not analysis.only_more) == tuple(results)


def test_figures_are_kept_beside_the_results(page, results):
    for analysis, result in results.items():
        section = result.section
        folder = page.parent / analysis / "figures"
        assert {file.stem for file in folder.glob("[!.]*")} == set(section.figures)
        for name, figure in section.figures.items():
            assert re.fullmatch("[a-z0-9_]+", name)
            assert (folder / f"{name}.json").stat().st_size < 200_000
            assert plotly.io.read_json(folder / f"{name}.json").layout.title == figure.layout.title
    folder = page.parent / "frequency" / "figures"
    (folder / "stale.json").write_text("{}")
    contents = folder / disk.CONTENTS
    contents.write_text(contents.read_text().replace("[", '["stale.json", '))
    pages.write_page(page.parent)
    assert not (page.parent / "frequency" / "figures" / "stale.json").exists()


def test_every_section_is_summarised_by_one_of_its_figures(results):
    for result in results.values():
        section = result.section
        assert section.main in section.figures
        assert re.search(r"\d", section.summary)
        assert section.summary.endswith(".")
        assert section.summary == str(result.answer), "the answer, without a question"


def test_as_many_more_figures_are_named_as_there_are(page, results):
    for result in results.values():
        titles = [figure.layout.title.text for figure in result.section.figures.values()]
        assert len(set(titles)) == len(titles)
    named = re.findall(r"<summary>(\d+) more figures?: (.*)</summary>", page.read_text(encoding="utf-8"))
    assert len(named) == 5
    assert [unescape(titles).count("; ") + 1 for _, titles in named] == [int(number) for number, _ in named]


def test_every_figure_is_drawn_and_nothing_is_fetched(opened, page, results):
    drawn = opened.run(
        "plots.map(plot => plot.querySelectorAll('.scatterlayer path, .heatmaplayer image, .boxlayer path').length)"
    )
    sections = [result.section for result in results.values()]
    assert len(drawn) == sum(len(section.figures) for section in sections)
    assert all(drawn), "every figure has drawn something"
    assert opened.requests == [page.as_uri()]
    assert opened.problems == []


def test_hostile_names_are_shown_literally(opened):
    assert opened.run("document.title") == f"interp · {Path(HOSTILE).name} on {HOSTILE}"
    shown = opened.run(
        "[...document.querySelectorAll('svg text')].filter(one => one.textContent.includes('<script>')).length"
    )
    assert shown >= 4, "in legends and on axes"
    hovered = opened.run(
        """(() => {
            const plot = plots.find(one => one.dataset.figure.endsWith("projection_ln"));
            const point = plot.data[0].text.findIndex(one => one.includes("script"));
            Plotly.Fx.hover(plot, [{curveNumber: 0, pointNumber: point}]);
            return plot.querySelector(".hoverlayer").textContent;
        })()"""
    )
    assert HOSTILE in hovered
    assert opened.run("document.querySelectorAll('svg a, a[href*=invalid]').length") == 0


def test_a_probe_is_shown_at_every_token_of_a_pair(opened, results):
    views = results["probing"].views
    shown = opened.run("[...document.querySelectorAll('.view .colored-tokens')].map(one => one.textContent)")
    written = views.groupby(["task", "sentence"], sort=False)["token"].sum()
    assert [text.replace("\xa0", " ") for text in shown] == written.tolist()
    assert len(shown) == 2 * views["task"].nunique()


def test_tokens_of_a_probe_can_be_read_in_every_shade(opened):
    shades = opened.run("""(async () => {
        const look = JSON.parse(document.querySelector("[data-view]").nextElementSibling.textContent);
        const values = [...Array(41).keys()].map(i => look.maxValue * (i - 20) / 20);
        const place = document.body.appendChild(document.createElement("div"));
        place.id = "shades";
        CircuitsVis.render(place.id, CircuitsVis.ColoredTokens, {...look, tokens: values.map(String), values});
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        const drawn = [...place.querySelectorAll(".colored-tokens > span > span")].map(one => getComputedStyle(one));
        const found = drawn.map(one => [one.color, one.backgroundColor]);
        place.remove();
        return found;
    })()""")
    assert len({back for _, back in shades}) == 41
    assert min(contrast(*pair) for pair in shades) >= 4.5


def test_a_dimension_opens_the_tokens_at_which_it_is_largest(opened, results):
    study = results["attention"]
    named = (
        "[...document.querySelectorAll('#attention-1-1 .opens')]"
        ".map(one => [one.textContent.match(/\\d+$/)[0], one.popoverTargetElement?.id])"
    )
    buttons = opened.run(named)
    assert {place for _, place in buttons} == {f"attention-1-1-dimension-{dim}" for dim in study.outliers["dim"]}
    assert all(place == f"attention-1-1-dimension-{dim}" for dim, place in buttons)
    assert opened.run("document.querySelectorAll('#attention-1-1 td .opens').length") > len(study.outliers)
    single = next(one for one in study.findings if one.question.startswith("Does outlier dimension"))
    dim = next(part for part in single.question.split() if part.isdecimal())
    outlying = study.outliers[study.outliers["dim"] == int(dim)]
    state = outlying.loc[outlying["robust_z"].abs().idxmax(), "state"]
    tokens = study.contexts.query(f"dim == {dim} and state == {state}")
    is_open = "document.querySelector(':popover-open')?.id ?? null"
    opened.run("document.querySelector('.answer .opens').focus()")
    opened.press("Enter")
    assert opened.run(is_open) == f"attention-1-1-dimension-{dim}"
    rows = "[...document.querySelectorAll(':popover-open tbody tr')]"
    shown = opened.run(f"{rows}.map(row => [...row.cells].map(one => one.textContent))")
    words = tokens["before"] + tokens["token"].str.removeprefix("##") + tokens["after"]
    assert [text for _, text, _ in shown] == words.tolist()
    assert [float(value.replace("−", "-")) for value, _, _ in shown] == pytest.approx(tokens["activation"], abs=0.006)
    assert [int(text) for *_, text in shown] == tokens["text"].tolist()
    opened.click(":popover-open button")
    assert opened.run(is_open) is None


@pytest.mark.parametrize(("part", "column"), [("probing", "dim"), ("encoding", "neuron")])
def test_a_neuron_opens_the_tokens_at_which_it_is_largest(part, column, opened, results):
    study, inside = results[part], f"document.querySelector('#{part}-1-1 td .opens')"
    number = int(opened.run(f"{inside}.popoverTargetElement.id").rpartition("-")[2])
    opened.run(f"{inside}.focus()")
    opened.press("Enter")
    rows = "[...document.querySelectorAll(':popover-open tbody tr')]"
    shown = opened.run(f"{rows}.map(row => [...row.cells].map(one => one.textContent))")
    tokens = study.contexts[study.contexts[column] == number]
    assert [float(value.replace("−", "-")) for value, *_ in shown] == pytest.approx(tokens["activation"], rel=0.01)
    words = tokens["before"] + tokens["token"].map(lambda token: re.sub("^(␣|##)", "", token)) + tokens["after"]
    assert [text for _, text, _ in shown] == words.tolist()
    opened.click(":popover-open button")


def test_tables_sort_by_click_and_by_key(opened, results):
    table = results["generation"].metrics
    place = [one.name for one in displayed(table, table_columns("generation"))].index("perplexity")
    heading = f"#frequency-2-1 table th:nth-child({place + 1})"
    shown = (
        "[...document.querySelector('#frequency-2-1 table').tBodies[0].rows]"
        f".map(row => row.cells[{place}].textContent)"
    )
    opened.click(f"{heading} button")
    first = opened.run(shown)
    values = [float(one.split(" [")[0].replace(",", "")) for one in first[:-1]]
    assert values == pytest.approx(sorted(table["perplexity"].dropna()), rel=1e-2)
    assert first[-1] == "–", "missing values come last"
    assert opened.run(f"document.querySelector('{heading}').ariaSort") == "ascending"
    opened.run(f"document.querySelector('{heading} button').focus()")
    opened.press("Enter")
    second = opened.run(shown)
    assert second[:-1] == first[-2::-1]
    assert second[-1] == "–"
    assert opened.run(f"document.querySelector('{heading}').ariaSort") == "descending"


def table_columns(analysis):
    return analyses()[analysis].kind.columns


def test_every_column_has_a_heading_and_a_meaning(reported):
    unknown = set()
    for results in reported.values():
        for analysis, result in results.items():
            known = table_columns(analysis)
            for name, table in {**every_table(result), **result.section.tables}.items():
                shown = [one for one in displayed(table, known) if not re.fullmatch(r"λ = .*|human|\d+%", one.name)]
                unknown |= {f"{analysis} {name}: {one.name}" for one in shown if not one.heading.meaning}
    assert not unknown


def test_headings_say_what_they_mean(opened):
    told = "[...document.querySelectorAll('th button')].map(one => [one.textContent, one.title])"
    assert ["ΔKL, nats", "How much further q is from word frequency than at λ = 1."] in opened.run(told)
    named = "[...document.querySelectorAll('.plot')].every(one => one.ariaLabel.includes('Axes: '))"
    assert opened.run(named), "every figure is described"


@pytest.mark.filterwarnings("ignore:The 'float_precision' argument")  # pandas 2 needs it, 3 does not
def test_a_table_is_downloaded_in_full(opened, results, tmp_path):
    button = "[data-csv=frequency-1-1-table-1]"
    text = opened.downloaded(button, tmp_path, "frequency-1-1-table-1.csv")
    found = pd.read_csv(io.StringIO(text), float_precision="round_trip")
    pd.testing.assert_frame_equal(found, results["frequency"].kl, check_exact=True, check_dtype=False)


def test_a_downloaded_table_runs_no_formula(tmp_path):
    words = ["=1+1", "+1", "-1", "@a", "\t=1", "a=1", "'", None]
    table = pd.DataFrame({"=name": words, "value": np.arange(8) - 4.5, "count": -np.arange(8)})
    section = Section(
        main="f", findings=(), notes=("s",), definitions={}, provenance={},
        figures={"f": style.figure("f", "x", "y")}, tables={"Nothing found": table[:0], "Table": table},
    )  # fmt: skip
    written = Written(tmp_path / "index.html")
    render(written, "t", [("run", analyses()["frequency"], section)])
    text = written.path.read_text(encoding="utf-8")
    assert "Nothing found" not in text
    kept = re.search('id="frequency-1-1-table-1">(.*?)</script>', text)[1]
    found = pd.read_csv(io.StringIO(json.loads(kept)))
    assert list(found) == ["'=name", "value", "count"]
    assert found["'=name"].tolist()[:7] == ["'=1+1", "'+1", "'-1", "'@a", "'\t=1", "a=1", "'"]
    pd.testing.assert_frame_equal(found[["value", "count"]], table[["value", "count"]])


def test_a_dark_page_has_dark_figures(short):
    look = (
        "(() => { const plot = plots[0]; return {text: getComputedStyle(plot.querySelector('.xtitle')).fill,"
        "line: getComputedStyle(plot.querySelector('.scatterlayer .js-line')).stroke,"
        "back: getComputedStyle(document.querySelector('section')).backgroundColor} })()"
    )
    light = short.run(look)
    short.dark(True)
    short.settle()
    dark = short.run(look)
    short.dark(False)
    short.settle()
    assert short.run(look) == light
    for what in light:
        assert light[what] != dark[what]
    assert contrast(dark["text"], dark["back"]) > 7
    assert contrast(light["text"], light["back"]) > 7


def contrast(one, other):
    """The contrast of two colours, as defined by WCAG 2."""
    luminance = []
    for colour in (one, other):
        channels = re.findall(r"\d+", colour) if colour.startswith("rgb") else hex_to_rgb(colour)
        values = (int(channel) / 255 for channel in channels[:3])
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        luminance.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(luminance) / min(luminance)


def test_lines_are_readable_on_light_and_on_dark_paper():
    lines = [colour for colour in style.DARK if colour not in (style.PAPER, *style.DIVERGING)]
    assert min(contrast(colour, style.PAPER) for colour in lines) > 2.8
    assert min(contrast(style.DARK[colour], style.DARK[style.PAPER]) for colour in lines) > 2.8


def test_a_model_is_chosen_for_every_question(short):
    shown = "[...document.querySelectorAll('.part:not([hidden])')].map(one => one.id)"
    first = short.run(shown)
    assert len(first) == 2
    assert "frequency-1-1" in first
    short.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    short.press("ArrowRight")
    short.settle()
    assert "frequency-1-2" in short.run(shown)
    assert short.run("document.activeElement.id") == "frequency-1-2-tab"
    assert short.run("document.querySelectorAll('#frequency-1-2 .lead .js-plotly-plot').length") == 1
    short.press("ArrowRight")
    short.settle()
    assert short.run(shown) == first, "after the last tab comes the first"


def test_an_address_opens_what_it_points_at(short):
    place = "#frequency-1-2-projection_ln"
    assert not short.run(f"isShown(document.querySelector('{place} .plot'))")
    short.run(f"location.hash = '{place}'; new Promise(done => setTimeout(done, 100))")
    short.settle()
    assert short.run(f"document.querySelector('{place} .js-plotly-plot') !== null")
    assert short.run(f"document.querySelector('{place}').getBoundingClientRect().y") < 900
    short.click("#frequency-1-1-tab")
    short.settle()
    short.run("location.hash = ''")


def test_nothing_hangs_over_the_edge_of_a_phone(short):
    short.resize(390, 800)
    short.settle()
    assert short.run("document.documentElement.scrollWidth") <= 390
    wide = short.run(
        "plots.filter(isShown).filter(plot => plot.querySelector('svg').clientWidth > plot.parentElement.clientWidth)"
        ".filter(plot => getComputedStyle(plot.parentElement).overflowX !== 'auto').length"
    )
    assert wide == 0
    panels = short.run(
        "(() => { const plot = plots.find(one => one.dataset.figure.endsWith('sparse'));"
        "return ['.xtitle', '.x2title'].map(one => plot.querySelector(one).getBoundingClientRect().y) })()"
    )
    assert panels[1] > panels[0] + 200, "panels stand below each other"
    short.resize(1280)
    short.settle()


def test_a_figure_too_wide_for_half_a_row_has_a_row_of_its_own(short, tmp_path):
    text = ["w0 w1 w2 w3 w4 w5"] * 20
    interp.encoding.study(toy_decoder(), text, orders=["random"], ratios=[2], progress=False).save(tmp_path)
    study = interp.directions.study(toy_decoder(), text, progress=False)
    study.save(tmp_path)
    with Browser() as one:
        one.open(pages.write_page(tmp_path), width=1400)
        one.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
        one.settle()
        room = "[plot.dataset.figure.split('-').at(-1), plot.parentElement.clientWidth]"
        rooms = one.run(f"Object.fromEntries(plots.map(plot => {room}))")
    assert rooms["cosines"] > 2 * rooms["steering"] > 1000
    assert rooms["cosines"] >= plots.direction_cosines(study).layout.meta["least_width"] > rooms["steering"]


def test_what_is_open_is_printed_of_every_model(short):
    short.run("dispatchEvent(new Event('beforeprint'))")
    assert short.run("document.querySelectorAll('.part[hidden]').length") == 0
    widths = short.run("plots.filter(isShown).map(plot => plot.querySelector('svg').clientWidth)")
    assert set(widths) == {660}
    assert len(widths) > short.run("document.querySelectorAll('.part').length")
    short.run("dispatchEvent(new Event('afterprint'))")
    short.settle()
    assert short.problems == []


def test_a_long_table_has_its_headings_on_every_printed_page(short, tmp_path):
    short.run(
        "(table => { for (let part = table; part; part = part.parentElement) part.open = true;"
        "const rows = [...table.tBodies[0].rows];"
        "for (let i = 0; i < 20; i++) rows.forEach(row => table.tBodies[0].append(row.cloneNode(true)));"
        "})(document.querySelector('details th button').closest('table'))"
    )
    short.pdf(tmp_path / "page.pdf")
    printed = [page.get_textpage().get_text_range() for page in pypdfium2.PdfDocument(tmp_path / "page.pdf")]
    with_rows = [text for text in printed if text.count("b_LN 0.") > 2]
    assert len(with_rows) > 2
    assert all("perplexity" in text for text in with_rows)
    short.open(Path(short.run("location.pathname")))

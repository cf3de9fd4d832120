"""Figures, and the page in a real browser."""

import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import interp
from interp import corpora, encoding, generation, outliers, pairs, plots, probing, report
from interp.frequency import bias_effect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<script>document.title='owned'</script>"


@pytest.fixture
def effect(load_toy, texts):
    return bias_effect(load_toy("bert"), texts, unigram=np.arange(67), scales=np.linspace(0, 1, 11), progress=False)


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
    with pytest.raises(ValueError, match="adds no constant to the logits"):
        plots.projection(effect, "fc")


def test_curves_draw_the_table(effect):
    figure = plots.bias_curve(effect, "ln")
    drawn = next(trace for trace in figure.data if trace.name == "λ = 1 (as trained)")
    table = effect.curve.query("bias == 'ln' and scale == 1")
    np.testing.assert_allclose(drawn.y, table["geometric_mean"])


def test_a_large_vocabulary_is_summarised(effect):
    many = pd.concat([effect.types] * 600, ignore_index=True)
    figure = plots.projection(type(effect)(effect.provenance, **(effect.tables | {"types": many})), "ln")
    assert len(figure.data[0].x) == 1500
    assert figure.data[0].name == f"1,500 of {66 * 600:,} types"
    assert len(figure.to_json()) < 200_000


def test_absent_biases_are_refused(load_toy, texts):
    effect = bias_effect(load_toy("gpt2"), texts, unigram=np.arange(67), progress=False)
    with pytest.raises(ValueError, match="'fc' was not part of this run; found ln"):
        plots.bias_curve(effect, "fc")


def test_no_page_without_a_result(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no result"):
        report.write_page(tmp_path)


@pytest.fixture(scope="module")
def written():
    tiny = interp.load("tiny-gpt2")
    given = generation.prompts(tiny, "bundled", n=20, length=5, max_new_tokens=12, bos=True)
    return generation.sweep(
        tiny, given, scales=(0, 0.25, 0.5, 1), decoders=["beam", "top_k"], features=tiny, progress=False
    )


def test_figures_of_generated_text(written):
    figures = {name: plots.text_measure(written, name) for name in ("diversity", "mauve", "frequent_share")}
    figures["perplexity"] = plots.text_measure(written, "perplexity")
    for measure, figure in figures.items():
        assert figure.layout.xaxis.title.text
        assert figure.layout.yaxis.title.text
        assert len(figure.to_json()) < 200_000
        names = [trace.name for trace in figure.data]
        human = [] if measure in ("mauve", "perplexity") else ["human"]
        assert names == (["every decoder"] if measure == "perplexity" else ["beam", "top-k", *human])
    table = written.metrics.query("decoder == 'top_k'").sort_values("scale")
    np.testing.assert_allclose(figures["mauve"].data[1].y, table["mauve_mean"])
    np.testing.assert_allclose(figures["mauve"].data[1].error_y.array, table["mauve_sd"])
    np.testing.assert_allclose(figures["diversity"].data[1].error_y.array, table["diversity_se"])
    assert len({trace.line.dash for trace in figures["diversity"].data}) == 3, "readable without colour"
    tradeoff = plots.generation_tradeoff(written)
    np.testing.assert_allclose(tradeoff.data[1].x, table["perplexity"])
    np.testing.assert_allclose(tradeoff.data[1].y, table["diversity"])
    assert {"λ = 0", "λ = 1"} <= {note.text for note in tradeoff.layout.annotations}
    bare = type(written)(written.provenance, written.texts, written.metrics.assign(mauve_mean=np.nan))
    with pytest.raises(ValueError, match="mauve was not part of this run"):
        plots.text_measure(bare, "mauve")


def test_the_section_says_what_the_table_says(written):
    section = report.generation_section(written)
    table = written.metrics.set_index(["decoder", "scale"])
    before, after = table.loc[("top_k", 1)], table.loc[("top_k", 0)]
    assert f"({before['diversity']:.3f} to {after['diversity']:.3f})" in section.finding
    assert (
        f"perplexity on human text goes from {before['perplexity']:.1f} to {after['perplexity']:.1f}" in section.finding
    )
    samples = section.tables["Samples by scale"]
    assert list(samples.columns) == ["prompt", "decoder", "λ = 1", "λ = 0.5", "λ = 0", "human"]
    assert list(samples["decoder"]) == ["beam", "top_k"] * 2
    texts = written.texts.set_index(["decoder", "scale", "prompt_id"])["text"]
    assert samples["λ = 0"][3] == texts["top_k", 0, 1]
    assert len(section.figures) == 5
    clear = written.metrics.copy()
    clear.loc[clear["scale"] == 0, "diversity"] += 0.2
    clear.loc[clear["scale"] == 0.25, "diversity"] += 9
    clear["diversity_se"] = 0.01
    rises = report.generation_section(type(written)(written.provenance, written.texts, clear)).finding
    assert "Diversity rises clearly by beam (" in rises
    assert "falls" not in rises
    clear["diversity_se"] = 1.0
    same = report.generation_section(type(written)(written.provenance, written.texts, clear)).finding
    assert "Diversity does not change clearly by beam (" in same
    assert "rises" not in same
    one = written.metrics[written.metrics["scale"].isna() | (written.metrics["scale"] == 1)]
    assert "Diversity at λ = 1: beam" in report.generation_section(
        type(written)(written.provenance, written.texts, one)
    ).finding  # fmt: skip


@pytest.fixture(scope="module")
def probed():
    tasks = ["reflexive_number", "reflexive_gender", "left_branch"]
    table = pairs.generate(n_per_task=60, tasks=tasks)
    model = interp.load("tiny-gpt2")
    return probing.study(
        model, table, layers=[3, 6], bos=True, strengths=(0.4, 0.7, 1.0), ks=(1, 4, 16), progress=False
    )


def test_figures_of_probes(probed):
    figures = [
        plots.sparse_probes(probed), plots.topk_probes(probed), plots.gate_agreement(probed), plots.random_dims(probed),
        plots.beyond_words(probed), plots.transfer_matrix(probed), plots.transfer_matrix(probed, difference=True),
        plots.general_probes(probed), plots.neuron_overlap(probed), plots.probe_ablation(probed),
    ]  # fmt: skip
    for figure in figures:
        assert figure.layout.xaxis.title.text or figure.layout.title.text.startswith("Neurons removed")
        assert figure.layout.yaxis.title.text
        assert len(figure.to_json()) < 200_000
    plain = probed.probes.query("control == 'none'")
    lines = {trace.name: trace for trace in figures[0].data if trace.xaxis == "x"}
    means = plain.query("method == 'l0' and strength == 0.4").groupby("state")["accuracy"].mean()
    np.testing.assert_allclose(lines["λ = 0.4"].y, means.round(4))
    assert {"dense", "dense, labels flipped", "dense, untrained", "bag of words"} <= set(lines)
    transfer = probed.transfer.query("method == 'l0' and strength == 0.4").set_index(["train_task", "test_task"])
    names = [tick.replace(" ", "_") for tick in figures[5].layout.xaxis.ticktext]
    assert figures[5].data[0].z[0][2] == pytest.approx(transfer.loc[(names[0], names[2]), "pair_accuracy"], abs=1e-3)
    without = type(probed)(probed.provenance, **(probed.tables | {"ablation": pd.DataFrame()}))
    with pytest.raises(ValueError, match="has no ablation"):
        plots.probe_ablation(without)
    with pytest.raises(ValueError, match="state 5 is not in this result"):
        plots.random_dims(probed, 5)


def test_the_probing_section_says_what_the_tables_say(probed):
    section = report.probing_section(probed)
    state = probed.provenance["state"]
    at = probed.probes.query(f"state == {state}")
    dense = at.query("method == 'dense' and control == 'none'")["accuracy"].mean()
    assert f"At state {state} dense probes are right on {dense:.3f}" in section.finding
    gates = at.query("method == 'l0' and control == 'none' and strength == 0.4")["open_fraction"].mean()
    assert f"At λ = 0.4, {gates:.1%} of the neurons" in section.finding
    zeroed = probed.ablation.query("mode == 'zero' and set == 'found'")
    change = (zeroed["accuracy_after"] - zeroed["accuracy_before"]).mean()
    assert f"zero changes the model's own accuracy by {change:+.3f} on {len(zeroed)} tasks" in section.finding


def test_a_probe_is_shown_at_every_token(probed):
    probe = probing.probe(probed, "left_branch", 6)
    view = plots.probe_view(interp.load("tiny-gpt2"), probe, "Whose </script> hat should Tonya wear?", bos=True)
    assert "</script> hat" not in view.local_src
    assert "\\u003c" in view.local_src


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; .ci/run installs it")
def test_the_page_in_a_browser(effect, probed, tmp_path):
    """Every figure is drawn, nothing is fetched, nothing fails, and a hostile token does nothing."""
    effect.types.loc[9, "token"] = HOSTILE
    effect.provenance["model"] = HOSTILE
    effect.save(tmp_path)
    study = outliers.study(interp.load("tiny-bert"), corpora.load("bundled", limit=20), progress=False)
    study.save(tmp_path)
    encoded = encoding.study(interp.load("tiny-gpt2"), corpora.load("bundled", limit=20), progress=False)
    encoded.types.loc[9, "token"] = HOSTILE
    encoded.save(tmp_path)
    written = generation.sweep(interp.load("tiny-gpt2"), "bundled", decoders=["greedy", "sample"], progress=False)
    written.texts.loc[0, "text"] = HOSTILE
    written.save(tmp_path)
    sections = [report.frequency_section(effect), report.attention_section(study), report.encoding_section(encoded)]
    probed.save(tmp_path)
    sections += [report.generation_section(written), report.probing_section(probed)]
    n_figures = sum(len(section.figures) for section in sections)
    assert all(len(figure.to_json()) < 200_000 for section in sections for figure in section.figures)
    page = report.write_page(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert HOSTILE not in text
    probe = (
        "<script>window.problems=[];addEventListener('error',e=>problems.push(e.message));"
        "addEventListener('load',()=>setTimeout(()=>{const r={title:document.title,problems,"
        "drawn:[...document.querySelectorAll('.figure')].map("
        "d=>d.querySelectorAll('.scatterlayer path, .heatmaplayer image, .boxlayer path, canvas').length),"
        "fetched:performance.getEntriesByType('resource').map(e=>e.name),"
        "wide:document.documentElement.scrollWidth-window.innerWidth};"
        "const p=document.createElement('pre');p.id='probe';p.textContent=JSON.stringify(r);"
        "document.body.append(p)},2500))"
        "</script></head>"
    )
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace("</head>", probe, 1), encoding="utf-8")
    for size in ("1200,900", "400,800"):
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command += [f"--user-data-dir={tmp_path / size}", "--virtual-time-budget=20000", f"--window-size={size}"]
        run = subprocess.run(
            [*command, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=180, check=True
        )
        found = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.S)
        assert found, run.stderr[-2000:]
        seen = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        assert seen["problems"] == []
        assert seen["title"].startswith("interp · ")
        assert len(seen["drawn"]) == n_figures == 36
        assert all(seen["drawn"]), "every figure has drawn something"
        assert [name for name in seen["fetched"] if not name.startswith("data:")] == []
        assert seen["wide"] <= 0, "nothing hangs over the edge"

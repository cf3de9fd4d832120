"""The numbers of the panels: equal to the library's, to slower computations, and to those of the code they show."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from toys import SIZES

import interp
from interp import encoding, probing
from interp.analyses.attention.scores import score_contributions_at
from interp.analyses.encoding.steering import steering_report
from interp.analyses.probing.scores import sentence_scores, word_surprisal
from interp.models.identity import weight_hash
from interp.models.sites import view
from interp.pages.explorer import figures, prepared as preparing
from interp.pages.explorer.attention import attention
from interp.pages.explorer.controls import panels
from interp.pages.explorer.grammar import grammar
from interp.pages.explorer.predictions import example_token, frequency, probability
from interp.pages.explorer.prepared import first_texts, prepared
from interp.pages.explorer.subject import Subject, subject
from interp.testing import randomise, toy_tokenizer

TEXT = "The boy who lived by the river hurt himself."
OTHER = "The boy who lived by the river hurt herself."
EXACT = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return {name: subject(name, {}) for name in ("tiny-gpt2", "tiny-bert")}


@pytest.fixture
def toy(load_toy, texts, tmp_path):
    """A toy of a kind, whose text is too short for counts of its own to matter."""

    def made(kind: str, **options: object) -> Subject:
        model = load_toy(kind, **options)
        corpus = interp.corpora.load(texts)
        found = prepared(model, corpus, directory=tmp_path / kind, progress=False)
        counts = interp.corpora.count_unigrams(model, texts)
        return Subject(model, "None", "None", found, counts)

    return made


def ran(code: str) -> SimpleNamespace:
    """The variables that the lines of a notebook leave."""
    left: dict[str, object] = {}
    exec(code, left)
    return SimpleNamespace(**left)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_attention_is_that_of_the_model(explored, name):
    found = explored[name]
    shown = attention(found, TEXT, layer=2, head=1, query=6, key=3)
    ids = torch.tensor(ids_of(found))
    cache = found.model.run_with_cache(ids[None])[1]
    np.testing.assert_allclose(shown.numbers["attention"], cache["blocks.2.attn.hook_pattern"][0, 1, 6, 3], **EXACT)
    np.testing.assert_allclose(shown.numbers["score"], cache["blocks.2.attn.hook_attn_scores"][0, 1, 6, 3], **EXACT)
    table = shown.tables["Contributions of residual dimensions"].sort_values("dim")
    each = score_contributions_at(found.model, ids, 2, 1, 6, 3, scaled=True)
    np.testing.assert_allclose(table["contribution"], each.numpy(), **EXACT)
    outliers = found.prepared.outliers
    assert set(table[table["outlier"]]["dim"]) == set(outliers[outliers["state"] == 2]["dim"]) != set()
    heatmap = shown.figures["pattern"].data[0]
    np.testing.assert_allclose(heatmap.z, cache["blocks.2.attn.hook_pattern"][0, 1].numpy(), atol=1e-4)


@pytest.mark.parametrize("n_tokens", [11, 100])
def test_all_heads_are_shown_small(n_tokens):
    """A cell of a small pattern is the largest attention of its queries and keys, and a click on it gives its head."""
    patterns = np.random.default_rng(0).uniform(size=(16, n_tokens, n_tokens)).astype(np.float32)
    shown = figures.heads(patterns, 3, 5, "")
    heatmap, frame = shown.data[0], shown.layout.shapes[0]
    width = -(-n_tokens // 48)
    cells: dict[int, list[float]] = {head: [] for head in range(16)}
    for row, y in zip(heatmap.z, heatmap.y, strict=True):
        for value, x in zip(row, heatmap.x, strict=True):
            if not np.isnan(value):
                cells[figures.head_at(x, y, 16)].append(value)
    for head, pattern in enumerate(patterns):
        blocks = range(0, n_tokens, width)
        largest = [pattern[i : i + width, j : j + width].max() for i in blocks for j in blocks]
        np.testing.assert_allclose(cells[head], largest, atol=6e-4)
    assert figures.head_at(frame.x0 + 0.1, frame.y0 + 0.1, 16) == 5
    assert [note.text for note in shown.layout.annotations] == [str(head) for head in range(16)]
    assert figures.head_at(6.5, 1.5, 13) is None


def test_the_small_pattern_in_front_is_the_large_one(explored):
    shown = attention(explored["tiny-gpt2"], TEXT, layer=1, head=2).figures
    small, large = shown["heads"].data[0].z, shown["pattern"].data[0].z
    start = int(np.flatnonzero(shown["heads"].data[0].x > 2)[0])
    np.testing.assert_allclose(small[: len(large), start : start + len(large)], large, atol=1e-3)


def ids_of(found: Subject) -> list[int]:
    return interp.corpora.sentences.sentence_rows(found.model, [TEXT])[0]


def test_removed_dimensions_are_those_of_the_weights(explored):
    """What keys lose is what a model without these rows of W_K has."""
    found = explored["tiny-gpt2"]
    shown = attention(found, TEXT, layer=1, head=2, query=6, key=3, removed=[48, 7], where="keys")
    edited = view(found.model).copied()
    with torch.no_grad():
        edited.blocks[1].attn.W_K[:, [48, 7]] = 0
    cache = edited.run_with_cache(torch.tensor([ids_of(found)]))[1]
    np.testing.assert_allclose(shown.numbers["score"], cache["blocks.1.attn.hook_attn_scores"][0, 2, 6, 3], **EXACT)
    np.testing.assert_allclose(shown.numbers["attention"], cache["blocks.1.attn.hook_pattern"][0, 2, 6, 3], **EXACT)
    change = shown.figures["change"].data[0].z
    plain = attention(found, TEXT, layer=1, head=2, query=6, key=3).figures["pattern"].data[0].z
    np.testing.assert_allclose(change, cache["blocks.1.attn.hook_pattern"][0, 2].numpy() - plain, atol=2e-4)
    removed = shown.tables["Contributions of residual dimensions"].query("removed")
    assert set(removed["dim"]) == {48, 7}


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_frequency_is_that_of_a_model_with_another_bias(explored, scale):
    found = explored["tiny-gpt2"]
    shown = frequency(found, "The boy walked to the", scale=scale)
    edited = view(found.model).copied()
    with torch.no_grad():
        edited.ln_final.b *= scale
        logits = edited(torch.tensor(interp.corpora.sentences.sentence_rows(found.model, ["The boy walked to the"])))
    p = logits[0, -1].double().softmax(-1).numpy()
    table = shown.tables["Most probable tokens"]
    np.testing.assert_allclose(table["scaled"], p[table["token_id"]], **EXACT)
    assert p.argmax() in set(table["token_id"])
    most = np.argsort(-found.unigram.distribution, kind="stable")[:100]
    np.testing.assert_allclose(shown.numbers["frequent"], p[most].sum(), **EXACT)


def test_an_encoder_predicts_its_mask(explored):
    found = explored["tiny-bert"]
    shown = frequency(found, "The [MASK] walked home.", scale=1.0)
    tokens = torch.tensor(interp.corpora.sentences.sentence_rows(found.model, ["The [MASK] walked home."]))
    place = tokens[0].tolist().index(found.model.tokenizer.mask_token_id)
    p = found.model(tokens)[0, place].softmax(-1).detach().numpy()
    table = shown.tables["Most probable tokens"]
    np.testing.assert_allclose(table["as_trained"], p[table["token_id"]], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(table["scaled"], table["as_trained"], **EXACT)
    assert "[MASK]" in frequency(found, "The boy walked to the").code


def test_without_b_LN_the_mean_input_is_scaled(toy):
    found = toy("llama")
    shown = frequency(found, "w1 w2 w3", scale=0.25)
    model, mean = found.model, torch.from_numpy(found.prepared.fit.mean_input)
    ids = torch.tensor(interp.corpora.sentences.sentence_rows(model, ["w1 w2 w3"]))
    _, cache = model.run_with_cache(ids)
    h = (cache["ln_final.hook_normalized"][0, -1] * model.ln_final.w).double()
    p = ((h - 0.75 * mean) @ model.W_U.double() + model.b_U.double()).softmax(-1).detach().numpy()
    table = shown.tables["Most probable tokens"]
    np.testing.assert_allclose(table["scaled"], p[table["token_id"]], **EXACT)
    assert "λ scales E[h], the mean input" in " ".join(shown.notes)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
@pytest.mark.parametrize("weights", ["least_norm", "top"])
def test_steering_achieves_what_the_report_says(explored, name, weights):
    found = explored[name]
    token = example_token(found)
    shown = probability(found, token, ratio=3, weights=weights)
    fit = found.prepared.fit
    how = {"shifts": ["regression", "constant"], "weights": ["least_norm", "weighted", "top"]}
    [token_id] = found.model.tokenizer(token.replace("␣", " "), add_special_tokens=False)["input_ids"]
    report = steering_report(found.model, fit, tokens=[token_id], ratios=[3], progress=False, **how)
    table = shown.tables["Requested and achieved"]
    np.testing.assert_allclose(table["achieved"], report["alpha"] * report["achieved"], **EXACT)
    np.testing.assert_allclose(table["achieved_ratio"], report["achieved"], rtol=1e-5)
    np.testing.assert_allclose(table["requested"], 3 * report["alpha"], **EXACT)


def test_steering_is_that_of_the_recipe(explored):
    found = explored["tiny-gpt2"]
    fit = found.prepared.fit
    recipe = encoding.steer(found.model, " himself", 4, fit, shift="regression", progress=False)
    [token_id] = found.model.tokenizer(" himself", add_special_tokens=False)["input_ids"]
    with found.model.hooks(fwd_hooks=recipe):
        steered = encoding.fit(found.model, fit.batches, progress=False)
    shown = probability(found, "␣himself", ratio=4)
    np.testing.assert_allclose(shown.numbers["achieved"], steered.alpha[token_id], **EXACT)


def test_grammar_is_that_of_the_scores(explored):
    found = explored["tiny-gpt2"]
    shown = grammar(found, TEXT, OTHER)
    scores = sentence_scores(found.model, [TEXT, OTHER], progress=False)
    words = word_surprisal(found.model, [TEXT, OTHER], progress=False)
    np.testing.assert_allclose(shown.numbers["apart"], scores["sum"][0] - scores["sum"][1], **EXACT)
    np.testing.assert_allclose(shown.tables["Surprisal of words, in nats"]["surprisal"], words["surprisal"], **EXACT)
    tokens = torch.tensor([ids_of(found)])
    log_p = found.model(tokens).double().log_softmax(-1)
    by_hand = log_p[0, :-1].gather(1, tokens[0, 1:, None]).sum().item()
    np.testing.assert_allclose(shown.tables["Scores of the sentences, in nats"]["sum"][0], by_hand, rtol=1e-5)
    assert [bar.y.sum() for bar in shown.figures["surprisal"].data] == pytest.approx(
        [-total for total in scores["sum"]], rel=1e-5
    )


def test_a_long_text_has_few_ticks(explored):
    """plotly takes many seconds to place hundreds of slanted labels."""
    found = explored["tiny-gpt2"]
    text = "the boy " * 50
    for shown in (grammar(found, text, text).figures["surprisal"], attention(found, text).figures["pattern"]):
        assert all(10 <= len(axis.ticktext) <= 24 for axis in shown.select_xaxes())


def test_a_saved_probe_scores_every_token(explored, tmp_path):
    found = explored["tiny-gpt2"]
    pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
    how = {"states": [6], "methods": ["l0"], "controls": ["none"], "steps": 20, "progress": False}
    study = probing.study(found.model, pairs, **how)
    study.save(tmp_path)
    with_probes = subject("tiny-gpt2", {}, probes=tmp_path)
    shown = grammar(with_probes, TEXT, OTHER, probe_of=("reflexive_number", 6))
    table = shown.tables["Score of the probe at every token"]
    _, scores = probing.token_scores(found.model, probing.probe(study, "reflexive_number", 6), TEXT)
    np.testing.assert_allclose(table[table["sentence"] == "first"]["score"], scores, **EXACT)
    np.testing.assert_allclose(ran(shown.code).probed[0][1], scores, **EXACT)
    with pytest.raises(ValueError, match=naming("tiny-gpt2", "tiny-bert", "--probes")):
        subject("tiny-bert", {}, probes=tmp_path)
    with pytest.raises(FileNotFoundError):
        subject("tiny-gpt2", {}, probes=tmp_path / "deleted")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_the_code_gives_the_numbers(explored, name):
    found = explored[name]
    answers = [
        attention(found, TEXT, layer=1, head=1),
        attention(found, TEXT, layer=1, head=1, removed=[3, 48], where="residual"),
        frequency(found, "The boy walked to the", scale=0.5),
        probability(found, example_token(found), ratio=2, weights="weighted"),
        grammar(found, TEXT, 'He said: "it\'s the river".'),
    ]
    for answer in answers:
        left = ran(answer.code)
        assert answer.numbers
        for number, value in answer.numbers.items():
            np.testing.assert_allclose(float(getattr(left, number)), value, **EXACT)


def test_the_code_gives_the_numbers_of_scaled_inputs(hf_directory, tmp_path, texts, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "text.txt").write_text("\n".join(texts))
    found = subject(str(hf_directory("llama")), {"dtype": "float64"}, corpus=str(tmp_path / "text.txt"))
    shown = frequency(found, "w1 w2", scale=0.5)
    np.testing.assert_allclose(float(ran(shown.code).frequent), shown.numbers["frequent"], **EXACT)


def test_a_bridge_gives_the_numbers_of_a_hooked_model(explored, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hooked, bridge = explored["tiny-gpt2"], subject("tiny-gpt2", {"backend": "bridge"})
    assert "backend='bridge'" in bridge.loading
    for panel, how in [
        (attention, {"text": TEXT, "layer": 1, "removed": [3]}),
        (frequency, {"text": "The boy", "scale": 0.5}),
        (probability, {"token": "␣himself", "ratio": 2}),
        (grammar, {"first": TEXT, "second": OTHER}),
    ]:
        one, other = (panel(found, **how).numbers for found in (hooked, bridge))
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_what_a_model_cannot_answer_is_said(workshop, tmp_path, texts):
    alibi = workshop.toy(positional_embedding_type="alibi")
    read = prepared(alibi, interp.corpora.load(texts), directory=tmp_path, progress=False)
    scores = attention(Subject(alibi, "None", "None", read, interp.corpora.count_unigrams(alibi, texts)), "w1 w2 w3")
    assert "ALiBi" in scores.notes[-1]
    assert "pattern" in scores.figures
    assert "score" not in scores.numbers
    torch.manual_seed(0)
    headless = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    randomise(headless)
    headless.save_pretrained(tmp_path / "bert")
    toy_tokenizer().save_pretrained(tmp_path / "bert")
    model = interp.load(tmp_path / "bert")
    read = prepared(model, interp.corpora.load(texts), directory=tmp_path, progress=False)
    found = Subject(model, "None", "None", read, interp.corpora.count_unigrams(model, texts))
    shown = attention(replace(found, loading=f"interp.load({str(tmp_path / 'bert')!r})"), "w1 w2")
    np.testing.assert_allclose(ran(shown.code).score.item(), shown.numbers["score"], **EXACT)
    for panel in (
        lambda: frequency(found, "w1"), lambda: probability(found, "w1"), lambda: grammar(found, "w1 w2", "w2 w1"),
        lambda: panels(found)["probability"].answer(found, "", 2, "least_norm"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no prediction head"):
            panel()
    rows = [{"good": f"w{i} w1 w2", "bad": f"w{i} w2 w1", "task": "order"} for i in range(3, 43)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = interp.corpora.pairs.load(tmp_path / "pairs.jsonl", good="good", bad="bad", task="task")
    states = probing.collect(model, pairs, states=[1], progress=False)
    sweep = probing.sweep(states, methods=["l0"], controls=["none"], steps=20, progress=False)
    probed = grammar(replace(found, probes=sweep), "w1 w2", "w2 w1", probe_of=("order", 1))
    assert "no prediction head" in probed.notes[0]
    _, scores = probing.token_scores(model, probing.probe(sweep, "order", 1), "w1 w2")
    table = probed.tables["Score of the probe at every token"]
    np.testing.assert_allclose(table[table["sentence"] == "first"]["score"], scores, **EXACT)


@pytest.mark.parametrize(
    ("message", "how"),
    [
        ("there is no text", {"text": " \n"}),
        ("has 403 tokens; expected a word or more and at most 128", {"text": "word " * 400}),
        ("head in 0 … 5, found 6", {"head": 6}),
        ("layers must be", {"layer": 6}),
        ("query in 0 … 10, found 11", {"query": 11}),
        ("key in 0 … 10, found -1", {"key": -1}),
        ("dims must be", {"removed": [192]}),
    ],
)
def test_bad_input_is_refused(explored, message, how):
    with pytest.raises(ValueError, match=message):
        attention(explored["tiny-gpt2"], **{"text": TEXT} | how)


def test_more_bad_input_is_refused(explored):
    found = explored["tiny-gpt2"]
    with pytest.raises(ValueError, match="expected one; mind the leading space"):
        probability(found, "two words")
    with pytest.raises(ValueError, match="must stay below 1"):
        probability(found, "␣himself", ratio=1e9)
    with pytest.raises(ValueError, match="at most 128"):
        grammar(found, TEXT, "word " * 400)


def test_long_texts_are_refused(explored, monkeypatch):
    monkeypatch.setattr("interp.pages.explorer.subject.MOST_TOKENS", 8)
    with pytest.raises(ValueError, match="has 11 tokens; the explorer shows at most 8: shorten it"):
        attention(explored["tiny-gpt2"], TEXT)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "שלום עולם", "a\u202eb", "🙂 e\u0301"])
def test_any_text_is_shown_literally(explored, text):
    found = explored["tiny-gpt2"]
    shown = attention(found, text)
    assert all("<script>" not in tick for tick in shown.figures["pattern"].layout.xaxis.ticktext)
    np.testing.assert_allclose(float(ran(shown.code).attention), shown.numbers["attention"], **EXACT)


def test_what_was_prepared_is_kept(explored, monkeypatch, tmp_path):
    found = explored["tiny-gpt2"]
    text = first_texts("bundled")
    made = prepared(found.model, text, directory=tmp_path, progress=False)
    [file] = tmp_path.iterdir()
    assert file.name.startswith(weight_hash(found.model))
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "execute", None)  # nothing is read again
        again = prepared(found.model, text, directory=tmp_path)
    assert made.fit is not None
    assert again.fit is not None
    for name in ("alpha", "used", "slope", "components", "mean_input"):
        np.testing.assert_array_equal(getattr(made.fit, name), getattr(again.fit, name))
    for name in ("regression", "dims", "theory"):
        pd.testing.assert_frame_equal(getattr(made.fit, name), getattr(again.fit, name))
    assert made.fit.intervals == again.fit.intervals
    assert torch.equal(made.inputs, again.inputs)
    file.write_bytes(file.read_bytes()[:1000])
    repaired = prepared(found.model, text, directory=tmp_path, progress=False)
    assert torch.equal(made.log_Z, repaired.log_Z)


def test_inputs_are_those_of_the_fit(explored):
    for found in explored.values():
        read, model = found.prepared, found.model
        np.testing.assert_allclose(read.inputs.double().mean(0), read.fit.mean_input, rtol=1e-4, atol=1e-6)
        logits = read.inputs @ model.W_U + model.b_U
        np.testing.assert_allclose(logits.detach().logsumexp(1), read.log_Z, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(logits.detach().softmax(1).double().mean(0), read.fit.alpha, rtol=1e-3, atol=1e-7)

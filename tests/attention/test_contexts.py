"""The tokens at which a dimension is largest, against sorting all activations, with each row read on its own."""

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from transformers import AutoModel

from interp import attention, corpora
from interp.passes.contexts import CONTEXTS, KEPT, LargestTokens
from interp.passes.reading import observe, part_of

QUIET = {"key_classes": {"even": list(range(8, 67, 2))}, "unigram": np.arange(67), "ablation": False, "progress": False}
OF_ROWS = {"gpt2": "packed", "llama": "texts", "bert": "texts"}


def texts_of_their_own(n=40):
    """Texts that begin with the words of their number, so that the words around a token identify its text."""
    rng = np.random.default_rng(0)
    return [
        " ".join([f"w{i // 20}", f"w{i % 20}", *(f"w{j}" for j in rng.integers(20, 60, size=int(rng.integers(2, 12))))])
        for i in range(n)
    ]


def brute(directory, batches):
    """Row, position and hidden states of every token, from transformers alone, each row without its padding."""
    model = AutoModel.from_pretrained(directory).eval()
    before_norm, found = [], []
    if norm := getattr(model, "norm", getattr(model, "ln_f", None)):
        norm.register_forward_pre_hook(lambda module, given: before_norm.append(given[0]))
    for row in batches.rows():
        with torch.no_grad():
            *states, last = model(torch.tensor(row.ids)[None], output_hidden_states=True).hidden_states
        states = torch.stack([*states, before_norm.pop() if norm else last], -1)[0].double().numpy()
        found += [(row, pos, states[pos]) for pos in range(len(row.ids))]
    return found


@pytest.mark.quick("gpt2-bridge", "bert-hooked")
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("kind", OF_ROWS)
def test_they_are_those_of_a_sort_of_all(kind, backend, load_toy, hf_directory):
    model = load_toy(kind, backend=backend)
    batches = corpora.batches(model, texts_of_their_own(), layout=OF_ROWS[kind], context=16, batch_size=7)
    observer = LargestTokens(model)
    observe(model, batches, observer, progress=False)
    every = brute(hf_directory(kind), batches)
    assert len(every) > 10 * KEPT
    table = observer.table(batches, [(dim, state) for dim in range(16) for state in observer.sites])
    assert list(table.columns) == CONTEXTS
    names = model.tokenizer.convert_ids_to_tokens
    for (dim, state), part in table.groupby(["dim", "state"]):
        values = np.array([states[dim, state] for *_, states in every])
        order = np.argsort(-np.abs(values), kind="stable")[:KEPT]
        np.testing.assert_allclose(part["activation"].abs(), np.abs(values[order]), rtol=3e-4)
        assert part["rank"].tolist() == list(range(1, KEPT + 1))
        by_place = {(row.text_at(pos), pos, names(int(row.ids[pos]))): states[dim, state] for row, pos, states in every}
        for one in part.itertuples():
            assert by_place[one.text, one.position, one.token] == pytest.approx(one.activation, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_text_is_that_of_the_token(kind, load_toy):
    model, texts = load_toy(kind), texts_of_their_own()
    batches = corpora.batches(model, texts, layout="texts", batch_size=7)
    observer = LargestTokens(model)
    observe(model, batches, observer, progress=False)
    table = observer.table(batches, [(3, 2), (5, 0)])
    for one in table.itertuples():
        around = " ".join([one.before.strip(), one.token, one.after.strip()]).strip()
        whole = f"[CLS] {texts[one.text]} [SEP]" if kind == "bert" else texts[one.text]
        assert f" {around} " in f" {whole} "
        assert whole.split()[one.position] == one.token


def test_the_first_token_of_all_counts(load_toy):
    model = load_toy("gpt2")
    model.embed.W_E.data[7 + 59, 3] = 100.0
    batches = corpora.batches(model, ["w59 w1", "w2 w3"], layout="texts")
    observer = LargestTokens(model)
    observe(model, batches, observer, progress=False)
    table = observer.table(batches, [(3, 0)])
    assert table.loc[0, ["rank", "token", "text", "position"]].tolist() == [1, "w59", 0, 0]
    assert len(table) == 4


@pytest.mark.slow
def test_batches_and_parts_do_not_matter(load_toy):
    """With texts that begin alike, the order of the corpus decides most places; float32."""
    model = load_toy("gpt2")
    texts = [f"w1 w2 w3 {rest}" for rest in texts_of_their_own()]
    found = []
    for batch_size in (1, 7, 40):
        batches = corpora.batches(model, texts, layout="texts", batch_size=batch_size)
        observer = LargestTokens(model)
        observe(model, batches, observer, progress=False)
        found.append(observer)
        for n in (2, 3):
            parts = [LargestTokens(model) for _ in range(n)]
            for index, part in enumerate(parts):
                observe(model, part_of(batches, index, n), part, progress=False)
            for part in parts[:-1]:
                parts[-1].merge(part)
            assert all(torch.equal(parts[-1].state[name], value) for name, value in observer.state.items())
    every = [(dim, state) for dim in range(16) for state in range(3)]
    tables = [one.table(batches, every) for one in found]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table.drop(columns="activation"), tables[0].drop(columns="activation"))
        np.testing.assert_allclose(table["activation"], tables[0]["activation"], rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_a_study_has_those_of_its_outliers(kind, load_toy, texts):
    model = load_toy(kind)
    study = attention.study(model, texts, k=1.0, **QUIET)
    assert len(study.outliers) > 3
    key = ["dim", "state"]
    assert study.contexts[key].drop_duplicates().to_numpy().tolist() == study.outliers[key].to_numpy().tolist()
    largest = study.contexts.query("rank == 1").set_index(key)["activation"].abs()
    known = study.dims.query("key_class == 'all'").set_index(key)["max_abs"].loc[largest.index]
    np.testing.assert_allclose(largest, known, rtol=2**-12)
    assert "[PAD]" not in set(study.contexts["token"])


def test_nothing_is_shown_where_nothing_is_known(load_toy, texts):
    """Batches made by hand do not say which rows they contain; a model without outliers has nothing to show."""
    model = load_toy("gpt2")
    made = list(corpora.batches(model, texts))
    study = attention.study(model, corpora.Batches({"corpus": "mine"}, None, lambda: iter(made)), k=1.0, **QUIET)
    assert len(study.outliers)
    assert study.contexts.empty
    assert list(study.contexts.columns) == CONTEXTS
    bare = attention.study(model, texts, k=1e6, **QUIET)
    assert bare.contexts.empty
    assert list(bare.contexts.columns) == CONTEXTS
    with pytest.raises(ValueError, match=naming("interp.corpora.batches")):
        corpora.contexts.in_context(model, corpora.Batches({}, None, lambda: iter(made)), [(0, 0)])


def test_a_model_without_a_tokenizer_has_token_ids(load_toy):
    model = load_toy("gpt2")
    ids = torch.randint(7, 67, (9, 12), generator=torch.Generator().manual_seed(0))
    model.tokenizer = None
    batches = corpora.batches(model, ids)
    found = corpora.contexts.in_context(model, batches, [(4, 5), (8, 0)])
    assert found["token"].tolist() == [str(int(ids[4, 5])), str(int(ids[8, 0]))]
    assert found["before"].tolist() == [" ".join(map(str, ids[4, :5].tolist())), ""]
    assert found["text"].tolist() == [4, 8]
    for place in [(9, 0), (8, 12), (0, -1)]:
        with pytest.raises(ValueError, match=naming(*place)):
            corpora.contexts.in_context(model, batches, [place])

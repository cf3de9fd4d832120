"""Massive activations against the plain definition, row by row in numpy, on models where some are planted."""

import numpy as np
import pytest
import torch
from oracles import attention as oracle

from interp import attention, corpora
from interp.instruments.massive import MassiveActivations
from interp.instruments.sinks import position_bins
from interp.passes.reading import observe

PLANTED_TOKEN = 9


def planted(model):
    """5,000 at the first position, 150 at the second (above 100, but below 1,000 medians), 30,000 at every w2."""
    positions, tokens = model.pos_embed.W_pos, model.embed.W_E
    positions.data[0, 5], positions.data[1, 3] = 5_000.0, 150.0
    tokens.data[PLANTED_TOKEN, 2], tokens.data[model.tokenizer.pad_token_id, 7] = 30_000.0, 90_000.0
    return model


def brute(model, batches):
    """(state, dim, first position of its range) → number, largest magnitude and largest ratio, by the definition."""
    found, starts = {}, np.array(position_bins(model.cfg.n_ctx))
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(model.cfg.n_layers))]
    for batch in batches:
        for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
            _, cache = model.run_with_cache(tokens[None, : int(mask.sum())])
            for state, name in enumerate(names):
                size = cache[name][0].detach().abs().numpy()
                places, median = oracle.massive(size)
                for position, dim in places:
                    start = int(starts[starts <= position].max())
                    n, largest, ratio = found.get((state, dim, start), (0, 0.0, 0.0))
                    value = size[position, dim]
                    found[state, dim, start] = n + 1, max(largest, value), max(ratio, value / median)
    return found


@pytest.mark.parametrize("layout", ["texts", "packed"])
def test_planted_activations_are_found(layout, load_toy, texts):
    model = planted(load_toy("gpt2", dtype=torch.float64))
    batches = corpora.batches(model, [*texts, "w2 w1 w2 w0 w1"], layout=layout, batch_size=5)
    observer = MassiveActivations(model)
    observe(model, batches, observer, progress=False)
    table = observer.table
    assert {(state, 5, 0) for state in range(3)} <= set(brute(model, batches))
    key = ["state", "dim", "first_position"]
    rows = table.set_index(key)[["n_activations", "max_abs", "max_ratio"]]
    assert {tuple(index): tuple(row) for index, row in rows.iterrows()} == {
        index: pytest.approx(row) for index, row in brute(model, batches).items()
    }
    assert set(table["dim"]) == {2, 5}
    assert (table["last_position"] >= table["first_position"]).all()
    n_rows = sum(len(batch.tokens) for batch in batches)
    first = table.query("first_position == 0 and dim == 5")
    assert set(first["n_tokens"]) == set(first["n_activations"]) == {n_rows}
    assert observer.state["tokens"].sum() == sum(int(batch.mask.sum()) for batch in batches)


def test_nothing_is_found_where_nothing_was_planted(load_toy, texts):
    model = load_toy("gpt2")
    observer = MassiveActivations(model)
    observe(model, corpora.batches(model, texts), observer, progress=False)
    assert observer.table.empty
    model.pos_embed.W_pos.data[0, 5] = 90.0
    model.embed.W_E.data *= 1e-3  # 90 is above 1,000 medians, but not above 100
    model.pos_embed.W_pos.data[1:] *= 1e-3
    observe(model, corpora.batches(model, texts, layout="texts"), observer, progress=False)
    assert observer.table.query("state == 0").empty


def test_half_precision_finds_the_same(load_toy, texts):
    tables = []
    for dtype in (torch.bfloat16, torch.float32):
        model = planted(load_toy("gpt2", dtype=dtype))
        observer = MassiveActivations(model)
        observe(model, corpora.batches(model, texts, layout="texts"), observer, progress=False)
        tables.append(observer.table.query("state == 0").drop(columns=["max_abs", "max_ratio"]))
    assert tables[0].equals(tables[1])


@pytest.mark.slow
def test_the_page_says_so_where_there_are_any(load_toy, texts):
    title = "Massive activations by state, dimension and position"
    options = {"key_classes": {"a": [7, 8]}, "progress": False}
    plain = attention.study(load_toy("gpt2"), texts, **options)
    assert plain.massive.empty
    section = plain.section
    assert title not in section.tables
    assert "Massive" not in " ".join(section.notes)
    found = attention.study(planted(load_toy("gpt2")), texts, **options)
    section = found.section
    assert section.tables[title].equals(found.massive)
    largest = found.massive.sort_values("max_abs").iloc[-1]
    (said,) = (note for note in section.notes if note.startswith("Massive"))
    assert said.startswith("Massive activations in 2 dimensions (states 0 to 2); the largest, 30,0")
    assert f"in dimension 2 of state {largest['state']:.0f}, is {largest['max_ratio']:,.0f} times" in said

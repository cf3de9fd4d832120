"""What components write of E[h], against sums position by position in numpy, with what is planted and with nothing."""

import numpy as np
import pandas as pd
import pytest
import torch
from oracles import frequency as oracle

from interp import corpora
from interp.analyses.frequency import components
from interp.testing import toy_decoder

COUNTS = (1 + np.arange(67)) ** 2
LOG_U = np.log(COUNTS)


def by_hand(model, tokens):
    """E[h] by component, from every activation of plain runs."""
    names = ["hook_embed", "hook_pos_embed"] if "hook_pos_embed" in model.hook_dict else ["hook_embed"]
    rows: dict[str, list[np.ndarray]] = {}
    for row in tokens:
        _, cache = model.run_with_cache(row[None])
        of = {"embeddings": sum(cache[name] for name in names)}
        for layer in range(model.cfg.n_layers):
            of |= {f"attention {layer}": cache["attn_out", layer], f"MLP {layer}": cache["mlp_out", layer]}
        for name, x in of.items():
            rows.setdefault(name, []).append(x[0].double().numpy())
    parts = [np.concatenate(arrays) for arrays in rows.values()]
    gamma = model.ln_final.w.detach().double().numpy()
    written = oracle.mean_written(parts, gamma, model.cfg.eps, rms=model.cfg.normalization_type == "RMS")
    return dict(zip(rows, written, strict=True))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@torch.no_grad()
def test_components_and_slopes_by_brute_force(kind, load_toy):
    model = load_toy(kind, dtype=torch.float64)
    tokens = torch.randint(7, 67, (24, 12), generator=torch.Generator().manual_seed(0))
    found = components.writers(model, tokens, unigram=COUNTS, progress=False)
    table = found.components.assign(name=lambda t: t["component"] + t["layer"].astype("string").radd(" ").fillna(""))
    table = table.set_index("name")
    W_U = model.W_U.double().numpy()
    expected = by_hand(model, tokens)
    for name, vector in expected.items():
        assert table.loc[name, "norm"] == pytest.approx(np.linalg.norm(vector), rel=1e-9)
        slope, _ = np.polyfit(LOG_U, vector @ W_U, 1)
        assert table.loc[name, "slope"] == pytest.approx(slope, abs=1e-9)
        rho = pd.Series(vector @ W_U).corr(pd.Series(LOG_U), method="spearman")
        assert table.loc[name, "spearman"] == pytest.approx(rho, abs=1e-9)
    b_ln = model.ln_final.b.numpy() if kind == "gpt2" else np.zeros(16)
    whole = sum(expected.values()) + b_ln
    total, _ = np.polyfit(LOG_U, whole @ W_U, 1)
    writers = [*expected, *(["b_LN"] if kind == "gpt2" else [])]
    assert [*table.index] == [*writers, "all attention", "all MLP", "E[h]"]
    ledger = table.loc[writers, "slope"].sum()
    assert (table.loc["E[h]", "slope"], ledger) == pytest.approx((total, total), abs=1e-9)
    assert table.loc[writers[-1], "cumulative_slope"] == pytest.approx(total, abs=1e-9)
    kinds = [sum(part["slope"]) for _, part in table.dropna(subset="layer").groupby("component")]
    assert [table.loc["all MLP", "slope"], table.loc["all attention", "slope"]] == pytest.approx(kinds, abs=1e-9)
    dims = found.dims.set_index("dim")
    np.testing.assert_allclose(dims["share"].sort_index(), whole**2 / (whole @ whole), atol=1e-12)
    assert dims["slope"].sum() == pytest.approx(total, abs=1e-9)
    assert dims["cumulative_share"].iloc[-1] == pytest.approx(1)
    assert dims["share"].is_monotonic_decreasing


@torch.no_grad()
def test_an_mlp_that_writes_word_frequency_is_found_and_others_are_not():
    """The bias of the MLP of block 1 is made to point where the logits rise most with log u."""
    model = toy_decoder(n_embd=64)
    tokens = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    direction = model.W_U.double().numpy() @ (LOG_U - LOG_U.mean())
    direction *= 30 / np.linalg.norm(direction)
    before = components.writers(model, tokens, unigram=COUNTS, progress=False).components
    model.blocks[1].mlp.b_out += torch.from_numpy(direction / model.ln_final.w.double().numpy()).float()
    after = components.writers(model, tokens, unigram=COUNTS, progress=False).components
    planted = after[(after["component"] == "MLP") & (after["layer"] == 1)].iloc[0]
    assert planted["slope_low"] > 0.1
    assert planted[["p_isotropic", "p_embeddings"]].max() <= 0.05
    assert after.dropna(subset="layer")["slope"].idxmax() == planted.name
    ordinary = before.dropna(subset="layer")
    assert (ordinary["p_isotropic"] <= 0.05).sum() <= 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_both_backends_have_the_same_writers(kind, load_toy, texts):
    hooked, bridge = (
        components.writers(load_toy(kind, backend=backend), texts, unigram=COUNTS, progress=False).components
        for backend in ("hooked", "bridge")
    )
    pd.testing.assert_frame_equal(hooked, bridge, rtol=1e-3, atol=1e-5)


def test_figures_and_intervals(load_toy, texts):
    from interp import plots

    found = components.writers(load_toy("gpt2"), texts, unigram=COUNTS, progress=False)
    assert (found.components["slope_low"] <= found.components["slope"]).all()
    few = components.writers(load_toy("gpt2"), texts[:8], unigram=COUNTS, progress=False)
    assert few.components["slope_low"].isna().all(), "fewer than 20 texts"
    so_far, attention, mlp = plots.frequency_writers(found).data
    assert len(attention.x) == len(mlp.x) == len(so_far.x) == 2


def test_what_has_no_writers_is_refused(load_toy, texts):
    with pytest.raises(ValueError, match="encoder"):
        components.writers(load_toy("bert"), texts, unigram=COUNTS, progress=False)
    with pytest.raises(ValueError, match="67 types occur, with 1 frequency"):
        components.writers(load_toy("gpt2"), texts, unigram=np.ones(67, int), progress=False)
    model = load_toy("gpt2")
    doubled = [("blocks.1.hook_resid_post", lambda resid, hook: 2 * resid)]
    with model.hooks(fwd_hooks=doubled), pytest.raises(ValueError, match="do not add up"):
        components.writers(model, corpora.batches(model, texts), unigram=COUNTS, progress=False)

"""Output embeddings in blocks of types against the whole matrix in float64, and heads that multiply their logits."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from toys import SIZES

import interp
from interp import encoding, hooks
from interp.models.embeddings import Embeddings
from interp.models.head import prediction_head

N, D = 103, 7
USE = {
    "all": None,
    "a run": np.arange(N) < 60,
    "some": np.random.default_rng(0).random(N) < 0.6,
    "none": np.zeros(N, bool),
}
MADE = {
    "float32": lambda W: W.float(),
    "bfloat16, vocabulary first": lambda W: W.T.bfloat16().contiguous().T,
    "every other dimension": lambda W: W.repeat_interleave(2, 0)[::2],
    "numpy": lambda W: W.numpy(),
    "numpy that may not be written": lambda W: np.broadcast_to(W.numpy().astype(np.float32), (1, *W.shape))[0],
    "numpy backwards": lambda W: W.numpy()[::-1, ::-1],
}


@pytest.mark.parametrize("use", USE)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("at_once", [1, 20 * D, 2**22])
def test_blocks_are_the_matrix(made, use, at_once):
    W_U = MADE[made](torch.randn(D, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    embeddings = Embeddings(W_U, scale=1.7, use=USE[use], at_once=at_once)
    whole = W_U.double().numpy() if isinstance(W_U, torch.Tensor) else W_U.astype(np.float64)
    E = 1.7 * (whole if USE[use] is None else whole[:, USE[use]]).T
    found = np.zeros_like(E)
    for where, block in embeddings.blocks():
        assert block.numel() <= max(at_once, D)
        found[where] += block.numpy()
    np.testing.assert_array_equal(found, E)
    np.testing.assert_array_equal(embeddings.coordinates(slice(2, 5)), E.T[2:5])
    assert len(embeddings) == len(E)
    assert embeddings.largest == np.abs(E).max(initial=0)
    directions, weights = torch.randn(3, D, dtype=torch.float64), torch.randn(2, len(E), dtype=torch.float64)
    np.testing.assert_allclose(embeddings.dot(directions), directions.numpy() @ E.T, rtol=0, atol=1e-13)
    np.testing.assert_allclose(embeddings.total(weights), weights.numpy() @ E, rtol=0, atol=1e-12)
    assert embeddings.dot(directions.float()).dtype == torch.float32


def test_a_value_that_is_not_a_number_is_the_largest():
    W_U = torch.ones(D, N)
    W_U[3, 2] = torch.nan
    assert np.isnan(Embeddings(W_U, at_once=D).largest)


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory):
    """Granite, which divides its logits by 8, and the same model with its unembedding divided by 8 instead."""
    models = []
    for divided in (8.0, 1.0):
        torch.manual_seed(0)
        config = transformers.GraniteConfig(
            **SIZES, num_key_value_heads=2, logits_scaling=divided, tie_word_embeddings=False, bos_token_id=0,
            eos_token_id=1, pad_token_id=2,
        )  # fmt: skip
        hf = transformers.GraniteForCausalLM(config)
        hf.lm_head.weight.data *= 40 * divided / 8
        directory = tmp_path_factory.mktemp("granite")
        hf.save_pretrained(directory)
        models.append(interp.load(directory))
    return models


def test_heads_that_multiply_their_logits(multiplied):
    one, other = (prediction_head(model) for model in multiplied)
    assert (one.scale, other.scale) == (1 / 8, 1)
    assert one.unscaled.data_ptr() == multiplied[0].W_U.data_ptr()
    torch.testing.assert_close(one.W_U, other.W_U, rtol=0, atol=0)


@pytest.mark.slow
def test_an_encoding_study_of_multiplied_logits(multiplied):
    """Dividing by 8 is exact, so each table equals that of the model with the divided unembedding."""
    tokens = torch.randint(3, 67, (8, 20), generator=torch.Generator().manual_seed(0))
    studies = [encoding.study(model, tokens, unigram=np.arange(1, 68), progress=False) for model in multiplied]
    for name, table in studies[0].tables.items():
        pd.testing.assert_frame_equal(table, studies[1].tables[name], rtol=1e-4, atol=1e-7)
    for model, study in zip(multiplied, studies, strict=True):
        curve = study.pruning.query("basis == 'axis' and order == 'slope'")
        dims = encoding.pruning.removal_order(encoding.fit(model, tokens, progress=False), "slope")[:8]
        plain = model(tokens).log_softmax(-1)
        with model.hooks(fwd_hooks=hooks.prune_output_dims(model, dims)):
            pruned = model(tokens).log_softmax(-1)
        expected = (plain.exp() * (plain - pruned)).sum(-1).mean().item()
        assert curve.set_index("n_dims").loc[8, "kl"] == pytest.approx(expected, rel=1e-4)
        assert expected > 1e-3

"""Text that a model generates without some of its output dimensions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from interp.corpora.batching import sample_positions
from interp.encoding.options import Basis, Order
from interp.encoding.pruning import FRACTIONS, pruning_curve, removal_order
from interp.encoding.regression import Fit
from interp.generation.decoding import Prompts, generate, resolved
from interp.generation.metrics import text_metrics
from interp.hooks import prune_output_dims
from interp.models.sites import Model

__all__ = ["pruned_text"]

_POSITIONS = 5_000  # as in interp.encoding.study


def pruned_text(
    model: Model,
    prompts: Prompts,
    *,
    fit: Fit,
    order: Order = "spearman",
    basis: Basis = "axis",
    fractions: Sequence[float | int] = FRACTIONS[:13:2],
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Continue prompts greedily with dimensions of the unembedding's input set to zero, and compare with the full
    model.

    Cho et al. (2025), §5, remove 30 % and find that generated text hardly changes. As many new tokens are generated as
    the prompts' human continuations have, and the end-of-sequence token is suppressed, because diversity is comparable
    only for equal amounts of text.

    Args:
        prompts: prompts from `interp.generation.prompts`.
        fit: a fit of this model, which ranks the dimensions.
        order, basis, fractions, seed: see `pruning_curve`.

    Returns a table (basis, order, fraction, n_dims, diversity, diversity_se, repetition, agreement, same_texts,
    perplexity, n_texts, n_tokens). `agreement` is the share of new tokens that the full model has at the same place,
    and `same_texts` the share of texts without a difference. `perplexity` is that of the pruned model on about 5,000
    positions of the fitted text (see `pruning_curve`). The other columns are as in `interp.generation.text_metrics`.

    Raises the errors of `pruning_curve` and `interp.generation.generate`.

    Examples:
        >>> from interp import encoding, generation
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> fit = encoding.fit(model, text, progress=False)
        >>> prompts = generation.prompts(model, text, n=3, prompt_tokens=2, new_tokens=4)
        >>> found = pruned_text(model, prompts, fit=fit, fractions=[0, 0.5], progress=False)
        >>> float(found["agreement"][0])  # with the whole model itself
        1.0
    """
    sample = sample_positions(fit.batches, min(1.0, _POSITIONS / fit.n_tokens), seed=seed)
    how: dict[str, Any] = {"order": order, "basis": basis, "fractions": fractions, "seed": seed}
    curve = pruning_curve(model, sample, fit=fit, **how, progress=progress)
    ranked = removal_order(fit, order, basis, seed=seed)
    rotation = None if basis == "axis" else fit.components
    rows, config = prompts.ids.tolist(), resolved(model, "greedy", prompts.human.shape[1])
    config.min_new_tokens = config.max_new_tokens

    def written(n_dims: int) -> list[tuple[int, ...]]:
        recipe = prune_output_dims(model, ranked[:n_dims], basis=rotation) if n_dims else []
        return [text.token_ids for text in generate(model, rows, hooks=recipe, decoder=config, progress=False)]

    whole, table = np.array(written(0)), []
    for n_dims in tqdm(curve["n_dims"].tolist(), desc="pruned text", disable=None if progress else True):
        texts = written(n_dims)
        same, measures = np.array(texts) == whole, text_metrics(texts)
        numbers = {name: measures[name] for name in ("diversity", "diversity_se", "repetition", "n_texts", "n_tokens")}
        table.append(numbers | {"agreement": float(same.mean()), "same_texts": float(same.all(1).mean())})
    columns = ["basis", "order", "fraction", "n_dims", "diversity", "diversity_se", "repetition", "agreement"]
    columns += ["same_texts", "perplexity", "n_texts", "n_tokens"]
    return curve.join(pd.DataFrame(table))[columns]

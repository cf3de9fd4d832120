"""Text that a model generates without some of its output dimensions."""

import itertools

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int
from tqdm.auto import tqdm

from interp.analyses.encoding.pruning import removal_order
from interp.analyses.encoding.regression import Fit
from interp.hooks import prune_output_dims
from interp.instruments.decoding import generate, resolved
from interp.instruments.diversity import diversity_without
from interp.instruments.measures import with_ends
from interp.instruments.prompts import Prompts
from interp.models.running import Hooks
from interp.models.sites import Model
from interp.results.intervals import jackknife, summed_others

__all__ = ["COLUMNS", "pruned_text"]
__dir__ = __all__.copy

_SHARES = with_ends(["agreement", "diversity", "repetition"])
COLUMNS = ["basis", "order", "fraction", "n_dims", *_SHARES, "same_texts", "perplexity", "perplexity_low"]
COLUMNS += ["perplexity_high", "n_texts", "n_tokens"]


def pruned_text(
    model: Model, prompts: Prompts, *, fit: Fit, curve: pd.DataFrame, seed: int = 0, progress: bool = True
) -> pd.DataFrame:
    """Continue prompts greedily with dimensions of the unembedding's input set to zero, and compare with the full
    model.

    Cho et al. (2025), §5, remove 30 % and find that generated text hardly changes. As many new tokens are generated as
    the prompts' human continuations have, and the end-of-sequence token is suppressed, because diversity is comparable
    only for equal amounts of text.

    Args:
        prompts: prompts from `interp.generation.prompts`.
        fit: a fit of this model, which ranks the dimensions.
        curve: from `pruning_curve`: which dimensions are removed, and the perplexity without them.
        seed: the seed of the curve.

    Returns the table `pruned_texts` of an `EncodingStudy`. `diversity` and `repetition` are as in
    `interp.generation.text_metrics`. `perplexity` is that of the curve. The other intervals are over prompts, and NaN
    for fewer than 20.

    Raises the errors of `interp.generation.generate`.

    Examples:
        >>> from interp import encoding, generation
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> fit = encoding.fit(model, text, progress=False)
        >>> curve = encoding.pruning_curve(model, text, fit=fit, order="spearman", fractions=[0, 0.5], progress=False)
        >>> prompts = generation.prompts(model, text, n=3, prompt_tokens=2, new_tokens=4)
        >>> found = pruned_text(model, prompts, fit=fit, curve=curve, progress=False)
        >>> float(found["agreement"][0])  # with the whole model itself
        1.0
    """
    rows = prompts.ids.tolist()
    config = resolved(model, "greedy", prompts.human.shape[1])
    config.min_new_tokens = config.max_new_tokens

    def texts(hooks: Hooks) -> Int[np.ndarray, "prompts new"]:
        generations = generate(model, rows, hooks=hooks, decoder=config, progress=False)
        return np.array([text.token_ids for text in generations])

    full = texts([])
    table = []
    for row in tqdm(curve.to_dict("records"), desc="pruned text", disable=None if progress else True):
        dims = removal_order(fit, row["order"], row["basis"], seed=seed)[: row["n_dims"]]
        basis = None if row["basis"] == "axis" else fit.components
        pruned = texts(prune_output_dims(model, dims, basis=basis)) if dims else full
        table.append(row | _measured(pruned, pruned == full))
    return pd.DataFrame(table, columns=COLUMNS)


def _measured(texts: Int[np.ndarray, "prompts new"], agrees: Bool[np.ndarray, "prompts new"]) -> dict[str, float]:
    """The measures of texts, with intervals from leaving out one prompt at a time."""
    n = len(texts)
    agreement = agrees.mean(1)
    agreements = np.array([agreement.mean(), *(summed_others(agreement) / max(n - 1, 1))])
    values = np.column_stack([agreements, diversity_without(texts[:, None].tolist())])
    interval = jackknife(values[0], values[1:], np.ones(n), 1)
    ends = zip(interval.value, interval.low.clip(0, 1), interval.high.clip(0, 1), strict=True)
    numbers = dict(zip(_SHARES, map(float, itertools.chain.from_iterable(ends)), strict=True))
    numbers.update(same_texts=float(agrees.all(1).mean()), n_texts=n, n_tokens=texts.size)
    return numbers

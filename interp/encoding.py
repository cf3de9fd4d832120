"""Question 3: how do output embeddings encode token probability?

Source: Cho et al., "Understanding Token Probability Encoding in Output Embeddings", COLING 2025.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy import stats

from interp.corpora import batches, load
from interp.distributions import MeanPredictions, Variant, kl
from interp.frequency import MASK_RATE
from interp.lm_head import prediction_head
from interp.observers import observe
from interp.sites import Model, is_encoder
from interp.unigrams import Unigrams


@dataclass(frozen=True, eq=False)
class Regression:
    """`−log α_w ≈ A·E_w + B` by ordinary least squares over token types, float64.

    `slope` A `[d_model]`, `intercept` B (nats), `r2`, `adj_r2 = 1 − (1 − R²)(n − 1)/(n − d − 1)`, and the number
    of types n and dimensions d.
    """

    slope: Float[np.ndarray, " d_model"]
    intercept: float
    r2: float
    adj_r2: float
    n_types: int
    n_dims: int


def fit_arrays(
    W_U: Float[np.ndarray, "d_model d_vocab"],
    alpha: Float[np.ndarray, " d_vocab"],
    *,
    use: Bool[np.ndarray, " d_vocab"] | None = None,
) -> Regression:
    """Regress minus the log of mean output probability on the output embeddings (the columns of `W_U`).

    Args:
        alpha: mean output probability of each type over a corpus.
        use: which types take part; all with a probability above 0.

    Raises:
        ValueError: no more types than dimensions, so that the fit would be exact and say nothing.
    """
    keep = (alpha > 0) & (np.ones_like(alpha, bool) if use is None else use)
    n, d = int(keep.sum()), W_U.shape[0]
    if n <= d + 1:
        raise ValueError(f"{n} usable types for {d} dimensions: the regression would fit exactly; it needs more types")
    y = -np.log(alpha[keep].astype(np.float64))
    X = np.column_stack([W_U.T[keep].astype(np.float64), np.ones(n)])
    coefficients, *_ = np.linalg.lstsq(X, y)
    r2 = 1 - ((y - X @ coefficients) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return Regression(
        slope=coefficients[:-1],
        intercept=float(coefficients[-1]),
        r2=float(r2),
        adj_r2=float(1 - (1 - r2) * (n - 1) / (n - d - 1)),
        n_types=n,
        n_dims=d,
    )


def dynamics(
    checkpoints: Iterable[tuple[int, Model]], text: Any, *, unigram: Unigrams, progress: bool = True
) -> pd.DataFrame:
    """How the encoding of frequency comes about in training: one row for each (step, model).

    Columns: step, adj_r2 (of −log α on the output embeddings), spearman (of b_LN W_U with log u; NaN without
    b_LN, or while it is zero), kl_unigram_model (KL(u‖q), nats), loss (mean NLL, nats; of masked tokens for an
    encoder). One forward pass a checkpoint.

    Args:
        text: what `interp.corpora.load` takes.
        unigram: counts with the checkpoints' tokenizer.

    Raises:
        ValueError: no checkpoint, or counts of another vocabulary.
    """
    u, corpus = unigram.distribution, load(text)
    rows = []
    for step, model in checkpoints:
        head = prediction_head(model)
        if len(u) != head.d_vocab:
            raise ValueError(f"the counts are over {len(u):,} types, the model of step {step} has {head.d_vocab:,}")
        prepared = batches(model, corpus, mask_rate=MASK_RATE if is_encoder(model) else None)
        predictions = MeanPredictions(model, [Variant()])
        observe(model, prepared, predictions, progress=progress)
        q, real = predictions.distributions[0], head.real.cpu().numpy()
        effect = head.effect("ln").double().cpu().numpy() if "ln" in head.biases else np.zeros(len(u))
        seen = real & (u > 0)
        rows.append(
            {
                "step": step,
                "adj_r2": fit_arrays(head.W_U.double().cpu().numpy(), q, use=real).adj_r2,
                "spearman": stats.spearmanr(effect[seen], u[seen]).statistic if np.ptp(effect[seen]) > 0 else np.nan,
                "kl_unigram_model": kl(u, q),
                "loss": float(predictions.nll[0]),
            }
        )
    if not rows:
        raise ValueError("there is no checkpoint; expected an iterable of (step, model)")
    return pd.DataFrame(rows)

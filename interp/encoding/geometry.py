"""The directions of word frequency in a model's output space, and how they lie to each other."""

from itertools import product

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.checks import check_seed
from interp.corpora import unigrams_of
from interp.corpora.counts import Counts
from interp.encoding.reading import raw_head
from interp.encoding.regression import Fit, fit_arrays
from interp.models.sites import Model

_DRAWS = 1_000
_OUTLIERS = 3


def directions(model: Model, fit: Fit, *, unigram: Counts | None = None, seed: int = 0) -> pd.DataFrame:
    """Cosines of the directions that carry word frequency in the space that the unembedding reads.

    | name | direction |
    |---|---|
    | `b_LN` | the bias of the final layer norm (left out where there is none) |
    | `-A` | the slope of log α on the output embeddings |
    | `E[h]` | the mean input of the unembedding; to first order `A ≈ −E[h]` |
    | `unigram` | the slope of log u on the output embeddings, over types that occur, if enough of them do |
    | `PC1` | the first principal axis of the embeddings, turned towards `-A` |
    | `dim j` | at most three dimensions of E[h] further than 3 SD from their mean, turned towards it |

    Returns the table `directions` (name_a, name_b, cosine, null_95): `null_95` is the 95th percentile of |cosine|
    when the coordinates of the second are shuffled (1,000 times), so what is large at this width.

    Raises ValueError for a fit of another model, counts of another vocabulary, a folded model, a seed below 0.
    """
    seed = check_seed(seed)
    fit.require(model)
    head = raw_head(model)
    W_U = head.W_U.double().cpu().numpy()
    u = unigrams_of(model, fit.batches, unigram).distribution
    found: dict[str, Float[np.ndarray, " d_model"]] = {}
    if head.b_ln is not None and bool(head.b_ln.any()):
        found["b_LN"] = head.b_ln.double().cpu().numpy()
    found["-A"] = -fit.slope
    found["E[h]"] = fit.mean_input
    seen = head.real.cpu().numpy() & (u > 0)
    if seen.sum() > len(W_U) + 1:
        found["unigram"] = -fit_arrays(W_U, u, use=seen).slope
    first = fit.components[0]
    found["PC1"] = first * np.sign(first @ found["-A"] or 1.0)
    z = (fit.mean_input - fit.mean_input.mean()) / fit.mean_input.std()
    for dim in np.argsort(-np.abs(z))[:_OUTLIERS]:
        if abs(z[dim]) > 3:
            found[f"dim {dim}"] = np.sign(z[dim]) * np.eye(len(z))[dim]
    rng = np.random.default_rng(seed)
    unit = {name: vector / np.linalg.norm(vector) for name, vector in found.items()}
    rows = []
    for (a, one), (b, other) in product(unit.items(), repeat=2):
        shuffled = rng.permuted(np.tile(other, (_DRAWS, 1)), axis=1)
        rows.append((a, b, one @ other, np.quantile(np.abs(shuffled @ one), 0.95)))
    return pd.DataFrame(rows, columns=["name_a", "name_b", "cosine", "null_95"])

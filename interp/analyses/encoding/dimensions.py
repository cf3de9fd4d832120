"""How each dimension of the output embeddings, or principal component, is related to token probability."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats

from interp.instruments.decomposition import Decomposition
from interp.models.embeddings import Embeddings

__all__ = ["dimensions"]


def dimensions(
    embeddings: Embeddings,
    decomposition: Decomposition,
    slope: Float[np.ndarray, " d_model"],
    targets: Float[np.ndarray, "2 types"],
) -> pd.DataFrame:
    """The table `dims` of `interp.encoding.fit`, from −log α, its shuffled values, and the slope for −log α."""
    tables = []
    for basis, along, sizes in (
        ("axis", slope, decomposition.sizes),
        ("pca", decomposition.components @ slope, decomposition.singular),
    ):
        table = pd.DataFrame({"basis": basis, "dim": np.arange(len(along)), "slope": along})
        table["standardised_slope"] = along * np.ldexp(sizes / np.sqrt(decomposition.n_types), decomposition.exponent)
        rows = _spearman(embeddings, None if basis == "axis" else decomposition.components, _centred_ranks(targets))
        table = table.join(pd.DataFrame(rows, columns=["spearman", "spearman_shuffled"]))
        tables.append(table.assign(explained_variance=sizes**2 / (sizes**2).sum()))
    return pd.concat(tables, ignore_index=True)


def _spearman(
    embeddings: Embeddings, axes: Float[np.ndarray, "d_model d_model"] | None, ranks: Float[np.ndarray, "2 types"]
) -> list[list[float]]:
    """Correlations of centred ranks with the ranks of each dimension, or of the coordinate along each axis."""

    def of_column(column: Float[np.ndarray, " types"]) -> list[float]:
        column_ranks = _centred_ranks(column)
        size = np.sqrt((column_ranks**2).sum() * (ranks**2).sum(1))
        # sums instead of matrix products, whose last bits depend on what other threads do
        return np.divide((ranks * column_ranks).sum(1), size, out=np.full(2, np.nan), where=size > 0).tolist()

    def of_some(dims: slice) -> list[list[float]]:
        coordinates = embeddings.coordinates(dims) if axes is None else embeddings.dot(torch.from_numpy(axes[dims]))
        return list(threads.map(of_column, coordinates.numpy()))

    step = max(1, 4 * embeddings.at_once // len(embeddings))  # along axes, each step reads all embeddings
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return [row for start in range(0, embeddings.d_model, step) for row in of_some(slice(start, start + step))]


def _centred_ranks(values: Float[np.ndarray, "*rows types"]) -> Float[np.ndarray, "*rows types"]:
    return np.asarray(stats.rankdata(values, axis=-1)) - (values.shape[-1] + 1) / 2

"""What each dimension of the output embeddings, or principal component, has to do with token probability."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats

from interp.encoding.decomposition import Decomposition
from interp.models.embeddings import Embeddings

__all__ = ["dimensions"]


def dimensions(
    embeddings: Embeddings,
    found: Decomposition,
    slope: Float[np.ndarray, " d_model"],
    targets: Float[np.ndarray, "2 types"],
) -> pd.DataFrame:
    """The table `dims` of `interp.encoding.fit`, from −log α and its shuffle and the slope of the first."""
    ranks = _centred_ranks(targets)

    def spearman(column: Float[np.ndarray, " types"]) -> Float[np.ndarray, "2"]:
        own = _centred_ranks(column)
        size = np.sqrt((own**2).sum() * (ranks**2).sum(1))
        # sums and not products of matrices, whose last bits depend on what other threads do
        return np.divide((ranks * own).sum(1), size, out=np.full(2, np.nan), where=size > 0)

    tables = []
    for basis, along, sizes in (("axis", slope, found.sizes), ("pca", found.components @ slope, found.singular)):
        table = pd.DataFrame({"basis": basis, "dim": np.arange(len(along)), "slope": along})
        table["standardised_slope"] = along * np.ldexp(sizes / np.sqrt(found.n_types), found.exponent)
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            rows = [row for part in _coordinates(embeddings, basis, found) for row in threads.map(spearman, part)]
        table = table.join(pd.DataFrame(rows, columns=["spearman", "spearman_shuffled"]))
        tables.append(table.assign(explained_variance=sizes**2 / (sizes**2).sum()))
    return pd.concat(tables, ignore_index=True)


def _coordinates(embeddings: Embeddings, basis: str, found: Decomposition) -> Iterator[Float[np.ndarray, "dims types"]]:
    """The coordinates of every type, some dimensions at a time."""
    step = max(1, embeddings.at_once // len(embeddings))
    for start in range(0, embeddings.d_model, step):
        dims = slice(start, start + step)
        axes = torch.from_numpy(found.components[dims])
        yield (embeddings.coordinates(dims) if basis == "axis" else embeddings.dot(axes)).numpy()


def _centred_ranks(values: Float[np.ndarray, "*rows types"]) -> Float[np.ndarray, "*rows types"]:
    return np.asarray(stats.rankdata(values, axis=-1)) - (values.shape[-1] + 1) / 2

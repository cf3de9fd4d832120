"""Output embeddings, the columns of W_U, read in blocks of types, so that W_U is never copied as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Embeddings"]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The output embeddings `E_w`, columns of `scale · W_U`, of all types or of those that `use` marks.

    `W_U` may have any floating dtype, memory order and device. Everything is computed from blocks of types with at most
    `at_once` numbers, each converted to the requested dtype. So memory depends on the size of a block, not on W_U.

    Examples:
        >>> every_other = Embeddings(torch.eye(3, 4), use=np.array([True, False, True, False]))
        >>> len(every_other)
        2
        >>> every_other.dot(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[1.0, 3.0]]
    """

    W_U: Float[Tensor, "d_model d_vocab"] | Float[np.ndarray, "d_model d_vocab"]
    scale: float = 1.0
    use: Bool[np.ndarray, " d_vocab"] | None = None
    at_once: int = 2**22

    def __len__(self) -> int:
        """How many types there are."""
        return int(self.W_U.shape[1] if self.use is None else self.use.sum())

    @property
    def d_model(self) -> int:
        return int(self.W_U.shape[0])

    def of(self, use: Bool[np.ndarray, " d_vocab"]) -> "Embeddings":
        """Return the embeddings of some types of the vocabulary."""
        return replace(self, use=use)

    def blocks(self, dtype: torch.dtype = torch.float64) -> Iterator[tuple[slice, Float[Tensor, "types d_model"]]]:
        """Return blocks of embeddings, each with the slice of (used) types that it has.

        Blocks are on the device of `W_U`, or on the CPU if that device has no float64. A block may share memory with
        `W_U`, so do not write to it.
        """
        types = self._types()
        step = max(1, self.at_once // max(1, self.d_model))
        for start in range(0, len(types), step):
            chosen = types[start : start + step]
            yield slice(start, start + len(chosen)), self._wide(_rows(self.W_U.T, chosen), dtype)

    def coordinates(self, dims: slice) -> Float[Tensor, "dims types"]:
        """Return some dimensions of every type, in float64 on the CPU."""
        part = replace(self, W_U=self.W_U[dims])
        coordinates = torch.empty(part.d_model, len(self), dtype=torch.float64)
        for where, block in part.blocks():
            coordinates[:, where] = block.mT
        return coordinates

    def dot(self, directions: Float[Tensor, "k d_model"]) -> Float[Tensor, "k types"]:
        """Compute `direction · E_w` for each direction and type, in the dtype and on the device of the directions."""
        products = directions.new_empty(len(directions), len(self))
        for where, block in self.blocks(directions.dtype):
            products[:, where] = directions.to(block.device) @ block.mT
        return products

    def total(self, weights: Float[Tensor, "rows types"]) -> Float[Tensor, "rows d_model"]:
        """Compute `Σ_w weight_w E_w` for each row of weights, in float64 and on their device."""
        totals = weights.new_zeros(len(weights), self.d_model, dtype=torch.float64)
        for where, block in self.in_small_blocks.blocks(weights.dtype):
            totals += weights[:, where] @ block.to(weights.device)
        return totals

    @property
    def in_small_blocks(self) -> "Embeddings":
        """The same embeddings in blocks of 512 types. Sums over more types are inexact in float32."""
        return replace(self, at_once=512 * self.d_model)

    @cached_property
    def largest(self) -> float:
        """The largest absolute value; NaN if any value is NaN, and 0 if there are no types."""
        largest = torch.zeros((), dtype=torch.float64)
        for _, block in self.blocks():
            largest = torch.maximum(largest, torch.linalg.vector_norm(block, torch.inf).cpu())
        return float(largest)

    def _types(self) -> Int[np.ndarray, " types"]:
        return np.arange(self.W_U.shape[1]) if self.use is None else np.flatnonzero(self.use)

    def _wide(self, rows: Float[Tensor, "n m"] | Float[np.ndarray, "n m"], dtype: torch.dtype) -> Float[Tensor, "n m"]:
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows.astype(np.float64))
        if dtype == torch.float64 and rows.device.type == "mps":
            rows = rows.cpu()
        rows = rows.detach()
        return rows.to(dtype) if self.scale == 1 else self.scale * rows.to(dtype)


def _rows(
    table: Float[Tensor, "n m"] | Float[np.ndarray, "n m"], chosen: Int[np.ndarray, " k"]
) -> Float[Tensor, "k m"] | Float[np.ndarray, "k m"]:
    """Some rows of a table, without a copy if they are adjacent."""
    if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:
        return table[int(chosen[0]) : int(chosen[-1]) + 1]
    return table[torch.from_numpy(chosen) if isinstance(table, Tensor) else chosen]

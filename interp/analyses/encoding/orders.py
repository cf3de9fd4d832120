"""Is one order of removing dimensions better than a random one?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.encoding.pruning import PRUNED, removal_order
from interp.analyses.encoding.regression import Fit
from interp.corpora.batching import Batch
from interp.instruments.logits import LogitsObserver
from interp.models.sites import Model, hook_name
from interp.passes.groups import MOST
from interp.results.intervals import from_sums
from interp.results.verdicts import FEWEST_CONTROLS

__all__ = ["ORDER_COLUMNS", "Agreements", "random_orders"]

ORDER_COLUMNS = ["order", "draw", "fraction", "n_dims", "top1_agreement", "top1_agreement_low", "top1_agreement_high"]
ORDER_COLUMNS += ["n_positions"]
_ELEMENTS_AT_ONCE = 2**23


class Agreements(LogitsObserver):
    """At how many positions the most probable token stays the same without some dimensions of the unembedding's input,
    for many sets of dimensions. A set costs one product with its rows of W_U and one maximum."""

    def __init__(self, model: Model, sets: Sequence[Sequence[int]]) -> None:
        self.sets = [list(dims) for dims in sets]
        super().__init__(model, [hook_name(model, "head_input")], at_once=_ELEMENTS_AT_ONCE, sets=self.sets)
        self.head.refuse_cap("predictions without some dimensions are no differences of them")
        self.add_state("positions", (MOST,), "groups")
        self.add_state("same", (MOST, len(self.sets)), "groups")

    def beside(self, batch: Batch) -> list[Tensor]:
        return [self.groups_of_positions(batch)]

    def read(
        self,
        full: Float[Tensor, "pos d_vocab"],
        targets: Int[Tensor, " pos"],
        h: Float[Tensor, "pos d_model"],
        groups: Int[Tensor, " pos"],
    ) -> None:
        h = self.head.scale * h.to(full)
        best = full.argmax(1, keepdim=True)
        is_same = torch.empty(len(full), len(self.sets), dtype=torch.bool, device=full.device)
        for number, dims in enumerate(self.sets):
            logits = torch.addmm(full, h[:, dims], self.head.unscaled[dims].to(full), alpha=-1)
            is_same[:, number] = (logits.gather(1, best) >= logits.amax(1, keepdim=True))[:, 0]
        self.add_to_groups("positions", torch.ones(len(groups)), groups)
        self.add_to_groups("same", is_same, groups)

    @property
    def table(self) -> pd.DataFrame:
        """The share of positions for each set, with its 95 % interval over texts, and the number of positions."""
        self.check_read()
        read = self.state["positions"] > 0
        agreements, positions = (self.state[name][read].cpu().numpy() for name in ("same", "positions"))
        share = from_sums(np.divide, [agreements, positions[:, None]], positions, self.stretches_per_group)
        share = share._replace(least=0, most=1)
        columns = {"top1_agreement": share.value, "top1_agreement_low": share.low, "top1_agreement_high": share.high}
        return pd.DataFrame(columns).assign(n_positions=int(positions.sum()))


def random_orders(model: Model, fit: Fit, *, seed: int) -> tuple[Agreements, pd.DataFrame]:
    """The observer for the order by |Spearman| and for 39 random ones, each without the share of dimensions that the
    paper removes, and a table with a row for each (order, draw, fraction, n_dims)."""
    ranked = removal_order(fit, "spearman")
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(len(ranked)).tolist() for _ in range(FEWEST_CONTROLS)]
    n_dims = round(PRUNED * len(ranked))
    rows = [("spearman", 0), *(("random", draw) for draw in range(FEWEST_CONTROLS))]
    table = pd.DataFrame(rows, columns=["order", "draw"]).assign(fraction=PRUNED, n_dims=n_dims)
    return Agreements(model, [order[:n_dims] for order in (ranked, *drawn)]), table

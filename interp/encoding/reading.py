"""What is read of a model for its output embeddings: the raw prediction head, logits, and the mean of a site."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batch
from interp.frequency.distributions import real_logits
from interp.models.head import PredictionHead, prediction_head, real_tokens
from interp.models.sites import Model, Recipe, Site, hook_name
from interp.run.observers import Observer

__all__ = ["LogitsObserver", "SiteMean", "raw_head"]


def raw_head(model: Model) -> PredictionHead:
    """The prediction head; raises ValueError for a folded one, whose W_U is not the output embeddings."""
    head = prediction_head(model)
    if head.folded or getattr(model.cfg, "normalization_type", None) in ("LNPre", "RMSPre"):
        raise ValueError("the final norm of this model is folded into W_U; load it raw (interp.load)")
    return head


class LogitsObserver(Observer):
    """Calls its `read(logits, targets, *activations)`, which a subclass defines, at the positions that are read.

    Logits are in float32 at least, and −∞ on rows of the vocabulary that are no tokens.

    Args:
        names: hook points of the activations.
        at_once: how many logits a call may have; all that a batch has by default.
    """

    read: Callable[..., None]

    def __init__(
        self, model: Model, names: Sequence[str] = (), *, at_once: int | None = None, **options: object
    ) -> None:
        super().__init__(model.W_U.device, **options)
        self.model, self.names, self.at_once, self.real = model, names, at_once, real_tokens(model)

    def hooks(self, batch: Batch) -> Recipe:
        seen: dict[str, Tensor] = {}

        def keep(activation: Tensor, hook: torch.nn.Module) -> None:
            seen[str(hook.name)] = batch.select(activation)

        def read_parts(logits: Tensor, hook: torch.nn.Module) -> None:
            together = (batch.select(logits), batch.read_targets, *map(seen.pop, self.names))
            rows = len(together[0]) if self.at_once is None else max(1, self.at_once // logits.shape[-1])
            for part, *others in zip(*(values.split(rows) for values in together), strict=True):
                self.read(real_logits(part, self.real), *others)

        return [*((name, keep) for name in self.names), (hook_name(self.model, "logits"), read_parts)]


class SiteMean(Observer):
    """Mean of what flows at a site, `[width]`, over the positions that are read; a batch is summed in `dtype`."""

    def __init__(
        self, model: Model, site: Site, width: int, *, layer: int | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        self.name, self.dtype = hook_name(model, site, layer), dtype
        super().__init__(model.W_U.device, site=self.name)
        self.add_state("sum", (width,))
        self.add_state("n", ())

    def hooks(self, batch: Batch) -> Recipe:
        def read(activation: Tensor, hook: object) -> None:
            chosen = batch.select(activation)
            self.add("sum", chosen.sum(0, dtype=self.dtype))
            self.add("n", len(chosen))

        return [(self.name, read)]

    @property
    def mean(self) -> Float[Tensor, " width"]:
        return self.state["sum"] / self.state["n"]

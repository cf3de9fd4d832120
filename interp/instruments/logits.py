"""Observers of the prediction head and of one site, from which several analyses are made."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.corpora.batching import MASK_RATE, Batch
from interp.models.edits import jointly
from interp.models.head import prediction_head
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, Site, hook_name
from interp.passes.budget import Pass
from interp.passes.observers import Observer
from interp.support.words import argument

__all__ = ["LogitsObserver", "SiteMean", "at_head", "real_logits"]
__dir__ = __all__.copy


class LogitsObserver(Observer):
    """Calls `read(logits, targets, *activations, *beside)`, which a subclass defines, at the positions that are read.

    Logits are at least in float32, and −∞ in rows of the vocabulary that are not tokens. The states `n` and `n_scored`
    count the positions that were read, and those whose target is known.

    Args:
        names: the hook points of the activations.
        at_once: how many logits one call may have. Default: all logits of a batch.
    """

    read: Callable[..., None]
    axes: ClassVar = {"n": "", "n_scored": ""}

    def __init__(self, model: Model, names: Sequence[str] = (), *, at_once: int | None = None, **options: Any) -> None:
        super().__init__(model.W_U.device, **options)
        self.model = model
        self.names = names
        self.at_once = at_once
        self.head = prediction_head(model)

    def hooks(self, batch: Batch) -> Recipe:
        def read_batch(*activations: Tensor) -> None:
            *read_activations, logits = map(batch.select, activations)
            self.add("n", len(logits))
            self.add("n_scored", (batch.read_targets >= 0).sum())
            rows = max(1, len(logits) if self.at_once is None else self.at_once // logits.shape[1])
            values = (logits, batch.read_targets, *read_activations, *self.beside(batch))
            parts = [value.split(rows) for value in values]
            for part, *part_inputs in zip(*parts, strict=True):
                self.read(self.predicted(part), *part_inputs)

        return jointly([*self.names, hook_name(self.model, "logits")], read_batch)

    def beside(self, batch: Batch) -> list[Tensor]:
        """Return additional arguments of `read`, with one entry per position that is read."""
        return []

    def predicted(self, unembedded: Float[Tensor, "pos d_vocab"]) -> Float[Tensor, "pos d_vocab"]:
        """Return the model's logits, from the activation at the site `logits`; −∞ in rows that are not tokens."""
        return real_logits(self.head.finished(unembedded), self.head.real)

    def check_read(self) -> None:
        """Raise ValueError if no position was read."""
        if not self.state["n"]:
            more = f"more text, or a higher share of masked tokens ({argument('mask_rate')})"
            raise ValueError(f"no position was read, so there is no mean; give {more}")

    def mean_of(self, name: str, over: str = "n") -> Float[np.ndarray, "*shape"]:
        """Return the average of a state that is a sum over the positions that were read (or scored).

        Raises ValueError if no position was read.
        """
        self.check_read()
        return (self.state[name] / self.state[over]).cpu().numpy()


class SiteMean(Observer):
    """The mean activation at a site, `[width]`, over the positions that are read. A batch is summed in `dtype`."""

    axes: ClassVar = {"sum": "width", "n": ""}

    def __init__(
        self, model: Model, site: Site, width: int, *, layer: int | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        self.name = hook_name(model, site, layer)
        self.dtype = dtype
        super().__init__(model.W_U.device, site=self.name, dtype=str(dtype))
        self.add_states(model.cfg, width=width)

    def hooks(self, batch: Batch) -> Recipe:
        def read(activation: Tensor, hook: object) -> None:
            chosen = batch.select(activation)
            self.add("sum", chosen.sum(0, dtype=self.dtype))
            self.add("n", len(chosen))

        return [(self.name, read)]

    @property
    def mean(self) -> Float[Tensor, " width"]:
        return self.state["sum"] / self.state["n"]


def at_head(size: Shape, /, **fields: Any) -> Pass:
    """Describe a pass that reads logits, for a model of this shape: of all tokens or, in encoders, of masked ones.

    Args:
        fields: other fields of the `Pass`.
    """
    fields.setdefault("head", True)
    if size.encoder:
        fields.setdefault("text", "masked text")
        fields.setdefault("share", MASK_RATE)
    return Pass(**fields)


def real_logits(logits: Float[Tensor, "pos d_vocab"], real: Bool[Tensor, " d_vocab"]) -> Float[Tensor, "pos d_vocab"]:
    """Return logits at least in float32, and −∞ in rows of the vocabulary that are not tokens."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if bool(real.all()) else wide.masked_fill(~real, -torch.inf)

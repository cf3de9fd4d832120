"""Directions in the prediction head's input that are scaled like a bias.

A model without b_LN can encode word frequency in the constant part of the head's input h, which is its mean. With
m = E[h],

    h + (λ − 1) m,    logits(λ) = logits(1) + (λ − 1) m W_U

scales m in the same way as λ b_LN scales b_LN. The direction −A, the slope of log α on the output embeddings
(`interp.encoding.fit`), is scaled likewise: at λ = 0 the logits lose the regression's estimate of the log of the mean
predicted probability.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batches
from interp.instruments.logits import SiteMean, at_head
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.regression import raw_head, regressions
from interp.models.head import PredictionHead
from interp.models.running import head_is_hooked
from interp.models.shapes import Shape
from interp.models.sites import Model
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading
from interp.support.checks import check_choice
from interp.support.choices import Bias, Direction, Several, listed

__all__ = ["Vectors", "added_logits", "check_directions", "directions_cost", "head_directions"]
__all__ += ["refuse_hooks", "why_no_directions"]
__dir__ = __all__.copy

Vectors: TypeAlias = dict[Bias | Direction, Float[Tensor, " d_model"]]
"""Vectors in the space of the head's input, by name."""


def why_no_directions(model: Model) -> str | None:
    """Return why directions in the head's input of a model cannot be scaled, or None if they can."""
    try:
        raw_head(model).refuse_cap("a vector added to its input has no closed form")
    except ValueError as error:
        return str(error)
    return None


def check_directions(directions: Several[Direction] | None) -> None:
    """Raise ValueError for unknown directions, and for a direction that is given twice."""
    if directions is None:
        return
    names = listed(directions)
    if len(set(names)) < len(names):
        raise ValueError(f"directions must be different ones of {', '.join(get_args(Direction))}, found {directions!r}")
    for name in names:
        check_choice("direction", name, get_args(Direction))


def refuse_hooks(model: Model) -> None:
    """Raise RuntimeError while the prediction head has other hooks, because its input may then not be what the logits
    are computed from."""
    if head_is_hooked(model):
        subject = "directions and dimensions of the head's input"
        raise RuntimeError(
            f"{subject} cannot be studied while other hooks are active on the prediction head; remove them"
        )


def head_directions(model: Model, prepared: Batches, directions: Several[Direction]) -> Passes[Vectors]:
    """Find some directions, the mean first, in one pass: `mean` is E[h] and `slope` is −A.

    Raises the errors of `refuse_hooks` and of `interp.instruments.regression.raw_head`, and for the slope also those of
    `interp.instruments.regression.fit_arrays`.
    """
    if not directions:
        return {}
    refuse_hooks(model)
    head = raw_head(model)
    inputs = SiteMean(model, "head_input", model.cfg.d_model, dtype=head.wide)
    predictions = MeanPredictions(model, [Variant()])
    yield [Reading("head input", prepared, [inputs, predictions] if "slope" in directions else [inputs])]
    vectors: Vectors = {}
    if "mean" in directions:
        vectors["mean"] = inputs.mean
    if "slope" in directions:
        alpha = predictions.distributions[0]
        use = head.real.cpu().numpy() & (alpha > 0)
        vectors["slope"] = torch.from_numpy(-regressions(head.embeddings, [alpha], use=use)[0].slope)
    return vectors


def directions_cost(size: Shape, directions: Sequence[str], /, **fields: Any) -> list[Pass]:
    """Estimate the cost of `head_directions`, from the shape of a model.

    Args:
        fields: other fields of each `Pass`.
    """
    fields.setdefault("what", "head input")
    passes = [at_head(size, sums=SiteMean.n_bytes(size, width=size.d_model), **fields)] if directions else []
    return [*passes, MeanPredictions.cost(size, 1, **fields)] if "slope" in directions else passes


def added_logits(head: PredictionHead, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_vocab"]:
    """Compute what vectors in the head's input add to the logits, in float64 on the CPU."""
    return head.embeddings.dot(vectors.to(head.wide)).double().cpu()

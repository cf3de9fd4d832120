"""What comparing predictions with word frequency costs, from a model's config alone."""

from collections.abc import Mapping
from typing import Any

from interp.corpora.batching import MASK_RATE
from interp.frequency.options import FrequencyOptions
from interp.models.shapes import Shape, shape
from interp.run.budget import Cost, Pass
from interp.run.groups import MOST

__all__ = ["dry_run", "predictions"]

_AT_ONCE = 2**22  # logits, see interp.frequency.distributions
_COPIES = 6  # of those, shifted, their exponentials, probabilities; and of the sums of all groups but each
_TABLES = 5  # copies of the distributions, in float64


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.frequency.bias_effect` with these options: one pass, whose sums are `8 (2 n + 1) d_vocab`
    bytes for n variants (a bias at a scale, one or two logit adjustments, and the model as it is), for each of 20
    groups of texts.

    Raises as `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {"scales": [0, 1]}).numbers["variants"]
        4
    """
    size, asked = shape(name), FrequencyOptions(**{key: options[key] for key in ("biases", "scales") if key in options})
    biases = size.biases if asked.biases is None else tuple(asked.biases)
    if not biases:
        return Cost(lines=["word frequency: this model's prediction head has no bias to scale"])
    scales = list(asked.scales)
    n = len(biases) * len(scales) + 1 + ("ln" in biases) + (1 not in scales)
    numbers = {"variants": n}
    read = predictions(size, n, grouped=True)
    leaving_out = _COPIES * 8 * MOST * size.d_vocab
    results = _TABLES * 8 * n * size.d_vocab
    lines = [f"word frequency: {n} variants of the prediction head, {MOST} groups of texts"]
    return Cost(passes=(read,), between=read.sums + leaving_out, results=results, numbers=numbers, lines=lines)


def predictions(
    model: Shape, n_variants: int, what: str = "word frequency", *, grouped: bool = False, **more: Any
) -> Pass:
    """The pass of a `MeanPredictions` of some variants. Each costs, at a position, a product with all logits."""
    groups = MOST if grouped else 1
    sums = 8 * (groups * ((2 * n_variants + 1) * model.d_vocab + 1) + 3)
    held: dict[str, Any] = {
        "per_batch": 2 * 8 * n_variants * model.d_vocab,
        "per_logit": _COPIES * 4,
        "at_once": _AT_ONCE,
    }
    flops = 4.0 * n_variants * model.d_vocab
    share = MASK_RATE if model.encoder else 1.0
    defaults = {"text": "masked text" if model.encoder else "text", "share": share, "flops": share * flops}
    return Pass(what=what, sums=sums, head=True, **held, **defaults | more)

"""What instruments hold and compute, from a model's config alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from interp.corpora.batching import MASK_RATE
from interp.instruments.scores import MOST_BYTES
from interp.instruments.sinks import position_bins
from interp.models.footprint import TOKENS_PER_ROW
from interp.models.shapes import Shape
from interp.passes.budget import Pass
from interp.passes.groups import MOST

__all__ = [
    "continued",
    "head_input",
    "massive_sums",
    "predictions",
    "profile_sums",
    "score_flops",
    "score_pass",
    "sink_sums",
]
__dir__ = __all__.copy

_SCORES_AT_ONCE = 2**18  # scores that are computed together; see interp.models.qk
_COPIES_OF_SCORES = 5  # copies of these scores: scaled, masked, softmax, and without a dimension
_AT_ONCE = 2**22  # logits that are read together; see interp.instruments.predictions
_COPIES = 6  # copies of these: shifted logits, exponentials, probabilities, …


def predictions(
    model: Shape, n_variants: int, title: str = "word frequency", *, grouped: bool = False, **options: Any
) -> Pass:
    """Describe the pass of a `MeanPredictions` with some variants. Each variant costs one product with all logits per
    position."""
    groups = MOST if grouped else 1
    sums = 8 * (groups * ((2 * n_variants + 1) * model.d_vocab + 1) + 3)
    memory: dict[str, Any] = {
        "per_batch": 2 * 8 * n_variants * model.d_vocab,
        "per_logit": _COPIES * 4,
        "at_once": _AT_ONCE,
    }
    flops = 4.0 * n_variants * model.d_vocab
    share = MASK_RATE if model.encoder else 1.0
    defaults = {"text": "masked text" if model.encoder else "text", "share": share, "flops": share * flops}
    return Pass(what=title, sums=sums, head=True, **memory, **defaults | options)


def head_input(model: Shape, directions: Sequence[str]) -> Pass:
    """Describe the pass of `interp.instruments.directions.head_directions`."""
    sums = 8 * (model.d_model + 1) if directions else 0
    if "slope" in directions:
        read = predictions(model, 1, "head input")
        return replace(read, sums=read.sums + sums)
    masked: dict[str, Any] = {"text": "masked text", "share": MASK_RATE} if model.encoder else {}
    return Pass(what="head input", sums=sums, head=True, **masked)


def sink_sums(size: Shape, n_layers: int, n_classes: int) -> int:
    """Count the sums that `interp.instruments.sinks.Sinks` keeps."""
    ranges = len(position_bins(size.context or TOKENS_PER_ROW))
    return n_layers * MOST * ranges * (3 + 7 * size.n_heads) + 2 * n_classes + 1


def massive_sums(size: Shape) -> int:
    """Count the values that a `MassiveActivations` keeps."""
    return len(position_bins(size.context or TOKENS_PER_ROW)) * (3 * (size.n_layers + 1) * size.d_model + 1)


def score_flops(size: Shape, n_layers: int, n_classes: int, *, sequence: int = 128) -> tuple[float, float]:
    """Estimate the operations per token of the means and of the key-centred means of a `ScoreContributions`.

    Causal models need `2 n_heads d_head d_model` operations per token and layer for the means, and as many for each
    class but one to centre them. Encoders first sum over a sequence, so they need twice that number for each class,
    once per `sequence` of tokens.
    """
    product = 2.0 * size.n_heads * size.d_head * size.d_model
    means = n_classes * product / sequence if size.encoder else product
    centred = means if size.encoder else (n_classes - 1) * product
    return n_layers * means, n_layers * centred


def score_pass(size: Shape, n_layers: int, n_classes: int, *, sequence: int = 128, by_head: bool = False) -> Pass:
    """Describe the pass of a `ScoreContributions`.

    By group of texts there are sums of scores, and of contributions too where these take no more than 256 MiB: of each
    head (`by_head`: pairs are weighted by attention), or of their mean.
    """
    heads, d_model = size.n_heads, size.d_model
    rows = n_layers * heads * n_classes
    of_texts = 8 * MOST * rows * d_model // (1 if by_head else heads)
    sums = 8 * (rows * (2 * d_model + size.d_head + 1 + 3 * MOST) + (n_layers + 1) * n_classes + MOST + 1)
    sums += of_texts if of_texts <= MOST_BYTES else 0
    # the input of a layer's attention, its rotated queries with their reverse cumulative sums, and keys and values for
    # every head, in float32; or the dimensions with their correlates in float64
    per_token = max(4.0 * (3 * d_model + 8 * heads * size.d_head), 8.0 * 4 * d_model)
    per_batch = _COPIES_OF_SCORES * 4 * _SCORES_AT_ONCE + 12 * heads * size.d_head * d_model
    flops = sum(score_flops(size, n_layers, n_classes, sequence=sequence))
    return Pass(what="attention scores", sums=sums, flops=flops, per_token=per_token, per_batch=per_batch)


def profile_sums(size: Shape, n_states: int, n_classes: int) -> int:
    """Count the values that a `DimensionProfile` keeps."""
    return 5 * n_states * n_classes * size.d_model + n_classes


def continued(size: Shape, rows: int, prompt: int, new: int, *, step: int) -> Pass:
    """Describe the pass in which this many rows of a prompt are continued together, with keys and values kept."""
    cache = 4 * size.n_layers * 2 * size.n_key_value_heads * size.d_head
    return Pass(
        what="generated text", text="generated text", step=step, head=True, share=1 / prompt, size=(rows, prompt),
        per_token=cache * (prompt + new) / prompt, per_batch=4 * 4 * rows * size.d_vocab,
    )  # fmt: skip

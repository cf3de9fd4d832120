"""What instruments hold and compute, from a model's config alone."""

from typing import Any

from interp.corpora.batching import MASK_RATE
from interp.instruments.sinks import position_bins
from interp.models.footprint import TOKENS_PER_ROW
from interp.models.shapes import Shape
from interp.passes.budget import Pass
from interp.passes.groups import MOST

__all__ = ["continued", "predictions", "profile_sums", "sink_sums"]

_AT_ONCE = 2**22  # logits that are read together; see interp.instruments.predictions
_COPIES = 6  # copies of these: shifted logits, exponentials, probabilities, …


def predictions(
    model: Shape, n_variants: int, what: str = "word frequency", *, grouped: bool = False, **more: Any
) -> Pass:
    """The pass of a `MeanPredictions` with some variants. Each variant costs one product with all logits per
    position."""
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


def sink_sums(size: Shape, n_layers: int, n_classes: int) -> int:
    """The number of sums that `interp.instruments.sinks.Sinks` keeps."""
    ranges = len(position_bins(size.context or TOKENS_PER_ROW))
    return n_layers * MOST * ranges * (3 + 7 * size.n_heads) + 2 * n_classes + 1


def profile_sums(size: Shape, n_states: int, n_classes: int) -> int:
    """The number of values that a `DimensionProfile` keeps."""
    return 5 * n_states * n_classes * size.d_model + n_classes


def continued(size: Shape, rows: int, prompt: int, new: int, *, step: int) -> Pass:
    """The pass in which this many rows of a prompt are continued together, with keys and values kept."""
    kept = 4 * size.n_layers * 2 * size.n_key_value_heads * size.d_head
    return Pass(
        what="generated text", text="generated text", step=step, head=True, share=1 / prompt, size=(rows, prompt),
        per_token=kept * (prompt + new) / prompt, per_batch=4 * 4 * rows * size.d_vocab,
    )  # fmt: skip

"""The cost of generating text, from a model's config alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.instruments.costs import continued, head_input, predictions
from interp.instruments.decoders import DECODERS, NEW_TOKENS, PROMPT_TOKENS, batch_rows
from interp.models.footprint import default_rows
from interp.models.shapes import shape_with
from interp.passes.budget import Cost

__all__ = ["dry_run"]

_PROMPTS = 100
_BEAMS = 4
_SCALES = 3


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.generation.study` with these options. The text is read once for the perplexity, and every
    decoder generates text at every λ, keeping `2 n_layers n_key_value_heads d_head` numbers per token.

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {"decoders": ["greedy"], "scales": [0, 1]}).numbers
        {'settings': 2, 'new_tokens': 10000}
    """
    size = shape_with(name, options)
    scaled = options.get("scaled") or ("ln" if "ln" in size.biases else "mean")
    lacking = "an encoder does not continue text" if size.encoder else size.why_no_head
    if scaled == "ln" and "ln" not in size.biases:
        lacking = lacking or "this model has no b_LN to scale"
    if lacking:
        return Cost(lines=[f"generated text: {lacking}"])
    n, prompt, new = (options.get(key) or usual for key, usual in _DEFAULTS.items())
    decoders = options.get("decoders") or DECODERS
    scales = list(options.get("scales") or range(_SCALES))
    beams = _BEAMS if "beam" in decoders else 1
    rows = beams * min(n, options.get("batch_size") or max(1, batch_rows(prompt + new) // beams))
    settings = len(decoders) * len(scales)
    context = size.row(options.get("context"))
    judged = default_rows(size, context, itemsize=4, room=float("inf"))
    passes = (
        *([] if scaled == "ln" else [replace(head_input(size, ["mean"]), step=1, size=(judged, context))]),
        predictions(size, len(scales) + 2 + (1 not in scales), "perplexity", grouped=True, size=(judged, context)),
        continued(size, rows, prompt, new, step=2),
    )
    lines = [f"generated text: {len(decoders)} decoders at {len(scales)} λ, {settings * n * new:,} new tokens"]
    return Cost(passes=passes, numbers={"settings": settings, "new_tokens": settings * n * new}, lines=lines)


_DEFAULTS = {"n": _PROMPTS, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS}

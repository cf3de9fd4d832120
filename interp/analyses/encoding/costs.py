"""The cost of studying a model's output embeddings, from its config and the size of the text alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.analyses.encoding.options import EncodingOptions
from interp.analyses.encoding.pruning import PRUNED, curve_positions
from interp.corpora.batching import MASK_RATE
from interp.corpora.sources import roughly_tokens
from interp.instruments.costs import continued, predictions, profile_sums, sink_sums
from interp.instruments.decoders import NEW_TOKENS, PROMPT_TOKENS, batch_rows
from interp.models.shapes import Shape, shape_with
from interp.passes.budget import Cost, Pass
from interp.passes.contexts import KEPT
from interp.passes.groups import MOST
from interp.results.verdicts import FEWEST_CONTROLS
from interp.support.choices import listed

__all__ = ["dry_run"]

_FRACTIONS = 24  # how many fractions of the dimensions are removed; see interp.encoding.tables
_WRITTEN = 6  # how many of these fractions text is continued without
_SCANNED = 500  # positions
_STEERED = 15  # tokens that are steered
_BINS = 2 * 2_400  # counts and means of a histogram of log-odds
_EFFECTS, _EXACT = 6, 50  # effects of each neuron, and neurons whose effects are exact
_TWINS, _SEARCH = 3, 6  # untrained models, and passes in which the scale of the logits of each is found, at most
_PRUNED_AT_ONCE, _STEERED_AT_ONCE = 2**23, 2**21  # logits that are pruned and steered together
_BLOCK = 2**22  # numbers of W_U that are read together


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.encoding.study` with these options: one pass for the regression; one each for pruning,
    log-odds and the means of neurons, in which an atlas is also read; one for steering; two for the effects of neurons,
    in the first of which random orders are removed; at most eighteen of untrained models; and the steps in which
    prompts are continued.

    Pruning reads up to 5,000 positions, random orders and the effects of neurons 500. Their share of the text is
    estimated at four characters per token; for a text that is not a local file, it is taken to be negligible.

    Raises the errors of `interp.models.shapes.shape`.
    """
    keys = ("orders", "bases", "shifts", "weights", "ratios", "atlas", "untrained")
    size = shape_with(name, options)
    chosen = EncodingOptions(**{key: options[key] for key in keys if key in options})
    if size.why_no_head:
        return Cost(lines=[f"token probability: {size.why_no_head}"])
    tokens = roughly_tokens(data, limit=options.get("limit"), column=options.get("column"))
    mask, text = (MASK_RATE, "masked text") if size.encoder else (1.0, "text")
    n_tokens = min(_STEERED, size.d_vocab)
    shifts = listed(chosen.shifts)
    ways = len(shifts) + ("regression" in shifts) * (len(listed(chosen.weights)) - 1)
    n = n_tokens * len(listed(chosen.ratios)) * ways
    at_head: dict[str, Any] = {"text": text, "head": True, "share": mask}
    odds = Pass(
        what="log-odds", step=1, sums=8 * (2 + n_tokens * _BINS), per_logit=8 * 5,
        at_once=_STEERED_AT_ONCE, flops=mask * 4.0 * size.d_vocab, **at_head,
    )  # fmt: skip
    steered = Pass(
        what="steering", step=2, sums=8 * ((n + 1) * size.d_vocab + MOST * (2 * n + 1) + 3),
        flops=mask * 2.0 * n * size.d_vocab, per_batch=4 * n * size.d_vocab, per_logit=4 * 4,
        at_once=_STEERED_AT_ONCE, **at_head,
    )  # fmt: skip
    fitted = predictions(size, 1, "token probability", grouped=True)
    log_p = 8 * 2 * MOST * size.d_vocab
    fitted = replace(fitted, sums=fitted.sums + log_p + 8 * (size.d_model + 1))
    # a text of unknown length is taken to be much longer
    positions = curve_positions(size.d_vocab), _SCANNED
    share, few = (0.0 if tokens is None else min(mask, read / tokens) for read in positions)
    passes = [fitted, *_pruned(size, chosen, share, few), odds]
    passes += [steered, *([] if size.encoder else _neurons(size, few))]
    passes += [_directions(size, options.get("context"))] if chosen.atlas else []
    for number, _ in enumerate(options.get("steps") or []):  # each checkpoint is a second model
        read = predictions(size, 1, "dynamics", text="text, by checkpoints")
        passes.append(replace(read, step=30 + number, copies=4 * size.parameters))
    passes += _twins(size) if chosen.untrained else []
    fit = 8 * (5 * _BLOCK + (6 + 8 * MOST) * size.d_vocab + 4 * size.d_model**2)
    between = max(fit, 16 * n * size.d_vocab)
    orders = len(listed(chosen.orders))
    lines = [f"token probability: {n} ways to steer a token, {orders} orders in which dimensions go"]
    numbers = {"steered": n}
    if (prompts := options.get("prompts")) and not size.encoder:
        rows = min(prompts, batch_rows(PROMPT_TOKENS + NEW_TOKENS))
        passes.append(continued(size, rows, PROMPT_TOKENS, NEW_TOKENS, step=4))
        settings = 1 + orders * len(listed(chosen.bases)) * _WRITTEN
        numbers["new_tokens"] = settings * prompts * NEW_TOKENS
        lines.append(f"text without some dimensions: {settings} settings, {numbers['new_tokens']:,} new tokens")
    return Cost(passes=tuple(passes), between=between, numbers=numbers, lines=lines)


def _directions(size: Shape, context: int | None) -> Pass:
    """Mean predictions and inputs by group of texts; for decoders also the profile of the residual stream, sinks and
    keys, with attention computed again from queries and keys."""
    reading = predictions(size, 1, "directions", grouped=True, step=1)
    sums = MOST * (3 + size.d_model) + 1
    if size.encoder:
        return replace(reading, sums=reading.sums + 8 * sums)
    sums += profile_sums(size, size.n_layers + 1, 1) + sink_sums(size, size.n_layers, 1)
    sums += size.n_layers * MOST * 2 * size.n_key_value_heads * size.d_head
    per_token = 4.0 * 8 * size.n_heads * size.d_head
    attention = size.attention(size.row(context)) / 2
    return replace(reading, sums=reading.sums + 8 * sums, per_token=per_token, flops=reading.flops + attention)


def _pruned(size: Shape, chosen: EncodingOptions, share: float, drawn: float) -> list[Pass]:
    """The passes for pruning: sums for every order in every basis, W_U in rows, and its principal coordinates; and for
    random orders, each of which subtracts a share of the dimensions."""
    orders, bases = len(listed(chosen.orders)), len(listed(chosen.bases))
    sums = 8 * bases * (orders * _FRACTIONS * (size.d_vocab + 3 * MOST) + size.d_vocab + 2 * MOST + 3)
    common: dict[str, Any] = {"text": "some of the text", "head": True, "per_logit": 4 * 6, "at_once": _PRUNED_AT_ONCE}
    curves = Pass(
        what="pruning", step=1, sums=sums, share=share, copies=4 * bases * size.d_model * size.d_vocab,
        flops=share * bases * (2.0 * size.d_model + orders * _FRACTIONS * 6.0 + 2.0 * size.d_model) * size.d_vocab,
        **common,
    )  # fmt: skip
    if "axis" not in listed(chosen.bases):
        return [curves]
    sets = 1 + FEWEST_CONTROLS
    rows = 4 * round(PRUNED * size.d_model) * size.d_vocab
    flops = drawn * sets * 2.0 * PRUNED * size.d_model * size.d_vocab
    sums = 8 * (MOST * (1 + sets) + 3)
    return [curves, Pass(what="random orders", step=2, sums=sums, share=drawn, copies=rows, flops=flops, **common)]


def _twins(size: Shape) -> list[Pass]:
    """The passes of untrained models, of which one is held at a time."""
    return [
        Pass(
            what="an untrained model", step=5 + number, sums=8 * (size.d_vocab + 2), head=True,
            share=MASK_RATE if size.encoder else 1.0, copies=4 * size.parameters, per_logit=8 * 3,
            at_once=_STEERED_AT_ONCE,
        )
        for number in range(_TWINS * _SEARCH)
    ]  # fmt: skip


def _neurons(size: Shape, share: float) -> list[Pass]:
    """The passes for mean activations, for the largest tokens, for the effects of all neurons to second order, and for
    fifty exact effects."""
    read: dict[str, Any] = {"text": "a little of the text", "head": True, "share": share, "per_logit": 4 * 12}
    sums = 8 * (2 + _EFFECTS * size.d_mlp)
    second_order = share * 8.0 * size.d_mlp * size.d_vocab + share * 12.0 * size.d_vocab * size.d_model
    exact = share * _EXACT * 20.0 * size.d_vocab
    weights = 4 * 2 * size.d_mlp * size.d_model
    return [
        Pass(what="mean neurons", step=1, sums=8 * (size.d_mlp + 1), copies=weights),
        Pass(what="largest tokens", step=1, sums=8 * 2 * KEPT * size.d_mlp),
        Pass(what="neurons", step=2, sums=sums, copies=weights, flops=second_order, **read),
        Pass(what="neurons, exact", step=3, sums=8 * (2 + _EFFECTS * _EXACT), copies=weights, flops=exact, **read),
    ]

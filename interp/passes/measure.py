"""Measures the time and memory that the first batch of a text takes, which no formula can predict for a machine."""

import math
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from interp.corpora import Batches
from interp.corpora.sentences import encode
from interp.models.running import hooks_of_others, running
from interp.models.sites import Model
from interp.passes.execution import Passes, Reading, merged
from interp.passes.reading import feed, forward
from interp.passes.shared import plan
from interp.support import memory

__all__ = ["Measured", "first_batch"]

_FIRST_TEXTS = 100


@dataclass(frozen=True)
class Measured:
    """What the first batch takes, for all passes that are asked for first: the seconds for these passes together, the
    approximate number of batches in the text (None if unknown without reading it), and the most bytes held, by the
    process since its start or on a GPU."""

    seconds: float
    n_batches: int | None
    peak: int


def first_batch(model: Model, analysis: Passes[Any], instead: Batches) -> Measured:
    """Read the first batch for an analysis, and stop there.

    Args:
        analysis: see `interp.passes.execution`. If it runs its own forward passes, a plain forward pass is measured
            instead.
        instead: the batches to read in that case.

    Raises what the analysis raises.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2"] * 20
        >>> text = interp.corpora.batches(model, text, context=12, batch_size=2)
        >>> asked = interp.attention.study.passes(model, text, key_classes={"first": [1]})
        >>> found = first_batch(model, asked, text)
        >>> found.seconds > 0, found.n_batches
        (True, 3)
    """
    readings = list(merged(next(analysis))) or [Reading("a forward pass", instead, [])]
    device = model.W_U.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = sum(_seconds(model, reading) for reading in readings)
    analysis.close()
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else memory.peak()
    return Measured(seconds, _n_batches(readings[0].batches), peak)


def _seconds(model: Model, reading: Reading) -> float:
    """Seconds for the first batch with all observers, measured on the second run, because the first warms up."""
    batch = next(iter(reading.batches)).to(model.W_U.device)
    observers = plan(model, reading.batches, reading.observers).reading
    for _ in range(2):
        start = time.perf_counter()
        if observers:
            feed(model, replace(batch), tuple(observers), hooks_of_others(model))
            for observer in observers:
                observer.commit()
        else:
            with torch.no_grad(), running(model):
                forward(model, batch)
        if model.W_U.device.type == "cuda":
            torch.cuda.synchronize(model.W_U.device)
    return time.perf_counter() - start


def _n_batches(batches: Batches) -> int | None:
    """The number of batches, estimated from the number of texts and the tokens in the first ones."""
    if batches.n_texts is None or batches.corpus is None:
        return None
    rows, tokens_per_batch = batches.settings["batch_size"], batches.settings["tokens_per_batch"]
    if rows is not None and batches.settings["layout"] == "texts":
        return math.ceil(batches.n_texts / rows)
    texts = list(islice(batches.corpus, _FIRST_TEXTS))
    tokens = sum(map(len, encode(batches.tokenizer, texts))) / len(texts) * batches.n_texts
    return max(1, math.ceil(tokens / (tokens_per_batch or rows * batches.settings["context"])))

"""How time grows with the corpus, the context, the layers and the vocabulary: exponents of power laws.

`python benchmarks/growth.py [--quick]`. A small random GPT-2 in which one of the four is changed at a time; the
exponent is the slope of log time on log size by least squares, of the medians of alternating rounds.
"""

import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
import transformers
from attention import WHAT as CONTRIBUTIONS
from encoding import CURVES, FIT, ORDERS, SCREEN
from frequency import SCALES
from frequency import WHAT as FREQUENCY
from models import CLASSES, random_model, tokens
from timing import AXES, Measured, Row, alternate, command, note_only
from together import PROFILE
from transformer_lens import HookedTransformer

from interp import corpora, encoding
from interp.attention import ScoreContributions
from interp.encoding.pruning import FRACTIONS, PrunedPredictions, removal_order
from interp.frequency import bias_effect
from interp.observers import observe
from interp.outliers.profile import DimensionProfile

D_MODEL = 128
BASE = {"∝ corpus": 32, "∝ context": 64, "∝ layers": 4, "∝ vocabulary": 4_000}
SIZES = {
    "∝ corpus": (32, 64, 128), "∝ context": (64, 128, 256), "∝ layers": (4, 8, 16),
    "∝ vocabulary": (4_000, 8_000, 16_000),
}  # fmt: skip


def analyses(model: HookedTransformer, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    vocabulary = model.cfg.d_vocab
    batches = corpora.batches(model, ids, batch_size=8)
    counts = np.random.default_rng(0).integers(1, 1_000, vocabulary)
    classes = corpora.token_classes(model, CLASSES)
    fit = encoding.fit(model, batches, progress=False)
    orders = {order: removal_order(fit, order) for order in ORDERS}
    removed = [round(fraction * D_MODEL) for fraction in FRACTIONS]

    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(batch.tokens)

    return {
        "HookedTransformer, with logits": forward,
        PROFILE: lambda: observe(model, batches, DimensionProfile(model, classes), progress=False),
        FREQUENCY: lambda: bias_effect(model, batches, unigram=counts, scales=SCALES, progress=False),
        CONTRIBUTIONS: lambda: observe(model, batches, ScoreContributions(model, classes), progress=False),
        FIT: lambda: encoding.fit(model, batches, progress=False),
        CURVES: lambda: observe(model, batches, PrunedPredictions(model, orders, removed), progress=False),
        SCREEN: lambda: encoding.frequency_neurons(model, batches, unigram=counts, progress=False),
    }


def exponent(sizes: tuple[int, ...], measured: list[Measured]) -> str:
    medians = [statistics.median(one.seconds) for one in measured]
    return f"{np.polyfit(np.log(sizes), np.log(medians), 1)[0]:.2f}"


def rows(quick: bool) -> Iterator[Row]:
    found: dict[str, dict[str, str]] = {}
    for axis in AXES:
        sizes = SIZES[axis][:2] if quick else SIZES[axis]
        measured: dict[str, list[Measured]] = {}
        for size in sizes:
            n, length, layers, vocabulary = (BASE | {axis: size}).values()
            config = transformers.GPT2Config(
                n_embd=D_MODEL, n_head=4, n_layer=layers, vocab_size=vocabulary, n_positions=256, eos_token_id=0,
                bos_token_id=0,
            )  # fmt: skip
            with random_model(config) as (model, _):
                seconds = alternate(analyses(model, tokens(n, length, vocabulary)), repeats=1 if quick else 3)
            for name, one in seconds.items():
                measured.setdefault(name, []).append(one)
        for name, several in measured.items():
            found.setdefault(name, {})[axis] = exponent(sizes, several)
    on = f"GPT-2, {BASE['∝ layers']} layers of {D_MODEL}, changed one by one"
    for name, exponents in found.items():
        yield note_only(name, on, "exponents of growth") | exponents


if __name__ == "__main__":
    command(rows, __doc__)

"""How time grows with the corpus, the context, the layers and the vocabulary, as exponents of power laws.

`python benchmarks/growth.py [--quick]`. One of the four is changed at a time, with a small random GPT-2. The exponent
is the slope of log time on log size, by least squares. The rest of the model, and what an analysis does only once (a
table, a decomposition), take constant time, which pulls the exponent below 1; compare with the forward pass in the
first row.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import transformers
from attention import WHAT as CONTRIBUTIONS
from encoding import CURVES, FIT, ORDERS
from frequency import SCALES, WHAT as FREQUENCY
from models import CLASSES, random_model, tokens
from timing import AXES, Measured, Row, alternate, command, note_only
from together import PROFILE
from transformer_lens import HookedTransformer

from interp import corpora, encoding
from interp.analyses.frequency import study
from interp.instruments.profile import DimensionProfile
from interp.instruments.scores import ScoreContributions
from interp.passes.reading import observe

D_MODEL = 128
TOKENS = 1_024  # except where the corpus grows
BASE = {"∝ corpus": TOKENS, "∝ context": 64, "∝ layers": 4, "∝ vocabulary": 4_000}
SIZES = {
    "∝ corpus": (1_024, 2_048, 4_096), "∝ context": (64, 128, 256, 512), "∝ layers": (4, 8, 16),
    "∝ vocabulary": (4_000, 8_000, 16_000),
}  # fmt: skip


def analyses(model: HookedTransformer, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    vocabulary = model.cfg.d_vocab
    batches = corpora.batches(model, ids, batch_size=512 // ids.shape[1])
    counts = np.random.default_rng(0).integers(1, 1_000, vocabulary)
    classes = corpora.token_classes(model, CLASSES)
    fit = encoding.fit(model, batches, progress=False)

    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(batch.tokens)

    return {
        "HookedTransformer, with logits": forward,
        PROFILE: lambda: observe(model, batches, DimensionProfile(model, classes), progress=False),
        FREQUENCY: lambda: study(model, batches, unigram=counts, scales=SCALES, progress=False),
        CONTRIBUTIONS: lambda: observe(model, batches, ScoreContributions(model, classes), progress=False),
        FIT: lambda: encoding.fit(model, batches, progress=False),
        CURVES: lambda: encoding.pruning_curve(model, batches, fit=fit, order=ORDERS, progress=False),
        "screen of every neuron, exact for 50": lambda: encoding.frequency_neurons(
            model, batches, unigram=counts, progress=False
        ),
    }


def exponent(sizes: tuple[int, ...], measured: list[Measured]) -> str:
    """The median of the slopes over rounds, with their range."""
    seconds = np.array([measurement.seconds for measurement in measured])
    slopes = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    return f"{np.median(slopes):.2f} ({slopes.min():.2f} to {slopes.max():.2f})"


def rows(quick: bool) -> Iterator[Row]:
    exponents_of: dict[str, dict[str, str]] = {}
    for axis in AXES:
        sizes = SIZES[axis][:2] if quick else SIZES[axis]
        measured: dict[str, list[Measured]] = {}
        for size in sizes:
            n_tokens, length, layers, vocabulary = {**BASE, axis: size}.values()
            config = transformers.GPT2Config(
                n_embd=D_MODEL, n_head=4, n_layer=layers, vocab_size=vocabulary, n_positions=512, eos_token_id=0,
                bos_token_id=0,
            )  # fmt: skip
            with random_model(config) as (model, _):
                seconds = alternate(
                    analyses(model, tokens(n_tokens // length, length, vocabulary)), repeats=1 if quick else 3
                )
            for name, measurement in seconds.items():
                measured.setdefault(name, []).append(measurement)
        for name, several in measured.items():
            exponents_of.setdefault(name, {})[axis] = exponent(sizes, several)
    workload = (
        f"GPT-2 of {BASE['∝ layers']} × {D_MODEL}, {TOKENS:,} tokens in rows of 64, V = 4,000; one grows at a time"
    )
    for name, exponents in exponents_of.items():
        yield note_only(name, workload, "the number of tokens is the same, except where the corpus grows") | exponents


if __name__ == "__main__":
    command(rows, __doc__)

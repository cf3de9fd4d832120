"""Word frequency at 11 scales of b_LN in one pass, against code that runs the model, or its head, once per scale.

`python benchmarks/frequency.py [--quick]`. The peak memory on ten times the text is that of tiny-gpt2 on bundled text.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import transformers
from models import GPT2, random_model, tokens
from timing import Row, agrees, alternate, command, note_only, peak_memory, row
from transformer_lens import HookedTransformer

from interp import corpora
from interp.analyses.frequency import study
from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.head import prediction_head
from interp.passes.reading import observe

SCALES = [i / 10 for i in range(11)]
WHAT = "word frequency, 11 scales of b_LN"
MEMORY = """
import sys, interp
from interp.analyses.frequency import study
from interp.support.paths import BUNDLED
lines = (BUNDLED / "text.txt").read_text(encoding="utf-8").splitlines()[:int(sys.argv[1])]
study(interp.load("tiny-gpt2"), lines * int(sys.argv[2]), scales=[i / 10 for i in range(11)], progress=False)
"""


@torch.no_grad()
def run_per_scale(hf: transformers.GPT2LMHeadModel, rows: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Edit the bias, run transformers and average the softmax, once per scale."""
    bias = hf.transformer.ln_f.bias
    original = bias.data.clone()
    means = []
    for scale in SCALES:
        bias.data = scale * original
        total = torch.zeros(hf.config.vocab_size, dtype=torch.float64)
        for batch in rows.split(batch_size):
            total += hf(batch, use_cache=False).logits.softmax(-1).sum((0, 1))
        means.append(total / rows.numel())
    bias.data = original
    return means


@torch.no_grad()
def cached(model: HookedTransformer, rows: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Run the model with a cache, and the head once per scale on the cached activations."""
    totals = [torch.zeros(model.cfg.d_vocab, dtype=torch.float64) for _ in SCALES]
    for batch in rows.split(batch_size):
        _, cache = model.run_with_cache(batch, return_type=None, names_filter="ln_final.hook_normalized")
        normalized = cache["ln_final.hook_normalized"] * model.ln_final.w
        for total, scale in zip(totals, SCALES, strict=True):
            total += model.unembed(normalized + scale * model.ln_final.b).softmax(-1).sum((0, 1))
    return [total / rows.numel() for total in totals]


def rows(quick: bool) -> Iterator[Row]:
    with random_model(transformers.GPT2Config()) as (model, hf):
        yield intervals(model, tokens(1 if quick else 16, 64 if quick else 128, 50_257), repeats=1 if quick else 5)
        for n, length in ((1, 64),) if quick else ((16, 128), (1, 512)):
            yield from measured(model, hf, tokens(n, length, 50_257), batch_size=n, repeats=1 if quick else 3)
    once, ten = (peak_memory(MEMORY, "200" if quick else "2000", times) for times in ("1", "10"))
    note = f"peak of the process: {once:,.0f} MiB; {ten:,.0f} MiB on ten times the text ({ten / once:.2f} ×)"
    yield note_only(WHAT, "tiny-gpt2, bundled text", note)


def intervals(model: HookedTransformer, ids: torch.Tensor, repeats: int) -> Row:
    """One pass with sums per group of texts, which intervals are computed from, and one with sums over all texts."""
    batches = corpora.batches(model, ids, batch_size=len(ids))
    effect = prediction_head(model).effect("ln").double()
    variants = [Variant(shift=(scale - 1) * effect) for scale in (0.0, 0.5, 1.0)]

    def observed(grouped: bool) -> None:
        observe(model, batches, MeanPredictions(model, variants, grouped=grouped), progress=False)

    seconds = alternate({str(grouped): partial(observed, grouped) for grouped in (True, False)}, repeats=repeats)
    workload = f"{GPT2}, {len(ids)} × {ids.shape[1]} tokens, 3 scales, the pass alone"
    without = ("sums over all texts", seconds["False"])
    return row("sums per group of texts, for intervals", workload, seconds["True"], other=without)


def measured(
    model: HookedTransformer, hf: transformers.GPT2LMHeadModel, ids: torch.Tensor, batch_size: int, repeats: int
) -> Iterator[Row]:
    counts = np.bincount(ids.flatten().numpy(), minlength=model.cfg.d_vocab)
    results = {}

    def ours() -> None:
        effect = study(model, ids, unigram=counts, scales=SCALES, batch_size=batch_size, progress=False)
        results["interp"] = effect.probabilities.arrays["probability"].to_numpy().reshape(len(SCALES), -1)

    @torch.no_grad()
    def forward() -> None:
        for batch in ids.split(batch_size):
            model(batch)

    def others(name: str) -> None:
        results[name] = torch.stack(OTHERS[name](hf if "transformers" in name else model, ids, batch_size)).numpy()

    contestants = {"interp": ours, "forward": forward, **{name: partial(others, name) for name in OTHERS}}
    seconds = alternate(contestants, repeats=repeats)
    for name in OTHERS:
        error = np.abs(results["interp"] / results[name][:, : results["interp"].shape[1]] - 1).max()
        yield row(
            WHAT, f"{GPT2}, {len(ids)} × {ids.shape[1]} tokens", seconds["interp"], other=(name, seconds[name]),
            floor=("HookedTransformer, with logits", seconds["forward"]),
            note=agrees("largest relative difference of q", error, 1e-4),
        )  # fmt: skip


OTHERS = {"transformers, the model once per scale": run_per_scale, "run_with_cache, the head once per scale": cached}

if __name__ == "__main__":
    command(rows, __doc__)

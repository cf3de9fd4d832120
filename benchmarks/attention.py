"""Contributions to all attention scores, against run_with_cache and an array that holds every contribution.

`python benchmarks/attention.py [--quick]`. Reads STS-B's validation sentences from ../shared (or INTERP_SHARED) if they
are there, otherwise the bundled text. The model has BERT-base's shape, random weights and tiny-bert's tokenizer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers
from models import BERT, random_model
from timing import Row, agrees, alternate, command, note_only, peak_memory, row
from transformer_lens import HookedEncoder

import interp
from interp import corpora
from interp.corpora import Batches
from interp.corpora.classes import TokenClasses
from interp.instruments.scores import ScoreContributions

WHAT = "attention contributions, every layer, head and dimension, 4 classes"
STSB = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared")) / "data/stsb/stsb-en-dev.csv"
CORPUS = str(STSB) if STSB.exists() else "bundled"
AT_ONCE = 8  # sentences for which every single contribution fits in memory
MEMORY = """
import sys, interp
from interp import attention, corpora
texts = list(corpora.load(sys.argv[1], limit=int(sys.argv[2])))
attention.score_contributions(interp.load("tiny-bert"), texts * int(sys.argv[3]), progress=False)
"""


@torch.no_grad()
def every_one(model: HookedEncoder, batches: Batches, classes: TokenClasses) -> torch.Tensor:
    """Mean and key-centred mean by class, from C for every query, key, head and dimension."""
    sums = []
    for batch in batches:
        needed = lambda name: name.endswith(("hook_resid_pre", "attn.hook_q"))  # noqa: E731
        _, cache = model.run_with_cache(batch.tokens, one_zero_attention_mask=batch.mask, names_filter=needed)
        one_hot = torch.nn.functional.one_hot(classes(batch.tokens), len(classes.names)) * batch.mask[..., None]
        real = batch.mask.float()
        pairs = torch.einsum("bm,bnc->bmnc", real, one_hot.float())
        for layer, block in enumerate(model.blocks):
            x, q = cache[f"blocks.{layer}.hook_resid_pre"], cache[f"blocks.{layer}.attn.hook_q"]
            C = torch.einsum("bmhd,bnd->bhmnd", torch.einsum("bmhe,hde->bmhd", q, block.attn.W_K), x)
            totals = torch.einsum("bhmnd,bmnc->hcd", C, pairs)
            C = C - torch.einsum("bhmnd,bn->bhmd", C, real)[:, :, :, None] / real.sum(1)[:, None, None, None, None]
            sums.append(
                torch.stack([totals, torch.einsum("bhmnd,bmnc->hcd", C, pairs)]) / pairs.sum((0, 1, 2))[:, None]
            )
    return torch.stack(sums)


def difference(table: pd.DataFrame, naive: torch.Tensor) -> str:
    """The largest difference between interp's means and those of the array, relative to the largest value."""
    errors = []
    table = table[table["key_class"] != "all"]
    for number, column in enumerate(("mean", "centred_mean")):
        expected = naive[:, number].flatten()
        expected = expected[expected.isfinite()].numpy()
        errors.append(np.abs(table[column].to_numpy() - expected).max() / np.abs(expected).max())
    return agrees("largest difference / largest value", max(errors), 1e-4)


def rows(quick: bool) -> Iterator[Row]:
    with random_model(transformers.BertConfig(vocab_size=4096), "tiny-bert") as (model, hf):
        classes = corpora.token_classes(model)
        few = corpora.batches(model, corpora.load(CORPUS, limit=AT_ONCE), batch_size=AT_ONCE)
        many = corpora.batches(model, corpora.load(CORPUS, limit=16 if quick else 300))
        results = {}

        def ours(batches: Batches) -> None:
            observer = ScoreContributions(model, classes)
            interp.observe(model, batches, observer, progress=False)
            results["interp"] = observer.scores

        def naive() -> None:
            results["naive"] = every_one(model, few, classes)

        @torch.no_grad()
        def trunk(batches: Batches) -> None:
            for batch in batches:
                model.encoder_output(batch.tokens, one_zero_attention_mask=batch.mask)

        @torch.no_grad()
        def theirs() -> None:
            for batch in many:
                hf.bert(batch.tokens, attention_mask=batch.mask)

        seconds = alternate(
            {"interp": lambda: ours(few), "naive": naive, "forward": lambda: trunk(few)}, repeats=1 if quick else 5
        )
        yield row(
            WHAT, f"{BERT}, {AT_ONCE} sentences", seconds["interp"],
            other=("run_with_cache, summed over an array of every contribution", seconds["naive"]),
            floor=("HookedEncoder, no head", seconds["forward"]),
            note=difference(results["interp"].table, results["naive"]),
        )  # fmt: skip
        seconds = alternate(
            {"interp": lambda: ours(many), "forward": lambda: trunk(many), "transformers": theirs},
            repeats=1 if quick else 3,
        )
        workload = f"{BERT}, {sum(batch.n_texts for batch in many)} sentences of {Path(CORPUS).name}"
        for name, floor in (("HookedEncoder", seconds["forward"]), ("transformers", seconds["transformers"])):
            yield row(WHAT, workload, seconds["interp"], floor=(f"{name}, no head", floor))
    once, ten = (peak_memory(MEMORY, CORPUS, "50" if quick else "1500", times) for times in ("1", "10"))
    note = f"peak of the process: {once:,.0f} MiB; {ten:,.0f} MiB on ten times the text ({ten / once:.2f} ×)"
    yield note_only(WHAT, "tiny-bert, " + Path(CORPUS).name, note)


if __name__ == "__main__":
    command(rows, __doc__)

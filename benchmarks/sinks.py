"""Attention sinks and writers of massive activations, against a plain script over saved patterns.

`python benchmarks/sinks.py [--quick]`. A GPT-2 of 124M parameters with random weights reads random tokens. A massive
activation is planted in the position embeddings, so that every state has one. The second line of the table gives the
memory for longer rows of tokens. Their patterns, 12 layers × 12 heads × T² × 4 bytes, are only counted, not saved.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
import transformers
from models import CLASSES, GPT2, random_model, tokens
from timing import Row, agrees, alternate, command, note_only, row

from interp import corpora
from interp.analyses.sinks.writers import MassiveWriters
from interp.instruments.massive import MassiveActivations
from interp.instruments.sinks import Sinks
from interp.models.sites import Model, hook_name
from interp.passes.reading import observe

WHAT = "attention sinks and writers of massive activations"
EPSILON = 0.3


@torch.no_grad()
def over_saved_patterns(hf: transformers.PreTrainedModel, ids: torch.Tensor) -> np.ndarray:
    """Mean α of the first position and the share of rows above ε, `[2, layer, head]`, from all patterns at once."""
    saved = [torch.stack(hf.transformer(row[None], output_attentions=True).attentions, 1) for row in ids]
    drawn = torch.cat(saved)[..., 0].double().mean(-1)
    return torch.stack([drawn.mean(0), (drawn > EPSILON).double().mean(0)]).numpy()


def difference(table: pd.DataFrame, plain: np.ndarray) -> str:
    first = table[table["first_position"] == 0]
    means = np.stack([first[name].to_numpy(float).reshape(plain.shape[1:]) for name in ("attention", "rate")])
    return agrees("largest difference of attention and rate", np.abs(means - plain).max(), 1e-6)


def observers(model: Model) -> tuple[Sinks, MassiveActivations, MassiveWriters]:
    return Sinks(model, corpora.token_classes(model, CLASSES)), MassiveActivations(model), MassiveWriters(model)


def rows(quick: bool) -> Iterator[Row]:
    lengths = (128, 256) if quick else (1024, 2048, 4096)
    config = transformers.GPT2Config(attn_implementation="eager", n_positions=max(lengths))
    with random_model(config) as (model, hf):
        with torch.no_grad():
            model.pos_embed.W_pos[0, 5] = hf.transformer.wpe.weight[0, 5] = 5_000.0
        hf.set_attn_implementation("eager")
        ids = tokens(2 if quick else 4, lengths[0], 50_257)
        batches = corpora.batches(model, ids, batch_size=1)
        patterns = [(hook_name(model, "pattern", layer), lambda pattern, hook: None) for layer in range(12)]
        results = {}

        def ours() -> None:
            sinks, massive, writers = observers(model)
            observe(model, batches, sinks, massive, writers, progress=False)
            results["interp"], results["writers"] = sinks.table, writers.table

        def plain() -> None:
            results["plain"] = over_saved_patterns(hf, ids)

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                model.run_with_hooks(batch.tokens, fwd_hooks=patterns, stop_at_layer=12)

        contestants = {"interp": ours, "plain": plain, "forward": forward}
        seconds = alternate(contestants, repeats=1 if quick else 3)
        assert len(results["writers"])
        yield row(
            WHAT, f"{GPT2}, {len(ids)} × {ids.shape[1]} tokens", seconds["interp"],
            other=("transformers, all patterns saved, then summed", seconds["plain"]),
            floor=("HookedTransformer with patterns, no head", seconds["forward"]),
            note=difference(results["interp"], results["plain"]),
        )  # fmt: skip
        yield note_only(
            WHAT, f"{GPT2}, one row of {', '.join(f'{length:,}' for length in lengths)} tokens", memory(model, lengths)
        )


def memory(model: Model, lengths: Sequence[int]) -> str:
    """The memory that a row of each length adds to the process, and the memory that its patterns alone would take."""
    added = []
    for length in lengths:
        batches = corpora.batches(model, tokens(1, length, 50_257), batch_size=1)
        contestant = {"interp": partial(observe, model, batches, *observers(model), progress=False)}
        added.append(alternate(contestant, repeats=0)["interp"].memory)
    saved = [12 * 12 * length**2 * 4 / 2**20 for length in lengths]
    ours, theirs = (" / ".join(f"{mebibytes:,.0f}" for mebibytes in values) for values in (added, saved))
    return f"interp adds {ours} MiB; the patterns would take {theirs} MiB"


if __name__ == "__main__":
    command(rows, __doc__)

"""Attention sinks and writers of massive activations, against a plain script over saved patterns.

`python benchmarks/sinks.py [--quick]`. GPT-2 of 124M parameters, random weights and tokens, with a massive activation
planted in the position embeddings, so that every state has one.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
import transformers
from models import CLASSES, GPT2, random_model, tokens
from timing import Row, agrees, alternate, command, row

from interp import corpora
from interp.attention.massive import MassiveActivations
from interp.attention.sinks.positions import Sinks
from interp.attention.sinks.writers import MassiveWriters
from interp.models.sites import hook_name
from interp.run.observers import observe

WHAT = "attention sinks and writers of massive activations"
EPSILON = 0.3


@torch.no_grad()
def over_saved_patterns(hf: transformers.PreTrainedModel, ids: torch.Tensor) -> np.ndarray:
    """Mean α of the first position and the share of rows above ε, `[2, layer, head]`, from every pattern at once."""
    saved = [torch.stack(hf.transformer(one[None], output_attentions=True).attentions, 1) for one in ids]
    drawn = torch.cat(saved)[..., 0].double().mean(-1)
    return torch.stack([drawn.mean(0), (drawn > EPSILON).double().mean(0)]).numpy()


def difference(table: pd.DataFrame, plain: np.ndarray) -> str:
    first = table[table["first_position"] == 0]
    found = np.stack([first[name].to_numpy(float).reshape(plain.shape[1:]) for name in ("attention", "rate")])
    return agrees("largest difference of attention and rate", np.abs(found - plain).max(), 1e-6)


def rows(quick: bool) -> Iterator[Row]:
    config = transformers.GPT2Config(attn_implementation="eager")
    with random_model(config) as (model, hf):
        with torch.no_grad():
            model.pos_embed.W_pos[0, 5] = hf.transformer.wpe.weight[0, 5] = 5_000.0
        hf.set_attn_implementation("eager")
        ids = tokens(2, 128, 50_257) if quick else tokens(4, 1024, 50_257)
        batches = corpora.batches(model, ids, batch_size=1)
        patterns = [(hook_name(model, "pattern", layer), lambda pattern, hook: None) for layer in range(12)]
        found = {}

        def ours() -> None:
            observers = (
                Sinks(model, corpora.token_classes(model, CLASSES)),
                MassiveActivations(model),
                MassiveWriters(model),
            )
            observe(model, batches, *observers, progress=False)
            found["interp"], found["writers"] = observers[0].table, observers[2].table

        def plain() -> None:
            found["plain"] = over_saved_patterns(hf, ids)

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                model.run_with_hooks(batch.tokens, fwd_hooks=patterns, stop_at_layer=12)

        contestants = {"interp": ours, "plain": plain, "forward": forward}
        seconds = alternate(contestants, repeats=1 if quick else 3)
    assert len(found["writers"])
    yield row(
        WHAT, f"{GPT2}, {len(ids)} × {ids.shape[1]} tokens", seconds["interp"],
        other=("transformers, all patterns saved, then summed", seconds["plain"]),
        floor=("HookedTransformer with patterns, no head", seconds["forward"]),
        note=difference(found["interp"], found["plain"]),
    )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)

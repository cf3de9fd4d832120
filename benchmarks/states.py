"""Hidden states at an appended EOS, against other libraries on the same sentences.

`python benchmarks/states.py [--quick]`. Causal models with random weights read the bundled minimal pairs, tokenised by
tiny-gpt2's tokenizer. All contestants read the same right-padded batches, without a mask, which positions before the
padding do not need.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import transformers
from models import GPT2, random_model
from nnsight import NNsight
from timing import Row, agrees, alternate, command, row
from transformer_lens import HookedTransformer

from interp import probing
from interp.analyses.probing.states import batches_of
from interp.corpora import pairs
from interp.corpora.batching import Batch
from interp.corpora.positions import state_rows

STATES = "every hidden state at an appended EOS"


@torch.no_grad()
def by_transformers(hf: transformers.PreTrainedModel, batches: list[Batch]) -> list[torch.Tensor]:
    return [
        torch.stack([state[_last(batch)] for state in hf.base_model(
            batch.tokens, output_hidden_states=True, use_cache=False
        ).hidden_states]) for batch in batches
    ]  # fmt: skip


@torch.no_grad()
def by_cache(model: HookedTransformer, batches: list[Batch]) -> list[torch.Tensor]:
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.cfg.n_layers)]
    names.append(f"blocks.{model.cfg.n_layers - 1}.hook_resid_post")
    states = []
    for batch in batches:
        _, cache = model.run_with_cache(batch.tokens, stop_at_layer=model.cfg.n_layers, names_filter=names)
        states.append(torch.stack([cache[name][_last(batch)] for name in names]))
    return states


@torch.no_grad()
def by_nnsight(traced: NNsight, batches: list[Batch]) -> list[torch.Tensor]:
    stacked = []
    for batch in batches:
        where = _last(batch)
        with traced.trace(input_ids=batch.tokens, use_cache=False):
            states = [traced.h[0].input[where].save()]
            for block in traced.h:
                states.append(block.output[where].save())
            states.save()
        stacked.append(torch.stack(list(states)))
    return stacked


def _last(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(batch.tokens)), batch.mask.sum(1) - 1


def states(name: str, config: transformers.PretrainedConfig, n: int, repeats: int) -> Iterator[Row]:
    table = pairs.generate(n_per_task=n)
    with random_model(config, "tiny-gpt2") as (model, hf):
        sentences = table[["sentence_good", "sentence_bad"]].to_numpy().ravel().tolist()
        rows = state_rows(model, sentences, "eos", bos=False)
        numbered = list(batches_of(model, rows))
        batches = [batch for _, batch in numbered]
        traced = NNsight(hf.base_model)
        results = {}

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                hf.base_model(batch.tokens, use_cache=False)

        @torch.no_grad()
        def hooked() -> None:
            for batch in batches:
                model(batch.tokens, stop_at_layer=model.cfg.n_layers)

        def ours() -> None:
            results["interp"] = probing.collect(model, table, bos=False, progress=False)

        def keep(name: str, by: object, subject: object) -> None:
            results[name] = by(subject, batches)

        methods = {
            "transformers, output_hidden_states": (by_transformers, hf),
            "run_with_cache": (by_cache, model),
            "nnsight, trace": (by_nnsight, traced),
        }
        contestants = {"interp": ours, "transformers": forward, "HookedTransformer": hooked}
        for method in methods:
            contestants[method] = partial(keep, method, *methods[method])
        seconds = alternate(contestants, repeats=repeats)
        here = np.stack([results["interp"].load(state) for state in results["interp"].states]).reshape(
            model.cfg.n_layers + 1, -1, model.cfg.d_model
        )
        workload = f"{name}, {len(sentences):,} sentences"
        for name in methods:
            differ = 0.0
            for (numbers, _), part in zip(numbered, results[name], strict=True):
                # transformers' last hidden state comes after the final norm
                blocks = slice(0, -1) if "transformers" in name else slice(None)
                differ = max(differ, float(np.abs(here[:, numbers][blocks] - part.numpy()[blocks]).max()))
            yield row(
                STATES, workload, seconds["interp"], other=(name, seconds[name]),
                floor=("transformers, no head", seconds["transformers"]),
                note=agrees("largest difference", differ, 1e-4),
            )  # fmt: skip
        yield row(
            STATES, workload, seconds["interp"], floor=("HookedTransformer, no head", seconds["HookedTransformer"])
        )


def rows(quick: bool) -> Iterator[Row]:
    small = transformers.GPT2Config(vocab_size=4_096, n_embd=192, n_layer=6, n_head=6, eos_token_id=0, bos_token_id=0)
    large = transformers.GPT2Config(vocab_size=4_096, eos_token_id=0, bos_token_id=0)
    yield from states("tiny-gpt2's shape", small, 4 if quick else 60, 1 if quick else 5)
    yield from states(GPT2, large, 1 if quick else 8, 1 if quick else 3)


if __name__ == "__main__":
    command(rows, __doc__)

"""Hidden states at an appended EOS, and the log-probabilities of sentences, against peers on the same sentences.

`python benchmarks/states.py [--quick]`. The bundled minimal pairs, tokenised by the bundled models' tokenizers; random
weights. All read the same right-padded batches of causal models, without a mask, which real
positions do not need; minicons makes its own batches.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import transformers
from minicons import scorer
from models import BERT, GPT2, random_model
from nnsight import NNsight
from timing import Row, agrees, alternate, command, row
from transformer_lens import HookedTransformer

from interp import probing
from interp.corpora import pairs
from interp.corpora.batching import Batch
from interp.models.sites import Model
from interp.probing.accuracy import sentence_log_probability
from interp.probing.states import batches_of, state_rows

STATES = "every hidden state at an appended EOS"
SCORES = "log-probability of sentences"


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
    found = []
    for batch in batches:
        _, cache = model.run_with_cache(batch.tokens, stop_at_layer=model.cfg.n_layers, names_filter=names)
        found.append(torch.stack([cache[name][_last(batch)] for name in names]))
    return found


@torch.no_grad()
def by_nnsight(traced: NNsight, batches: list[Batch]) -> list[torch.Tensor]:
    found = []
    for batch in batches:
        where = _last(batch)
        with traced.trace(input_ids=batch.tokens, use_cache=False):
            states = [traced.h[0].input[where].save()]
            for block in traced.h:
                states.append(block.output[where].save())
            states.save()
        found.append(torch.stack(list(states)))
    return found


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
        found = {}

        @torch.no_grad()
        def forward() -> None:
            for batch in batches:
                hf.base_model(batch.tokens, use_cache=False)

        @torch.no_grad()
        def hooked() -> None:
            for batch in batches:
                model(batch.tokens, stop_at_layer=model.cfg.n_layers)

        def ours() -> None:
            found["interp"] = probing.collect(model, table, bos=False, progress=False)

        def keep(name: str, by: object, of: object) -> None:
            found[name] = by(of, batches)

        others = {
            "transformers, output_hidden_states": (by_transformers, hf),
            "run_with_cache": (by_cache, model),
            "nnsight, trace": (by_nnsight, traced),
        }
        contestants = {"interp": ours, "transformers": forward, "HookedTransformer": hooked}
        contestants |= {name: lambda name=name: keep(name, *others[name]) for name in others}
        seconds = alternate(contestants, repeats=repeats)
        here = np.stack([found["interp"].load(state) for state in found["interp"].states]).reshape(
            model.cfg.n_layers + 1, -1, model.cfg.d_model
        )
        on = f"{name}, {len(sentences):,} sentences"
        for name in others:
            differ = 0.0
            for (numbers, _), part in zip(numbered, found[name], strict=True):
                # transformers' last hidden state is normalised
                blocks = slice(0, -1) if "transformers" in name else slice(None)
                differ = max(differ, float(np.abs(here[:, numbers][blocks] - part.numpy()[blocks]).max()))
            yield row(
                STATES, on, seconds["interp"], other=(name, seconds[name]),
                floor=("transformers, no head", seconds["transformers"]),
                note=agrees("largest difference", differ, 1e-4),
            )  # fmt: skip
        yield row(STATES, on, seconds["interp"], floor=("HookedTransformer, no head", seconds["HookedTransformer"]))


def scores(quick: bool) -> Iterator[Row]:
    table = pairs.generate(n_per_task=1 if quick else 5)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    gpt2 = transformers.GPT2Config(vocab_size=4_096, eos_token_id=0, bos_token_id=0)
    with random_model(gpt2, "tiny-gpt2") as (model, hf):
        theirs = scorer.IncrementalLMScorer(hf, "cpu", tokenizer=model.tokenizer)

        def minicons() -> np.ndarray:
            return np.concatenate(
                [
                    theirs.sequence_score(
                        sentences[i : i + 32], reduction=lambda log_p: log_p.sum(0).item(), bow_correction=False
                    )
                    for i in range(0, len(sentences), 32)
                ]
            )

        yield scored(GPT2, model, sentences, "minicons, 32 at once", minicons, 1 if quick else 3)
    with random_model(transformers.BertConfig(vocab_size=4_096), "tiny-bert") as (model, hf):
        few = sentences[: len(sentences) // 4]
        yield scored(
            BERT, model, few, "transformers, a sentence at once", lambda: masked_in_turn(hf, model.tokenizer, few),
            1 if quick else 3,
        )  # fmt: skip


@torch.no_grad()
def masked_in_turn(
    hf: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, sentences: list[str]
) -> np.ndarray:
    """Pseudo-log-likelihoods: each sentence a batch, with a row for each of its tokens."""
    found = []
    for sentence in sentences:
        ids = torch.tensor(tokenizer(sentence)["input_ids"])
        inner = torch.arange(1, len(ids) - 1)
        masked = ids.repeat(len(inner), 1)
        masked[torch.arange(len(inner)), inner] = tokenizer.mask_token_id
        log_p = hf(masked).logits[torch.arange(len(inner)), inner].log_softmax(-1)
        found.append(float(log_p[torch.arange(len(inner)), ids[1:-1]].sum()))
    return np.array(found)


def scored(
    name: str, model: Model, sentences: list[str], other: str, peer: Callable[[], np.ndarray], repeats: int
) -> Row:
    found = {}

    def ours() -> None:
        found["interp"] = sentence_log_probability(model, sentences, bos=True, progress=False)

    def theirs() -> None:
        found["other"] = peer()

    seconds = alternate({"interp": ours, "other": theirs}, repeats=repeats)
    differ = np.abs(found["interp"] - found["other"]).max()
    return row(
        SCORES, f"{name}, {len(sentences)} sentences", seconds["interp"], other=(other, seconds["other"]),
        note=agrees("largest difference, nats", float(differ), 1e-3),
    )  # fmt: skip


def rows(quick: bool) -> Iterator[Row]:
    small = transformers.GPT2Config(vocab_size=4_096, n_embd=192, n_layer=6, n_head=6, eos_token_id=0, bos_token_id=0)
    large = transformers.GPT2Config(vocab_size=4_096, eos_token_id=0, bos_token_id=0)
    yield from states("tiny-gpt2's shape", small, 4 if quick else 60, 1 if quick else 5)
    yield from states(GPT2, large, 1 if quick else 8, 1 if quick else 3)
    yield from scores(quick)


if __name__ == "__main__":
    command(rows, __doc__)

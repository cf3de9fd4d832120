"""Models, texts and commands that several tests use. All biases are random, because zero biases test nothing."""

import dataclasses
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers

from interp.results.dense import Dense
from interp.results.result import Result
from interp.testing import randomise

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("INTERP_SHARED", ROOT.parent / "shared"))
D_VOCAB = 67  # the vocabulary of `interp.testing.toy_tokenizer`
SIZES: dict[str, Any] = {"vocab_size": D_VOCAB, "max_position_embeddings": 24, "hidden_size": 16}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}

HF_MODELS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=D_VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=4)
    ),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5)),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            **{k: v for k, v in SIZES.items() if k != "intermediate_size"}, ffn_dim=64, word_embed_proj_dim=16
        )
    ),
    "gptj": lambda: transformers.GPTJForCausalLM(
        transformers.GPTJConfig(vocab_size=D_VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=4, rotary_dim=2)
    ),
    "gpt_neo": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=D_VOCAB,
            max_position_embeddings=24,
            hidden_size=16,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=6,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, num_key_value_heads=2)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
}


TOY: dict[str, Any] = {
    "n_layers": 2, "d_model": 16, "n_ctx": 24, "d_head": 4, "n_heads": 4, "d_mlp": 64, "d_vocab": D_VOCAB,
    "act_fn": "gelu", "normalization_type": "LN", "seed": 0, "device": "cpu",
}  # fmt: skip


def toy(tokenizer: Any = None, *, encoder: bool = False, **options: Any) -> Any:
    """A `HookedTransformer(cfg)` or `HookedEncoder(cfg)` as a user would make it, with random weights."""
    from transformer_lens import HookedEncoder, HookedTransformer, HookedTransformerConfig

    cfg = HookedTransformerConfig(**TOY | options | ({"attention_dir": "bidirectional"} if encoder else {}))
    if not encoder:
        model: Any = HookedTransformer(cfg)
        randomise(model)
    else:
        model = HookedEncoder(cfg)  # its weights are uninitialised
        with torch.no_grad():
            for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
                parameter.copy_(0.3 * noise + float(name.endswith(".w")))
    model.tokenizer = tokenizer
    return model


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line of interp, or of `tools/train.py` if it begins with `train`; returns the exit code."""
    from training.command import main as train

    from interp.cli import main

    return train(arguments[1:]) if arguments[0] == "train" else main(arguments)


TINY: dict[str, Any] = dict(
    tokens=5000, context=32, d_model=16, n_layers=2, n_heads=2, batch_size=8, learning_rate=1e-2, threads=1
)


def paragraphs(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    nouns = ["girl", "dog", "river", "teacher", "lamp", "garden", "winter", "sailor", "letter", "horse"]
    verbs = ["sees", "likes", "follows", "finds", "remembers", "forgets"]

    def sentence() -> str:
        return f"The {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)} of {draw.randint(0, 99)}."

    return [" ".join(sentence() for _ in range(draw.randint(1, 4))) for _ in range(count)]


TEXTS, HELD_OUT = paragraphs(200, seed=0), paragraphs(20, seed=1)


def every_table(result: Result) -> dict[str, pd.DataFrame]:
    """The tables of a result by name, as tidy tables."""
    return result.tables | {name: dense.table for name, dense in result.dense.items()}


def with_tables(result: Any, **tables: pd.DataFrame) -> Any:
    """The result with some tables replaced by tidy ones."""
    dense = {item.name: item.metadata for item in dataclasses.fields(result) if item.type is Dense}
    made = {name: Dense.of_table(tables[name], **dense[name]) for name in dense.keys() & tables}
    return dataclasses.replace(result, **(tables | made))

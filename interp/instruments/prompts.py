"""Prompts: the beginnings of human texts, with their continuations."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.corpora import load
from interp.corpora.frames import frame, settled_bos, tokenizer_of, unframed
from interp.corpora.sources import Corpus, Source
from interp.corpora.tokens import Counted, tokens_of
from interp.corpora.unigrams import tokenizer_hash
from interp.instruments.decoders import NEW_TOKENS, PROMPT_TOKENS, PROMPTS
from interp.models.sites import Model, check_model
from interp.support.checks import check_seed, whole_number
from interp.support.choices import Bos
from interp.support.words import count

__all__ = ["Prompts", "check_prompts", "prompts"]
__dir__ = __all__.copy


@dataclass(frozen=True, eq=False)
class Prompts:
    """Beginnings of human texts as token ids, and their continuations. All prompts have the same length.

    `ids` begin with the beginning-of-sequence token if that was asked for. `settings` says where they come from.
    """

    ids: Int[np.ndarray, "n pos"]
    human: Int[np.ndarray, "n new"]
    corpus: Corpus
    settings: dict[str, Any]


def prompts(
    model: Model,
    text: Source,
    *,
    n: int = PROMPTS,
    prompt_tokens: int = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    limit: int | None = None,
    column: str | None = None,
    bos: Bos = "auto",
    seed: int = 0,
) -> Prompts:
    """Draw prompts: the first tokens of random texts that are long enough to include a human continuation.

    The whole corpus is read, and all texts that are long enough are equally likely to be drawn. Prompts are in the
    order of the corpus.

    Args:
        text: anything `interp.corpora.load` takes. Texts shorter than `prompt_tokens + new_tokens` tokens are left out.
        n: the number of prompts.
        prompt_tokens: the number of tokens per prompt, without the beginning-of-sequence token.
        new_tokens: the number of tokens of a continuation.
        limit, column: see `interp.corpora.load`.
        bos: put the beginning-of-sequence token before each prompt. `"auto"`: see `interp.corpora.batches`.
        seed: the seed for drawing texts.

    Raises ValueError if fewer than `n` texts are long enough, if lengths are too small or exceed the context, for a
    model without a tokenizer, for a tokenizer without a beginning-of-sequence token if that is asked for, and for a
    seed below 0. Raises TypeError for numbers that are not whole.

    Examples:
        >>> import interp
        >>> found = prompts(interp.load("tiny-gpt2"), "bundled", n=3)
        >>> found.ids.shape, found.human.shape
        ((3, 11), (3, 50))
    """
    check_model(model)
    seed = check_seed(seed)
    n, prompt_tokens = whole_number(n, "n", least=1), whole_number(prompt_tokens, "prompt_tokens", least=1)
    if (new_tokens := whole_number(new_tokens, "new_tokens")) < 4:
        raise ValueError(f"new_tokens must be at least 4, since diversity counts 4-grams; found {new_tokens}")
    n_tokens = prompt_tokens + new_tokens
    tokenizer = tokenizer_of(model)
    before, _ = frame(model, bos).alone
    if len(before) + n_tokens > model.cfg.n_ctx:
        lengths = f"prompts of {prompt_tokens + len(before)} tokens and {new_tokens} new tokens"
        raise ValueError(f"{lengths} exceed this model's context of {model.cfg.n_ctx}; ask for fewer")
    corpus = load(text, limit=limit, column=column)
    texts = (ids[unframed(ids, before, [])] for ids in tokens_of(corpus, tokenizer))
    drawn = _drawn((ids[:n_tokens] for ids in texts if len(ids) >= n_tokens), n, seed)
    if len(drawn) < n:
        long = f"{count(len(drawn), 'text')} of at least {n_tokens} tokens"
        instead = "ask for fewer (n) or shorter ones (prompt_tokens), or give more text"
        raise ValueError(f"{corpus.name} has {long}, expected {n}; {instead}")
    ids = np.array(drawn, dtype=np.int64)
    first = np.tile(np.array(before, dtype=np.int64), (n, 1))
    settings = {
        "corpus": corpus.name, "fingerprint": corpus.fingerprint, "limit": corpus.limit,
        "separator": corpus.separator, "tokenizer": tokenizer_hash(tokenizer), "n_prompts": n,
        "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "bos": settled_bos(model, bos), "prompt_seed": seed,
        "unknown_share": Counted.of(ids, tokenizer).checked(tokenizer, f"the prompts from {corpus.name}").share,
    }  # fmt: skip
    return Prompts(np.concatenate([first, ids[:, :prompt_tokens]], 1), ids[:, prompt_tokens:], corpus, settings)


def check_prompts(model: Model, prompts: Prompts) -> None:
    """Raise ValueError if these prompts were made with another tokenizer."""
    own_hash = model.tokenizer is not None and tokenizer_hash(model.tokenizer)
    if own_hash and prompts.settings.get("tokenizer", own_hash) != own_hash:
        raise ValueError("these prompts were made with another tokenizer; make them with this model's")


def _drawn(rows: Iterable[list[int]], n: int, seed: int) -> list[list[int]]:
    """n random rows, all equally likely, in their original order, by Algorithm R of Vitter (1985), which stores n
    rows."""
    rng = np.random.default_rng(seed)
    reservoir: dict[int, tuple[int, list[int]]] = {}
    for number, row in enumerate(rows):
        place = number if number < n else int(rng.integers(number + 1))
        if place < n:
            reservoir[place] = number, row
    return [row for _, row in sorted(reservoir.values())]

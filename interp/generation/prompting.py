"""Prompts cut from a corpus, with what people wrote after them."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.checks import whole_number
from interp.corpora import load
from interp.corpora.sentences import tokenizer_of
from interp.corpora.sources import Corpus, Source
from interp.corpora.tokens import Unknown, tokens_of
from interp.corpora.unigrams import tokenizer_hash
from interp.generation.decoding import NEW_TOKENS
from interp.models.sites import Model, check_model

__all__ = ["Prompts", "prompts"]


@dataclass(frozen=True, eq=False)
class Prompts:
    """Beginnings of human texts as token ids, and how each went on; all of the same length.

    `ids` begin with the beginning-of-sequence token where one was asked for; `settings` says where they come from.
    """

    ids: Int[np.ndarray, "n pos"]
    human: Int[np.ndarray, "n new"]
    corpus: Corpus
    settings: dict[str, Any]


def prompts(
    model: Model,
    text: Source,
    *,
    n: int = 100,
    prompt_tokens: int = 10,
    new_tokens: int = NEW_TOKENS,
    limit: int | None = None,
    column: str | None = None,
    bos: bool = False,
) -> Prompts:
    """The first tokens of the first texts that are long enough to hold a human continuation too.

    Args:
        text: anything `interp.corpora.load` takes. Texts shorter than `prompt_tokens + new_tokens` tokens are left out.
        n: how many prompts.
        prompt_tokens: of each, without the beginning-of-sequence token.
        new_tokens: of a continuation.
        limit, column: see `interp.corpora.load`.
        bos: put the beginning-of-sequence token before each.

    Raises ValueError for fewer than `n` texts that are long enough, lengths too small or past the context, a model
    without a tokenizer, or a tokenizer without a beginning-of-sequence token where one is asked for; TypeError for
    numbers that are not whole.
    """
    check_model(model)
    n, prompt_tokens = whole_number(n, "n", least=1), whole_number(prompt_tokens, "prompt_tokens", least=1)
    if (new_tokens := whole_number(new_tokens, "new_tokens")) < 4:
        raise ValueError(f"new_tokens must be at least 4, since diversity counts 4-grams; found {new_tokens}")
    whole = prompt_tokens + new_tokens
    if bos + whole > model.cfg.n_ctx:
        lengths = f"{prompt_tokens + bos} tokens of a prompt and {new_tokens} new ones"
        raise ValueError(f"{lengths} are past this model's context of {model.cfg.n_ctx}; ask for fewer")
    tokenizer = tokenizer_of(model)
    if bos and tokenizer.bos_token_id is None:
        raise ValueError("this model's tokenizer has no beginning-of-sequence token; leave bos out")
    corpus = load(text, limit=limit, column=column)
    found = list(islice((ids[:whole] for ids in tokens_of(corpus, tokenizer) if len(ids) >= whole), n))
    if len(found) < n:
        long = f"{len(found)} texts of at least {whole} tokens"
        raise ValueError(f"{corpus.name} has {long}, expected {n}; lower n or the lengths, or give more text")
    ids = np.array(found, dtype=np.int64)
    first = np.full((n, int(bos)), tokenizer.bos_token_id if bos else 0, dtype=np.int64)
    settings = {
        "corpus": corpus.name, "fingerprint": corpus.fingerprint, "limit": corpus.limit,
        "separator": corpus.separator, "tokenizer": tokenizer_hash(tokenizer), "n_prompts": n,
        "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "bos": bos,
        "unknown_share": Unknown.of(ids, tokenizer, f"the prompts from {corpus.name}").share,
    }  # fmt: skip
    return Prompts(np.concatenate([first, ids[:, :prompt_tokens]], 1), ids[:, prompt_tokens:], corpus, settings)

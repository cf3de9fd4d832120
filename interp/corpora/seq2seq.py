"""Pairs of texts for encoder-decoders (BART, T5): the encoder reads the source, the decoder writes the target."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from interp.corpora.batching import Batch, Batches
from interp.corpora.frames import tokenizer_of
from interp.corpora.sentences import encode, padded
from interp.corpora.tokens import Counted
from interp.corpora.unigrams import tokenizer_hash
from interp.models.sites import Model, view
from interp.support.checks import check_token_ids, list_of_strings, whole_number

__all__ = ["teacher_forced"]
__dir__ = __all__.copy


def teacher_forced(model: Model, sources: Sequence[str], targets: Sequence[str], *, batch_size: int = 16) -> Batches:
    """Make batches in which the decoder reads the true target, and predicts each of its tokens from the tokens before
    it and from the source.

    Both texts are framed as by the tokenizer (BART: `<s> … </s>`, T5: `… </s>`). The decoder's input is the model's
    `decoder_start_token_id` followed by the target shifted by one. Every token of the target is read.

    Args:
        sources, targets: equally many texts, in the same order.
        batch_size: pairs per batch.

    Raises:
        ValueError: the model is not an encoder-decoder or has no tokenizer; there are no pairs; a source has no target;
            or a text has no tokens or is longer than the context.
        TypeError: a text is not a string.

    Examples:
        >>> import transformers
        >>> from interp import encoding
        >>> from interp.testing import toy_bridge
        >>> sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        >>> sizes |= {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 24}
        >>> heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        >>> bart = toy_bridge(transformers.BartConfig(vocab_size=67, **sizes, **heads))
        >>> pairs = teacher_forced(bart, ["w1 w2 w3", "w4"], ["w5 w6", "w7 w8 w9"])
        >>> encoding.fit(bart, pairs, progress=False).alpha.shape  # mean probabilities, by token
        (67,)
    """
    if not view(model).reads_source:
        raise ValueError(
            "pairs of a source and a target are for encoder-decoders; use interp.corpora.batches for other models"
        )
    tokenizer = tokenizer_of(model)
    sources, targets = list_of_strings(sources, "sources"), list_of_strings(targets, "targets")
    if len(sources) != len(targets) or not sources:
        raise ValueError(f"expected a target for each source, found {len(sources)} sources and {len(targets)} targets")
    size = whole_number(batch_size, "batch_size", least=1)
    read = list(tokenizer(sources, verbose=False)["input_ids"])
    written = list(tokenizer(targets, verbose=False)["input_ids"])
    start = view(model).wrapped.config.decoder_start_token_id
    for side, texts, rows in (("source", sources, read), ("target", targets, written)):
        for text, ids in zip(texts, rows, strict=True):
            if not 1 <= len(ids) <= model.cfg.n_ctx:
                expected = f"expected 1 … {model.cfg.n_ctx}"
                raise ValueError(f"the {side} {text[:40]!r} has {len(ids)} tokens; {expected}")
    largest = max(max(map(max, read)), max(map(max, written)))
    check_token_ids(largest, model.cfg.d_vocab, "the pairs have")
    pad_id = tokenizer.pad_token_id or 0
    ids = np.concatenate(encode(tokenizer, [*sources, *targets]))
    counted = Counted.of(ids, tokenizer).checked(tokenizer, "the pairs")

    def batches() -> Iterator[Batch]:
        for first in range(0, len(read), size):
            source, source_mask = padded(read[first : first + size], pad_id)
            answer, mask = padded(written[first : first + size], pad_id)
            tokens = answer.roll(1, 1)
            tokens[:, 0] = start
            labels = answer.where(mask.bool(), -1)
            stretches = torch.arange(first, first + len(answer))
            batch = Batch(tokens, mask, mask.bool(), labels, len(answer), source, source_mask, stretches)
            yield batch.to(model.W_U.device)

    fingerprint = xxhash.xxh3_128(repr([sources, targets]).encode()).hexdigest()
    settings: dict[str, Any] = {
        "layout": "pairs", "context": max(map(len, written)), "batch_size": size, "corpus": "pairs",
        "fingerprint": fingerprint, "tokenizer": tokenizer_hash(tokenizer), "largest_id": largest,
    }  # fmt: skip
    return Batches(settings, len(sources), batches, tokenizer=tokenizer, counted=lambda: counted)

"""Does a model give the grammatical sentence of a minimal pair the higher probability?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from interp.checks import check_token_ids, list_of_strings
from interp.corpora.pairs import check_pairs
from interp.models import check_weights
from interp.models.running import HooksOfOthers, hooks_of_others, running
from interp.models.sites import Model, check_model, check_vocabulary, is_encoder, trunk_output

_LOGITS_AT_ONCE = 2**21  # more are slower on a CPU
_TOKENS_AT_ONCE = 8_192


@torch.no_grad()
def sentence_log_probability(
    model: Model, sentences: Sequence[str], *, bos: bool | None = None, progress: bool = True
) -> Float[np.ndarray, " sentence"]:
    """The log-probability of each sentence, in nats.

    Causal models: `Σ_t log p(w_t | w_<t)`. Encoders: the pseudo-log-likelihood `Σ_t log p(w_t | w_∖t)`, each token
    masked in turn (Salazar et al. 2020, ACL, 2699-2712).

    Args:
        bos: put the beginning-of-sequence token first, so that the first token is scored too. By default what
            TransformerLens knows of the model (`cfg.default_prepend_bos`); without it the first token is
            unscored. An encoder reads `[CLS] … [SEP]`.

    Raises:
        ValueError: a model without tokenizer (or an encoder without `[MASK]`), a sentence without a token to score,
            or one longer than the context, no sentence, a tokenizer of another model.
        TypeError: what is no model, or no list of strings.
    """
    check_model(model)
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read sentences; set model.tokenizer")
    sentences = list_of_strings(sentences, "sentences")
    check_vocabulary(model)
    check_weights(model)
    hooks = hooks_of_others(model)
    if is_encoder(model):
        return _pseudo_log_likelihood(model, sentences, hooks, progress)
    bos = model.cfg.default_prepend_bos if bos is None else bos
    first = [model.tokenizer.bos_token_id] if bos else []
    if None in first:
        raise ValueError("this model's tokenizer has no beginning-of-sequence token; give bos=False")
    encoded = model.tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    rows = [first + ids for ids in encoded]
    for sentence, row in zip(sentences, rows, strict=True):
        if not 2 <= len(row) <= model.cfg.n_ctx:
            raise ValueError(f"{sentence[:60]!r} has {len(row)} tokens; expected 2 … {model.cfg.n_ctx}")
    check_token_ids(max(map(max, rows)), model.cfg.d_vocab, "the sentences have")
    scores = np.zeros(len(rows))
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="scoring") as bar:
        start = 0
        while start < len(order):
            size = max(1, _LOGITS_AT_ONCE // (len(rows[order[start]]) * model.W_U.shape[1]))
            chosen = order[start : start + size]
            scores[chosen] = _scores(model, [rows[i] for i in chosen], hooks).cpu().numpy()
            start += size
            bar.update(len(chosen))
    if not np.isfinite(scores).all():
        raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
    return scores


def _scores(model: Model, rows: list[list[int]], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    """Right-padded: a causal model's real positions do not see the padding."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.W_U.device)
    lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
    mask = (torch.arange(width, device=tokens.device) < lengths[:, None]).long()
    left = model.tokenizer.padding_side == "left"
    with running(model, expected=hooks):
        logits = model(tokens, attention_mask=mask if left else None)[:, :-1]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(wide, tokens[:, 1:].flatten(), reduction="none")
    return -(nll.view(len(rows), -1).double() * mask[:, 1:]).sum(1)


def _pseudo_log_likelihood(
    model: Model, sentences: list[str], hooks: HooksOfOthers, progress: bool
) -> Float[np.ndarray, " sentence"]:
    tokenizer = model.tokenizer
    if tokenizer.mask_token_id is None:
        raise ValueError("this encoder's tokenizer has no [MASK] token, so no token of a sentence can be scored")
    encoded = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    for sentence, ids in zip(sentences, encoded, strict=True):
        if not 1 <= len(ids) <= model.cfg.n_ctx - 2:
            raise ValueError(f"{sentence[:60]!r} has {len(ids)} tokens; expected 1 … {model.cfg.n_ctx - 2}")
    check_token_ids(max(map(max, encoded)), model.cfg.d_vocab, "the sentences have")
    scores = np.zeros(len(encoded))
    lengths = np.array([len(ids) for ids in encoded])
    with tqdm(total=int(lengths.sum()), unit="token", disable=None if progress else True, desc="scoring") as bar:
        for length in np.unique(lengths):
            of_length = np.flatnonzero(lengths == length)
            step = max(1, _TOKENS_AT_ONCE // int(length + 2) // int(length))
            for start in range(0, len(of_length), step):
                chosen = of_length[start : start + step]
                scores[chosen] = _masked_scores(model, torch.tensor([encoded[i] for i in chosen]), hooks).cpu().numpy()
                bar.update(int(length) * len(chosen))
    if not np.isfinite(scores).all():
        raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
    return scores


def _masked_scores(model: Model, ids: Int[Tensor, "sentence pos"], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    """Sentences of one length, a row for each token masked."""
    n, length = ids.shape
    tokenizer, device = model.tokenizer, model.W_U.device
    ids = ids.to(device)
    diagonal = torch.eye(length, dtype=torch.bool, device=device).expand(n, -1, -1)
    inner = ids[:, None].expand(-1, length, -1).masked_fill(diagonal, tokenizer.mask_token_id).flatten(0, 1)
    ends = [inner.new_full((len(inner), 1), token_id) for token_id in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    where = torch.arange(1, length + 1, device=device).repeat(n)
    rows = torch.arange(len(inner), device=device)
    at_mask = [(trunk_output(model), lambda resid, hook: resid[rows, where][:, None])]
    with running(model, at_mask, expected=hooks):
        logits = model(torch.cat([ends[0], inner, ends[1]], 1))[:, 0]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = torch.nn.functional.cross_entropy(wide, ids.flatten(), reduction="none")
    return -nll.view(n, length).double().sum(1)


def minimal_pair_accuracy(
    model: Model, pairs: pd.DataFrame, *, bos: bool | None = None, progress: bool = True
) -> pd.DataFrame:
    """The share of pairs of each task whose good sentence has the higher log-probability (ties are wrong).

    For encoders the pseudo-log-likelihood, which needs a row for each token.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        bos: see `sentence_log_probability`.

    Returns a table (task, accuracy, n_pairs), in the order of the tasks in `pairs`.

    Raises ValueError for a table without BLiMP's columns, TypeError for one with a missing UID, and what
    `sentence_log_probability` raises.
    """
    check_pairs(pairs)
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    scores: NDArray[np.float64] = sentence_log_probability(model, both, bos=bos, progress=progress)
    good, bad = scores[: len(pairs)], scores[len(pairs) :]
    correct = pd.DataFrame({"task": pairs["UID"].to_numpy(), "correct": good > bad})
    grouped = correct.groupby("task", sort=False)["correct"]
    return pd.DataFrame({"accuracy": grouped.mean(), "n_pairs": grouped.size()}).reset_index()

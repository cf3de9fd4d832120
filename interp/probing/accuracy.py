"""Does a model give the grammatical sentence of a minimal pair the higher probability?"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from interp.corpora.batching import Batch
from interp.corpora.pairs import check_pairs
from interp.corpora.sentences import sentence_rows, tokenizer_of
from interp.models.identity import check_weights
from interp.models.running import HooksOfOthers, hooks_of_others, running
from interp.models.sites import Model, check_vocabulary, is_encoder, trunk_output
from interp.run.observers import forward

__all__ = ["minimal_pair_accuracy", "sentence_log_probability"]

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
    rows = sentence_rows(model, sentences, bos=bos, least=2)
    check_vocabulary(model)
    check_weights(model)
    hooks, lengths = hooks_of_others(model), np.array([len(row) for row in rows])
    scores = np.zeros(len(rows))
    encoder = is_encoder(model)
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="scoring") as bar:
        for chosen in _together(lengths, None if encoder else model.W_U.shape[1]):
            score = _masked_scores if encoder else _scores
            scores[chosen] = score(model, [rows[i] for i in chosen], hooks).cpu().numpy()
            bar.update(len(chosen))
    if not np.isfinite(scores).all():
        raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
    return scores


def _together(lengths: NDArray[np.int64], d_vocab: int | None) -> Iterator[NDArray[np.int64]]:
    """The numbers of rows to score together, the longest first: with few enough logits, or without `d_vocab` of one
    length, with few enough tokens in the rows that masking each in turn makes."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        longest = int(lengths[order[0]])
        if d_vocab is None:
            of_length = order[lengths[order] == longest]
            chosen = of_length[: max(1, _TOKENS_AT_ONCE // longest // (longest - 2))]
        else:
            chosen = order[: max(1, _LOGITS_AT_ONCE // (longest * d_vocab))]
        yield chosen
        order = order[len(chosen) :]


def _scores(model: Model, rows: list[list[int]], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    batch = Batch.of(rows).to(model.W_U.device)
    with running(model, expected=hooks):
        logits = forward(model, batch)
    nll = _nll(logits.flatten(0, 1), batch.targets.clamp(min=0).flatten())
    return -(nll.view(batch.targets.shape) * (batch.targets >= 0)).sum(1)


def _masked_scores(model: Model, rows: list[list[int]], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    """`[CLS] … [SEP]` of one length, a row for each token between the two masked."""
    mask_id = tokenizer_of(model).mask_token_id
    if mask_id is None:
        raise ValueError("this encoder's tokenizer has no [MASK] token, so no token of a sentence can be scored")
    ids = torch.tensor(rows, device=model.W_U.device)
    n, length = ids.shape[0], ids.shape[1] - 2
    where = torch.arange(1, length + 1, device=ids.device).repeat(n)
    tokens = ids.repeat_interleave(length, 0)
    each = torch.arange(len(tokens), device=ids.device)
    tokens[each, where] = mask_id
    at_mask = [(trunk_output(model), lambda resid, hook: resid[each, where][:, None])]
    with running(model, at_mask, expected=hooks):
        logits = model(tokens)[:, 0]
    return -_nll(logits, ids[:, 1:-1].flatten()).view(n, length).sum(1)


def _nll(logits: Float[Tensor, "token d_vocab"], targets: Int[Tensor, " token"]) -> Float[Tensor, " token"]:
    """Surprisal in nats, float64 of what was computed in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(wide, targets, reduction="none").double()


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
    good, bad = sentence_log_probability(model, both, bos=bos, progress=progress).reshape(2, -1)
    correct = pairs.assign(correct=good > bad).groupby("UID", sort=False)["correct"]
    return correct.agg(accuracy="mean", n_pairs="size").rename_axis("task").reset_index()

"""Does a model give the grammatical sentence of a minimal pair the higher probability?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from interp.pairs import COLUMNS
from interp.sites import Model, is_encoder

_LOGITS_AT_ONCE = 2**25


@torch.no_grad()
def sentence_log_probability(
    model: Model, sentences: Sequence[str], *, bos: bool | None = None, progress: bool = True
) -> Float[np.ndarray, " sentence"]:
    """`Σ_t log p(w_t | w_<t)` of each sentence under a causal model, in nats.

    Args:
        bos: put the beginning-of-sequence token first, so that the first token is scored too. By default what
            TransformerLens knows of the model (`cfg.default_prepend_bos`); without it the first token is
            unscored.

    Raises:
        ValueError: an encoder, a model without tokenizer, a sentence without a token to score, or one longer than
            the context.
    """
    if is_encoder(model):
        raise ValueError("an encoder gives a sentence no probability of this kind; give a causal model")
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read sentences; set model.tokenizer")
    bos = model.cfg.default_prepend_bos if bos is None else bos
    first = [model.tokenizer.bos_token_id] if bos else []
    if None in first:
        raise ValueError("this model's tokenizer has no beginning-of-sequence token; give bos=False")
    encoded = model.tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
    rows = [first + ids for ids in encoded]
    for sentence, row in zip(sentences, rows, strict=True):
        if not 2 <= len(row) <= model.cfg.n_ctx:
            raise ValueError(f"{sentence[:60]!r} has {len(row)} tokens; expected 2 … {model.cfg.n_ctx}")
    scores = np.zeros(len(rows))
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="scoring") as bar:
        start = 0
        while start < len(order):
            size = max(1, _LOGITS_AT_ONCE // (len(rows[order[start]]) * model.W_U.shape[1]))
            chosen = order[start : start + size]
            scores[chosen] = _scores(model, [rows[i] for i in chosen]).cpu().numpy()
            start += size
            bar.update(len(chosen))
    if not np.isfinite(scores).all():
        raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
    return scores


def _scores(model: Model, rows: list[list[int]]) -> Float[Tensor, " sentence"]:
    """Right-padded: a causal model's real positions do not see the padding."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.W_U.device)
    lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
    mask = (torch.arange(width, device=tokens.device) < lengths[:, None]).long()
    left = model.tokenizer.padding_side == "left"
    logits = model(tokens, attention_mask=mask if left else None)[:, :-1]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(wide, tokens[:, 1:].flatten(), reduction="none")
    return -(nll.view(len(rows), -1).double() * mask[:, 1:]).sum(1)


def minimal_pair_accuracy(
    model: Model, pairs: pd.DataFrame, *, bos: bool | None = None, progress: bool = True
) -> pd.DataFrame:
    """The share of pairs of each task whose good sentence has the higher log-probability (ties are wrong).

    Args:
        pairs: a table from `interp.pairs`.
        bos: see `sentence_log_probability`.

    Returns a table (task, accuracy, n_pairs), in the order of the tasks in `pairs`.

    Raises ValueError for a table without BLiMP's columns, and what `sentence_log_probability` raises.
    """
    missing = [column for column in COLUMNS[:3] if column not in pairs.columns]
    if missing or pairs.empty:
        raise ValueError(f"expected a table of minimal pairs from interp.pairs.load, missing: {missing or 'any row'}")
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    scores: NDArray[np.float64] = sentence_log_probability(model, both, bos=bos, progress=progress)
    good, bad = scores[: len(pairs)], scores[len(pairs) :]
    correct = pd.DataFrame({"task": pairs["UID"].to_numpy(), "correct": good > bad})
    grouped = correct.groupby("task", sort=False)["correct"]
    return pd.DataFrame({"accuracy": grouped.mean(), "n_pairs": grouped.size()}).reset_index()

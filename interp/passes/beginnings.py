"""Whether a model predicts a text better with the beginning-of-sequence token (BOS) that its tokenizer does not put."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batch, Batches
from interp.corpora.frames import tokenizer_of
from interp.models.running import running
from interp.models.sites import Model, view
from interp.support.checks import warn
from interp.support.words import argument

__all__ = ["compare_bos"]

_ROWS = 20
_TOKENS = 64
_ROWS_AT_ONCE = 4
_FACTOR = 2.0
_log = logging.getLogger("interp")


def compare_bos(model: Model, batches: Batches) -> None:
    """Tell the perplexity of a text without and with the BOS that `bos="auto"` left out, and warn if it is more than
    twice as high without.

    It is that of the first 64 tokens of the first 20 rows, without the first token of each, which nothing precedes if
    there is no BOS. It becomes part of what is known about the batches, as `bos_perplexity`. Nothing happens if no BOS
    was left out, or if there is no such token.
    """
    if batches.left_out_bos is None:
        return
    token = tokenizer_of(model).convert_ids_to_tokens(batches.left_out_bos)
    if "bos_perplexity" not in batches.seen:
        perplexity = _perplexity(model, batches, batches.left_out_bos)
        if perplexity is None:
            return
        batches.seen["bos_perplexity"] = perplexity
        _log.info("without %s, which the tokenizer has but does not put: %s", token, _perplexities(perplexity))
    perplexity = batches.seen["bos_perplexity"]
    if perplexity["without"] > _FACTOR * perplexity["with"]:
        problem = f"the text is read without {token}, which the tokenizer has but does not put"
        warn(f"{problem}: {_perplexities(perplexity)}; read it with {argument('bos', True)}")


def _perplexities(perplexity: Mapping[str, float]) -> str:
    perplexities = f"perplexity {perplexity['without']:.4g}, and {perplexity['with']:.4g} with it"
    return f"{perplexities} (first {_TOKENS} tokens of the first {_ROWS} rows)"


def _perplexity(model: Model, batches: Batches, bos: int) -> dict[str, float] | None:
    longest = min(_TOKENS, int(model.cfg.n_ctx) - 1)
    rows = [row[:longest] for row in islice(_rows(batches), _ROWS)]
    sums = torch.zeros(3, dtype=torch.float64)
    with running(model):
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            sums += _nll(model, rows[start : start + _ROWS_AT_ONCE], bos)
    if sums[2] == 0:
        return None
    without, preceded = (sums[:2] / sums[2]).exp().tolist()
    return {"without": without, "with": preceded}


def _rows(batches: Batches) -> Iterator[list[int]]:
    """The token ids of each row, in the order of the corpus if that is known."""
    if batches.rows is not None:
        for row in batches.rows():
            yield row.ids.tolist()
        return
    for batch in batches:
        for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
            yield tokens[mask.bool()].tolist()


@torch.no_grad()
def _nll(model: Model, rows: list[list[int]], bos: int) -> Float[Tensor, "3"]:
    """The summed NLL of all tokens but the first of each row, without and with a BOS before it, and their number."""
    plain = Batch.of(rows).to(model.W_U.device)
    preceded = Batch.of([[bos, *row] for row in rows]).to(model.W_U.device)
    scored = plain.targets >= 0
    sums = []
    for batch, first in ((plain, 0), (preceded, 1)):
        logits = view(model).run(batch, None)[:, first:]
        sums.append(torch.nn.functional.cross_entropy(logits[scored].float(), plain.targets[scored], reduction="sum"))
    return torch.stack([*sums, scored.sum()]).double().cpu()

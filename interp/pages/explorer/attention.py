"""The panel on attention: a head's pattern in a text, and the dimensions that make the score of a pair of tokens."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.analyses.attention.scores import score_contributions_at
from interp.corpora.batching import Batch
from interp.hooks import ablate_dims, capture
from interp.models.qk import check_layers, qk_circuit
from interp.models.running import running
from interp.models.sites import Model, Recipe, is_encoder
from interp.models.spelling import token_names
from interp.pages.explorer import figures
from interp.pages.explorer.subject import Answer, Subject, code, token_ids
from interp.passes.reading import forward
from interp.support.words import count, printed

__all__ = ["Removal", "attention"]

Removal: TypeAlias = Literal["keys", "queries", "residual"]

_PATTERN = """
import torch
from interp.corpora.batching import Batch
from interp.corpora.sentences import sentence_rows
from interp.passes.reading import forward

tokens = torch.tensor(sentence_rows(model, [{text!r}]))
layer, head, query, key = {layer}, {head}, {query}, {key}
q, k, pattern = {{}}, {{}}, {{}}
recipe = {recipe}
for site, seen in [("q", q), ("k", k), ("pattern", pattern)]:
    recipe += interp.hooks.capture(model, site, seen, layer=layer)
with model.hooks(fwd_hooks=recipe):
    forward(model, Batch.of(tokens.tolist()), layer + 1)
[pattern] = pattern.values()
attention = pattern[0, head, query, key]
"""
_SCORE = """
from interp.analyses.attention.scores import score_contributions_at
from interp.models.qk import qk_circuit

contributions = score_contributions_at(model, tokens[0], layer, head, query, key, scaled=True)
parts = qk_circuit(model, layer).scores(*q.values(), *k.values(), torch.ones_like(tokens, dtype=torch.bool))
score = next(part[0, head, query - rows.start, key] for rows, _, part in parts if query < rows.stop)
"""


class _HeadStates(NamedTuple):
    """The queries and keys of a block before rotation, and its attention patterns."""

    q: Float[Tensor, "1 pos head d_head"]
    k: Float[Tensor, "1 pos kv_head d_head"]
    pattern: Float[np.ndarray, "head query key"]


def attention(
    subject: Subject,
    text: str,
    *,
    layer: int = 0,
    head: int = 0,
    query: int | None = None,
    key: int | None = None,
    removed: Sequence[int] = (),
    where: Removal = "keys",
) -> Answer:
    """The pattern of a head in a text, and the residual dimensions that make the score of a query and a key.

    Args:
        query, key: positions. Default: the last token that is not special, and the key that it attends to most.
        removed, where: dimensions to remove, and from where; see `interp.hooks.ablate_dims`.

    Raises ValueError for a layer, head, position or dimension that does not exist, for a text that the model cannot
    read, and for a model without attention patterns.
    """
    model = subject.model
    ids = token_ids(model, text)
    check_layers(model, [layer])
    _check("head", head, model.cfg.n_heads)
    recipe = ablate_dims(model, layer, list(removed), where=where) if removed else []
    plain = _head_states(model, ids, layer, [])
    edited = _head_states(model, ids, layer, recipe) if removed else plain
    query = len(ids) - 1 - is_encoder(model) if query is None else query
    _check("position of the query", query, len(ids))
    key = int(plain.pattern[head, query].argmax()) if key is None else key
    _check("position of the key", key, len(ids))
    names = token_names(model, ids)
    pair = f"“{names[query]}” (position {query}) to “{names[key]}” (position {key})"
    without = f"without {count(len(removed), 'dimension')} of the {_PLACE[where]}" if removed else ""
    before, after = plain.pattern[head], edited.pattern[head]
    notes = [f"Attention from {pair}: {_change(before[query, key], after[query, key], without, '{:.3f}')}."]
    title = f"Attention of block {layer}, head {head}"
    drawn = {"pattern": figures.pattern(after, names, title, (query, key), without)}
    removal = f"interp.hooks.ablate_dims(model, layer, {list(removed)}, where={where!r})" if removed else "[]"
    lines = _PATTERN.format(text=text, layer=layer, head=head, query=query, key=key, recipe=removal)
    tables = {}
    numbers = {"attention": float(after[query, key])}
    try:
        table = _contributions(subject, ids, layer, head, query, key, removed)
        trained = _score(model, layer, plain, head, query, key)
        score = _score(model, layer, edited, head, query, key)
    except ValueError as error:
        notes.append(f"Its score is not shown by dimension: {error}.")
    else:
        total = table["contribution"].sum()
        of_dims = printed(total, "{:+.3f}")
        of_bias = printed(trained - total, "{:+.3f}")
        notes.append(
            f"Score: {_change(trained, score, without, '{:+.3f} nats')}. As trained, {of_dims} comes from "
            f"{model.cfg.d_model:,} dimensions of the key and {of_bias} from the key's bias."
        )
        tables["Contributions of residual dimensions"] = table
        drawn["dimensions"] = figures.contributions(table, f"{names[query]} → {names[key]}")
        lines += _SCORE
        numbers["score"] = score
    if removed:
        drawn["change"] = figures.change(after - before, names, without)
    drawn["heads"] = figures.heads(edited.pattern, layer, head, without)
    return Answer(notes, drawn, tables, code(subject, lines), numbers)


_PLACE = {"keys": "keys", "queries": "queries", "residual": "residual stream"}


def _check(noun: str, number: int, n: int) -> None:
    if not 0 <= number < n:
        raise ValueError(f"expected a {noun} in 0 … {n - 1}, found {number}")


def _change(before: float, after: float, without: str, form: str) -> str:
    return f"{printed(before, form)} as trained, {printed(after, form)} {without}" if without else printed(before, form)


@torch.no_grad()
def _head_states(model: Model, ids: list[int], layer: int, recipe: Recipe) -> _HeadStates:
    """What a block's attention makes of a sentence, with a recipe."""
    q: dict[str, Tensor] = {}
    k: dict[str, Tensor] = {}
    pattern: dict[str, Tensor] = {}
    sites = capture(model, "q", q, layer=layer) + capture(model, "k", k, layer=layer)
    with running(model, [*recipe, *sites, *capture(model, "pattern", pattern, layer=layer)]):
        forward(model, Batch.of([ids]).to(model.W_U.device), layer + 1)
    [queries] = q.values()
    [keys] = k.values()
    [patterns] = pattern.values()
    return _HeadStates(queries, keys, patterns[0].float().cpu().numpy())


def _score(model: Model, layer: int, states: _HeadStates, head: int, query: int, key: int) -> float:
    """The score of a query and a key in nats, −∞ if the query does not see the key."""
    real = torch.ones(states.q.shape[:2], dtype=torch.bool, device=states.q.device)
    parts = qk_circuit(model, layer).scores(states.q, states.k, real)
    return next(float(part[0, head, query - rows.start, key]) for rows, _, part in parts if query < rows.stop)


def _contributions(
    subject: Subject, ids: list[int], layer: int, head: int, query: int, key: int, removed: Sequence[int]
) -> pd.DataFrame:
    """The contribution of each dimension to a score, the largest first; and whether it is an outlier, or removed."""
    values = score_contributions_at(subject.model, torch.tensor(ids), layer, head, query, key, scaled=True)
    outliers = subject.prepared.outliers
    outlying = set(outliers[outliers["state"] == layer]["dim"])
    table = pd.DataFrame({"dim": range(len(values)), "contribution": values.double().cpu().numpy()})
    table["outlier"] = table["dim"].isin(outlying)
    table["removed"] = table["dim"].isin(list(removed))
    return table.sort_values("contribution", key=abs, ascending=False, ignore_index=True)

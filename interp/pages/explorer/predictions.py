"""The panels on predictions: word frequency in the next token, and the steering of one token's probability."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.analyses.encoding.options import Weights
from interp.analyses.encoding.regression import Fit
from interp.analyses.encoding.steering import WEIGHTS, sample_tokens, steer, steering_direction, token_id_of
from interp.corpora.batching import Batch
from interp.corpora.frames import tokenizer_of
from interp.corpora.sentences import encode
from interp.hooks import capture, scale_bias
from interp.instruments.directions import added_logits
from interp.instruments.logits import real_logits
from interp.models.head import prediction_head
from interp.models.running import running
from interp.models.sites import Model, Recipe, is_encoder
from interp.models.spelling import token_names
from interp.pages.explorer import figures
from interp.pages.explorer.prepared import Prepared
from interp.pages.explorer.subject import Answer, Subject, code, token_ids
from interp.passes.reading import forward
from interp.support.checks import finite_number
from interp.support.words import BIAS_MEANING, BIAS_WORD

__all__ = ["example_token", "frequency", "probability", "scaled_bias"]

_TOP = 10
_FREQUENT = 100
_RATIOS = np.geomspace(0.1, 10, 25)

_PREDICT = """
import torch
from interp.corpora.sentences import sentence_rows
from interp.models.head import prediction_head

tokens = torch.tensor(sentence_rows(model, [{text!r}]))
seen = {{}}
recipe = {recipe}
with model.hooks(fwd_hooks=recipe + interp.hooks.capture(model, "logits", seen)):
    model(tokens)
head = prediction_head(model)
logits = head.finished(*seen.values())[0, {position}].double()
"""
_MEAN = """
from interp.instruments.directions import added_logits

text = {reading}
mean = torch.tensor(interp.encoding.fit(model, text).mean_input)  # E[h]
logits += ({scale} - 1) * added_logits(head, mean[None])[0]
"""
_SOFTMAX = """
from interp.corpora.counts import unigrams_of

probabilities = logits.masked_fill(~head.real, -torch.inf).softmax(-1)
unigram = unigrams_of(model, interp.corpora.batches(model, {reading}))
frequent = probabilities[torch.tensor(-unigram.distribution).argsort(stable=True)[:{frequent}]].sum()
"""
_STEER = """
from interp.analyses.encoding.steering import steering_report

text = {reading}
fit = interp.encoding.fit(model, text)
how = {{"shifts": ["regression", "constant"], "weights": {weights}}}
report = steering_report(model, fit, tokens=[{token_id}], ratios=[{ratio}], **how)
[achieved] = (report["alpha"] * report["achieved"])[report["weights"] == {chosen!r}]
recipe = interp.encoding.steer(model, {token_id}, {ratio}, fit, shift="regression", weights={chosen!r})
"""


def frequency(subject: Subject, text: str, *, scale: float = 0.0) -> Answer:
    """The probabilities of the next token (of an encoder, of the first `[MASK]`) with b_LN scaled by λ, against word
    frequency; with E[h] scaled, if the model has no b_LN.

    Raises ValueError for a text that the model cannot read, and for a head in which neither can be scaled.
    """
    model = subject.model
    scale = finite_number(scale, "λ")
    head = prediction_head(model)
    bias = scaled_bias(model)
    if bias == "mean" and subject.prepared.fit is None:
        raise ValueError(f"this model has no b_LN, and no E[h]: {subject.prepared.why_no_fit}")
    text = _with_mask(model, text)
    ids = token_ids(model, text)
    position = ids.index(tokenizer_of(model).mask_token_id) if is_encoder(model) else len(ids) - 1
    plain = _logits(model, ids, position, [])
    if bias == "ln":
        scaled = _logits(model, ids, position, scale_bias(model, "ln", scale))
        lines = _PREDICT.format(text=text, position=position, recipe=f'interp.hooks.scale_bias(model, "ln", {scale})')
    else:
        assert subject.prepared.fit is not None
        mean = torch.from_numpy(subject.prepared.fit.mean_input)
        scaled = plain + (scale - 1) * added_logits(head, mean[None])[0]
        lines = _PREDICT.format(text=text, position=position, recipe="[]")
        lines += _MEAN.format(reading=subject.reading, scale=scale)
    table = pd.DataFrame(
        {
            "token_id": np.arange(len(plain)),
            "unigram": subject.unigram.distribution,
            "as_trained": plain.softmax(0).numpy(),
            "scaled": scaled.softmax(0).numpy(),
        }
    )[head.real.cpu().numpy()]
    table.insert(0, "token", np.array(subject.names, dtype=object)[table["token_id"]])
    frequent = table.nlargest(_FREQUENT, "unigram")
    place = f"At [MASK] in “{_end(text)}”" if is_encoder(model) else f"After “{_end(text)}”"
    notes = [
        f"{place}, the {len(frequent)} most frequent tokens together have probability "
        f"{frequent['as_trained'].sum():.3g} as trained and {frequent['scaled'].sum():.3g} with λ = {scale:g}.",
        f"λ scales {BIAS_WORD[bias]}, {BIAS_MEANING[bias]}: 1 leaves it as trained, and 0 removes it. "
        f"Frequencies are those of {subject.unigram.corpus} ({subject.unigram.n_tokens:,} tokens).",
    ]
    best = pd.concat([table.nlargest(_TOP, "scaled"), table.nlargest(_TOP, "as_trained")]).drop_duplicates("token_id")
    tables = {"Most probable tokens": best.reset_index(drop=True)}
    drawn = {"frequencies": figures.frequencies(table, scale, BIAS_WORD[bias])}
    lines += _SOFTMAX.format(reading=subject.reading, frequent=_FREQUENT)
    numbers = {"frequent": float(frequent["scaled"].sum())}
    return Answer(notes, drawn, tables, code(subject, lines), numbers)


def scaled_bias(model: Model) -> str:
    """The bias that `frequency` scales: b_LN, or E[h] in a model without it.

    Raises ValueError for a model without a prediction head.
    """
    return "ln" if "ln" in prediction_head(model).biases else "mean"


def _with_mask(model: Model, text: str) -> str:
    """The text, which ends in `[MASK]` if an encoder reads it and none is in it."""
    mask = tokenizer_of(model).mask_token if is_encoder(model) else None
    return text if mask is None or mask in text or not text.strip() else f"{text} {mask}"


def _end(text: str) -> str:
    return text if len(text) <= 40 else f"…{text[-40:]}"


@torch.no_grad()
def _logits(model: Model, ids: list[int], position: int, recipe: Recipe) -> Float[Tensor, " d_vocab"]:
    """The logits at a position with a recipe, in float64 on the CPU."""
    seen: dict[str, Tensor] = {}
    head = prediction_head(model)
    with running(model, [*recipe, *capture(model, "logits", seen)]):
        forward(model, Batch.of([ids]).to(model.W_U.device))
    [unembedded] = seen.values()
    return real_logits(head.finished(unembedded[:, position]), head.real)[0].double().cpu()


class _Steered(NamedTuple):
    """The log-odds of a token at every position of the prepared text, and h·u for each choice of weights."""

    odds: Float[Tensor, " pos"]
    along: dict[str, Float[Tensor, " pos"]]

    def achieved(self, way: str, weights: str, ratio: float) -> float:
        """The mean probability of the token when it is steered by a ratio."""
        shift = -math.log(ratio) * self.along[weights] if way == "along A" else math.log(ratio)
        return float((self.odds + shift).sigmoid().mean())


def probability(subject: Subject, token: str, *, ratio: float = 2.0, weights: Weights = "least_norm") -> Answer:
    """Steering of one token along A: its requested and its achieved mean probability on the prepared text.

    Args:
        token: a token as text; ␣ stands for a space.

    Raises ValueError for a model that has no fit of token probability, for text that is not a single token, and the
    errors of `interp.analyses.encoding.steering.steer`.
    """
    model, fit = subject.model, subject.prepared.fit
    if fit is None:
        raise ValueError(f"token probability cannot be steered: {subject.prepared.why_no_fit}")
    token_id = token_id_of(model, token.replace("␣", " "), fit)
    ratio = finite_number(ratio, "the factor")
    steer(model, token_id, ratio, fit, shift="regression", weights=weights, progress=False)  # for its errors
    [name] = token_names(model, [token_id])
    steered = _steered(model, subject.prepared, fit, token_id)
    p = float(steered.odds.sigmoid().mean())
    rows: list[tuple[str, str, float, float]] = []
    for other in WEIGHTS:
        rows.append(("along A", other, ratio * p, steered.achieved("along A", other, ratio)))
    rows.append(("constant", "", ratio * p, steered.achieved("constant", "", ratio)))
    table = pd.DataFrame(rows, columns=["way", "weights", "requested", "achieved"])
    table = table.assign(requested_ratio=ratio, achieved_ratio=table["achieved"] / p)
    possible = _RATIOS[_RATIOS * p < 1]
    points = []
    for way in ("along A", "constant"):
        for requested in possible.tolist():
            points.append((way, requested, steered.achieved(way, weights, requested) / p))
    curve = pd.DataFrame(points, columns=["way", "requested", "achieved"])
    chosen = table[(table["way"] == "constant") | (table["weights"] == weights)]
    achieved = chosen["achieved"].iloc[0]
    notes = [
        f"{name} has a mean probability of {p:.3g} in the prepared text; {ratio * p:.3g} is requested (× {ratio:g}), "
        f"and steering along A achieves {achieved:.3g} (× {achieved / p:.3g}).",
        "A is the slope of −log α ≈ A·E + B, which predicts a token's mean probability α from its output embedding E. "
        "Along A, −log(factor) u is added to E, where A·u = 1 and the weights say how u is spread over the dimensions; "
        "constant adds log(factor) to the token's logit.",
        f"The prepared text is {subject.reading} ({len(steered.odds):,} tokens). "
        'interp.encoding.steer(…, shift="exact") finds the constant that achieves what is requested.',
    ]
    arguments = {"token_id": token_id, "ratio": ratio, "chosen": weights}
    lines = _STEER.format(reading=subject.reading, weights=list(WEIGHTS), **arguments)
    drawn, tables = {"steering": figures.achieved(curve, chosen, name)}, {"Requested and achieved": table}
    return Answer(notes, drawn, tables, code(subject, lines), {"achieved": float(achieved)})


@torch.no_grad()
def _steered(model: Model, text: Prepared, fit: Fit, token_id: int) -> _Steered:
    """The log-odds of a token from the inputs of the unembedding, and the projections of these on each u."""
    assert text.inputs is not None
    assert text.log_Z is not None
    head = prediction_head(model)
    weight = head.unscaled[:, token_id].to(head.wide).cpu()
    unembedded = text.inputs.to(head.wide) @ weight
    unembedded = unembedded + (head.b_U[token_id].to(head.wide).cpu() / head.scale)
    log_p = head.finished(unembedded).double() - text.log_Z
    odds = log_p - torch.log1p(-log_p.exp().clamp(max=1 - 1e-15))
    h = text.inputs.double()
    return _Steered(odds, {weights: h @ torch.from_numpy(steering_direction(fit, weights)) for weights in WEIGHTS})


def example_token(subject: Subject) -> str:
    """A frequent token that can be steered, as one types it; empty if there is none."""
    fit = subject.prepared.fit
    if fit is None:
        return ""
    tokenizer = tokenizer_of(subject.model)
    typed = []
    for token_id, group in sample_tokens(fit).items():
        text = tokenizer.decode([token_id])
        if group == "frequent" and encode(tokenizer, [text]) == [[token_id]]:
            typed.append(text)
    return max(typed, key=len, default="").replace(" ", "␣")

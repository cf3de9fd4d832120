"""Multiplying one token's probability: the requested ratio and the achieved ratio."""

import math
import reprlib
from collections.abc import Sequence
from itertools import product
from typing import ClassVar, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.optimize import brentq
from torch import Tensor

from interp.analyses.encoding.options import RATIOS, Shift, Weights
from interp.analyses.encoding.regression import Fit
from interp.corpora.batching import Text, predicted_batches
from interp.corpora.frames import tokenizer_of
from interp.corpora.sentences import encode
from interp.instruments.divergences import kl
from interp.instruments.logits import LogitsObserver, at_head
from interp.models.edits import Edit, joint_edit, recipe_of
from interp.models.head import prediction_head, real_tokens
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name
from interp.models.softmax import exponentials, over_positions, over_types
from interp.models.spelling import token_names
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading, runs
from interp.passes.observers import fingerprint
from interp.passes.reading import observe
from interp.support.checks import check_choice, check_choices, check_seed, finite_number, unicode_text, whole_number
from interp.support.choices import Several, listed

__all__ = ["SHIFTS", "LogOdds", "SteeredMeans", "check_steering", "log_odds", "sample_tokens", "steer"]
__all__ += ["steering_direction", "steering_errors", "steering_report", "token_id_of"]

SHIFTS: tuple[Shift, ...] = get_args(Shift)
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
_TOP = 0.1  # share of the dimensions
_PIECES = 8  # the most tokens of a text that an error names
_LOG_ODDS = 60.0
_LEAST_RATIO = 1e-20  # a smaller one may need a shift beyond these log-odds
_BINS = 2400  # bins of log-odds, .05 nats wide
_ELEMENTS_AT_ONCE = 2**21


class LogOdds(LogitsObserver):
    """The distribution over positions of `log p/(1 − p)` for some tokens, as a fine histogram with the mean of each
    bin.

    After `observe`, `shift_for` gives the constant to add to a token's logit for a requested mean probability.
    """

    axes: ClassVar = {"count": f"tokens {_BINS}", "sum": f"tokens {_BINS}"}

    def __init__(self, model: Model, token_ids: Sequence[int]) -> None:
        super().__init__(model, at_once=_ELEMENTS_AT_ONCE, tokens=list(token_ids))
        self.token_ids = list(token_ids)
        self.add_states(model.cfg, tokens=len(token_ids))

    def read(self, logits: Float[Tensor, "pos d_vocab"], targets: Int[Tensor, " pos"]) -> None:
        odds = log_odds(logits, self.token_ids).to(self.device).T.contiguous()
        bins = ((odds + _LOG_ODDS) / (2 * _LOG_ODDS / _BINS)).long().clamp(0, _BINS - 1)
        zero = torch.zeros_like(self.state["count"])
        self.add("count", zero.scatter_add(1, bins, torch.ones_like(odds)))
        self.add("sum", zero.scatter_add(1, bins, odds))

    @classmethod
    def cost(cls, size: Shape, tokens: int) -> Pass:
        """Estimate the cost for so many tokens, from the shape of a model, with five copies of logits in float64."""
        return at_head(
            size, what="log-odds", step=1, sums=cls.n_bytes(size, tokens=tokens), per_logit=8 * 5,
            at_once=_ELEMENTS_AT_ONCE, flops=4.0 * size.d_vocab,
        )  # fmt: skip

    def shift_for(self, token_id: int, mean_probability: float) -> float:
        """The constant s for which `E[σ(log-odds + s)] = mean_probability`."""
        row = self.token_ids.index(token_id)
        count = self.state["count"][row].cpu().numpy()
        odds = (self.state["sum"][row].cpu().numpy() / np.maximum(count, 1))[count > 0]
        weight = count[count > 0] / count.sum()

        def excess(shift: float) -> float:
            return float(weight @ (1 / (1 + np.exp(-(odds + shift))))) - mean_probability

        return float(brentq(excess, -2 * _LOG_ODDS, 2 * _LOG_ODDS, xtol=1e-10))


def log_odds(logits: Float[Tensor, "pos d_vocab"], token_ids: Sequence[int]) -> Float[Tensor, "pos tokens"]:
    """`log p/(1 − p)` of some tokens, in float64."""
    log_p = logits[:, list(token_ids)].double() - logits.double().logsumexp(1, keepdim=True)
    return log_p - torch.log1p(-log_p.exp().clamp(max=1 - 1e-15))


class SteeredMeans(LogitsObserver):
    """Mean probabilities with one token's logit shifted by `s + h·v`, for many tokens, s and v at once.

    Shifting a logit changes the token's probability to `p' = σ(log-odds + δ)` and multiplies all others by
    `(1 − p')/(1 − p)`, so no further unembedding is needed.

    Args:
        variants: `(token id, s, t)`, where v is the sum of the directions, each multiplied by its `t`.
        directions: the directions, as rows.
    """

    axes: ClassVar = {"steered": "variants d_vocab", "plain": "d_vocab"}

    @classmethod
    def cost(cls, size: Shape, variants: int) -> Pass:
        """Estimate the cost of so many variants, from the shape of a model."""
        logits = variants * size.d_vocab
        return at_head(
            size, what="steering", step=2, sums=cls.n_bytes(size, variants=variants), flops=2.0 * logits,
            per_batch=4 * logits, per_logit=4 * 4, at_once=_ELEMENTS_AT_ONCE,
        )  # fmt: skip

    def __init__(
        self,
        model: Model,
        variants: Sequence[tuple[int, float, Sequence[float]]],
        directions: Float[np.ndarray, "n_directions d_model"],
    ) -> None:
        self.token_ids = [token_id for token_id, *_ in variants]
        shifts = np.array([[s, *t] for _, s, t in variants])
        described = {"tokens": self.token_ids, "shifts": fingerprint(shifts), "directions": fingerprint(directions)}
        super().__init__(model, [hook_name(model, "head_input")], at_once=_ELEMENTS_AT_ONCE, **described)
        self.head.refuse_cap("a steered token's probability has no closed form")
        self.directions = torch.from_numpy(directions).to(model.W_U.device)
        self.s, self.t = torch.from_numpy(shifts).to(self.directions).split([1, len(directions)], 1)
        self.add_states(model.cfg, variants=len(variants), d_vocab=model.W_U.shape[1])

    def read(
        self, logits: Float[Tensor, "pos d_vocab"], targets: Int[Tensor, " pos"], h: Float[Tensor, "pos d_model"]
    ) -> None:
        along = self.directions @ h.to(self.directions).T
        tokens, index = np.unique(self.token_ids, return_inverse=True)
        odds = log_odds(logits, tokens.tolist())[:, index].T.to(along)
        shifted = odds + self.s + self.t @ along
        softplus = torch.nn.functional.softplus
        factors = (softplus(odds) - softplus(shifted)).exp()  # (1 − p')/(1 − p), [variants, pos]
        e, _ = exponentials(logits)
        shares = over_types(e).reciprocal()  # p = share · e
        sums = shares.new_empty(1 + len(factors), logits.shape[1])
        plain, steered = over_positions(e, torch.cat([shares, factors * shares]), out=sums).split([1, len(factors)])
        steered[torch.arange(len(index)), torch.tensor(self.token_ids)] = shifted.sigmoid().sum(1).to(steered)
        self.add("steered", steered)
        self.add("plain", plain[0])

    @property
    def measures(self) -> pd.DataFrame:
        """The effects of each variant: `achieved`, which is the ratio of mean probabilities, and `kl_others`."""
        plain, steered = self.mean_of("plain"), self.mean_of("steered")
        achieved = steered[range(len(steered)), self.token_ids] / plain[self.token_ids]
        kl_others = []
        for token_id, distribution in zip(self.token_ids, steered, strict=True):
            p, q = np.delete([plain, distribution], token_id, 1)
            kl_others.append(kl(p / p.sum(), q / q.sum()))
        return pd.DataFrame({"achieved": achieved, "kl_others": kl_others})


def token_id_of(model: Model, token: str | int, fit: Fit) -> int:
    """The id of a token that a fit used.

    Raises ValueError for text that is not a single token, for an id without a token, and for a token that the fit left
    out. Raises TypeError for anything but text or an id.
    """
    real = real_tokens(model)
    if isinstance(token, str):
        tokenizer = tokenizer_of(model)
        [ids] = encode(tokenizer, [unicode_text(token, "token")])
        if len(ids) != 1:
            pieces = ", ".join(token_names(model, ids[:_PIECES])) + ", …" * (len(ids) > _PIECES)
            problem = f"{reprlib.repr(token)} is {len(ids)} tokens ({pieces})"
            raise ValueError(f"{problem}, expected one; mind the leading space")
        if ids[0] == tokenizer.unk_token_id and token != tokenizer.unk_token:
            raise ValueError(f"{token!r} is not in this model's vocabulary; it is read as {tokenizer.unk_token}")
        token = ids[0]
    token_id = whole_number(token, "a token's id")
    if not (0 <= token_id < len(real) and real[token_id]):
        raise ValueError(f"token id {token_id} is not in this model's vocabulary; expected 0 … {len(real) - 1}")
    if not fit.used[token_id]:
        raise ValueError(f"token {token_id} has a mean probability of 0 on the fitted text, which no ratio changes")
    return token_id


def steer(
    model: Model,
    token: str | int,
    ratio: float | int,
    fit: Fit,
    *,
    shift: Shift = "exact",
    weights: Weights = "least_norm",
    progress: bool = True,
) -> Recipe:
    """Multiply a token's mean probability α by `ratio`, by changing only its logit. The model itself does not change.

    | shift | what is added to the token's logit |
    |---|---|
    | `exact` | the constant s for which `E_x[p eˢ/(1 − p + p eˢ)] = ratio · α` on the fitted text (one pass) |
    | `constant` | `log ratio` |
    | `regression` | `−log(ratio) h·u`: as if `−log(ratio) u` were added to its output embedding, with `A·u = 1` |

    `regression` is that of Cho et al. (2025), §6, with which `A·E` falls by log ratio. It assumes that `h·u` is −1 at
    every position, which is not the case; see `steering_report`. u depends on `weights`; see `steering_direction`.

    Raises ValueError for a fit of another model, text that is not one token, a token that the fit left out, a ratio
    that is not positive, `ratio · α ≥ 1`, and unknown shifts or weights.

    Examples:
        >>> from interp import encoding
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> fit = encoding.fit(model, text, progress=False)
        >>> with model.hooks(fwd_hooks=steer(model, "w3", 5, fit, progress=False)):
        ...     steered = encoding.fit(model, text, progress=False)
        >>> round(float(steered.alpha[10] / fit.alpha[10]), 3)  # 10 is the id of "w3"
        5.0
    """
    fit.require(model)
    head = prediction_head(model)
    head.refuse_cap("a token cannot be steered exactly")
    token_id = token_id_of(model, token, fit)
    check_steering([ratio], [shift], [weights])
    if (mean := ratio * fit.alpha[token_id]) >= 1:
        raise ValueError(f"ratio {ratio:g} would make a mean probability of {mean:.3g}; it must stay below 1")
    odds = LogOdds(model, [token_id])
    if shift == "exact":
        observe(model, fit.batches, odds, progress=progress)
    s, t = _shift(fit, odds, token_id, ratio, shift)
    s = s / head.scale
    step = torch.from_numpy(t / head.scale * steering_direction(fit, weights)).to(model.W_U)
    name = hook_name(model, "logits")

    def add(logits: Tensor, shift: Tensor | float) -> Tensor:
        logits = logits.clone()
        logits[..., token_id] += shift
        return logits

    if t:
        names = [hook_name(model, "head_input"), name]
        return recipe_of(joint_edit(model, names, lambda h, logits: add(logits, h @ step)))
    return [(name, Edit(model, name, lambda logits, hook: add(logits, s)))]


def _shift(fit: Fit, odds: LogOdds, token_id: int, ratio: float | int, shift: Shift) -> tuple[float, float]:
    """What is added to the token's logit, `s + t h·u`, as (s, t)."""
    if shift == "exact":
        return odds.shift_for(token_id, ratio * float(fit.alpha[token_id])), 0.0
    return (math.log(ratio), 0.0) if shift == "constant" else (0.0, -math.log(ratio))


def steering_direction(fit: Fit, weights: Weights = "least_norm") -> Float[np.ndarray, " d_model"]:
    """The u of `E ← E − log(ratio) u`, with `A·u = 1`: element by element `u = Ω · A⁻¹`, with weights Ω of sum 1.

    | weights | Ω_j | u |
    |---|---|---|
    | `least_norm` | `A_j² / ‖A‖²` | `A / ‖A‖²`, the shortest u there is |
    | `weighted` | `|A_j| / Σ|A|` | `sign(A) / Σ|A|`, equally far along every dimension |
    | `top` | 1/k on the k largest |A_j|, a tenth of the dimensions, else 0 | `1 / (k A_j)` there |

    Source: Cho et al. (2025), §6, who do not specify Ω; the three choices are ours. All of them satisfy `A·u = 1`, but
    the change of the token's probability depends on `E[h·u]`, which differs between them (see `steering_report`).

    Raises ValueError for unknown weights.

    Examples:
        >>> from interp import encoding
        >>> from interp.testing import toy_decoder
        >>> fit = encoding.fit(toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20, progress=False)
        >>> [round(float(fit.slope @ steering_direction(fit, weights)), 9) for weights in WEIGHTS]
        [1.0, 1.0, 1.0]
    """
    check_choice("weights", weights, WEIGHTS)
    slope = fit.slope
    size = np.abs(slope)
    if weights == "least_norm":
        return slope / (slope @ slope)
    if weights == "weighted":
        return np.sign(slope) / size.sum()
    largest = np.argsort(-size, kind="stable")[: max(1, round(_TOP * len(size)))]
    u = np.zeros_like(slope)
    u[largest] = 1 / (len(largest) * slope[largest])
    return u


def sample_tokens(fit: Fit, *, each: int = 5, seed: int = 0) -> dict[int, str]:
    """Frequent, middling and rare tokens with α < .05, drawn from the thirds of the ranks of α, as id → group.

    Raises ValueError for a seed below 0.
    """
    seed = check_seed(seed)
    ids = np.flatnonzero(fit.used & (fit.alpha < 0.05))
    ranked = ids[np.argsort(-fit.alpha[ids], kind="stable")]
    rng = np.random.default_rng(seed)
    tenth = max(each, len(ranked) // 10)
    middle = len(ranked) // 2
    thirds = (ranked[:tenth], ranked[middle - tenth // 2 : middle + tenth // 2 + 1], ranked[-tenth:])
    drawn: dict[int, str] = {}
    for group, part in zip(("frequent", "middling", "rare"), thirds, strict=True):
        drawn |= dict.fromkeys(sorted(rng.choice(part, size=min(each, len(part)), replace=False).tolist()), group)
    return drawn


def check_steering(ratios: Sequence[float | int], shifts: Sequence[str], weights: Sequence[str]) -> None:
    """Raise ValueError unless there are ratios, none below 1e-20, and shifts and weights, which are all known."""
    if not ratios or not all(finite_number(ratio, "each ratio") >= _LEAST_RATIO for ratio in ratios):
        raise ValueError(f"each ratio must be a positive number of at least {_LEAST_RATIO:g}, found {ratios}")
    check_choices("shifts", shifts, SHIFTS)
    check_choices("weights", weights, WEIGHTS)


@runs
def steering_report(
    model: Model,
    fit: Fit,
    *,
    other: Text | None = None,
    tokens: Sequence[str | int] | None = None,
    ratios: Sequence[float | int] = RATIOS,
    shifts: Several[Shift] = SHIFTS,
    weights: Several[Weights] = ("least_norm",),
    seed: int = 0,
    progress: bool = True,
) -> Passes[pd.DataFrame]:
    """The ratios that `steer` is asked for and those that it achieves, on the fitted text and on another.

    Args:
        other: text that the fit has not seen.
        tokens: the tokens to steer. Default: five each of frequent, middling and rare tokens with α < .05.
        ratios: the requested ratios. Those that would give a mean probability of 1 or more are left out.
        weights: one or several choices of weights for the shift `regression` (see `steering_direction`).

    Returns the table `steering` of an `EncodingStudy`. `text` is `fitted` or `other`, and `weights` is empty for shifts
    other than `regression`. `achieved` has no interval, see docs/intervals.md. `kl_others` is the KL divergence between
    the renormalised mean distributions over all other tokens. (At each position, these keep their proportions.) A study
    has the medians over tokens of |log(achieved/requested)| too, as `steering_error`.

    Raises the errors of `steer`, and ValueError for unknown shifts or weights, if there are no tokens or ratios, and
    for a seed below 0. Raises TypeError for a single string in place of a list of tokens.

    Examples:
        >>> from interp import encoding
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> fit = encoding.fit(model, text, progress=False)
        >>> report = steering_report(model, fit, tokens=["w3"], ratios=[2], progress=False)
        >>> report.loc[report["shift"] == "exact", "achieved"].round(3).tolist()
        [2.0]
    """
    ratios, shifts, weights = listed(ratios), listed(shifts), listed(weights)
    check_steering(ratios, shifts, weights)
    if isinstance(tokens, str):
        raise TypeError(f"tokens must be a list of tokens or ids, found the string {tokens!r}; put it in a list")
    fit.require(model)
    if tokens is None:
        groups = sample_tokens(fit, seed=seed)
    else:
        groups = dict.fromkeys((token_id_of(model, token, fit) for token in tokens), "given")
    if not groups:
        raise ValueError("expected tokens to steer, found none")
    texts = {"fitted": fit.batches}
    if other is not None:
        texts["other"] = predicted_batches(model, other)
    odds = LogOdds(model, list(groups))
    yield [Reading("log-odds", fit.batches, [odds])]
    ways: list[tuple[Shift, str]] = []
    for shift in shifts:
        ways.extend(product([shift], weights if shift == "regression" else [""]))
    settings = []
    for token_id, ratio, way in product(groups, map(float, ratios), ways):
        if ratio * fit.alpha[token_id] < 1:
            settings.append((token_id, ratio, *way))
    if not settings:
        raise ValueError(f"every ratio of {ratios} would make a mean probability of 1 or more; ask for smaller ones")
    variants = []
    for token_id, ratio, shift, scheme in settings:
        s, t = _shift(fit, odds, token_id, ratio, shift)
        variants.append((token_id, s, [t * (scheme == choice) for choice in weights]))
    table = pd.DataFrame(settings, columns=["token_id", "requested", "shift", "weights"])
    ids = table["token_id"]
    table = table.assign(token=token_names(model, ids), group=ids.map(groups), alpha=fit.alpha[ids])
    along = np.stack([steering_direction(fit, choice) for choice in weights])
    means = {name: SteeredMeans(model, variants, along) for name in texts}
    yield [Reading("steering", prepared, [means[name]]) for name, prepared in texts.items()]
    parts = [table.assign(text=name).join(means[name].measures) for name in texts]
    columns = ["token", "token_id", "group", "text", "shift", "weights", "alpha", "requested", "achieved", "kl_others"]
    return pd.concat(parts, ignore_index=True)[columns]


def steering_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Median |log(achieved/requested)| for ratios from 1/5 to 5, from the table of `steering_report`: (text, shift,
    weights, group, error), with the group `all` too."""
    near = table[table["requested"].between(0.2 - 1e-9, 5 + 1e-9)]
    near = near.assign(error=np.abs(np.log(near["achieved"] / near["requested"])))
    groups = pd.concat([near, near.assign(group="all")])
    keys = ["text", "shift", "weights", "group"]
    return groups.groupby(keys, sort=False)["error"].median().reset_index()

"""Question 3 in whole, on one model and text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Integer

from interp.checks import check_seed
from interp.corpora import Text, sample_positions, unigrams_of
from interp.corpora.unigrams import Unigrams
from interp.encoding.geometry import directions
from interp.encoding.neurons import neuron_passes
from interp.encoding.pruning import (
    FRACTIONS,
    ORDERS,
    Basis,
    Order,
    PrunedPredictions,
    check_orders,
    pruning_table,
    removal_order,
)
from interp.encoding.regression import Fit, few_shot, fit_passes, predicted_batches
from interp.encoding.steering import MODES, RATIOS, Mode, check_asked, steering_passes
from interp.models import origin
from interp.models.head import token_names
from interp.models.sites import Model, is_encoder
from interp.results import Result, provenance
from interp.run.passes import Passes, Reading, run, side_by_side

_FRACTIONS = (0.0, 0.01, 0.02, 0.03, 0.04, *FRACTIONS[1:])  # the first per cent matter most
_PRUNED = 5_000  # positions, at random, that the pruning curves are averaged over
_SCANNED = 500  # and the effects of neurons


@dataclass(frozen=True, eq=False)
class EncodingStudy(Result):
    """What `study` found.

    - `regression`, `dims`: see `interp.encoding.fit`; `few_shot`: see `interp.encoding.few_shot`.
    - `types` (token_id, token, alpha, predicted): mean output probability and what the regression gives.
    - `pruning`: see `pruning_curve`, both bases. `steering`: see `steering_report`.
    - `directions`, `neurons` (empty for encoders), `dynamics` (of models that ship with it): see the functions.
    """

    analysis: ClassVar[str] = "encoding"

    regression: pd.DataFrame
    types: pd.DataFrame
    dims: pd.DataFrame
    few_shot: pd.DataFrame
    pruning: pd.DataFrame
    steering: pd.DataFrame
    directions: pd.DataFrame
    neurons: pd.DataFrame
    dynamics: pd.DataFrame

    @property
    def removable(self) -> pd.DataFrame:
        """The largest of the fractions up to which top-1 agreement stays at 99 % and 95 %, by basis and order, or 0."""
        rows = []
        for (basis, order), part in self.pruning.groupby(["basis", "order"], sort=False):
            kept = {f"{level:.0%}": around(part, level)[0] for level in (0.99, 0.95)}
            rows.append({"basis": basis, "order": order} | kept)
        return pd.DataFrame(rows)

    @property
    def steering_error(self) -> pd.DataFrame:
        """Median |log(got/asked)| for ratios from 1/5 to 5, by text, mode and group of tokens."""
        near = self.steering[self.steering["asked"].between(0.2 - 1e-9, 5 + 1e-9)]
        error = near.assign(error=np.abs(np.log(near["got"] / near["asked"])))
        median = error.groupby(["text", "mode", "group"], sort=False)["error"].median().unstack()
        return median.assign(all=error.groupby(["text", "mode"], sort=False)["error"].median()).reset_index()


def around(curve: pd.DataFrame, level: float) -> tuple[float, float]:
    """The fractions removed just before top-1 agreement first falls below a level and just after; NaN for never."""
    curve = curve.sort_values("fraction")
    below = curve["top1_agreement"].to_numpy() < level
    first = int(below.argmax()) if below.any() else len(below)
    fractions = curve["fraction"].tolist()
    return max(fractions[:first], default=0.0), fractions[first] if below.any() else np.nan


def study(
    model: Model,
    text_or_batches: Text,
    *,
    other: Text | None = None,
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    orders: Sequence[Order] = ORDERS,
    bases: Sequence[Basis] = ("axis", "pca"),
    modes: Sequence[Mode] = MODES,
    ratios: Sequence[float | int] = RATIOS,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> EncodingStudy:
    """Regression, pruning, steering, directions and neurons of one model.

    Pruning curves are averaged over about 5,000 of the positions, drawn at random, and neurons over about 500; all
    else over every position.

    Args:
        text_or_batches: anything `interp.corpora.batches` takes, or its batches.
        other: text the fit has not seen, for `steering`.
        unigram: token counts; the model's own, or else this text's.
        directory: see `interp.run.passes.run`.

    Raises ValueError as the functions it is made of, before the first pass for orders, bases, modes, ratios, a seed,
    counts or another text that they refuse.
    """
    analysis = study_passes(
        model, text_or_batches, other=other, unigram=unigram, orders=orders, bases=bases, modes=modes, ratios=ratios,
        seed=seed, batch_size=batch_size,
    )  # fmt: skip
    return run(model, analysis, progress=progress, directory=directory)


def study_passes(
    model: Model,
    text_or_batches: Text,
    *,
    other: Text | None = None,
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    orders: Sequence[Order] = ORDERS,
    bases: Sequence[Basis] = ("axis", "pca"),
    modes: Sequence[Mode] = MODES,
    ratios: Sequence[float | int] = RATIOS,
    seed: int = 0,
    batch_size: int | None = None,
) -> Passes[EncodingStudy]:
    """`study` for `interp.run.passes`: the fit, then what needs it."""
    orders, bases, modes, ratios = list(orders), list(bases), list(modes), list(ratios)
    check_orders(orders, bases)
    check_asked(ratios, modes)
    seed = check_seed(seed)
    prepared = predicted_batches(model, text_or_batches, batch_size=batch_size)
    other = None if other is None else predicted_batches(model, other)
    unigram = unigrams_of(model, prepared, unigram)
    fitted = yield from fit_passes(model, prepared, seed=seed)
    pruned, steering, neurons = yield from side_by_side(
        _pruning(model, fitted, orders, bases, seed),
        steering_passes(model, fitted, other=other, modes=modes, ratios=ratios, seed=seed),
        _neurons(model, fitted, unigram, seed),
    )
    return EncodingStudy(
        provenance=provenance(
            model,
            prepared.about,
            orders=orders,
            bases=bases,
            modes=modes,
            ratios=[float(ratio) for ratio in ratios],
            n_tokens=fitted.n_tokens,
        ),
        regression=fitted.regression,
        types=_types(model, fitted),
        dims=fitted.dims,
        few_shot=few_shot(model, fitted),
        pruning=pruned,
        steering=steering,
        directions=directions(model, fitted, unigram=unigram, seed=seed),
        neurons=neurons,
        dynamics=_dynamics(model),
    )


def _pruning(
    model: Model, fitted: Fit, orders: Sequence[Order], bases: Sequence[Basis], seed: int
) -> Passes[pd.DataFrame]:
    counts = [round(fraction * model.cfg.d_model) for fraction in _FRACTIONS]
    curves = {
        basis: PrunedPredictions(
            model,
            {order: removal_order(fitted, order, basis, seed=seed) for order in orders},
            counts,
            rotation=None if basis == "axis" else fitted.components,
        )
        for basis in bases
    }
    some = sample_positions(fitted.batches, min(1.0, _PRUNED / fitted.n_tokens), seed=seed)
    yield [Reading("pruning", some, list(curves.values()))]
    tables = [pruning_table(curve, basis, _FRACTIONS) for basis, curve in curves.items()]
    return pd.concat(tables, ignore_index=True)


def _neurons(model: Model, fitted: Fit, unigram: Any, seed: int) -> Passes[pd.DataFrame]:
    if is_encoder(model) or model.cfg.attn_only:
        return pd.DataFrame(columns=["layer", "neuron"])
    share = min(1.0, _SCANNED / fitted.n_tokens)
    return (yield from neuron_passes(model, fitted.batches, unigram=unigram, share=share, seed=seed))


def _types(model: Model, fitted: Fit) -> pd.DataFrame:
    ids = np.flatnonzero(fitted.used)
    log_alpha = -(fitted.slope @ model.W_U.detach().double().cpu().numpy()[:, ids] + fitted.intercept)
    return pd.DataFrame(
        {"token_id": ids, "token": token_names(model, ids), "alpha": fitted.alpha[ids], "predicted": np.exp(log_alpha)}
    )


def _dynamics(model: Model) -> pd.DataFrame:
    """The table that ships with a model (`dynamics.csv` in its directory), or an empty one."""
    directory: Path | None = origin(model).directory
    path = None if directory is None else directory / "dynamics.csv"
    if path is None or not path.is_file():
        return pd.DataFrame(columns=["step", "adj_r2", "spearman", "kl_unigram_model", "loss"], dtype=float)
    return pd.read_csv(path)

"""Directions in the prediction head's input that are scaled like a bias, and random directions to rank them among.

A model without b_LN can encode word frequency in the constant part of the head's input h, which is its mean. With
m = E[h],

    h + (λ − 1) m,    logits(λ) = logits(1) + (λ − 1) m W_U

scales m in the same way as λ b_LN scales b_LN. The direction −A, the slope of log α on the output embeddings
(`interp.encoding.fit`), is scaled likewise: at λ = 0 the logits lose the regression's estimate of the log of the mean
predicted probability.

Removing any vector from h changes predictions. So each direction is compared with random directions that have either
the same norm or the same effect, which is the SD over types of what a direction adds to the logits.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.frequency.findings import DISTANCE, NAMED, without
from interp.corpora import Batches
from interp.instruments.divergences import Distribution, kl, perplexity
from interp.instruments.logits import SiteMean
from interp.instruments.predictions import MeanPredictions, Means, Variant
from interp.instruments.regression import raw_head, regressions
from interp.models.head import PredictionHead
from interp.models.sites import Model
from interp.passes.execution import Passes, Reading
from interp.results.findings import Finding, Verdict, side
from interp.support.checks import check_choice, whole_number
from interp.support.choices import Bias, Direction, Several, listed

__all__ = ["CONTROL_COLUMNS", "DIRECTIONS", "FEWEST_CONTROLS", "Controls", "Vectors", "agreed", "check_controls"]
__all__ += ["check_directions", "control_findings", "controlled", "head_directions", "nearest", "ranks"]
__all__ += ["uncorrected", "why_no_directions"]

Vectors: TypeAlias = dict[Bias | Direction, Float[Tensor, " d_model"]]
"""Vectors in the space of the head's input, by name."""

DIRECTIONS: tuple[Direction, ...] = ("mean", "slope")
FEWEST_CONTROLS = 39
"""With this many, a random direction lies beyond all others, on either side, at most 5 times in 100: 2/(39 + 1)."""


def why_no_directions(model: Model) -> str | None:
    """Why directions in the head's input of a model cannot be scaled, or None if they can."""
    try:
        raw_head(model).refuse_cap("a vector added to its input has no closed form")
    except ValueError as error:
        return str(error)
    return None


def check_directions(asked: Several[Direction] | None) -> None:
    """Raise ValueError for unknown directions, and for a direction that is given twice."""
    if asked is None:
        return
    if len(set(listed(asked))) < len(listed(asked)):
        raise ValueError(f"directions must be different ones of {', '.join(DIRECTIONS)}, found {asked!r}")
    for one in listed(asked):
        check_choice("direction", one, DIRECTIONS)


def head_directions(model: Model, prepared: Batches, asked: Several[Direction]) -> Passes[Vectors]:
    """The requested directions, in the order of `DIRECTIONS`, from one pass: `mean` is E[h] and `slope` is −A.

    Raises the errors of `interp.instruments.regression.raw_head`, and for the slope also those of
    `interp.instruments.regression.fit_arrays`.
    """
    if not asked:
        return {}
    head = raw_head(model)
    inputs = SiteMean(model, "head_input", model.cfg.d_model, dtype=head.wide)
    predictions = MeanPredictions(model, [Variant()])
    yield [Reading("head input", prepared, [inputs, predictions] if "slope" in asked else [inputs])]
    found: Vectors = {}
    if "mean" in asked:
        found["mean"] = inputs.mean
    if "slope" in asked:
        alpha = predictions.distributions[0]
        use = head.real.cpu().numpy() & (alpha > 0)
        found["slope"] = torch.from_numpy(-regressions(head.embeddings, [alpha], use=use)[0].slope)
    return found


def check_controls(controls: int, scales: Sequence[float]) -> None:
    """Raise ValueError for fewer controls than the 5 % level needs, and if no scale changes anything. Raise TypeError
    for anything but a whole number."""
    if 0 < whole_number(controls, "controls", least=0) < FEWEST_CONTROLS:
        level = f"with {controls} a direction lies beyond all of them {200 / (controls + 1):.0f} times in 100 by chance"
        raise ValueError(
            f"controls must be 0 or {FEWEST_CONTROLS} or more, found {controls}: {level}, and at most 5 is claimed"
        )
    if controls and set(scales) == {1.0}:
        raise ValueError("controls need a scale other than 1; with scales of 1 alone nothing is edited")


def nearest(scales: Sequence[float], to: float | int) -> float:
    """The scale other than 1 that is nearest to a number.

    Examples:
        >>> nearest([0.0, 0.4, 1.0], to=0.5)
        0.4
    """
    return min((scale for scale in scales if scale != 1), key=lambda scale: abs(scale - to))


CONTROL_COLUMNS = ["bias", "scale", "kind", "draw", "norm", "effect_sd"]
CONTROL_COLUMNS += ["kl_unigram_model", "delta_kl", "perplexity", "delta_nll", "excess_nll"]


class Controls(NamedTuple):
    """Random directions to compare given ones with. `edits` has one row per variant of `predictions` (bias, scale,
    kind, draw, norm, effect_sd)."""

    edits: pd.DataFrame
    predictions: MeanPredictions

    @classmethod
    def of(
        cls,
        model: Model,
        vectors: Vectors,
        scales: Sequence[float],
        *,
        n: int,
        u: Distribution,
        classes: Int[np.ndarray, " d_vocab"],
        seed: int,
    ) -> "Controls | None":
        """n directions with the norm of each vector, and n with its effect on the logits, at the λ nearest to 0 and ½.

        The same n directions, drawn uniformly on the sphere, are scaled for each vector. Returns None for no vectors.

        Args:
            u: the unigram distribution. Effects are computed over the types that occur.
            classes: the class of each type in which NLL is summed.
        """
        if not vectors:
            return None
        head = raw_head(model)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(n, model.cfg.d_model, generator=generator, dtype=torch.float64)
        unit = drawn / drawn.norm(dim=1, keepdim=True)
        effects, seen = _effects(head, unit), head.real.cpu() & torch.from_numpy(u > 0)
        spread = effects[:, seen].std(1)
        rows, variants = [], []
        for bias, vector in vectors.items():
            norm = vector.double().cpu().norm()
            sd = _effects(head, vector[None])[0, seen].std()
            for kind, length in (("norm", norm.expand(n)), ("effect", sd / spread)):
                for scale in sorted({nearest(scales, 0), nearest(scales, 0.5)}):
                    of_all = zip(length, effects, (length * spread).tolist(), strict=True)
                    for draw, (factor, effect, effect_sd) in enumerate(of_all):
                        rows.append((bias, scale, kind, draw, float(factor), effect_sd))
                        name = f"random direction {draw} of the {kind} of {bias} × {scale:g}"
                        variants.append(Variant((scale - 1) * factor * effect, name=name))
        edits = pd.DataFrame(rows, columns=CONTROL_COLUMNS[: len(rows[0])])
        return cls(edits, MeanPredictions(model, variants, classes=classes))


def _effects(head: PredictionHead, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_vocab"]:
    """What vectors in the head's input add to the logits, in float64 on the CPU."""
    return head.embeddings.dot(vectors.to(head.wide)).double().cpu()


def controlled(
    controls: Controls, u: Distribution, unedited: Means, nll_by_class: Float[np.ndarray, " classes"]
) -> pd.DataFrame:
    """The table `controls` of `BiasEffect`: `edits`, and what each of them changes relative to the unedited model,
    whose mean NLL in each class is given."""
    kl_before, rows = kl(u, unedited.distribution), []
    for variant in range(len(controls.edits)):
        found = controls.predictions.means(variant)
        measured, apart = kl(u, found.distribution), found.nll - unedited.nll
        excess = (found.nll_by_class - nll_by_class)[0] - apart
        rows.append((measured, measured - kl_before, perplexity(found.nll), apart, excess))
    return controls.edits.join(pd.DataFrame(rows, columns=CONTROL_COLUMNS[len(controls.edits.columns) :]))


def ranks(kl: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """The rank of the ΔKL of each bias and direction among its controls, for each λ and each kind of control.

    Args:
        kl, controls: tables of `BiasEffect`.

    Returns a table (bias, scale, kind, n_controls, delta_kl, delta_kl_low, delta_kl_high, control_low, control_median,
    control_high, rank, p). Rank 1 is above all controls, and n_controls + 1 below all. `p = 2 min(r, n + 2 − r)/(n +
    1)`, at most 1, is how often a random direction would be as extreme, on either side.
    """
    rows = []
    own_columns = ["delta_kl", "delta_kl_low", "delta_kl_high"]
    beside = controls.merge(
        uncorrected(kl)[["bias", "scale", *own_columns]], on=["bias", "scale"], suffixes=("_drawn", "")
    )
    for names, part in beside.groupby(["bias", "scale", "kind"], sort=False):
        own, drawn = part[own_columns].iloc[0], part["delta_kl_drawn"].to_numpy()
        rank, n = 1 + int((drawn >= own["delta_kl"]).sum()), len(drawn)
        p = min(1.0, 2 * min(rank, n + 2 - rank) / (n + 1))
        rows.append((*names, n, *own, drawn.min(), np.median(drawn), drawn.max(), rank, p))
    columns = ["bias", "scale", "kind", "n_controls", *own_columns, "control_low", "control_median", "control_high"]
    return pd.DataFrame(rows, columns=[*columns, "rank", "p"])


def uncorrected(kl: pd.DataFrame) -> pd.DataFrame:
    """The table `kl` with the intervals of ΔKL around the value that is not corrected for bias, because those of random
    directions are not."""
    moved = kl["delta_kl"] - kl["delta_kl_corrected"]
    ends = {name: kl[name] + moved for name in ("delta_kl_low", "delta_kl_high")}
    return kl.drop(columns="delta_kl_corrected").assign(**ends)


def control_findings(kl: pd.DataFrame, controls: pd.DataFrame) -> tuple[Finding, ...]:
    """Whether each bias and direction keeps predictions near word frequency more than random directions do.

    Args:
        kl, controls: tables of `BiasEffect`.
    """
    found = ranks(kl, controls)
    lowest = found[found["scale"] == nearest(found["scale"].unique().tolist(), 0)] if len(found) else found
    return tuple(_finding(str(bias), part) for bias, part in lowest.groupby("bias", sort=False))


def _finding(bias: str, found: pd.DataFrame) -> Finding:
    """The finding on one bias, from its rows of `ranks` at one λ."""
    own = found.iloc[0]
    highest = found["control_high"].max()
    low, high = own["delta_kl_low"], own["delta_kl_high"]
    return Finding(
        question=f"Does {NAMED[bias]} keep predictions near word frequency more than a random direction does?",
        verdict=agreed([side(low, high, than=control) for control in found["control_high"]]),
        measure=f"{without(bias, own['scale'])}, {DISTANCE} changes by",
        value=own["delta_kl"],
        low=low,
        high=high,
        unit="nats",
        control=highest,
        compared_with=f"the largest change for {own['n_controls']} random directions of equal norm and as many of "
        "equal effect",
        rule="yes where the interval lies above every random direction of either kind, no where it lies below the "
        "highest of each, partly where it lies above those of one kind",
        form="{:+z.3f}",
        towards=1,
    )


def agreed(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict from those against several kinds of controls: the common verdict, or "partly" if only some say yes.

    Examples:
        >>> agreed(["yes", "yes"]), agreed(["yes", "no"]), agreed(["no", "cannot tell"])
        ('yes', 'partly', 'cannot tell')
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "partly" if "yes" in verdicts else "cannot tell"

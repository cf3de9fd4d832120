"""What follows from the sums of one task: the scores of units, the top 1 % on each part of the pairs, and how well a
single unit tells good sentences from bad."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.units.sums import Of, Place, UnitSums
from interp.instruments.uncertainty import wilson
from interp.passes import moments

__all__ = ["Kind", "TaskUnits", "auc", "auc_variance", "kinds", "n_top", "paired_t", "shared", "task_units", "top"]

_Z = 1.959964


class Kind(NamedTuple):
    """All units of one kind, place after place."""

    of: Of
    places: tuple[Place, ...]

    @property
    def at(self) -> Int[np.ndarray, " units"]:
        """The hidden state or block of each unit."""
        return np.repeat([place.at for place in self.places], [place.width for place in self.places])

    @property
    def unit(self) -> Int[np.ndarray, " units"]:
        """The number of each unit at its place."""
        return np.concatenate([np.arange(place.width) for place in self.places])


def kinds(where: list[Place]) -> list[Kind]:
    """The kinds of units at these places."""
    by_kind: dict[Of, list[Place]] = {}
    for place in where:
        by_kind.setdefault(place.of, []).append(place)
    return [Kind(name, tuple(kind_places)) for name, kind_places in by_kind.items()]


@dataclass
class TaskUnits:
    """What is kept for a task.

    - `sets[of]`: the numbers of the top units, `[fold, part, draw, top]`, and −1 if fewer units differ at all.
      Part 0 is the fold and part 1 all others. Draw 0 has the true labels, and the other draws have flipped labels.
    - `difference[at]`: the mean of good minus bad in the residual stream, `[draw, d_model]`; `parts[at]`: the same for
      each fold and for all others, `[fold, part, d_model]`.
    - `separability`, `units`: rows of these tables.
    """

    sets: dict[str, Int[np.ndarray, "fold part draw top"]] = field(default_factory=dict)
    difference: dict[int, Float[np.ndarray, "draw d_model"]] = field(default_factory=dict)
    parts: dict[int, Float[np.ndarray, "fold 2 d_model"]] = field(default_factory=dict)
    separability: list[dict[str, object]] = field(default_factory=list)
    units: list[pd.DataFrame] = field(default_factory=list)


def paired_t(difference: Float[Tensor, "4 *shape"]) -> Float[Tensor, "*shape"]:
    """`mean / (s / √n)` of the differences within pairs, with n − 1 in s; ±∞ if all are equal, and 0 if all are 0."""
    n = difference[0]
    mean = moments.mean(difference)
    return _over(mean, (moments.variance(difference) / (n - 1)).sqrt())


def _over(mean: Float[Tensor, "*shape"], error: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.where(mean == 0, 0.0, mean / error)


def n_top(n_units: int) -> int:
    """The number of the top 1 % of so many units, at least one."""
    return max(1, n_units // 100)


def top(scores: Float[Tensor, "*draws units"], n: int) -> Int[np.ndarray, "*draws n"]:
    """The n units with the largest |score|, sorted, with −1 in place of units whose score is 0."""
    values, chosen = scores.abs().topk(n, dim=-1)
    return np.sort(torch.where(values > 0, chosen, -1).cpu().numpy().astype(np.int32), axis=-1)


def shared(first: Int[np.ndarray, "*draws n"], second: Int[np.ndarray, "*draws n"]) -> Float[np.ndarray, "*draws"]:
    """The share of two sets of `top` that they have in common: |A ∩ B| / n."""
    both = np.sort(np.concatenate([first, second], axis=-1), axis=-1)
    twice = (both[..., 1:] == both[..., :-1]) & (both[..., 1:] >= 0)
    return np.asarray(twice.sum(-1) / first.shape[-1])


def auc(counts: Float[Tensor, "2 bins units"]) -> tuple[Float[Tensor, " units"], Float[Tensor, " units"]]:
    """P(g > b) + ½ P(g = b) over all good and bad sentences, from their histograms, and the largest possible difference
    from the AUC of the values themselves. Two values in one bin count ½, so it is at most `½ Σ_bin p_g p_b`. Sums of
    counts are exact, so that equal units are equal on every device."""
    good, bad = counts.double()
    below = bad.cumsum(0) - bad / 2
    n_comparisons = good.sum(0) * bad.sum(0)
    return (good * below).sum(0) / n_comparisons, (good * bad).sum(0) / (2 * n_comparisons)


def auc_variance(counts: Float[Tensor, "2 bins"]) -> float:
    """DeLong's variance of an AUC, as if good and bad sentences were drawn independently. The sentences of a pair are
    similar, so the interval is somewhat too wide."""
    n = counts.sum(1)
    good, bad = counts / n[:, None]
    below, above = bad.cumsum(0) - bad / 2, 1 - (good.cumsum(0) - good / 2)
    variance_below = (good * below**2).sum() - (good * below).sum() ** 2
    variance_above = (bad * above**2).sum() - (bad * above).sum() ** 2
    return float(variance_below / (n[0] - 1) + variance_above / (n[1] - 1))


def task_units(sums: UnitSums) -> TaskUnits:
    """What is kept from the sums of a task."""
    summary = TaskUnits()
    for kind in kinds(sums.where):
        difference = _joined(sums, "difference", kind)
        t = _with_flips(_both_parts(difference), _and_others(_joined(sums, "flipped", kind)))
        summary.sets[kind.of] = top(t, n_top(t.shape[-1]))
        total = _whole(difference)
        counts = _joined(sums, "counts", kind)
        above = (counts.sum((1, 2)) / 2 + _joined(sums, "signs", kind)) / 2
        summary.units.append(_table(kind, total, counts, summary.sets[kind.of]))
        summary.separability.append(_separability(kind, counts, above, total[0, 0]))
    for place in sums.where:
        if place.of == "residual":
            difference = sums.state[f"difference.{place.key}"]
            whole_mean = moments.mean(_whole(difference))
            flips = sums.state[f"flipped.{place.key}"].sum(0) / _whole(difference)[0]
            summary.difference[place.at] = torch.cat([whole_mean[None], flips]).float().cpu().numpy()
            summary.parts[place.at] = moments.mean(_both_parts(difference)).float().cpu().numpy()
    return summary


def _joined(sums: UnitSums, name: str, kind: Kind) -> Float[Tensor, "*shape units"]:
    return torch.cat([sums.state[f"{name}.{place.key}"] for place in kind.places], -1)


def _whole(parts: Float[Tensor, "4 fold units"]) -> Float[Tensor, "4 units"]:
    """Moments of all folds together."""
    total = parts[:, 0]
    for fold in range(1, parts.shape[1]):
        total = moments.merged(total, parts[:, fold])
    return total


def _both_parts(parts: Float[Tensor, "4 fold units"]) -> Float[Tensor, "4 fold 2 units"]:
    """Moments of each fold, and of all others together."""
    complements = []
    for fold in range(parts.shape[1]):
        complements.append(_whole(torch.cat([parts[:, :fold], parts[:, fold + 1 :]], 1)))
    return torch.stack([parts, torch.stack(complements, 1)], 2)


def _and_others(sums: Float[Tensor, "fold *shape units"]) -> Float[Tensor, "fold 2 *shape units"]:
    """Sums of each fold, and of all others together."""
    return torch.stack([sums, sums.sum(0) - sums], 1)


def _with_flips(
    difference: Float[Tensor, "4 fold part units"], flipped: Float[Tensor, "fold part draw units"]
) -> Float[Tensor, "fold part draws units"]:
    """t with the true labels, followed by those with labels flipped within pairs, which does not change `Σ d²`."""
    n = difference[0][:, :, None]
    mean = moments.mean(difference)[:, :, None]
    squares = n * moments.variance(difference)[:, :, None]
    other = flipped / n
    centred = (squares + n * (mean**2 - other**2)).clamp(min=0)
    means, centred = torch.cat([mean, other], 2), torch.cat([squares, centred], 2)
    return _over(means, (centred / n / (n - 1)).sqrt())


def _table(
    kind: Kind,
    total: Float[Tensor, "4 units"],
    counts: Float[Tensor, "fold 2 bins units"],
    sets: Int[np.ndarray, "fold part draw top"],
) -> pd.DataFrame:
    """The top units on all pairs."""
    t = paired_t(total)
    best = top(t, n_top(len(t)))
    best = best[best >= 0]
    best = best[np.argsort(-t.abs().cpu().numpy()[best], kind="stable")]
    areas, errors = auc(counts.sum(0))
    by_part = rearrange(sets[:, :, 0], "f p n -> (f p) n")
    often = np.mean([np.isin(best, part) for part in by_part], axis=0)
    columns = {
        "at": kind.at[best], "unit": kind.unit[best], "t": t.cpu().numpy()[best], "auc": areas.cpu().numpy()[best],
        "auc_error": errors.cpu().numpy()[best], "parts": often,
    }  # fmt: skip
    return pd.DataFrame(columns).assign(of=kind.of)


def _separability(
    kind: Kind,
    counts: Float[Tensor, "fold 2 bins units"],
    above: Float[Tensor, "fold units"],
    n_pairs: Float[Tensor, ""],
) -> dict[str, object]:
    """The AUC of the best unit, which is chosen, with its sign, on all folds but one, and measured on that one."""
    areas, variances, errors, shares = [], [], [], []
    for fold, chosen, up in _chosen(counts):
        fold_area, error = auc(counts[fold, :, :, chosen, None])
        areas.append(float(fold_area) if up else 1 - float(fold_area))
        errors.append(float(error))
        variances.append(auc_variance(counts[fold, :, :, chosen]))
        n = float(counts[fold, 0, :, chosen].sum())
        shares.append(float(above[fold, chosen]) if up else n - float(above[fold, chosen]))
    best = int((auc(counts.sum(0))[0] - 0.5).abs().argmax())
    area = np.mean(areas)
    reach = _Z * np.sqrt(np.sum(variances)) / len(areas)
    share = np.sum(shares) / float(n_pairs)
    low, high = wilson(np.asarray(share), float(n_pairs))
    return {
        "of": kind.of, "at": int(kind.at[best]), "unit": int(kind.unit[best]), "auc": area,
        "low": max(0.0, area - reach), "high": min(1.0, area + reach), "error": max(errors), "pair_share": share,
        "pair_low": float(low), "pair_high": float(high), "n_pairs": int(n_pairs),
    }  # fmt: skip


def _chosen(counts: Float[Tensor, "fold 2 bins units"]) -> Iterator[tuple[int, int, bool]]:
    """For each fold, the unit whose AUC on all other folds is farthest from ½, and whether that is above ½."""
    for fold, other_counts in enumerate(_and_others(counts)[:, 1]):
        area = auc(other_counts)[0]
        unit = int((area - 0.5).abs().argmax())
        yield fold, unit, bool(area[unit] >= 0.5)

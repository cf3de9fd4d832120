"""What `interp generation` finds: whether text becomes more diverse with less of b_LN."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import norm

from interp.findings import Finding, side
from interp.words import DECODER_NAME

__all__ = ["HUMAN", "diverse"]

HUMAN = "human"
"""What the tables call the human continuations in place of a decoder; their scale is NaN."""
_RULE = "yes where the interval lies above 0, no where it lies below"
_REACH = norm.ppf(0.975)


def diverse(metrics: pd.DataFrame) -> Iterator[Finding]:
    """Of each decoder, from the table `metrics`: what becomes of diversity from the largest λ to the smallest.

    The interval is that of two independent means, which is too wide where a decoder continues the same prompts alike.
    """
    human = float(metrics.loc[metrics["decoder"] == HUMAN, "diversity"].iloc[0])
    written = metrics[metrics["decoder"] != HUMAN].sort_values("scale", kind="stable")
    for decoder, part in written.groupby("decoder", sort=False):
        after, before = part.iloc[0], part.iloc[-1]
        if before["scale"] == after["scale"]:
            continue
        change = after["diversity"] - before["diversity"]
        half = _REACH * np.hypot(before["diversity_se"], after["diversity_se"])
        ends = f"from λ = {before['scale']:g} to {after['scale']:g}"
        yield Finding(
            question=f"Is text by {DECODER_NAME.get(str(decoder), str(decoder))} more diverse with less of b_LN?",
            verdict=side(change - half, change + half),
            measure=f"{ends} its diversity, {before['diversity']:.3f}, changes by",
            value=change,
            low=change - half,
            high=change + half,
            control=human - before["diversity"],
            compared_with="to that of human text",
            rule=_RULE,
            form="{:+z.3f}",
        )

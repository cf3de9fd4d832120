"""What `interp generation` finds: whether text becomes more diverse with less of b_LN."""

from collections.abc import Iterator

import pandas as pd

from interp.findings import Finding, side

__all__ = ["HUMAN", "diverse"]

HUMAN = "human"
"""What the tables call the human continuations in place of a decoder; their scale is NaN."""
_CALLED = {"greedy": "greedy decoding", "beam": "beam search", "sample": "sampling"}
_CALLED |= {"top_k": "top-k sampling", "top_p": "top-p sampling"}
_RULE = "yes where the interval lies above 0, no where it lies below"


def diverse(intervals: pd.DataFrame) -> Iterator[Finding]:
    """Of each decoder, from the table `intervals`: what becomes of diversity from λ = 1 to the smallest λ."""
    table = intervals[intervals["measure"] == "diversity"].sort_values("scale", kind="stable")
    human = float(table.loc[table["decoder"] == HUMAN, "value"].iloc[0])
    written = table[(table["decoder"] != HUMAN) & (table["scale"] != 1)].dropna(subset="difference")
    for decoder, part in written.groupby("decoder", sort=False):
        row = part.iloc[0].to_dict()
        before = row["value"] - row["difference"]
        yield Finding(
            question=f"Is text from {_CALLED.get(str(decoder), str(decoder))} more diverse with less of b_LN?",
            verdict=side(row["difference_low"], row["difference_high"]),
            measure=f"from λ = 1 to {row['scale']:g}, its diversity of {before:.3f} changes by",
            value=row["difference"],
            low=row["difference_low"],
            high=row["difference_high"],
            control=human - before,
            compared_with="its distance from human text at λ = 1",
            rule=_RULE,
            form="{:+z.3f}",
        )

"""Several runs side by side: key numbers, figures with one trace per run, and what differs most."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from interp.figures.draw import add_series
from interp.figures.figure import Figure
from interp.figures.style import run_styles
from interp.support.words import printed

__all__ = ["DEPTH", "Sides", "by_depth", "draw_runs", "extremes", "layers_of", "numbers_of", "shared"]

DEPTH = "relative depth (1: after the last layer)"


@dataclass(frozen=True, eq=False)
class Sides:
    """For every run, a row of numbers and a trace in each figure, and one sentence about what differs most."""

    definitions: dict[str, str]
    numbers: pd.DataFrame
    figures: dict[str, Figure]
    summary: str


def numbers_of(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows.values()), index=list(rows))


def shared(results: Mapping[str, Any], names: Callable[[Any], Iterable[Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each name that two or more results have in common, with these results."""
    names_of_run = {run: list(names(result)) for run, result in results.items()}
    for name in dict.fromkeys(chain.from_iterable(names_of_run.values())):
        owners = {run: result for run, result in results.items() if name in names_of_run[run]}
        if len(owners) > 1:
            yield name, owners


def extremes(quantity: str, values: pd.Series, form: str) -> str:
    """Write a sentence about the runs in which a number is smallest and largest, with both values as they are
    printed."""
    present = values.dropna().sort_values()
    if present.empty:
        return f"{quantity} is not known for any run."
    lowest = printed(present.iloc[0], form)
    highest = printed(present.iloc[-1], form)
    if lowest == highest:
        runs = "all runs" if len(present) == len(values) else ", ".join(map(str, present.index))
        return f"{quantity} is {lowest} in {runs}."
    return f"{quantity} ranges from {lowest} in {present.index[0]} to {highest} in {present.index[-1]}."


def draw_runs(out: Figure, lines: Mapping[str, pd.Series], names: list[str]) -> None:
    for name, style in run_styles(names).items():
        add_series(out, lines[name].round(5), style, hover="%{x:.3g}: %{y:.4g}", size=7, legend=True)


def layers_of(run: str, provenance: Mapping[str, Any]) -> int:
    """Return the number of layers of a run's model."""
    if "n_layers" not in provenance:
        raise ValueError(f"the provenance of {run} has no n_layers: another version saved it; run the analysis again")
    return int(provenance["n_layers"])


def by_depth(table: Any, n_layers: int) -> Any:
    """Index a table by the relative depth after each layer."""
    return table.set_axis((table.index + 1) / n_layers)

"""Headings and meanings of the columns of tables, and how their numbers are printed."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_bool_dtype, is_integer_dtype, is_numeric_dtype

from interp.support.words import BIAS_WORD, MISSING, meant, printed

__all__ = ["COMMON", "Column", "Displayed", "column", "displayed", "with_columns", "with_numbers"]
__dir__ = __all__.copy

_NUMBERS = ("floating", "integer", "mixed-integer-float", "empty")
_DIGITS, _MOST_DECIMALS, _WIDE, _ROUNDING = 3, 6, 1e3, 1e-7


class Column(NamedTuple):
    """A heading that a person reads, with its unit after a comma, what it means in a sentence, and words for the codes
    in its cells."""

    label: str
    meaning: str = ""
    words: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Displayed:
    """A column as it is printed: its heading, its cells, and what they are sorted by.

    Args:
        name: the name of the column in the table.
        heading: its heading and meaning. An interval is under the heading of its value.
        cells: the cells as they are printed.
        values: the column itself.
        numeric: whether it holds numbers.
    """

    name: str
    heading: Column
    cells: list[str]
    values: list[Any]
    numeric: bool


COMMON = {
    "layer": Column("layer", "Number of the block, counted from 0 as in TransformerLens."),
    "head": Column("head", "The attention head within its layer, counted from 0."),
    "state": Column("state", "Hidden state: 0 is the embeddings, n the output of block n − 1."),
    "dim": Column("dimension", "The dimension of the residual stream, counted from 0."),
    "token": Column("token", "The token as text; ␣ is a space, <E3> a byte of an incomplete character."),
    "token_id": Column("token id", "Number of the token in the vocabulary."),
    "activation": Column("value", "Value of the dimension or neuron at the token."),
    "before": Column("before", "The text before the token in its row."),
    "after": Column("after", "The text after the token in its row."),
    "position": Column("position", "Position of the token in its row, counted from 0."),
    "first_position": Column("from position", "First position of the group, counted from 0 at the beginning of a row."),
    "last_position": Column("to position", "Last position of the group, counted from 0 at the beginning of a row."),
    "key_class": Column("keys", "Class of the tokens that are attended to."),
    "score": Column("score", "Mean attention score, before the softmax."),
    "gap": Column("gap", "Mean score or contribution for the position, or its class, minus that for all other keys."),
    "share": Column(
        "of the sum",
        "What the dimension adds to the sum of gaps, or a component to the activation, divided by the whole: above 1 "
        "where others are negative.",
    ),
    "abs_share": Column("share of |gap|", "|gap| of the dimension divided by the sum of |gap| over all dimensions."),
    "uniform": Column("if uniform", "The attention it would get if each query attended equally to all its keys."),
    "n_activations": Column("activations", "Number of massive activations."),
    "task": Column("task", "The set of minimal pairs that test one grammatical distinction."),
    "task_a": Column("task 1", "The first task."),
    "task_b": Column("task 2", "The second task."),
    "field": Column("field", "BLiMP's field of grammar, such as syntax or semantics."),
    "linguistics_term": Column("phenomenon", "BLiMP's linguistics term."),
    "low": Column("low", "Lower end of the 95 % interval."),
    "high": Column("high", "Upper end of the 95 % interval."),
    "p": Column("p", "Probability of a value at least this extreme by chance."),
    "p_adjusted": Column("p, adjusted", "p corrected for testing all rows of a kind (Benjamini and Hochberg)."),
    "rank": Column("rank", "Rank by size; 1 is the largest."),
    "mode": Column("set to", "What the removed dimensions are set to: zero, or their mean."),
    "draw": Column("draw", "Number of the random draw."),
    "seed": Column("seed", "Seed of the random numbers."),
    "scale": Column("λ", "The factor by which the bias is multiplied: 1 as trained, 0 removed."),
    "bias": Column("bias", "What is scaled: b_LN, b_FC or b_last; mean is E[h], slope is −A.", BIAS_WORD),
    "unigram_low": Column("u, from", "Lowest word frequency of the bin or band."),
    "unigram_high": Column("u, to", "Highest word frequency of the bin or band."),
    "delta_kl": Column("ΔKL, nats", "How much further q is from word frequency than at λ = 1."),
    "delta_kl_corrected": Column("ΔKL, corrected, nats", "Difference of corrected KL from λ = 1."),
    "kind": Column(
        "kind of control",
        "What is drawn at random: a direction in the head's input, or the order of a bias's values.",
        {
            "isotropic": "any direction",
            "norm": "any direction, of equal norm",
            "effect": "any direction, of equal effect",
            "embeddings": "a sum of output embeddings",
            "centred embeddings": "a sum of centred output embeddings",
            "orders": "the order of its values",
        },
    ),
    "n_scored": Column("scored", "Number of positions whose next token is known."),
    "kl_unigram_model": Column("KL(u‖q), nats", "How far the mean prediction q is from word frequency u."),
    "js": Column("JS, nats", "Jensen–Shannon divergence of the two distributions: 0 if they are equal, at most log 2."),
    "perplexity": Column("perplexity", "exp of the mean negative log-likelihood of the true tokens."),
    "spearman": Column("Spearman ρ", "Spearman's rank correlation."),
    "pearson": Column("Pearson r", "Pearson's linear correlation."),
    "slope": Column("slope", "Slope of the least-squares line."),
    "expected": Column("by chance", "Value expected for random sets of the same size."),
    "cosine": Column("cosine", "Cosine of the angle between the two directions."),
    "difference": Column("difference", "Difference between the two, pair by pair."),
    "diversity": Column("diversity", "Mean over n = 1 to 4 of the share of distinct n-grams, all texts pooled."),
    "repetition": Column("repetition", "Share of 4-grams that occurred earlier in the same text."),
    "n_tokens": Column("tokens", "Number of tokens read."),
    "n_texts": Column("texts", "Number of texts."),
    "n_types": Column("types", "Number of distinct tokens of the vocabulary."),
    "n_dims": Column("dimensions", "Number of dimensions."),
    "n_pairs": Column("pairs", "Number of pairs."),
    "n_tasks": Column("tasks", "Number of tasks."),
    "n_top": Column("top units", "Number of units that count as the top."),
    "n_units": Column("units", "Number of units in all."),
    "n_queries": Column("queries", "Number of queries averaged over."),
    "n_keys": Column("keys", "Number of keys averaged over."),
    "n_heads": Column("heads", "Number of heads averaged over."),
}
"""Columns that mean the same in several analyses."""


def column(name: str, headings: Mapping[str, Column]) -> Column:
    """Return the heading of a column: as it is known, by the known name without `_low` or `_high`, or else its own
    name.

    Examples:
        >>> column("layer", COMMON).label, column("perplexity_low", COMMON).label, column("my_own", COMMON).label
        ('layer', 'perplexity, low', 'my own')
    """
    if name in headings:
        return headings[name]
    base, _, end = name.rpartition("_")
    if base and end in ("low", "high"):
        return Column(f"{column(base, headings).label}, {end}", COMMON[end].meaning)
    return Column(name.replace("_", " "))


def displayed(table: pd.DataFrame, headings: Mapping[str, Column] = COMMON) -> list[Displayed]:
    """Lay out a table as it is printed: an interval stands beside its value, words replace codes, empty columns are
    left out, and all numbers of a column have the same decimals.

    Examples:
        >>> table = pd.DataFrame({"layer": [0, 1], "perplexity": [12.25, 9.5], "perplexity_low": [11.5, 9.25],
        ...                       "perplexity_high": [13.0, 9.75], "js": [float("nan")] * 2})
        >>> for one in displayed(table):
        ...     print(one.heading.label, one.cells)
        layer ['0', '1']
        perplexity ['12.2 [11.5, 13.0]', '9.5 [9.2, 9.8]']
    """
    table = with_numbers(table.set_axis(table.columns.map(str), axis=1))
    parts = []
    for name, ends in _with_ends([*table], headings).items():
        values = table[name]
        if values.isna().all():
            continue
        numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
        heading = column(name, headings)
        form = _form(table[[name, *(ends or ())]]) if numeric else partial(_word, words=heading.words)
        cells = [MISSING if numeric and pd.isna(value) else form(value) for value in values]
        if ends:
            for row, (low, high) in enumerate(zip(table[ends[0]], table[ends[1]], strict=True)):
                if not (pd.isna(low) or pd.isna(high)):
                    cells[row] += f" [{form(low)}, {form(high)}]"
        parts.append(Displayed(name, heading, cells, values.tolist(), numeric))
    return parts


def with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which a column of numbers has one kind of missing value, NaN, whatever it came with: None,
    pandas.NA and pandas.NaT make it a column of objects.

    Examples:
        >>> with_numbers(pd.DataFrame({"rank": [1, None, pd.NA]}, dtype=object))["rank"].dtype
        dtype('float64')
    """
    numbers = {}
    for name in table:
        values = table[name]
        if values.dtype == object and infer_dtype(values.dropna()) in _NUMBERS:
            numbers[str(name)] = pd.to_numeric(values.fillna(math.nan))
    return table.assign(**numbers)


def with_columns(table: pd.DataFrame, columns: Sequence[str], headings: Mapping[str, Column] = COMMON) -> pd.DataFrame:
    """Return a table with some of its columns, in the order in which they are named, each with the ends of its
    interval.

    Raises ValueError if no column is named, or one that the table does not have.

    Examples:
        >>> table = pd.DataFrame({"layer": [0], "gap": [0.5], "gap_low": [0.25], "gap_high": [0.75]})
        >>> with_columns(table, ["gap"]).columns.tolist()
        ['gap', 'gap_low', 'gap_high']
    """
    names = [*map(str, table.columns)]
    unknown = [] if isinstance(columns, str) else [name for name in columns if name not in names]
    if isinstance(columns, str) or not columns or unknown:
        suggestion = meant(unknown[0], names) if unknown else ""
        raise ValueError(f"columns are {columns!r}{suggestion}; expected a list of some of {', '.join(names)}")
    ends = _with_ends(names, headings)
    with_intervals: list[str] = []
    for name in columns:
        with_intervals.extend([name, *(ends.get(name) or ())])
    return table[[*dict.fromkeys(with_intervals)]]


def _with_ends(names: Sequence[str], headings: Mapping[str, Column]) -> dict[str, tuple[str, str] | None]:
    """Each column with the two columns of its interval, if it has one: those with its name and `_low` or `_high`, or
    the next two columns, if they are called low and high and do not belong to another column. Where a value and the
    value corrected for bias (`_corrected`) are both there, the interval is around the latter."""
    ends: dict[str, tuple[str, str] | None] = dict.fromkeys(names)
    for name, low, high in zip(names, names[1:], names[2:], strict=False):
        base = name.removesuffix("_corrected")
        named_ends = (f"{base}_low", f"{base}_high")
        if set(named_ends) <= set(names) and (name != base or f"{base}_corrected" not in names):
            ends[name] = named_ends
        elif _are_ends(low, high, names, headings):
            ends[name] = (low, high)
    for pair in list(ends.values()):
        for end in pair or ():
            ends.pop(end, None)
    return ends


def _are_ends(low: str, high: str, names: Collection[str], headings: Collection[str]) -> bool:
    if (low, high) == ("low", "high"):
        return True
    base = low.removesuffix("_low")
    return low != base and high == f"{base}_high" and base not in names and low not in headings


def _form(table: pd.DataFrame) -> Callable[[Any], str]:
    """How all numbers of a column and of its interval are printed: three digits of the larger ones, fewer if
    these are exact, or powers of ten if the numbers are small and of very different size."""
    if all(map(is_integer_dtype, table.dtypes)):
        return partial(printed, form="{:,}")
    numbers = table.to_numpy(dtype=float, na_value=math.nan)
    numbers = numbers[np.isfinite(numbers)]
    sizes = np.abs(numbers)
    numbers = numbers[sizes > _ROUNDING * sizes.max(initial=0)]
    if not len(numbers):
        return partial(printed, form="{:.0f}")
    sizes = np.abs(numbers)
    is_small = np.quantile(sizes, 0.25, method="lower") < 1e-4
    if sizes.max() > _WIDE * sizes.min() and is_small and (numbers >= 0).all():
        return lambda value: printed(value, "{:.2e}" if value else "0")
    least = _MOST_DECIMALS
    for decimals in reversed(range(_DIGITS)):
        if np.array_equal(numbers, numbers.round(decimals)):
            least = decimals
    size = math.floor(math.log10(np.quantile(sizes, 0.75)))
    decimals = min(max(_DIGITS - 1 - size, 0), least)
    return partial(printed, form=f"{{:z,.{decimals}f}}")


def _word(value: Any, words: Mapping[str, str]) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, dict | list | np.ndarray):
        return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value, ensure_ascii=False)
    return MISSING if pd.isna(value) else words.get(str(value), str(value))

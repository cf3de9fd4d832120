"""The tokens of minimal pairs at which neurons are largest, in their sentences."""

from collections.abc import Iterable

import pandas as pd

from interp.analyses.probing.states import States
from interp.corpora.batching import Batches
from interp.corpora.sentences import Cut, numbered
from interp.passes.contexts import CONTEXTS

__all__ = ["NEURON_TOKENS", "neuron_tokens"]

NEURON_TOKENS = [*CONTEXTS[:-2], "task", "pair", "sentence", "position"]


def neuron_tokens(states: States, neurons: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """The 20 tokens of all sentences at which each of some neurons has the largest magnitude, including special ones.

    Args:
        states: from `interp.probing.collect(…, largest=True)`.
        neurons: each dimension with its state.

    Returns the table `contexts` of a `ProbingStudy`; see `interp.passes.contexts.LargestTokens`.

    Raises ValueError for states that were collected without the largest tokens.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, largest=True, progress=False)
        >>> table = neuron_tokens(states, [(17, 6)])
        >>> len(table), table["activation"].abs().is_monotonic_decreasing
        (20, True)
    """
    if states.tokens is None:
        raise ValueError("these states lack the largest tokens; collect them with largest=True")
    rows = states.rows
    read = Batches({}, len(rows), lambda: iter(()), rows=lambda: numbered(Cut(row, [len(row)]) for row in rows))
    table = states.tokens.table(read, neurons)
    pair, side = table["text"] // 2, table["text"] % 2
    task = states.pairs["UID"].to_numpy()[pair]
    return table.assign(task=task, pair=pair, sentence=side.map({0: "good", 1: "bad"}))[NEURON_TOKENS]

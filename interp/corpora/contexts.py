"""Tokens of a corpus in readable form, with their context."""

from collections.abc import Iterable
from itertools import islice

import pandas as pd

from interp.corpora.batching import Batches
from interp.corpora.sentences import Row
from interp.models.sites import Model
from interp.models.spelling import Spelling

__all__ = ["CONTEXT", "in_context"]

CONTEXT = ["before", "token", "after", "text", "position"]
"""The columns of `in_context`."""
_AROUND = 8  # tokens on either side


def in_context(model: Model, read: Batches, places: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """Show tokens of batches with up to eight tokens of their row on either side.

    The token ids are read again from where they are stored; the model is not run.

    Args:
        places: for each token, the number of its row in the corpus (`Batch.rows`) and its position in the row.

    Returns a table with one row per place (before, token, after, text, position). `token` is the name of the token
    (`␣the`), `before` and `after` are running text with the spaces next to the token, `text` is the number of its text
    in the corpus (from 0), and `position` is its position in the row. In packed rows, one text follows another. Without
    a tokenizer, tokens are shown as ids.

    Raises ValueError for a place without a token, and for batches that were made by hand and do not have the numbers of
    their rows.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> text = batches(model, ["w1 w2 w3", "w4 w5 w6"] * 20, context=12)
        >>> in_context(model, text, [(0, 4), (1, 0)])
                 before token                     after  text  position
        0  w1 w2 w3 w4     w5      w6 w1 w2 w3 w4 w5 w6     1         4
        1                  w1   w2 w3 w4 w5 w6 w1 w2 w3     4         0
    """
    occurrences = list(places)
    rows = _rows(read, {row for row, _ in occurrences})
    spelling = None if model.tokenizer is None else Spelling(model.tokenizer)
    records = []
    for number, pos in occurrences:
        ids = rows[number].ids.tolist() if number in rows else []
        if not 0 <= pos < len(ids):
            raise ValueError(
                f"no token at position {pos} of row {number}; a place is a row and a position in it, from 0"
            )
        around = ids[max(0, pos - _AROUND) : pos], ids[pos], ids[pos + 1 : pos + 1 + _AROUND]
        records.append((*_words(spelling, *around), rows[number].text_at(pos), pos))
    return pd.DataFrame(records, columns=CONTEXT).astype({"text": "int64", "position": "int64"})


def _rows(read: Batches, numbers: set[int]) -> dict[int, Row]:
    """The rows with these numbers. The corpus is read up to the last of them."""
    if not numbers:
        return {}
    if read.rows is None:
        raise ValueError("these batches do not say which rows they have; make them with interp.corpora.batches")
    rows = {}
    for row in islice(read.rows(), max(numbers) + 1):
        if row.number in numbers:
            rows[row.number] = row
    return rows


def _words(
    spelling: Spelling | None, preceding: list[int], token_id: int, following: list[int]
) -> tuple[str, str, str]:
    """The text before a token, the token's name, and the text after it."""
    if spelling is None:
        return " ".join(map(str, preceding)), str(token_id), " ".join(map(str, following))
    (name,) = spelling.names([token_id])
    space = " " if spelling.running([token_id]).startswith(" ") else ""
    return (spelling.running(preceding) + space).lstrip(" "), name, spelling.running(following).rstrip(" ")

"""What every panel has in common: the model that is explored, and what a panel answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from interp.analyses.probing.sweeps import Sweep
from interp.analyses.registry import load_result
from interp.corpora import batches
from interp.corpora.counts import unigrams_of
from interp.corpora.sentences import sentence_rows
from interp.corpora.unigrams import Unigrams
from interp.figures.figure import Figure
from interp.models import load
from interp.models.identity import weight_hash
from interp.models.sites import Model
from interp.models.spelling import token_names
from interp.pages.explorer.prepared import Prepared, first_texts, prepared

__all__ = ["MOST_TOKENS", "Answer", "Subject", "code", "subject", "token_ids"]

MOST_TOKENS = 256
"""The most tokens that a text may have in the explorer."""


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that is explored, and what was prepared.

    `loading`, `reading` and `probing` are the Python expressions that load the model, the prepared text and the probes.
    `unigram` has the word frequencies, and `probes` is a saved run of probing, if there is one.
    """

    model: Model
    loading: str
    reading: str
    prepared: Prepared
    unigram: Unigrams
    probes: Sweep | None = None
    probing: str = ""

    @cached_property
    def names(self) -> list[str]:
        """The names of all tokens of the vocabulary."""
        return token_names(self.model, range(len(self.unigram.distribution)))


@dataclass(frozen=True, eq=False)
class Answer:
    """What a panel shows: sentences with their numbers, figures (the first is the main one), tables by heading, lines
    for a notebook that give the same numbers, and those of the sentences by their names in the code."""

    notes: list[str]
    figures: dict[str, Figure]
    tables: dict[str, pd.DataFrame]
    code: str
    numbers: dict[str, float]


def subject(model: str, options: Mapping[str, Any], *, corpus: str = "bundled", probes: Path | None = None) -> Subject:
    """A model by name, with what is prepared of a corpus, and the probes of a saved run.

    Args:
        options: the keyword arguments of `interp.load`.

    Raises the errors of `interp.load`, ValueError for a model without a tokenizer, and FileNotFoundError or ValueError
    for a directory without a run of probing, or with one of a model with other weights.
    """
    run = None if probes is None else load_result(probes, "probing")
    loaded = load(model, **options)
    if run is not None and run.provenance["weight_hash"] != weight_hash(loaded):
        problem = f"the run in {probes} is of {run.provenance['model']}, whose weights are not those of {model}"
        raise ValueError(f"{problem}; probe this model (interp probing), or leave --probes out")
    text = first_texts(corpus)
    named = "".join(f", {name}={value!r}" for name, value in options.items())
    return Subject(
        loaded,
        loading=f"interp.load({model!r}{named})",
        reading=f"interp.corpora.load({corpus!r}, limit={text.limit})",
        prepared=prepared(loaded, text),
        unigram=unigrams_of(loaded, batches(loaded, text)),
        probes=run if isinstance(run, Sweep) else None,
        probing=f"interp.load_result({str(probes)!r}, 'probing')",
    )


def token_ids(model: Model, text: str) -> list[int]:
    """The token ids of a text as the model reads it.

    Raises ValueError for a text without tokens, or with more than 256 or than the model's context.
    """
    if not text.strip():
        raise ValueError("there is no text to read; type a sentence")
    [ids] = sentence_rows(model, [text])
    if len(ids) > MOST_TOKENS:
        raise ValueError(f"the text has {len(ids):,} tokens; the explorer shows at most {MOST_TOKENS}: shorten it")
    return ids


def code(explored: Subject, lines: str) -> str:
    """A cell of a notebook: imports, the line that loads the model, and the other lines."""
    imports = []
    body = []
    for line in filter(None, lines.splitlines()):
        if line.startswith(("import ", "from ")):
            imports.append(line)
        else:
            body.append(line)
    return "\n".join(["import interp", *sorted(imports, reverse=True), "", f"model = {explored.loading}", *body, ""])

"""Bad input to a pass over batches: things that are not observers or batches, or that belong to another model."""

import pytest
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp import corpora
from interp.instruments.logits import SiteMean
from interp.instruments.predictions import MeanPredictions, Variant
from interp.passes.reading import observe

CASES: dict[str, Case] = {
    "texts in place of batches": (
        TYPE,
        ("batches", "list"),
        lambda w: observe(w.model("gpt2"), w.texts, SiteMean(w.model("gpt2"), "head_input", 16)),
    ),
    "an observer of another model": (
        BAD,
        ("model",),
        lambda w: observe(
            w.model("gpt2"),
            corpora.batches(w.model("gpt2"), w.texts),
            MeanPredictions(w.model("llama"), [Variant()]),
            **quiet,
        ),
    ),
    "no observer": (
        BAD,
        ("observers",),
        lambda w: observe(w.model("gpt2"), corpora.batches(w.model("gpt2"), w.texts)),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

"""Bad models, scales and counts that the frequency analysis refuses."""

import numpy as np
import pytest
import torch
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp import frequency

CASES: dict[str, Case] = {
    "a model of torch": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: frequency.bias_effect(torch.nn.Linear(1, 1), w.texts),
    ),
    "infinity in BERT": (
        BAD,
        "W_Q of this model has NaN or inf",
        lambda w: frequency.bias_effect(w.broken("bert", np.inf), w.texts, unigram=w.counts, **quiet),
    ),
    "a scale of NaN": (
        BAD,
        "different finite numbers",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=[np.nan], **quiet),
    ),
    "no scale": (BAD, "at least one", lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=[], **quiet)),
    "another vocabulary": (
        BAD,
        "over 5 types",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=np.arange(5), **quiet),
    ),
    "counts of no kind": (
        TYPE,
        "found list",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=[1] * 67, **quiet),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

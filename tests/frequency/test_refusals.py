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
    "a name for a scale": (
        BAD,
        "one or more different finite numbers, found ['a']",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=["a"], **quiet),
    ),
    "part of a band": (
        TYPE,
        "bands must be a whole number, found 2.5",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, bands=2.5, **quiet),
    ),
    "a name for controls": (
        TYPE,
        "controls must be a whole number, found '39'",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, controls="39", **quiet),
    ),
    "no scale": (
        BAD,
        "one or more different finite numbers",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=[], **quiet),
    ),
    "another vocabulary": (
        BAD,
        "over 5 types",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=np.arange(5), **quiet),
    ),
    "too few controls": (
        BAD,
        "found 20: with 20 a direction lies beyond all of them 10 times in 100 by chance",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, controls=20, **quiet),
    ),
    "controls of nothing": (
        BAD,
        "need a scale other than 1",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, controls=39, scales=[1], **quiet),
    ),
    "one band": (
        BAD,
        "bands must be 0 or 2",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, bands=1, **quiet),
    ),
    "an unknown direction": (
        BAD,
        "unknown direction 'median'",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, directions=["median"], **quiet),
    ),
    "a direction twice": (
        BAD,
        "different ones of mean, slope",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, directions=["mean", "mean"], **quiet),
    ),
    "no bias and no direction": (
        BAD,
        "leave directions out to scale its mean input",
        lambda w: frequency.bias_effect(w.model("llama"), w.texts, directions=[], **quiet),
    ),
    "a text shorter than one row": (
        BAD,
        "shorter than one row of 24 tokens",
        lambda w: frequency.bias_effect(
            w.model("gpt2"), ["w1 w2"], directions=["mean"], controls=39, unigram=w.counts, **quiet
        ),
    ),
    "counts in a list": (
        TYPE,
        "found list",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=[1] * 67, **quiet),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

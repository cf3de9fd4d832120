"""Bad models, scales and counts that the frequency analysis refuses."""

import numpy as np
import pytest
import torch
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp import frequency

CASES: dict[str, Case] = {
    "a model of torch": (
        TYPE,
        ("HookedTransformer",),
        lambda w: frequency.study(torch.nn.Linear(1, 1), w.texts),
    ),
    "infinity in BERT": (
        BAD,
        ("W_Q", "NaN"),
        lambda w: frequency.study(w.broken("bert", np.inf), w.texts, unigram=w.counts, **quiet),
    ),
    "a scale of NaN": (
        BAD,
        ("scales", "nan"),
        lambda w: frequency.study(w.model("gpt2"), w.texts, scales=[np.nan], **quiet),
    ),
    "a name for a scale": (
        BAD,
        ("scales", ["a"]),
        lambda w: frequency.study(w.model("gpt2"), w.texts, scales=["a"], **quiet),
    ),
    "no scale": (
        BAD,
        ("scales", []),
        lambda w: frequency.study(w.model("gpt2"), w.texts, scales=[], **quiet),
    ),
    "another vocabulary": (
        BAD,
        (5, "types", 67),
        lambda w: frequency.study(w.model("gpt2"), w.texts, unigram=np.arange(5), **quiet),
    ),
    "an unknown direction": (
        BAD,
        ("direction", "'median'"),
        lambda w: frequency.study(w.model("gpt2"), w.texts, directions=["median"], **quiet),
    ),
    "a direction twice": (
        BAD,
        ("mean, slope",),
        lambda w: frequency.study(w.model("gpt2"), w.texts, directions=["mean", "mean"], **quiet),
    ),
    "no bias and no direction": (
        BAD,
        ("bias", "directions"),
        lambda w: frequency.study(w.model("llama"), w.texts, directions=[], **quiet),
    ),
    "a text shorter than one row": (
        BAD,
        (24, "row"),
        lambda w: frequency.study(w.model("gpt2"), ["w1 w2"], directions=["mean"], unigram=w.counts, **quiet),
    ),
    "counts in a list": (
        TYPE,
        ("list",),
        lambda w: frequency.study(w.model("gpt2"), w.texts, unigram=[1] * 67, **quiet),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

"""Bad models, draws, bands and scales that the comparison with random directions refuses."""

import pytest
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp import controls

CASES: dict[str, Case] = {
    "part of a band": (
        TYPE,
        ("bands", 2.5),
        lambda w: controls.study(w.model("gpt2"), w.texts, bands=2.5, **quiet),
    ),
    "one band": (
        BAD,
        ("bands", 2, 1),
        lambda w: controls.study(w.model("gpt2"), w.texts, bands=1, **quiet),
    ),
    "a name for draws": (
        TYPE,
        ("draws", "'39'"),
        lambda w: controls.study(w.model("gpt2"), w.texts, draws="39", **quiet),
    ),
    "too few draws": (
        BAD,
        ("draws", 39, 20),
        lambda w: controls.study(w.model("gpt2"), w.texts, draws=20, **quiet),
    ),
    "nothing edited": (
        BAD,
        ("scale", 1),
        lambda w: controls.study(w.model("gpt2"), w.texts, scales=[0, 1], **quiet),
    ),
    "an unknown direction": (
        BAD,
        ("direction", "'median'"),
        lambda w: controls.study(w.model("gpt2"), w.texts, directions=["median"], **quiet),
    ),
    "no b_LN and no direction": (
        BAD,
        ("b_LN", "directions"),
        lambda w: controls.study(w.model("llama"), w.texts, directions=[], **quiet),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

"""The rule of verdicts: its cases, and how often it errs on values and controls that are drawn alike."""

import math

import numpy as np
import pytest
from naming import naming

from interp.results.findings import findings_table
from interp.results.verdicts import SMALLEST, Control, compare, judged, smallest

NONE = math.nan
CHANCE = Control("chance", [0.5], "number")
ORDERS = Control("random orders", np.linspace(0.0, 0.1, 39))
MODELS = Control("untrained models", [0.1, 0.2, 0.3], "models")
WORDS = {"question": "Is it so?", "measure": "it is", "smallest": 0.02, "form": "{:.2f}"}


@pytest.mark.parametrize(
    ("control", "value", "low", "high", "outcome"),
    [
        (CHANCE, 0.60, 0.55, 0.65, "yes"),
        (CHANCE, 0.515, 0.51, 0.52, "cannot tell"),  # above chance, but smaller than s, and not known to be
        (CHANCE, 0.505, 0.50, 0.51, "no"),
        (CHANCE, 0.60, 0.49, 0.71, "cannot tell"),
        (CHANCE, 0.40, 0.35, 0.45, "opposite"),
        (CHANCE, 0.60, NONE, NONE, "cannot tell"),
        (CHANCE, NONE, NONE, NONE, "cannot tell"),
        (ORDERS, 0.20, 0.15, 0.25, "yes"),
        (ORDERS, 0.10, 0.09, 0.11, "yes"),  # one control of 39 equals it: p = .05
        (ORDERS, 0.098, 0.09, 0.11, "yes"),
        (ORDERS, 0.097, 0.09, 0.11, "cannot tell"),  # two of 39 reach it
        (ORDERS, -0.10, -0.11, -0.09, "opposite"),
        (Control("random orders", [0.0] * 38), 0.20, 0.15, 0.25, "cannot tell"),
        (Control("random orders", [0.2] * 39), 0.20, 0.199, 0.201, "no"),  # ties count against the effect
        (Control("random orders", [*np.linspace(0, 0.1, 39), NONE]), 0.20, 0.15, 0.25, "yes"),
        (Control("random orders", []), 0.20, 0.15, 0.25, "cannot tell"),
        (MODELS, 0.40, 0.33, 0.47, "yes"),
        (MODELS, 0.40, 0.31, 0.49, "cannot tell"),
        (MODELS, 0.20, 0.19, 0.21, "no"),
        (MODELS, 0.0, -0.05, 0.05, "opposite"),
        (Control("untrained models", [0.1, 0.2], "models"), 0.9, 0.8, 1.0, "cannot tell"),
    ],
)  # fmt: skip
def test_each_case_of_the_rule(control, value, low, high, outcome):
    assert compare(value, low, high, control, smallest=0.02).outcome == outcome
    turned = control._replace(values=-np.asarray(control.values))
    mirrored = compare(-value, -high, -low, turned, smallest=0.02, towards=-1)
    assert mirrored.outcome == outcome


def test_the_interval_takes_in_the_spread_of_the_median():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(2_000, 39))
    held = [
        (found := compare(1.0, 1.0, 1.0, Control("draws", row), smallest=0.1)).low <= 1.0 <= found.high for row in draws
    ]
    assert 0.93 < np.mean(held) < 0.99  # order statistics hold the median in at least 95 %
    lone = compare(1.0, 0.8, 1.2, CHANCE, smallest=0.1)
    assert (lone.effect, lone.low, lone.high) == pytest.approx((0.5, 0.3, 0.7))


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_values_drawn_like_their_controls_seldom_get_a_yes(spread):
    """The interval knows nothing of the controls' spread, as for a bias among random directions."""
    rng = np.random.default_rng(1)
    outcomes = []
    for value, *controls in rng.normal(size=(2_000, 40)):
        half = 1.96 * spread
        measured = value + spread * rng.normal()
        draws = np.array(controls) + spread * rng.normal(size=39)
        outcomes.append(compare(measured, measured - half, measured + half, Control("d", draws), smallest=0.1).outcome)
    counts = {name: outcomes.count(name) for name in ("yes", "opposite", "no")}
    assert max(counts["yes"], counts["opposite"]) <= 125, counts  # 5 % of 2,000, and 2.5 standard errors


def test_an_effect_twice_as_large_as_the_smallest_of_interest_is_found():
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(400):
        value = 0.1 + 0.01 * rng.normal()
        draws = Control("draws", 0.01 * rng.normal(size=39))
        found += compare(value, value - 0.0196, value + 0.0196, draws, smallest=0.05).outcome == "yes"
    assert found >= 380


def told(*controls, value=0.2, half=0.05, **words):
    return judged(value=value, low=value - half, high=value + half, controls=controls, **WORDS | words)


def test_partly_says_which_control_was_not_passed():
    finding = told(ORDERS, Control("models of noise", [0.5, 0.5, 0.5], "models"))
    assert (finding.verdict, finding.because) == (
        "partly",
        "it does not pass models of noise: the difference is below 0.02",
    )
    assert str(finding).endswith("Partly.")
    assert told(ORDERS, ORDERS).verdict == "yes"
    assert told(CHANCE, ORDERS, value=0.3).verdict == "partly"


def test_cannot_tell_says_what_would_decide():
    assert told(CHANCE, value=0.53, sample=(10, "text")).because.startswith("about 28 texts would decide it")
    assert told(CHANCE, value=0.53, half=5.0, sample=(10, "text")).because.startswith("even 1,000 texts would not")
    assert told(Control("random orders", [0.0] * 5)).because == "39 random orders are the fewest that can decide it"
    assert told(Control("random orders", [0.0] * 30 + [0.3] * 9)).because == "9 of 39 random orders reach it"


def test_a_finding_keeps_what_it_was_judged_by():
    finding = told(ORDERS, unit="nats")
    table = findings_table([finding])
    assert table[["control", "smallest", "p", "n_controls"]].iloc[0].tolist() == pytest.approx([0.05, 0.02, 0.025, 39])
    assert table["effect"].item() == pytest.approx(0.15)
    assert str(finding) == "Is it so? It is 0.20 nats [0.15, 0.25]; 39 random orders: median 0.05, p = 0.025. Yes."
    below = told(ORDERS, value=-0.2)
    assert (below.verdict, below.answer) == ("no", "no, the opposite")
    assert told(CHANCE, value=0.5, half=0.01).answer == "no"


def test_sizes():
    assert (smallest("divergence", 0.05), smallest("attention", 0.5)) == (0.005, 0.05)
    assert all(absolute > 0 or relative > 0 for absolute, relative in SMALLEST.values())
    with pytest.raises(KeyError, match=naming("weight")):
        smallest("weight")


def test_refusals():
    with pytest.raises(ValueError, match=naming("smallest=0")):
        compare(1.0, 0.5, 1.5, CHANCE, smallest=0)
    with pytest.raises(ValueError, match=naming("Is it so?")):
        told()

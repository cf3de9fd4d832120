"""Bad arguments of the encoding analysis are refused before the model reads text; odd but valid ones are accepted."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from workshop import BAD, MISSING, TYPE, Case, Workshop, check_refused, quiet

from interp import corpora, encoding
from interp.analyses.encoding.steering import sample_tokens
from interp.corpora.unigrams import Unigrams
from interp.instruments import regression


def other_tokenizer(w: Workshop) -> Unigrams:
    """Counts over the same number of types, from another vocabulary."""
    return Unigrams(w.counts.counts, "elsewhere", tokenizer="another")


def encoded(w: Workshop, **options: Any) -> Any:
    return encoding.study(w.model("gpt2"), w.texts, unigram=options.pop("unigram", w.counts), **options, **quiet)


def steered(w: Workshop, **options: Any) -> pd.DataFrame:
    return encoding.steering_report(w.model("gpt2"), w.fit(), **options, **quiet)


def regressed(**options: Any) -> regression.Regression:
    rng = np.random.default_rng(0)
    return regression.fit_arrays(rng.normal(size=(2, 40)), rng.dirichlet(np.ones(40)), **options)


CASES: dict[str, Case] = {
    "no tokens to fit": (
        BAD,
        ("tokens", 1, 0),
        lambda w: encoding.few_shot(w.model("gpt2"), w.fit(), tokens=[0]),
    ),
    "part of a token to fit": (
        TYPE,
        ("tokens", 100.5),
        lambda w: encoding.few_shot(w.model("gpt2"), w.fit(), tokens=100.5),
    ),
    "no checkpoints": (
        MISSING,
        ("checkpoints/step-N", "0, 5"),
        lambda w: encoding.training.checkpoints(w.directory("gpt2"), [0, 5]),
    ),
    "no blocks with neurons": (
        BAD,
        ("MLP",),
        lambda w: encoding.frequency_neurons(w.toy(n_layers=0), w.texts, unigram=w.counts, **quiet),
    ),
    "fewer classes than tokens": (
        BAD,
        (10, 67),
        lambda w: encoding.fit(w.toy(d_vocab_out=10), w.texts, **quiet),
    ),
    "soft-capped logits": (
        BAD,
        ("logits",),
        lambda w: encoding.steering.SteeredMeans(
            w.toy(output_logits_soft_cap=5.0), [(3, 1.0, [0.0])], np.ones((1, 16))
        ),
    ),
    "a ratio of NaN to steer by": (
        BAD,
        ("ratio", "nan"),
        lambda w: encoding.steer(w.model("gpt2"), "w3", np.nan, w.fit(), **quiet),
    ),
    "another model's fit": (
        BAD,
        ("interp.encoding.fit",),
        lambda w: encoding.pruning_curve(w.model("llama"), w.texts, fit=w.fit(), **quiet),
    ),
    "a probability of NaN": (
        BAD,
        ("alpha",),
        lambda w: regression.fit_arrays(np.ones((2, 9)), np.full(9, np.nan)),
    ),
    "embeddings of NaN": (
        BAD,
        ("W_U", "NaN"),
        lambda w: regression.fit_arrays(np.full((2, 9), np.nan), np.full(9, 0.1)),
    ),
    "embeddings of other types": (
        BAD,
        (8, "types", "alpha"),
        lambda w: regression.fit_arrays(np.ones((2, 9)), np.full(8, 0.1)),
    ),
    "numbers for a choice": (
        BAD,
        ("use", 40, "int64", (40,)),
        lambda w: regressed(use=np.arange(40) % 2),
    ),
    "a choice of too few types": (BAD, ("use", "bool", (1,)), lambda w: regressed(use=np.ones(1, bool))),
    "counts of another tokenizer": (
        BAD,
        ("counts", "tokenizer"),
        lambda w: encoding.dynamics([(0, w.model("gpt2"))], w.texts, unigram=other_tokenizer(w), **quiet),
    ),
    "counts of another size": (
        BAD,
        (5, "types", 67),
        lambda w: encoding.dynamics([(0, w.model("gpt2"))], w.texts, unigram=np.arange(5), **quiet),
    ),
    "a string of tokens": (
        TYPE,
        ("tokens", "list", "' the'"),
        lambda w: steered(w, tokens=" the"),
    ),
    "half a character": (
        BAD,
        ("token", "surrogate", r"'\udc00'", 1),
        lambda w: encoding.steer(w.model("gpt2"), "w\udc00", 2, w.fit(), **quiet),
    ),
    "part of a token": (
        TYPE,
        ("token", 3.7),
        lambda w: encoding.steer(w.model("gpt2"), 3.7, 2, w.fit(), **quiet),
    ),
    "no token": (BAD, ("tokens", "none"), lambda w: steered(w, tokens=[])),
    "no ratio": (BAD, ("ratio", []), lambda w: steered(w, ratios=iter(()))),
    "an unmasked other text": (
        BAD,
        ("mask_rate",),
        lambda w: encoding.study(
            w.model("bert"), w.texts, unigram=w.counts, other=corpora.batches(w.model("bert"), w.texts), **quiet
        ),
    ),
    "an unknown order": (BAD, ("orders", ["up"]), lambda w: encoded(w, orders=["up"])),
    "no order": (BAD, ("orders", []), lambda w: encoded(w, orders=[])),
    "an order of its own": (
        BAD,
        ("order", "random, reverse", "'up'"),
        lambda w: encoding.pruning.removal_order(w.fit(), "up"),
    ),
    "an unknown basis": (BAD, ("axis, pca", ["ica"]), lambda w: encoded(w, bases=["ica"])),
    "an unknown mode": (BAD, ("shifts", "exact, constant", ["Exact"]), lambda w: encoded(w, shifts=["Exact"])),
    "unknown weights": (BAD, ("weights", ["equal"]), lambda w: encoded(w, weights=["equal"])),
    "no weights": (BAD, ("weights", []), lambda w: encoded(w, weights=[])),
    "unknown weights of a recipe": (
        BAD,
        ("weights", "equal"),
        lambda w: encoding.steer(w.model("gpt2"), "w3", 2, w.fit(), shift="regression", weights="equal", **quiet),
    ),
    "a ratio of NaN": (BAD, ("ratio", "nan"), lambda w: encoded(w, ratios=[np.nan])),
    "another vocabulary": (BAD, (5, "types", 67), lambda w: encoded(w, unigram=np.arange(5))),
    "another tokenizer": (BAD, ("counts", "tokenizer"), lambda w: encoded(w, unigram=other_tokenizer(w))),
    "a seed below 0": (
        BAD,
        ("seed", 0, -1),
        lambda w: encoding.fit(w.model("gpt2"), w.texts, seed=-1, **quiet),
    ),
    "a fractional seed": (TYPE, ("seed", 0.5), lambda w: encoded(w, seed=0.5)),
    "a seed for neurons": (
        BAD,
        ("seed", 0, -1),
        lambda w: encoding.frequency_neurons(w.model("gpt2"), w.texts, unigram=w.counts, share=0.5, seed=-1, **quiet),
    ),
    "a share above 1": (
        BAD,
        ("share", 0, 2),
        lambda w: encoding.frequency_neurons(w.model("gpt2"), w.texts, unigram=w.counts, share=2, **quiet),
    ),
    "a seed for tokens": (BAD, ("seed", 0, -1), lambda w: sample_tokens(w.fit(), seed=-1)),
    "a seed for an order": (
        BAD,
        ("seed", 0, -1),
        lambda w: encoding.pruning.removal_order(w.fit(), "random", seed=-1),
    ),
}


@pytest.mark.usefixtures("untyped", "unread")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


@pytest.mark.usefixtures("untyped")
def test_sequences_of_any_kind(workshop: Workshop) -> None:
    """Generators and arrays are read once, and give the same results as lists."""
    model, fit = workshop.model("gpt2"), workshop.fit()
    curve = [
        encoding.pruning_curve(model, workshop.texts, fit=fit, order="slope", fractions=fractions, **quiet)
        for fractions in ([0.0, 0.5], iter([0.0, 0.5]), np.array([0.0, 0.5]))
    ]
    assert len(curve[0]) == 2
    report = [
        steered(workshop, tokens=tokens, ratios=ratios, shifts=shifts)
        for tokens, ratios, shifts in (
            (["w3", 11], [0.5, 2.0], ["exact"]),
            (iter(["w3", np.int64(11)]), np.array([0.5, 2.0]), iter(["exact"])),
        )
    ]
    assert len(report[0]) == 4
    options: Any = {"orders": ["slope"], "bases": ["axis"], "shifts": ["exact"], "ratios": [2.0]}
    listed = encoded(workshop, seed=1, **options)
    once = encoded(workshop, seed=np.int64(1), **{name: iter(values) for name, values in options.items()})
    for one, *others in (curve, report, *([listed.tables[name], once.tables[name]] for name in listed.tables)):
        for other in others:
            pd.testing.assert_frame_equal(one, other)
    assert once.provenance["orders"] == ["slope"]
    once.save(workshop.root / "saved")


@pytest.mark.usefixtures("untyped")
def test_counts_for_dynamics_in_any_form(workshop: Workshop) -> None:
    """As counts, as an array or as a file."""
    workshop.counts.save(workshop.root / "counts.safetensors")
    given = (workshop.counts, workshop.counts.counts, workshop.root / "counts.safetensors")
    tables = [
        encoding.dynamics([(0, workshop.model("gpt2"))], workshop.texts, unigram=counts, **quiet) for counts in given
    ]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_steps_of_any_kind(workshop: Workshop) -> None:
    workshop.copied("gpt2").rename(workshop.root / "step-2")
    run = workshop.root / "run"
    (run / "checkpoints").mkdir(parents=True)
    (workshop.root / "step-2").rename(run / "checkpoints/step-2")
    for steps in ([2], iter([2]), np.array([2])):
        assert [step for step, _ in encoding.training.checkpoints(run, steps)] == [2]


@pytest.mark.usefixtures("untyped")
def test_a_choice_in_a_list() -> None:
    whole, chosen = regressed(), regressed(use=[True] * 40)
    np.testing.assert_array_equal(whole.slope, chosen.slope)

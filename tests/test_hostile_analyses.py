"""Bad arguments of attention, outliers, encoding and hooks are refused before anything is read; odd but sound ones are
read.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from toys import toy
from transformer_lens import HookedEncoder, HookedTransformer
from workshop import Case, Workshop, check_refused

from interp import attention, corpora, encoding, hooks
from interp.attention.costs import cost
from interp.corpora.unigrams import Unigrams
from interp.encoding.steering import sample_tokens
from interp.models.qk import check_dims, check_layers
from interp.testing import toy_tokenizer

BAD, TYPE = ValueError, TypeError
NAN = float("nan")
quiet: Any = {"progress": False}
IDS = torch.arange(7, 17)


def scores(*heads: int) -> pd.DataFrame:
    """What `score_contributions` gives, for heads of layer 0 and three dimensions."""
    rows = [
        (0, head, name, dim, 1.0 * dim, (dim + 1.0) * (name == "x"))
        for head in heads
        for name in ("x", "other")
        for dim in range(3)
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "key_class", "dim", "mean", "centred_mean"])


def profile() -> pd.DataFrame:
    rows = [(state, dim, "all", float(dim == 3)) for state in range(2) for dim in range(40)]
    return pd.DataFrame(rows, columns=["state", "dim", "key_class", "mean"])


def with_value(table: pd.DataFrame, row: int, column: str, value: Any) -> pd.DataFrame:
    table = table.copy()
    table.loc[row, column] = value
    return table


OUTLIERS = pd.DataFrame({"state": [0], "dim": [3], "mean": [9.0], "z": [9.0]})
DRIVERS = pd.DataFrame({"layer": [1], "head": [0], "key_class": ["x"], "dim": [3], "gap": [1.0]})


def other_tokenizer(w: Workshop) -> Unigrams:
    """Counts over as many types, of another vocabulary."""
    return Unigrams(w.counts.counts, "elsewhere", tokenizer="another")


def ablated(w: Workshop, table: pd.DataFrame = OUTLIERS, **options: Any) -> pd.DataFrame:
    return attention.ablation_effect(w.model("gpt2"), w.texts, table, **options, **quiet)


def by_class(w: Workshop, classes: Any) -> pd.DataFrame:
    return attention.attention_by_class(w.model("gpt2"), w.texts, key_classes=classes, **quiet)


def studied(w: Workshop, **options: Any) -> Any:
    return attention.study(w.model("gpt2"), w.texts, **({"key_classes": {"x": range(7, 30)}} | options), **quiet)


def encoded(w: Workshop, **options: Any) -> Any:
    return encoding.study(w.model("gpt2"), w.texts, unigram=options.pop("unigram", w.counts), **options, **quiet)


def taken(w: Workshop, layer: int = 0, dims: Any = (1,), **options: Any) -> Any:
    return hooks.ablate_dims(w.model("gpt2"), layer, dims, **({"where": "keys"} | options))


def steered(w: Workshop, **options: Any) -> pd.DataFrame:
    return encoding.steering_report(w.model("gpt2"), w.fit(), **options, **quiet)


def one_score(w: Workshop, tokens: Any) -> Any:
    return attention.scores.score_contributions_at(w.model("gpt2"), tokens, 0, 0, 0, 0)


def viewed(w: Workshop, model: Any = None, text: str = "w1 w2", dim: int = 1) -> Any:
    return attention.attention_in_text(model or w.model("gpt2"), text, 0, dim)


def regressed(**options: Any) -> encoding.regression.Regression:
    rng = np.random.default_rng(0)
    return encoding.regression.fit_arrays(rng.normal(size=(2, 40)), rng.dirichlet(np.ones(40)), **options)


OUTLYING: dict[str, Case] = {
    "a mode in capitals": (BAD, "unknown mode 'Mean'; expected one of zero", lambda w: studied(w, mode="Mean")),
    "k of NaN": (BAD, "k must be above 0, found nan", lambda w: attention.profile.find_outliers(profile(), k=NAN)),
    "k of NaN in a study": (BAD, "k must be above 0, found nan", lambda w: studied(w, k=NAN)),
    "a sample of none": (BAD, "sample must be at least 1, found 0", lambda w: studied(w, sample=0)),
    "a sample below none": (BAD, "sample must be at least 1, found -1", lambda w: studied(w, sample=-1)),
    "half a sample": (TYPE, "sample must be a whole number, found 1.5", lambda w: studied(w, sample=1.5)),
    "two profiles": (
        BAD,
        "profile has two rows for {'state': 0, 'dim': 0,",
        lambda w: attention.profile.find_outliers(pd.concat([profile(), profile()])),
    ),
    "a profile with a hole": (
        BAD,
        "profile has missing values in mean",
        lambda w: attention.profile.find_outliers(with_value(profile(), 4, "mean", NAN)),
    ),
    "no profile": (BAD, "profile lacks the columns state", lambda w: attention.profile.find_outliers(scores(0))),
    "a list for a profile": (
        TYPE,
        "profile must be a pandas.DataFrame",
        lambda w: attention.profile.find_outliers([1.0]),
    ),
    "two tables of outliers": (
        BAD,
        "outliers has two rows for {'state': 0, 'dim': 3}",
        lambda w: ablated(w, pd.concat([OUTLIERS, OUTLIERS])),
    ),
    "another model's outliers": (
        BAD,
        "outliers has dim 500, this model has 0 … 15; give the table of this model",
        lambda w: ablated(w, OUTLIERS.assign(dim=500)),
    ),
    "a deeper model's outliers": (
        BAD,
        "outliers has state 9, this model has 0 … 2",
        lambda w: ablated(w, pd.concat([OUTLIERS, OUTLIERS.assign(state=9)])),
    ),
    "another model's gaps": (
        BAD,
        "drivers has dim 500, this model has 0 … 15",
        lambda w: ablated(w, drivers=DRIVERS.assign(dim=500)),
    ),
    "a deeper model's gaps": (
        BAD,
        "drivers has layer 2, this model has 0 … 1",
        lambda w: ablated(w, drivers=DRIVERS.assign(layer=2)),
    ),
    "two tables of gaps": (
        BAD,
        "drivers has two rows for",
        lambda w: ablated(w, drivers=pd.concat([DRIVERS, DRIVERS])),
    ),
    "a name for a model": (TYPE, "expected a HookedTransformer", lambda w: attention.study("gpt2", w.texts, **quiet)),
    "a name to profile": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: attention.dimension_profile("gpt2", w.texts, **quiet),
    ),
    "a seed below 0": (BAD, "seed must be at least 0, found -1", lambda w: studied(w, seed=-1)),
    "a seed below 0 alone": (BAD, "seed must be at least 0, found -1", lambda w: ablated(w, seed=-1)),
}

ATTENTION: dict[str, Case] = {
    "two tables of scores": (
        BAD,
        "scores has two rows for {'layer': 0, 'head': 0, 'key_class': 'x', 'dim': 0}",
        lambda w: attention.gaps(pd.concat([scores(0), scores(0)])),
    ),
    "a class with a hole": (
        BAD,
        "scores lacks centred_mean for {'layer': 0, 'head': 1, 'key_class': 'x', 'dim': 2}",
        lambda w: attention.gaps(with_value(scores(0, 1), 8, "centred_mean", NAN)),
    ),
    "plain means with a hole": (
        BAD,
        "scores has missing values in mean",
        lambda w: attention.gaps(with_value(scores(0).assign(centred_mean=NAN), 4, "mean", NAN)),
    ),
    "the other with a hole": (
        BAD,
        "scores lacks centred_mean for {'layer': 0, 'head': 1, 'key_class': 'x', 'dim': 0}",
        lambda w: attention.gaps(with_value(scores(0, 1), 9, "centred_mean", NAN)),
    ),
    "a head without other": (
        BAD,
        "for 'other' beside it; give the table of one run, whole",
        lambda w: attention.gaps(scores(0, 1).query("head == 0 or key_class == 'x'")),
    ),
    "no scores": (BAD, "scores lacks the columns layer, head", lambda w: attention.gaps(profile())),
    "a class of everything": (
        BAD,
        "class names must be different, and 'all' is made of all; found a, all",
        lambda w: by_class(w, corpora.classes.TokenClasses(("a", "all"), lambda tokens: tokens % 2)),
    ),
    "a class twice": (
        BAD,
        "class names must be different",
        lambda w: by_class(w, corpora.classes.TokenClasses(("a", "a"), lambda tokens: tokens % 2)),
    ),
    "a string of classes": (
        TYPE,
        "class names must be a list of strings, found the string 'ab'",
        lambda w: by_class(w, corpora.classes.TokenClasses("ab", lambda tokens: tokens % 2)),
    ),
    "a number for a class": (TYPE, "class names must be a list of strings, found int", lambda w: by_class(w, {1: [3]})),
    "truth for a token": (TYPE, "class 'x' has True or False", lambda w: by_class(w, {"x": [True]})),
    "a mask for tokens": (TYPE, "class 'x' has True or False", lambda w: by_class(w, {"x": np.ones(67, bool)})),
    "a mask of torch for tokens": (TYPE, "class 'x' has True", lambda w: by_class(w, {"x": torch.ones(67).bool()})),
    "a word for a token": (
        TYPE,
        "(tokenizer.convert_tokens_to_ids gives it) must be a whole number, found 'the'",
        lambda w: by_class(w, {"x": ["the"]}),
    ),
    "ids below 0": (
        BAD,
        "0 … 66 for this model, found -1 … 9",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(-1, 10)),
    ),
    "ids below 0 for one score": (BAD, "found -1 … 9", lambda w: one_score(w, torch.arange(-1, 10))),
    "ids past the vocabulary": (
        BAD,
        "0 … 66 for this model, found 60 … 69",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(60, 70)),
    ),
    "rows of ids": (BAD, "found torch.int64 (1, 10)", lambda w: one_score(w, IDS[None])),
    "rows of ids to check": (
        BAD,
        "tokens must be the ids of one sequence",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS[None]),
    ),
    "no ids": (
        BAD,
        "[1 … 24], found torch.int64 (0,)",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS[:0]),
    ),
    "more ids than fit": (
        BAD,
        "[1 … 24], found torch.int64 (25,)",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(25)),
    ),
    "fractions for ids": (BAD, "found torch.float32 (10,)", lambda w: one_score(w, IDS.float())),
    "a name for one score": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: attention.scores.score_contributions_at("gpt2", IDS, 0, 0, 0, 0),
    ),
    "a name for a model": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: attention.attention_by_class("gpt2", w.texts, **quiet),
    ),
    "no text to view": (BAD, "tokens; expected a word or more", lambda w: viewed(w, toy(toy_tokenizer()), text="")),
    "more text than fits": (
        BAD,
        "has 25 tokens; expected a word or more",
        lambda w: viewed(w, text="w1 " * 24),
    ),
    "a view without tokenizer": (BAD, "has no tokenizer", lambda w: viewed(w, w.bare_encoder())),
    "a view of NaN": (BAD, "W_Q of this model has NaN", lambda w: viewed(w, w.broken("gpt2", NAN))),
    "half a character": (BAD, "has the lone surrogate '\\ud800'", lambda w: viewed(w, text="w1 \ud800")),
    "a config without blocks": (
        BAD,
        "num_hidden_layers in the config.json of",
        lambda w: cost(str(w.config(n_layer=0))),
    ),
    "a config of less than none": (BAD, "must be at least 1, found -1", lambda w: cost(str(w.config(n_layer=-1)))),
    "a config without heads": (BAD, "num_attention_heads in the", lambda w: cost(str(w.config(n_head=0)))),
    "a config without width": (BAD, "hidden_size in the config.json", lambda w: cost(str(w.config(n_embd=0)))),
    "a config narrower than heads": (BAD, "head_dim in the config.json", lambda w: cost(str(w.config(n_head=17)))),
}

HOOKS: dict[str, Case] = {
    "a mode that is none": (BAD, "unknown mode 'median'", lambda w: taken(w, where="residual", mode="median")),
    "means of NaN": (
        BAD,
        "means has NaN or infinite values",
        lambda w: taken(w, mode="mean", means=torch.full((16,), NAN)),
    ),
    "part of a dimension": (TYPE, "a dimension must be a whole number, found 3.7", lambda w: taken(w, dims=[3.7])),
    "part of a dimension to prune": (
        TYPE,
        "a dimension must be a whole number, found 3.7",
        lambda w: hooks.prune_output_dims(w.model("gpt2"), [3.7]),
    ),
    "part of a layer": (
        TYPE,
        "a layer must be a whole number, found 1.9",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS, layers=[1.9]),
    ),
    "a string of layers": (
        TYPE,
        "a layer must be a whole number, found '0'",
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS, layers="01"),
    ),
    "a name for a model": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: hooks.ablate_dims("gpt2", 0, [1], where="keys"),
    ),
}

ENCODING: dict[str, Case] = {
    "numbers for a choice": (
        BAD,
        "use must be a bool for each of the 40 types, found int64 (40,)",
        lambda w: regressed(use=np.arange(40) % 2),
    ),
    "a choice of fewer": (BAD, "found bool (1,)", lambda w: regressed(use=np.ones(1, bool))),
    "counts of another tokenizer": (
        BAD,
        "were made with another tokenizer",
        lambda w: encoding.dynamics([(0, w.model("gpt2"))], w.texts, unigram=other_tokenizer(w), **quiet),
    ),
    "counts of another size": (
        BAD,
        "over 5 types, this model's vocabulary has 67",
        lambda w: encoding.dynamics([(0, w.model("gpt2"))], w.texts, unigram=np.arange(5), **quiet),
    ),
    "a string of tokens": (
        TYPE,
        "tokens must be a list of tokens or ids, found the string ' the'",
        lambda w: steered(w, tokens=" the"),
    ),
    "half a character": (
        BAD,
        "token has the lone surrogate '\\udc00' at character 1",
        lambda w: encoding.steer(w.model("gpt2"), "w\udc00", 2, w.fit(), **quiet),
    ),
    "part of a token": (
        TYPE,
        "a token's id must be a whole number, found 3.7",
        lambda w: encoding.steer(w.model("gpt2"), 3.7, 2, w.fit(), **quiet),
    ),
    "no token": (BAD, "expected tokens to steer, found none", lambda w: steered(w, tokens=[])),
    "no ratio": (BAD, "ratio must be a positive number, found []", lambda w: steered(w, ratios=iter(()))),
    "an unmasked other text": (
        BAD,
        "make the batches with a mask_rate",
        lambda w: encoding.study(
            w.model("bert"), w.texts, unigram=w.counts, other=corpora.batches(w.model("bert"), w.texts), **quiet
        ),
    ),
    "an unknown order": (BAD, "order must be one or more different ones of", lambda w: encoded(w, orders=["up"])),
    "no order": (BAD, "order must be one or more different ones", lambda w: encoded(w, orders=[])),
    "an order of its own": (
        BAD,
        "random, reverse; found ['up']",
        lambda w: encoding.pruning.removal_order(w.fit(), "up"),
    ),
    "an unknown basis": (BAD, "different ones of axis, pca; found ['ica']", lambda w: encoded(w, bases=["ica"])),
    "an unknown mode": (BAD, "expected shifts of exact, constant", lambda w: encoded(w, shifts=["Exact"])),
    "a ratio of NaN": (BAD, "ratio must be a positive number, found [nan]", lambda w: encoded(w, ratios=[NAN])),
    "another vocabulary": (BAD, "over 5 types", lambda w: encoded(w, unigram=np.arange(5))),
    "another tokenizer": (BAD, "with another tokenizer", lambda w: encoded(w, unigram=other_tokenizer(w))),
    "a seed below 0": (
        BAD,
        "seed must be at least 0, found -1",
        lambda w: encoding.fit(w.model("gpt2"), w.texts, seed=-1, **quiet),
    ),
    "a seed of a half": (TYPE, "seed must be a whole number, found 0.5", lambda w: encoded(w, seed=0.5)),
    "a seed for neurons": (
        BAD,
        "seed must be at least 0, found -1",
        lambda w: encoding.frequency_neurons(w.model("gpt2"), w.texts, unigram=w.counts, share=0.5, seed=-1, **quiet),
    ),
    "a share of two": (
        BAD,
        "share must lie above 0",
        lambda w: encoding.frequency_neurons(w.model("gpt2"), w.texts, unigram=w.counts, share=2, **quiet),
    ),
    "a seed for tokens": (BAD, "seed must be at least 0", lambda w: sample_tokens(w.fit(), seed=-1)),
    "a seed for directions": (
        BAD,
        "seed must be at least 0",
        lambda w: encoding.regression.directions(w.model("gpt2"), w.fit(), unigram=w.counts, seed=-1),
    ),
    "a seed for an order": (
        BAD,
        "seed must be at least 0",
        lambda w: encoding.pruning.removal_order(w.fit(), "random", seed=-1),
    ),
}

CASES: dict[str, Case] = {
    f"{area}: {name}": case
    for area, table in (("outliers", OUTLYING), ("attention", ATTENTION), ("hooks", HOOKS), ("encoding", ENCODING))
    for name, case in table.items()
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.fit()
    workshop.model("bert")

    def forward(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the model read something before the refusal")

    for kind in (HookedTransformer, HookedEncoder):
        monkeypatch.setattr(kind, "forward", forward)
    check_refused(CASES[name], workshop)


@pytest.mark.usefixtures("untyped")
def test_sequences_of_any_kind(workshop: Workshop) -> None:
    """Generators and arrays are read once, and give what lists give."""
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
def test_numbers_of_any_kind(workshop: Workshop) -> None:
    """numpy's whole numbers and arrays of them are whole numbers."""
    model = workshop.model("gpt2")
    assert check_layers(model, np.array([1, 0])) == check_layers(model, iter([1, 0])) == [1, 0]
    assert check_dims(model, np.array([3, 5])) == check_dims(model, range(3, 6, 2)) == [3, 5]
    by_list, *others = (
        by_class(workshop, {"x": ids}) for ids in ([7, 8], np.array([8, 7, 8]), torch.tensor([7, 8, 8]))
    )
    assert set(by_list["key_class"]) == {"x", "other"}
    table, *same = (attention.scores.check_decomposition(model, tokens) for tokens in (IDS, IDS.numpy(), IDS.tolist()))
    for one, other in [*((by_list, other) for other in others), *((table, other) for other in same)]:
        pd.testing.assert_frame_equal(one, other)
    sampled = studied(workshop, sample=np.int64(5), seed=np.int64(3), k=np.float64(2))
    pd.testing.assert_frame_equal(sampled.scores, studied(workshop, sample=5, seed=3, k=2).scores)
    sampled.save(workshop.root / "saved")
    whole, chosen = regressed(), regressed(use=[True] * 40)
    np.testing.assert_array_equal(whole.slope, chosen.slope)


@pytest.mark.usefixtures("untyped")
def test_counts_for_dynamics_in_any_form(workshop: Workshop) -> None:
    """Counts, an array or a file of them."""
    workshop.counts.save(workshop.root / "counts.safetensors")
    given = (workshop.counts, workshop.counts.counts, workshop.root / "counts.safetensors")
    tables = [
        encoding.dynamics([(0, workshop.model("gpt2"))], workshop.texts, unigram=counts, **quiet) for counts in given
    ]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


@pytest.mark.usefixtures("untyped")
def test_steps_of_any_kind(workshop: Workshop) -> None:
    workshop.copied("gpt2").rename(workshop.root / "step-2")
    run = workshop.root / "run"
    (run / "checkpoints").mkdir(parents=True)
    (workshop.root / "step-2").rename(run / "checkpoints/step-2")
    for steps in ([2], iter([2]), np.array([2])):
        assert [step for step, _ in encoding.training.checkpoints(run, steps)] == [2]

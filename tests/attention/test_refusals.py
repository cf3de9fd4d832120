"""Bad arguments of the attention analysis are refused before the model reads text; odd but valid ones are accepted."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from toys import toy
from workshop import BAD, TYPE, Case, Workshop, check_refused, quiet

from interp import attention, corpora
from interp.instruments.profile import find_outliers
from interp.models.qk import check_dims, check_layers
from interp.models.shapes import shape
from interp.testing import toy_tokenizer

IDS = torch.arange(7, 17)


def scores(*heads: int) -> pd.DataFrame:
    """A table like that of `score_contributions`, for heads of layer 0 and three dimensions."""
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


def ablated(w: Workshop, table: pd.DataFrame = OUTLIERS, **options: Any) -> pd.DataFrame:
    return attention.ablation_effect(w.model("gpt2"), w.texts, table, **options, **quiet)


def by_class(w: Workshop, classes: Any) -> pd.DataFrame:
    return attention.attention_by_class(w.model("gpt2"), w.texts, key_classes=classes, **quiet)


def studied(w: Workshop, **options: Any) -> Any:
    return attention.study(w.model("gpt2"), w.texts, **({"key_classes": {"x": range(7, 30)}} | options), **quiet)


def one_score(w: Workshop, tokens: Any) -> Any:
    return attention.scores.score_contributions_at(w.model("gpt2"), tokens, 0, 0, 0, 0)


def viewed(w: Workshop, model: Any = None, text: str = "w1 w2", dim: int = 1) -> Any:
    return attention.attention_in_text(model or w.model("gpt2"), text, 0, dim)


CASES: dict[str, Case] = {
    "NaN in a head": (
        BAD,
        ("W_Q", "NaN"),
        lambda w: attention.attention_by_class(w.broken("gpt2", np.nan), w.texts, **quiet),
    ),
    "NaN in a check": (
        BAD,
        ("NaN",),
        lambda w: attention.scores.check_decomposition(w.broken("gpt2", np.nan), torch.arange(5)),
    ),
    "no blocks to profile": (
        BAD,
        ("blocks",),
        lambda w: attention.dimension_profile(w.toy(n_layers=0), w.texts, **quiet),
    ),
    "ALiBi": (
        BAD,
        ("ALiBi",),
        lambda w: attention.score_contributions(w.toy(positional_embedding_type="alibi"), w.texts, **quiet),
    ),
    "soft-capped scores": (
        BAD,
        ("scores", "soft-capped"),
        lambda w: attention.score_contributions(w.toy(attn_scores_soft_cap=5.0), w.texts, **quiet),
    ),
    "no layers": (
        BAD,
        ("layers", "0 … 1", []),
        lambda w: attention.attention_by_class(w.model("gpt2"), w.texts, layers=[], **quiet),
    ),
    "a class of no token": (
        BAD,
        ("token id", 99),
        lambda w: attention.attention_by_class(w.model("gpt2"), w.texts, key_classes={"x": [99]}, **quiet),
    ),
    "a mode in capitals": (BAD, ("mode", "'Mean'", "zero"), lambda w: studied(w, mode="Mean")),
    "k of NaN": (BAD, ("k", 0, "nan"), lambda w: find_outliers(profile(), k=np.nan)),
    "k of 0": (BAD, ("k", 0), lambda w: find_outliers(profile(), k=0)),
    "no rule of outliers": (BAD, ("rule", "'mad'", "robust, sd"), lambda w: studied(w, rule="mad")),
    "k of NaN in a study": (BAD, ("k", 0, "nan"), lambda w: studied(w, k=np.nan)),
    "a sample of none": (BAD, ("sample", 1, 0), lambda w: studied(w, sample=0)),
    "a sample below none": (BAD, ("sample", 1, -1), lambda w: studied(w, sample=-1)),
    "half a sample": (TYPE, ("sample", 1.5), lambda w: studied(w, sample=1.5)),
    "two profiles": (
        BAD,
        ("profile", "{'state': 0, 'dim': 0"),
        lambda w: find_outliers(pd.concat([profile(), profile()])),
    ),
    "a profile with missing values": (
        BAD,
        ("profile", "mean"),
        lambda w: find_outliers(with_value(profile(), 4, "mean", np.nan)),
    ),
    "no profile": (BAD, ("profile", "columns", "state"), lambda w: find_outliers(scores(0))),
    "a list for a profile": (
        TYPE,
        ("profile", "pandas.DataFrame"),
        lambda w: find_outliers([1.0]),
    ),
    "two tables of outliers": (
        BAD,
        ("outliers", "{'state': 0, 'dim': 3}"),
        lambda w: ablated(w, pd.concat([OUTLIERS, OUTLIERS])),
    ),
    "another model's outliers": (
        BAD,
        ("outliers", "dim 500", "0 … 15"),
        lambda w: ablated(w, OUTLIERS.assign(dim=500)),
    ),
    "a deeper model's outliers": (
        BAD,
        ("outliers", "state 9", "0 … 2"),
        lambda w: ablated(w, pd.concat([OUTLIERS, OUTLIERS.assign(state=9)])),
    ),
    "another model's gaps": (
        BAD,
        ("drivers", "dim 500", "0 … 15"),
        lambda w: ablated(w, drivers=DRIVERS.assign(dim=500)),
    ),
    "a deeper model's gaps": (
        BAD,
        ("drivers", "layer 2", "0 … 1"),
        lambda w: ablated(w, drivers=DRIVERS.assign(layer=2)),
    ),
    "two tables of gaps": (
        BAD,
        ("drivers", "rows"),
        lambda w: ablated(w, drivers=pd.concat([DRIVERS, DRIVERS])),
    ),
    "a name for a model to study": (
        TYPE,
        ("HookedTransformer",),
        lambda w: attention.study("gpt2", w.texts, **quiet),
    ),
    "a name to profile": (
        TYPE,
        ("HookedTransformer",),
        lambda w: attention.dimension_profile("gpt2", w.texts, **quiet),
    ),
    "a seed below 0": (BAD, ("seed", 0, -1), lambda w: studied(w, seed=-1)),
    "a seed below 0 alone": (BAD, ("seed", 0, -1), lambda w: ablated(w, seed=-1)),
    "two tables of scores": (
        BAD,
        ("scores", "{'layer': 0, 'head': 0, 'key_class': 'x', 'dim': 0}"),
        lambda w: attention.gaps(pd.concat([scores(0), scores(0)])),
    ),
    "a class with a missing dimension": (
        BAD,
        ("scores", "centred_mean", "{'layer': 0, 'head': 1, 'key_class': 'x', 'dim': 2}"),
        lambda w: attention.gaps(with_value(scores(0, 1), 8, "centred_mean", np.nan)),
    ),
    "plain means with missing values": (
        BAD,
        ("scores", "mean"),
        lambda w: attention.gaps(with_value(scores(0).assign(centred_mean=np.nan), 4, "mean", np.nan)),
    ),
    "the class other with a missing dimension": (
        BAD,
        ("scores", "centred_mean", "{'layer': 0, 'head': 1, 'key_class': 'x', 'dim': 0}"),
        lambda w: attention.gaps(with_value(scores(0, 1), 9, "centred_mean", np.nan)),
    ),
    "a head without other": (
        BAD,
        ("scores", "'other'"),
        lambda w: attention.gaps(scores(0, 1).query("head == 0 or key_class == 'x'")),
    ),
    "no scores": (BAD, ("scores", "columns", "layer, head"), lambda w: attention.gaps(profile())),
    "a class of everything": (
        BAD,
        ("class", "'all'", "a, all"),
        lambda w: by_class(w, corpora.classes.TokenClasses(("a", "all"), lambda tokens: tokens % 2)),
    ),
    "a class twice": (
        BAD,
        ("class", "a, a"),
        lambda w: by_class(w, corpora.classes.TokenClasses(("a", "a"), lambda tokens: tokens % 2)),
    ),
    "a string of classes": (
        TYPE,
        ("class", "list", "'ab'"),
        lambda w: by_class(w, corpora.classes.TokenClasses("ab", lambda tokens: tokens % 2)),
    ),
    "a number for a class": (TYPE, ("class", "list", "int"), lambda w: by_class(w, {1: [3]})),
    "a truth value for a token": (TYPE, ("'x'", "True"), lambda w: by_class(w, {"x": [True]})),
    "a mask for tokens": (TYPE, ("'x'", "True"), lambda w: by_class(w, {"x": np.ones(67, bool)})),
    "a mask of torch for tokens": (TYPE, ("'x'", "True"), lambda w: by_class(w, {"x": torch.ones(67).bool()})),
    "a word for a token": (
        BAD,
        ("'x'", "'the'", "tokenizer.convert_tokens_to_ids"),
        lambda w: by_class(w, {"x": ["the"]}),
    ),
    "ids below 0": (
        BAD,
        ("0 … 66", "-1 … 9"),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(-1, 10)),
    ),
    "ids below 0 for one score": (BAD, ("0 … 66", "-1 … 9"), lambda w: one_score(w, torch.arange(-1, 10))),
    "ids past the vocabulary": (
        BAD,
        ("0 … 66", "60 … 69"),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(60, 70)),
    ),
    "rows of ids": (BAD, ("torch.int64", (1, 10)), lambda w: one_score(w, IDS[None])),
    "rows of ids to check": (
        BAD,
        ("torch.int64", (1, 10)),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS[None]),
    ),
    "no ids": (
        BAD,
        ("1 … 24", "torch.int64", (0,)),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS[:0]),
    ),
    "more ids than fit": (
        BAD,
        ("1 … 24", "torch.int64", (25,)),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), torch.arange(25)),
    ),
    "fractions for ids": (BAD, ("torch.float32", (10,)), lambda w: one_score(w, IDS.float())),
    "a name for one score": (
        TYPE,
        ("HookedTransformer",),
        lambda w: attention.scores.score_contributions_at("gpt2", IDS, 0, 0, 0, 0),
    ),
    "a name for a model": (
        TYPE,
        ("HookedTransformer",),
        lambda w: attention.attention_by_class("gpt2", w.texts, **quiet),
    ),
    "no text to view": (
        BAD,
        (0, "tokens"),
        lambda w: viewed(w, toy(toy_tokenizer()), text=""),
    ),
    "more text than fits": (
        BAD,
        (25, "tokens"),
        lambda w: viewed(w, text="w1 " * 25),
    ),
    "a view without tokenizer": (BAD, ("tokenizer",), lambda w: viewed(w, w.bare_encoder())),
    "a view of NaN": (BAD, ("W_Q", "NaN"), lambda w: viewed(w, w.broken("gpt2", np.nan))),
    "half a character": (BAD, ("surrogate", r"'\ud800'"), lambda w: viewed(w, text="w1 \ud800")),
    "a config without blocks": (
        BAD,
        ("num_hidden_layers", "config.json"),
        lambda w: shape(str(w.config(n_layer=0))),
    ),
    "a config with fewer than no blocks": (
        BAD,
        (1, -1),
        lambda w: shape(str(w.config(n_layer=-1))),
    ),
    "a config without heads": (BAD, ("num_attention_heads", "config.json"), lambda w: shape(str(w.config(n_head=0)))),
    "a config without width": (BAD, ("hidden_size", "config.json"), lambda w: shape(str(w.config(n_embd=0)))),
    "a config narrower than heads": (BAD, ("head_dim", "config.json"), lambda w: shape(str(w.config(n_head=17)))),
    "part of a layer": (
        TYPE,
        ("layer", 1.9),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS, layers=[1.9]),
    ),
    "a string of layers": (
        TYPE,
        ("layer", "'01'"),
        lambda w: attention.scores.check_decomposition(w.model("gpt2"), IDS, layers="01"),
    ),
}


@pytest.mark.usefixtures("untyped", "unread")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


def test_padding_past_the_embedding_is_read_nowhere(workshop: Workshop) -> None:
    """A padding token was added to the tokenizer, as is often done with GPT-2."""
    model = workshop.more_tokens()
    model.tokenizer.pad_token = "extra"
    usual, classes = workshop.model("gpt2"), {"early": range(7, 30)}
    ours, theirs = (
        attention.dimension_profile(
            each, corpora.batches(each, workshop.texts, layout="texts"), key_classes=classes, **quiet
        )
        for each in (model, usual)
    )
    pd.testing.assert_frame_equal(ours, theirs)


@pytest.mark.usefixtures("untyped")
def test_numbers_of_any_kind(workshop: Workshop) -> None:
    """numpy's integers, and arrays of them, count as whole numbers."""
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
    again = studied(workshop, sample=5, seed=3, k=2)
    pd.testing.assert_frame_equal(sampled.scores.table, again.scores.table)
    sampled.save(workshop.root / "saved")

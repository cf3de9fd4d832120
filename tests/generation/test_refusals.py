"""Bad prompts and texts are refused by generation; prompts and texts in other forms are read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from toys import D_VOCAB
from workshop import BAD, FORMS, TYPE, Case, Workshop, check_refused, quiet

from interp import generation, plots
from interp.instruments.prompts import Prompts


def prompts(w: Workshop, model: Any = None, **options: Any) -> Prompts:
    return generation.prompts(
        model or w.model("gpt2"), w.texts, **({"n": 3, "prompt_tokens": 3, "new_tokens": 4} | options)
    )


def written(w: Workshop, **options: Any) -> generation.GenerationStudy:
    model = w.model("gpt2")
    settings = {"unigram": w.counts, "scales": [1], "decoders": ["greedy"]} | quiet | options
    return generation.study(model, prompts(w), **settings)


def no_human(w: Workshop) -> generation.GenerationStudy:
    found = written(w)
    return replace(found, metrics=found.metrics[found.metrics["decoder"] != "human"])


def another_tokenizer(w: Workshop) -> Any:
    """Prompts whose ids are within the vocabulary, but stand for other words."""
    given = prompts(w)
    return replace(given, settings=given.settings | {"tokenizer": "another"})


def write(w: Workshop, given: Any, **options: Any) -> Any:
    return generation.generate(w.model("gpt2"), given, **({"max_new_tokens": 3} | quiet | options))


CASES: dict[str, Case] = {
    "NaN in what is written": (
        BAD,
        ("NaN",),
        lambda w: generation.generate(w.broken("gpt2", np.nan), ["w1"], max_new_tokens=3, **quiet),
    ),
    "NaN in features": (BAD, ("NaN",), lambda w: generation.metrics.text_features(w.broken("gpt2", np.nan), ["w1"])),
    "no blocks to write with": (BAD, ("blocks",), lambda w: generation.generate(w.toy(n_layers=0), ["w1"], **quiet)),
    "classes it cannot read": (
        BAD,
        (90, 67),
        lambda w: generation.generate(w.toy(d_vocab_out=90), ["w1"], **quiet),
    ),
    "no prompts": (BAD, ("prompts", "none"), lambda w: generation.generate(w.model("gpt2"), [], **quiet)),
    "a string of prompts": (
        BAD,
        ("prompts", "string", "w1 w2"),
        lambda w: generation.generate(w.model("gpt2"), "w1 w2", **quiet),
    ),
    "features of a table": (
        TYPE,
        ("DataFrame",),
        lambda w: generation.metrics.text_features(w.model("gpt2"), w.table()),
    ),
    "features of one text": (
        TYPE,
        ("'w1 w2'", "list"),
        lambda w: generation.metrics.text_features(w.model("gpt2"), "w1 w2"),
    ),
    "features of nothing": (BAD, ("texts",), lambda w: generation.metrics.text_features(w.model("gpt2"), [])),
    "features of NaN": (
        TYPE,
        ("float",),
        lambda w: generation.metrics.text_features(w.model("gpt2"), [np.nan]),
    ),
    "prompts of a table": (TYPE, ("token ids", "DataFrame"), lambda w: write(w, w.table())),
    "prompts of a mapping": (TYPE, ("token ids", "dict"), lambda w: write(w, {"w1": 1})),
    "prompts of bytes": (TYPE, ("token ids", "bytes"), lambda w: write(w, b"w1")),
    "a prompt of bytes": (
        TYPE,
        ("prompt", "b'hi'"),
        lambda w: write(w, [b"hi"]),
    ),
    "a prompt of NaN": (TYPE, ("token ids", "nan"), lambda w: write(w, [np.nan])),
    "a prompt of half a character": (BAD, ("prompt", "surrogate"), lambda w: write(w, ["w1 \ud800"])),
    "prompts in one row": (TYPE, ("prompt", "string", "list"), lambda w: write(w, torch.tensor([7, 8]))),
    "a prompt of fractional token ids": (
        TYPE,
        ("token id", 1.9),
        lambda w: write(w, [[1.9, 2.2]]),
    ),
    "measures of fractional token ids": (
        TYPE,
        ("token id", 1.5),
        lambda w: generation.text_metrics([[1.5, 2]]),
    ),
    "measures of a text": (TYPE, ("token id", "'w'"), lambda w: generation.text_metrics(["w1 w2"])),
    "measures of negative ids": (
        BAD,
        ("-1 … 2", "counts", "0 … 66"),
        lambda w: generation.text_metrics([[2, -1]], unigram=w.counts),
    ),
    "measures of other ids": (
        BAD,
        ("2 … 67", "counts", "0 … 66"),
        lambda w: generation.text_metrics([[2], [D_VOCAB]], unigram=w.counts),
    ),
    "a token too many in a text": (
        BAD,
        ("token id 67", 67),
        lambda w: generation.metrics.text_features(w.more_tokens(), ["w1 extra"]),
    ),
    "prompts of another tokenizer": (
        BAD,
        ("prompts", "tokenizer"),
        lambda w: generation.study(w.model("gpt2"), another_tokenizer(w), unigram=w.counts, scales=[1], **quiet),
    ),
    "features by a name": (TYPE, ("HookedTransformer",), lambda w: generation.metrics.text_features("gpt2", ["w1"])),
    "prompts of a negative seed": (BAD, ("seed", -1), lambda w: write(w, ["w1"], seed=-1)),
    "prompts of a seed of 2⁶⁴": (BAD, ("seed", 2**64), lambda w: write(w, ["w1"], seed=2**64)),
    "texts of a negative seed": (BAD, ("seed", -1), lambda w: written(w, seed=-1)),
    "a fractional batch size": (TYPE, ("batch_size", 1.5), lambda w: written(w, batch_size=1.5)),
    "a fractional number of prompts": (TYPE, ("n", 1.5), lambda w: prompts(w, n=1.5)),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("form", FORMS)
def test_lists_in_other_forms(form: str, workshop: Workshop) -> None:
    of, w, model, few = FORMS[form], workshop, workshop.model("gpt2"), ["w1 w2 w3", "w4 w5"]
    np.testing.assert_array_equal(
        generation.metrics.text_features(model, of(few)), generation.metrics.text_features(model, few)
    )
    assert write(w, of(["w1", "w2 w3"])) == write(w, ["w1", "w2 w3"])
    assert write(w, of([[7, 8], [9, 10]])) == write(w, [[7, 8], [9, 10]])
    assert written(w, decoders=of(["greedy"])).metrics.equals(written(w).metrics)


@pytest.mark.usefixtures("untyped")
def test_numpy_numbers(workshop: Workshop) -> None:
    w, three = workshop, np.int64(3)
    texts = written(w, seed=three, batch_size=three)
    texts.save(w.root / "texts")
    assert prompts(w, n=three, prompt_tokens=three).settings == prompts(w).settings
    assert write(w, ["w1"], seed=three, batch_size=three, max_new_tokens=three) == write(w, ["w1"], seed=3)


@pytest.mark.usefixtures("untyped")
def test_texts_as_tensors() -> None:
    rows = [[1, 2, 1, 2, 1], [3, 3, 3, 3, 3]]
    assert generation.text_metrics(torch.tensor(rows)) == pytest.approx(generation.text_metrics(rows), nan_ok=True)
    arrays = [np.array(row) for row in rows]
    assert generation.text_metrics(arrays) == pytest.approx(generation.text_metrics(rows), nan_ok=True)


@pytest.mark.usefixtures("untyped")
def test_figures_without_human_texts(workshop: Workshop) -> None:
    found = no_human(workshop)
    assert [trace.name for trace in plots.text_measure(found).data] == ["greedy"]
    assert [trace.name for trace in plots.generation_tradeoff(found).data] == ["greedy"]

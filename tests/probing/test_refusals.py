"""Bad pairs, states, probes and numbers are refused by probing; lists and numbers in other forms are accepted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from toys import D_VOCAB
from workshop import BAD, FORMS, TYPE, Case, Workshop, check_refused, one_by_one, quiet

from interp import probing
from interp.analyses.probing.fitting import fit_sparse
from interp.analyses.probing.probes import Probe
from interp.analyses.probing.sparse import SparseProbe
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import Sweep
from interp.corpora import pairs
from interp.testing import WORDS

fast: Any = {"methods": ["l0"], "l0_strengths": [0.4], "controls": ["none"], "steps": 20} | quiet


def pair_table(n: int = 20, tasks: str = "tu") -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (" ".join(["w1", *rng.choice(WORDS, 3)]), " ".join(["w2", *rng.choice(WORDS, 3)]), task, str(i), "", "")
        for task in tasks
        for i in range(n)
    ]
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def made_states() -> States:
    vectors = np.random.default_rng(0).normal(size=(40, 2, 16)).astype(np.float32)
    return States(pair_table(), (1,), 16, {"made": "here"}, _kept={1: vectors})


def swept() -> Sweep:
    return probing.sweep(made_states(), **fast)


def without_task(uid: object) -> pd.DataFrame:
    """Pairs, one of which has a different UID."""
    table = pair_table()
    table["UID"] = [uid, *table["UID"][1:]]
    return table


def with_sentence(sentence: object) -> pd.DataFrame:
    table = pair_table()
    sentences = pd.Series([sentence, *table["sentence_bad"][1:]], dtype=object)
    return table.assign(sentence_bad=sentences)


def open_gates() -> Sweep:
    """A sweep in which only the neurons with an open gate are left."""
    found = swept()
    neurons = found.neurons.assign(gate=np.tile([0.0, 1.0], 16))
    return replace(found, neurons=neurons[neurons["gate"] > 0])


def fewer_pairs() -> States:
    states = made_states()
    return replace(states, pairs=states.pairs[np.arange(40) % 2 == 0].reset_index(drop=True))


def read_by(width: int = 16, state: int = 1, task: str = "t") -> list[Probe]:
    return [Probe(task, state, np.eye(width)[0], 0.0)]


def log_probability(w: Workshop, sentences: Any, kind: str = "gpt2") -> Any:
    return probing.sentence_scores(w.model(kind), sentences, **quiet)


def collect(w: Workshop, table: Any = None, **options: Any) -> States:
    return probing.collect(w.model("gpt2"), pair_table() if table is None else table, **quiet, **options)


def ablate(w: Workshop, probes: Any = None, **options: Any) -> pd.DataFrame:
    given = {"pairs": pair_table(), "probes": probes or read_by()} | options
    return probing.ablation_effect(w.model("gpt2"), **given, **quiet)


def sparse_probe(**options: Any) -> SparseProbe:
    X = np.random.default_rng(0).normal(size=(20, 4))
    return SparseProbe(**options).fit(X, np.arange(20) % 2)


def fitted(**options: Any) -> Any:
    return fit_sparse(torch.zeros(1, 4, 2), torch.zeros(1, 4, 1), l0_strengths=[0.5], **options)


CASES: dict[str, Case] = {
    "part of a dimension for a probe": (
        TYPE,
        ("k", 2.5),
        lambda w: sparse_probe(method="topk", k=2.5),
    ),
    "a single token to score": (
        BAD,
        ("'w1'", 1, 2, 24),
        lambda w: probing.sentence_scores(w.model("gpt2"), ["w1"], bos=False, **quiet),
    ),
    "NaN in sentences": (
        BAD,
        ("NaN",),
        lambda w: probing.sentence_scores(w.broken("gpt2", np.nan), ["w1 w2"], **quiet),
    ),
    "sentences of ten classes": (
        BAD,
        (10, 67),
        lambda w: probing.sentence_scores(w.toy(d_vocab_out=10), ["w1 w2"], **quiet),
    ),
    "one sentence for a list": (
        TYPE,
        ("sentences", "list", "'w1 w2'"),
        lambda w: probing.sentence_scores(w.model("gpt2"), "w1 w2", **quiet),
    ),
    "too few pairs": (
        BAD,
        (1, 10),
        lambda w: probing.study(
            w.model("gpt2"), pd.DataFrame({"sentence_good": ["w1 w2"], "sentence_bad": ["w1 w3"]}), **quiet
        ),
    ),
    "a probe of some neurons": (
        BAD,
        ("table", "sweep"),
        lambda w: probing.probe(open_gates(), "t", 1),
    ),
    "the overlap of some neurons": (BAD, (8, 16), lambda w: probing.overlap(open_gates().neurons)),
    "an overlap without the last neuron of one task": (
        BAD,
        (15, 16, "'u'", "state 1"),
        lambda w: probing.overlap(swept().neurons.iloc[:-1]),
    ),
    "an overlap of neurons twice": (BAD, ("rows",), lambda w: probing.overlap(pd.concat([swept().neurons] * 2))),
    "an overlap of a sweep": (TYPE, ("neurons", "pandas.DataFrame"), lambda w: probing.overlap(swept())),
    "a probe of twice the neurons": (
        BAD,
        ("{'task': 't', 'state': 1, 'dim': 0}",),
        lambda w: (found := swept()) and probing.probe(replace(found, neurons=pd.concat([found.neurons] * 2)), "t", 1),
    ),
    "an ablation of another width": (BAD, (15, 16), lambda w: ablate(w, read_by(15))),
    "an ablation of a state that does not exist": (BAD, ("0 … 2", 3), lambda w: ablate(w, read_by(state=3))),
    "scores of a task that does not exist": (
        BAD,
        ("'z'", "t, u"),
        lambda w: probing.probes.pair_scores(w.model("gpt2"), pair_table(), read_by(task="z")),
    ),
    "fewer pairs than vectors": (BAD, (40, "pairs", 20), lambda w: fewer_pairs().load(1)),
    "a sweep of fewer pairs": (BAD, (40, "pairs"), lambda w: probing.sweep(fewer_pairs(), **fast)),
    "a transfer of fewer pairs": (BAD, (40, "pairs"), lambda w: probing.transfer(fewer_pairs(), 1, steps=5)),
    "fewer pairs than shards": (
        BAD,
        (40, "pairs"),
        lambda w: (found := collect(w, directory=w.root / "s")) and replace(found, pairs=pair_table(3)).load(1),
    ),
    "accuracy of pairs without a task": (
        TYPE,
        ("UID", "float"),
        lambda w: probing.minimal_pair_accuracy(w.model("gpt2"), without_task(np.nan), **quiet),
    ),
    "states of pairs without a task": (TYPE, ("UID",), lambda w: collect(w, without_task(None))),
    "states of a missing sentence": (TYPE, ("float",), lambda w: collect(w, with_sentence(np.nan))),
    "states of half a character": (BAD, ("surrogate",), lambda w: collect(w, with_sentence("\ud800"))),
    "accuracy of a missing sentence": (
        TYPE,
        ("sentences", "float"),
        lambda w: probing.minimal_pair_accuracy(w.model("gpt2"), with_sentence(np.nan), **quiet),
    ),
    "states of a name": (TYPE, ("interp.corpora.pairs", "str"), lambda w: collect(w, "bundled")),
    "accuracy of a name": (
        TYPE,
        ("str",),
        lambda w: probing.minimal_pair_accuracy(w.model("gpt2"), "bundled", **quiet),
    ),
    "an ablation of a name": (TYPE, ("str",), lambda w: ablate(w, pairs="bundled")),
    "the probability of a table": (TYPE, ("DataFrame",), lambda w: log_probability(w, w.table())),
    "the probability of a mapping": (TYPE, ("dict",), lambda w: log_probability(w, {"w1 w2": 1})),
    "the probability of nothing": (BAD, ("sentences",), lambda w: log_probability(w, [])),
    "the pseudo-probability of nothing": (BAD, ("sentences",), lambda w: log_probability(w, [], "bert")),
    "the probability of NaN": (TYPE, ("float",), lambda w: log_probability(w, ["w1 w2", np.nan])),
    "the probability of half a character": (
        BAD,
        ("number 1", "surrogate"),
        lambda w: log_probability(w, ["w1", "\ud8aa"]),
    ),
    "scores of NaN": (
        TYPE,
        ("float",),
        lambda w: probing.token_scores(w.model("gpt2"), read_by()[0], np.nan),
    ),
    "scores of half a character": (
        BAD,
        ("surrogate",),
        lambda w: probing.token_scores(w.model("gpt2"), read_by()[0], "\udcff"),
    ),
    "a token too many in a pair": (
        BAD,
        ("token id 67", 67),
        lambda w: probing.collect(w.more_tokens(), with_sentence("w1 extra"), **quiet),
    ),
    "a token too many in a sentence": (
        BAD,
        ("token id 67", 67),
        lambda w: probing.sentence_scores(w.more_tokens(), ["w1 w2 extra"], **quiet),
    ),
    "the probability by a name": (
        TYPE,
        ("HookedTransformer",),
        lambda w: probing.sentence_scores("gpt2", ["w1 w2"], **quiet),
    ),
    "states of a model's name": (
        TYPE,
        ("HookedTransformer",),
        lambda w: probing.collect("gpt2", pair_table(), directory=w.root, **quiet),
    ),
    "a study of a model's name": (
        TYPE,
        ("HookedTransformer",),
        lambda w: probing.study("gpt2", pair_table(), **quiet),
    ),
    "an ablation of a model's name": (
        TYPE,
        ("HookedTransformer",),
        lambda w: probing.ablation_effect("gpt2", pair_table(), read_by(), **quiet),
    ),
    "a fractional layer": (TYPE, ("state", 1.9), lambda w: collect(w, states=[1.9])),
    "layers in a string": (TYPE, ("state", "'01'"), lambda w: collect(w, states="01")),
    "no tasks": (BAD, ("tasks",), lambda w: probing.sweep(made_states(), tasks=[], **fast)),
    "two tasks in a string": (
        BAD,
        ("tasks", "tu"),
        lambda w: probing.sweep(made_states(), tasks="tu", **fast),
    ),
    "a sweep of no steps": (
        BAD,
        ("steps", 1, 0),
        lambda w: probing.sweep(made_states(), **fast | {"steps": 0}),
    ),
    "a sweep of fewer": (
        BAD,
        ("steps", 1, -5),
        lambda w: probing.sweep(made_states(), **fast | {"steps": -5}),
    ),
    "a sweep of fractional steps": (
        TYPE,
        ("steps", 1.5),
        lambda w: probing.sweep(made_states(), **fast | {"steps": 1.5}),
    ),
    "a transfer of no steps": (BAD, ("steps", 1, 0), lambda w: probing.transfer(made_states(), 1, steps=0)),
    "a general probe of no steps": (BAD, ("steps", 1, 0), lambda w: probing.shared.general(made_states(), 1, steps=0)),
    "a probe of no steps": (BAD, ("steps", 1, 0), lambda w: sparse_probe(steps=0)),
    "a fit of no steps": (BAD, ("steps", 1, 0), lambda w: fitted(seeds=[0], steps=0)),
    "a study of no steps": (
        BAD,
        ("steps", 1, 0),
        lambda w: probing.study(w.model("gpt2"), pair_table(), steps=0, **quiet),
    ),
    "a fractional k": (TYPE, ("k", 1.5), lambda w: probing.sweep(made_states(), ks=[1.5], **quiet)),
    "a negative seed": (BAD, ("seed", 0, -1), lambda w: probing.sweep(made_states(), seeds=[-1], **quiet)),
    "a seed of 2⁶⁴": (
        BAD,
        ("seed", 2**64),
        lambda w: probing.sweep(made_states(), seeds=[2**64], **quiet),
    ),
    "a study of a negative seed": (
        BAD,
        ("seed", 0, -1),
        lambda w: probing.study(w.model("gpt2"), pair_table(), seeds=[-1], **quiet),
    ),
    "a fit of a negative seed": (BAD, ("seed", 0, -1), lambda w: fitted(seeds=[-1])),
    "a transfer of a negative seed": (BAD, ("seed", -1), lambda w: probing.transfer(made_states(), 1, seed=-1)),
    "a general probe of a seed of 2⁶⁴": (
        BAD,
        ("seed", 2**64),
        lambda w: probing.shared.general(made_states(), 1, seed=2**64),
    ),
    "a probe of a negative seed": (BAD, ("seed", -1), lambda w: sparse_probe(seed=-1)),
    "an ablation of a negative seed": (BAD, ("seed", -1), lambda w: ablate(w, seed=-1)),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


@pytest.mark.quick("a tuple")
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("form", FORMS)
def test_lists_in_other_forms(form: str, workshop: Workshop) -> None:
    of, w, states = FORMS[form], workshop, made_states()
    given: dict[str, list[Any]] = {"tasks": ["u", "t"], "states": [1], "methods": ["l0", "topk"]}
    given |= {"l0_strengths": [0.2, 0.5], "ks": [1, 2], "seeds": [0, 3], "controls": ["none", "flip"]}
    found = probing.sweep(states, **{name: of(values) for name, values in given.items()}, steps=20, **quiet)
    wanted = probing.sweep(states, **given, steps=20, **quiet)
    for name, expected in wanted.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], expected)
    assert found.provenance == wanted.provenance
    found.save(w.root / "sweep")
    some: Any = {"tasks": ["u", "t"], "l0_strengths": [0.2, 0.5]}
    pd.testing.assert_frame_equal(
        probing.transfer(states, 1, **{name: of(values) for name, values in some.items()}, steps=20),
        probing.transfer(states, 1, **some, steps=20),
    )
    few = ["w1 w2 w3", "w4 w5"]
    np.testing.assert_array_equal(log_probability(w, of(few)), log_probability(w, few))


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_study_of_generators(workshop: Workshop) -> None:
    model, given = workshop.model("gpt2"), {"states": [1, 2], "l0_strengths": [0.2, 0.5], "ks": [1], "seeds": [2]}
    options: Any = {"methods": ["l0", "topk"], "controls": ["none"], "steps": 20} | quiet
    found = probing.study(model, pair_table(), **{name: one_by_one(v) for name, v in given.items()}, **options)
    wanted = probing.study(model, pair_table(), **given, **options)
    for name, expected in wanted.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], expected)


@pytest.mark.usefixtures("untyped")
def test_numpy_numbers(workshop: Workshop) -> None:
    w, states = workshop, made_states()
    found = probing.sweep(states, seeds=list(np.arange(2)), ks=list(np.arange(1, 3)), steps=np.int64(20), **quiet)
    found.save(w.root / "sweep")
    assert Sweep.load(w.root / "sweep").provenance == found.provenance
    assert probing.collect(w.model("gpt2"), pair_table(), states=np.arange(2), **quiet).states == (0, 1)


def test_padding_beyond_the_vocabulary(workshop: Workshop) -> None:
    """A [PAD] that was added to a tokenizer is not a token of the model and pads nothing."""
    table = pair_table()
    table.loc[0, "sentence_bad"] = "w1"
    model = workshop.more_tokens()
    expected = probing.collect(model, table, **quiet).load(1)
    model.tokenizer.pad_token = "extra"
    assert model.tokenizer.pad_token_id >= D_VOCAB
    np.testing.assert_array_equal(probing.collect(model, table, **quiet).load(1), expected)

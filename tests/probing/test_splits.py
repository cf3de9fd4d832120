"""Pairs that repeat, share sentences or cannot be told apart: brute force over sentences, and random labels."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naming import naming
from sklearn.linear_model import LogisticRegression

import interp
from interp import probing, units
from interp.analyses.probing.shared import general
from interp.analyses.probing.states import States
from interp.analyses.units import reading
from interp.corpora import controls, pairs
from interp.corpora.splits import split_tasks, used_pairs
from interp.instruments.uncertainty import wilson
from interp.testing import toy_decoder

QUIET: dict[str, Any] = {"progress": False}


def table_of(both: list[tuple[str, str]], task: str = "t") -> pd.DataFrame:
    rows = [(good, bad, task, str(i), "", "") for i, (good, bad) in enumerate(both)]
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def states_of(table: pd.DataFrame, d: int, seed: int = 0) -> States:
    """A random vector for each different sentence."""
    sentences = table[["sentence_good", "sentence_bad"]]
    numbers, names = pd.factorize(sentences.to_numpy().ravel())
    vectors = np.random.default_rng(seed).normal(size=(len(names), d)).astype(np.float32)
    return States(table, (0,), d, {}, _kept={0: vectors[numbers].reshape(-1, 2, d)})


def shared_sentences(n_tasks: int, seed: int, *, across: bool = False) -> pd.DataFrame:
    """30 good sentences with 4 bad ones each, in random order; in each task others, or the same ones `across` tasks."""
    rng, tables = np.random.default_rng(seed), []
    for task in range(n_tasks):
        good = [f"s{i}" if across else f"{task} s{i}" for i in rng.permutation(30)]
        tables.append(table_of([(one, f"{task} {one} p{j}") for one in good for j in range(4)], f"t{task}"))
    return pd.concat(tables, ignore_index=True)


def drawn_pairs(n: int, n_sentences: int, seed: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [(f"s{a}", f"s{b}") for a, b in rng.integers(n_sentences, size=(n, 2)) if a != b]


# The split


@pytest.mark.parametrize("seed", range(5))
def test_no_sentence_is_in_two_parts_of_any_task(seed: int) -> None:
    every = [table_of(drawn_pairs(60, 400, 10 * seed + i), f"t{i}") for i in range(3)]
    table = pd.concat([*every, every[0].assign(UID="copy")], ignore_index=True)
    part_of: dict[str, str] = {}
    for task, split in split_tasks(table).items():
        parts = {"train": split.train, "validation": split.validation, "test": split.test}
        for part, numbers in parts.items():
            assert len(numbers)
            assert (table["UID"].iloc[numbers] == task).all()
            for sentence in table.iloc[numbers][["sentence_good", "sentence_bad"]].to_numpy().ravel():
                assert part_of.setdefault(sentence, part) == part
        assert sorted(np.concatenate(list(parts.values()))) == list(np.flatnonzero(table["UID"] == task))
        starts = np.cumsum(split.sizes) - split.sizes
        for one, other in itertools.combinations(np.split(split.test, starts[1:]), 2):
            sentences = [
                {*table.iloc[some][["sentence_good", "sentence_bad"]].to_numpy().ravel()} for some in (one, other)
            ]
            assert not sentences[0] & sentences[1]


def test_pairs_without_a_common_sentence_are_permuted() -> None:
    table = table_of([(f"a{i}", f"b{i}") for i in range(53)])
    expected = np.split(np.random.default_rng(0).permutation(53), [32, 42])
    split = split_tasks(table)["t"]
    for numbers, part in zip(split[:3], expected, strict=True):
        assert numbers.tolist() == sorted(part)
    assert split.sizes.tolist() == [1] * 11


def test_groups_of_many_pairs_are_for_training() -> None:
    one_sentence = [("the one", f"x{i}") for i in range(40)]
    split = split_tasks(table_of([*((f"a{i}", f"b{i}") for i in range(20)), *one_sentence]))["t"]
    assert set(range(20, 60)) <= set(split.train)
    assert len(split.train) == 40 + 12


def test_too_few_groups_are_refused() -> None:
    few = [(f"s{i % 9}", f"x{i}") for i in range(45)]
    refusal = pytest.raises(ValueError, match=naming("'t'", 46, 45, 9, 10))
    with pytest.warns(UserWarning, match="left out 1 of 46 pairs"), refusal:
        split_tasks(table_of([*few, few[0]]))
    many = table_of([(f"a{i}", f"b{i}") for i in range(100)])
    inside = many.iloc[split_tasks(many)["t"].train[:12]].assign(UID="u")
    with pytest.raises(ValueError, match=naming("'u'", "tasks")):
        split_tasks(pd.concat([many, inside], ignore_index=True))


# What probes can learn where vectors are random, and so the labels


def test_sentences_are_not_recognised() -> None:
    """A probe that remembers the good sentences of its training pairs would be right on them in test pairs: .73."""
    found = probing.sweep(states_of(shared_sentences(20, 0), 64), methods=["dense"], controls=["none"], **QUIET)
    assert found.probes["accuracy"].mean() == pytest.approx(0.5, abs=0.03)
    assert (found.probes["n_test"] == 2 * 6).all()
    assert found.provenance["pair_counts"] == {"pairs": 2400, "repeated": 0, "same_tokens": 0, "groups": 600}


@pytest.mark.slow
def test_no_probe_recognises_sentences() -> None:
    collected = states_of(shared_sentences(20, 0), 64)
    found = probing.sweep(collected, ks=[5, 20], seeds=[0, 1], steps=300, controls=["none"], **QUIET)
    means = found.probes.groupby("method")["accuracy"].mean()
    assert set(means.index) == {"dense", "l0", "topk:welch"}
    np.testing.assert_allclose(means, 0.5, atol=0.03)


@pytest.mark.slow
def test_probes_of_other_tasks_do_not_recognise_sentences() -> None:
    """All tasks have the same good sentences, in another order. If remembered, they would be judged right in .7."""
    accuracies = []
    for seed in range(20):
        collected = states_of(shared_sentences(3, seed, across=True), 64, seed)
        tables = general(collected, 0, steps=1), probing.transfer(collected, 0, l0_strengths=[])
        accuracies.append([table.query("method == 'dense'")["accuracy"].mean() for table in tables])
    np.testing.assert_allclose(np.mean(accuracies, axis=0), 0.5, atol=0.05)


def test_a_repeated_pair_is_read_once() -> None:
    once = table_of([(f"good {i}", f"bad {i}") for i in range(40)])
    often = pd.concat([once] * 5, ignore_index=True).assign(pairID=[str(i) for i in range(200)])
    asked: dict[str, Any] = {"steps": 50, "seeds": [0], "ks": [2], **QUIET}
    with pytest.warns(UserWarning, match="left out 160 of 200 pairs: 160 because an earlier pair"):
        found = probing.sweep(states_of(often, 32), **asked)
    alone = probing.sweep(states_of(once, 32), **asked)
    for name, expected in alone.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], expected)
    assert (found.probes["n_test"] == 16).all()
    assert found.provenance["pair_counts"] == {"pairs": 200, "repeated": 160, "same_tokens": 0, "groups": 40}


def test_pairs_that_share_a_sentence_count_as_one() -> None:
    table = shared_sentences(1, 0)
    collected, split = states_of(table, 16), split_tasks(table)["t0"]
    found = probing.sweep(collected, methods=["dense"], controls=["none"], **QUIET)
    weights = probing.transfer(collected, 0, l0_strengths=[])
    vectors = collected.load(0).astype(np.float64)
    train = vectors[split.train]
    X = ((train - train.mean((0, 1))) / train.std((0, 1))).transpose(1, 0, 2).reshape(-1, 16)
    y = np.repeat([1, 0], len(split.train))
    probe = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5_000).fit(X, y)
    scores = ((vectors[split.test] - train.mean((0, 1))) / train.std((0, 1))) @ probe.coef_[0]
    right = np.mean([scores[:, 0] > 0, scores[:, 1] <= 0], axis=0)
    by_group = right.reshape(6, 4).mean(1)
    np.testing.assert_allclose(found.hits["dense"], by_group)
    assert found.hits["pair"].tolist() == split.test[::4].tolist()
    row = found.probes.iloc[0]
    assert row["accuracy"] == pytest.approx(right.mean())
    assert weights["accuracy"].item() == pytest.approx(right.mean())
    n = np.clip(right.mean() * (1 - right.mean()) / (by_group.var() / 6), 6, 12)
    for end, expected in zip(("low", "high"), wilson(np.asarray(right.mean()), float(n)), strict=True):
        assert row[f"accuracy_{end}"] == pytest.approx(float(expected))


# What the model judges


TOLD = "left out 15 of 27 pairs: 3 because .* is the same, 12 because both sentences are the same tokens to the model"


def repeated_and_equal() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs, and the same with three of them again and twelve that an uncased model cannot tell apart."""
    own = pairs.load("bundled", tasks=["reflexive_number"], limit=12)
    capitals = own.assign(sentence_bad=own["sentence_good"].str.upper(), pairID=own["pairID"] + "x")
    again = own.head(3).assign(pairID=["a", "b", "c"])
    return own, pd.concat([capitals, own, again], ignore_index=True)


def test_sentences_of_the_same_tokens_are_not_judged() -> None:
    model = toy_decoder()
    own = table_of([(f"w{i} w1", f"w{i} w2") for i in range(5, 17)])
    unknown = table_of([(f"w{i} unknown", f"w{i} words") for i in range(5, 17)]).assign(pairID=own["pairID"] + "x")
    every = pd.concat([unknown, own, own.head(3)], ignore_index=True)
    with pytest.warns(UserWarning, match=TOLD):
        found = probing.minimal_pair_accuracy(model, every, scores=["sum", "per_token"], **QUIET)
    alone = probing.minimal_pair_accuracy(model, own, scores=["sum", "per_token"], **QUIET)
    pd.testing.assert_frame_equal(found, alone)
    none_left = pytest.raises(ValueError, match=naming("tokens", "sentences", "pair"))
    with pytest.warns(UserWarning, match="left out 12 of 12"), none_left:
        probing.minimal_pair_accuracy(model, every.head(12), **QUIET)


@pytest.mark.slow
def test_a_study_says_which_pairs_it_leaves_out() -> None:
    model, (own, every) = interp.load("tiny-bert"), repeated_and_equal()
    quick: dict[str, Any] = {"states": [1], "methods": ["dense"], "controls": ["none"], **QUIET}
    with pytest.warns(UserWarning, match=TOLD):
        study = probing.study(model, every, **quick)
    alone = probing.study(model, own, **quick)
    for name in ("judgements", "probes", "means"):
        pd.testing.assert_frame_equal(study.tables[name], alone.tables[name])
    assert study.provenance["pair_counts"] == {"pairs": 27, "repeated": 3, "same_tokens": 12, "groups": 12}
    assert any("left out 15 of 27 pairs" in caveat for caveat in study.caveats)


def test_an_interval_of_judgements_is_over_groups() -> None:
    table = table_of([(f"w{i} w1", f"w{i} w{j}") for i in range(5, 17) for j in (2, 3, 4)])
    found = probing.minimal_pair_accuracy(toy_decoder(), table, bos=False, **QUIET).iloc[0]
    assert used_pairs(table).counts["groups"] == 12
    assert found["n_pairs"] == 36
    for end, expected in zip(("low", "high"), wilson(np.asarray(found["accuracy"]), 12), strict=True):
        assert found[end] == pytest.approx(float(expected))


# Folds of units


def test_a_group_is_in_one_fold_and_flipped_as_one() -> None:
    table = shared_sentences(2, 0)
    words = table[table["UID"] == "t0"].head(100).assign(control="words")
    every = pd.concat([table.assign(control="none"), words], ignore_index=True)
    used = used_pairs(every, by=("UID", "control"))
    divided = reading._divided(every, used, 3)
    assert [tuple(key) for key in divided] == [("t0", "none"), ("t1", "none"), ("t0", "words")]
    fold_of: dict[str, int] = {}
    assert [np.bincount(some.fold).tolist() for some in divided.values()][:2] == [[40, 40, 40]] * 2
    for some in divided.values():
        signs: dict[str, tuple[float, ...]] = {}
        for number, fold, sign in zip(some.pairs, some.fold, some.signs.T, strict=True):
            for sentence in every.iloc[number][["sentence_good", "sentence_bad"]]:
                assert fold_of.setdefault(sentence, fold) == fold
                assert signs.setdefault(sentence, tuple(sign)) == tuple(sign)
    with pytest.raises(ValueError, match=naming("'t0'", 120, 30, 5, 6, 0.05)):
        reading._divided(every, used, 6)


# Bundled pairs, by their sentences


def test_bundled_pairs_are_known_by_their_sentences() -> None:
    own = pairs.generate(n_per_task=12, tasks=["causative", "easy_eager"])
    assert pairs.bundled_tasks(own) == {"causative": "causative", "easy_eager": "easy_eager"}
    renamed = own.replace({"UID": {"causative": "mine"}})
    assert pairs.bundled_tasks(renamed) == {"mine": "causative", "easy_eager": "easy_eager"}
    assert pairs.read(renamed).name == "bundled pairs"
    made = controls.controls_of(renamed)["numbers"]
    expected = controls.swapped(["causative", "easy_eager"], swap="numbers", n_per_task=12)
    assert made["sentence_good"].tolist() == expected["sentence_good"].tolist()
    assert made["UID"].unique().tolist() == ["mine", "easy_eager"]
    edited = own.copy()
    edited.loc[5, "sentence_bad"] += " Yes."
    assert pairs.bundled_tasks(edited) == {"easy_eager": "easy_eager"}
    assert pairs.read(edited).name == "24 minimal pairs"
    assert controls.controls_of(edited) == {}
    assert not pairs.read("bundled", tasks=["causative"], limit=12).table.attrs


@pytest.mark.slow
def test_renamed_and_edited_tasks_have_their_controls() -> None:
    model, own = interp.load("tiny-gpt2"), pairs.generate(n_per_task=12, tasks=["reflexive_number"])
    quick: dict[str, Any] = {"bos": True, **QUIET}
    plain, renamed = (units.study(model, table, **quick) for table in (own, own.assign(UID="mine")))
    assert renamed.provenance["corpus"] == "bundled pairs"
    pd.testing.assert_frame_equal(renamed.consistency, plain.consistency.assign(task="mine"))
    edited = own.assign(sentence_good="Now " + own["sentence_good"], sentence_bad="Now " + own["sentence_bad"])
    with pytest.warns(UserWarning, match="sentences of task 'reflexive_number' are not those of a bundled task, so"):
        found = units.study(model, edited, **quick)
    assert found.provenance["corpus"] == "12 minimal pairs"
    assert set(found.consistency["control"]) == {"none"}

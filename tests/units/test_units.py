"""Units against stored states from plain transformers, scipy, scikit-learn and loops."""

import functools
import itertools
import re
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import probing as oracle
from scipy import stats
from sklearn.metrics import roc_auc_score
from toys import toy

import interp
from interp import plots, probing, units
from interp.analyses.registry import load
from interp.analyses.units import overlaps, reading
from interp.analyses.units.page import section, sides
from interp.analyses.units.summary import auc, auc_variance, paired_t, shared, task_units, top
from interp.analyses.units.sums import BINS, Scale, UnitSums, folds_of, pair_batches, places, signs_of
from interp.analyses.units.tables import dry_run
from interp.corpora import controls, pairs
from interp.corpora.controls import Swap
from interp.passes import moments
from interp.passes.reading import observe, part_of
from interp.testing import toy_decoder

N_PAIRS, FOLDS = 40, 2
KINDS = ("gpt2", "llama", "bert")


def toy_pairs(tasks: tuple[str, ...] = ("a", "b", "c", "d"), n: int = N_PAIRS, seed: int = 0) -> pd.DataFrame:
    """Pairs that differ in one word: tasks a and b in the same word, c and d in another."""
    rng, rows = np.random.default_rng(seed), []
    for task in tasks:
        good, bad = ("w1", "w2") if task in "ab" else ("w3", "w4")
        for i in range(n):
            words = [f"w{j}" for j in rng.integers(5, 60, int(rng.integers(2, 7)))]
            field = "first" if task in "ab" else "second"
            rows.append((" ".join([good, *words]), " ".join([bad, *words]), task, str(i), field, ""))
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def study_of(model: Any, table: pd.DataFrame, **options: Any) -> units.UnitStudy:
    """A study without control pairs, unless they are given."""
    return units.study(model, table, **({"control_pairs": {}, "progress": False} | options))


def read_by_transformers(kind: str, directory: Any, rows: list[list[int]], where: int) -> dict[tuple[str, int], Any]:
    """Every unit at one position of each row, from the inputs and outputs of the modules."""
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    hf = make.from_pretrained(directory).eval()
    base = {"gpt2": "transformer", "llama": "model", "bert": "bert"}[kind]
    trunk: Any = getattr(hf, base)
    blocks = {"gpt2": lambda: trunk.h, "llama": lambda: trunk.layers, "bert": lambda: trunk.encoder.layer}[kind]()
    first = {"gpt2": "drop", "llama": "embed_tokens", "bert": "embeddings"}[kind]
    mlp_in = {"gpt2": "mlp.c_proj", "llama": "mlp.down_proj", "bert": "output.dense"}[kind]
    heads_in = {"gpt2": "attn.c_proj", "llama": "self_attn.o_proj", "bert": "attention.output.dense"}[kind]
    seen: dict[tuple[str, int], list[np.ndarray]] = {}

    def keep(key: tuple[str, int], value: Any) -> None:
        value = value[0] if isinstance(value, tuple) else value
        seen.setdefault(key, []).append(value[0, where].detach().double().numpy())

    def outputs(key: tuple[str, int]) -> Any:
        return lambda module, given, output: keep(key, output)

    def inputs(key: tuple[str, int]) -> Any:
        return lambda module, given: keep(key, given[0])

    getattr(trunk, first).register_forward_hook(outputs(("residual", 0)))
    for layer, block in enumerate(blocks):
        block.register_forward_hook(outputs(("residual", layer + 1)))
        block.get_submodule(mlp_in).register_forward_pre_hook(inputs(("neurons", layer)))
        block.get_submodule(heads_in).register_forward_pre_hook(inputs(("heads", layer)))
    with torch.no_grad():
        for row in rows:
            hf(torch.tensor([row]))
    return {key: np.stack(values).reshape(-1, 2, values[0].size) for key, values in seen.items()}


def t_of(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        t = stats.ttest_rel(x[:, 0], x[:, 1]).statistic
    return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Precision loss occurred")
def test_tables_are_those_of_stored_states(kind, hf_directory, load_toy):
    """Consistency, shared units, AUC and similarity, by loops over states of plain transformers."""
    model, table = load_toy(kind), toy_pairs(("a", "b", "c"))
    found = study_of(model, table, bos=False, position="last" if kind != "bert" else "eos")
    sentences = table[["sentence_good", "sentence_bad"]].to_numpy().ravel().tolist()
    encoded = model.tokenizer(sentences, add_special_tokens=False)["input_ids"]
    rows = [[2, *ids, 3] for ids in encoded] if kind == "bert" else encoded
    states = read_by_transformers(kind, hf_directory(kind), rows, -1)
    fold = folds_of(N_PAIRS, FOLDS)
    numbers = {task: np.flatnonzero(table["UID"] == task) for task in "abc"}
    for of in ("residual", "neurons", "heads"):
        joined = np.concatenate([x for key, x in states.items() if key[0] == of], axis=2)
        tops: dict[Any, set[int]] = {}
        for task in "abc":
            mine = joined[numbers[task]]
            for part in range(FOLDS):
                tops[task, part, 0] = oracle.top(t_of(mine[fold == part]))
                tops[task, part, 1] = oracle.top(t_of(mine[fold != part]))
            n = max(1, joined.shape[2] // 100)
            overlap = np.mean([len(tops[task, p, 0] & tops[task, p, 1]) / n for p in range(FOLDS)])
            row = found.consistency.query("task == @task and of == @of").iloc[0]
            assert row["overlap"] == pytest.approx(overlap)
            assert (row["n_units"], row["n_top"], row["n_pairs"]) == (joined.shape[2], n, N_PAIRS)
        for one, other in itertools.combinations("abc", 2):
            both = [
                len(tops[x, p, 0] & tops[y, p, 1]) / n
                for p in range(FOLDS) for x, y in ((one, other), (other, one))
            ]  # fmt: skip
            row = found.shared_units.query("of == @of and task_a == @one and task_b == @other").iloc[0]
            assert row["overlap"] == pytest.approx(np.mean(both))
        at = np.repeat(
            [key[1] for key in states if key[0] == of], [x.shape[2] for k, x in states.items() if k[0] == of]
        )
        for _, row in found.units[(found.units["of"] == of) & (found.units["task"] == "a")].iterrows():
            unit = np.flatnonzero(at == row["at"])[row["unit"]]
            good, bad = joined[numbers["a"]][:, 0, unit], joined[numbers["a"]][:, 1, unit]
            area = roc_auc_score(np.repeat([1, 0], N_PAIRS), np.concatenate([good, bad]))
            assert abs(row["auc"] - area) <= row["auc_error"] + 1e-9
            assert row["t"] == pytest.approx(t_of(joined[numbers["a"]][..., [unit]])[0], rel=1e-3)
    for at in (1, 2):
        means = {task: np.subtract(*states["residual", at][numbers[task]].mean(0)) for task in "abc"}
        for one, other in itertools.combinations("abc", 2):
            row = found.similarity.query("at == @at and task_a == @one and task_b == @other").iloc[0]
            cosine = means[one] @ means[other] / np.linalg.norm(means[one]) / np.linalg.norm(means[other])
            assert row["cosine"] == pytest.approx(cosine, abs=1e-4)


@functools.cache
def any_toy() -> Any:
    return toy_decoder()


def synthetic(x: np.ndarray, flips: int = 40, folds: int = FOLDS, piece: int = 100) -> UnitSums:
    """The sums of made-up states `[pairs, 2, d]`, as if from the residual stream of a toy with d units."""
    model = any_toy()
    where = [place._replace(width=x.shape[2]) for place in places(model) if place.of == "residual"][:1]
    numbers = np.arange(len(x))
    scale = Scale(model, where, numbers)
    rows = torch.from_numpy(x.reshape(-1, x.shape[2])).float()
    scale.take(where[0], rows[:32], torch.arange(16))
    scale.commit()
    sums = UnitSums(model, where, numbers, folds_of(len(x), folds), signs_of(len(x), flips), scale=scale)
    for start in range(0, len(x), piece):
        sums.take(where[0], rows[2 * start : 2 * (start + piece)], torch.arange(start, min(start + piece, len(x))))
        sums.commit()
    return sums


@pytest.mark.slow
def test_flipped_labels_are_pairs_with_their_sentences_swapped():
    x = np.random.default_rng(0).normal(size=(30, 2, 400)) + np.linspace(-50, 50, 400)
    sums = synthetic(x, flips=3, piece=7)
    found, fold, signs = task_units(sums), folds_of(30, FOLDS), sums.signs.numpy()
    for draw in range(3):
        swapped = np.where(signs[draw][:, None, None] > 0, x.astype(np.float32), x[:, ::-1].astype(np.float32))
        swapped = swapped.astype(np.float64)
        for part in range(FOLDS):
            sets = found.sets["residual"][part, :, 1 + draw]
            assert set(sets[0].tolist()) == oracle.top(t_of(swapped[fold == part]))
            assert set(sets[1].tolist()) == oracle.top(t_of(swapped[fold != part]))


def test_best_unit_is_chosen_on_one_part_and_measured_on_the_other():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2, 50))
    x[:, 0, 7] -= 1.2  # larger in bad sentences
    row = task_units(synthetic(x)).separability[0]
    fold, areas, shares = folds_of(60, FOLDS), [], []
    for held in range(FOLDS):
        train, test = x[fold != held], x[fold == held]
        labels = [np.repeat([1, 0], len(part)) for part in (train, test)]
        each = [roc_auc_score(labels[0], np.concatenate([train[:, 0, i], train[:, 1, i]])) for i in range(50)]
        best = int(np.argmax(np.abs(np.array(each) - 0.5)))
        assert best == 7
        areas.append(1 - roc_auc_score(labels[1], np.concatenate([test[:, 0, best], test[:, 1, best]])))
        shares.append(test[:, 0, best] < test[:, 1, best])
    assert (row["at"], row["unit"], row["n_pairs"]) == (0, 7, 60)
    assert abs(row["auc"] - np.mean(areas)) <= row["error"]
    assert row["pair_share"] == pytest.approx(np.concatenate(shares).mean())
    expected = stats.binomtest(int(np.concatenate(shares).sum()), 60).proportion_ci(method="wilson")
    assert (row["pair_low"], row["pair_high"]) == pytest.approx(tuple(expected), abs=1e-6)


def test_an_auc_of_histograms_is_within_its_error():
    rng = np.random.default_rng(2)
    for shift, tails in itertools.product((0.0, 0.7, 3.0), (False, True)):
        values = rng.standard_t(2, (2, 500)) if tails else rng.normal(size=(2, 500))
        values[0] += shift
        bins = np.clip((BINS * stats.norm.cdf(values)).astype(int), 0, BINS - 1)
        counts = torch.tensor(np.stack([np.bincount(row, minlength=BINS) for row in bins]), dtype=torch.float64)
        area, error = (float(part[0]) for part in auc(counts[:, :, None]))
        true = roc_auc_score(np.repeat([1, 0], 500), values.ravel())
        assert abs(area - true) <= error + 1e-12
        assert error < 0.05
        above = (bins[0][:, None] > bins[1]) + 0.5 * (bins[0][:, None] == bins[1])
        assert area == pytest.approx(above.mean())
        placed = above.mean(1).var(ddof=1) / 500 + above.mean(0).var(ddof=1) / 500  # DeLong 1988
        assert auc_variance(counts) == pytest.approx(placed)


def test_units_that_separate_all_pairs_have_an_auc_of_exactly_one():
    bad = torch.randint(0, 10, (30, 50), generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(2, 20, 50)
    counts[1].scatter_add_(0, bad, torch.ones(30, 50))
    counts[0].scatter_add_(0, bad.flip(1) + 10, torch.ones(30, 50))
    assert (auc(counts)[0] == 1).all()


def test_scores_of_constants():
    """A unit that differs by the same amount in each pair is first; one that never differs is never in the top."""
    x = np.random.default_rng(3).normal(size=(12, 2, 300))
    x[:, 0] = x[:, 1]
    x[:, 0, 5] += 2.0
    x[:, :, 9] = 1.0
    x = np.round(x * 64) / 64  # exact in float32
    found = task_units(synthetic(x))
    assert found.sets["residual"][:, :, 0].max() == 5
    assert (np.sort(found.sets["residual"][0, 0, 0]) == [-1, -1, 5]).all()
    assert found.units[0]["t"].tolist() == [np.inf]
    one, other = np.array([-1, -1, 5]), np.array([-1, 4, 5])
    assert shared(one, other) == pytest.approx(1 / 3)


def test_paired_t_is_scipys():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(25, 2, 6)) * np.array([1, 3])[:, None] + 1e4
    difference = torch.from_numpy(x[:, 0] - x[:, 1])
    m = moments.by_group(difference, torch.ones(25, 1, dtype=torch.float64))[:, 0]
    np.testing.assert_allclose(paired_t(m), stats.ttest_rel(x[:, 0], x[:, 1]).statistic, rtol=1e-9)
    assert top(torch.tensor([[0.0, -3.0, 2.0, 1.0]]), 2).tolist() == [[1, 2]]


@pytest.mark.slow
def test_sums_do_not_depend_on_how_pairs_are_shared_out():
    model, table = toy_decoder(), toy_pairs(("a",), n=100)
    rows = model.tokenizer(table[["sentence_good", "sentence_bad"]].to_numpy().ravel().tolist())["input_ids"]
    where, numbers = places(model), np.arange(100)
    settings: Any = {}

    def made() -> UnitSums:
        return UnitSums(model, where, numbers, folds_of(100, FOLDS), signs_of(100, 4), scale=scale)

    scale = Scale(model, where, numbers)
    read = pair_batches(model, rows, [numbers], "last", settings)
    observe(model, read, scale, progress=False)
    whole, parts = made(), made()
    observe(model, read, whole, progress=False)
    small = [pair_batches(model, rows, [some], "last", settings) for some in np.array_split(numbers, 7)]
    for one in small:
        part = made()
        observe(model, part_of(one, 0, 1), part, progress=False)
        parts.merge(part)
    for name, value in whole.state.items():
        torch.testing.assert_close(parts.state[name], value, rtol=1e-4, atol=1e-4)
    assert whole.state["counts.residual.1"].sum() == 200 * model.cfg.d_model


@pytest.mark.slow
def test_a_run_that_is_resumed_or_divided_gives_the_same(tmp_path, monkeypatch):
    model, table = toy_decoder(), toy_pairs(("a", "c"))
    plain = study_of(model, table)
    monkeypatch.setattr(reading, "_AT_ONCE", 1)  # one task at a time
    alone = study_of(model, table, directory=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    again = study_of(model, table, directory=tmp_path)
    for name, expected in plain.tables.items():
        pd.testing.assert_frame_equal(alone.tables[name], expected)
        pd.testing.assert_frame_equal(again.tables[name], expected)
    with pytest.raises(ValueError, match=naming(tmp_path, "run")):
        study_of(model, toy_pairs(("a", "c"), seed=1), directory=tmp_path)


@pytest.mark.slow
def test_tasks_of_one_phenomenon_share_units():
    found = study_of(toy_decoder(), toy_pairs(n=120), position="mean")
    row = found.phenomena.query("of == 'neurons' and by == 'field'").iloc[0]
    part = found.shared_units.query("of == 'neurons'").set_index(["task_a", "task_b"])["overlap"]
    within, between = part[[("a", "b"), ("c", "d")]].mean(), part.drop([("a", "b"), ("c", "d")]).mean()
    assert (row["within"], row["between"]) == pytest.approx((within, between))
    assert row["difference"] > 0
    assert found.phenomena.query("by == 'linguistics_term'").empty  # no task has a linguistics term


def test_groups_of_tasks_are_permuted():
    overlap = {"ab": 0.5, "cd": 0.4, "ac": 0.1, "ad": 0.2, "bc": 0.3, "bd": 0.0}
    rows = [("heads", one, "none", other, "none", share) for (one, other), share in overlap.items()]
    made = pd.DataFrame(rows, columns=["of", "task_a", "control_a", "task_b", "control_b", "overlap"])
    groups = pd.DataFrame({"field": list("xxyy"), "linguistics_term": list("xxxx")}, index=list("abcd"))
    row = overlaps.phenomena(made, groups)
    assert row["by"].tolist() == ["field"]  # all have the same term
    assert row[["within", "between", "difference"]].to_numpy().tolist() == [pytest.approx([0.45, 0.15, 0.3])]
    assert row["p"].item() == pytest.approx(1 / 3, abs=0.05)  # of the three ways to pair off four tasks, one is theirs
    assert row[["low", "high"]].isna().all(axis=None), "of four tasks"
    rng = np.random.default_rng(0)
    matrix, labels = rng.random((9, 9)), np.array(list("xxxyyyzzz"))
    names = "abcdefghi"
    rows = [("heads", names[i], "none", names[j], "none", matrix[i, j]) for i, j in itertools.combinations(range(9), 2)]
    row = overlaps.phenomena(pd.DataFrame(rows, columns=made.columns), pd.DataFrame({"field": labels}, index=[*names]))

    def contrast(kept):
        pairs = [*itertools.combinations(kept, 2)]
        same = [matrix[i, j] for i, j in pairs if labels[i] == labels[j]]
        return np.mean(same) - np.mean([matrix[i, j] for i, j in pairs if labels[i] != labels[j]])

    without = np.array([contrast([i for i in range(9) if i != out]) for out in range(9)])
    reach = stats.t.ppf(0.975, 8) * np.sqrt(8 / 9 * ((without - without.mean()) ** 2).sum())
    assert row["difference"].item() == pytest.approx(contrast(range(9)))
    assert row["high"].item() - row["difference"].item() == pytest.approx(reach)


def found_of(effect: float, seed: int, tasks: int = 5, controls: bool = False) -> units.UnitStudy:
    """A study of made-up states: in each task, six of 300 units differ by `effect` SDs, four of them in all tasks."""
    rng = np.random.default_rng(seed)
    found = {}
    for number, control in itertools.product(range(tasks), ["none", *get_args(Swap)] if controls else ["none"]):
        x = rng.normal(size=(24, 2, 300))
        shift = np.zeros(300)
        own = {"none": [*range(4), 10 + number, 20 + number], "words": [100 + number], "numbers": [200 + number]}
        shift[own[control]] = effect
        x[:, 0] += shift
        sums = synthetic(x)
        found[reading.TaskKey(f"task {number}", control)] = task_units(sums)
    groups = pd.DataFrame({"UID": [f"task {i}" for i in range(tasks)], "field": list("xxyyyxxyyy")[:tasks]})
    tables = overlaps.unit_tables(found, sums.where, groups.assign(linguistics_term=""))
    return units.UnitStudy(provenance={}, **tables)


@pytest.mark.slow
def test_findings_of_planted_units():
    said = {one.question: one.verdict for one in found_of(2.0, seed=0, tasks=8, controls=True).findings}
    for swapped in ("word", "number"):
        said.pop(f"Are units of grammar found again more often than units of a swapped {swapped}?")
        said.pop(f"Does it tell them better than another tells sentences with a swapped {swapped}?")
    assert said.pop("Does a single residual dimension tell good sentences from bad?") == "yes"
    assert said == {
        "Do other pairs of a task find the same residual dimensions?": "yes",
        "Do tasks of one field share more units than tasks of different fields?": "cannot tell",
        "Do tasks share more units with one another than with controls of a swapped word?": "yes",
        "Do tasks share more units with one another than with controls of a swapped number?": "yes",
        "Do the differences of different tasks point the same way?": "yes",
    }
    without = [one for one in found_of(2.0, seed=0).findings if one.compared_with == "controls: none"]
    assert [one.verdict for one in without] == ["cannot tell"]
    alone = {one.question: one.verdict for one in found_of(2.0, seed=0, tasks=1).findings}
    assert set(alone.values()) == {"cannot tell"}


@pytest.mark.slow
def test_yes_is_rare_where_there_is_no_effect():
    """Without any effect in the states, at most one finding in twenty says yes."""
    yes: dict[str, int] = {}
    for seed in range(10):
        for one in found_of(0.0, seed, tasks=8, controls=True).findings:
            yes[one.question] = yes.get(one.question, 0) + (one.verdict == "yes")
    assert len(yes) == 10
    assert max(yes.values()) <= 1, yes


@pytest.mark.slow
def test_positions():
    """The mean over positions includes all tokens of a sentence, also special ones."""
    model, table = toy_decoder(), toy_pairs(("a",))
    for position in ("last", "mean", "eos"):
        states = probing.collect(model, table, states=[2], position=position, progress=False).load(2)
        found = study_of(model, table, position=position)
        first = found.units.query("of == 'residual' and at == 2")
        for _, row in first.iterrows():
            assert row["t"] == pytest.approx(t_of(states[..., [row["unit"]]].astype(float))[0], rel=1e-3)


@pytest.mark.slow
def test_bad_input():
    model, table = toy_decoder(), toy_pairs(("a", "b"))
    few = table.groupby("UID").head(11)
    with pytest.raises(ValueError, match=naming("'a'", 11, 5, 2, 6)):
        study_of(model, few)
    with pytest.raises(ValueError, match=naming(5, 8)):
        study_of(model, table, folds=8)
    with pytest.raises(ValueError, match=naming("folds", 2, 1)):
        study_of(model, table, folds=1)
    with pytest.raises(ValueError, match=naming("control_pairs", "words", "b")):
        units.study(model, table, control_pairs=toy_pairs(("a",)), progress=False)
    with pytest.raises(ValueError, match=naming("control_pairs", "c")):
        units.study(model, table, control_pairs=toy_pairs(("a", "b", "c")), progress=False)
    with pytest.raises(ValueError, match=naming("control_pairs", "numbers", "a")):
        units.study(model, table, control_pairs={"words": table, "numbers": toy_pairs(("b",))}, progress=False)
    encoder = toy(model.tokenizer, encoder=True, n_layers=1)
    same_start = table.assign(sentence_good="w9 " + table["sentence_good"], sentence_bad="w9 " + table["sentence_bad"])
    with pytest.raises(ValueError, match=naming("'cls'", "encoders")):
        study_of(model, same_start, position="cls")
    with torch.no_grad():
        encoder.blocks[0].attn.W_V.zero_()  # so that [CLS] reads no other token
        encoder.blocks[0].attn.b_V.zero_()
    with pytest.raises(ValueError, match=naming("unit", "'a'")):
        study_of(encoder, same_start, position="cls")


@pytest.mark.slow
def test_controls_differ_in_a_word_of_which_half_are_called_good():
    table = controls.swapped(pairs.TASKS, n_per_task=60)
    assert table.groupby("UID").size().to_dict() == dict.fromkeys(pairs.TASKS, 60)
    again = controls.swapped(["causative"], n_per_task=20)
    pd.testing.assert_frame_equal(again, table[table["UID"] == "causative"].head(20).reset_index(drop=True))
    names = table[table["UID"] == "irregular_participle"]
    first, second = (names[column].str.split().str[0] for column in ("sentence_good", "sentence_bad"))
    assert not set(first) & set(second)  # each name is called either good or bad
    assert (names["sentence_good"].str.split().str[1:] == names["sentence_bad"].str.split().str[1:]).all()
    numbers = controls.swapped(pairs.TASKS, swap="numbers", n_per_task=60)
    for task, part in numbers.groupby("UID"):
        good, bad = (part[column].str.extract(r"^In chapter (\w+), (.*)$") for column in part.columns[:2])
        assert (good[1] == bad[1]).all()  # they differ only in the number
        assert len({*good[0]} | {*bad[0]}) == 20, task
        assert not {*good[0]} & {*bad[0]}
    with pytest.raises(ValueError, match=naming("'mine'", "controls")):
        controls.swapped(["mine"])
    with pytest.raises(ValueError, match=naming("n_per_task", 1, 0)):
        controls.swapped(["causative"], n_per_task=0)


@pytest.mark.slow
def test_bundled_pairs_have_controls_of_both_kinds():
    model = interp.load("tiny-gpt2")
    table = pairs.load("bundled", tasks=["reflexive_number"], limit=12)
    quick: Any = {"bos": True, "progress": False}
    study = units.study(model, "bundled", tasks=["reflexive_number"], limit=12, **quick)
    swapped = controls.swapped(["reflexive_number"], n_per_task=12)
    numbers = controls.swapped(["reflexive_number"], swap="numbers", n_per_task=12)
    given = units.study(model, table, control_pairs={"words": swapped, "numbers": numbers}, **quick)
    for name, expected in given.tables.items():
        pd.testing.assert_frame_equal(study.tables[name], expected)
    assert set(study.consistency["control"]) == {"none", "words", "numbers"}
    shown = section(study)
    assert {"consistency", "depth", "separability_heads"} <= set(shown.figures)
    assert list(shown.tables) == ["Top units found again by other pairs, mean over tasks"]
    again = study.consistency.query("control == 'none' and of == 'residual'")["overlap"].item()
    assert study.answer is not None
    assert study.answer.values["overlap"] == again
    assert f"{again:.0%} of the top 1 % of residual dimensions again" in str(study.answer)


@pytest.mark.slow
def test_runs_are_compared_in_their_units():
    model, table = toy_decoder(), toy_pairs(("a", "c"))
    with pytest.warns(UserWarning, match=r"no control pairs, .*; for that, read bundled pairs, or give control_pairs"):
        study = units.study(model, table, progress=False)
    found = sides({"one": study, "again": study})
    again = study.consistency.groupby("of")["overlap"].mean()
    assert found.numbers.loc["one", "found_again_heads"] == pytest.approx(again["heads"])
    assert [trace.name for trace in found.figures["consistency"].data] == ["one", "again"]


@pytest.mark.parametrize(("n", "folds", "enough"), [(12, 2, True), (11, 2, False), (12, 3, False)])
def test_too_few_pairs_are_no_reason_to_stop_a_report(n, folds, enough):
    model = toy_decoder()
    reason = load("units").why_unsuited(model, pairs.read(toy_pairs(("a", "c"), n=n)), {"folds": folds})
    assert reason is None if enough else re.search(naming("'a'", n, folds, 6), reason)


@pytest.mark.slow
def test_memory_and_disk_are_known_before_a_run(hf_directory, tmp_path):
    """A dry run gives the bytes of the sums for tasks read side by side, and of those kept on disk for all tasks."""
    directory = str(hf_directory("gpt2"))
    model, table = interp.load(directory), toy_pairs(("a", "b", "c"))
    observers: list[UnitSums] = []
    analysis = units.study.passes(model, table, position="last", control_pairs={})
    for readings in analysis:
        for one_reading in readings:
            observe(model, one_reading.batches, *one_reading.observers, progress=False)
            observers += [one for one in one_reading.observers if isinstance(one, UnitSums)]
    held = sum(value.numel() * 8 for one in observers for value in one.state.values())
    cost = dry_run(directory, table, {})
    assert cost.passes[-1].what == "units"
    assert cost.passes[-1].sums == held
    assert cost.numbers["n_mapped"] == 3
    study_of(model, table, position="last", directory=tmp_path)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert cost.disk < on_disk < 1.03 * cost.disk  # and headers
    assert dry_run("tiny-gpt2", "bundled", {"limit": 20}).numbers["n_mapped"] == 63
    for control_pairs, n_mapped in (({}, 21), ({"words": table}, 42), (table, 42)):
        options = {"limit": 20, "control_pairs": control_pairs}
        assert dry_run("tiny-gpt2", "bundled", options).numbers["n_mapped"] == n_mapped


@pytest.mark.slow
def test_figures():
    found = found_of(2.0, seed=0, controls=True)
    assert [trace.name for trace in plots.unit_consistency(found).data] == [
        "grammar", "a word swapped", "a number swapped", "labels flipped",
    ]  # fmt: skip
    grid = plots.shared_units(found).data[0]
    assert np.shape(grid.z) == (5, 15)  # tasks by tasks, and by both kinds of their controls
    own = found.consistency.query("control == 'none'").set_index("task")["overlap"]
    np.testing.assert_allclose(np.diagonal(grid.z[:, :5]), own.to_numpy(), atol=1e-3)
    assert grid.z[0, 1] == grid.z[1, 0]
    assert len(plots.unit_separability(found).data) == 3
    shares = [sum(trace.y) for trace in plots.unit_depth(found).data]
    assert shares == pytest.approx([1.0, 1.0, 1.0])
    assert [trace.name for trace in plots.pair_similarity(found).data][2] == "controls of other tasks"
    alone = found_of(2.0, seed=0, tasks=1)
    with pytest.raises(ValueError, match="two tasks"):
        plots.shared_units(alone)
    with pytest.raises(ValueError, match=naming("'neurons'", "residual")):
        plots.shared_units(found, of="neurons")

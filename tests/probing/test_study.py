"""Probes on a model, overlap of tasks, controls and the study, against plain transformers, scipy and scikit-learn.

Every expected number is computed here from the definitions: hidden states and edits with hooks on the transformers
model, probes with scikit-learn, and chance values by simulation.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import probing as oracle
from scipy import stats
from sklearn.linear_model import LogisticRegression

import interp
from interp import probing
from interp.analyses.probing import ProbingStudy
from interp.analyses.probing.fitting import fit_sparse
from interp.analyses.probing.probes import Probe
from interp.analyses.probing.sparse import SparseProbe
from interp.analyses.probing.states import States
from interp.analyses.probing.untrained import TWINS
from interp.cli import main
from interp.corpora import pairs
from interp.corpora.splits import split_tasks
from interp.support import memory

KINDS = ("gpt2", "llama", "bert")
LAYERS, WIDTH = 2, 16
COLUMNS = {
    "judgements": "task score accuracy low high n_pairs difference difference_low difference_high p p_adjusted",
    "judgement_means": "score accuracy low high difference difference_low difference_high above below n_tasks",
    "probes": "task state method l0_strength k seed control accuracy pair_accuracy bag_of_words n_open "
    "open_fraction n_test",
    "neurons": "task state dim t p_adjusted gate weight",
    "random_k": "task state k draw accuracy",
    "equivalence": "task state ratio low high",
    "agreement": "task state l0_strength spearman spearman_max auroc",
    "hits": "task state pair dense l0 topk dense_flipped l0_rotated topk_rotated bag_of_words dense_untrained "
    "l0_untrained topk_untrained",
    "means": "state probe accuracy low high sd",
    "differences": "state probe against difference low high above below n_tasks",
    "untrained": "task state probe control draw accuracy",
    "rotations": "task state control draw k accuracy",
    "comparisons": "task state probe against difference low high p p_adjusted",
    "overlap": "task_a task_b state jaccard expected cosine",
    "transfer": "train_task test_task state l0_strength accuracy pair_accuracy",
    "ablation": "task state mode set n_neurons accuracy_before accuracy_after",
}


# What is expected, by other means


def toy_pairs(n: int, task: str = "t", field: str = "", term: str = "") -> pd.DataFrame:
    rng = np.random.default_rng(sum(map(ord, task)))
    rows = []
    for i in range(n):
        words = [f"w{j}" for j in rng.integers(0, 60, int(rng.integers(3, 9)))]
        rows.append((" ".join(["w1", *words]), " ".join(["w2", *words]), task, str(i), field, term))
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def states_of(vectors: np.ndarray, table: pd.DataFrame) -> States:
    return States(table, (3,), vectors.shape[2], {"made": "here"}, _kept={3: vectors.astype(np.float32)})


def tables(named: dict[str, np.ndarray], **described: tuple[str, str]) -> States:
    every = [toy_pairs(len(v), name, *described.get(name, ("", ""))) for name, v in named.items()]
    return states_of(np.concatenate(list(named.values())), pd.concat(every, ignore_index=True))


def planted(n: int, d: int, dims: Sequence[int], seed: int, shift: float = 1.5) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, 2, d)) + np.linspace(-2, 2, d)
    vectors[:, 0, list(dims)] += shift
    return vectors.astype(np.float32)


def peer(directory: Path, kind: str) -> Any:
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    return make.from_pretrained(directory).eval()


def places(hf: Any, kind: str) -> list[torch.nn.Module]:
    """The modules whose outputs are the hidden states."""
    if kind == "gpt2":
        return [hf.transformer.drop, *hf.transformer.h]
    if kind == "llama":
        return [hf.model.embed_tokens, *hf.model.layers]
    return [hf.bert.embeddings, *hf.bert.encoder.layer]


Edit = Callable[[torch.Tensor], torch.Tensor | None]


@contextmanager
def hooked(hf: Any, kind: str, state: int, edit: Edit) -> Iterator[None]:
    def hook(module: object, given: object, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        new = edit(first)
        return None if new is None else (new, *output[1:]) if isinstance(output, tuple) else new

    handle = places(hf, kind)[state].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def hidden(hf: Any, kind: str, state: int, ids: Sequence[int]) -> np.ndarray:
    seen: list[torch.Tensor] = []
    with hooked(hf, kind, state, lambda x: seen.append(x.clone())):
        hf(torch.tensor([list(ids)]))
    return seen[0][0].double().numpy()


def framed(tokenizer: Any, kind: str, sentence: str, bos: bool = True, eos: bool = False) -> list[int]:
    ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    if kind == "bert":
        return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
    return [tokenizer.bos_token_id] * bos + ids + [tokenizer.eos_token_id] * eos


@torch.no_grad()
def log_probability(hf: Any, tokenizer: Any, kind: str, sentence: str) -> float:
    """Causal models: the sum over all tokens after the first; BERT: each token is masked in turn."""
    row = framed(tokenizer, kind, sentence)
    if kind != "bert":
        logits = hf(torch.tensor([row])).logits[0, :-1].double().log_softmax(-1)
        return float(logits.gather(1, torch.tensor(row[1:])[:, None]).sum())
    rows = torch.tensor(row).repeat(len(row) - 2, 1)
    where = torch.arange(1, len(row) - 1)
    rows[torch.arange(len(rows)), where] = tokenizer.mask_token_id
    logits = hf(rows).logits[torch.arange(len(rows)), where].double().log_softmax(-1)
    return float(logits.gather(1, torch.tensor(row[1:-1])[:, None]).sum())


def random_probe(state: int, seed: int = 0, dims: Sequence[int] | None = None) -> Probe:
    direction = np.random.default_rng(seed).normal(size=WIDTH)
    if dims is not None:
        direction[np.setdiff1d(np.arange(WIDTH), dims)] = 0
    return Probe("t", state, direction, 0.3)


def no_hooks(model: Any) -> bool:
    return not any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())


# Steering and reading


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", [0, LAYERS])
def test_steering_raises_the_score_by_the_shift(
    kind: str, state: int, hf_directory: Callable[[str], Path], load_toy: Callable[..., Any]
) -> None:
    model, hf, shift = load_toy(kind), peer(hf_directory(kind), kind), -2.5
    found = random_probe(state)
    names = ["hook_full_embed" if kind == "bert" else "blocks.0.hook_resid_pre"]
    norm = "normalized_" if kind == "bert" else ""
    names += [f"blocks.{layer}.hook_{norm}resid_post" for layer in range(LAYERS)]
    recipe = probing.steer(model, found, shift)
    assert [name for name, _ in recipe] == [names[state]]

    def states(hooks: list[Any]) -> tuple[list[torch.Tensor], torch.Tensor]:
        seen: dict[str, torch.Tensor] = {}
        keep = [(name, lambda x, hook: seen.__setitem__(hook.name, x.detach().clone())) for name in names]
        with torch.no_grad():
            out = model.run_with_hooks(tokens, fwd_hooks=[*hooks, *keep])
        return [seen[name] for name in names], out

    tokens = torch.tensor([[7, 9, 11, 30, 8], [20, 21, 8, 9, 60]])
    plain, _ = states([])
    steered, logits = states(recipe)
    change = found.score(steered[state]) - found.score(plain[state])
    torch.testing.assert_close(change, torch.full_like(change, shift), atol=1e-5, rtol=0)
    moved = (steered[state] - plain[state]).double().reshape(-1, WIDTH).norm(dim=1)
    assert moved.numpy() == pytest.approx(abs(shift) / np.linalg.norm(found.direction), rel=1e-5), "the smallest change"
    for before in range(state):
        assert torch.equal(steered[before], plain[before])
    assert no_hooks(model)

    step = torch.from_numpy(shift * found.direction / (found.direction @ found.direction)).float()
    with torch.no_grad(), hooked(hf, kind, state, lambda x: x + step):
        expected = hf(tokens).logits
    torch.testing.assert_close(logits.log_softmax(-1), expected.log_softmax(-1), atol=2e-4, rtol=1e-4)


def test_steering_refuses(load_toy: Callable[..., Any]) -> None:
    model = load_toy("gpt2")
    for shift in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=naming("shift", shift)):
            probing.steer(model, random_probe(1), shift)
    with pytest.raises(ValueError, match=naming("t", 9, 16)):
        probing.steer(model, Probe("t", 1, np.ones(9), 0.0), 1.0)
    with pytest.raises(ValueError, match=naming("t", "state 1", "neuron")):
        probing.steer(model, Probe("t", 1, np.zeros(WIDTH), 0.0), 1.0)
    with pytest.raises(ValueError, match=naming("0 … 2", 3)):
        probing.steer(model, random_probe(3), 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_token_scores_read_transformers_hidden_states(
    kind: str, hf_directory: Callable[[str], Path], load_toy: Callable[..., Any]
) -> None:
    model, hf = load_toy(kind), peer(hf_directory(kind), kind)
    sentence = "w5 w6 w6 w40"
    for state, bos in itertools.product(range(LAYERS + 1), (True, False)):
        found = random_probe(state, seed=state)
        names, scores = probing.token_scores(model, found, sentence, bos=bos)
        row = framed(model.tokenizer, kind, sentence, bos, eos=True)
        before, after = (["[CLS]"], ["[SEP]"]) if kind == "bert" else (["<s>"] * bos, ["</s>"])
        assert names == [*before, *sentence.split(), *after]
        expected = hidden(hf, kind, state, row) @ found.direction + 0.3
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert no_hooks(model)
    with pytest.raises(ValueError, match=naming("t", 9, 16)):
        probing.token_scores(model, Probe("t", 1, np.ones(9), 0.0), sentence)
    with pytest.raises(ValueError, match=naming("w1 w1 w1", 24)):
        probing.token_scores(model, found, "w1 " * 30)


@pytest.mark.slow
def test_a_probe_is_the_sweeps(load_toy: Callable[..., Any]) -> None:
    """On raw states it scores as w ⊙ m does on standardised ones, and is right as often as the table says."""
    table = pd.concat([toy_pairs(60), toy_pairs(60, "u")], ignore_index=True)
    states = probing.collect(load_toy("gpt2"), table, position="mean", progress=False)
    found = probing.sweep(states, methods=["l0"], l0_strengths=[0.2, 0.7], controls=["none"], steps=200, progress=False)
    for task, state in itertools.product("tu", (1, 2)):
        one = probing.probe(found, task, state)
        split, vectors = split_tasks(table)[task], states.load(state).astype(np.float64)
        neurons = found.neurons.query("task == @task and state == @state").sort_values("dim")
        train = vectors[split.train].reshape(-1, WIDTH)
        np.testing.assert_allclose(neurons["mean"], train.mean(0), atol=1e-9)
        np.testing.assert_allclose(neurons["scale"], train.std(0), atol=1e-9)
        wm = (neurons["gate"] * neurons["weight"]).to_numpy(dtype=np.float64)
        expected = ((vectors[split.test] - train.mean(0)) / train.std(0)) @ wm
        scores = one.score(torch.from_numpy(vectors[split.test])).numpy()
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        assert one.dims == list(np.flatnonzero(wm))
        row = found.probes.query("task == @task and state == @state and l0_strength == 0.2").iloc[0]
        assert row["accuracy"] == pytest.approx(((scores[:, 0] > 0).mean() + (scores[:, 1] <= 0).mean()) / 2)
        assert row["pair_accuracy"] == pytest.approx((scores[:, 0] > scores[:, 1]).mean())
        assert (row["n_open"], row["n_test"]) == ((neurons["gate"] > 0).sum(), 2 * len(split.test))
    for task, state, values in (("z", 1, ("z", "t, u")), ("t", 9, ("t", "state 9"))):
        with pytest.raises(ValueError, match=naming(*values)):
            probing.probe(found, task, state)


# Ablation


def judged_pairs(hf: Any, tokenizer: Any, kind: str, task: str, share: float, n: int = 40) -> pd.DataFrame:
    """Pairs in which the model prefers this share of the good sentences, also among the tested pairs."""
    table = toy_pairs(n, task)
    scores = [[log_probability(hf, tokenizer, kind, text) for text in row[:2]] for row in table.to_numpy()]
    tested = split_tasks(table)[task].test
    turn = {int(row): number >= round(share * len(tested)) for number, row in enumerate(tested)}
    for row, (good, bad) in enumerate(scores):
        if (good > bad) == turn.get(row, False):
            table.iloc[row, [0, 1]] = table.iloc[row, [1, 0]].to_numpy()
    return table


def removed_dims(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """A list of what is removed from now on, in order."""
    sets: list[list[int]] = []
    original = interp.hooks.ablate_dims

    def spied(model: Any, layer: int, chosen: Sequence[int], **options: Any) -> Any:
        sets.append([int(dim) for dim in chosen])
        return original(model, layer, chosen, **options)

    monkeypatch.setattr(sys.modules["interp.analyses.probing.accuracy"], "ablate_dims", spied)
    return sets


@pytest.mark.quick("gpt2-0")
@pytest.mark.parametrize(("kind", "state"), [("gpt2", 0), ("gpt2", 1), ("gpt2", 2), ("bert", 1), ("bert", 2)])
def test_ablation_is_an_edit_of_the_plain_model(
    kind: str,
    state: int,
    hf_directory: Callable[[str], Path],
    load_toy: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, hf = load_toy(kind), peer(hf_directory(kind), kind)
    tokenizer = model.tokenizer
    both = [judged_pairs(hf, tokenizer, kind, name, share) for name, share in (("t", 0.75), ("u", 0.5))]
    table = pd.concat(both, ignore_index=True)
    dims = [2, 5, 11]
    probes = [Probe(task, state, random_probe(state, dims=dims).direction, 0.0) for task in "tu"]
    sets = removed_dims(monkeypatch)
    found = probing.ablation_effect(model, table, probes, draws=2, bos=True, progress=False)
    assert no_hooks(model)
    assert list(found["task"].unique()) == ["t"], "on u the model is at .5"
    assert found.groupby(["mode", "set"]).size().to_dict() == {
        (mode, name): 1 if name == "found" else 2
        for mode in ("zero", "mean")
        for name in ("found", "matched", "random")
    }

    chosen = table.iloc[split_tasks(table)["t"].test]
    sentences = [*chosen["sentence_good"], *chosen["sentence_bad"]]
    tokens = np.concatenate([hidden(hf, kind, state, framed(tokenizer, kind, text)) for text in sentences])
    means, size = tokens.mean(0), np.sqrt((tokens**2).mean(0))

    def scored() -> tuple[float, float, float]:
        p = np.array([log_probability(hf, tokenizer, kind, text) for text in sentences])
        good, bad = p[: len(chosen)], p[len(chosen) :]
        return float((good > bad).mean()), float((good - bad).mean()), float(p.mean())

    before = scored()
    row: Any
    for (_, row), removed in zip(found.iterrows(), sets, strict=True):
        fill = torch.from_numpy(means[removed] if row["mode"] == "mean" else np.zeros(len(removed))).float()

        def overwrite(x: torch.Tensor, removed: list[int] = removed, fill: torch.Tensor = fill) -> torch.Tensor:
            x = x.clone()
            x[..., removed] = fill
            return x

        with hooked(hf, kind, state, overwrite):
            after = scored()
        assert row["accuracy_before"] == before[0] == 0.75
        assert row["accuracy_after"] == after[0]
        for name, number in (("margin", 1), ("log_probability", 2)):
            assert row[f"{name}_before"] == pytest.approx(before[number], abs=1e-3)
            assert row[f"{name}_after"] == pytest.approx(after[number], abs=1e-3)
        assert row["magnitude"] == pytest.approx(size[removed].mean(), rel=1e-4)
        assert (row["n_neurons"], len(set(removed)), row["n_pairs"]) == (3, 3, len(chosen))
        if row["set"] == "found":
            assert removed == dims
        else:
            assert not set(removed) & set(dims)
    assert (
        probing.ablation_effect(model, table, probes[:1], limit=3, draws=1, bos=True, progress=False)["n_pairs"]
        .eq(3)
        .all()
    )


@pytest.mark.slow
def test_random_neurons_are_matched_in_perplexity(
    hf_directory: Callable[[str], Path], load_toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, hf = load_toy("gpt2"), peer(hf_directory("gpt2"), "gpt2")
    table = judged_pairs(hf, model.tokenizer, "gpt2", "t", 0.75)
    sets = removed_dims(monkeypatch)
    chosen = table.iloc[split_tasks(table)["t"].test]
    sentences = [*chosen["sentence_good"], *chosen["sentence_bad"]]

    def judged(dims: list[int]) -> tuple[float, float]:
        with model.hooks(fwd_hooks=interp.hooks.ablate_dims(model, 1, dims, where="residual") if dims else []):
            sums = probing.sentence_scores(model, sentences, bos=True, progress=False)["sum"].to_numpy()
        good, bad = np.split(sums, 2)
        return float(sums.mean()), float((good > bad).mean())

    costs = np.array([judged([dim])[0] - judged([])[0] for dim in range(16)])
    costly, costless = int(np.where(costs < 0, costs, -np.inf).argmax()), int(costs.argmax())
    assert costs[costly] < 0 < costs[costless]
    options: dict[str, Any] = {"modes": ["zero"], "draws": 6, "bos": True, "progress": False}

    def ablated(dim: int, **more: Any) -> pd.DataFrame:
        probes = [Probe("t", 1, random_probe(1, dims=[dim]).direction, 0.0)]
        return probing.ablation_effect(model, table, probes, **options, **more)

    found = ablated(costly, by_perplexity=True)
    ladders, target = sets[1 + 2 * 6 :], judged([costly])[0]  # after the found neuron: matched and random ones
    starts = [number for number, one in enumerate(ladders) if len(one) == 1]
    expected = []
    for start, end in zip(starts, [*starts[1:], len(ladders)], strict=True):
        rungs = ladders[start:end]
        assert [len(one) for one in rungs] == [1, 2, 4, 8, 15][: len(rungs)]
        assert all(set(small) < set(large) and costly not in large for small, large in pairwise(rungs))
        (p_last, share_last), (p, share) = (judged(one) for one in ([[], *rungs])[-2:])
        if p <= target:
            expected.append(np.interp(target, [p, p_last], [share, share_last]))
    rows = found[found["set"] == "perplexity"]
    assert 0 < len(rows) == len(expected)
    np.testing.assert_allclose(rows["accuracy_after"], expected, atol=1e-5)
    np.testing.assert_allclose(rows["log_probability_after"], target, atol=1e-4)
    for others in (ablated(costly), ablated(costless, by_perplexity=True)):
        assert set(others["set"]) == {"found", "matched", "random"}


@pytest.mark.e2e
def test_matched_neurons_are_nearer_in_magnitude(
    load_toy: Callable[..., Any], hf_directory: Callable[[str], Path]
) -> None:
    """On a model whose dimensions differ in size by orders of magnitude; the choice depends only on the seed."""
    model, hf = load_toy("gpt2"), peer(hf_directory("gpt2"), "gpt2")
    table = judged_pairs(hf, model.tokenizer, "gpt2", "t", 1.0)
    with torch.no_grad():
        scale = torch.logspace(-1.5, 1.5, WIDTH)
        model.W_E.mul_(scale)
        model.W_pos.mul_(scale)
    # oriented again for the rescaled model, so that its judgement can get worse
    scores = probing.sentence_scores(model, [*table["sentence_good"], *table["sentence_bad"]], progress=False)[
        "sum"
    ].to_numpy()
    turn = scores[: len(table)] <= scores[len(table) :]
    table.loc[turn, ["sentence_good", "sentence_bad"]] = table.loc[turn, ["sentence_bad", "sentence_good"]].to_numpy()
    large = Probe("t", 0, np.r_[np.zeros(13), 1.0, 1.0, 0.0], 0.0)
    quick: dict[str, Any] = {"draws": 20, "limit": 2, "bos": True, "progress": False}
    first, again, other = (probing.ablation_effect(model, table, [large], seed=seed, **quick) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["magnitude"].equals(other["magnitude"])
    sizes = first.query("mode == 'zero'").groupby("set")["magnitude"].mean()
    assert abs(sizes["matched"] - sizes["found"]) < 0.8 * abs(sizes["random"] - sizes["found"])


def test_ablation_refuses(load_toy: Callable[..., Any]) -> None:
    model, table = load_toy("gpt2"), toy_pairs(20)
    for probes, options, values in (
        ([Probe("t", 1, np.zeros(WIDTH), 0.0)], {}, ("t", "state 1", 0, 16)),
        ([random_probe(1, dims=range(9))], {}, ("t", "state 1", 9, 16)),
        ([random_probe(1, dims=[1])], {"draws": 0}, ("draws", "limit", 1, 0)),
        ([random_probe(1, dims=[1])], {"limit": 0}, ("draws", "limit", 1, 0)),
        ([random_probe(1, dims=[1])], {"modes": []}, ("modes", "zero, mean", [])),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            probing.ablation_effect(model, table, probes, progress=False, **options)


# What tasks share


def test_overlap_by_brute_force() -> None:
    rng, d, tasks = np.random.default_rng(0), 30, ["a", "b", "c", "shut"]
    gate = np.where(rng.random((4, d)) < [[0.2], [0.5], [0.4], [0]], rng.random((4, d)), 0)
    gate[1, :3] = gate[0, :3] = 1
    weight = rng.normal(size=(4, d))
    neurons = pd.concat(
        [pd.DataFrame({"task": t, "state": 5, "dim": np.arange(d), "gate": gate[i], "weight": weight[i]})
         for i, t in enumerate(tasks)]
    ).sample(frac=1, random_state=0)  # fmt: skip
    found = probing.overlap(neurons).set_index(["task_a", "task_b"])
    assert len(found) == 6
    for a, b in itertools.combinations(range(4), 2):
        names = (tasks[a], tasks[b])
        row: Any = found.loc[names] if names in found.index else found.loc[names[::-1]]
        A, B = set(np.flatnonzero(gate[a])), set(np.flatnonzero(gate[b]))
        assert row["jaccard"] == pytest.approx(oracle.jaccard(A, B))
        u, v = gate[a] * weight[a], gate[b] * weight[b]
        if not (A and B):
            assert np.isnan(row["cosine"])
            assert row["expected"] == 0
            continue
        assert row["cosine"] == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
        mean, error = oracle.jaccard_by_chance(len(A), len(B), d, rng)
        assert row["expected"] == pytest.approx(mean, abs=4 * error)


@pytest.fixture(scope="module")
def shared_direction() -> tuple[dict[str, np.ndarray], States]:
    """Tasks a, b and c differ along the same dimensions, and d along its own."""
    named = {name: planted(175, 24, range(4), seed) for seed, name in enumerate("abc")}
    named["d"] = planted(175, 24, range(12, 16), 3)
    about = {"a": ("f", "x"), "b": ("f", "y"), "c": ("g", "x"), "d": ("g", "")}
    return named, tables(named, **about)


@pytest.mark.slow
def test_general_probe_by_brute_force(shared_direction: tuple[dict[str, np.ndarray], States]) -> None:
    named, states = shared_direction
    found = probing.shared.general(states, 3, steps=150)
    table, vectors = states.pairs, states.load(3).astype(np.float64)
    assert len(split_tasks(table)["a"].train) == 105, "more than the 100 that are used"
    used = {task: split_tasks(table)[task].train[:100] for task in named}
    every = vectors[np.concatenate(list(used.values()))].reshape(-1, 24)
    mean, sd = every.mean(0), every.std(0)
    sets = {
        ("a", "others"): "bcd", ("a", "same_field"): "b", ("a", "other_fields"): "cd", ("a", "same_term"): "c",
        ("b", "others"): "acd", ("b", "same_field"): "a", ("b", "other_fields"): "cd",
        ("c", "others"): "abd", ("c", "same_field"): "d", ("c", "other_fields"): "ab", ("c", "same_term"): "a",
        ("d", "others"): "abc", ("d", "same_field"): "c", ("d", "other_fields"): "ab",
    }  # fmt: skip
    rows: Any = found.set_index(["task", "trained_on", "method"])
    assert set(rows.index) == {(*key, method) for key in sets for method in ("l0", "dense")}
    assert len(rows) == 2 * len(sets)
    for (task, trained_on), others in sets.items():
        Z = np.concatenate([(vectors[used[t]] - mean) / sd for t in others])
        X, y = np.concatenate([Z[:, 0], Z[:, 1]]), np.repeat([1, 0], len(Z))
        test = (vectors[split_tasks(table)[task].test] - mean) / sd
        dense = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5_000).fit(X, y).coef_[0]
        part = fit_sparse(
            torch.from_numpy(X).float()[None], torch.from_numpy(y).float()[None, :, None], l0_strengths=[0.2],
            seeds=[0], steps=150,
        )  # fmt: skip
        for method, w in (("dense", dense), ("l0", part.coefficients[0, 0].double().numpy())):
            row, score = rows.loc[(task, trained_on, method)], test @ w
            slack = 0 if method == "dense" else 0.03
            right = ((score[:, 0] > 0).mean() + (score[:, 1] <= 0).mean()) / 2
            assert row["accuracy"] == pytest.approx(right, abs=slack + 1e-9), (task, trained_on, method)
            assert row["pair_accuracy"] == pytest.approx((score[:, 0] > score[:, 1]).mean(), abs=slack + 1e-9)
            assert (row["n_tasks"], row["state"]) == (len(others), 3)
            assert row["field"] == {"a": "f", "b": "f", "c": "g", "d": "g"}[task]
        assert rows.loc[(task, trained_on, "dense"), "n_open"] == 24
    rest: Any = rows.xs("others", level="trained_on")["pair_accuracy"].unstack("method")
    assert (rest.loc[list("abc")] > 0.8).all(axis=None), "the direction that tasks share"
    assert (abs(rest.loc["d"] - 0.5) < 0.2).all(), "the direction that no other task has"
    with pytest.raises(ValueError, match=naming("tasks", "a")):
        probing.shared.general(states, 3, tasks=["a"])


# Intervals and controls


def test_intervals_are_scipys_bootstrap() -> None:
    vectors = planted(250, 6, [0], seed=0, shift=1.0)
    states = tables({"t": vectors})
    row = probing.sweep(states, methods=["dense"], controls=["none"], progress=False).probes.iloc[0]
    split = split_tasks(states.pairs)["t"]
    X = np.concatenate([vectors[split.train, side] for side in (0, 1)]).astype(np.float64)
    mean, sd = X.mean(0), X.std(0)
    probe = LogisticRegression(fit_intercept=False, tol=1e-10).fit((X - mean) / sd, np.repeat([1, 0], len(split.train)))
    good, bad = (probe.decision_function((vectors[split.test, side] - mean) / sd) for side in (0, 1))
    assert len(good) == 50
    for name, hits in (("accuracy", ((good > 0) + (bad <= 0).astype(float)) / 2), ("pair_accuracy", good > bad)):
        assert row[name] == pytest.approx(hits.mean())
        assert 0.55 < hits.mean() < 0.95, "otherwise the test shows nothing"
        exact = stats.bootstrap((hits.astype(float),), np.mean, method="percentile", n_resamples=20_000, rng=0)
        interval = exact.confidence_interval
        assert row[f"{name}_low"] == pytest.approx(interval.low, abs=0.021), "within one pair, of 1,000 resamples"
        assert row[f"{name}_high"] == pytest.approx(interval.high, abs=0.021)


@pytest.mark.slow
def test_a_rotation_leaves_dense_probes_as_they_are() -> None:
    vectors = planted(150, 12, range(3), seed=1)
    states = tables({"t": vectors})
    found = probing.sweep(
        states, ks=(1, 3, 12), steps=150, controls=["none", "rotation"], seeds=[0], progress=False
    ).probes
    split = split_tasks(states.pairs)["t"]
    X = np.concatenate([vectors[split.train, side] for side in (0, 1)]).astype(np.float64)
    Z, y = (X - X.mean(0)) / X.std(0), np.repeat([1, 0], len(split.train))
    test = (vectors[split.test] - X.mean(0)) / X.std(0)
    fitted = []
    for Q in (np.eye(12), stats.ortho_group.rvs(12, random_state=5)):
        w = LogisticRegression(fit_intercept=False, tol=1e-12, max_iter=5_000).fit(Z @ Q, y).coef_[0]
        fitted.append(test @ Q @ w)
    np.testing.assert_allclose(fitted[0], fitted[1], atol=1e-3)
    right = ((fitted[1][:, 0] > 0).mean() + (fitted[1][:, 1] <= 0).mean()) / 2
    dense = found.query("method == 'dense' and control == 'none'")["accuracy"].item()
    rows = found[found["method"] == "topk:welch"].set_index(["k", "control"])["accuracy"]
    assert dense == rows[12, "none"] == pytest.approx(right)
    assert rows[12, "rotation"] == pytest.approx(right), "all dimensions: the same in every basis"
    assert rows[3, "rotation"] < rows[3, "none"], "the three neurons are no longer neurons"
    rotated = found[found["control"] == "rotation"]
    assert set(rotated["method"]) == {"l0", "topk:welch"}
    assert set(rotated.query("method == 'l0'")["l0_strength"]) == {0.05, 0.1, 0.2, 0.4, 0.7, 1.0}
    assert rotated.query("l0_strength == 0.2")["n_open"].item() > 0
    neurons = probing.sweep(states, methods=["l0"], steps=20, controls=["rotation"], progress=False).neurons
    assert neurons.empty, "dimensions of a random basis are not neurons"


@pytest.mark.slow
def test_tasks_of_unequal_size() -> None:
    """11 and 12 pairs give equal numbers of training and test pairs, but not of validation pairs."""
    states = tables({"a": planted(11, 6, [0], 0), "b": planted(12, 6, [0], 1), "c": planted(26, 6, [0], 2)})
    found = probing.sweep(states, ks=(2,), steps=10, progress=False).probes
    assert set(found["task"]) == set("abc")
    assert len(probing.transfer(states, 3, steps=10)) == 27


@pytest.mark.slow
def test_controls_alone() -> None:
    """Without probes of the true labels, there are still the controls."""
    states = tables({"t": planted(40, 6, [0], 0)})
    found = probing.sweep(states, ks=(2,), steps=10, controls=["flip"], progress=False).probes
    assert set(found["control"]) == {"flip"}


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_model(kind: str, load_toy: Callable[..., Any]) -> None:
    model = load_toy(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with model.hooks(fwd_hooks=probing.steer(model, random_probe(0), 1.0)):
        fresh, again, other = (interp.models.untrained(model, seed=seed) for seed in (0, 0, 1))
    assert no_hooks(fresh)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    named, old = dict(fresh.named_parameters()), dict(model.named_parameters())
    assert {name: value.shape for name, value in named.items()} == {name: value.shape for name, value in old.items()}
    matrices = []
    for name, value in named.items():
        if name.endswith(".w"):
            assert (value == 1).all(), name
        elif value.ndim == 1 or name.rpartition(".")[2].lstrip("_").startswith("b_"):
            assert (value == 0).all(), name
        else:
            assert abs(value.mean()) < 5 * 0.02 / np.sqrt(value.numel()), name
            assert value.std().item() == pytest.approx(0.02, rel=6 / np.sqrt(2 * value.numel())), name
            matrices.append(name)
    rest = (".W_E", ".W_pos", ".W_U", "._W_K" if kind == "llama" else ".W_K", ".W_Q", ".W_O", ".W_in", ".W_out")
    for end in rest[:1] + rest[2:] + (() if kind == "llama" else rest[1:2]):
        assert any(name.endswith(end) for name in matrices), end
    drawn = torch.cat([named[name].flatten() for name in matrices])
    assert len(torch.unique(drawn)) > 0.99 * len(drawn), "no two matrices are alike"
    assert all(torch.equal(value, dict(again.named_parameters())[name]) for name, value in named.items())
    assert not torch.equal(named[matrices[0]], dict(other.named_parameters())[matrices[0]])
    table = toy_pairs(10)
    mine, theirs = (probing.collect(one, table, position="mean", progress=False) for one in (fresh, model))
    for state in range(LAYERS + 1):
        assert np.isfinite(mine.load(state)).all()
        assert np.abs(mine.load(state) - theirs.load(state)).max() > 0.1


# Planted truth


@pytest.mark.slow
@pytest.mark.e2e
def test_planted_truth_at_the_size_of_llama() -> None:
    """1,600 sentences in 4,096 dimensions: 20 are informative, one has a large mean, and 40 follow informative ones."""
    n, d, informative, large = 800, 4_096, np.arange(100, 120), 300
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(n, 2, d)).astype(np.float32)
    vectors[:, 0, informative] += 0.8
    vectors[:, :, large] += 30
    followers = np.arange(1_000, 1_040)
    vectors[:, :, followers] += 0.3 * np.tile(vectors[:, :, informative], 2)
    states = tables({"t": vectors})
    split = split_tasks(states.pairs)["t"]
    X = np.concatenate([vectors[split.train, 0], vectors[split.train, 1]])
    y = np.repeat([1, 0], len(split.train))
    truth = set(informative)
    topk = SparseProbe("topk", k=20).fit(X, y)
    assert len(truth & set(np.flatnonzero(topk.gate_))) >= 19
    l0 = SparseProbe("l0", l0_strength=0.2).fit(X, y)
    best = set(np.argsort(-np.abs(l0.coef_))[:20])
    opened = set(np.flatnonzero(l0.gate_ > 0))
    assert len(truth & best) >= 17, "recall and precision of the 20 largest |w ⊙ m|"
    assert len(truth & opened) >= 19, "recall of the open gates"
    assert len(opened) < 130, "a precision of at least .15"
    assert l0.gate_[large] == 0
    raw = SparseProbe("l0", l0_strength=0.2, scaling="rms").fit(X, y)
    assert raw.gate_[large] > 0.5
    assert raw.coef_[large] * 30 < -8, "an intercept, which compensates for the mean of the 20 dimensions"


# The study


@pytest.fixture(scope="module")
def study_pairs() -> pd.DataFrame:
    fields = {"t": ("f", "x"), "u": ("f", "y"), "v": ("g", "x")}
    return pd.concat([toy_pairs(30, name, *about) for name, about in fields.items()], ignore_index=True)


OPTIONS: dict[str, Any] = {"steps": 300, "progress": False, "ks": (1, 4), "l0_strengths": (0.4, 1.0), "seeds": (0,)}


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_study_has_every_table(
    kind: str,
    hf_directory: Callable[[str], Path],
    load_toy: Callable[..., Any],
    study_pairs: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load_toy(kind)
    hf = peer(hf_directory(kind), kind)
    fields = study_pairs.groupby("UID")[["field", "linguistics_term"]].first()
    judged = []
    for name in "tuv":  # pairs whose good sentence, the one with w1, the model prefers
        many = toy_pairs(150, name, *fields.loc[name])
        p = np.array(
            [[log_probability(hf, model.tokenizer, kind, text) for text in row[:2]] for row in many.to_numpy()]
        )
        judged.append(many[p[:, 0] > p[:, 1]].head(30))
    table = pd.concat(judged, ignore_index=True)
    assert len(table) == 90
    found = probing.study(model, table, directory=tmp_path / "work", position="mean", bos=True, **OPTIONS)
    for name, columns in COLUMNS.items():
        part = found.tables[name]
        assert set(columns.split()) <= set(part.columns), name
        assert len(part), name
    assert set(found.probes["control"]) == {"none", "flip", "rotation", "untrained"}
    assert set(found.tables) == {*COLUMNS, "tasks", "general", "views", "contexts"}
    state = found.provenance["state"]
    for name in ("transfer", "general", "overlap", "ablation", "views"):
        assert (found.tables[name]["state"] == state).all()
    for (task, kind), part in found.views.groupby(["task", "sentence"]):
        tested = table.iloc[split_tasks(table)[str(task)].test[0]]
        sentence = tested[f"sentence_{kind}"]
        tokens, scores = probing.token_scores(model, probing.probe(found, task, state), sentence, bos=True)
        assert part["token"].tolist() == tokens
        np.testing.assert_allclose(part["score"], scores)
    plain = found.probes.query("method == 'dense' and control == 'none'")
    by_state: dict[Any, float] = plain.groupby("state")["validation_accuracy"].mean().to_dict()
    assert state == max(by_state, key=lambda one: by_state[one])
    tasks: Any = found.tasks.set_index("task")
    assert (tasks["model_accuracy"] == 1).all()
    assert (tasks["n_judged"] == 30).all()
    assert (tasks["n_judged_test"] == 6).all()
    assert tasks.loc["u", ["field", "linguistics_term", "n_pairs"]].tolist() == ["f", "y", 30]
    own = found.transfer.query("method == 'dense' and train_task == 't' and test_task == 't'")["accuracy"].item()
    assert own == plain.query("task == 't' and state == @state")["accuracy"].item()
    fresh = probing.collect(interp.models.untrained(model), table, position="mean", bos=True, progress=False)
    alone = probing.sweep(fresh, methods=["dense"], controls=["none"], progress=False).probes
    control = found.probes.query("method == 'dense' and control == 'untrained'")
    np.testing.assert_array_equal(control["accuracy"], alone["accuracy"])

    found.save(tmp_path)
    again = ProbingStudy.load(tmp_path)
    assert again.provenance == json.loads(json.dumps(found.provenance))
    for name, part in found.tables.items():
        pd.testing.assert_frame_equal(part, again.tables[name], check_dtype=False)
    monkeypatch.setattr(sys.modules["interp.analyses.probing.sweeps"], "fit_sparse", None)
    monkeypatch.setattr(sys.modules["interp.analyses.probing.states"], "_read", None)
    resumed = probing.study(model, table, directory=tmp_path / "work", position="mean", bos=True, **OPTIONS)
    pd.testing.assert_frame_equal(resumed.probes, found.probes)
    pd.testing.assert_frame_equal(resumed.ablation, found.ablation)


@pytest.mark.slow
def test_study_of_parts(load_toy: Callable[..., Any], study_pairs: pd.DataFrame) -> None:
    model = load_toy("gpt2")
    one = probing.study(model, study_pairs, tasks=["u"], states=[1], state=1, bos=False, **OPTIONS)
    assert list(one.tasks["task"]) == ["u"]
    assert one.transfer.empty
    assert one.overlap.empty
    assert one.general.empty
    assert not one.neurons.empty
    dense = probing.study(model, study_pairs, states=[2, 0], methods=["dense"], controls=["none"], **OPTIONS)
    assert dense.ablation.empty
    assert dense.transfer.empty
    assert set(dense.probes["method"]) == {"dense"}
    random = probing.study(model, study_pairs, states=[1], methods=["dense", "random"], controls=["none"], **OPTIONS)
    of_the_top = random.probes[random.probes["method"] == "topk:welch"]
    assert set(of_the_top["control"]) == {"untrained"}, "the top 1 % alone, for the ratio"
    assert set(of_the_top["k"]) == set(random.equivalence["n_top"])
    np.testing.assert_array_equal(random.equivalence["untrained_accuracy"], of_the_top["accuracy"])
    assert not {"topk", "topk_untrained"} & set(random.means["probe"])
    assert "random_states" in random.section.figures
    with pytest.raises(ValueError, match=naming("state 2", "0, 1")):
        probing.study(model, study_pairs, states=[0, 1], state=2, **OPTIONS)
    with pytest.raises(ValueError, match=naming("'cls'", "encoders")):
        probing.study(model, study_pairs, position="cls", **OPTIONS)
    with pytest.raises(ValueError, match=naming("z", "t")):
        probing.study(model, study_pairs, tasks=["z"], **OPTIONS)
    with pytest.raises(ValueError, match=naming("l0_strengths", "(0, 1]", [2.0])):
        probing.study(model, study_pairs, states=[0], **(OPTIONS | {"l0_strengths": (2.0,)}))
    with pytest.raises(ValueError, match=naming("ks", "1 … 16", [17])):
        probing.study(model, study_pairs, states=[0], **(OPTIONS | {"ks": (17,)}))


@pytest.mark.parametrize("methods", [["l0"], ["topk"], ["l0", "topk"], ["random", "topk"]])
def test_study_without_dense_probes(
    load_toy: Callable[..., Any], study_pairs: pd.DataFrame, methods: list[str]
) -> None:
    options = OPTIONS | {"methods": methods, "controls": ["none"], "steps": 30}
    study = probing.study(load_toy("gpt2"), study_pairs, states=[1], **options)
    fitted = {"l0", "topk"} & set(methods)
    controls = study.untrained.groupby("probe")["control"].agg(set)
    assert set(controls.index) == fitted
    assert all(kinds == {"none", "untrained"} for kinds in controls)
    questions = [finding.question for finding in study.section.findings]
    assert any("more accurate than those of untrained models" in question for question in questions)


@pytest.mark.slow
def test_figures_show_the_sparse_probe_of_any_seed(load_toy: Callable[..., Any], study_pairs: pd.DataFrame) -> None:
    options = OPTIONS | {"methods": ["l0", "dense"], "seeds": [3], "controls": ["none"]}
    study = probing.study(load_toy("gpt2"), study_pairs, states=[1, 2], **options)
    names = {trace.name for trace in interp.plots.beyond_words(study).data}
    assert {"dense", "λ = 0.4"} <= names


def test_one_class_only() -> None:
    with pytest.raises(ValueError, match=naming("classes", "1 class")):
        SparseProbe("topk", k=1).fit(np.random.default_rng(0).normal(size=(20, 4)), np.ones(20))


# The command


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(["probing", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.e2e
def test_probe_command(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    arguments = ["--model", "tiny-gpt2", "--pairs", "bundled", "--limit", "15", "--states", "0,6", "--bos"]
    code, printed, error = run(capsys, *arguments, "--tasks", "left_branch,npi_scope", "--out", str(out))
    assert (code, [line for line in error.splitlines() if line.startswith("interp: error")]) == (0, [])
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "probing"], "and .probing is gone"
    names = {path.name for path in (out / "probing").iterdir()}
    tables = {f"{name}.parquet" for name in (*COLUMNS, "tasks", "general", "views", "contexts")}
    assert names == tables | {"result.json", "options.yaml", "figures"}
    found = ProbingStudy.load(out)
    assert set(found.probes["state"]) == {0, 6}
    assert list(found.tasks["task"]) == ["left_branch", "npi_scope"]
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Sparse probes for grammar" in page
    assert "state\tdense" in printed
    code, _, error = run(capsys, *arguments, "--out", str(out))
    assert (code, len(error.splitlines())) == (2, 1)
    assert "already holds probing" in error


@pytest.mark.e2e
def test_the_papers_preset_says_what_it_depends_on(tmp_path: Path, capsys: Any) -> None:
    arguments = [
        "--model",
        "tiny-gpt2",
        "--pairs",
        "bundled",
        "--limit",
        "15",
        "--states",
        "3",
        "--seeds",
        "0,1",
    ]
    arguments += ["--tasks", "left_branch,npi_scope", "--steps", "100", "--paper", "--out", str(tmp_path)]
    code, _, error = run(capsys, *arguments)
    assert code == 0
    assert error.count("depend on the unit of the residual stream") == 1, "a note is made once"
    found = ProbingStudy.load(tmp_path)
    assert found.provenance["scaling"] == "none"
    assert (found.neurons["scale"] == 1).all()
    assert set(found.probes["control"]) == {"none", "rotation", "untrained"}
    assert set(found.probes["seed"]) == {0, 1}
    assert {"l0_untrained", "l0_rotated"} <= set(found.means["probe"])


@pytest.mark.slow
def test_probe_command_refuses(hf_directory: Callable[[str], Path], tmp_path: Path, capsys: Any) -> None:
    no_partner = tmp_path / "pairs.csv"
    no_partner.write_text("sentence_good,sentence_bad\nw1 w2,w2 w1\nw3 w4,\n")
    few = tmp_path / "few.csv"
    few.write_text("sentence_good,sentence_bad\n" + "".join(f"w{i} w2,w2 w{i}\n" for i in range(3, 9)))
    given = {"--model": "tiny-gpt2", "--pairs": "bundled", "--limit": "12", "--out": str(tmp_path / "out")}
    for change, message in (
        ({"--methods": "l0,ridge"}, "--methods 'l0,ridge': unknown 'ridge'"),
        ({"--tasks": "left_branch,nothing"}, "nothing"),
        ({"--position": "cls"}, "'cls' is for encoders"),
        ({"--position": "middle"}, "unknown 'middle'"),
        ({"--states": "0,seven"}, "not a list of whole numbers"),
        ({"--states": "0,99"}, "0 … 6, found"),
        ({"--out": None}, "--out is missing"),
        ({"--pairs": str(no_partner)}, "sentence_bad"),
        ({"--pairs": str(few), "--model": str(hf_directory("gpt2"))}, "has 6 pairs; a split needs at least 10"),
        ({"--pairs": str(tmp_path / "gone.csv")}, "gone.csv"),
        ({"--model": str(tmp_path / "gone")}, "does not exist"),
    ):
        options = {name: value for name, value in (given | change).items() if value is not None}
        code, printed, error = run(capsys, *itertools.chain(*options.items()))
        lines = [line for line in error.splitlines() if not line.startswith("interp: note")]
        assert (code, printed, len(lines)) == (2, "", 1), (change, error)
        assert message in lines[0], (change, lines[0])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_dry_run_only_needs_a_config(tmp_path: Path, capsys: Any) -> None:
    """Llama-3-8B's numbers by hand: 32 blocks of 218,103,808 weights each, and 33 states of 4,096."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "head_dim": 128}
    config |= {"intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--model", str(tmp_path), "--pairs", "bundled", "--limit", "20", "--dry-run"]
    code, printed, error = run(capsys, *arguments)
    assert error == ""
    assert code == (3 if "does not fit in memory" in printed else 0)
    table = pairs.generate(n_per_task=20)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    weights = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
    tokens = sum(round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences)
    assert f"{len(sentences):,} sentences, about {tokens:,} tokens" in printed
    assert f"{2 * 32 * weights / 1e9:,.3f} GFLOP per token" in printed
    assert f"read by the model and {TWINS} untrained ones" in printed
    assert "33 states of 4096" in printed
    assert f"disk: about {memory.shown(2 * 4 * 33 * len(sentences) * 4096)}" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"], "nothing is written"


# The model's own judgement

PAIRS_OF_A_TASK = 30  # of 1,000; a single run with all of them agreed too


@torch.no_grad()
def plain_scores(directory: Path, sentences: Sequence[str]) -> np.ndarray:
    """Summed log-probabilities, one row length at a time; no token is added in front, so the first is not scored."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    hf = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in sentences]
    scores = np.zeros(len(rows))
    for length in {len(row) for row in rows}:
        of_length = [i for i, row in enumerate(rows) if len(row) == length]
        for start in range(0, len(of_length), 256):
            chosen = of_length[start : start + 256]
            ids = torch.tensor([rows[i] for i in chosen])
            logits = hf(ids).logits[:, :-1].double().log_softmax(-1)
            scores[chosen] = logits.gather(2, ids[:, 1:, None])[..., 0].sum(1).numpy()
    return scores


@pytest.mark.slow
def test_minimal_pair_accuracy_on_every_task_of_blimp(shared: Path) -> None:
    directory = shared / "models/gpt2-yelp"
    table = pairs.load(shared / "data/blimp")
    # one pair of 67,000 is longer than this model's context of 64
    table = table[(table["UID"] != "ellipsis_n_bar_2") | (table["sentence_good"].str.len() < 200)]
    table = table.groupby("UID", sort=False).head(PAIRS_OF_A_TASK).reset_index(drop=True)
    found = probing.minimal_pair_accuracy(interp.load(directory), table, bos=False, progress=False)
    scores = plain_scores(directory, [*table["sentence_good"], *table["sentence_bad"]])
    correct = pd.Series(scores[: len(table)] > scores[len(table) :]).groupby(table["UID"].to_numpy(), sort=False)
    assert list(found["task"]) == list(correct.groups) or set(found["task"]) == set(correct.groups)
    assert len(found) == 67
    expected = correct.sum()
    for _, row in found.iterrows():
        assert round(row["accuracy"] * row["n_pairs"]) == expected[row["task"]], row["task"]


@pytest.mark.e2e
def test_scores_are_minicons(shared: Path) -> None:
    scorer = pytest.importorskip("minicons.scorer", reason="minicons, the peer library, is not installed")
    directory = shared / "models/gpt2-yelp"
    table = pairs.load(shared / "data/blimp").groupby("UID", sort=False).head(3).head(200)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    theirs = scorer.IncrementalLMScorer(str(directory), "cpu")
    expected: list[float] = []
    for start in range(0, len(sentences), 50):
        summed = theirs.sequence_score(
            sentences[start : start + 50], reduction=lambda x: x.sum().item(), bow_correction=False
        )
        expected += summed
    found = probing.sentence_scores(interp.load(directory), sentences, bos=False, progress=False)["sum"].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert ((found[:200] > found[200:]) == (np.array(expected[:200]) > np.array(expected[200:]))).all()

"""What tasks share: probes of one task applied to another, common neurons, and a probe of grammaticality in general."""

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from scipy import sparse as sparse_arrays, stats
from scipy.spatial.distance import pdist
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from interp.analyses.probing.fitting import fit_dense, fit_sparse
from interp.analyses.probing.group import Group, by_group, hits
from interp.analyses.probing.options import STEPS, Scaling
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import SHOWN_L0_STRENGTH, check_neurons, check_scaling
from interp.corpora.pairs import sentences_of
from interp.corpora.splits import Split, of_equal_size, split_tasks
from interp.support.choices import Several, listed

__all__ = ["GENERAL", "TRANSFER", "general", "overlap", "transfer", "transfer_of_words"]
__dir__ = __all__.copy

_PAIRS_A_TASK = 100  # training pairs per task for a probe of many tasks
_HOW = ["method", "l0_strength", "accuracy", "pair_accuracy"]
TRANSFER = ["train_task", "test_task", "state", *_HOW]
GENERAL = ["task", "field", "linguistics_term", "state", "trained_on", "n_tasks", *_HOW, "n_open"]


def transfer(
    collected: States,
    state: int,
    *,
    tasks: Several[str] | None = None,
    l0_strengths: Several[float | int] = (SHOWN_L0_STRENGTH, 1.0),
    scaling: Scaling = "standard",
    steps: int = STEPS,
    seed: int = 0,
) -> pd.DataFrame:
    """Apply every task's probe of a state to every task's test pairs, with one matrix product per tested task.

    A probe keeps the standardisation of its own task. `pair_accuracy` (good scored above bad) is not affected by a
    shift of the task mean, which moves the threshold of `accuracy`.

    Args:
        state: the state, out of those collected.
        tasks: the tasks to use. Default: all.
        l0_strengths: λ of the sparse probes, which are fitted in addition to the dense probe (L2, C = 1). λ = 1 leaves
            all gates open, and is the paper's dense baseline.
        scaling, steps, seed: see `sweep`.

    Returns the table `transfer` of a `ProbingStudy`. The method is `l0`, with its λ, or `dense`.

    Raises the errors of `sweep`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number", "causative"], limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> table = transfer(states, 6, l0_strengths=[])  # the dense probes alone
        >>> table.groupby("train_task", sort=False)["test_task"].apply(list).to_dict()
        {'reflexive_number': ['reflexive_number', 'causative'], 'causative': ['reflexive_number', 'causative']}
    """
    check_scaling(scaling)
    l0_strengths = listed(l0_strengths)
    splits = split_tasks(collected.pairs, tasks, collected.rows)
    where = pd.MultiIndex.from_product([splits, splits], names=["train_task", "test_task"]).to_frame(index=False)
    rows = _kinds(l0_strengths).merge(where, how="cross")
    vectors = collected.load(state)
    probes: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for subset in of_equal_size(splits):
        group = Group(vectors, subset, scaling=scaling, device=collected.device)
        y = group.targets()
        fitted = [fit_dense(group.X, y)]
        if l0_strengths:
            many = y.expand(-1, -1, len(l0_strengths))
            seeds = [seed] * len(l0_strengths)
            sparse = fit_sparse(group.X, many, l0_strengths=l0_strengths, seeds=seeds, steps=steps)
            fitted.insert(0, sparse.coefficients.double())
        probes.update(zip(subset, zip(*group.unscaled(torch.cat(fitted, 1)), strict=True), strict=True))
    directions = np.stack([probes[task][0] for task in splits], axis=1)
    offsets = np.stack([probes[task][1] for task in splits], axis=1)
    measured = [_measured(vectors, split, directions, offsets) for split in splits.values()]
    accuracy, pair_accuracy = rearrange(np.array(measured), "tested of kind trained -> of (kind trained tested)")
    return rows.assign(state=state, accuracy=accuracy, pair_accuracy=pair_accuracy)[TRANSFER]


def transfer_of_words(collected: States) -> pd.DataFrame:
    """The table `transfer` of L2 logistic regressions (C = 1) on word counts, which read no state: what each task's
    words say about each task's test pairs. Words that a task's training pairs lack count nothing.

    Raises the errors of `sweep`.
    """
    pairs = collected.pairs
    splits = split_tasks(pairs, rows=collected.rows)
    words = CountVectorizer(token_pattern=r"\S+").fit(sentences_of(pairs))
    good = words.transform(pairs["sentence_good"])
    bad = words.transform(pairs["sentence_bad"])
    fits = []
    for split in splits.values():
        n = len(split.train)
        X = sparse_arrays.vstack([good[split.train], bad[split.train]])
        fits.append(LogisticRegression(max_iter=1_000).fit(X, np.repeat([1, 0], n)))
    directions = np.concatenate([fit.coef_ for fit in fits])
    offsets = np.concatenate([fit.intercept_ for fit in fits])
    rows = []
    for task, split in splits.items():
        good_scores = good[split.test] @ directions.T + offsets
        bad_scores = bad[split.test] @ directions.T + offsets
        right = np.stack(hits(good_scores, bad_scores))
        accuracy, pair_accuracy = by_group(right, [split, split]).mean(1)
        columns = {"train_task": list(splits), "test_task": task, "accuracy": accuracy, "pair_accuracy": pair_accuracy}
        rows.append(pd.DataFrame(columns))
    table = pd.concat(rows, ignore_index=True).assign(method="bag_of_words")
    return table.reindex(columns=TRANSFER)


def _kinds(l0_strengths: Sequence[float | int]) -> pd.DataFrame:
    """What distinguishes the probes of a task: one row per sparse probe, and a last row for the dense probe."""
    sparse = [("l0", float(l0_strength)) for l0_strength in l0_strengths]
    return pd.DataFrame([*sparse, ("dense", np.nan)], columns=["method", "l0_strength"])


def _measured(
    vectors: Float[np.ndarray, "pairs 2 d"],
    split: Split,
    directions: Float[np.ndarray, "*probes d"],
    offsets: Float[np.ndarray, "*probes"],
) -> Float[np.ndarray, "2 *probes"]:
    """Accuracy and pair accuracy on the test pairs of a task, of probes on the states' own scale."""
    scores = np.tensordot(vectors[split.test].astype(np.float64), directions, axes=(2, -1)) + offsets
    measured = by_group(np.stack(hits(scores[:, 0], scores[:, 1])), [split, split])
    return np.asarray(measured.mean(1))


def overlap(neurons: pd.DataFrame) -> pd.DataFrame:
    """Which tasks share neurons: for each pair of tasks, the Jaccard index of their open gates and the cosine of w ⊙ m.

    `jaccard` is |A ∩ B| / |A ∪ B|, and `expected` is its mean over random sets of the same sizes (with |A ∩ B|
    hypergeometric). It is NaN if no gate is open.

    Args:
        neurons: the table of `sweep`.

    Returns the table `overlap` of a `ProbingStudy`, with each pair once.

    Raises ValueError for a table with missing or repeated dimensions.

    Examples:
        >>> neurons = pd.DataFrame({"task": ["a", "a", "a", "b", "b", "b"], "state": 4, "dim": [0, 1, 2, 0, 1, 2]})
        >>> neurons = neurons.assign(gate=[1, 1, 0, 0, 1, 0], weight=1.0)  # a reads 0 and 1, b reads 1
        >>> overlap(neurons)["jaccard"].tolist()
        [0.5]
    """
    check_neurons(neurons)
    rows: list[tuple[object, ...]] = []
    for state, part in neurons.assign(c=neurons["gate"] * neurons["weight"]).groupby("state", sort=False):
        tasks = part["task"].unique()
        wide = part.pivot(index="task", columns="dim", values=["gate", "c"]).loc[tasks]
        is_open = wide["gate"].to_numpy() > 0
        c = wide["c"].to_numpy(dtype=np.float64)
        a, b = np.triu_indices(len(tasks), 1)  # the order of pdist
        shared = (is_open.astype(float) @ is_open.T)[a, b]
        sizes = is_open.sum(1)
        union = sizes[a] + sizes[b] - shared
        chance = [_expected_jaccard(int(m), int(n), is_open.shape[1]) for m, n in zip(sizes[a], sizes[b], strict=True)]
        measures = shared / np.where(union, union, np.nan), chance, 1 - pdist(c, "cosine")
        rows += zip(tasks[a], tasks[b], repeat(state), *measures)
    return pd.DataFrame(rows, columns=["task_a", "task_b", "state", "jaccard", "expected", "cosine"])


def _expected_jaccard(a: int, b: int, d: int) -> float:
    if a + b == 0:
        return float("nan")
    shared = np.arange(max(0, a + b - d), min(a, b) + 1)
    return float((stats.hypergeom.pmf(shared, d, a, b) * shared / (a + b - shared)).sum())


def general(
    collected: States,
    state: int,
    *,
    tasks: Several[str] | None = None,
    l0_strength: float | int = SHOWN_L0_STRENGTH,
    scaling: Scaling = "standard",
    steps: int = STEPS,
    seed: int = 0,
) -> pd.DataFrame:
    """Is there grammaticality in general? The test pairs of each task are judged by probes that have not seen the task.

    For each task, probes are trained on `others` (all other tasks), `same_field`, `other_fields` and `same_term` (by
    BLiMP's `field` and `linguistics_term`), always without the task itself. Each task contributes 100 training pairs,
    or all if it has fewer. States are standardised with the mean and SD of all these pairs, including the sentences of
    the left-out task, but not its labels. A sentence that several tasks have is never both trained on and tested
    (`interp.corpora.splits`).

    Returns the table `general` of a `ProbingStudy`, with one row per set that has any task.

    Raises ValueError for fewer than two tasks, and the errors of `sweep`.
    """
    check_scaling(scaling)
    splits = split_tasks(collected.pairs, tasks, collected.rows)
    if len(splits) < 2:
        raise ValueError(f"a probe of grammaticality in general needs two tasks or more, found {', '.join(splits)}")
    described = collected.pairs.drop_duplicates("UID").set_index("UID").reindex(columns=["field", "linguistics_term"])
    categories = described.loc[list(splits)].fillna("")
    sets = pd.DataFrame(_left_out(categories), columns=["task", "trained_on", "seen"])
    sets["n_tasks"] = sets["seen"].map(np.sum)
    rows = _kinds([l0_strength]).merge(sets.join(categories, on="task"), how="cross")
    chosen = [split.train[:_PAIRS_A_TASK] for split in splits.values()]
    owner = np.tile(np.repeat(np.arange(len(splits)), list(map(len, chosen))), 2)
    used = torch.from_numpy(np.stack(sets["seen"].tolist(), 1)[owner])
    numbers = np.concatenate(chosen)
    everything = {"": Split(numbers, numbers[:1], numbers[:1], np.ones(1, dtype=int))}
    vectors = collected.load(state)
    group = Group(vectors, everything, scaling=scaling, device=collected.device)
    X = group.X
    y = group.targets()
    sparse = fit_sparse(
        X, y.expand(-1, -1, len(sets)), weights=used[None].to(X), steps=steps,
        l0_strengths=[l0_strength] * len(sets), seeds=[seed] * len(sets),
    ).coefficients.double()  # fmt: skip
    dense = [fit_dense(X[:, seen], y[:, seen]) for seen in used.T.to(X.device)]
    fitted = torch.cat([sparse, *dense], 1)
    (directions,), (offsets,) = group.unscaled(fitted)
    measured = np.zeros((2, len(rows)))
    for task, split in splits.items():
        of_task = (rows["task"] == task).to_numpy()
        measured[:, of_task] = _measured(vectors, split, directions[of_task], offsets[of_task])
    n_open = (fitted[0] != 0).sum(1).cpu().numpy()
    return rows.assign(state=state, accuracy=measured[0], pair_accuracy=measured[1], n_open=n_open)[GENERAL]


def _left_out(categories: pd.DataFrame) -> list[tuple[str, str, Bool[np.ndarray, " tasks"]]]:
    """For each task, the sets of other tasks to train on."""
    fields = categories["field"].to_numpy()
    terms = categories["linguistics_term"].to_numpy()
    rows = []
    for number, (task, field, term) in enumerate(categories.itertuples()):
        other = np.arange(len(categories)) != number
        sets = {"others": other}
        if field:
            sets.update(same_field=other & (fields == field), other_fields=other & (fields != field))
        if term:
            sets["same_term"] = other & (terms == term)
        for name, seen in sets.items():
            if seen.any():
                rows.append((task, name, seen))
    return rows

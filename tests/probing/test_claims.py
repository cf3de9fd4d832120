"""Findings over all states of a study: on probes of planted states, and how often they are right on drawn tables."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from interp.analyses.probing.claims import by_depth, gates_by_t, quarter
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import Sweep, sweep
from interp.corpora import pairs

TASKS = [f"task {number}" for number in range(9)]
N_STATES, WIDTH = 5, 40


def probed(informative: dict[int, int], size: float) -> Sweep:
    """Sparse and dense probes of states in which the first so many dimensions differ between good and bad, by an amount
    that makes them equally separable."""
    rng = np.random.default_rng(0)
    n = 60
    rows = [(f"good {task} {i}", f"bad {task} {i}", task, str(i), "", "") for task in TASKS for i in range(n)]
    table = pd.DataFrame(rows, columns=list(pairs.COLUMNS))
    vectors = {}
    for state, n_dims in informative.items():
        vectors[state] = rng.normal(size=(len(rows), 2, WIDTH)).astype(np.float32)
        vectors[state][:, 0, :n_dims] += size / np.sqrt(n_dims)
    states = States(table, tuple(vectors), WIDTH, {"made": "here"}, _kept=vectors)
    methods = ["dense", "l0"]
    return sweep(
        states, methods=methods, controls=["none"], l0_strengths=[0.2, 0.9], seeds=[0], steps=300, progress=False
    )


@pytest.fixture(scope="module")
def narrow() -> Sweep:
    return probed(dict.fromkeys(range(N_STATES), 2), 4.0)


def test_two_dimensions_of_forty_are_a_quarter_that_suffices(narrow: Sweep) -> None:
    (finding,) = quarter(narrow.probes, {})
    means = narrow.probes.groupby(["method", "l0_strength", "state"], dropna=False)["accuracy"].mean()
    ratios = means["l0", 0.2].to_numpy() / means["dense"].to_numpy()
    assert finding.value == pytest.approx(np.median(ratios), abs=1e-12)
    assert finding.verdict == "yes", finding


def test_a_difference_in_all_dimensions_needs_more_than_a_quarter() -> None:
    spread = probed(dict.fromkeys(range(N_STATES), WIDTH), 4.0)
    read = spread.probes[spread.probes["method"] == "l0"].groupby("l0_strength")["open_fraction"].mean()
    assert read[0.2] <= 0.25 < read[0.9]  # probes of the second λ are nearly as good, and read too many
    (finding,) = quarter(spread.probes, {})
    assert finding.verdict == "no", finding


def test_more_dimensions_at_later_states_are_seen() -> None:
    growing = probed(dict(enumerate((1, 2, 3, 5, 8))), 4.0)
    (finding,) = by_depth(growing.probes, 0.2, {})
    rows = growing.probes[growing.probes["l0_strength"] == 0.2].pivot(
        index="state", columns="task", values="open_fraction"
    )
    each = [stats.spearmanr(rows.index, rows[task]).statistic for task in TASKS]
    assert finding.value == pytest.approx(np.mean(each), abs=1e-12)
    assert finding.verdict == "yes", finding


def test_gates_that_follow_t(narrow: Sweep) -> None:
    agreement = narrow.agreement[(narrow.agreement["state"] == 1) & (narrow.agreement["l0_strength"] == 0.2)]
    neurons = narrow.neurons[narrow.neurons["state"] == 1]
    (finding,) = gates_by_t(agreement, neurons, {})
    each = [stats.spearmanr(rows["t"].abs(), rows["gate"]).statistic for _, rows in neurons.groupby("task")]
    assert finding.value == pytest.approx(np.mean(each), abs=1e-9)
    assert finding.verdict == "yes", finding


def test_states_without_a_distinction_are_left_out(narrow: Sweep) -> None:
    chance = narrow.probes.assign(accuracy=0.5)
    assert not [*quarter(chance, {}), *by_depth(chance, 0.2, {})]
    four = narrow.probes[narrow.probes["state"] < 4]
    assert not [*by_depth(four, 0.2, {})]


def drawn(rng: np.random.Generator, slope: float) -> pd.DataFrame:
    """Probes that are right, and whose number of open gates wanders from state to state, differently in each task."""
    fractions = 0.2 + 0.01 * rng.normal(size=(12, len(TASKS))).cumsum(0) + slope * np.arange(12)[:, None]
    rows = [
        {"state": state, "task": task, "method": method, "control": "none", "accuracy": 0.8, "l0_strength": strength,
         "open_fraction": fractions[state, number]}
        for state in range(12) for number, task in enumerate(TASKS)
        for method, strength in (("dense", np.nan), ("l0", 0.2))
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("slope", "wrong", "most"), [(0.0, "yes", 16), (0.02, "no", 0)])
def test_numbers_that_wander_are_no_trend(slope: float, wrong: str, most: int) -> None:
    rng = np.random.default_rng(1)
    verdicts = [next(by_depth(drawn(rng, slope), 0.2, {})).verdict for _ in range(200)]
    assert verdicts.count(wrong) <= most  # 5 % of 200 and twice its standard error are 16
    assert slope == 0 or verdicts.count("yes") >= 160


def test_gates_that_ignore_t_do_not_follow_it() -> None:
    rng = np.random.default_rng(2)
    verdicts = []
    for _ in range(200):
        gates = np.maximum(rng.normal(size=(len(TASKS), 100)), 0)
        t = np.abs(rng.normal(size=gates.shape))
        rows = [{"task": task, "dim": dim, "gate": gates[i, dim]} for i, task in enumerate(TASKS) for dim in range(100)]
        spearman = [stats.spearmanr(*both).statistic for both in zip(t, gates, strict=True)]
        agreement = pd.DataFrame({"task": TASKS, "spearman": spearman, "spearman_max": 0.9})
        verdicts.append(next(gates_by_t(agreement, pd.DataFrame(rows), {})).verdict)
    assert verdicts.count("yes") <= 16
    assert verdicts.count("no") >= 100

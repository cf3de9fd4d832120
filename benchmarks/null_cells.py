"""The cells of `nulls.py`: findings on draws in which there is nothing to find, and on draws with a planted effect."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from null_atlases import UNITS, overlapping_directions, units_of_grammar
from null_models import ARCHITECTURES, linear_probability, random_sink, removed_dimensions, word_frequency
from nulls import Cell
from scipy import stats
from torch import Tensor

from interp import corpora
from interp.analyses.controls.bands import frequency_bands
from interp.analyses.controls.draws import Draws
from interp.analyses.controls.findings import band_findings
from interp.analyses.encoding.findings import better_than_random, removable
from interp.analyses.encoding.pruning import Agreements
from interp.analyses.frequency.findings import findings as follows
from interp.analyses.generation.findings import diverse, more_human
from interp.analyses.generation.highest import highest_mauve, mauve_of_halves
from interp.analyses.generation.metrics import intervals, mauve_scores
from interp.analyses.probing.claims import by_depth, gates_by_t, quarter
from interp.analyses.probing.findings import above_untrained, beyond, concentrated, held, needed, some_general
from interp.instruments.controls import DirectionKind, random_directions, spearman_of
from interp.instruments.measures import correlations
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.uncertainty import averaged
from interp.models.embeddings import Embeddings
from interp.passes.reading import observe
from interp.results.findings import Finding, Verdict
from interp.results.intervals import from_sums
from interp.results.verdicts import SMALLEST, Control, compare
from interp.testing import toy_decoder

__all__ = ["CELLS"]

TASKS, TEST_PAIRS = 12, 40  # of 200 pairs a task
S = SMALLEST["accuracy"][0]
NO_KL, NO_TYPES = pd.DataFrame(columns=["scale", "perplexity"]), pd.DataFrame({"unigram": [1.0]})
_SPREAD = 0.01  # SD over tasks of what differs between two probes
_MEANT: dict[str, Verdict] = {"yes": "yes", "opposite": "no", "no": "no", "cannot tell": "cannot tell"}


def first(findings: Iterator[Finding]) -> Verdict:
    return next(iter(findings)).verdict


def ranked(rng: np.random.Generator, *, effect: float) -> Verdict:
    """A value among 39 controls whose spread the interval of the value does not know."""
    draws = 0.02 * rng.normal(size=40)
    value = draws[0] + effect
    half = 0.01
    measured = value + half / 1.96 * rng.normal()
    return _MEANT[compare(measured, measured - half, measured + half, Control("", draws[1:]), smallest=S).outcome]


def probes_and_words(rng: np.random.Generator, *, effect: float, n_tasks: int = TASKS) -> Verdict:
    """The accuracies of two probes on the test sentences of some tasks."""
    level = rng.uniform(0.6, 0.8, n_tasks)
    dense_level = level + effect + _SPREAD * rng.normal(size=n_tasks)
    shape = n_tasks, 2 * TEST_PAIRS
    hits = pd.DataFrame(
        {
            "dense": rng.binomial(1, dense_level[:, None], shape).ravel() / 1.0,
            "bag_of_words": rng.binomial(1, level[:, None], shape).ravel() / 1.0,
        }
    )
    hits = hits.assign(task=np.repeat(np.arange(n_tasks), shape[1]), state=0, pair=np.tile(range(shape[1]), n_tasks))
    table = averaged(hits, [("dense", "bag_of_words")], {})[1].assign(n_tasks=n_tasks, above=0, below=0)
    return first(beyond(table, dict.fromkeys(range(n_tasks), "")))


def transfer(rng: np.random.Generator, right: Float[np.ndarray, "tasks tasks"]) -> pd.DataFrame:
    """Pair accuracies of probes of each task on each task, with these expectations; the bag of words is at chance."""
    n = len(right)
    tables = []
    chance = np.full_like(right, 0.5)
    for method, strength, level in (("l0", 0.2, right), ("dense", np.nan, right), ("bag_of_words", np.nan, chance)):
        accuracy = rng.binomial(TEST_PAIRS, level) / TEST_PAIRS
        rows = [(f"t{i:02}", f"t{j:02}", accuracy[i, j]) for i in range(n) for j in range(n)]
        table = pd.DataFrame(rows, columns=["train_task", "test_task", "pair_accuracy"])
        tables.append(table.assign(method=method, l0_strength=strength))
    return pd.concat(tables)


def on_other_tasks(rng: np.random.Generator, *, effect: float) -> Verdict:
    kin = 0.02 * rng.normal(size=(2, TASKS))
    return first(held(transfer(rng, 0.5 + effect + kin[0][:, None] + kin[1]), 0.2, {}))


def some_task(rng: np.random.Generator, *, effect: float) -> Verdict:
    """Probes that are alike, on tasks on which each is right or wrong by chance; one of them is right more often."""
    right = np.tile(0.5 + 0.1 * rng.normal(size=TASKS).clip(-3, 3), (TASKS, 1))
    right[0] = np.clip(right[0] + effect, 0, 1) if effect else right[0]
    return first(some_general(transfer(rng, right), 0.2, {}))


def top_dimensions(rng: np.random.Generator, *, effect: float) -> Verdict:
    """Accuracies of the top dimensions in 40 bases, with what a task has in common in all of them."""
    level = rng.uniform(0.7, 0.9, TASKS)
    rows: list[Any] = [(task, "none", 0, 99, 0.9) for task in range(TASKS)]
    for basis in range(40):
        accuracy = rng.binomial(2 * TEST_PAIRS, np.clip(level + effect * (basis == 0), 0, 1)) / (2 * TEST_PAIRS)
        control = "rotation" if basis else "none"
        rows += [(task, control, max(basis - 1, 0), 3, accuracy[task]) for task in range(TASKS)]
    table = pd.DataFrame(rows, columns=["task", "control", "draw", "k", "accuracy"])
    return first(concentrated(table, {}))


def a_quarter(rng: np.random.Generator, *, ratio: float) -> Verdict:
    """Accuracies of dense probes at 12 states, and of sparse ones that read a fifth of the dimensions."""
    dense = rng.uniform(0.75, 0.95, TASKS)
    cells = {"dense": dense, "l0": ratio * dense}
    shape = 12, TASKS
    accuracies = {name: rng.binomial(2 * TEST_PAIRS, right, shape) / (2 * TEST_PAIRS) for name, right in cells.items()}
    return first(quarter(_probes(accuracies, np.full(shape, 0.2)), {}))


def over_states(rng: np.random.Generator, *, slope: float) -> Verdict:
    """Shares of dimensions that wander from state to state, in each task for itself, and with a slope in all."""
    wandering = 0.2 + 0.01 * rng.normal(size=(12, TASKS)).cumsum(0) + slope * np.arange(12)[:, None]
    right = np.full(wandering.shape, 0.8)
    return first(by_depth(_probes({"dense": right, "l0": right}, wandering), 0.2, {}))


def _probes(
    accuracies: dict[str, Float[np.ndarray, "states tasks"]], fractions: Float[np.ndarray, "states tasks"]
) -> Any:
    """The table `probes` of sparse and dense probes."""
    (n_states, n_tasks) = fractions.shape
    cells = pd.MultiIndex.from_product([range(n_states), range(n_tasks)], names=["state", "task"])
    parts = []
    for method, accuracy in accuracies.items():
        values = {"accuracy": accuracy.ravel(), "validation_accuracy": 0.8, "open_fraction": fractions.ravel()}
        values |= {"method": method, "control": "none", "l0_strength": 0.2 if method == "l0" else np.nan}
        parts.append(pd.DataFrame(values, cells).reset_index())
    return pd.concat(parts, ignore_index=True)


def gates(rng: np.random.Generator, *, effect: float) -> Verdict:
    """Gates of 200 dimensions, most of them closed, and |t| that know nothing of them, or a little."""
    opening = rng.normal(size=(TASKS, 200))
    t = np.abs(rng.normal(size=opening.shape)) + effect * opening
    gate = np.maximum(opening - 1, 0)
    spearman = [stats.spearmanr(*pair).statistic for pair in zip(t, gate, strict=True)]
    agreement = pd.DataFrame({"task": range(TASKS), "spearman": spearman, "spearman_max": 0.7})
    cells = pd.MultiIndex.from_product([range(TASKS), range(200)], names=["task", "dim"])
    return first(gates_by_t(agreement, pd.DataFrame({"gate": gate.ravel()}, cells).reset_index(), {}))


def without_neurons(rng: np.random.Generator, *, effect: float, n_tasks: int = TASKS) -> Verdict:
    accuracy = rng.normal(-0.05, 0.015, (n_tasks, 2)) - [effect, 0]
    rows = {"set": ["found", "matched"] * n_tasks, "task": np.repeat(np.arange(n_tasks), 2), "mode": "zero"}
    return first(needed(pd.DataFrame(rows).assign(accuracy=accuracy.ravel()), {}))


def above_models(rng: np.random.Generator, *, effect: float) -> Verdict:
    """The accuracies of dense probes of four models on the test sentences of some tasks."""
    level = rng.uniform(0.6, 0.8, TASKS)
    tables = []
    for model in range(4):
        expected = level + effect * (model == 0) + _SPREAD * rng.normal(size=TASKS)
        accuracy = rng.binomial(2 * TEST_PAIRS, expected) / (2 * TEST_PAIRS)
        control = "untrained" if model else "none"
        rows = {"task": range(TASKS), "probe": "dense", "control": control, "draw": max(model - 1, 0)}
        tables.append(pd.DataFrame(rows).assign(accuracy=accuracy))
    nothing = pd.DataFrame(columns=["probe", "against"])
    return first(above_untrained(pd.concat(tables), nothing, {}))


@cache
def agreements() -> pd.DataFrame:
    """What stays of predictions without each of 400 random sets of dimensions of one model."""
    model = toy_decoder()
    rng = np.random.default_rng(0)
    text = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    observer = Agreements(model, [rng.permutation(16)[:5].tolist() for _ in range(400)])
    observe(model, corpora.batches(model, text), observer, progress=False)
    return observer.table.assign(fraction=0.3, draw=0)


def an_order(rng: np.random.Generator, *, effect: float) -> Verdict:
    table = agreements().sample(40, random_state=int(rng.integers(2**31)))
    table = table.assign(order=["spearman"] + ["random"] * 39)
    moved = [name for name in table if name.startswith("top1_agreement")]
    is_spearman = table["order"] == "spearman"
    table.loc[is_spearman, moved] += table.loc[~is_spearman, "top1_agreement"].std() * effect
    return first(better_than_random(table))


def what_stays(rng: np.random.Generator, *, share: float) -> Verdict:
    """In how many of 60 positions of 40 texts, which differ, predictions stay without 30 % of the dimensions."""
    of_text = rng.beta(20 * share, 20 * (1 - share), (20, 2))
    same = rng.binomial(60, of_text).sum(1)[:, None] / 1.0
    positions = np.full((20, 1), 120.0)
    agreement = from_sums(np.divide, [same, positions], positions[:, 0], 2)._replace(least=0, most=1)
    ends = {"top1_agreement_low": agreement.low, "top1_agreement_high": agreement.high}
    curve = pd.DataFrame({"basis": "axis", "order": "spearman", "fraction": 0.3, "top1_agreement": agreement.value})
    return first(removable(curve.assign(**ends)))


def scaled_text(rng: np.random.Generator, *, effect: float) -> Verdict:
    """Token ids of human text and of text at two scales, of which the second has a flatter distribution."""
    tables = []
    for decoder, scale, exponent in (("human", np.nan, 1.5), ("top_k", 1.0, 1.5), ("top_k", 0.0, 1.5 - effect)):
        ids = rng.zipf(exponent, size=(60, 20)).clip(max=500).tolist()
        tables.append(pd.DataFrame({"prompt_id": range(60), "token_ids": ids, "decoder": decoder, "scale": scale}))
    return first(diverse(intervals(pd.concat(tables), np.zeros(501, dtype=bool)), 60))


def human_text(rng: np.random.Generator, *, shift: float) -> Verdict:
    """Features of human text and of text at three scales after the same prompts. Without a shift all are alike; with
    one only those at λ = 0.5 are like human text."""
    of_prompt = rng.normal(size=(60, 4))
    human, *texts = (of_prompt + rng.normal(size=(60, 4)) for _ in range(4))
    rows, halves = [], []
    for scale, features in zip((0.0, 0.5, 1.0), texts, strict=True):
        features[:, 0] += shift * (scale != 0.5)
        rows.append({"decoder": "sample", "scale": scale, "mauve_mean": np.mean(mauve_scores(features, human))})
        halves.append({"decoder": "sample", "scale": scale, **_numbered(mauve_of_halves(features, human, seed=0))})
    return first(more_human(highest_mauve(pd.DataFrame(rows), pd.DataFrame(halves)), 60))


def _numbered(scores: list[float]) -> dict[str, float]:
    return {f"half_{number}": score for number, score in enumerate(scores)}


@cache
def frequencies() -> tuple[Float[np.ndarray, " types"], Embeddings, dict[str, Float[Tensor, "draws d"]]]:
    """log u of 1,000 types, embeddings that have a common direction and encode log u along another, and 800 random
    directions of each kind."""
    log_u = np.log(np.random.default_rng(0).permutation(1 / np.arange(1, 1_001)))
    E = torch.randn(64, 1_000, generator=torch.Generator().manual_seed(0))
    E[0] += 3
    E[1] = torch.from_numpy(log_u / log_u.std()).float() + 0.3 * E[1]
    embeddings = Embeddings(E)
    kinds = get_args(DirectionKind)
    return log_u, embeddings, {kind: random_directions(embeddings, kind, 800) for kind in kinds}


def what_it_adds(rng: np.random.Generator, *, kind: str) -> Verdict:
    """Whether a direction follows log u: one like its controls of one kind, or the one that encodes log u."""
    log_u, embeddings, drawn = frequencies()
    tested, *chosen = (int(draw) for draw in rng.choice(800, 400, replace=False))
    direction = torch.eye(64, dtype=torch.float64)[1] if kind == "log u" else drawn[kind][tested]
    added = embeddings.dot(direction[None])[0].numpy()
    projection = pd.DataFrame([dict(bias="ln", n_types=1_000, **correlations(log_u, added))])
    tables = [
        pd.DataFrame({"kind": name, "spearman": among[chosen]}) for name, among in correlations_with_log_u().items()
    ]
    return first(iter(follows(NO_KL, NO_TYPES, projection, pd.concat(tables), {})))


@cache
def correlations_with_log_u() -> dict[str, Float[np.ndarray, " draws"]]:
    log_u, embeddings, drawn = frequencies()
    return {kind: spearman_of(log_u, embeddings, directions) for kind, directions in drawn.items()}


@cache
def excesses() -> pd.DataFrame:
    """How much more frequent words lose than others without 400 random directions of each kind, in one model."""
    model = toy_decoder()
    u = np.arange(67) / np.arange(67).sum()
    bands = frequency_bands(u, 3)
    text = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    draws = Draws.of(model, {"ln": torch.ones(16)}, [0.0], n=400, u=u, classes=bands, seed=0)
    plain = MeanPredictions(model, [Variant()], classes=bands)
    observe(model, corpora.batches(model, text), draws.predictions, plain, progress=False)
    means = plain.means(0)
    return draws.table(u, means, means.nll_by_class)


def frequent_words(rng: np.random.Generator, *, effect: float) -> Verdict:
    """A direction like its 39 controls of each kind, or one that costs frequent words more by some SDs."""
    table = excesses()
    chosen = rng.choice(400, 40, replace=False)
    kind = rng.choice(table["kind"].unique())
    like_own = (table["kind"] == kind) & (table["draw"] == chosen[0])
    excess = table.loc[like_own, "excess_nll"].item() + effect * table["excess_nll"].std()
    ends = {"excess_nll": [excess], "excess_nll_low": excess - 0.001, "excess_nll_high": excess + 0.001}
    first_band = pd.DataFrame({"bias": "ln", "scale": 0.0, "band": 1, **ends})
    return first(band_findings(first_band, table[table["draw"].isin(chosen[1:])], {}))


_FOLLOWS, _FREQUENT = "Does what b_LN adds follow word frequency?", "Does it favour frequent words?"
_WORDS, _OTHERS = "Are dense probes more accurate than words?", "Are sparse probes right on other tasks?"
_SOME, _TOP = "Is the probe of some task right on others?", "Is it concentrated in few dimensions?"
_QUARTER, _DEPTH = "Is a quarter of the dimensions enough?", "Do sparse probes read more at later states?"
_GATES = "Do gates open where t is largest?"
_NEEDED, _ORDER = "Does the model need the neurons?", "Is this order better than a random one?"
_REMOVABLE = "Can 30% of the output dimensions be removed?"
_HUMAN = "Is text more like human text at another λ?"
_DIVERSE, _MODELS = "Is text more diverse with less of b_LN?", "Are dense probes better than those of untrained models?"
_STEERS, _TOGETHER = "Does an outlier dimension steer attention?", "Do outlier dimensions together steer attention?"
_SINK, _OVERLAP = "Is there a sink at the first position?", "Do directions or subspaces overlap?"
_LINEAR = "Do output embeddings encode probability beyond construction?"
CELLS = [
    Cell("rule", "among 39 controls", "drawn like its controls", "null", partial(ranked, effect=0.0), 2_000),
    Cell("rule", "among 39 controls", "5 SDs above them", "planted", partial(ranked, effect=0.1), 2_000),
    *(
        Cell("probing", _WORDS, f"{n} tasks of equal accuracy", "null",
             partial(probes_and_words, effect=0.0, n_tasks=n), 2_000)
        for n in (2, 3, 4, 5, TASKS)
    ),
    Cell("probing", _WORDS, "2 s more accurate", "planted", partial(probes_and_words, effect=2 * S), 2_000),
    Cell("probing", _OTHERS, "at chance", "null", partial(on_other_tasks, effect=0.0), 400),
    Cell("probing", _OTHERS, "2 s above it", "planted", partial(on_other_tasks, effect=2 * S), 400),
    Cell("probing", _SOME, "probes that are alike", "null", partial(some_task, effect=0.0), 400),
    Cell("probing", _SOME, "one of them .3 above them", "planted", partial(some_task, effect=0.3), 400),
    Cell("probing", _TOP, "a basis like any other", "null", partial(top_dimensions, effect=0.0), 400),
    Cell("probing", _TOP, "2 s above others", "planted", partial(top_dimensions, effect=2 * S), 400),
    *(
        Cell("probing", _NEEDED, f"{n} tasks, like other neurons", "null",
             partial(without_neurons, effect=0.0, n_tasks=n), 2_000)
        for n in (2, 3, 4, 5, TASKS)
    ),
    Cell("probing", _NEEDED, "2 s more than others", "planted", partial(without_neurons, effect=2 * S), 2_000),
    Cell("probing", _QUARTER, "94 % as good", "null", partial(a_quarter, ratio=0.94), 400),
    Cell("probing", _QUARTER, "99 % as good", "planted", partial(a_quarter, ratio=0.99), 400),
    Cell("probing", _DEPTH, "numbers that wander", "null", partial(over_states, slope=0.0), 400),
    Cell("probing", _DEPTH, "a slope in all tasks", "planted", partial(over_states, slope=0.02), 400),
    Cell("probing", _GATES, "t knows nothing of them", "null", partial(gates, effect=0.0), 400),
    Cell("probing", _GATES, "t knows a little", "planted", partial(gates, effect=0.2), 400),
    Cell("encoding", _ORDER, "a random order", "null", partial(an_order, effect=0.0), 400),
    Cell("encoding", _ORDER, "5 SDs above them", "planted", partial(an_order, effect=5.0), 400),
    Cell("encoding", _REMOVABLE, "94 % of predictions stay", "null", partial(what_stays, share=0.94), 2_000),
    Cell("encoding", _REMOVABLE, "98 % stay", "planted", partial(what_stays, share=0.98), 2_000),
    *(
        Cell("frequency", _FOLLOWS, name, "null", partial(what_it_adds, kind=kind), 2_000)
        for name, kind in {
            "a random direction": "isotropic", "a random sum of embeddings": "embeddings",
            "a random sum of centred embeddings": "centred embeddings",
        }.items()
    ),
    Cell("frequency", _FOLLOWS, "it encodes log u", "planted", partial(what_it_adds, kind="log u"), 2_000),
    Cell("controls", _FREQUENT, "a random direction", "null", partial(frequent_words, effect=0.0), 2_000),
    Cell("controls", _FREQUENT, "5 SDs more", "planted", partial(frequent_words, effect=5.0), 2_000),
    Cell("generation", _DIVERSE, "the same at both λ", "null", partial(scaled_text, effect=0.0), 400),
    Cell("generation", _DIVERSE, "a flatter distribution", "planted", partial(scaled_text, effect=0.2), 400),
    Cell("generation", _HUMAN, "alike at all λ", "null", partial(human_text, shift=0.0), 100),
    Cell("generation", _HUMAN, "alike at λ = 0.5 alone", "planted", partial(human_text, shift=3.0), 100),
    Cell("probing", _MODELS, "four models that are alike", "null", partial(above_models, effect=0.0), 2_000),
    Cell("probing", _MODELS, "2 s more accurate", "planted", partial(above_models, effect=2 * S), 2_000),
    Cell("attention", _STEERS, "large, but like any direction", "null",
         partial(removed_dimensions, n_dims=1, raised=0.0), 400),
    Cell("attention", _TOGETHER, "3 large ones, like any directions", "null",
         partial(removed_dimensions, n_dims=3, raised=0.0), 400),
    Cell("attention", _STEERS, "it raises scores", "planted", partial(removed_dimensions, n_dims=1, raised=1.0), 100),
    Cell("attention", _TOGETHER, "2 that matter only together", "planted",
         partial(removed_dimensions, n_dims=2, raised=3.0), 100),
    *(
        Cell("sinks", _SINK, f"random queries and keys, {n} tokens", "null",
             partial(random_sink, length=n), 400)
        for n in (24, 32)
    ),
    Cell("sinks", _SINK, "a first key along all queries", "planted", partial(random_sink, length=24, planted=3.0), 100),
    *(
        Cell("frequency", f"{_FOLLOWS[:-1]} ({architecture})?", "a random unembedding", "null",
             partial(word_frequency, architecture=architecture), 400)
        for architecture in ARCHITECTURES
    ),
    *(
        Cell("frequency", f"{_FOLLOWS[:-1]} ({architecture})?", "moved along log u", "planted",
             partial(word_frequency, architecture=architecture, planted=1.0), 100)
        for architecture in ARCHITECTURES
    ),
    Cell("encoding", _LINEAR, "random weights", "null", partial(linear_probability, planted=False), 400),
    Cell("encoding", _LINEAR, "two poles around a bias", "planted", partial(linear_probability, planted=True), 100),
    Cell("directions", _OVERLAP, "random ones", "null", partial(overlapping_directions, shared=False), 400),
    Cell("directions", _OVERLAP, "two in common", "planted", partial(overlapping_directions, shared=True), 100),
    *(
        Cell("units", question, "no difference", "null",
             partial(units_of_grammar, question=question, effect=0.0), 100)
        for question in UNITS
    ),
    *(
        Cell("units", question, "6 units differ by 2 SDs", "planted",
             partial(units_of_grammar, question=question, effect=2.0), 100)
        for question in UNITS
    ),
]  # fmt: skip

"""Whether a model itself prefers the grammatical sentence of a minimal pair, and needs a probe's neurons for that."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from tqdm.auto import tqdm

from interp.analyses.probing.judgements import by_task, judged
from interp.analyses.probing.options import Score
from interp.analyses.probing.probes import Probe, check_probe
from interp.analyses.probing.scores import Sentences, scored
from interp.corpora import batches, token_classes
from interp.corpora.frames import settled_bos
from interp.corpora.pairs import check_pairs, sentences_of
from interp.corpora.sentences import sentence_rows
from interp.corpora.splits import split_tasks
from interp.hooks import ablate_dims
from interp.instruments.profile import DimensionProfile
from interp.models.running import resolved, running
from interp.models.sites import Model
from interp.passes.execution import Passes, execute, runs
from interp.passes.kept import Kept, execute_from, keep
from interp.passes.reading import observe
from interp.support.checks import check_choices, check_seed
from interp.support.choices import Bos, Mode

__all__ = ["LEAST_ACCURACY", "ablation_effect", "minimal_pair_accuracy"]

LEAST_ACCURACY = 0.6  # the model's own accuracy
_ROWS = 64
_LARGEST = 16  # at most this many times as many random neurons as found ones
_NEAREST = 5  # a matched neuron is drawn from this many of nearest magnitude


class Judged(NamedTuple):
    """The share of pairs in which the good sentence is preferred, the mean difference of the two scores, and the mean
    log-probability of all sentences, in nats."""

    accuracy: float
    margin: float
    log_probability: float

    @classmethod
    def of(cls, table: pd.DataFrame) -> "Judged":
        """Make one from the table of `sentence_scores`, with the good sentences before the bad ones."""
        good, bad = np.split(table["sum"].to_numpy(), 2)
        return cls(float((good > bad).mean()), float((good - bad).mean()), float(table["sum"].mean()))


@runs
def minimal_pair_accuracy(
    model: Model,
    pairs: pd.DataFrame,
    *,
    scores: Sequence[Score] = ("sum",),
    whole_words: bool = False,
    bos: Bos = "auto",
    progress: bool = True,
    directory: Any = None,
) -> Passes[pd.DataFrame]:
    """The share of pairs of each task whose good sentence has the higher score (ties count as wrong).

    Pairs are left out, with a warning, if the model reads the same tokens in both sentences, or if they repeat an
    earlier pair of their task.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        scores: the scores to judge by (see `sentence_scores`): the log-probability's `sum`, or the log-probability
            `per_token`, `per_character` or `per_byte`, which do not penalise longer sentences.
        whole_words, bos, progress, directory: see `sentence_scores`.

    Returns the table `judgements` of a `ProbingStudy`, in the order of the tasks in `pairs`. The accuracy has Wilson's
    interval. Its difference from the accuracy by the first score has an adjusted interval over pairs and McNemar's
    exact test, with p adjusted over the tasks of a score (see `interp.instruments.uncertainty`). For these, pairs that
    share a sentence count as one.

    Raises ValueError for a table without BLiMP's columns, if no pairs are left, and for unknown or repeated scores;
    TypeError for a table with a missing UID; and the errors of `sentence_scores`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> table = minimal_pair_accuracy(model, pairs, scores=["sum", "per_token"], bos=True, progress=False)
        >>> table[["score", "n_pairs"]].values.tolist()
        [['sum', 60], ['per_token', 60]]
    """
    right = yield from judged(model, pairs, scores=scores, whole_words=whole_words, bos=bos)
    return by_task(right)


def ablation_effect(
    model: Model,
    pairs: pd.DataFrame,
    probes: Sequence[Probe],
    *,
    modes: Sequence[Mode] = ("zero", "mean"),
    draws: int = 5,
    limit: int | None = None,
    bos: Bos = "auto",
    whole_words: bool = False,
    by_perplexity: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Remove a probe's neurons from the residual stream: does the model still prefer the good sentence?

    The neurons are set to zero, or to their means over all tokens of the tested sentences, at all positions of their
    state (`interp.hooks.ablate_dims`). The `found` neurons are compared with `draws` sets of equally many other
    neurons: `random` ones, and `matched` ones, where each found neuron is replaced by one of the five unused neurons
    whose root mean square is nearest to its own. With `by_perplexity` there is also the set `perplexity`, with as many
    random neurons as cost the same log-probability of the sentences. For this, nested sets of 1, 2, 4 … 16 times as
    many neurons are removed, and values are interpolated between two sets, linearly in the log-probability. A draw that
    costs less even with the largest set is left out, and there are no draws if the found neurons cost nothing.

    Tasks on which the model itself prefers fewer than .6 of the good sentences are skipped, because there is no
    judgement to remove. The test pairs of a task are used, which its probe has not seen.

    Args:
        pairs: the table that the probes' states were collected from.
        probes: probes from `interp.probing.probe`, one per task.
        limit: the largest number of test pairs per task.
        whole_words, bos: see `minimal_pair_accuracy`.
        by_perplexity: whether to match sets in perplexity too, which takes several times as long.

    Returns the table `ablation` of a `ProbingStudy`. The margin is that of `log p(good) − log p(bad)`.

    Raises ValueError for a probe of another width or of a state that the model does not have, for a probe that reads no
    neuron or more than half of them, for a probe whose task is not among the pairs, for unknown modes, for draws or a
    limit below 1, and for a seed outside 0 … 2**63 − 1; and the errors of `sentence_scores`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> one = Probe("reflexive_number", state=6, direction=np.eye(192)[5], offset=0.0)  # reads neuron 5
        >>> table = ablation_effect(model, pairs, [one], modes=["zero"], draws=2, bos=True, progress=False)
        >>> table["set"].tolist()
        ['found', 'matched', 'random', 'matched', 'random']
    """
    check_pairs(pairs)
    probes = list(probes)
    modes = list(modes)
    seed = check_seed(seed)
    check_choices("modes", modes, get_args(Mode))
    if draws < 1 or (limit is not None and limit < 1):
        raise ValueError(f"draws and limit must be 1 or more, found {draws} and {limit}")
    for probe in probes:
        check_probe(model, probe)
        if not 1 <= len(probe.dims) <= model.cfg.d_model // 2:
            reads = f"reads {len(probe.dims)} of {model.cfg.d_model} neurons, expected one to half of them"
            raise ValueError(f"the probe of {probe.task} at state {probe.state} {reads}; fit it with another λ")
    read = sentence_rows(model, sentences_of(pairs), bos=bos)
    splits = split_tasks(pairs, [probe.task for probe in probes], read) if probes else {}
    tested = [pairs.iloc[splits[probe.task].test[:limit]] for probe in probes]

    rows: list[tuple[object, ...]] = []
    work = zip(probes, tested, strict=True)
    disable = None if progress else True
    for probe, chosen in tqdm(work, "ablating", len(probes), unit="task", disable=disable):
        task = _Task.of(model, chosen, probe, whole_words=whole_words, bos=bos)
        if task is not None:
            rows += _of_task(task, modes, draws, seed, by_perplexity)
    columns = ["task", "state", "mode", "set", "draw", "n_neurons", "magnitude"]
    columns += ["accuracy_before", "accuracy_after", "margin_before", "margin_after"]
    columns += ["log_probability_before", "log_probability_after"]
    return pd.DataFrame(rows, columns=[*columns, "n_pairs"])


class _Task(NamedTuple):
    """The judgements of a model on a task's test sentences, with all neurons or without some; the mean and root mean
    square of every dimension over their tokens; and what the model computes before the neurons are removed."""

    model: Model
    probe: Probe
    sentences: list[str]
    scoring: Callable[[], Passes[pd.DataFrame]]
    before: Judged
    means: Float[np.ndarray, " d_model"]
    size: Float[np.ndarray, " d_model"]
    kept: Kept | None

    @classmethod
    def of(cls, model: Model, chosen: pd.DataFrame, probe: Probe, *, whole_words: bool, bos: Bos) -> "_Task | None":
        """The task, or None if the model has no judgement to remove."""
        sentences = [*chosen["sentence_good"], *chosen["sentence_bad"]]
        read = Sentences(model, sentences, bos=bos, whole_words=whole_words)
        scoring = partial(scored, read)
        before = Judged.of(execute(model, scoring(), progress=False))
        if before.accuracy < LEAST_ACCURACY:
            return None
        moments = _moments(model, sentences, probe.state, bos)
        return cls(model, probe, sentences, scoring, before, *moments, keep(model, scoring(), probe.state))

    def without(self, mode: Mode, dims: Sequence[int]) -> Judged:
        fill = torch.from_numpy(self.means) if mode == "mean" else None
        recipe = ablate_dims(self.model, self.probe.state, dims, where="residual", mode=mode, means=fill)
        if self.kept is not None:
            ((name, edit),) = resolved(self.model, recipe)
            edited = partial(edit, hook=self.model.hook_dict[name])
            return Judged.of(execute_from(self.model, self.scoring(), self.kept, edited))
        with running(self.model, recipe):
            return Judged.of(execute(self.model, self.scoring(), progress=False))


def _of_task(
    task: _Task, modes: Sequence[Mode], draws: int, seed: int, by_perplexity: bool
) -> Iterator[tuple[object, ...]]:
    """The rows of a task."""
    dims = task.probe.dims
    rng = np.random.default_rng(seed)
    candidates = np.setdiff1d(np.arange(len(task.size)), dims)
    sets = []
    for draw in range(draws):
        sets.append(("matched", draw, _matched(dims, candidates, task.size, rng)))
        sets.append(("random", draw, rng.choice(candidates, len(dims), replace=False).tolist()))
    orders = [rng.permutation(candidates).tolist() for _ in range(draws if by_perplexity else 0)]
    for mode in modes:
        reference = task.without(mode, dims)
        measured = [("found", 0, dims, reference)]
        for name, draw, other in sets:
            measured.append((name, draw, other, task.without(mode, other)))
        for draw, order in enumerate(orders):
            if alike := _as_costly(task, mode, reference, order):
                measured.append(("perplexity", draw, *alike))
        for name, draw, removed, after in measured:
            labels = task.probe.task, task.probe.state, mode, name, draw, len(removed), float(task.size[removed].mean())
            yield *labels, *chain(*zip(task.before, after, strict=True)), len(task.sentences) // 2


def _as_costly(task: _Task, mode: Mode, reference: Judged, order: list[int]) -> tuple[list[int], Judged] | None:
    """The first neurons of an order that cost as much log-probability as the found ones, and what is measured with
    them; None if the found ones cost nothing, or if even the largest set costs less."""
    if reference.log_probability >= task.before.log_probability:
        return None
    n = 0
    last = task.before
    for power in range(_LARGEST.bit_length()):
        larger = min(len(task.probe.dims) * 2**power, len(order))
        after = task.without(mode, order[:larger])
        if after.log_probability <= reference.log_probability:
            span = last.log_probability - after.log_probability
            share = (last.log_probability - reference.log_probability) / span
            between = Judged(*(a + share * (b - a) for a, b in zip(last, after, strict=True)))
            return order[: max(1, round(n + share * (larger - n)))], between
        n, last = larger, after
    return None


def _moments(
    model: Model, sentences: list[str], state: int, bos: Bos
) -> tuple[Float[np.ndarray, " d_model"], Float[np.ndarray, " d_model"]]:
    """Mean and root mean square of every dimension over the tokens, with each sentence read by itself."""
    profile = DimensionProfile(model, token_classes(model, {"none": []}))
    text = batches(model, sentences, layout="texts", bos=settled_bos(model, bos), batch_size=_ROWS)
    observe(model, text, profile, progress=False)
    of_state = profile.table.query(f"state == {state} and key_class == 'all'").sort_values("dim")
    mean = of_state["mean"].to_numpy(copy=True)
    sd = of_state["sd"].to_numpy(copy=True)
    return mean, np.sqrt(mean**2 + sd**2)


def _matched(
    dims: Sequence[int], candidates: np.ndarray, size: Float[np.ndarray, " d_model"], rng: np.random.Generator
) -> list[int]:
    """For each dimension, the largest first, one of the unused other dimensions that are nearest in magnitude."""
    free = list(candidates)
    logs = np.log(size + 1e-12)
    matched = []
    for dim in sorted(dims, key=lambda dim: -size[dim]):
        nearest = np.argsort(np.abs(logs[free] - logs[dim]), kind="stable")[:_NEAREST]
        matched.append(int(free.pop(int(rng.choice(nearest)))))
    return matched

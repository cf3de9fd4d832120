"""Does a model itself prefer the grammatical sentence of a minimal pair, and does it need a probe's neurons for it?"""

from collections.abc import Iterator, Sequence
from itertools import chain, product

import numpy as np
import pandas as pd
import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from interp.attention.profile import DimensionProfile
from interp.checks import check_seed
from interp.corpora import batches, token_classes
from interp.corpora.batching import Batch
from interp.corpora.pairs import check_pairs
from interp.corpora.sentences import sentence_rows, tokenizer_of
from interp.declare import Mode
from interp.hooks import ablate_dims
from interp.models.identity import check_weights
from interp.models.running import HooksOfOthers, hooks_of_others, running
from interp.models.sites import Model, check_vocabulary, is_encoder, narrowing, view
from interp.models.views import Tokens
from interp.probing.group import split_pairs
from interp.probing.probes import Probe, check_probe
from interp.run.observers import forward, observe

__all__ = ["LEAST_ACCURACY", "ablation_effect", "minimal_pair_accuracy", "sentence_log_probability"]

LEAST_ACCURACY = 0.6  # of the model itself; below, there is no judgement to take away
_LOGITS_AT_ONCE = 2**21  # more are slower on a CPU
_TOKENS_AT_ONCE = 8_192
_ROWS = 64
_NEAREST = 5  # a matched neuron is drawn from the five of nearest magnitude


@torch.no_grad()
def sentence_log_probability(
    model: Model, sentences: Sequence[str], *, bos: bool | None = None, progress: bool = True
) -> Float[np.ndarray, " sentence"]:
    """The log-probability of each sentence, in nats.

    Causal models: `Σ_t log p(w_t | w_<t)`. Encoders: the pseudo-log-likelihood `Σ_t log p(w_t | w_∖t)`, each token
    masked in turn (Salazar et al. 2020, ACL, 2699-2712).

    Args:
        bos: put the beginning-of-sequence token first, so that the first token is scored too. By default what
            TransformerLens knows of the model (`cfg.default_prepend_bos`); without it the first token is
            unscored. An encoder reads `[CLS] … [SEP]`.

    Raises:
        ValueError: a model without tokenizer (or an encoder without `[MASK]`), a sentence without a token to score,
            or one longer than the context, no sentence, a tokenizer of another model.
        TypeError: what is no model, or no list of strings.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> both = ["He hurt himself.", "He hurt themselves."]
        >>> good, bad = sentence_log_probability(model, both, bos=True, progress=False)
        >>> bool(good > bad)
        True
    """
    rows = sentence_rows(model, sentences, bos=bos, least=2)
    check_vocabulary(model)
    check_weights(model)
    hooks, lengths = hooks_of_others(model), np.array([len(row) for row in rows])
    scores = np.zeros(len(rows))
    encoder = is_encoder(model)
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="scoring") as bar:
        for chosen in _together(lengths, None if encoder else model.W_U.shape[1]):
            score = _masked_scores if encoder else _scores
            scores[chosen] = score(model, [rows[i] for i in chosen], hooks).cpu().numpy()
            bar.update(len(chosen))
    if not np.isfinite(scores).all():
        raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
    return scores


def _together(lengths: NDArray[np.int64], d_vocab: int | None) -> Iterator[NDArray[np.int64]]:
    """The numbers of rows to score together, the longest first: with few enough logits, or without `d_vocab` of one
    length, with few enough tokens in the rows that masking each in turn makes."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        longest = int(lengths[order[0]])
        alike = order[lengths[order] == longest] if d_vocab is None else order
        most = _LOGITS_AT_ONCE // (longest * d_vocab) if d_vocab else _TOKENS_AT_ONCE // longest // (longest - 2)
        yield (chosen := alike[: max(1, most)])
        order = order[len(chosen) :]


def _scores(model: Model, rows: list[list[int]], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    batch = Batch.of(rows).to(model.W_U.device)
    with running(model, expected=hooks):
        logits = forward(model, batch)
    targets = batch.targets.clamp(min=0).flatten()
    nll = _nll(rearrange(logits, "row pos d_vocab -> (row pos) d_vocab"), targets)
    return -(nll.view_as(batch.targets) * (batch.targets >= 0)).sum(1)


def _masked_scores(model: Model, rows: list[list[int]], hooks: HooksOfOthers) -> Float[Tensor, " sentence"]:
    """`[CLS] … [SEP]` of one length, a row for each token between the two masked."""
    mask_id = tokenizer_of(model).mask_token_id
    if mask_id is None:
        raise ValueError("this encoder's tokenizer has no [MASK] token, so no token of a sentence can be scored")
    ids = torch.tensor(rows, device=model.W_U.device)
    n, length = ids.shape[0], ids.shape[1] - 2
    where = torch.arange(1, length + 1, device=ids.device).repeat(n)
    tokens = ids.repeat_interleave(length, 0)
    each = torch.arange(len(tokens), device=ids.device)
    tokens[each, where] = mask_id
    at_mask = [(narrowing(model), lambda activation, hook: activation[each, where][:, None])]
    with running(model, at_mask, expected=hooks):
        logits = view(model).run(Tokens(tokens, torch.ones_like(tokens)), None)[:, 0]
    return -reduce(_nll(logits, ids[:, 1:-1].flatten()), "(row pos) -> row", "sum", row=n)


def _nll(logits: Float[Tensor, "token d_vocab"], targets: Int[Tensor, " token"]) -> Float[Tensor, " token"]:
    """Surprisal in nats, float64 of what was computed in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(wide, targets, reduction="none").double()


def minimal_pair_accuracy(
    model: Model, pairs: pd.DataFrame, *, bos: bool | None = None, progress: bool = True
) -> pd.DataFrame:
    """The share of pairs of each task whose good sentence has the higher log-probability (ties are wrong).

    For encoders the pseudo-log-likelihood, which needs a row for each token.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        bos: see `sentence_log_probability`.

    Returns a table (task, accuracy, n_pairs), in the order of the tasks in `pairs`.

    Raises ValueError for a table without BLiMP's columns, TypeError for one with a missing UID, and what
    `sentence_log_probability` raises.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> minimal_pair_accuracy(model, pairs, bos=True, progress=False)["n_pairs"].tolist()
        [60]
    """
    check_pairs(pairs)
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    good, bad = np.split(sentence_log_probability(model, both, bos=bos, progress=progress), 2)
    correct = pairs.assign(correct=good > bad).groupby("UID", sort=False)["correct"]
    return correct.agg(accuracy="mean", n_pairs="size").rename_axis("task").reset_index()


def ablation_effect(
    model: Model,
    pairs: pd.DataFrame,
    probes: Sequence[Probe],
    *,
    modes: Sequence[Mode] = ("zero", "mean"),
    draws: int = 5,
    limit: int | None = None,
    bos: bool | None = None,
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Take a probe's neurons out of the residual stream: does the model still prefer the good sentence?

    The neurons are set to zero, or to their means over every token of the tested sentences, at all positions of their
    state (`interp.hooks.ablate_dims`). Beside the `found` neurons stand `draws` sets as large of other neurons, at
    `random`, and `matched`: for each found neuron one of the five unused others whose root mean square is nearest to
    its own. Tasks are skipped where the model itself prefers fewer than .6 of the good sentences, since there is no
    judgement to take away. Tested are a task's test pairs, which its probe has not seen.

    Args:
        pairs: the table that the probes' states were collected from.
        probes: from `interp.probing.probe`, one per task.
        limit: at most so many test pairs per task.
        bos: see `sentence_log_probability`.

    Returns the table `ablation` (task, state, mode, set, draw, n_neurons, magnitude, accuracy_before, accuracy_after,
    margin_before, margin_after, log_probability_before, log_probability_after, n_pairs). magnitude is the mean root
    mean square of the neurons, margin the mean of `log p(good) − log p(bad)` and log_probability the mean over all
    sentences, in nats.

    Raises ValueError for a probe of another width or of a state that the model does not have, one that reads no neuron
    or more than half of them, one whose task the pairs do not have, unknown modes, draws or a limit below 1, a seed
    outside 0 … 2**63 − 1, and as `sentence_log_probability` does.

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
    probes, modes, seed = list(probes), list(modes), check_seed(seed)
    if not modes or not set(modes) <= {"zero", "mean"}:
        raise ValueError(f"expected modes of zero, mean, found {modes}")
    if draws < 1 or (limit is not None and limit < 1):
        raise ValueError(f"draws and limit must be 1 or more, found {draws} and {limit}")
    for probe in probes:
        check_probe(model, probe)
        if not 1 <= len(probe.dims) <= model.cfg.d_model // 2:
            reads = f"reads {len(probe.dims)} of {model.cfg.d_model} neurons, expected one to half of them"
            raise ValueError(f"the probe of {probe.task} at state {probe.state} {reads}; fit it with another λ")
    tested = [pairs.iloc[split_pairs(pairs, probe.task).test[:limit]] for probe in probes]
    rows: list[tuple[object, ...]] = []
    work, disable = zip(probes, tested, strict=True), None if progress else True
    for probe, chosen in tqdm(work, "ablating", len(probes), unit="task", disable=disable):
        rows += _of_task(model, chosen, probe, modes, draws, bos, seed)
    columns = ["task", "state", "mode", "set", "draw", "n_neurons", "magnitude"]
    columns += [f"{name}_{when}" for name in ("accuracy", "margin", "log_probability") for when in ("before", "after")]
    return pd.DataFrame(rows, columns=[*columns, "n_pairs"])


def _of_task(
    model: Model, chosen: pd.DataFrame, probe: Probe, modes: Sequence[Mode], draws: int, bos: bool | None, seed: int
) -> Iterator[tuple[object, ...]]:
    sentences = [*chosen["sentence_good"], *chosen["sentence_bad"]]

    def judged() -> tuple[float, float, float]:
        scores = sentence_log_probability(model, sentences, bos=bos, progress=False)
        good, bad = np.split(scores, 2)
        return float((good > bad).mean()), float((good - bad).mean()), float(scores.mean())

    before = judged()
    if before[0] < LEAST_ACCURACY:
        return
    means, size = _moments(model, sentences, probe.state, bos)
    rng = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(len(size)), probe.dims)
    sets = [("found", 0, probe.dims)]
    for draw in range(draws):
        sets.append(("matched", draw, _matched(probe.dims, others, size, rng)))
        sets.append(("random", draw, rng.choice(others, len(probe.dims), replace=False).tolist()))
    for mode, (name, draw, dims) in product(modes, sets):
        fill = torch.from_numpy(means) if mode == "mean" else None
        with running(model, ablate_dims(model, probe.state, dims, where="residual", mode=mode, means=fill)):
            measured = chain(*zip(before, judged(), strict=True))
        magnitude = float(size[dims].mean())
        yield (probe.task, probe.state, mode, name, draw, len(dims), magnitude, *measured, len(chosen))


def _moments(
    model: Model, sentences: list[str], state: int, bos: bool | None
) -> tuple[Float[np.ndarray, " d_model"], Float[np.ndarray, " d_model"]]:
    """Mean and root mean square of every dimension over the tokens, each sentence read alone."""
    bos = (model.cfg.default_prepend_bos if bos is None else bos) and not is_encoder(model)
    profile = DimensionProfile(model, token_classes(model, None))
    observe(model, batches(model, sentences, layout="texts", bos=bos, batch_size=_ROWS), profile, progress=False)
    of_state = profile.table.query(f"state == {state} and key_class == 'all'").sort_values("dim")
    mean, sd = (of_state[name].to_numpy(copy=True) for name in ("mean", "sd"))
    return mean, np.sqrt(mean**2 + sd**2)


def _matched(
    dims: Sequence[int], others: np.ndarray, size: Float[np.ndarray, " d_model"], rng: np.random.Generator
) -> list[int]:
    """For each dimension, the largest first, one of the unused others of nearest magnitude."""
    free, logs, found = list(others), np.log(size + 1e-12), []
    for dim in sorted(dims, key=lambda dim: -size[dim]):
        nearest = np.argsort(np.abs(logs[free] - logs[dim]), kind="stable")[:_NEAREST]
        found.append(int(free.pop(int(rng.choice(nearest)))))
    return found

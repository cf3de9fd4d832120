"""The cost of probing a model, from its config and the pairs alone."""

import timeit
from collections.abc import Mapping
from typing import Any, get_args

import torch

from interp.analyses.probing.atlas.costs import atlas_pass, kept_on_disk
from interp.analyses.probing.atlas.reading import FOLDS
from interp.analyses.probing.options import ProbingOptions
from interp.analyses.probing.states import SENTENCES_PER_SHARD
from interp.analyses.probing.untrained import TWINS
from interp.corpora import pairs
from interp.corpora.controls import Swap
from interp.models.shapes import Shape, shape_with
from interp.passes.budget import Cost, Pass, setup
from interp.passes.contexts import KEPT
from interp.passes.reading import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from interp.support.choices import listed

__all__ = ["dry_run", "rate"]

_TRAIN = 0.6
_TIMED_SIZE = 1_024


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.probing.study` with these options.

    It has the bytes of hidden states, and the floating-point operations (a multiplication and an addition are two) for
    the trained and three untrained models. `forward_sentences` counts the matrix products of the blocks for all
    sentences, and `sparse` those of the L0 probes, `4 N d` per step and column (with N training sentences); `columns`
    are λ, seeds and controls. Work at only one state (transfer, general probes, rotations, ablation) is not counted,
    and neither are dense probes: random neurons take 120 of these per task and state, and more if the top ones are
    above chance. The number of tokens is estimated as 4/3 of the words, plus one that is appended. The untrained model,
    which is held in addition to the trained one, has one sparse probe per task, state and seed. An atlas reads the
    sentences once more, and those of the controls of bundled tasks.

    Raises ValueError without pairs, and the errors of `interp.corpora.pairs.load` and `interp.models.shapes.shape`.
    """
    if data is None:
        raise ValueError("--pairs is missing; expected minimal pairs, which say how many sentences there are")
    settings = ProbingOptions(
        **{key: value for key, value in options.items() if key in _OPTIONS and not callable(value)}
    )
    table = pairs.read(data, tasks=settings.tasks, limit=settings.limit, **settings.columns).table
    size = shape_with(name, options)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    lengths = [round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences]
    n_states = size.n_layers + 1 if settings.states is None else len(listed(settings.states))
    n_tasks = table["UID"].nunique()
    n_seeds = len(listed(settings.seeds)) * ("l0" in listed(settings.methods))
    controls = set(listed(settings.controls))
    columns = n_seeds * (len(listed(settings.l0_strengths)) * len(controls - {"flip"}) + len(controls & {"flip"}) + 1)
    one_state, forward = 4 * len(sentences) * size.d_model, (1 + TWINS) * sum(lengths) * size.forward
    sparse = 4.0 * _TRAIN * len(sentences) * size.d_model * columns * settings.steps * n_states
    numbers = {
        "n_states": n_states, "d_model": size.d_model, "n_tasks": n_tasks, "n_sentences": len(sentences),
        "n_tokens": sum(lengths), "columns": n_tasks * columns, "states_bytes": 2 * n_states * one_state,
        "one_state_bytes": one_state, "forward_sentences": forward, "sparse": sparse,
    }  # fmt: skip
    gib = one_state / 2**30
    speed = rate()
    hours = f"{forward / speed / 3600:,.1f} h and {sparse / speed / 3600:,.1f} h"
    lines = [
        f"{n_states} states of {size.d_model}; {n_tasks} task{'s' * (n_tasks > 1)}, {len(sentences):,} sentences, "
        f"about {sum(lengths):,} tokens",
        f"hidden states: {2 * n_states * gib:,.2f} GiB on disk, {gib:,.2f} GiB in memory",
        f"forward passes: {forward / 1e12:,.1f} TFLOP",
        f"L0 probes, {n_tasks * columns:,} per state: {sparse / 1e12:,.1f} TFLOP",
        f"a float32 matrix product runs at {speed / 1e9:,.0f} GFLOP/s here: {hours} at that rate",
    ]
    twice = setup(name, options).copied
    longest = max(lengths)
    shard = 4 * min(len(sentences), SENTENCES_PER_SHARD) * n_states * size.d_model
    read: dict[str, Any] = {"text": "sentences", "size": (max(1, TOKENS_AT_ONCE // longest), longest)}
    fitted = _fitted(size, len(sentences), n_tasks, columns)
    logits = LOGITS_AT_ONCE if size.encoder else max(LOGITS_AT_ONCE, longest * size.d_vocab)
    unembedding = 2.0 * size.d_model * size.d_vocab
    judged = Pass(
        what="sentences judged", step=2, head=True, share=0, per_batch=3 * 4 * logits, flops=unembedding, **read
    )
    untrained = Pass(what="states of an untrained model", step=1, sums=shard, copies=twice, **read)
    largest = 8 * 2 * KEPT * n_states * size.d_model
    passes = [Pass(what="states", sums=shard + largest, **read), untrained]
    if size.why_no_head:
        lines.append(f"the model's own judgements: {size.why_no_head}")
    else:
        passes.append(judged)
    if settings.atlas:
        of_each = len(get_args(Swap)) if len(pairs.bundled_tasks(table)) == n_tasks else 0  # controls
        n_mapped = n_tasks * (1 + of_each)
        rows = read["size"][0]
        passes.append(atlas_pass(size, n_tasks=n_mapped, folds=FOLDS, rows=rows, longest=longest))
        disk = kept_on_disk(size, n_tasks=n_mapped, folds=FOLDS)
        numbers |= {"n_mapped": n_mapped, "atlas_sums_bytes": passes[-1].sums, "atlas_disk_bytes": disk}
        sums = f"sums of {disk / 2**30:,.2f} GiB on disk, {passes[-1].sums / 2**30:,.2f} GiB in memory"
        lines.append(f"atlas: {n_mapped:,} tasks and controls, {sums}")
    return Cost(passes=tuple(passes), between=twice + fitted, numbers=numbers, lines=lines)


_OPTIONS = ProbingOptions.__dataclass_fields__


def _fitted(size: Shape, n_sentences: int, n_tasks: int, columns: int) -> int:
    """The bytes of the probes of a state: its vectors as collected, in parts, and rotated; the weights, gates and
    moments of each column; and dense probes in float64."""
    states = 4 * n_sentences * size.d_model
    probes = 4 * 12 * n_tasks * columns * size.d_model
    dense = 8 * 4 * _TRAIN * n_sentences * size.d_model
    return round(4 * states + probes + dense)


def rate() -> float:
    """Floating-point operations per second of a float32 matrix product of 1,024³ on this machine, on its GPU if any."""
    a = torch.randn(_TIMED_SIZE, _TIMED_SIZE, device="cuda" if torch.cuda.is_available() else "cpu")
    return 2 * _TIMED_SIZE**3 / min(timeit.repeat(lambda: float((a @ a)[0, 0]), number=1, repeat=5))

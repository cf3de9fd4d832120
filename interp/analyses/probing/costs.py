"""The cost of probing a model, from its config and the pairs alone."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from interp.analyses.probing.atlas.reading import FLIPS, FOLDS, bytes_at_once
from interp.analyses.probing.atlas.sums import BINS, bytes_of_sums
from interp.analyses.probing.equivalence import n_top
from interp.analyses.probing.options import ProbingOptions
from interp.analyses.probing.states import SENTENCES_PER_SHARD, stored_type
from interp.analyses.probing.untrained import TWINS
from interp.corpora import pairs
from interp.corpora.controls import Swap
from interp.models.shapes import Shape, shape_with
from interp.passes import moments
from interp.passes.budget import Cost, Pass, setup
from interp.passes.contexts import KEPT
from interp.passes.reading import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from interp.support.choices import listed

__all__ = ["dry_run"]

_TRAIN = 0.6


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.probing.study` with these options.

    It has the bytes of hidden states, and the floating-point operations (a multiplication and an addition are two) for
    the trained and three untrained models: the matrix products of the blocks for all sentences, and those of the L0
    probes, `4 N d` per step and column (with N training sentences; columns are λ, seeds and controls). Work at only one
    state (transfer, general probes, rotations, ablation) is not counted, and neither are dense probes: random neurons
    take 120 of these per task and state, and more if the top ones are above chance. The number of tokens is estimated
    as 4/3 of the words, plus one that is appended. The untrained model, which is held in addition to the trained one,
    has one sparse probe per task, state and seed. An atlas reads the sentences once more, and those of the controls of
    bundled tasks.

    Raises ValueError without pairs, and the errors of `interp.corpora.pairs.load` and `interp.models.shapes.shape`.
    """
    if data is None:
        raise ValueError("--pairs is missing; expected minimal pairs, which say how many sentences there are")
    known = ProbingOptions.__dataclass_fields__
    settings = ProbingOptions(**{key: value for key, value in options.items() if key in known and not callable(value)})
    table = pairs.read(data, tasks=settings.tasks, limit=settings.limit, **settings.columns).table
    size = shape_with(name, options)
    sentences = [*table["sentence_good"], *table["sentence_bad"]]
    lengths = [round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences]
    n_states = size.n_layers + 1 if settings.states is None else len(listed(settings.states))
    n_tasks = table["UID"].nunique()
    columns = n_tasks * _columns(settings)
    one_state = 4 * len(sentences) * size.d_model
    vector = stored_type(size.dtype(options.get("dtype")), settings.position).itemsize * size.d_model
    forward = (1 + TWINS) * sum(lengths) * size.forward
    sparse = _TRAIN * one_state * columns / n_tasks * settings.steps * n_states
    numbers = {
        "n_states": n_states, "n_tasks": n_tasks, "n_sentences": len(sentences), "n_tokens": sum(lengths),
        "columns": columns, "states_bytes": 2 * n_states * len(sentences) * vector,
    }  # fmt: skip
    lines = [
        f"{n_states} states of {size.d_model}; {n_tasks} task{'s' * (n_tasks > 1)}, {len(sentences):,} sentences, "
        f"about {sum(lengths):,} tokens",
        f"hidden states: {numbers['states_bytes'] / 2**30:,.2f} GiB on disk, {one_state / 2**30:,.2f} GiB in memory",
        f"forward passes: {forward / 1e12:,.1f} TFLOP",
        f"L0 probes, {columns:,} per state: {sparse / 1e12:,.1f} TFLOP",
    ]
    twice = setup(name, options).copied
    passes = _of_sentences(size, lengths, n_states, vector, twice)
    if size.why_no_head:
        lines.append(f"the model's own judgements: {size.why_no_head}")
    if settings.atlas:
        of_each = len(get_args(Swap)) if len(pairs.bundled_tasks(table)) == n_tasks else 0  # controls
        n_mapped = n_tasks * (1 + of_each)
        passes.append(_atlas(size, n_mapped, max(lengths)))
        disk = n_mapped * (bytes_of_sums(_units(size), FOLDS, FLIPS) + 8 * moments.ROWS[1] * _units(size))
        numbers |= {"n_mapped": n_mapped, "atlas_sums_bytes": passes[-1].sums, "atlas_disk_bytes": disk}
        sums = f"sums of {disk / 2**30:,.2f} GiB on disk, {passes[-1].sums / 2**30:,.2f} GiB in memory"
        lines.append(f"atlas: {n_mapped:,} tasks and controls, {sums}")
    # a state as collected, in parts, and rotated; weights, gates and moments of each column; dense probes in float64
    fitted = 4 * one_state + 4 * 12 * columns * size.d_model + 8 * round(_TRAIN * one_state)
    return Cost(passes=tuple(passes), between=twice + fitted, numbers=numbers, lines=lines)


def _columns(settings: ProbingOptions) -> int:
    """The L0 probes of a task and state, with the one of the untrained model."""
    controls = set(listed(settings.controls))
    n_seeds = len(listed(settings.seeds)) * ("l0" in listed(settings.methods))
    return n_seeds * (len(listed(settings.l0_strengths)) * len(controls - {"flip"}) + len(controls & {"flip"}) + 1)


def _of_sentences(size: Shape, lengths: Sequence[int], n_states: int, vector: int, copied: int) -> list[Pass]:
    """The passes in which states, vectors of so many bytes, are read, of the model and of untrained ones, and sentences
    judged."""
    longest = max(lengths)
    read: dict[str, Any] = {"text": "sentences", "size": (max(1, TOKENS_AT_ONCE // longest), longest)}
    shard = min(len(lengths), SENTENCES_PER_SHARD) * n_states * vector
    passes = [
        Pass(what="states", sums=shard + 8 * 2 * KEPT * n_states * size.d_model, **read),
        Pass(what="states of an untrained model", step=1, sums=shard, copies=copied, **read),
    ]
    if not size.why_no_head:
        logits = LOGITS_AT_ONCE if size.encoder else max(LOGITS_AT_ONCE, longest * size.d_vocab)
        read |= {"step": 2, "head": True, "share": 0, "flops": 2.0 * size.d_model * size.d_vocab}
        passes.append(Pass(what="sentences judged", per_batch=3 * 4 * logits, **read))
    return passes


def _atlas(size: Shape, n_tasks: int, longest: int) -> Pass:
    """The pass over the sentences of all tasks and controls. It holds the sums of the tasks that are read side by side,
    the top units of every task with labels flipped, and mean differences of the residual stream; and for a batch, the
    values of a place in float64, their bins and its histogram."""
    rows = max(1, TOKENS_AT_ONCE // longest)
    draws = 1 + FLIPS
    sets = 4 * 2 * FOLDS * draws * n_top(_units(size))
    differences = 4 * (size.n_layers + 1) * size.d_model * (draws + 2 * FOLDS)
    widest = max(size.d_mlp, size.n_heads * size.d_head)
    return Pass(
        what="units", text="sentences of units", step=3, sums=bytes_at_once(_units(size), FOLDS, n_tasks),
        copies=n_tasks * (sets + differences), per_batch=widest * (rows * (6 * 8) + 4 * 8 * FOLDS * BINS),
        size=(rows, longest),
    )  # fmt: skip


def _units(size: Shape) -> int:
    """How many residual dimensions, neurons and outputs of heads a model has."""
    return (size.n_layers + 1) * size.d_model + size.n_layers * (size.d_mlp + size.n_heads * size.d_head)

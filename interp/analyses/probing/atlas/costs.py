"""The cost of the atlas of a model, from the model's sizes."""

from interp.analyses.probing.atlas.reading import FLIPS, bytes_at_once
from interp.analyses.probing.atlas.sums import BINS, bytes_of_sums
from interp.analyses.probing.equivalence import n_top
from interp.models.shapes import Shape
from interp.passes import moments
from interp.passes.budget import Pass

__all__ = ["atlas_pass", "kept_on_disk"]


def atlas_pass(size: Shape, *, n_tasks: int, folds: int, rows: int, longest: int) -> Pass:
    """The pass over the sentences of all tasks and controls. It holds the sums of the tasks that are read side by side,
    the top units of every task with labels flipped, and mean differences of the residual stream; and for a batch, the
    values of a place in float64, their bins and its histogram."""
    kinds = _units(size)
    draws = 1 + FLIPS
    sets = sum(4 * 2 * folds * draws * n_top(number) for number in kinds.values())
    task_bytes = n_tasks * (sets + 4 * kinds["residual"] * (draws + 2 * folds))
    widest = max(size.d_mlp, size.n_heads * size.d_head)
    batch_bytes = widest * (rows * (6 * 8) + 4 * 8 * folds * BINS)
    sums = bytes_at_once(sum(kinds.values()), folds, n_tasks)
    return Pass(
        what="units",
        text="sentences of units",
        step=3,
        sums=sums,
        copies=task_bytes,
        per_batch=batch_bytes,
        size=(rows, longest),
    )


def kept_on_disk(size: Shape, *, n_tasks: int, folds: int) -> int:
    """Bytes of the checkpoints of an atlas: the sums of every task, and those that scale its histograms."""
    units = sum(_units(size).values())
    return n_tasks * (bytes_of_sums(units, folds, FLIPS) + 8 * moments.ROWS[1] * units)


def _units(size: Shape) -> dict[str, int]:
    """How many units of each kind a model has."""
    return {
        "residual": (size.n_layers + 1) * size.d_model, "neurons": size.n_layers * size.d_mlp,
        "heads": size.n_layers * size.n_heads * size.d_head,
    }  # fmt: skip

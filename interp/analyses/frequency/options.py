"""The options and the declaration of `interp frequency`."""

from collections.abc import Iterable
from typing import Any

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import CountsOptions, MaskedTextOptions
from interp.support.choices import Bias, Direction, Several

__all__ = ["ANALYSIS", "DRAWS", "FrequencyOptions"]

DRAWS = 399  # random directions of each kind


@option_class
class FrequencyOptions(CountsOptions, MaskedTextOptions):
    biases: Several[Bias] | None = option(
        default=None, help="Biases to scale. Default: all biases of the model's head."
    )
    scales: float | int | Iterable[float | int] = option(
        default=(0.0, 0.5, 1.0), help="Factors λ to multiply each bias by."
    )
    directions: Several[Direction] | None = option(
        default=None,
        help="Directions in the head's input to scale as well: its mean E[h], and the log-probability direction −A. "
        "Default: E[h] if the head has no b_LN.",
    )
    seed: int | None = option(default=None, help="Seed for masking. Default: 0.", kind="seed", least=0)


def _mask_rate(model: Any, options: dict[str, Any]) -> float | None:
    from interp.models.sites import is_encoder

    return 0.12 if is_encoder(model) else None


ANALYSIS = Analysis(
    name="frequency",
    title="Word frequency in the prediction head",
    question="What do the biases of the prediction head, or its mean input, do to word frequency?",
    help="Scales each bias of the prediction head, or its mean input if it has no b_LN, and compares predictions with "
    "unigrams.",
    reads="masked text",
    options=FrequencyOptions,
    answer="interp.analyses.frequency.tables:study",
    result="interp.analyses.frequency.tables:FrequencyStudy",
    check="interp.analyses.frequency.tables:check_asked",
    cost="interp.analyses.frequency.tables:dry_run",
    impossible="interp.analyses.frequency.tables:why_impossible",
    in_report={"scales": tuple(round(0.1 * i, 1) for i in range(11))},
    more={"directions": ("mean", "slope")},
    paper={"biases": None, "scales": (0.0, 1.0), "mask_rate": _mask_rate, "bos": "auto"},
    paper_help="each bias removed (λ = 0) or kept, 12 % of an encoder's tokens masked",
)

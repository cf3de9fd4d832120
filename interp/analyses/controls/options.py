"""The options and the declaration of `interp controls`."""

from collections.abc import Iterable

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import CountsOptions, MaskedTextOptions
from interp.support.choices import Direction, Several

__all__ = ["ANALYSIS", "ControlOptions"]


@option_class
class ControlOptions(CountsOptions, MaskedTextOptions):
    directions: Several[Direction] = option(
        default=("mean", "slope"),
        help="Directions in the head's input to compare besides b_LN: its mean E[h], and the log-probability "
        "direction −A.",
    )
    scales: float | int | Iterable[float | int] = option(
        default=(0.0,), help="Factors λ other than 1 to multiply b_LN and the directions by."
    )
    draws: int = option(default=39, help="Number of random directions of each kind, at least 39.", least=39)
    bands: int = option(
        default=5, help="Number of bands of word frequency in which to measure NLL and calibration.", least=2
    )
    seed: int | None = option(
        default=None, help="Seed for masking and all random draws. Default: 0.", kind="seed", least=0
    )


ANALYSIS = Analysis(
    name="controls",
    title="Random directions in the head's input",
    part_of="frequency",
    only_more=True,
    help="Compares b_LN, the mean input of the prediction head and its outlier dimensions with random directions.",
    reads="masked text",
    options=ControlOptions,
    answer="interp.analyses.controls.tables:study",
    result="interp.analyses.controls.tables:ControlStudy",
    check="interp.analyses.controls.tables:check_asked",
    cost="interp.analyses.controls.tables:dry_run",
    impossible="interp.analyses.controls.tables:why_impossible",
)

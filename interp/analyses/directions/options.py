"""The options and the declaration of `interp directions`."""

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import CountsOptions, MaskedTextOptions

__all__ = ["ANALYSIS", "DirectionOptions"]


@option_class
class DirectionOptions(CountsOptions, MaskedTextOptions):
    seed: int = option(
        default=0, help="Seed for masks, random rotations and the sample of tokens.", kind="seed", least=0
    )


ANALYSIS = Analysis(
    name="directions",
    title="Directions of word frequency, output embeddings and attention",
    part_of="encoding",
    only_more=True,
    help="Compares directions: word frequency, outlier dimensions, neurons, principal axes, keys of sinks.",
    reads="masked text",
    options=DirectionOptions,
    answer="interp.analyses.directions.tables:study",
    result="interp.analyses.directions.tables:DirectionStudy",
    check="interp.analyses.directions.tables:check_asked",
    cost="interp.analyses.directions.tables:dry_run",
    impossible="interp.analyses.directions.tables:why_impossible",
    lacks="interp.analyses.directions.sources:lacks",
)

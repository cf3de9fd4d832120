"""The options and the declaration of `interp units`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import PairOptions, Pairs
from interp.support.choices import Position

__all__ = ["ANALYSIS", "ControlPairs", "UnitOptions"]

if TYPE_CHECKING:
    from interp.corpora.controls import Swap

    ControlPairs: TypeAlias = Pairs | Mapping[Swap, Pairs]
else:
    ControlPairs = Any


@option_class
class UnitOptions(PairOptions):
    position: Position | None = option(
        default=None, help="Position at which a sentence is read. Default: cls for BERT, else eos."
    )
    folds: int = option(
        default=2, help="Folds of each task's pairs. The top units of a fold are compared with those of all others.",
        least=2,
    )  # fmt: skip
    control_pairs: ControlPairs | None = option(
        default=None,
        help="Pairs whose difference is not grammatical, with the tasks' names as UID: a table, or several by what is "
        "swapped (words, numbers). Default: both kinds for bundled tasks, none for others.",
        cli=dict,
    )


ANALYSIS = Analysis(
    name="units",
    title="Units that tell good sentences from bad",
    part_of="probing",
    only_more=True,
    help="Which residual dimensions, MLP neurons and heads tell good sentences from bad, and do tasks share them?",
    reads="pairs",
    options=UnitOptions,
    answer="interp.analyses.units.tables:study",
    result="interp.analyses.units.tables:UnitStudy",
    check="interp.analyses.units.tables:check_asked",
    cost="interp.analyses.units.tables:dry_run",
    unsuited="interp.analyses.units.tables:why_unsuited",
    lacks="interp.analyses.units.tables:lacks",
)

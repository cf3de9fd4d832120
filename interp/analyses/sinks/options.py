"""The options and the declaration of `interp sinks`."""

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import KeyClasses, TextOptions
from interp.support.choices import Several

__all__ = ["ANALYSIS", "SinkOptions"]


@option_class
class SinkOptions(TextOptions):
    layers: Several[int] | None = option(default=None, help="TransformerLens' block numbers. Default: all.")
    key_classes: KeyClasses = option(
        default=None,
        help="Classes of keys, as in interp attention. The class of the first position is compared with other.",
        cli=dict,
    )
    epsilon: float = option(
        default=0.3,
        help="A position is a sink if a head's mean attention to it, over queries that see it, exceeds this.",
    )
    seed: int = option(default=0, help="Seed for the rows and shuffles of the control.", kind="seed", least=0)


ANALYSIS = Analysis(
    name="sinks",
    title="Attention sinks",
    part_of="attention",
    only_more=True,
    help="Attention sinks: which heads and positions, what draws attention there, and what writes massive activations.",
    reads="text",
    options=SinkOptions,
    answer="interp.analyses.sinks.tables:study",
    result="interp.analyses.sinks.tables:SinkStudy",
    check="interp.analyses.sinks.tables:check_asked",
    cost="interp.analyses.sinks.tables:dry_run",
    impossible="interp.analyses.sinks.tables:why_impossible",
    unsuited="interp.analyses.sinks.tables:why_unsuited",
    lacks="interp.analyses.sinks.tables:lacks",
)

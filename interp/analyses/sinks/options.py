"""The options and the declaration of `interp sinks`."""

from dataclasses import dataclass

from interp.analyses.declare import Analysis, option
from interp.analyses.options import KeyClasses, TextOptions
from interp.support.choices import Several

__all__ = ["ANALYSIS", "SinkOptions"]


@dataclass(frozen=True, kw_only=True)
class SinkOptions(TextOptions):
    layers: Several[int] | None = option(None, "TransformerLens' block numbers. Default: all.")
    key_classes: KeyClasses = option(
        None,
        "Classes of keys, as in interp attention. The class of the first position is compared with other.",
        cli=dict,
    )
    epsilon: float = option(
        0.3, "A position is a sink if a head's mean attention to it, over queries that see it, exceeds this."
    )
    seed: int = option(0, "Seed for the rows and shuffles of the control.", kind="seed", least=0)


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
    cost="interp.analyses.sinks.costs:dry_run",
    impossible="interp.analyses.sinks.tables:why_impossible",
    unsuited="interp.analyses.sinks.tables:why_unsuited",
    lacks="interp.analyses.sinks.tables:lacks",
)

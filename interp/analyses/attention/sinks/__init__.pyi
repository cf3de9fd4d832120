from . import (
    findings as findings,
    positions as positions,
    writers as writers,
)
from .positions import Sinks as Sinks, fewest_queries as fewest_queries, sink_dims as sink_dims
from .writers import MassiveWriters as MassiveWriters

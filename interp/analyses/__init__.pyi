from . import (
    attention as attention,
    controls as controls,
    declare as declare,
    directions as directions,
    encoding as encoding,
    frequency as frequency,
    generation as generation,
    options as options,
    probing as probing,
    registry as registry,
    report as report,
    sinks as sinks,
    units as units,
)
from .declare import Analysis as Analysis, option as option
from .registry import load_result as load_result

from . import (
    columns as columns,
    dense as dense,
    exports as exports,
    findings as findings,
    intervals as intervals,
    latex as latex,
    result as result,
)
from .result import Result as Result, provenance as provenance

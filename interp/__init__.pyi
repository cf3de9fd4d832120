from . import (
    analyses as analyses,
    corpora as corpora,
    hooks as hooks,
    instruments as instruments,
    models as models,
    pages as pages,
    passes as passes,
    plots as plots,
    results as results,
    support as support,
    testing as testing,
)
from .analyses import (
    attention as attention,
    controls as controls,
    directions as directions,
    encoding as encoding,
    frequency as frequency,
    generation as generation,
    load_result as load_result,
    probing as probing,
    sinks as sinks,
    units as units,
)
from .analyses.report import report as report
from .models import load as load
from .passes import observe as observe
from .results import findings as findings

__version__: str

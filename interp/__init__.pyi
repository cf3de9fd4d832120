from . import (
    attention as attention,
    corpora as corpora,
    encoding as encoding,
    frequency as frequency,
    generation as generation,
    hooks as hooks,
    models as models,
    pages as pages,
    paths as paths,
    plots as plots,
    probing as probing,
    results as results,
    run as run,
    survey as survey,
)
from .models import load as load
from .results import load_result as load_result
from .run import observe as observe

__version__: str

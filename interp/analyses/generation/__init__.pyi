from . import metrics as metrics, options as options
from .metrics import text_metrics as text_metrics
from .tables import (
    GenerationStudy as GenerationStudy,
    generate as generate,
    prompts as prompts,
    study as study,
)

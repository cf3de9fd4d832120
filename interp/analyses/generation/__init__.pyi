from . import decoding as decoding, metrics as metrics, options as options
from .decoding import generate as generate, prompts as prompts
from .metrics import text_metrics as text_metrics
from .tables import GenerationStudy as GenerationStudy, study as study

from . import decoding as decoding, metrics as metrics, options as options, prompting as prompting
from .decoding import generate as generate
from .metrics import text_metrics as text_metrics
from .prompting import prompts as prompts
from .tables import GenerationStudy as GenerationStudy, study as study

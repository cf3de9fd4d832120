from .decoding import (
    PRESETS as PRESETS,
    Generation as Generation,
    generate as generate,
)
from .metrics import (
    MAUVE_MODEL as MAUVE_MODEL,
    frequent_types as frequent_types,
    mauve_scores as mauve_scores,
    text_features as text_features,
    text_metrics as text_metrics,
)
from .options import DECODERS as DECODERS, Decoder as Decoder
from .prompting import Prompts as Prompts, prompts as prompts
from .tables import GenerationStudy as GenerationStudy, study as study

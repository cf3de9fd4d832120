from .decoding import (
    DECODERS as DECODERS,
    PRESETS as PRESETS,
    Decoder as Decoder,
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
from .prompting import Prompts as Prompts, prompts as prompts
from .tables import GenerationStudy as GenerationStudy, study as study

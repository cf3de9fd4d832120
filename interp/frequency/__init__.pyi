from .tables import (
    MASK_RATE as MASK_RATE,
    BiasEffect as BiasEffect,
    bias_effect as bias_effect,
    bias_effect_passes as bias_effect_passes,
    word_frequencies as word_frequencies,
)

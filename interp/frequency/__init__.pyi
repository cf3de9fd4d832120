from . import distributions as distributions
from .tables import BiasEffect as BiasEffect, bias_effect as bias_effect, word_frequencies as word_frequencies

from . import components as components, tables as tables
from .tables import BiasEffect as BiasEffect, bias_effect as bias_effect

from . import comparisons as comparisons, rotations as rotations, sources as sources
from .tables import DirectionStudy as DirectionStudy, study as study

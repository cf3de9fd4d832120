from . import shuffled as shuffled, writers as writers
from .tables import SinkStudy as SinkStudy, study as study

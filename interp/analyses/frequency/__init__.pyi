from . import components as components, tables as tables
from .tables import FrequencyStudy as FrequencyStudy, study as study

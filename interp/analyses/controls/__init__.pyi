from . import bands as bands, draws as draws, outliers as outliers
from .tables import ControlStudy as ControlStudy, study as study

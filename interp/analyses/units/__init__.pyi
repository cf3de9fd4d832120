from .tables import UnitStudy as UnitStudy, study as study

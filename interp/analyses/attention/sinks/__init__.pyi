from . import findings as findings, writers as writers
from .writers import MassiveWriters as MassiveWriters

from . import (
    head as head,
    identity as identity,
    loading as loading,
    qk as qk,
    running as running,
    sites as sites,
)
from .loading.in_memory import as_model as as_model
from .loading.initial import untrained as untrained
from .loading.loader import load as load

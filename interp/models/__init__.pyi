from . import (
    head as head,
    identity as identity,
    in_memory as in_memory,
    initial as initial,
    loading as loading,
    pretrained as pretrained,
    qk as qk,
    running as running,
    sites as sites,
)
from .in_memory import as_model as as_model
from .initial import untrained as untrained
from .loading import load as load

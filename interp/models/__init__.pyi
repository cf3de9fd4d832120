from . import (
    head as head,
    identity as identity,
    initial as initial,
    loading as loading,
    pretrained as pretrained,
    qk as qk,
    running as running,
    sites as sites,
)
from .initial import untrained as untrained
from .loading import load as load

from . import (
    head as head,
    identity as identity,
    loading as loading,
    pretrained as pretrained,
    qk as qk,
    running as running,
    sites as sites,
)
from .loading import load as load, untrained as untrained

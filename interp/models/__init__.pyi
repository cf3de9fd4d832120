from . import head as head, qk as qk, running as running, sites as sites
from .identity import (
    Origin as Origin,
    check_weights as check_weights,
    config_hash as config_hash,
    origin as origin,
    weight_hash as weight_hash,
)
from .loading import (
    PARITY_TOLERANCE as PARITY_TOLERANCE,
    find_device as find_device,
    load as load,
    untrained as untrained,
)
from .pretrained import ARCHITECTURES as ARCHITECTURES, read_config as read_config

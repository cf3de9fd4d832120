from .loading import (
    ARCHITECTURES as ARCHITECTURES,
    PARITY_TOLERANCE as PARITY_TOLERANCE,
    Origin as Origin,
    check_weights as check_weights,
    config_hash as config_hash,
    find_device as find_device,
    load as load,
    origin as origin,
    read_config as read_config,
    untrained as untrained,
    weight_hash as weight_hash,
)

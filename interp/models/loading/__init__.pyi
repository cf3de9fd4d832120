from . import (
    assembly as assembly,
    conversion as conversion,
    drafts as drafts,
    in_memory as in_memory,
    initial as initial,
    loader as loader,
    miniature as miniature,
    pretrained as pretrained,
    spread as spread,
    streaming as streaming,
)
from .loader import load as load

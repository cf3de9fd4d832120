from . import (
    ablation as ablation,
    claims as claims,
    patterns as patterns,
    profile as profile,
    scores as scores,
    shares as shares,
)
from .ablation import ablation_effect as ablation_effect
from .patterns import attention_by_class as attention_by_class, attention_in_text as attention_in_text
from .profile import dimension_profile as dimension_profile
from .scores import score_contributions as score_contributions
from .shares import gaps as gaps
from .tables import AttentionStudy as AttentionStudy, study as study

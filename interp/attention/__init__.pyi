from .ablation import KeyAblation as KeyAblation, ablation_effect as ablation_effect
from .costs import Cost as Cost, cost as cost
from .patterns import AttentionByClass as AttentionByClass, attention_by_class as attention_by_class
from .profile import (
    DimensionCorrelations as DimensionCorrelations,
    DimensionProfile as DimensionProfile,
    dimension_profile as dimension_profile,
    find_outliers as find_outliers,
)
from .scores import (
    ScoreContributions as ScoreContributions,
    check_decomposition as check_decomposition,
    gaps as gaps,
    score_contributions as score_contributions,
    score_contributions_at as score_contributions_at,
)
from .tables import AttentionStudy as AttentionStudy, study as study
from .text import AttentionInText as AttentionInText, attention_in_text as attention_in_text

"""Functions that draw results as plotly figures. Figures are returned, not shown. They can be read in grey and by
colour-blind readers."""

import functools
import inspect
from typing import Any

from interp.analyses.attention.figures import (
    ablation,
    all_contributions,
    attention_by_layer,
    attention_view,
    contribution_table,
    contributions,
    contributions_by_layer,
    dimension_means,
    means_by_dimension,
    outlier_contributions,
    outlier_values,
)
from interp.analyses.controls.figures import bands, outlier_parts, random_directions
from interp.analyses.directions.figures import direction_cosines
from interp.analyses.encoding.figures import (
    dimension_slopes,
    dynamics,
    embedding_scatter,
    neurons,
    probability_fit,
    pruned_texts,
    pruning,
    steering,
)
from interp.analyses.frequency.figures import bias_curve, bias_ratio, frequency_writers, kl_by_scale, projection
from interp.analyses.generation.figures import TextMeasure, generation_tradeoff, text_measure
from interp.analyses.probing.across_tasks import general_probes, neuron_overlap, transfer_matrix
from interp.analyses.probing.figures import (
    beyond_words,
    gate_agreement,
    probe_ablation,
    probe_view,
    random_dims,
    random_dims_by_state,
    sparse_probes,
    token_views,
    topk_probes,
)
from interp.analyses.registry import analyses
from interp.analyses.sinks.figures import massive_writers, sink_heads, sink_positions, sink_scores
from interp.analyses.units.figures import (
    pair_similarity,
    shared_units,
    unit_consistency,
    unit_depth,
    unit_separability,
)
from interp.figures.views import show_images
from interp.results.result import Result

__all__ = [
    "TextMeasure", "ablation", "all_contributions", "attention_by_layer", "attention_view", "bands", "beyond_words",
    "bias_curve", "bias_ratio", "contribution_table", "contributions", "contributions_by_layer", "dimension_means",
    "dimension_slopes", "direction_cosines", "dynamics", "embedding_scatter", "frequency_writers",
    "gate_agreement", "general_probes", "generation_tradeoff", "kl_by_scale", "massive_writers", "means_by_dimension",
    "neuron_overlap", "neurons", "outlier_contributions", "outlier_parts", "outlier_values", "pair_similarity",
    "probability_fit", "probe_ablation", "probe_view", "projection", "pruned_texts", "pruning", "random_dims",
    "random_dims_by_state", "random_directions", "shared_units", "show_images", "sink_heads", "sink_positions",
    "sink_scores", "sparse_probes", "steering", "text_measure", "token_views", "topk_probes", "transfer_matrix",
    "unit_consistency", "unit_depth", "unit_separability",
]  # fmt: skip
__dir__ = __all__.copy


def _of_its_result(draw: Any) -> Any:
    """A plot that, given something it cannot draw, says what it can draw."""
    first = next(iter(inspect.signature(draw).parameters.values()), None)
    if first is None or not isinstance(first.annotation, type):
        return draw

    @functools.wraps(draw)
    def drawn(*given: Any, **named: Any) -> Any:
        value = given[0] if given else named.get(first.name, first.empty)
        if value is first.empty or isinstance(value, first.annotation):
            return draw(*given, **named)
        found = f"{value!r:.60}" if isinstance(value, str) else type(value).__name__
        own = " (its own figures: .figures())" if isinstance(value, Result) else ""
        places = {one.kind: one.answer.replace(".tables:", ".") for one in analyses().values()}
        makers = {kind: f" (from {place.replace('interp.analyses.', 'interp.')})" for kind, place in places.items()}
        type_name = f"{first.annotation.__name__}{makers.get(first.annotation, '')}"
        raise TypeError(f"plots.{draw.__name__} draws {type_name}; found {found}{own}")

    return drawn


for _name in set(__all__) - {"TextMeasure"}:
    globals()[_name] = _of_its_result(globals()[_name])

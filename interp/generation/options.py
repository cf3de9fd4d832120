"""The options and the declaration of `interp generation`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from interp.declare import Analysis, Bos, Layout, Several, option
from interp.options import BOS, CountsOptions

__all__ = ["ANALYSIS", "DECODERS", "Decoder", "GenerationOptions"]

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from interp.models.sites import Model
else:
    GenerationConfig = Model = Any

Decoder: TypeAlias = Literal["greedy", "beam", "sample", "top_k", "top_p"]
"""A decoder by name. `interp.generation.decoding.PRESETS` has the settings that each name stands for."""
DECODERS: tuple[Decoder, ...] = get_args(Decoder)
"""The names of decoders."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(CountsOptions):
    scales: float | int | Iterable[float | int] = option((0.0, 0.5, 1.0), "Factors λ to multiply b_LN by.")
    decoders: Several[Decoder] | Mapping[str, GenerationConfig] = option(
        DECODERS, "How the next token is chosen.", cli=Sequence[Decoder]
    )
    n: int | None = option(None, "Number of prompts, one per text. Default: 100.", least=1)
    prompt_tokens: int | None = option(None, "Tokens per prompt. Default: 10.", least=1)
    new_tokens: int | None = option(None, "Tokens to generate; shorter texts are left out. Default: 50.", least=4)
    limit: int | None = option(None, "Read only the first N texts.", least=1)
    column: str | None = option(None, "Field or column that holds the text.")
    bos: Bos = option("auto", BOS)
    features: Model | str | None = option(
        None, "Model whose features MAUVE compares (its authors use gpt2-large).", cli=str
    )
    layout: Layout | None = option(None, "Rows for measuring perplexity, as in interp frequency. Default: packed.")
    context: int | None = option(None, "Tokens per such row. Default: the model's context, at most 1,024.", least=1)
    batch_size: int = option(32, "Prompts per batch. Sampled text depends on it.", least=1)
    seed: int = option(0, "Seed for choosing prompts and for sampling.", least=0)


ANALYSIS = Analysis(
    name="generation",
    title="Generated text with b_LN scaled",
    part_of="frequency",
    help="Text generated with b_LN scaled: diversity, frequent tokens, MAUVE and perplexity for every decoder.",
    reads="prompts",
    options=GenerationOptions,
    answer="interp.generation.tables:study",
    result="interp.generation.tables:GenerationStudy",
    section="interp.generation.page:section",
    sides="interp.generation.page:sides",
    check="interp.generation.tables:check_asked",
    cost="interp.generation.costs:dry_run",
    impossible="interp.generation.decoding:why_impossible",
    paper={"scales": tuple(round(0.1 * i, 1) for i in range(11)), "decoders": DECODERS, "n": 100, "bos": "auto"},
    paper_help="100 prompts, λ = 0, 0.1 … 1, five decoders",
)

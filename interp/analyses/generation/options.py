"""The options and the declaration of `interp generation`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import BOS, CountsOptions
from interp.instruments.decoders import DECODERS, Decoder
from interp.support.choices import Bos, Scaled, Several, listed

__all__ = ["ANALYSIS", "GenerationOptions", "check_asked"]
__dir__ = __all__.copy

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from interp.models.sites import Model
else:
    GenerationConfig = Model = Any


@option_class
class GenerationOptions(CountsOptions):
    scales: float | int | Iterable[float | int] = option(default=(0.0, 0.5, 1.0), help="Factors λ to multiply by.")
    scaled: Scaled | None = option(
        default=None, help="What is multiplied: b_LN (ln), or E[h] (mean), the default without b_LN."
    )
    decoders: Several[Decoder] | Mapping[str, GenerationConfig] = option(
        default=DECODERS, help="How the next token is chosen.", cli=Sequence[Decoder]
    )
    n: int | None = option(default=None, help="Number of prompts, one per text. Default: 100.", kind="n", least=1)
    prompt_tokens: int | None = option(
        default=None, help="Tokens per prompt. Default: 10.", kind="prompt_tokens", least=1
    )
    new_tokens: int | None = option(
        default=None, help="Tokens to generate; shorter texts are left out. Default: 50.", kind="new_tokens", least=4
    )
    limit: int | None = option(default=None, help="Read only the first N texts.", kind="limit", least=1)
    column: str | None = option(default=None, help="Field or column that holds the text.", kind="column")
    bos: Bos = option(default="auto", help=BOS, kind="bos")
    features: Model | str | None = option(
        default=None, help="Model whose features MAUVE compares (its authors use gpt2-large).", kind="model", cli=str
    )
    context: int | None = option(
        default=None,
        help="Tokens per row for measuring perplexity. Default: the model's context, at most 1,024.",
        kind="context",
        least=1,
    )
    batch_size: int | None = option(
        default=None,
        help="Prompts per batch. Default: as many as 8,192 tokens hold. Sampled text depends on it.",
        kind="batch_size",
        least=1,
    )
    seed: int = option(default=0, help="Seed for choosing prompts and for sampling.", kind="seed", least=0)


def check_asked(options: GenerationOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model, and for MAUVE where it is not
    installed."""
    from interp.analyses.generation.findings import HUMAN
    from interp.support.checks import check_choice, check_scales, check_seed, whole_number
    from interp.support.paths import check_mauve

    if options.features is not None:
        check_mauve()
    if options.batch_size is not None:
        whole_number(options.batch_size, "batch_size", least=1)
    check_seed(options.seed)
    check_scales(options.scales)
    if options.scaled is not None:
        check_choice("scaled", options.scaled, get_args(Scaled))
    names = listed(options.decoders)
    choices = set(names) - {HUMAN} if isinstance(options.decoders, Mapping) else set(DECODERS)
    if not names or not set(names) <= choices:
        alternative = f"or configs with names other than {HUMAN!r}"
        raise ValueError(f"expected decoders of {', '.join(DECODERS)}, {alternative}; found {options.decoders!r}")


ANALYSIS = Analysis(
    name="generation",
    title="Generated text with b_LN or E[h] scaled",
    part_of="frequency",
    help="Text generated with b_LN or E[h] scaled: diversity, frequent tokens, MAUVE and perplexity for every decoder.",
    reads="prompts",
    options=GenerationOptions,
    answer="interp.analyses.generation.tables:study",
    result="interp.analyses.generation.tables:GenerationStudy",
    check="interp.analyses.generation.options:check_asked",
    cost="interp.analyses.generation.tables:dry_run",
    impossible="interp.analyses.generation.tables:why_impossible",
    in_report={"scaled": "ln", "decoders": tuple(name for name in DECODERS if name != "beam")},
    more={"scaled": None, "decoders": DECODERS},
    paper={
        "scaled": "ln",
        "scales": tuple(round(0.1 * i, 1) for i in range(11)),
        "decoders": DECODERS,
        "n": 100,
        "bos": "auto",
    },
    paper_help="100 prompts, λ = 0, 0.1 … 1, five decoders",
)

"""The options and the declaration of `interp encoding`."""

from typing import TYPE_CHECKING, Any, Literal, get_args

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import CountsOptions, MaskedTextOptions, Text
from interp.support.choices import Several

__all__ = ["ANALYSIS", "RATIOS", "Basis", "EncodingOptions", "Order", "Shift", "Weights"]

if TYPE_CHECKING:
    from interp.instruments.prompts import Prompts
else:
    Prompts = Any

Order = Literal["spearman", "slope", "random", "reverse"]
Basis = Literal["axis", "pca"]
Shift = Literal["exact", "constant", "regression"]
Weights = Literal["least_norm", "weighted", "top"]
RATIOS = (1 / 20, 1 / 10, 1 / 5, 1 / 2, 2, 5, 10, 20)


@option_class
class EncodingOptions(CountsOptions, MaskedTextOptions):
    other: Text | None = option(
        default=None, help="Text not used for the fit, to steer on; read like the corpus.", kind="corpus", cli=str
    )
    orders: Several[Order] = option(default=get_args(Order), help="Orders in which dimensions are removed.")
    bases: Several[Basis] = option(default=get_args(Basis), help="Bases in which dimensions are removed.")
    shifts: Several[Shift] = option(
        default=get_args(Shift), help="How a token's logit is shifted to steer its probability."
    )
    weights: Several[Weights] = option(
        default=("least_norm",), help="How the regression's shift is distributed over dimensions."
    )
    ratios: Several[float | int] = option(default=RATIOS, help="Factors by which a token's probability should change.")
    prompts: Prompts | int | None = option(
        default=None,
        help="Number of prompts from the text to continue without some dimensions. Default: none.",
        least=1,
        cli=int,
    )
    steps: Several[int] | None = option(default=None, help="Training steps whose checkpoints are also studied.")
    untrained: bool = option(
        default=False,
        help="Compare with three untrained models whose token probabilities vary as much; reads the text again.",
    )
    seed: int = option(
        default=0,
        help="Seed for masks, random orders, null distributions and the sample of tokens.",
        kind="seed",
        least=0,
    )


ANALYSIS = Analysis(
    name="encoding",
    title="Token probability in output embeddings",
    question="How do output embeddings encode token probability?",
    help="Regression on the output embeddings, pruning, steering and neurons.",
    reads="masked text",
    options=EncodingOptions,
    answer="interp.analyses.encoding.tables:study",
    result="interp.analyses.encoding.tables:EncodingStudy",
    check="interp.analyses.encoding.tables:check_asked",
    cost="interp.analyses.encoding.tables:dry_run",
    impossible="interp.analyses.encoding.tables:why_impossible",
    lacks="interp.analyses.encoding.tables:lacks",
    more={"untrained": True},
    paper={"orders": ("spearman", "random"), "bases": ("axis",), "shifts": ("regression",), "bos": "auto"},
    paper_help="axes removed by |Spearman| and in random order, steering by the regression",
)

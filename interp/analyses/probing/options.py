"""The options and the declaration of `interp probing`."""

from typing import Any, Literal, get_args

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import PairOptions
from interp.support.choices import Position, Several

__all__ = ["ANALYSIS", "KS", "L0_STRENGTHS", "METHODS", "ROTATIONS", "SEEDS", "STEPS", "Control", "Method"]
__all__ += ["ProbingOptions", "Scaling", "Score"]

Method = Literal["l0", "topk", "random", "dense"]
Control = Literal["none", "flip", "rotation"]
Scaling = Literal["standard", "rms", "none"]
Score = Literal["sum", "per_token", "per_character", "per_byte"]
L0_STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
KS = (1, 2, 5, 10, 20, 40)
SEEDS = (0, 1, 2, 3, 4)
STEPS = 1_000
ROTATIONS = 39
METHODS: tuple[Method, ...] = get_args(Method)

_PAPER_STATE = 16
_PAPER_KS = (1, 2, 4, 8, 16, 32, 40, 64, 128, 256, 512, 1024)


def _state(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


@option_class
class ProbingOptions(PairOptions):
    states: Several[int] | None = option(
        default=None, help="Hidden states: 0 (embeddings) to the number of layers. Default: all."
    )
    state: int | Literal["best"] = option(
        default="best",
        help="Hidden state at which tasks are compared and neurons removed; best: where dense probes "
        "are most accurate.",
        cli=_state,
    )
    position: Position | None = option(
        default=None, help="Position at which a sentence is read. Default: cls for BERT, else eos."
    )
    methods: Several[Method] = option(default=METHODS, help="Probes to fit.")
    l0_strengths: Several[float | int] = option(
        default=L0_STRENGTHS, help="λ of the L0 probes; a small λ leaves few gates open."
    )
    ks: Several[int] | None = option(
        default=None, help="k of the top-k probes. Default: 1,2,5,10,20,40, up to the width."
    )
    seeds: Several[int] = option(default=SEEDS, help="Seeds for the weights, the gates and their noise.", kind="seed")
    controls: Several[Control] = option(
        default=get_args(Control), help="Controls to fit as well: labels flipped; random rotations of the states."
    )
    scaling: Scaling = option(
        default="standard",
        help="Fit on standardised states, on states divided by their root mean square (rms), or as they are (none).",
    )
    whole_words: bool = option(
        default=False,
        help="Score whole words: BERT reads the whole word masked; for a decoder, the end of the word counts too.",
    )
    steps: int = option(default=STEPS, help="Gradient steps of the L0 probes.", least=1)
    by_perplexity: bool = option(
        default=False,
        help="Compare removed neurons also with random ones that cost as much perplexity, which takes several times as "
        "long.",
    )


def _ks(model: Any, options: dict[str, Any]) -> list[int]:
    return [k for k in _PAPER_KS if k <= model.cfg.d_model]


def _paper_state(model: Any, options: dict[str, Any]) -> int:
    known = list(options.get("states") or range(model.cfg.n_layers + 1))
    return _PAPER_STATE if _PAPER_STATE in known else known[len(known) // 2]


ANALYSIS = Analysis(
    name="probing",
    title="Sparse probes for grammar",
    question="Which few neurons hold a grammatical distinction?",
    help="Which few neurons of the residual stream tell good sentences from bad?",
    reads="pairs",
    options=ProbingOptions,
    answer="interp.analyses.probing.tables:study",
    result="interp.analyses.probing.tables:ProbingStudy",
    check="interp.analyses.probing.tables:check_asked",
    cost="interp.analyses.probing.tables:dry_run",
    in_report={"controls": ("none", "flip")},
    more={"controls": get_args(Control), "by_perplexity": True},
    paper={
        "scaling": "none",
        "ks": _ks,
        "state": _paper_state,
        "controls": ("none", "rotation"),
        "bos": "auto",
    },
    paper_help="raw states in the model's unit, k up to 1,024, transfer at state 16, no flipped labels",
)

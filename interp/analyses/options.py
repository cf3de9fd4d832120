"""The options that analyses share: how to load a model and how to read text. Imports nothing heavy."""

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from interp.analyses.declare import Options, kinds, option, option_class
from interp.support.choices import Backend, Bos, Dtype, Layout, Several, Spread

__all__ = ["BOS", "CORPUS", "PAIRS", "Counts", "CountsOptions", "KeyClasses", "MaskedTextOptions", "ModelOptions"]
__all__ += ["PairColumns", "PairOptions", "Pairs", "Text", "TextOptions"]
__dir__ = __all__.copy

if TYPE_CHECKING:
    import pandas as pd

    from interp.corpora.batching import Text as Text
    from interp.corpora.classes import KeyClasses as KeyClasses
    from interp.corpora.counts import Counts as Counts

    Pairs: TypeAlias = pd.DataFrame | str | os.PathLike[str]
else:
    Text = KeyClasses = Counts = Pairs = Any

PAIRS = (
    "Minimal pairs: file (.jsonl, .json, .csv, .tsv, .parquet, .gz), directory of .jsonl, 'blimp', 'jblimp', "
    "'multiblimp/LANGUAGE' (deu, hin …) or 'bundled'."
)
BOS = (
    "Put the beginning-of-sequence token before each row and each text, or nowhere. Default: before each row, if the "
    "tokenizer itself begins a text with it."
)
CORPUS = "File (.txt, .jsonl, .json, .csv, .tsv, .parquet, .gz of these), a named corpus, or 'bundled'."


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


@option_class
class TextOptions(Options):
    """How text is read. None means the default of `interp.corpora.batches`, or however the batches were made."""

    limit: int | None = option(default=None, help="Read only the first N texts.", kind="limit", least=1)
    column: str | None = option(default=None, help="Field or column that holds the text.", kind="column")
    separator: str | None = option(
        default=None,
        help=r"Text to insert after each text, such as '\n' after the lines of a document.",
        kind="separator",
        cli=_unescaped,
    )
    bos: Bos = option(default="auto", help=BOS, kind="bos")
    layout: Layout | None = option(
        default=None,
        help="packed: rows of joined texts; texts: one text per row. Default: texts for encoders, else packed.",
        kind="layout",
    )
    context: int | None = option(
        default=None, help="Tokens per row. Default: the model's context, at most 1,024.", kind="context", least=1
    )
    batch_size: int | None = option(default=None, help="Rows per forward pass.", kind="batch_size", least=1)

    @property
    def text(self) -> dict[str, Any]:
        """The options that were given, as arguments of `interp.corpora.batches`."""
        own_kinds = kinds(type(self))
        reading = kinds(TextOptions).values()
        values = {}
        for name, kind in own_kinds.items():
            if kind in reading and getattr(self, name) is not None:
                values[kind] = getattr(self, name)
        return values


@option_class
class MaskedTextOptions(TextOptions):
    """How text is read when an encoder predicts masked tokens in it."""

    mask_rate: float | None = option(
        default=None, help="Share of tokens that an encoder reads as [MASK]. Default: 0.12."
    )


@option_class
class PairColumns(Options):
    """The columns of a table of minimal pairs; see `interp.corpora.pairs.load`."""

    good: str | None = option(
        default=None, help="Column of the good sentences, if its name is not one of the published ones.", kind="good"
    )
    bad: str | None = option(default=None, help="Column of the bad sentences.", kind="bad")
    task: str | None = option(default=None, help="Column with the task that each pair belongs to.", kind="task")

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that were named, as arguments of `interp.corpora.pairs.load`."""
        own_kinds = kinds(type(self))
        columns = kinds(PairColumns).values()
        return {kind: getattr(self, name) for name, kind in own_kinds.items() if kind in columns}


@option_class
class PairOptions(PairColumns):
    """Which minimal pairs are read, and how."""

    tasks: Several[str] | None = option(default=None, help="Names of tasks. Default: all.", kind="tasks")
    limit: int | None = option(default=None, help="Read only the first N pairs of each task.", kind="limit", least=1)
    bos: Bos = option(default="auto", help=BOS, kind="bos")


@option_class
class CountsOptions(Options):
    """The word frequencies that predictions are compared with."""

    unigram: Counts | None = option(
        default=None,
        help="Token counts: a file, or a text to count. Default: the model's own, else the text's.",
        kind="counts",
        cli=str,
    )


@option_class
class ModelOptions:
    """How a model is loaded: the keyword arguments of `interp.load`."""

    device: str | None = option(default=None, help="cpu, cuda, …  Default: cuda if available.")
    device_map: Spread | None = option(default=None, help="Spread a bridge over the GPUs, by accelerate.")
    dtype: Dtype | None = option(default=None, help="Type of the weights; auto: as stored. Default: float32.")
    backend: Backend | None = option(
        default=None,
        help="hooked: TransformerLens' own model; bridge: transformers' model. Default: hooked if there is one.",
    )
    revision: str | None = option(default=None, help="Branch, tag or commit of a hub repository.")
    checkpoint: int | None = option(default=None, help="Training step, for Pythia and Stanford's GPT-2s.", least=0)
    adapter: str | None = option(
        default=None, help="Directory of an adapter of PEFT to merge into the weights, such as LoRA."
    )

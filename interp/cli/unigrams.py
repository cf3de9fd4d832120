"""`interp unigrams`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from interp.cli.options import ColumnOption, CorpusOption, LimitOption, ModelOption, SeparatorOption, unescaped
from interp.paths import check_output, corpus_file, model_directory


def unigrams(
    model: ModelOption,
    corpus: CorpusOption,
    out: Annotated[Path, typer.Option(help="File to write the counts to (.safetensors).", show_default=False)],
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Count a corpus's tokens with a model's tokenizer, for --unigram."""
    model_directory(model)
    corpus_file(corpus)
    if out.suffix != ".safetensors":
        raise ValueError(f"--out {str(out)!r} must end in .safetensors")
    check_output(out.parent, out.name, overwrite=overwrite)

    from interp import corpora, models

    source = corpora.load(corpus, limit=limit, column=column, separator=unescaped(separator))
    counts = corpora.count_unigrams(models.load(model), source, processes=os.cpu_count() or 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    counts.save(out)
    typer.echo(f"{counts.n_tokens:,} tokens of {int((counts.counts > 0).sum()):,} types written to {out}")

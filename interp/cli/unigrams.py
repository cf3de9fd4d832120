"""`interp unigrams`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from interp.cli.options import (
    ColumnOption,
    CorpusOption,
    JsonOption,
    LimitOption,
    ModelOption,
    SeparatorOption,
    unescaped,
)
from interp.cli.output import check_writable
from interp.paths import corpus_file, model_directory


def unigrams(
    model: ModelOption,
    corpus: CorpusOption,
    out: Annotated[Path, typer.Option(help="File to write the counts to (.safetensors).", show_default=False)],
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count a corpus's tokens, for --unigram."""
    model_directory(model)
    corpus_file(corpus)
    if out.suffix != ".safetensors":
        raise ValueError(f"--out {str(out)!r} must end in .safetensors")
    if out.is_dir():
        raise IsADirectoryError(f"--out {str(out)!r} is a directory; expected the name of a file")
    check_writable(out.parent)
    if os.path.lexists(out) and not overwrite:
        raise FileExistsError(f"{out} already exists; choose another --out or add --overwrite")

    from interp import corpora, models

    source = corpora.load(corpus, limit=limit, column=column, separator=unescaped(separator))
    counts = corpora.count_unigrams(models.load(model), source, processes=os.cpu_count() or 1)
    counts.save(out)
    n_types = int((counts.counts > 0).sum())
    if as_json:
        typer.echo(json.dumps({"n_tokens": counts.n_tokens, "n_types": n_types, "written": str(out)}))
    else:
        typer.echo(f"{counts.n_tokens:,} tokens of {n_types:,} types written to {out}")

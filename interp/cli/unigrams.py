"""`interp unigrams`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli import flags
from interp.cli.output import check_writable
from interp.corpora.options import CORPUS, TextOptions
from interp.models.options import ModelOptions
from interp.paths import corpus_file, model_directory

_OF_PASSES = ("bos", "layout", "context", "batch_size", "dtype", "device")


@flags.with_flags(*flags.parameters(TextOptions, ModelOptions, without=_OF_PASSES))
def unigrams(
    model: flags.ModelFlag,
    corpus: Annotated[str, typer.Option(help=CORPUS, autocompletion=flags.complete_corpus)],
    out: Annotated[Path, typer.Option(help="File to write the counts to (.safetensors).")],
    *,
    overwrite: flags.OverwriteFlag = False,
    as_json: flags.JsonFlag = False,
    **given: Any,
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

    source = corpora.load(corpus, **flags.read(TextOptions, given))
    loaded = models.load(model, **flags.read(ModelOptions, given))
    counts = corpora.count_unigrams(loaded, source, processes=os.cpu_count() or 1)
    counts.save(out)
    n_types = int((counts.counts > 0).sum())
    if as_json:
        typer.echo(json.dumps({"n_tokens": counts.n_tokens, "n_types": n_types, "written": str(out)}))
    else:
        typer.echo(f"{counts.n_tokens:,} tokens of {n_types:,} types written to {out}")

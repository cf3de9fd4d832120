"""`interp unigrams`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.flags import (
    JsonFlag,
    ModelFlag,
    OverwriteFlag,
    complete_corpus,
    parameter,
    parameters,
    read,
    with_signature,
)
from interp.cli.jobs import check_alone
from interp.cli.output import check_writable
from interp.corpora.options import CORPUS, TextOptions
from interp.models.options import ModelOptions
from interp.paths import corpus_file, model_directory

_OF_ROWS = ("bos", "layout", "context", "batch_size")


def unigrams_command() -> Callable[..., None]:
    """What `interp unigrams` calls."""
    out = typer.Option(help="File to write the counts to (.safetensors).", show_default=False)
    corpus = typer.Option(help=CORPUS, show_default=False, autocompletion=complete_corpus)
    given = [
        parameter("model", ModelFlag),
        parameter("corpus", Annotated[str, corpus]),
        parameter("out", Annotated[Path, out]),
        *parameters(TextOptions, without=_OF_ROWS),
        *parameters(ModelOptions, without=("dtype", "device")),
        parameter("overwrite", OverwriteFlag, False),
        parameter("as_json", JsonFlag, False),
    ]
    return with_signature(_unigrams, "unigrams", "Count a corpus's tokens, for --unigram.", given)


def _unigrams(*, model: str, corpus: str, out: Path, overwrite: bool, as_json: bool, **given: Any) -> None:
    check_alone("unigrams")
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

    source = corpora.load(corpus, **read(TextOptions, given))
    loaded = models.load(model, **read(ModelOptions, given))
    counts = corpora.count_unigrams(loaded, source, processes=os.cpu_count() or 1)
    counts.save(out)
    n_types = int((counts.counts > 0).sum())
    if as_json:
        typer.echo(json.dumps({"n_tokens": counts.n_tokens, "n_types": n_types, "written": str(out)}))
    else:
        typer.echo(f"{counts.n_tokens:,} tokens of {n_types:,} types written to {out}")

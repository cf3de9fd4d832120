"""`interp encoding`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.options import (
    MAX_SEED,
    ColumnOption,
    CorpusOption,
    JsonOption,
    LimitOption,
    ModelOption,
    OutOption,
    SeparatorOption,
    UnigramOption,
    check_counts,
    unescaped,
)
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.disk.marks import check_page
from interp.paths import corpus_file, model_directory


def encoding(
    model: ModelOption,
    corpus: CorpusOption,
    out: OutOption,
    other: Annotated[
        str | None, typer.Option(help="Text the fit has not seen, to steer on; read like --corpus.")
    ] = None,
    unigram: UnigramOption = None,
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each text.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    seed: Annotated[
        int, typer.Option(help="Of masks, random orders, nulls and the sample of tokens.", min=0, max=MAX_SEED)
    ] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's: axes by |Spearman| and at random, steering by the regression.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Token probability in output embeddings.

    Regression, pruning, steering, directions, neurons. Writes DIR/encoding/*.parquet, result.json and
    DIR/index.html. A run that was killed goes on where it was.
    """
    model_directory(model)
    for text in (corpus, other):
        if text is not None:
            corpus_file(text)
    check_counts(unigram)
    check_output(out, "encoding", overwrite=overwrite)
    check_page(out)

    from interp import corpora, models, pages
    from interp.encoding.tables import study
    from interp.frequency import MASK_RATE
    from interp.models.sites import is_encoder

    with progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    mask_rate = MASK_RATE if is_encoder(loaded) else None
    sources = [
        None if text is None else corpora.load(text, limit=limit, column=column, separator=unescaped(separator))
        for text in (corpus, other)
    ]
    batches, unseen = (
        None
        if source is None
        else corpora.batches(loaded, source, bos=bos, batch_size=batch_size, mask_rate=mask_rate, seed=seed)
        for source in sources
    )
    options: Any = {"orders": ["spearman", "random"], "bases": ["axis"], "modes": ["regression"]} if paper else {}
    assert batches is not None
    with unfinished(out, "encoding") as directory:
        found = study(loaded, batches, other=unseen, unigram=unigram, seed=seed, directory=directory, **options)
        save({out: [found]}, directory)
        page = pages.write_page(out)
    where = f"{Path(model).name} on {Path(corpus).name}"
    removable, error = found.removable, found.steering_error
    tables = {
        "regression": (f"−log α on the output embeddings: {where}", found.regression),
        "removable": ("fraction of dimensions removed before top-1 agreement falls", removable),
        "steering": ("steering, ratios 1/5 to 5: median |log(got/asked)|", error),
    }
    show(tables, page, as_json=as_json)

"""`interp frequency`."""

import os
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
    is_counts,
    items,
    parse_scales,
    unescaped,
)
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.disk.marks import check_page
from interp.paths import corpus_file, model_directory

_BIASES = ("ln", "fc", "last")


def frequency(
    model: ModelOption,
    corpus: CorpusOption,
    out: OutOption,
    unigram: Annotated[
        str | None,
        typer.Option(help="File of token counts, or a corpus (read like --corpus). Default: shipped, else --corpus."),
    ] = None,
    biases: Annotated[str | None, typer.Option(help="Of ln,fc,last. Default: all the model has.")] = None,
    scales: Annotated[str | None, typer.Option(help="λ to scale by: 0,0.5,1 or 0:1:0.1.  [default: 0,0.5,1]")] = None,
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each text.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    mask_rate: Annotated[float | None, typer.Option(help="Share an encoder reads as [MASK].  [default: 0.12]")] = None,
    seed: Annotated[int, typer.Option(help="Of the masking.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's protocol: each bias removed (λ = 0) or kept, 12 % masked.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Word frequency in the prediction head.

    Scales each bias and compares predictions with unigrams. Writes DIR/frequency/*.parquet, result.json and
    DIR/index.html. A run that was killed goes on where it was.
    """
    if paper and (scales is not None or mask_rate is not None or biases is not None):
        raise ValueError("--paper sets --biases, --scales and --mask-rate itself; leave them out")
    chosen_scales = parse_scales("0,1" if paper else "0,0.5,1" if scales is None else scales)
    chosen_biases: Any = None if biases is None else items(biases, "--biases", _BIASES)
    model_directory(model)
    corpus_file(corpus)
    if unigram is not None and not is_counts(unigram):
        corpus_file(unigram)
    check_output(out, "frequency", overwrite=overwrite)
    check_page(out)

    from interp import corpora, models, pages
    from interp.frequency import MASK_RATE, bias_effect
    from interp.models.sites import is_encoder

    with progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    source = corpora.load(corpus, limit=limit, column=column, separator=unescaped(separator))
    if is_encoder(loaded) and mask_rate is None:
        mask_rate = MASK_RATE
    batches = corpora.batches(
        loaded,
        source,
        bos=bos,
        batch_size=batch_size,
        mask_rate=mask_rate,
        seed=seed,
    )
    counts: Any = unigram
    if unigram is not None and not is_counts(unigram):
        text = corpora.load(unigram, column=column, separator=unescaped(separator))
        counts = corpora.count_unigrams(loaded, text, processes=os.cpu_count() or 1)
    with unfinished(out, "frequency") as directory:
        effect = bias_effect(
            loaded, batches, unigram=counts, biases=chosen_biases, scales=chosen_scales, directory=directory
        )
        save({out: [effect]}, directory)
        page = pages.write_page(out)
    columns = ["bias", "scale", "kl_unigram_model", "kl_model_unigram", "js", "perplexity", "balanced_nll", "n_tokens"]
    show({"kl": (f"{Path(model).name} on {source.name}", effect.kl[columns])}, page, as_json=as_json)

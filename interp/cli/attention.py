"""`interp attention`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from interp.cli.options import (
    MAX_SEED,
    ColumnOption,
    JsonOption,
    LimitOption,
    ModelOption,
    SeparatorOption,
    UnigramOption,
    check_counts,
    parse_layers,
    unescaped,
)
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.disk.marks import check_page
from interp.paths import corpus_file, model_directory


def attention(
    model: ModelOption,
    corpus: Annotated[str | None, typer.Option(help="As for frequency; --paper takes 'stsb' if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to.")] = None,
    layers: Annotated[str | None, typer.Option(help="TransformerLens' block numbers: 0,5.  [default: all]")] = None,
    unigram: UnigramOption = None,
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each text.")] = False,
    scaled: Annotated[bool, typer.Option("--scaled", help="Contributions in nats: divided by √d_head.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of random dimensions and of --paper's sample.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's: STS-B sentences, contributions of 100 of them, layers from 1.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print memory and FLOPs from the config alone.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Attention scores by residual dimension.

    Contributions, outlier dimensions, and what removing them does to attention. Writes DIR/attention/*.parquet,
    result.json and DIR/index.html. A run that was killed goes on where it was.
    """
    model_directory(model, weights=not dry_run)
    if dry_run:
        if layers is not None:
            raise ValueError("--dry-run counts all layers; leave --layers out")
        _print_cost(model, as_json)
        return
    if corpus is None and not paper:
        raise ValueError("--corpus is missing; expected a file, a named corpus or 'bundled'")
    if out is None:
        raise ValueError("--out is missing; expected a directory to write to")
    if paper and scaled:
        raise ValueError("--paper gives contributions unscaled, as the paper does; leave --scaled out")
    chosen = parse_layers(layers)
    corpus = corpus or "stsb"
    corpus_file(corpus)
    check_counts(unigram)
    check_output(out, "attention", overwrite=overwrite)
    check_page(out)

    from interp import corpora, models, pages
    from interp.attention.tables import study

    with progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    source = corpora.load(corpus, limit=limit, column=column, separator=unescaped(separator))
    batches = corpora.batches(loaded, source, bos=bos, batch_size=batch_size)
    sample = 100 if paper else None
    with unfinished(out, "attention") as directory:
        found = study(
            loaded, batches, layers=chosen, scaled=scaled, unigram=unigram, sample=sample, seed=seed,
            directory=directory,
        )  # fmt: skip
        save({out: [found]}, directory)
        page = pages.write_page(out)
    by_layer = found.attention.groupby(["layer", "key_class"], sort=False)["sum"].mean().unstack().reset_index()
    where = f"{Path(model).name} on {source.name}"
    if paper:
        by_layer["layer"] += 1
    tables = {
        "attention": (f"attention by class of the key, mean over heads: {where}", by_layer),
        "outliers": (f"outlier dimensions: {where}", found.outliers),
    }
    show(tables, page, as_json=as_json)


def _print_cost(model: str, as_json: bool) -> None:
    from interp.attention.costs import cost

    found = cost(model)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    typer.echo(
        f"{model}: {found.n_layers} layers, {found.n_heads} heads, d_model {found.d_model}, {found.n_classes} classes\n"
        f"sums of contributions: {found.contribution_bytes / 2**20:,.0f} MiB\n"
        f"sums of the dimension profiles: {found.profile_bytes / 2**20:,.0f} MiB\n"
        f"blocks of the forward pass: {found.forward / 1e9:,.3f} GFLOP a token\n"
        f"mean contributions: {found.contributions / 1e9:,.3f} GFLOP a token\n"
        f"key-centred contributions: {found.centred / 1e9:,.3f} GFLOP a token\n"
        f"together {found.ratio:.1%} of the forward pass\n"
        f"table scores: {found.rows:,} rows"
    )

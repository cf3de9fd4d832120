"""`interp generate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.options import (
    MAX_SEED,
    ColumnOption,
    JsonOption,
    ModelOption,
    OutOption,
    UnigramOption,
    check_counts,
    items,
    parse_scales,
)
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.disk.marks import check_page
from interp.paths import check_mauve, corpus_file, model_directory

_DECODERS = ("greedy", "beam", "sample", "top_k", "top_p")
_SHOWN = ["decoder", "scale", "diversity", "diversity_se", "perplexity", "mauve_mean", "mauve_sd", "frequent_share"]
_SHOWN += ["repetition", "n_tokens"]


def generate(
    model: ModelOption,
    prompts: Annotated[
        str,
        typer.Option(help="Text to cut prompts from: a file, a named corpus, or 'bundled'.", show_default=False),
    ],
    out: OutOption,
    scales: Annotated[
        str | None, typer.Option(help="λ to scale b_LN by: 0,0.5,1 or 0:1:0.1.  [default: 0,0.5,1]")
    ] = None,
    decoders: Annotated[str | None, typer.Option(help=f"Of {','.join(_DECODERS)}.  [default: all]")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Prompts: one a text.  [default: 100]", min=1)] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.", min=1)] = 10,
    new_tokens: Annotated[int, typer.Option(help="Tokens to write; shorter texts are left out.", min=4)] = 50,
    unigram: UnigramOption = None,
    features: Annotated[
        str | None, typer.Option(help="Compute MAUVE with the features of this model (upstream: gpt2-large).")
    ] = None,
    column: ColumnOption = None,
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each prompt.")] = False,
    batch_size: Annotated[int, typer.Option(help="Prompts at once; what is sampled depends on it.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Of the sampling.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's protocol: 100 prompts, λ = 0, 0.1 … 1, five decoders.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Text generated with b_LN scaled.

    Diversity, frequent tokens, MAUVE and perplexity, by every decoder. Writes DIR/generation/*.parquet,
    result.json and DIR/index.html. A run that was killed goes on where it was.
    """
    if paper and (scales is not None or decoders is not None or n is not None):
        raise ValueError("--paper sets --scales, --decoders and --n itself; leave them out")
    chosen_scales = parse_scales("0:1:0.1" if paper else "0,0.5,1" if scales is None else scales)
    chosen_decoders: Any = items(",".join(_DECODERS) if decoders is None else decoders, "--decoders", _DECODERS)
    model_directory(model)
    corpus_file(prompts)
    check_counts(unigram)
    if features is not None:
        check_mauve()
        model_directory(features)
    check_output(out, "generation", overwrite=overwrite)
    check_page(out)

    from interp import corpora, generation, models, pages

    with progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    source = corpora.load(prompts, column=column)
    given = generation.prompts(loaded, source, n=n or 100, length=prompt_tokens, max_new_tokens=new_tokens, bos=bos)
    with unfinished(out, "generation") as directory:
        found = generation.sweep(
            loaded, given, scales=chosen_scales, decoders=chosen_decoders, unigram=unigram, features=features,
            seed=seed, batch_size=batch_size, directory=directory,
        )  # fmt: skip
        save({out: [found]}, directory)
        page = pages.write_page(out)
    shown = found.metrics[_SHOWN].dropna(axis=1, how="all")
    show({"metrics": (f"{Path(model).name} continues {source.name}", shown)}, page, as_json=as_json)

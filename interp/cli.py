"""The command line: `interp frequency --model … --corpus … --out DIR`.

Options and paths are checked before torch is imported. Bad input ends with one line on stderr and exit code 2, a
failure with 1, Ctrl-C with 130.
"""

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.paths import check_output, corpus_file, model_directory

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability of language models: hook functions on TransformerLens.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_BAD_INPUT = (ValueError, TypeError, FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError)
_BIASES = ("ln", "fc", "last")

ModelOption = Annotated[str, typer.Option(help="Hub name, local directory or bundled model.", show_default=False)]
CorpusOption = Annotated[
    str, typer.Option(help="File (.txt, .jsonl, .csv, .gz of these), a named corpus, or 'bundled'.", show_default=False)
]
OutOption = Annotated[Path, typer.Option(help="Directory to write to.", show_default=False)]
ColumnOption = Annotated[str | None, typer.Option(help="Field or column that holds the text.")]
SeparatorOption = Annotated[str, typer.Option(help=r"Put after each text; '\n' for lines of one running text.")]
LimitOption = Annotated[int | None, typer.Option(help="Read only the first N texts.", metavar="N", min=1)]


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def parse_scales(text: str) -> list[float]:
    """`0,0.5,1`, or `0:1:0.1` with both ends included."""
    parts = text.split(":")
    try:
        numbers = [float(item) for item in (parts if len(parts) == 3 else _list(text))]
    except ValueError:
        raise ValueError(f"--scales {text!r} is not a list of numbers; write 0,0.5,1 or 0:1:0.1") from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"--scales {text!r} has a number that is not finite")
    if len(parts) != 3:
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"--scales {text!r} names a number twice")
        return numbers
    start, stop, step = numbers
    if step <= 0 or stop < start or (stop - start) / step > 1_000:
        raise ValueError(
            f"--scales {text!r}: expected start:stop:step with start ≤ stop, a step above 0 and at most 1,000 steps"
        )
    n = round((stop - start) / step)
    if abs(start + n * step - stop) > 1e-9 * max(1.0, abs(stop)):
        raise ValueError(f"--scales {text!r}: {stop:g} is not a whole number of steps of {step:g} away from {start:g}")
    return [round(start + i * step, 12) for i in range(n + 1)]


def _parse_biases(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    for bias in _list(text):
        if bias not in _BIASES:
            raise ValueError(f"--biases {text!r}: unknown bias {bias!r}; expected {', '.join(_BIASES)}")
    if len(set(_list(text))) < len(_list(text)):
        raise ValueError(f"--biases {text!r} names a bias twice")
    return _list(text)


@app.command()
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
    seed: Annotated[int, typer.Option(help="Of the masking.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's protocol: each bias removed (λ = 0) or kept, 12 % masked.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
) -> None:
    """Word frequency in the prediction head: scale each bias, compare predictions with unigrams.

    Writes DIR/frequency/*.parquet, result.json and DIR/index.html. A run that was killed goes on where it was.
    """
    if paper and (scales is not None or mask_rate is not None or biases is not None):
        raise ValueError("--paper sets --biases, --scales and --mask-rate itself; leave them out")
    chosen_scales = parse_scales("0,1" if paper else scales or "0,0.5,1")
    chosen_biases = _parse_biases(biases)
    model_directory(model)
    corpus_file(corpus)
    if unigram is not None and not _is_counts(unigram):
        corpus_file(unigram)
    check_output(out, "frequency", overwrite=overwrite)

    from interp import corpora, models, report
    from interp.frequency import MASK_RATE, bias_effect
    from interp.sites import is_encoder

    checkpoint = out / ".frequency.checkpoint.safetensors"
    with _progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    source = corpora.load(corpus, limit=limit, column=column, separator=_unescaped(separator))
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
    if unigram is not None and not _is_counts(unigram):
        text = corpora.load(unigram, column=column, separator=_unescaped(separator))
        counts = corpora.count_unigrams(loaded, text, processes=os.cpu_count() or 1)
    effect = bias_effect(
        loaded, batches, unigram=counts, biases=chosen_biases, scales=chosen_scales, checkpoint=checkpoint
    )
    effect.save(out, overwrite=overwrite)
    checkpoint.unlink(missing_ok=True)
    page = report.write_page(out)
    columns = ["bias", "scale", "kl_unigram_model", "kl_model_unigram", "js", "perplexity", "balanced_nll", "n_tokens"]
    _print_table(effect.kl[columns], f"{Path(model).name} on {source.name}")
    typer.echo(f"written to {page}")


@app.command()
def attention(
    model: ModelOption,
    corpus: Annotated[str | None, typer.Option(help="As for frequency; --paper takes 'stsb' if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to.")] = None,
    layers: Annotated[str | None, typer.Option(help="TransformerLens' block numbers: 0,5.  [default: all]")] = None,
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each text.")] = False,
    scaled: Annotated[bool, typer.Option("--scaled", help="Contributions in nats: divided by √d_head.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of random dimensions and of --paper's sample.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's: STS-B sentences, contributions of 100 of them, layers from 1.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print memory and FLOPs from the config alone.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
) -> None:
    """Attention scores by residual dimension, outlier dimensions, and what removing them does to attention.

    Writes DIR/attention/*.parquet, result.json and DIR/index.html. A run that was killed goes on where it was.
    """
    model_directory(model, weights=not dry_run)
    if dry_run:
        if layers is not None:
            raise ValueError("--dry-run counts all layers; leave --layers out")
        _print_cost(model)
        return
    if corpus is None and not paper:
        raise ValueError("--corpus is missing; expected a file, a named corpus or 'bundled'")
    if out is None:
        raise ValueError("--out is missing; expected a directory to write to")
    if paper and scaled:
        raise ValueError("--paper gives contributions unscaled, as the paper does; leave --scaled out")
    chosen = _parse_layers(layers)
    corpus = corpus or "stsb"
    corpus_file(corpus)
    check_output(out, "attention", overwrite=overwrite)

    from interp import corpora, models, outliers, report

    with _progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    source = corpora.load(corpus, limit=limit, column=column, separator=_unescaped(separator))
    batches = corpora.batches(loaded, source, bos=bos, batch_size=batch_size)
    checkpoint = out / ".attention.checkpoint.safetensors"
    study = outliers.study(
        loaded, batches, layers=chosen, scaled=scaled, sample=100 if paper else None, seed=seed, checkpoint=checkpoint
    )
    study.save(out, overwrite=overwrite)
    checkpoint.unlink(missing_ok=True)
    page = report.write_page(out)
    by_layer = study.attention.groupby(["layer", "key_class"], sort=False)["sum"].mean().unstack().reset_index()
    where = f"{Path(model).name} on {source.name}"
    if paper:
        by_layer["layer"] += 1
    _print_table(by_layer, f"attention by class of the key, mean over heads: {where}")
    _print_table(study.outliers, f"outlier dimensions: {where}")
    typer.echo(f"written to {page}")


def _parse_layers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not all(item.isdecimal() for item in _list(text)):
        raise ValueError(f"--layers {text!r} is not a list of block numbers; write 0,5")
    return [int(item) for item in _list(text)]


def _print_cost(model: str) -> None:
    from interp.attention.cost import cost

    found = cost(model)
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


@app.command()
def encoding(
    model: ModelOption,
    corpus: CorpusOption,
    out: OutOption,
    other: Annotated[
        str | None, typer.Option(help="Text the fit has not seen, to steer on; read like --corpus.")
    ] = None,
    unigram: Annotated[str | None, typer.Option(help="File of token counts. Default: shipped, else --corpus.")] = None,
    limit: LimitOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[bool, typer.Option("--bos", help="Beginning-of-sequence token before each text.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of masks, random orders, nulls and the sample of tokens.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's: axes by |Spearman| and at random, steering by the regression.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")] = False,
) -> None:
    """Token probability in output embeddings: regression, pruning, steering, directions, neurons.

    Writes DIR/encoding/*.parquet, result.json and DIR/index.html.
    """
    model_directory(model)
    for text in (corpus, other):
        if text is not None:
            corpus_file(text)
    if unigram is not None and not _is_counts(unigram):
        raise ValueError(f"--unigram {unigram!r} is no file of counts (.safetensors, .json); make one: interp unigrams")
    check_output(out, "encoding", overwrite=overwrite)

    from interp import corpora, models, report
    from interp.encoding.study import study
    from interp.frequency import MASK_RATE
    from interp.sites import is_encoder

    with _progress(f"loading {model}"):
        loaded = models.load(model, device=device)
    mask_rate = MASK_RATE if is_encoder(loaded) else None
    sources = [
        None if text is None else corpora.load(text, limit=limit, column=column, separator=_unescaped(separator))
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
    found = study(loaded, batches, other=unseen, unigram=unigram, seed=seed, **options)
    found.save(out, overwrite=overwrite)
    page = report.write_page(out)
    _print_table(found.regression, f"−log α on the output embeddings: {Path(model).name} on {Path(corpus).name}")
    _print_table(report.removable(found.pruning), "fraction of dimensions removed before top-1 agreement falls")
    _print_table(report.steering_error(found.steering), "steering, ratios 1/5 to 5: median |log(got/asked)|")
    typer.echo(f"written to {page}")


@app.command()
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

    source = corpora.load(corpus, limit=limit, column=column, separator=_unescaped(separator))
    counts = corpora.count_unigrams(models.load(model), source, processes=os.cpu_count() or 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    counts.save(out)
    typer.echo(f"{counts.n_tokens:,} tokens of {int((counts.counts > 0).sum()):,} types written to {out}")


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


@app.command()
def page(directory: Annotated[Path, typer.Argument(help="A run directory, or one that holds several.")]) -> None:
    """Write DIRECTORY/index.html from the results in it, or in its subdirectories."""
    if not directory.is_dir():
        raise FileNotFoundError(f"directory {str(directory)!r} does not exist; expected the --out of a run")

    from interp import report

    typer.echo(f"written to {report.write_page(directory)}")


@app.command()
def train(
    kind: Annotated[str, typer.Option(help="gpt2 or bert.", show_default=False)],
    corpus: CorpusOption,
    tokens: Annotated[float, typer.Option(help="Tokens to see, such as 16e6.", min=1, show_default=False)],
    out: OutOption,
    held_out: Annotated[float, typer.Option(help="Share of the texts, from the end, that is held out.")] = 0.01,
    batch_size: Annotated[int | None, typer.Option(help="Rows or examples in a step.", min=1)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak of warm-up and linear decay.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; they decide the last bits.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and masks.", min=0)] = 0,
    limit: LimitOption = None,
    column: ColumnOption = None,
) -> None:
    """Train a small GPT-2 or BERT, as the bundled ones were. A run that was killed goes on where it was."""
    if kind not in ("gpt2", "bert"):
        raise ValueError(f"--kind {kind!r}: expected gpt2 or bert")
    if not 0 < held_out < 1:
        raise ValueError(f"--held-out {held_out}: expected a share between 0 and 1")
    corpus_file(corpus)

    import logging

    from interp import corpora, training

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    texts = list(corpora.load(corpus, limit=limit, column=column))
    cut = len(texts) - max(1, int(len(texts) * held_out))
    directory = training.train(
        kind,  # type: ignore[arg-type]
        texts[:cut],
        held_out=texts[cut:],
        tokens=int(tokens),
        out=out,
        batch_size=batch_size,
        learning_rate=learning_rate,
        bf16=bf16,
        threads=threads,
        seed=seed,
    )
    typer.echo(f"written to {directory}")


def _is_counts(unigram: str) -> bool:
    path = Path(unigram)
    if path.suffix not in (".safetensors", ".json"):
        return False
    if not path.is_file():
        raise FileNotFoundError(f"unigram counts {unigram!r} do not exist; expected a file of counts or a corpus")
    return True


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


_HEADINGS = {"kl_unigram_model": "KL(u‖q)", "kl_model_unigram": "KL(q‖u)", "js": "JS"}
_HEADINGS |= {"balanced_nll": "bal. NLL", "n_tokens": "tokens"}


def _print_table(table: Any, title: str) -> None:
    """A ruled table with short headings on a terminal; elsewhere the columns' own names, separated by tabs."""
    rows = [
        [f"{value:.4f}" if isinstance(value, float) else str(value) for value in row]
        for row in table.itertuples(index=False)
    ]
    if not sys.stdout.isatty():
        typer.echo("\n".join("\t".join(row) for row in [list(table.columns), *rows]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    ruled = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        ruled.add_column(_HEADINGS.get(column, column), justify="left" if column == "bias" else "right", no_wrap=True)
    for row in rows:
        ruled.add_row(*row)
    console = Console()
    console.print(title)
    console.print(ruled)


def _show_version(value: bool) -> bool:
    if value:
        typer.echo(f"interp {version('interp')}")
        raise typer.Exit
    return value


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    show: Callable[..., None] = lambda message, *_, **__: print(f"interp: note: {message}", file=sys.stderr)  # noqa: E731
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            given = sys.argv[1:] if arguments is None else list(arguments)
            code = app(args=given or ["--help"], standalone_mode=False)
        return _fail("stopped", 130) if code == 130 else code or 0
    except (typer.Abort, KeyboardInterrupt):
        return _fail("stopped", 130)
    except typer.TyperException as error:
        return _fail(error.format_message(), 2)
    except _BAD_INPUT as error:
        return _fail(str(error), 2)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}", 1)


def _fail(message: str, code: int) -> int:
    print(f"interp: error: {' '.join(message.split())}", file=sys.stderr)
    return code

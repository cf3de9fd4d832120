"""The other commands: token counts, pages and figures of existing results, and lists of named models and corpora."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from interp.analyses.options import CORPUS, ModelOptions, TextOptions
from interp.cli import flags
from interp.cli.dryrun import DryRunFlag
from interp.cli.output import check_writable, show
from interp.cli.results import check_runs
from interp.cli.screen import echo
from interp.support.paths import (
    BUNDLED,
    HUB_CORPORA,
    HUB_PAIRS,
    bundled_models,
    cached,
    check_matplotlib,
    corpus_file,
    is_counts,
    model_directory,
)

__all__ = ["compare", "corpora", "figures", "models", "page", "unigrams"]

_ADD = "Another text, read like --corpus, or a file of counts to add; may be repeated."
_OF_PASSES = ("bos", "layout", "context", "batch_size", "dtype", "device")


@flags.with_flags(*flags.parameters(TextOptions, ModelOptions, without=_OF_PASSES))
def unigrams(
    model: flags.ModelFlag,
    corpus: Annotated[str | None, typer.Option(help=CORPUS, autocompletion=flags.complete_corpus)] = None,
    add: Annotated[list[str] | None, typer.Option(help=_ADD, autocompletion=flags.complete_corpus)] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write the counts to (.safetensors).", parser=flags.path)
    ] = None,
    *,
    dry_run: DryRunFlag = False,
    overwrite: flags.OverwriteFlag = False,
    as_json: flags.JsonFlag = False,
    **values: Any,
) -> None:
    """Count the tokens of a corpus, or of several together, for --unigram."""
    counted = []
    texts = [] if corpus is None else [corpus]
    for source in add or []:
        if is_counts(source):
            counted.append(source)
        else:
            texts.append(source)
    if not texts and not counted:
        raise ValueError("--corpus is missing; expected a text to count, or --add with texts and files of counts")
    if dry_run:
        _say_count(model, texts, flags.read(TextOptions, values), flags.read(ModelOptions, values), as_json=as_json)
        return
    model_directory(model)
    for text in texts:
        corpus_file(text)
    if out is None:
        raise ValueError("--out is missing; expected a file to write the counts to (.safetensors)")
    if out.suffix != ".safetensors":
        raise ValueError(f"--out {str(out)!r} must end in .safetensors")
    if out.is_dir():
        raise IsADirectoryError(f"--out {str(out)!r} is a directory; expected the name of a file")
    check_writable(out.parent)
    if os.path.lexists(out) and not overwrite:
        raise FileExistsError(f"{out} already exists; choose another --out or add --overwrite")

    from interp import corpora, models
    from interp.corpora.counts import added_unigrams

    sources = [corpora.load(text, **flags.read(TextOptions, values)) for text in texts]
    loaded = models.load(model, **flags.read(ModelOptions, values))
    counts = added_unigrams(loaded, [*sources, *counted], processes=os.cpu_count() or 1)
    counts.save(out)
    n_types = int((counts.counts > 0).sum())
    if as_json:
        echo(json.dumps({"n_tokens": counts.n_tokens, "n_types": n_types, "written": str(out)}))
    else:
        echo(f"{counts.n_tokens:,} tokens of {n_types:,} types written to {out}")


def _say_count(
    model: str, texts: Sequence[str], options: Mapping[str, Any], model_options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Print what would be counted."""
    model_directory(model, weights=False)

    from interp.corpora.sources import roughly_tokens
    from interp.models.shapes import shape_with

    estimates = [roughly_tokens(text, limit=options.get("limit"), column=options.get("column")) for text in texts]
    lengths = [tokens for tokens in estimates if tokens is not None]
    tokens = sum(lengths) if len(lengths) == len(estimates) else None
    d_vocab = shape_with(model, model_options).d_vocab
    if as_json:
        echo(json.dumps({"n_tokens": tokens, "d_vocab": d_vocab, "counts_bytes": 8 * d_vocab, "passes": 0}))
        return
    size = "a text of unknown length" if tokens is None else f"about {tokens:,} tokens"
    echo(f"{model}: counts {size} of {' + '.join(texts)} with its tokenizer, over {d_vocab:,} types; reads no weights")


def page(
    directory: flags.RunArgument,
    url: Annotated[
        str | None, typer.Option(help="Address of the published page; links to it then show a picture.", metavar="URL")
    ] = None,
    as_json: flags.JsonFlag = False,
) -> None:
    """Rewrite the page of a run.

    Writes RUN/index.html from the results in it or in its subdirectories. --url also writes RUN/index.png, which other
    sites show with a link to the page; it needs the extra interp[figures].
    """
    check_runs([directory])
    check_writable(directory)

    from interp.pages.page import written_page

    page = written_page(directory, url=url)
    files = [page.path] if url is None else [page.path, page.path.with_suffix(".png")]
    show({}, *files, as_json=as_json, results=page.results, notes=page.notes)


def figures(
    directory: flags.RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to write to.  [default: RUN/figures]", metavar="DIR", parser=flags.path),
    ] = None,
    *,
    formats: Annotated[str, typer.Option("--format", help="pdf, svg or png, or several separated by commas.")] = "pdf",
    width: Annotated[
        float, typer.Option(help="Width in inches: 3.3 for one column of a two-column page, 6.8 for both.")
    ] = 3.3,
    style: Annotated[
        Literal["paper", "titled"],
        typer.Option(help="paper: without a title, for use with a caption; titled: with its title."),
    ] = "paper",
    as_json: flags.JsonFlag = False,
) -> None:
    """Write the figures of a run for a paper.

    Writes PDF, SVG or PNG files of the given width with 8-point type and embedded fonts, and prints a caption for
    each. Needs the extra interp[figures].
    """
    check_runs([directory])
    check_matplotlib()

    from interp.pages.paper import check_figures, written_figures

    check_figures(formats.split(","), width, style)
    target = directory / "figures" if out is None else out
    check_writable(target.parent)
    written, table = written_figures(directory, target, formats=formats.split(","), width=width, style=style)
    show({"figures": (f"figures of {directory}", table)}, target, as_json=as_json, notes=written.notes)


def compare(
    directories: Annotated[
        list[Path], typer.Argument(help="Run directories, or ones that hold several.", parser=flags.path)
    ],
    out: flags.OutFlag,
    as_json: flags.JsonFlag = False,
) -> None:
    """Compare several runs side by side.

    Shows the key numbers and figures of different models, checkpoints or corpora, question by question. Writes
    DIR/index.html, and each figure as JSON in DIR/comparison.
    """
    check_runs(directories)
    check_writable(out)

    from interp.pages.compare import written_comparison

    page = written_comparison(directories, out)
    show({}, page.path, as_json=as_json, results=page.results, notes=page.notes)


def models(as_json: flags.JsonFlag = False) -> None:
    """List the models that are available locally.

    These are the bundled ones and those in the hub's cache. Any other hub name is downloaded on first use. `interp
    check` says what can be asked of one.
    """
    import pandas as pd

    places = [(name, "bundled", BUNDLED / name) for name in bundled_models()]
    for name, path in cached("models").items():
        places.append((name, "cached", path))
    rows = [(name, where, _parameters(path), _size(path), str(path)) for name, where, path in places]
    table = pd.DataFrame(rows, columns=["name", "where", "parameters", "size", "path"]).astype({"parameters": "Int64"})
    show({"models": ("models for --model", table)}, as_json=as_json)


def corpora(as_json: flags.JsonFlag = False) -> None:
    """List the named texts and minimal pairs, and whether they are available locally.

    Files and other datasets of the hub (owner/name) can be used as well.
    """
    import pandas as pd

    datasets = cached("datasets")
    text = BUNDLED / "text.txt"
    rows = [
        ("bundled", "--corpus", "bundled", _size(text), str(text)),
        ("bundled", "--pairs", "bundled", "", "generated: interp.corpora.pairs.generate"),
    ]
    sources = []
    for name, corpus in HUB_CORPORA.items():
        if name not in HUB_PAIRS:
            sources.append((name, "--corpus", corpus["path"]))
    for name, path_on_hub in HUB_PAIRS.items():
        sources.append((name, "--pairs", path_on_hub))
    for name, option, source in sources:
        path = datasets.get(source)
        here = ("cached", _size(path)) if path else ("hub", "")
        rows.append((f"{name}/LANGUAGE" if name == "multiblimp" else name, option, *here, source))
    table = pd.DataFrame(rows, columns=["name", "option", "where", "size", "source"])
    show({"corpora": ("texts for --corpus and minimal pairs for --pairs", table)}, as_json=as_json)


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


def _parameters(path: Path) -> int | None:
    """The number of elements in the safetensors files, from their headers; None if no such file can be read.

    For a cached model, the files of its latest snapshot count.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    snapshots = sorted(path.glob("snapshots/*"), key=lambda snapshot: snapshot.stat().st_mtime)
    total = 0
    for file in (snapshots[-1] if snapshots else path).rglob("*.safetensors"):
        if file.name == "unigram.safetensors":
            continue
        try:
            with safe_open(file, "np") as tensors:
                total += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
    return total or None

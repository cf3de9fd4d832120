"""The options of `tools/train.py`. Like those of `interp`, they are checked before torch is imported."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from interp.analyses.options import CORPUS
from interp.cli.app import run
from interp.cli.flags import JsonFlag, OutFlag
from interp.cli.output import resumable, show
from interp.support.paths import corpus_file

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def train(
    kind: Annotated[str, typer.Option(help="gpt2 or bert.", show_default=False)],
    corpus: Annotated[str, typer.Option(help=CORPUS, metavar="NAME", show_default=False)],
    tokens: Annotated[float, typer.Option(help="Tokens to see, such as 16e6.", min=1, show_default=False)],
    out: OutFlag,
    held_out: Annotated[float, typer.Option(help="Share of the texts, from the end, that is held out.")] = 0.01,
    batch_size: Annotated[int | None, typer.Option(help="Rows or examples in a step.", min=1)] = None,
    d_model: Annotated[int | None, typer.Option(help="Width of the residual stream.", min=1)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak of warm-up and linear decay.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute matrix products in bfloat16.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; they decide the last bits.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed for weights, order and masks.", min=0, max=2**63 - 1)] = 0,
    limit: Annotated[int | None, typer.Option(help="Read only the first N texts.", min=1)] = None,
    column: Annotated[str | None, typer.Option(help="Field or column that holds the text.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a small GPT-2 or BERT, as the bundled ones were.

    A run that was killed resumes where it stopped.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("train.py runs in one process; start it without torchrun")
    if kind not in ("gpt2", "bert"):
        raise ValueError(f"--kind {kind!r}: expected gpt2 or bert")
    if not tokens < 2**62:
        raise ValueError(f"--tokens {tokens}: expected a finite number of tokens, such as 16e6")
    if learning_rate is not None and not 0 < learning_rate < float("inf"):
        raise ValueError(f"--learning-rate {learning_rate}: expected a number above 0, such as 1e-3")
    if not 0 < held_out < 1:
        raise ValueError(f"--held-out {held_out}: expected a share between 0 and 1")
    corpus_file(corpus)

    import logging

    import training.run
    from interp import corpora
    from training.data import Texts

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    texts = list(corpora.load(corpus, limit=limit, column=column))
    cut = len(texts) - max(1, int(len(texts) * held_out))
    chosen = {"batch_size": batch_size, "d_model": d_model, "learning_rate": learning_rate, "bf16": bf16}
    changes: Any = {name: value for name, value in chosen.items() if value is not None}
    with resumable(out):
        directory = training.run.train(
            kind,  # type: ignore[arg-type]
            Texts(texts[:cut], texts[cut:]),
            tokens=int(tokens),
            out=out,
            threads=threads,
            seed=seed,
            **changes,
        )
    show({}, directory, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return run(app, sys.argv[1:] if arguments is None else list(arguments), packages=["training"])

"""Short training runs that differ in one setting, and what b_LN does to word frequency in each, as Markdown tables.

python tools/bias_study.py train --corpus books.txt.gz --tokens 2.3e6 --seed 0 --seed 1 --out DIRECTORY
python tools/bias_study.py tables DIRECTORY
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from interp.analyses.options import CORPUS
from interp.cli.app import run
from interp.cli.flags import OutFlag
from interp.cli.output import resumable
from interp.support.paths import corpus_file

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command("train")
def train_runs(
    corpus: Annotated[str, typer.Option(help=CORPUS, metavar="NAME", show_default=False)],
    tokens: Annotated[float, typer.Option(help="Tokens that each run sees, such as 2.3e6.", min=1, max=1e12)],
    out: OutFlag,
    names: Annotated[list[str] | None, typer.Option("--run", help="A run; all by default.", metavar="NAME")] = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="A seed; 0 by default.", min=0)] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; they decide the last bits.", min=1)] = 1,
    limit: Annotated[int | None, typer.Option(help="Read only the first N texts.", min=1)] = None,
) -> None:
    """Train small GPT-2s that differ in one setting and print the tables.

    Runs that are finished are kept, and one that was killed resumes where it stopped. The last 1 % of the texts is held
    out.
    """
    corpus_file(corpus)

    import logging

    from training.bias import RUNS, study
    from training.data import Texts

    from interp import corpora
    from interp.support.checks import check_choice

    for name in names or ():
        check_choice("run", name, RUNS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    texts = list(corpora.load(corpus, limit=limit))
    cut = len(texts) - max(1, len(texts) // 100)
    with resumable(out):
        split = Texts(texts[:cut], texts[cut:])
        study(split, names or list(RUNS), tokens=int(tokens), seeds=seeds or [0], out=out, threads=threads)
    tables(out)


@app.command()
def tables(
    out: Annotated[Path, typer.Argument(help="The directory of the runs.", metavar="DIRECTORY", show_default=False)],
) -> None:
    """Print what b_LN did in each run, at its end and on the way; unfinished runs are included."""
    from training.bias import courses, ends, histories, markdown

    measured = histories(out)
    print(markdown(ends(measured)), markdown(courses(measured)), sep="\n\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run(app, words, packages=["bias_study", "training"])


if __name__ == "__main__":
    sys.exit(main())

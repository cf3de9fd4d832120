"""Short training runs that differ in one setting, and what b_LN does to word frequency in each, as Markdown tables.

`.venv/bin/python tools/bias_study.py --corpus books.txt.gz --tokens 2.3e6 --seeds 2 --out DIRECTORY`
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from interp.cli.app import run
from interp.cli.flags import OutFlag
from interp.cli.output import resumable
from interp.options import CORPUS
from interp.paths import corpus_file

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bias_study(
    corpus: Annotated[str, typer.Option(help=CORPUS, metavar="NAME", show_default=False)],
    tokens: Annotated[float, typer.Option(help="Tokens that each run sees, such as 2.3e6.", min=1, max=1e12)],
    out: OutFlag,
    names: Annotated[list[str] | None, typer.Option("--run", help="A run; may be repeated.", metavar="NAME")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each kind, with the seeds 0, 1 …", min=1)] = 1,
    limit: Annotated[int | None, typer.Option(help="Read only the first N texts.", min=1)] = None,
) -> None:
    """Train small GPT-2s that differ in one setting, and print what b_LN does to word frequency in each.

    Runs that are finished are kept, and one that was killed resumes: the same command again goes on where it stopped.
    The tables are of all that is finished in --out; the last 1 % of the texts is held out.
    """
    corpus_file(corpus)

    import logging

    from training.bias import RUNS, courses, ends, histories, markdown, study
    from training.data import Texts

    from interp import corpora
    from interp.checks import check_choice

    for name in names or ():
        check_choice("run", name, RUNS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    texts = list(corpora.load(corpus, limit=limit))
    cut = len(texts) - max(1, len(texts) // 100)
    with resumable(out):
        study(Texts(texts[:cut], texts[cut:]), names or list(RUNS), tokens=int(tokens), seeds=range(seeds), out=out)
    measured = histories(out)
    print(markdown(ends(measured)), markdown(courses(measured)), sep="\n\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return run(app, sys.argv[1:] if arguments is None else list(arguments))


if __name__ == "__main__":
    sys.exit(main())

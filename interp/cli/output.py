"""What commands show on a terminal, and elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer


@contextmanager
def progress(what: str) -> Iterator[None]:
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


def print_table(table: Any, title: str) -> None:
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

"""`interp page` and `interp compare`: pages of results that are there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from interp.cli.flags import JsonFlag, OutFlag
from interp.cli.output import check_writable, show


def page(
    directory: Annotated[Path, typer.Argument(help="A run directory, or one that holds several.")],
    as_json: JsonFlag = False,
) -> None:
    """Write the page of a run again.

    DIRECTORY/index.html, from the results in it or in its subdirectories.
    """
    _check_runs([directory])
    check_writable(directory)

    from interp import pages

    show({}, pages.write_page(directory), as_json=as_json)


def compare(
    directories: Annotated[list[Path], typer.Argument(help="Run directories, or ones that hold several.")],
    out: OutFlag,
    as_json: JsonFlag = False,
) -> None:
    """Put several runs side by side.

    Models, checkpoints or corpora: their key numbers and figures, question by question. Writes DIR/index.html and each
    figure as JSON in DIR/comparison.
    """
    _check_runs(directories)
    check_writable(out)

    from interp import pages

    show({}, pages.write_comparison(directories, out), as_json=as_json)


def _check_runs(directories: Sequence[Path]) -> None:
    for directory in directories:
        if not directory.is_dir():
            raise FileNotFoundError(f"directory {str(directory)!r} does not exist; expected the --out of a run")

"""`interp compare`."""

from pathlib import Path
from typing import Annotated

import typer

from interp.cli.options import JsonOption, OutOption
from interp.cli.output import check_writable, show
from interp.disk.marks import check_own, check_page


def compare(
    directories: Annotated[list[Path], typer.Argument(help="Run directories, or ones that hold several.")],
    out: OutOption,
    as_json: JsonOption = False,
) -> None:
    """Put several runs side by side.

    Models, checkpoints or corpora: their key numbers and figures, question by question. Writes DIR/index.html and each
    figure as JSON in DIR/comparison.
    """
    for directory in directories:
        if not directory.is_dir():
            raise FileNotFoundError(f"directory {str(directory)!r} does not exist; expected the --out of a run")
    check_writable(out)
    check_own(out / "comparison")
    check_page(out)

    from interp import pages

    show({}, pages.write_comparison(directories, out), as_json=as_json)

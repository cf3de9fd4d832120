"""`interp page`."""

from pathlib import Path
from typing import Annotated

import typer


def page(directory: Annotated[Path, typer.Argument(help="A run directory, or one that holds several.")]) -> None:
    """Write DIRECTORY/index.html from the results in it, or in its subdirectories."""
    if not directory.is_dir():
        raise FileNotFoundError(f"directory {str(directory)!r} does not exist; expected the --out of a run")

    from interp import report

    typer.echo(f"written to {report.write_page(directory)}")

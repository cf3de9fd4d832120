"""`interp page`."""

from pathlib import Path
from typing import Annotated

import typer

from interp.cli.options import JsonOption
from interp.cli.output import check_writable, show
from interp.disk.marks import check_page


def page(
    directory: Annotated[Path, typer.Argument(help="A run directory, or one that holds several.")],
    as_json: JsonOption = False,
) -> None:
    """Write the page of a run again.

    DIRECTORY/index.html, from the results in it or in its subdirectories.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"directory {str(directory)!r} does not exist; expected the --out of a run")
    check_writable(directory)
    check_page(directory)

    from interp import pages

    show({}, pages.write_page(directory), as_json=as_json)

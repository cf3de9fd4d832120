"""The command-line application and its exit codes.

Options and paths are checked before torch is imported. The exit code says how a command ended; an error is one line on
stderr (`interp.cli.errors`), and with INTERP_DEBUG=1 its traceback too.
"""

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.analyses.registry import load, names, others
from interp.cli.analysis import command_of, report
from interp.cli.checking import check
from interp.cli.commands import compare, corpora, figures, models, page, unigrams
from interp.cli.config import expanded
from interp.cli.errors import STOPPED, outcome
from interp.cli.explore import explore
from interp.cli.flags import Command, Sectioned, path
from interp.cli.jobs import is_grouped, merge
from interp.cli.output import Stopped
from interp.cli.results import show
from interp.cli.screen import any_encoding, echo
from interp.support.words import of_command_line

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability of language models, as hook functions on TransformerLens.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _merge(
    directories: Annotated[
        list[Path],
        typer.Argument(help="The --out of the parts: one for all, or one per part.", metavar="DIRECTORY…", parser=path),
    ],
) -> None:
    """Combine the parts of a run into one result.

    The parts are those made with --shard 0/N to N-1/N. The work that no part could do alone is done now, and the result
    is written to the first DIRECTORY. Run this where the parts were run, so that relative paths are found.
    """
    merge(directories, _command)


def _command(name: str) -> Command:
    """The command of an analysis, or of a report, whose parts are to be merged."""
    return report if name == "report" else command_of(load(name))


def _placeholder() -> None:
    """Stands in for the command of another package until `_call` imports it."""


_COMMANDS: dict[str, Command] = {
    "show": show,
    "page": page,
    "figures": figures,
    "compare": compare,
    "unigrams": unigrams,
    "check": check,
    "explore": explore,
    "models": models,
    "corpora": corpora,
    "merge": _merge,
}
for name in ("report", *names()):
    if name in others():
        app.command(name, help=f"Analysis of another package: {others()[name].value}.")(_placeholder)
    else:
        app.command(name, cls=Sectioned)(_command(name))
for name, command in _COMMANDS.items():
    app.command(name)(command)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        echo(f"interp {metadata.version('interp')}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run(_call, words or ["--help"], packages=[re.split("[.:]", entry.value)[0] for entry in others().values()])


def _call(args: list[str], **settings: Any) -> Any:
    """Call the application, with the command of another package's analysis if that was asked for."""
    if args[0] in _COMMANDS and is_grouped():
        raise ValueError(f"interp {args[0]} runs in one process; start it without torchrun")
    if args[0] in others():
        app.command(args[0], cls=Sectioned)(_command(args[0]))
    return app(expanded(args, app), **settings)


def run(application: Callable[..., Any], arguments: list[str], *, packages: Sequence[str] = ()) -> int:
    """Run a command line of a typer application and return the exit code.

    Args:
        packages: top-level names of packages, in addition to interp, whose ValueErrors are about the input.
    """
    if os.environ.get("RANK", "0") != "0":
        os.environ["TQDM_DISABLE"] = "1"
    any_encoding()
    noted: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in noted:
            echo(f"interp: note: {message}", err=True)
        noted.add(str(message))

    try:
        with of_command_line(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            code = application(arguments, standalone_mode=False)
        return _fail("stopped", STOPPED) if code == STOPPED else code or 0
    except (typer.Abort, KeyboardInterrupt):
        return _fail("stopped", STOPPED)
    except Stopped as error:
        return _fail(str(error), STOPPED)
    except Exception as error:
        if os.environ.get("INTERP_DEBUG") == "1":
            echo("".join(traceback.format_exception(error)), err=True, end="")
        return _fail(*outcome(error, {"interp", "__main__", *packages}))


def _fail(message: str, code: int) -> int:
    echo(f"interp: error: {' '.join(message.split())}", err=True)
    return code

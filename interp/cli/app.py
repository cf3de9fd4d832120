"""The command-line application and its exit codes.

Options and paths are checked before torch is imported. The exit code is 2 for bad input, 1 for a failure and 130 for
Ctrl-C, each with one line on stderr.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.analyses import load, names, others
from interp.cli.analysis import command_of, report
from interp.cli.commands import compare, corpora, figures, models, page, unigrams
from interp.cli.config import expanded
from interp.cli.flags import Command
from interp.cli.jobs import is_grouped, merge
from interp.cli.output import Stopped
from interp.cli.results import show
from interp.disk import FULL

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability of language models, as hook functions on TransformerLens.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_BAD_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def _merge(
    directories: Annotated[
        list[Path], typer.Argument(help="The --out of the parts: one for all, or one per part.", metavar="DIRECTORY…")
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


def _not_imported() -> None:
    """Stands in for the command of another package until `_call` imports it."""


_ALONE: dict[str, Command] = {"show": show, "page": page, "figures": figures, "compare": compare, "unigrams": unigrams}
_ALONE |= {"models": models, "corpora": corpora, "merge": _merge}
for name in ("report", *names()):
    if name in others():
        app.command(name, help=f"Analysis of another package: {others()[name].value}.")(_not_imported)
    else:
        app.command(name)(_command(name))
for name, command in _ALONE.items():
    app.command(name)(command)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"interp {metadata.version('interp')}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run(_call, given or ["--help"])


def _call(args: list[str], **how: Any) -> Any:
    """Call the application, with the command of another package's analysis if that was asked for."""
    if args[0] in _ALONE and is_grouped():
        raise ValueError(f"interp {args[0]} runs in one process; start it without torchrun")
    if args[0] in others():
        app.command(args[0])(_command(args[0]))
    return app(expanded(args, app), **how)


def run(application: Callable[..., Any], given: list[str]) -> int:
    """Run a command line of a typer application and return the exit code."""
    if os.environ.get("RANK", "0") != "0":
        os.environ["TQDM_DISABLE"] = "1"

    noted: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in noted:
            print(f"interp: note: {message}", file=sys.stderr)
        noted.add(str(message))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            code = application(given, standalone_mode=False)
        return _fail("stopped", 130) if code == 130 else code or 0
    except (typer.Abort, KeyboardInterrupt):
        return _fail("stopped", 130)
    except Stopped as error:
        return _fail(str(error), 130)
    except typer.TyperException as error:
        return _fail(error.format_message(), 2)
    except (ValueError, TypeError, *_BAD_PATH) as error:
        return _fail(str(error), 2)
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EROFS:
            return _fail(f"{error.filename} cannot be written to: {reason}; choose another directory", 2)
        if error.errno not in FULL:
            return _fail(f"{type(error).__name__}: {error}", 1)
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer goes there
            return _fail(f"standard output cannot be written to: {reason}; all files that were saved are complete", 1)
        return _fail(f"no room to write {error.filename}: {reason}; make room and run the same command again", 1)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}", 1)


def _fail(message: str, code: int) -> int:
    print(f"interp: error: {' '.join(message.split())}", file=sys.stderr)
    return code

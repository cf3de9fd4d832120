"""The application and its exit codes.

Options and paths are checked before torch is imported. Bad input ends with one line on stderr and exit code 2, a
failure with 1, Ctrl-C with 130.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from interp.cli.attention import attention
from interp.cli.compare import compare
from interp.cli.encoding import encoding
from interp.cli.frequency import frequency
from interp.cli.generate import generate
from interp.cli.listing import corpora, models
from interp.cli.output import Stopped
from interp.cli.page import page
from interp.cli.parallel import alone, arguments as running, merge, parallel
from interp.cli.probe import probe
from interp.cli.report import report
from interp.cli.unigrams import unigrams
from interp.disk.files import FULL

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability of language models: hook functions on TransformerLens.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_BAD_INPUT = (
    ValueError,
    TypeError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
_ANALYSES: tuple[Callable[..., None], ...] = (report, frequency, generate, attention, encoding, probe)
_OTHERS: tuple[Callable[..., None], ...] = (merge, page, compare, unigrams, models, corpora)
_COMMANDS = (*map(parallel, _ANALYSES), *map(alone, _OTHERS))

for command in _COMMANDS:
    app.command()(command)


def _show_version(value: bool) -> bool:
    if value:
        typer.echo(f"interp {version('interp')}")
        raise typer.Exit
    return value


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run(app, given or ["--help"])


def run(application: typer.Typer, given: list[str]) -> int:
    """Run a command line of an application; the exit code."""
    if os.environ.get("RANK", "0") != "0":
        os.environ["TQDM_DISABLE"] = "1"
    show: Callable[..., None] = lambda message, *_, **__: print(f"interp: note: {message}", file=sys.stderr)  # noqa: E731
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            running.set(given)
            code = application(args=given, standalone_mode=False)
        return _fail("stopped", 130) if code == 130 else code or 0
    except (typer.Abort, KeyboardInterrupt):
        return _fail("stopped", 130)
    except typer.TyperException as error:
        return _fail(error.format_message(), 2)
    except Stopped as error:
        return _fail(str(error), 130)
    except _BAD_INPUT as error:
        return _fail(str(error), 2)
    except OSError as error:
        if error.errno == errno.EROFS:
            return _fail(f"{error.filename} cannot be written to: {error.strerror}; choose another directory", 2)
        if error.errno not in FULL:
            return _fail(f"{type(error).__name__}: {error}", 1)
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the rest of its buffer goes
            return _fail(f"standard output cannot be written to: {error.strerror}; what was saved is whole", 1)
        return _fail(
            f"no room to write {error.filename}: {error.strerror}; make room and run the same command again", 1
        )
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}", 1)


def _fail(message: str, code: int) -> int:
    print(f"interp: error: {' '.join(message.split())}", file=sys.stderr)
    return code

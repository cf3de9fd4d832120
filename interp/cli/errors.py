"""What the command line says about an exception, and its exit code (docs/command-line.md lists them)."""

import errno
import os
import sys
from collections.abc import Collection
from opcode import opmap
from types import TracebackType

import typer

from interp.support.disk import FULL
from interp.support.memory import DoesNotFit

__all__ = ["BAD_INPUT", "FAILED", "STOPPED", "TOO_LARGE", "outcome"]

FAILED, BAD_INPUT, TOO_LARGE, STOPPED = 1, 2, 3, 130
_BAD_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
_REPORT = "this is probably a mistake in interp: please report it, with what INTERP_DEBUG=1 shows"


def outcome(error: Exception, packages: Collection[str]) -> tuple[str, int]:
    """The message and the exit code for an exception.

    A ValueError or TypeError is about the input if one of the packages raised it on purpose, by a `raise` of its own.
    From anywhere else, such as a call of numpy, it says that interp did not expect what it was given.

    Args:
        packages: the top-level names of the packages whose errors are about their input.
    """
    if isinstance(error, typer.TyperException):
        return _of_arguments(error), BAD_INPUT
    if isinstance(error, DoesNotFit):
        return str(error), TOO_LARGE
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return f"there is no memory left ({_first_line(error)}); --dry-run says what would fit", TOO_LARGE
    if isinstance(error, OSError):
        return _of_the_system(error)
    if isinstance(error, ValueError | TypeError) and _is_raised_by(error.__traceback__, packages):
        return str(error), BAD_INPUT
    where = _last_place(error.__traceback__, packages)
    return f"{type(error).__name__}: {error} ({where}); {_REPORT}", FAILED


def _of_arguments(error: typer.TyperException) -> str:
    option = getattr(error, "option_name", None)
    context: typer.Context | None = getattr(error, "ctx", None)
    if option is None or context is None:
        return error.format_message()
    command = f"interp {context.info_name}"
    for parameter in context.command.params:
        if parameter.param_type_name == "argument" and option == f"--{parameter.name}":
            return f"{command} takes its {parameter.name} without {option}: {command} {str(parameter.name).upper()}"
    return error.format_message()


def _of_the_system(error: OSError) -> tuple[str, int]:
    reason = error.strerror
    if isinstance(error, _BAD_PATH):
        return str(error), BAD_INPUT
    if error.errno == errno.EROFS:
        return f"{error.filename} cannot be written to: {reason}; choose another directory", BAD_INPUT
    if error.errno not in FULL:
        return f"{type(error).__name__}: {error}", FAILED
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer goes there
        return f"standard output cannot be written to: {reason}; all files that were saved are complete", TOO_LARGE
    return f"no room to write {error.filename}: {reason}; make room and run the same command again", TOO_LARGE


def _is_raised_by(trace: TracebackType | None, packages: Collection[str]) -> bool:
    """Whether the exception comes from a `raise` in one of the packages."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or _module(trace).partition(".")[0] not in packages:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def _last_place(trace: TracebackType | None, packages: Collection[str]) -> str:
    """The last line of the packages that led to the exception."""
    place = "in an unknown place"
    while trace is not None:
        if _module(trace).partition(".")[0] in packages:
            place = f"{_module(trace)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _module(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

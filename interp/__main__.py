"""`python -m interp`, the same as the console script `interp`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name

SPINS = "20000"
"""How often a thread of torch looks for work before it sleeps, if the user does not say. By default it looks for
milliseconds, and keeps other processes, and so itself, waiting on a busy machine."""


def run(place: str = "interp.cli:main") -> int:
    """Import and run a command line, given as `"module:function"`, and return its exit code. Ctrl-C gives one line."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        with _stopping_at_once():
            main = resolve_name(place)
        code: int = main()
        return code
    except KeyboardInterrupt:
        print("interp: error: stopped", file=sys.stderr)
        return 130


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """A context in which Ctrl-C ends the process. As an exception, it could arrive in a callback of the import system,
    where Python prints it and goes on."""

    def stop(*_: object) -> None:
        os.write(2, b"interp: error: stopped\n")
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # a shell makes background processes ignore it
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(run())

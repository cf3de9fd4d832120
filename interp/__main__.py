"""`python -m interp`, the same as the console script `interp`."""

import sys


def run() -> int:
    """The command line, and one line for Ctrl-C while it is being imported; the exit code."""
    try:
        from interp.cli import main

        return main()
    except KeyboardInterrupt:
        print("interp: error: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())

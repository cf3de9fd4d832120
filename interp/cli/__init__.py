"""The command line: `interp frequency --model … --corpus … --out DIR`."""

from interp.cli.app import app, main

__all__ = ["app", "main"]

"""The command line: `interp frequency --model … --corpus … --out DIR`."""

from interp.cli.app import app, main
from interp.cli.options import parse_scales

__all__ = ["app", "main", "parse_scales"]

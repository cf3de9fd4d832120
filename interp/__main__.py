"""`python -m interp`, the same as the console script `interp`."""

import sys

from interp.cli import main

if __name__ == "__main__":
    sys.exit(main())

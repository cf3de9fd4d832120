"""Train a small GPT-2 or BERT, as the bundled ones were.

`.venv/bin/python tools/train.py --kind gpt2 --corpus bundled --tokens 1e5 --out DIRECTORY`
"""

import sys


def run() -> int:
    """Run the command, with a one-line message if Ctrl-C is pressed during imports; returns the exit code."""
    try:
        from training.command import main

        return main()
    except KeyboardInterrupt:
        print("interp: error: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())

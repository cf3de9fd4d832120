"""Train a small GPT-2 or BERT, as the bundled ones were.

`.venv/bin/python tools/train.py --kind gpt2 --corpus bundled --tokens 1e5 --out DIRECTORY`
"""

import sys

from interp.__main__ import run

if __name__ == "__main__":
    sys.exit(run("training.command:main"))

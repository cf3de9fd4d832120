"""Ask published and bundled models what they can answer, and write one page: `runs/demo/index.html`.

    .venv/bin/python tools/demo.py

`tools/published.py` makes the published models. Bundled models answer what needs b_LN, and everything where published
ones cannot be made. Two commands run at a time, with one thread each, the longest first; each is printed as one would
type it, with the seconds that it took.
"""

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import published
from published import MINILM, SMOLLM2

OUT = Path("runs/demo")
TEXT = "--corpus bundled --limit 40 --context 64 --layout texts"
QUESTIONS = {
    SMOLLM2: [
        f"encoding {TEXT} --orders spearman --bases axis --ratios 0.5,2",
        f"attention {TEXT}",
        f"frequency {TEXT}",
    ],
    MINILM: ["probing --pairs bundled --limit 40", "attention --corpus bundled"],
    "tiny-gpt2": ["generation --corpus bundled", "frequency --corpus bundled"],
    "tiny-bert": ["frequency --corpus bundled"],
}
EVERYTHING = {name: ["report --pair-limit 40"] for name in ("tiny-gpt2", "tiny-bert")}
"""What bundled models are asked without published ones."""


def commands() -> list[list[str]]:
    try:
        directories = published.directories()
        questions = QUESTIONS
    except (OSError, RuntimeError) as error:
        print(f"Bundled models are asked everything, because published ones cannot be made: {error}", flush=True)
        directories = {}
        questions = EVERYTHING
    lines = []
    for name, commands_of_model in questions.items():
        run = ["--model", str(directories.get(name, name)), "--out", str(OUT / name), "--overwrite"]
        lines += [["interp", *shlex.split(question), *run] for question in commands_of_model]
    return lines


def run(line: list[str]) -> None:
    """Run a command with one thread, and print it. Raises CalledProcessError, after its output, if it fails."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *line],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout)
    print(f"{time.monotonic() - start:4.0f} s  {shlex.join(line)}", flush=True)
    done.check_returncode()


def main() -> int:
    lines = commands()
    print(f"{len(lines)} commands, a few minutes:", flush=True)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, lines))
        run(["interp", "page", str(OUT)])
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"Open {OUT / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

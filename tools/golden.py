"""Run `interp report --more` at small size on models of several kinds, to compare what versions of interp write.

    .venv/bin/python tools/golden.py OUT                      # each run in OUT/MODEL-BACKEND, a few minutes each
    .venv/bin/python tools/golden.py OUT tiny-gpt2            # only this model
    .venv/bin/python tools/same_tables.py OLD-OUT OUT

Each run is a process of its own with one thread, and holds `said.json`: its findings and captions, for
`tools/same_tables.py`. The cuts are made in the cache of `tools/published.py`. llama-stories260k is in `../shared`, or
in `INTERP_SHARED`, and is left out where that does not exist.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import published

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("INTERP_SHARED", ROOT.parent / "shared"))
STORIES = "llama-stories260k"
MODELS = {
    "tiny-gpt2": ("frequency", "generation", "encoding", "probing", "units"),
    "tiny-bert": ("frequency", "encoding", "probing", "units"),
    "SmolLM2-cut": ("frequency", "encoding", "probing", "units"),
    "MiniLM-cut": ("probing", "units"),
    STORIES: ("frequency", "encoding", "probing", "units"),
}
"""The questions that each model gets settings for. A question with settings must be one that it can answer."""
BACKENDS = ("hooked", "bridge")
REFUSED = {("MiniLM-cut", "bridge")}
TASKS = ["determiner_noun", "reflexive_number", "reflexive_gender", "npi_ever", "npi_any", "transitivity"]
SETTINGS: dict[str, dict[str, object]] = {
    "frequency": {"scales": [0, 0.5, 1]},
    "generation": {"n": 4, "new_tokens": 12, "decoders": ["greedy", "sample"], "scales": [0, 1], "batch_size": 4},
    "encoding": {
        "orders": ["spearman", "random"], "ratios": [0.5, 2], "weights": ["least_norm", "weighted", "top"],
        "prompts": 4,
    },
    "probing": {
        "states": [1, 2], "steps": 300, "seeds": [0, 1], "l0_strengths": [0.2, 1], "ks": [1, 5],
        "tasks": TASKS,
    },
    "units": {"tasks": TASKS},
}  # fmt: skip
REPORT = ["report", "--more", "--limit", "24", "--context", "48", "--batch-size", "8", "--pair-limit", "30"]
RUN = """
import sys
from pathlib import Path
from interp.cli import main
from same_tables import keep_said
code = main(sys.argv[2:])
if code == 0:
    keep_said(Path(sys.argv[1]))
sys.exit(code)
"""


def models(names: list[str]) -> dict[str, str]:
    """What `--model` is for each name."""
    paths = {name: name for name in names}
    if published.CUTS.keys() & paths.keys():
        paths.update({name: str(path) for name, path in published.cuts().items() if name in paths})
    if STORIES in paths:
        paths[STORIES] = str(SHARED / "models" / STORIES)
        if not Path(paths[STORIES]).is_dir():
            print(f"{paths.pop(STORIES)} is absent; {STORIES} is left out")
    return paths


def settings(name: str) -> dict[str, dict[str, object]]:
    """The settings of each question for a model."""
    chosen = {question: SETTINGS[question] for question in MODELS[name]}
    if name == "tiny-bert":  # which does not continue prompts
        chosen["encoding"] = dict(chosen["encoding"], prompts=None)
    return chosen


def run(name: str, model: str, backend: str, out: Path) -> str:
    """Make one run. Returns why it failed; empty if it did not."""
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(out), *REPORT, "--settings", json.dumps(settings(name))]
    command += ["--model", model, "--backend", backend, "--out", str(out)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=paths)
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    last = ended.stderr.strip().rpartition("\n")[2]
    return f"exit code {ended.returncode}: {last}" if ended.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run `interp report --more` at small size on several models.")
    parser.add_argument("out", type=Path, help="the directory of the runs, which must not hold them yet")
    parser.add_argument("models", nargs="*", help=f"default: {', '.join(MODELS)}")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]}; expected some of {', '.join(MODELS)}")
    failed = False
    for name, model in models(options.models or [*MODELS]).items():
        for backend in (backend for backend in BACKENDS if (name, backend) not in REFUSED):
            start = time.perf_counter()
            failure = run(name, model, backend, options.out / f"{name}-{backend}")
            print(f"{name}-{backend}: {time.perf_counter() - start:.0f} s {failure}", flush=True)
            failed = failed or bool(failure)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

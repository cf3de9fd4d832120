"""A corpus of any size is read in constant memory."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from toys import ROOT

MEGABYTE = 2**20
LINE = b"w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15\n"

SCRIPT = """
import json, resource, sys
from interp import corpora, load
from interp.cli import main

directory, counts, out, *paths = sys.argv[1:]
small, bomb, large = paths
model = load(directory)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def frequency(path, name):
    options = ["--limit", "300", "--unigram", counts, "--out", f"{out}/{name}"]
    assert main(["frequency", "--model", directory, "--corpus", path, *options]) == 0

def tokens(path):
    return sum(batch.n_read for batch in corpora.batches(model, path))

found = {}
for name, work in {
    "small": lambda: (frequency(small, "small"), tokens(small)),
    "bomb": lambda: frequency(bomb, "bomb"),
    "large": lambda: tokens(large),
}.items():
    done = work()
    found[name] = {"peak": peak(), "done": done}
print(json.dumps(found))
"""


def write(path: Path, megabytes: int) -> int:
    """Write a gzip file with this much text, a member of 8 MB repeated; returns the number of lines."""
    lines = 8 * MEGABYTE // len(LINE)
    member = gzip.compress(LINE * lines, 1)
    with path.open("wb") as file:
        for _ in range(megabytes // 8):
            file.write(member)
    return lines * (megabytes // 8)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units here")
def test_memory_does_not_grow_with_the_corpus(
    tmp_path: Path, hf_directory: Callable[[str], Path], counts: Path
) -> None:
    """A file of a few MB that unpacks to 2 GB is read with a limit, and 8 times a small file without one."""
    small, bomb, large = (tmp_path / f"{name}.txt.gz" for name in ("small", "bomb", "large"))
    small.write_bytes(gzip.compress(LINE * (MEGABYTE // len(LINE))))
    write(bomb, 2_048)
    lines = write(large, 8)
    assert bomb.stat().st_size < 40 * MEGABYTE
    given = [str(part) for part in (hf_directory("gpt2"), counts, tmp_path, small, bomb, large)]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *given],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["large"]["done"] == lines * 15 // 24 * 24, "every full row of 24 tokens"
    assert found["bomb"]["peak"] - found["small"]["peak"] < 30
    assert found["large"]["peak"] - found["small"]["peak"] < 30


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    import numpy as np

    save_file({"counts": np.arange(1, 68)}, tmp_path / "u.safetensors")
    return tmp_path / "u.safetensors"

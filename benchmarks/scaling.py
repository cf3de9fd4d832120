"""Two processes of one thread each (torchrun) against one process, for frequency and attention.

`python benchmarks/scaling.py [--quick]`. The analysis itself is reading the text and what follows it, without imports,
loading the model and writing the page.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from timing import Measured, Row, command, row

from interp.support.paths import BUNDLED

TIMED = """
import sys, time
import interp.analyses.attention, interp.analyses.frequency
from interp.cli import main
import interp.passes.execution as execution
original, seconds = execution.execute, []
def timed(*given, **options):
    start = time.perf_counter()
    found = original(*given, **options)
    seconds.append(time.perf_counter() - start)
    return found
for module in list(sys.modules.values()):
    if getattr(module, "execute", None) is original:
        module.execute = timed
code = main(sys.argv[1:])
if int(__import__("os").environ.get("RANK", "0")) == 0:
    print("SECONDS", sum(seconds), file=sys.stderr)
sys.exit(code)
"""


def command_line(arguments: list[str], processes: int, folder: Path, threads: int = 1) -> tuple[float, float]:
    """The seconds of the analysis, and of the whole command."""
    script = folder / "timed.py"
    script.write_text(TIMED)
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    start = time.perf_counter()
    done = subprocess.run(
        [*launch, str(script), *arguments, "--out", str(folder / "out"), "--overwrite"],
        env=dict(os.environ, OMP_NUM_THREADS=str(threads)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    analysis = next(line for line in done.stderr.splitlines() if line.startswith("SECONDS"))
    return float(analysis.split()[1]), time.perf_counter() - start


def rows(quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus = folder / "text.txt"
        corpus.write_text((BUNDLED / "text.txt").read_text(encoding="utf-8") * (1 if quick else 3), encoding="utf-8")
        for name in ("frequency",) if quick else ("frequency", "attention"):
            arguments = [name, "--model", "tiny-gpt2", "--corpus", str(corpus), *(["--limit", "20"] if quick else [])]
            analysis: dict[int, list[float]] = {1: [], 2: []}
            command: dict[int, list[float]] = {1: [], 2: []}
            for _ in range(repeats):
                for processes in (1, 2):
                    inside, outside = command_line(arguments, processes, folder)
                    analysis[processes].append(inside)
                    command[processes].append(outside)
            threads = max(2, os.cpu_count() or 2)
            threaded = [command_line(arguments, 1, folder, threads)[0] for _ in range(repeats)]
            yield row(
                f"interp {name} in two processes", "tiny-gpt2, the analysis itself", Measured(analysis[2]),
                other=(f"one process of {threads} threads", Measured(threaded)), note="one thread per process",
            )  # fmt: skip
            for scope, seconds in (
                ("the analysis itself", analysis),
                ("the whole command, with imports and page", command),
            ):
                yield row(
                    f"interp {name} in two processes", f"tiny-gpt2, {scope}", Measured(seconds[2]),
                    other=("one process of one thread", Measured(seconds[1])), note="one thread per process",
                )  # fmt: skip


if __name__ == "__main__":
    command(rows, __doc__)

"""Two processes of one thread (torchrun) against one process of one thread, on frequency and attention.

Prints a Markdown table: seconds of the analysis itself (reading the text and what follows; without imports, loading
and the page) and of the whole command, median of the repeats, and the ratio. `python benchmarks/scaling.py [--quick]`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import alternate, markdown, ratio

from interp.paths import BUNDLED

TIMED = """
import sys, time
import interp, interp.frequency, interp.outliers.study
from interp.cli import main
import interp.passes as passes
original, seconds = passes.run, []
def timed(*given, **options):
    start = time.perf_counter()
    found = original(*given, **options)
    seconds.append(time.perf_counter() - start)
    return found
for module in list(sys.modules.values()):
    if getattr(module, "run", None) is original:
        module.run = timed
code = main(sys.argv[1:])
if int(__import__("os").environ.get("RANK", "0")) == 0:
    print("SECONDS", sum(seconds), file=sys.stderr)
sys.exit(code)
"""


def command(arguments: list[str], processes: int, folder: Path) -> tuple[float, float]:
    """Seconds of the analysis and of the whole command."""
    script = folder / "timed.py"
    script.write_text(TIMED)
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    start = time.perf_counter()
    done = subprocess.run(
        [*launch, str(script), *arguments, "--out", str(folder / "out"), "--overwrite"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    analysis = next(line for line in done.stderr.splitlines() if line.startswith("SECONDS"))
    return float(analysis.split()[1]), time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs, one repeat")
    quick = parser.parse_args().quick
    repeats = 1 if quick else 3
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus = folder / "text.txt"
        corpus.write_text((BUNDLED / "text.txt").read_text(encoding="utf-8") * (1 if quick else 10), encoding="utf-8")
        for name in ("frequency", "attention"):
            arguments = [name, "--model", "tiny-gpt2", "--corpus", str(corpus)]
            analysis: dict[str, list[float]] = {"one": [], "two": []}

            def measure(key: str, processes: int, arguments: list[str] = arguments, into: dict = analysis) -> None:
                into[key].append(command(arguments, processes, folder)[0])

            whole = alternate({"one": lambda: measure("one", 1), "two": lambda: measure("two", 2)}, repeats=repeats)
            for what, seconds in (("analysis", {k: v[1:] for k, v in analysis.items()}), ("whole command", whole)):
                rows.append(
                    {
                        "command": name, "time of": what,
                        "one process, s": f"{statistics.median(seconds['one']):.1f}",
                        "two processes, s": f"{statistics.median(seconds['two']):.1f}",
                        "ratio (range)": ratio(seconds, "one", "two"),
                    }
                )  # fmt: skip
    print(markdown(rows))

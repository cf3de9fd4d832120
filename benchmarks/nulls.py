"""How often verdicts err: on draws in which there is nothing to find, and on draws with a planted effect.

`python benchmarks/nulls.py --out DIR [--quick] [--only WORDS]` runs the cells of `null_cells.py`. A cell is a finding
on one kind of draws. Its verdict errs if it is "yes" although there is nothing to find, or "no" although an effect of
twice the smallest size of interest was planted. A cell fails if the lower end of the 99 % Clopper–Pearson interval of
its error rate lies above 5 %, and does so again with other seeds. For planted effects the table also has the share of
"cannot tell", which is at most 20 % where a finding has enough power.

The number of draws of a cell is 2,000, 400 or 100, depending on what one draw costs; it is part of the cell, as the
seeds are. Verdicts are kept in DIR after every draw, so that the command can be stopped and started again. `--quick`
runs the first 12 draws of each cell, in about two minutes. Prints the Markdown tables of benchmarks/NULLS.md.
"""

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process for each core

import numpy as np
from scipy import stats
from timing import markdown
from tqdm.auto import tqdm

from interp.results.findings import Verdict

__all__ = ["Cell", "Count", "run"]

Kind: TypeAlias = Literal["null", "planted"]

QUICK = 12
LEVEL = 0.05
CONFIDENCE = 0.99
FEWEST = 100
"""With fewer draws a cell counts as untested."""
_AGAIN = 1_000_000  # added to the seeds of the second run


class Cell(NamedTuple):
    """A finding on one kind of draws.

    Attributes:
        analysis, question, draws: what the table calls them.
        kind: whether the draws have nothing to find, or a planted effect.
        draw: random generator → the verdict.
        n: the number of draws.
    """

    analysis: str
    question: str
    draws: str
    kind: Kind
    draw: Callable[[np.random.Generator], Verdict]
    n: int

    @property
    def name(self) -> str:
        return f"{self.analysis}: {self.question} ({self.draws})"

    @property
    def error(self) -> Verdict:
        return "yes" if self.kind == "null" else "no"


class Count(NamedTuple):
    """The verdicts of a cell."""

    cell: Cell
    verdicts: Counter[str]

    @property
    def n(self) -> int:
        return self.verdicts.total()

    @property
    def errors(self) -> int:
        return self.verdicts[self.cell.error]

    @property
    def interval(self) -> tuple[float, float]:
        """The Clopper–Pearson interval of the error rate."""
        exact = stats.binomtest(self.errors, self.n).proportion_ci(CONFIDENCE, "exact")
        return float(exact.low), float(exact.high)

    @property
    def fails(self) -> bool:
        return self.interval[0] > LEVEL

    @property
    def row(self) -> dict[str, str]:
        low, high = self.interval
        outcome = "fails" if self.fails else "untested" if self.n < FEWEST else "passes"
        return {
            "analysis": self.cell.analysis,
            "question": self.cell.question,
            "draws": self.cell.draws,
            "n": f"{self.n:,}",
            "yes": f"{self.verdicts['yes']:,}",
            "partly": f"{self.verdicts['partly']:,}",
            "no": f"{self.verdicts['no']:,}",
            "cannot tell": f"{self.verdicts['cannot tell']:,}",
            "errors, 99 %": f"{self.errors / self.n:.1%} [{low:.1%}, {high:.1%}]",
            "": outcome,
        }


def verdicts_of(cell: Cell, n: int, first_seed: int, path: Path) -> Counter[str]:
    """The verdicts of a cell's draws, which are added to those in the file."""
    verdicts = path.read_text().split("\n")[:-1] if path.exists() else []  # a line that was not finished is drawn again
    with path.open("w") as file:
        file.writelines(f"{verdict}\n" for verdict in verdicts)
        for seed in range(first_seed + len(verdicts), first_seed + n):
            verdicts.append(cell.draw(np.random.default_rng(seed)))
            print(verdicts[-1], file=file, flush=True)
    return Counter(verdicts[:n])


def run(number: int, cell: Cell, directory: Path, limit: float = math.inf) -> Count:
    """Run a cell, and once more with other seeds if it fails."""
    n = int(min(cell.n, limit))
    first = Count(cell, verdicts_of(cell, n, 0, directory / f"{number}.txt"))
    if not first.fails:
        return first
    return Count(cell, verdicts_of(cell, n, _AGAIN, directory / f"{number}-again.txt"))


def _run(job: tuple[int, Path, float]) -> Count:
    from null_cells import CELLS

    number, directory, limit = job
    return run(number, CELLS[number], directory, limit)


def main() -> int:
    from null_cells import CELLS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="keep the verdicts here")
    parser.add_argument("--quick", action="store_true", help=f"only the first {QUICK} draws of each cell")
    parser.add_argument("--only", default="", help="only cells whose name has these words")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    limit = QUICK if arguments.quick else math.inf
    jobs = [(number, arguments.out, limit) for number, cell in enumerate(CELLS) if arguments.only in cell.name]
    with ProcessPoolExecutor(arguments.processes) as pool:
        counts = list(tqdm(pool.map(_run, jobs), total=len(jobs), unit="cell"))
    print(markdown([count.row for count in counts if count.cell.kind == "null"]))
    print("\nWith a planted effect:\n")
    print(markdown([count.row for count in counts if count.cell.kind == "planted"]))
    rates = [count.errors / count.n for count in counts if count.cell.kind == "null"]
    failed = [count.cell.name for count in counts if count.fails]
    print(
        f"\nMean error rate over {len(rates)} cells with nothing to find: {np.mean(rates):.1%}. Failed: {len(failed)}."
    )
    for name in failed:
        print(f"- {name}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""What a run survives: every long command is killed, stopped or given a full disk, restarted, and checked.

`python benchmarks/survival.py [--quick] [--times N] [--only COMMAND…] [--backend bridge]` prints a Markdown table. It
needs Linux and OMP_NUM_THREADS=1, because more threads sum in another order. For root, the disk is a tmpfs that is too
small; for other users, a limit on the size of files takes its place.

The moments of the kills are spread over the time of an undisturbed run. A run is killed at the first moment, restarted,
killed at the next one, and so on until it ends by itself. Its files are then compared with those of the undisturbed
run, and a new run begins, until all moments have been used. The same is done with one of two processes in the
environment of torchrun, and with `interp merge`. Two writers are the same command, started twice at the same time in
the same directory: one of them does the work, or both.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from runs import Ended, contents, disk, run, run_ranks, run_together, truncated
from timing import markdown

import interp
import interp.corpora.pairs
from interp.support.paths import BUNDLED

UNDIVIDED = ("train",)
"""Commands that run in one process only."""
Line: TypeAlias = Callable[[Path], list[str]]
"""A function that returns the command line for a directory."""
Interrupted: TypeAlias = Callable[[Path, float | None], Ended]
"""A function that runs a command in a directory, and kills it after some seconds."""
Stopped: TypeAlias = Callable[..., Ended]
"""The same, with the other arguments of `run`."""


@dataclass
class Found:
    """What was counted for one command."""

    seconds: float = 0.0
    kills: int = 0
    ends: int = 0
    different: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    stops: int = 0
    full: int = 0
    ranks: int = 0
    merges: int = 0
    writers: int = 0
    wrong: list[str] = field(default_factory=list)


def commands(folder: Path, share: float, backend: str) -> dict[str, list[str]]:
    """Command lines without --out that take 5 to 70 seconds with one thread; `share` scales how much they read.

    `train` stands for `tools/train.py`.
    """
    lines = (BUNDLED / "text.txt").read_text(encoding="utf-8").splitlines()
    corpus = folder / "text.txt"
    corpus.write_text("\n".join(lines * 20), encoding="utf-8")
    pairs = folder / "pairs.jsonl"
    table = interp.corpora.pairs.load("bundled", limit=40)
    table[table["UID"].isin(table["UID"].unique()[:4])].to_json(pairs, orient="records", lines=True)
    n = lambda n_full: str(max(20, round(n_full * share)))  # noqa: E731
    model = ["--model", "tiny-gpt2", "--backend", backend]
    read = [*model, "--corpus", str(corpus), "--limit"]
    return {
        "frequency": ["frequency", *read, n(800), "--scales", "0:1:0.1"],
        "attention": ["attention", *read, n(200)],
        "encoding": ["encoding", *read, n(100)],
        "probing": ["probing", *model, "--pairs", str(pairs)],
        "generation": ["generation", *model, "--corpus", str(corpus), "--n", n(10)],
        "train": ["train", "--kind", "gpt2", "--corpus", str(corpus), "--limit", "1600", "--tokens", n(30_000)],
        "report": ["report", *model, "--corpus", str(corpus), "--pairs", str(pairs), "--limit", n(100)],
    }  # fmt: skip


def compare(counts: Found, expected: dict[str, bytes], out: Path, ended: Ended) -> None:
    """Check a run that came to its end, and remove its files. `out` is named after what interrupted it."""
    counts.ends += 1
    if not ended.is_done:
        counts.wrong.append(f"{out.name}: exit code {ended.code}: {ended.said.strip()[-300:]}")
    here = contents(out)
    counts.different += [f"{out.name}/{name}" for name, value in expected.items() if here.get(name) != value]
    counts.left += [f"{out.name}/{name}" for name in here if name not in expected]
    shutil.rmtree(out)


def killed(
    counts: Found, interrupted: Interrupted, out: Path, expected: dict[str, bytes], seconds: float, moments: list[float]
) -> int:
    """SIGKILL at each of the moments, which are shares of `seconds`; returns the number of kills.

    If a run comes to its end before it is killed, the seconds were too many.
    """
    waiting = list(moments)
    kills = 0
    is_first = True
    while waiting:
        moment = waiting[0 if is_first else -1]
        ended = interrupted(out, moment * seconds)
        if ended.code == -signal.SIGKILL:
            waiting.remove(moment)
            kills = kills + 1
            is_first = False
            counts.truncated += truncated(out) if out.exists() else []
        else:
            if is_first:
                seconds = 0.98 * ended.seconds
            compare(counts, expected, out, ended)
            is_first = True
    if not is_first:
        compare(counts, expected, out, interrupted(out, None))
    return kills


def stopped(counts: Found, stops: Stopped, out: Path, expected: dict[str, bytes], moments: list[float]) -> None:
    """SIGINT (Ctrl-C) at each of the moments: exit code 130, a message that is true, and a restart that completes."""
    for moment in moments:
        ended = stops(out, after=moment, sends=signal.SIGINT)
        if ended.is_done:
            shutil.rmtree(out)
            continue
        counts.stops += 1
        if ended.code != 130 or "interp: error: stopped" not in ended.said or "Traceback" in ended.said:
            counts.wrong.append(f"Ctrl-C after {moment:.2f} s: exit code {ended.code}: {ended.said.strip()[-300:]}")
        files = [path for path in out.rglob("*") if path.is_file() and path.name != "started.json"]
        if ("the same command resumes" in ended.said) != bool(files):
            counts.wrong.append(f"Ctrl-C after {moment:.2f} s left {len(files)} files: {ended.said.strip()[-300:]}")
        if out.exists():
            counts.truncated += truncated(out)
            counts.left += [str(path) for path in out.rglob("*.tmp")]
        compare(counts, expected, out, stops(out))


def full(counts: Found, stops: Stopped, folder: Path, expected: dict[str, bytes], shares: list[float]) -> None:
    """Room for only a share of the files: exit code 1, one line with the path, and a restart that completes."""
    size = sum(map(len, expected.values()))
    largest = max(map(len, expected.values()))
    for share in shares:
        with disk(folder, round(size * share)) as room:
            out = folder / "full"
            ended = stops(out, largest=None if room else round(largest * share))
            if ended.is_done:
                shutil.rmtree(out)
                continue
            counts.full += 1
            lines = [line for line in ended.said.splitlines() if line.startswith("interp: error: ")]
            clear = len(lines) == 1 and "no room to write" in lines[0] and str(folder) in lines[0]
            if ended.code != 1 or not clear or "Traceback" in ended.said:
                counts.wrong.append(f"{share:.0%} of the disk: exit code {ended.code}: {ended.said.strip()[-300:]}")
            counts.truncated += truncated(folder)
            counts.left += [str(path) for path in folder.rglob("*.tmp")]
            if room:
                room()
            compare(counts, expected, out, stops(out))


def divided(counts: Found, line: Line, folder: Path, times: int, rng: random.Random) -> None:
    """SIGKILL of one of two processes under torchrun, and of the command that merges two parts."""

    def on_ranks(out: Path, after: float | None = None) -> Ended:
        return run_ranks(line(out), said(out), after=after, victim=rng.randrange(2))

    def merged(out: Path, after: float | None = None) -> Ended:
        if not out.exists():
            shutil.copytree(parts, out)
        return run(["merge", str(out)], said(out), after=after)

    parts = folder / "parts"
    for index in range(2):
        part = run([*line(parts), "--shard", f"{index}/2"], said(parts))
        if part.code:
            counts.wrong.append(f"part {index}: exit code {part.code}: {part.said.strip()[-300:]}")
    for name, interrupted in (("ranks", on_ranks), ("merges", merged)):
        undisturbed = folder / f"{name}-undisturbed"
        first = interrupted(undisturbed)
        if first.code:
            counts.wrong.append(f"{name}: exit code {first.code}: {first.said.strip()[-300:]}")
            continue
        expected = contents(undisturbed)
        kills = killed(counts, interrupted, folder / name, expected, first.seconds, spread(times, rng))
        setattr(counts, name, kills)


def twice(counts: Found, line: Line, out: Path, expected: dict[str, bytes], times: int) -> None:
    """The same command, started twice at the same time in the same directory."""
    for _ in range(times):
        first, other = run_together([line(out), line(out)], said(out))
        counts.writers += 1
        if not other.is_done or 0 not in (first.code, other.code):
            counts.wrong.append(f"second writer: exit code {other.code}: {other.said.strip()[-300:]}")
        compare(counts, expected, out, first)


def said(out: Path) -> Path:
    """The file for stderr of a run in a directory."""
    return out.with_name(f"{out.name}.stderr")


def spread(n: int, rng: random.Random) -> list[float]:
    """A random number from each n-th of the interval from 0 to 1, in random order."""
    moments = [(i + rng.random()) / n for i in range(n)]
    rng.shuffle(moments)
    return moments


def measured(name: str, arguments: list[str], folder: Path, times: int, seed: int) -> Found:
    """Everything that is counted for one command."""
    folder.mkdir()
    rng = random.Random(seed)

    def line(out: Path) -> list[str]:
        return [*arguments, "--out", str(out)]

    def alone(out: Path, after: float | None = None, **options: Any) -> Ended:
        return run(line(out), said(out), after=after, **options)

    undisturbed = folder / "undisturbed"
    first = alone(undisturbed)
    if first.code:
        sys.exit(f"{name} failed: {first.said}")
    counts = Found(seconds=first.seconds)
    expected = contents(undisturbed)
    counts.kills = killed(counts, alone, folder / "killed", expected, first.seconds, spread(times, rng))
    few_ranks, few = max(1, times // 4), max(1, times // 10)
    moments = [share * first.seconds for share in spread(max(1, times // 2), rng)]
    stopped(counts, alone, folder / "stopped", expected, moments)
    full(counts, alone, folder / "disk", expected, spread(few, rng))
    twice(counts, line, folder / "twice", expected, few)
    if name not in UNDIVIDED:
        divided(counts, line, folder, few_ranks, rng)
    return counts


def counted(names: list[str]) -> str:
    """How many there are, and the first names."""
    return str(len(names)) if not names else f"{len(names)}: {', '.join(sorted(set(names))[:3])}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use small inputs and three kills")
    parser.add_argument("--times", type=int, help="the number of kills per command [20]")
    parser.add_argument("--only", nargs="+", help="run only these commands")
    parser.add_argument("--backend", default="hooked", choices=("hooked", "bridge"), help="of tiny-gpt2 [hooked]")
    parser.add_argument("--seed", type=int, default=0, help="the seed for the moments")
    chosen = parser.parse_args()
    times = chosen.times or (3 if chosen.quick else 20)
    rows = []
    interp.load("tiny-gpt2", backend=chosen.backend)  # triggers the late imports
    with tempfile.TemporaryDirectory() as temporary:
        lines = commands(Path(temporary), 0.1 if chosen.quick else 1.0, chosen.backend)
        for name, arguments in lines.items():
            if chosen.only and name not in chosen.only:
                continue
            found = measured(name, arguments, Path(temporary, name), times, chosen.seed)
            is_divided = name not in UNDIVIDED
            rows.append(
                {
                    "command": name, "seconds": f"{found.seconds:.1f}", "killed": str(found.kills),
                    "Ctrl-C": str(found.stops), "full disk": str(found.full), "two writers": str(found.writers),
                    "a rank killed": str(found.ranks) if is_divided else "–",
                    "merge killed": str(found.merges) if is_divided else "–", "runs completed": str(found.ends),
                    "files that differ": counted(found.different), "truncated": counted(found.truncated),
                    "left behind": counted(found.left), "other": counted(found.wrong),
                }
            )  # fmt: skip
            print(markdown(rows[-1:]), *found.wrong, sep="\n", file=sys.stderr, flush=True)
    print(markdown(rows))

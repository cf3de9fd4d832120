"""What a run survives: every long command is killed, stopped or given a full disk, restarted, and checked.

`python benchmarks/survival.py [--quick] [--times N] [--only COMMAND…] [--backend bridge]` prints a Markdown table. It
needs Linux and OMP_NUM_THREADS=1, because more threads sum in another order. For root, the disk is a tmpfs that is too
small; for other users, a limit on the size of files takes its place.

Every run is its own process, forked from this one after the imports and before any work, so that it is interrupted in
its work and not in imports. The moments of the kills are spread over the time of an undisturbed run. A run is killed at
the first moment, restarted, killed at the next one, and so on until it ends by itself. Its files are then compared with
those of the undisturbed run, and a new run begins, until all moments have been used. Checkpoints are kept every half
second rather than every 20 seconds (training: 120).
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as parquet
from safetensors import safe_open
from timing import markdown

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import training.command
import training.run

import interp
import interp.corpora.pairs
import interp.pages
import interp.plots
import interp.run.observers
import interp.survey
from interp.cli import main
from interp.paths import BUNDLED

SECONDS_BETWEEN_CHECKPOINTS = 0.5
_ENDED = "already holds", "holds no unfinished run"
_TIMED = "seconds", "threads"  # of training.json


class Ended(NamedTuple):
    """How a run ended: its exit code (negative for a signal), what it wrote to stderr, and its seconds."""

    code: int
    said: str
    seconds: float


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
    wrong: list[str] = field(default_factory=list)


def commands(folder: Path, share: float, backend: str) -> dict[str, list[str]]:
    """Command lines without --out that take 10 to 40 seconds with one thread; `share` scales how much they read.

    `train` stands for `tools/train.py`.
    """
    lines = (BUNDLED / "text.txt").read_text(encoding="utf-8").splitlines()
    corpus = folder / "text.txt"
    corpus.write_text("\n".join(lines * 20), encoding="utf-8")
    pairs = folder / "pairs.jsonl"
    table = interp.corpora.pairs.load("bundled", limit=40)
    table[table["UID"].isin(table["UID"].unique()[:4])].to_json(pairs, orient="records", lines=True)
    n = lambda whole: str(max(20, round(whole * share)))  # noqa: E731
    model = ["--model", "tiny-gpt2", "--backend", backend]
    read = [*model, "--corpus", str(corpus), "--limit"]
    return {
        "frequency": ["frequency", *read, n(1600), "--scales", "0:1:0.1"],
        "attention": ["attention", *read, n(400)],
        "encoding": ["encoding", *read, n(200)],
        "probing": ["probing", *model, "--pairs", str(pairs)],
        "generation": ["generation", *model, "--corpus", str(corpus), "--n", n(20)],
        "train": ["train", "--kind", "gpt2", "--corpus", str(corpus), "--limit", "1600", "--tokens", n(60_000)],
        "report": ["report", *model, "--corpus", str(corpus), "--pairs", str(pairs), "--limit", n(200)],
    }  # fmt: skip


def start(arguments: list[str], out: Path, said: Path, largest: int | None = None) -> int:
    """Start a command line in a new process; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number, file in ((1, os.devnull), (2, said)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
        interp.run.observers.SECONDS_BETWEEN_CHECKPOINTS = SECONDS_BETWEEN_CHECKPOINTS
        training.run.SAVE_SECONDS = SECONDS_BETWEEN_CHECKPOINTS  # type: ignore[assignment]
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        line = [*arguments, "--out", str(out)]
        code = training.command.main(line[1:]) if line[0] == "train" else main(line)
        sys.stderr.flush()
        os._exit(code)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(99)


def run(
    arguments: list[str],
    out: Path,
    *,
    after: float | None = None,
    sends: signal.Signals = signal.SIGKILL,
    largest: int | None = None,
) -> Ended:
    """Run a command line to its end, or send it a signal after some seconds."""
    said = out.parent / f"{out.name}.stderr"
    began = time.monotonic()
    pid = start(arguments, out, said, largest)
    if after is not None:
        while (
            time.monotonic() - began < after and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            time.sleep(0.002)
        if time.monotonic() - began >= after:
            os.kill(pid, sends)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(code, said.read_text(encoding="utf-8"), time.monotonic() - began)


def contents(out: Path) -> dict[str, bytes]:
    """What a run wrote, by path, without the entries that depend on its time."""
    found = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    for name in [name for name in found if name.endswith("training.json")]:
        record = json.loads(found[name])
        found[name] = json.dumps({key: value for key, value in record.items() if key not in _TIMED}).encode()
    return found


def truncated(out: Path) -> list[str]:
    """Files that have their final name but cannot be read to the end."""

    def safetensors(path: Path) -> None:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                file.get_tensor(name)

    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": parquet.read_table,
        ".safetensors": safetensors,
        ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
        ".html": lambda path: path.read_text(encoding="utf-8").rindex("</html>"),
        ".pt": training.run.load_resume,
    }
    found = []
    for path in out.rglob("*"):
        if path.is_file() and not any(".tmp" in part for part in path.relative_to(out).parts):
            try:
                readers.get(path.suffix, lambda path: None)(path)
            except Exception as error:
                found.append(f"{path.relative_to(out)} ({type(error).__name__})")
    return found


def is_done(ended: Ended) -> bool:
    """Whether a run ended by itself, or had already ended when it was restarted."""
    return ended.code == 0 or (ended.code == 2 and any(words in ended.said for words in _ENDED))


def compare(found: Found, whole: dict[str, bytes], out: Path, ended: Ended) -> None:
    """Check a run that came to its end, and remove its files."""
    found.ends += 1
    if not is_done(ended):
        found.wrong.append(f"exit code {ended.code}: {ended.said.strip()[-300:]}")
    here = contents(out)
    found.different += [name for name, value in whole.items() if here.get(name) != value]
    found.left += [name for name in here if name not in whole]
    shutil.rmtree(out)


def killed(found: Found, arguments: list[str], out: Path, whole: dict[str, bytes], moments: list[float]) -> None:
    """SIGKILL at each of the moments."""
    waiting = list(moments)
    while waiting:
        is_first = not out.exists()
        moment = waiting[0 if is_first else -1]
        ended = run(arguments, out, after=moment)
        if ended.code == -signal.SIGKILL:
            waiting.remove(moment)
            found.kills += 1
            found.truncated += truncated(out) if out.exists() else []
        else:
            if is_first:  # it was faster than the undisturbed run, so the next ones may be too
                found.seconds = min(found.seconds, ended.seconds)
                waiting = [0.98 * later * ended.seconds / moment for later in waiting]
            compare(found, whole, out, ended)
    compare(found, whole, out, run(arguments, out))


def stopped(found: Found, arguments: list[str], out: Path, whole: dict[str, bytes], moments: list[float]) -> None:
    """SIGINT (Ctrl-C) at each of the moments: exit code 130, a message that is true, and a restart that completes."""
    for moment in moments:
        ended = run(arguments, out, after=moment, sends=signal.SIGINT)
        if is_done(ended):
            shutil.rmtree(out)
            continue
        found.stops += 1
        if ended.code != 130 or "interp: error: stopped" not in ended.said or "Traceback" in ended.said:
            found.wrong.append(f"Ctrl-C after {moment:.2f} s: exit code {ended.code}: {ended.said.strip()[-300:]}")
        kept = [path for path in out.rglob("*") if path.is_file() and path.name != "started.json"]
        if ("the same command resumes" in ended.said) != bool(kept):
            found.wrong.append(f"Ctrl-C after {moment:.2f} s left {len(kept)} files: {ended.said.strip()[-300:]}")
        if out.exists():
            found.truncated += truncated(out)
            found.left += [str(path) for path in out.rglob("*.tmp")]
        compare(found, whole, out, run(arguments, out))


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Callable[[], None] | None]:
    """A folder on a disk of a given size; yields a function that makes room on it, or None if it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    mounted = os.geteuid() == 0 and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode  # fmt: skip
    if not mounted:
        yield None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=1g", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def full(found: Found, arguments: list[str], folder: Path, whole: dict[str, bytes], shares: list[float]) -> None:
    """Room for only a share of the files: exit code 1, one line with the path, and a restart that completes."""
    size = sum(map(len, whole.values()))
    largest = max(map(len, whole.values()))
    for share in shares:
        with disk(folder, round(size * share)) as room:
            out = folder / "out"
            ended = run(arguments, out, largest=None if room else round(largest * share))
            if is_done(ended):
                shutil.rmtree(out)
                continue
            found.full += 1
            lines = [line for line in ended.said.splitlines() if line.startswith("interp: error: ")]
            clear = len(lines) == 1 and "no room to write" in lines[0] and str(folder) in lines[0]
            if ended.code != 1 or not clear or "Traceback" in ended.said:
                found.wrong.append(f"{share:.0%} of the disk: exit code {ended.code}: {ended.said.strip()[-300:]}")
            found.truncated += truncated(folder)
            found.left += [str(path) for path in folder.rglob("*.tmp")]
            if room:
                room()
            compare(found, whole, out, run(arguments, out))


def measured(name: str, arguments: list[str], folder: Path, times: int, seed: int) -> Found:
    """Everything that is counted for one command."""
    found = Found()
    undisturbed = folder / f"{name}-undisturbed"
    first = run(arguments, undisturbed)
    if first.code:
        sys.exit(f"{name} failed: {first.said}")
    found.seconds = first.seconds
    whole = contents(undisturbed)
    rng = random.Random(seed)
    moments = [found.seconds * (i + rng.random()) / times for i in range(times)]
    rng.shuffle(moments)
    killed(found, arguments, folder / name, whole, moments)
    fewer = max(1, times // 10)
    half = max(1, times // 2)
    stopped(found, arguments, folder / name, whole, [found.seconds * (i + rng.random()) / half for i in range(half)])
    full(found, arguments, folder / "disk", whole, [(i + rng.random()) / fewer for i in range(fewer)])
    return found


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
            found = measured(name, arguments, Path(temporary), times, chosen.seed)
            rows.append(
                {
                    "command": name, "seconds": f"{found.seconds:.1f}", "killed": str(found.kills),
                    "Ctrl-C": str(found.stops), "full disk": str(found.full), "runs completed": str(found.ends),
                    "files that differ": counted(found.different), "truncated": counted(found.truncated),
                    "left behind": counted(found.left), "other": counted(found.wrong),
                }
            )  # fmt: skip
            print(markdown(rows[-1:]), *found.wrong, sep="\n", file=sys.stderr, flush=True)
    print(markdown(rows))

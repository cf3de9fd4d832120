"""A command with its options by name: alone, one of several parts (`torchrun`, `--shard i/n`), or merged."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.flags import flag
from interp.disk.files import remove, replacing

COMMAND = "command.json"
ShardFlag = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="I/N", help="Do part I of N (from 0) of the work and leave it in --out, for interp merge."
    ),
]


@dataclass(frozen=True)
class Job:
    """What was asked for: the name of a command, and its options by name as JSON keeps them."""

    command: str
    options: dict[str, Any]

    @classmethod
    def of(cls, command: str, options: Mapping[str, Any]) -> "Job":
        return cls(command, json.loads(json.dumps(dict(options), default=str)))

    @classmethod
    def load(cls, path: Path) -> "Job":
        """The job that a part noted. Raises ValueError for anything else in its place."""
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error}); run this part again") from None
        if (
            not isinstance(noted, dict)
            or set(noted) != {"command", "options"}
            or not isinstance(noted["options"], dict)
        ):
            raise ValueError(f"{path} holds no command and its options; run this part again")
        if noted["command"] != path.parent.name.removeprefix("."):
            raise ValueError(
                f"{path} holds the command {noted['command']!r}, which leaves no part there; run this part again"
            )
        return cls(noted["command"], noted["options"])

    def save(self, path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"command": self.command, "options": self.options}), encoding="utf-8")

    def is_in(self, path: Path) -> bool:
        try:
            return Job.load(path) == self
        except (OSError, ValueError):
            return False


@contextmanager
def part(shard: str | None, device: str | None) -> Iterator[None]:
    """Join `torchrun`'s other processes, or do one part, or neither."""
    grouped = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if shard is None and not grouped:
        yield
        return
    one = None if shard is None else _parse(shard)
    if one and grouped:
        raise ValueError("--shard is for processes that torchrun did not start; leave it out")
    from interp.run import distributed

    try:
        with distributed.shard(*one) if one else distributed.group(device):
            yield
    except distributed.Unmerged as error:
        typer.echo(f"{error}; interp merge makes the result when all parts are done")


def check_alone(command: str) -> None:
    """Raise ValueError where `torchrun` has started a command many times that does not share out its work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"interp {command} runs in one process; start it without torchrun")


def _parse(shard: str) -> tuple[int, int]:
    index, slash, of = shard.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal() and int(index) < int(of)):
        raise ValueError(f"--shard {shard!r}: expected I/N with 0 ≤ I < N, such as 0/4")
    return int(index), int(of)


def is_alone() -> bool:
    """Whether no other process does a part of this run."""
    from interp.run import distributed

    return distributed.part().of == 1


def remember(directory: Path, job: Job) -> None:
    """Where this is a part of a run, note the job in its directory, so that `merge` can finish it."""
    from interp.run import distributed

    if distributed.is_shard():
        directory.mkdir(parents=True, exist_ok=True)
        job.save(directory / COMMAND)


def merge(directories: list[Path], command: Callable[[str], Callable[..., None]]) -> None:
    """Put the parts of a run together in the first directory, and do what none of them could do alone."""
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise ValueError(f"found a directory twice in {', '.join(map(str, directories))}; name each once")
    runs: dict[str, list[Path]] = {}
    for path in (path for directory in directories for path in sorted(directory.glob(f".*/{COMMAND}"))):
        runs.setdefault(path.parent.name, []).append(path)
    if not runs:
        raise ValueError(f"found no parts of a run (--shard) in {', '.join(map(str, directories))}")
    for name, paths in runs.items():
        jobs = [Job.load(path) for path in paths]
        asked = [{key: value for key, value in job.options.items() if key != "out"} for job in jobs]
        if len(paths) < len(directories) or any(one != asked[0] for one in asked):
            raise ValueError(
                f"expected the parts of one run of {name.removeprefix('.')}, found some in {len(paths)} of "
                f"{len(directories)} directories{_different(asked)}"
            )
        try:
            run = command(jobs[0].command)
        except ImportError:
            raise ValueError(f"{paths[0]} is of an analysis that is not installed: {jobs[0].command!r}") from None
        for other in paths[1:]:
            _bring(other.parent, paths[0].parent)
        run(**asked[0], out=directories[0])
        for other in paths[1:]:
            remove(other.parent)


def _different(asked: list[dict[str, Any]]) -> str:
    names = sorted({name for one in asked for name in one if one[name] != asked[0].get(name)})
    return f", with different options: {', '.join(map(flag, names))}" if names else ""


def _bring(source: Path, target: Path) -> None:
    """Copy what a part left, each file whole."""
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_file() and path.suffix != ".tmp":
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary:
                shutil.copyfile(path, temporary)

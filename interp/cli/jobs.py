"""A command with its options by name, run whole, as one of several parts (`torchrun`, `--shard i/n`), or merged."""

import functools
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from interp.cli.flags import Command, flag, parameter, signed
from interp.cli.screen import echo
from interp.support.disk import remove, replacing

__all__ = ["COMMAND", "Job", "in_parts", "is_grouped", "merge"]

COMMAND = "command.json"
_CONFIG = "YAML file with one option per line (seed: 1); flags override it. Each result has one that repeats its run."


@dataclass(frozen=True)
class Job:
    """What was asked for: the name of a command, and its options by name (except where to write)."""

    command: str
    options: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "Job":
        """The job that a part has recorded. Raises ValueError if the file holds anything else."""
        try:
            job = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecursionError, TypeError) as error:
            raise ValueError(f"{path} is damaged or does not name a command ({error}); run this part again") from None
        if path.parent.name != f".{job.command}" or not isinstance(job.options, dict):
            raise ValueError(f"{path} holds the command {job.command!r}, which left no part there; run this part again")
        return job

    def save(self, path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")


def in_parts(name: str) -> Callable[[Callable[..., None]], Command]:
    """Turn a function whose first argument is a `Job` into a command whose work can be divided among processes."""
    help_text = "Do only part I of N (counted from 0) of the work; interp merge puts the parts together."

    def decorate(function: Callable[..., None]) -> Command:
        @functools.wraps(function)
        def command(*, shard: str | None = None, config: str | None = None, **values: Any) -> None:
            assert config is None, "interp.cli.config puts its options in the command line"
            with _part(shard, values.get("device")):
                options = dict(values)
                options.pop("out", None)
                function(Job(name, options), **values)

        _, *keywords = inspect.signature(function).parameters.values()
        added = [parameter("shard", str, help_text, metavar="I/N"), parameter("config", str, _CONFIG, metavar="FILE")]
        return signed(command, [*keywords, *added])

    return decorate


@contextmanager
def _part(shard: str | None, device: str | None) -> Iterator[None]:
    """Join the other processes of `torchrun`, or do one part, or neither."""
    if shard is None and not is_grouped():
        yield
        return
    if shard is not None and is_grouped():
        raise ValueError("--shard cannot be used under torchrun, which divides the work itself; leave it out")
    index, _, total = ("0/1" if shard is None else shard).partition("/")
    if not re.fullmatch("[0-9]+/[0-9]+", f"{index}/{total}") or int(index) >= int(total):
        raise ValueError(f"--shard {shard!r}: expected I/N with 0 ≤ I < N, such as 0/4")
    from interp.passes import distributed

    try:
        with distributed.group(device) if shard is None else distributed.shard(int(index), int(total)):
            yield
    except distributed.Unmerged as error:
        echo(f"{error}; when all parts are done, run interp merge to make the result")


def is_grouped() -> bool:
    """Whether `torchrun` has started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def merge(directories: list[Path], command: Callable[[str], Command]) -> None:
    """Combine the parts of a run in the first directory, and do the work that no part could do alone."""
    listed = ", ".join(map(str, directories))
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise ValueError(f"found a directory twice in {listed}; name each directory once")
    runs: dict[str, list[Path]] = {}
    for directory in directories:
        for path in sorted(directory.glob(f".*/{COMMAND}")):
            runs.setdefault(path.parent.name, []).append(path.parent)
    if not runs:
        raise ValueError(f"found no parts of a run (--shard) in {listed}")
    for name, parts in runs.items():
        jobs = [Job.load(part / COMMAND) for part in parts]
        if len(parts) < len(directories) or any(job != jobs[0] for job in jobs):
            first = jobs[0].options
            differing = set()
            for job in jobs:
                for option, value in job.options.items():
                    if value != first.get(option):
                        differing.add(flag(option))
            problem = f"found some in {len(parts)} of {len(directories)} directories"
            problem += f", with different options: {', '.join(sorted(differing))}" if differing else ""
            raise ValueError(f"expected the parts of one run of {name[1:]}, {problem}")
        try:
            run = command(jobs[0].command)
        except ImportError:
            problem = f"{parts[0]} belongs to an analysis that is not installed"
            raise ValueError(f"{problem}: {jobs[0].command!r}; install its package") from None
        for part in parts[1:]:
            ignored = shutil.ignore_patterns("*.tmp")
            shutil.copytree(part, parts[0], ignore=ignored, copy_function=_copy_whole, dirs_exist_ok=True)
        run(**jobs[0].options, out=directories[0])
        for part in parts[1:]:
            remove(part)


def _copy_whole(source: str, target: str) -> None:
    with replacing(Path(target)) as temporary:
        shutil.copyfile(source, temporary)

"""Runs on many processes: `torchrun -m interp …`, `--shard i/n` and `interp merge`."""

import functools
import inspect
import json
import os
import shutil
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.disk.files import remove, replacing

arguments: ContextVar[list[str]] = ContextVar("arguments")
"""The command line that is being run."""
COMMAND = "command.json"
_COMMAND_OF = {"generation": "generate", "probing": "probe"} | {
    name: name for name in ("report", "frequency", "attention", "encoding")
}
"""The command that leaves a part of each analysis."""

ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="I/N", help="Do part I of N (from 0) of the work and leave it in --out, for interp merge."
    ),
]


def parallel(command: Callable[..., None]) -> Callable[..., None]:
    """A command that joins `torchrun`'s other processes, or does one part, with an option `--shard`."""

    @functools.wraps(command)
    def joined(*given: Any, shard: str | None = None, **options: Any) -> None:
        grouped = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if shard is None and not grouped:
            command(*given, **options)
            return
        part = None if shard is None else _parse(shard)
        if part and grouped:
            raise ValueError("--shard is for processes that torchrun did not start; leave it out")
        from interp.run import distributed

        try:
            with distributed.shard(*part) if part else distributed.group(options.get("device")):
                command(*given, **options)
        except distributed.Unmerged as error:
            typer.echo(f"{error}; interp merge makes the result when all parts are done")

    signature = inspect.signature(command)
    shard = inspect.Parameter("shard", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ShardOption)
    joined.__signature__ = signature.replace(parameters=[*signature.parameters.values(), shard])  # type: ignore[attr-defined]
    joined.__annotations__ = command.__annotations__ | {"shard": ShardOption}
    return joined


def alone(command: Callable[..., None]) -> Callable[..., None]:
    """A command that does not share out its work, and refuses to be started many times at once by `torchrun`."""

    @functools.wraps(command)
    def checked(*given: Any, **options: Any) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(f"interp {command.__name__} runs in one process; start it without torchrun")
        command(*given, **options)

    return checked


def _parse(shard: str) -> tuple[int, int]:
    index, slash, of = shard.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal() and int(index) < int(of)):
        raise ValueError(f"--shard {shard!r}: expected I/N with 0 ≤ I < N, such as 0/4")
    return int(index), int(of)


def is_alone() -> bool:
    """Whether no other process does a part of this run."""
    from interp.run import distributed

    return distributed.part().of == 1


def remember(directory: Path) -> None:
    """Where this is a part of a run, note the command in its directory, so that `merge` can finish it."""
    from interp.run import distributed

    if distributed.is_shard():
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / COMMAND) as temporary:
            temporary.write_text(json.dumps(_without(arguments.get(), "--shard")), encoding="utf-8")


def _without(given: list[str], option: str) -> list[str]:
    """A command line without an option and its value."""
    kept, skip = [], False
    for argument in given:
        if not skip and argument != option and not argument.startswith(f"{option}="):
            kept.append(argument)
        skip = not skip and argument == option
    return kept


def _command(path: Path) -> list[str]:
    """The command line that a part noted. Raises ValueError for anything else in its place."""
    try:
        command = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); run this part again") from None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError(f"{path} holds no command line; run this part again")
    if command[:1] != [_COMMAND_OF.get(path.parent.name.removeprefix("."), "")]:
        raise ValueError(f"{path} holds the command {command[:1]}, which leaves no part there; run this part again")
    return command


def merge(
    directories: Annotated[
        list[Path], typer.Argument(help="The --out of the parts: one for all, or one of each.", metavar="DIRECTORY…")
    ],
) -> None:
    """Make the result of a run that was done in parts.

    The parts are those of --shard 0/N to N-1/N. They are put together in the first DIRECTORY, and what none of them
    could do alone is done. Run it where the parts were run, so that relative paths are found.
    """
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise ValueError(f"found a directory twice in {', '.join(map(str, directories))}; name each once")
    runs: dict[str, list[Path]] = {}
    for path in (path for directory in directories for path in sorted(directory.glob(f".*/{COMMAND}"))):
        runs.setdefault(path.parent.name, []).append(path)
    if not runs:
        raise ValueError(f"found no parts of a run (--shard) in {', '.join(map(str, directories))}")
    for name, paths in runs.items():
        commands = {json.dumps(_without(_command(path), "--out")) for path in paths}
        if len(paths) < len(directories) or len(commands) > 1:
            raise ValueError(
                f"expected the parts of one run of {name.removeprefix('.')}, found some in {len(paths)} of "
                f"{len(directories)} directories"
                + (f", of different commands: {'; '.join(sorted(commands))}" if len(commands) > 1 else "")
            )
        for other in paths[1:]:
            _bring(other.parent, paths[0].parent)
        from interp.cli.app import main

        code = main([*json.loads(commands.pop()), "--out", str(directories[0])])
        if code:
            raise typer.Exit(code)
        for other in paths[1:]:
            remove(other.parent)


def _bring(source: Path, target: Path) -> None:
    """Copy what a part left, each file whole."""
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_file() and path.suffix != ".tmp":
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary:
                shutil.copyfile(path, temporary)

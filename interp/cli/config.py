"""Options in a file: `--config FILE`, and the file in every result with which its run can be repeated."""

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
import yaml

from interp.cli.jobs import Job
from interp.disk import OPTIONS, replacing

__all__ = ["expanded", "keep"]

_CONFIG = "--config"
_NOT_KEPT = ("dry_run", "measure", "overwrite", "as_json")


def keep(job: Job, folder: Path) -> None:
    """Write, next to a result, the command and options with which the run can be repeated."""
    given = {name: value for name, value in job.options.items() if name not in _NOT_KEPT and value is not None}
    how = f"interp {job.command} --config FILE --out DIR"
    head = f"# interp {metadata.version('interp')}. To repeat the run from the same place: {how}\n"
    with replacing(folder / OPTIONS) as temporary:
        text = yaml.safe_dump({"command": job.command, **given}, sort_keys=False, allow_unicode=True, width=10_000)
        temporary.write_text(head + text, encoding="utf-8")


def expanded(arguments: Sequence[str], application: typer.Typer) -> list[str]:
    """A command line in which the options of `--config FILE` appear as flags. Flags that were given override them.

    Raises FileNotFoundError if there is no such file. Raises ValueError if it is not a YAML file of options, or has an
    option that the command does not have.
    """
    name, *rest = arguments
    at = next((i for i, part in enumerate(rest) if part == _CONFIG or part.startswith(f"{_CONFIG}=")), None)
    if at is None:
        return [*arguments]
    command = typer.main.get_command(application).commands.get(name)  # type: ignore[attr-defined]
    known = {one.opts[0].removeprefix("--"): one for one in (command.params if command else [])}
    if "config" not in known:
        return [*arguments]
    _, _, path = rest[at].partition("=")
    if not path:
        path = rest[at + 1] if at + 1 < len(rest) else ""
        del rest[at + 1 : at + 2]
    del rest[at]
    options = _read(Path(path), name)
    flags: list[str] = []
    for option, value in options.items():
        one = known.get(option.replace("_", "-"))
        if one is None or _CONFIG in one.opts:
            listed = ", ".join(sorted({*known} - {"config"}))
            what = f"{path} has the option {option!r}, which interp {name} does not have"
            raise ValueError(f"{what}; expected one of {listed}")
        spelled = [*one.opts, *one.secondary_opts]
        if not any(part.partition("=")[0] in spelled for part in rest):
            flags += _flags(one, value)
    return [name, *flags, *rest]


def _read(path: Path, name: str) -> dict[str, Any]:
    if not path.is_file():
        what = f"{str(path)!r} {'is no file' if path.exists() else 'does not exist'}"
        raise FileNotFoundError(f"--config {what}; expected a YAML file of options, such as {OPTIONS} beside a result")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not YAML ({error}); write one per line, such as 'seed: 1'") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"--config {path} has no options; write one per line, such as 'seed: 1'")
    if (command := found.pop("command", name)) != name:
        raise ValueError(f"--config {path} is for interp {command}; run that, or remove the line 'command'")
    return found


def _flags(one: Any, value: Any) -> list[str]:
    """An option in the form it has on the command line."""
    if value is None:
        return []
    if isinstance(value, bool):
        named = one.opts if value else one.secondary_opts
        return list(named[:1])
    if isinstance(value, list) and one.multiple:
        return [part for item in value for part in (one.opts[0], str(item))]
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return [f"{one.opts[0]}={json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}"]

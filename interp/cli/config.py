"""Options in a file: `--config FILE`, and the file in every result with which its run can be repeated.

Values are read as text and converted as those of the flags. YAML itself would read `0:1:0.1` as 60.1, `010` as 8 and
`no` as false.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
import yaml

from interp.cli.jobs import Job
from interp.support.disk import OPTIONS, replacing
from interp.support.paths import local_path
from interp.support.words import meant

__all__ = ["expanded", "keep"]

_CONFIG = "--config"
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOT_KEPT = ("dry_run", "measure", "overwrite", "as_json")


def keep(job: Job, folder: Path) -> None:
    """Write, next to a result, the command and options with which the run can be repeated."""
    options = {"command": job.command}
    for name, value in job.options.items():
        if name not in _NOT_KEPT and value is not None:
            options[name] = value
    command = f"interp {job.command} --config FILE --out DIR"
    head = f"# interp {metadata.version('interp')}. To repeat the run from the same place: {command}\n"
    with replacing(folder / OPTIONS) as temporary:
        text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=10_000)
        temporary.write_text(head + text, encoding="utf-8")


def expanded(arguments: Sequence[str], application: typer.Typer) -> list[str]:
    """A command line in which the options of `--config FILE` appear as flags. Flags that were given override them.

    Raises FileNotFoundError if there is no such file. Raises ValueError if it is not a YAML file of options; has an
    option twice, an option that the command does not have, or an alias (of which a few lines can make gigabytes); and
    for a switch that is neither true nor false.
    """
    name, *words = arguments
    place = next((i for i, part in enumerate(words) if part == _CONFIG or part.startswith(f"{_CONFIG}=")), None)
    if place is None:
        return [*arguments]
    command = typer.main.get_command(application).commands.get(name)  # type: ignore[attr-defined]
    parameters = {parameter.opts[0].removeprefix("--"): parameter for parameter in (command.params if command else [])}
    if "config" not in parameters:
        return [*arguments]
    _, _, path = words[place].partition("=")
    if not path:
        path = words[place + 1] if place + 1 < len(words) else ""
        del words[place + 1 : place + 2]
    del words[place]
    options = _read(local_path(path), name)
    flags: list[str] = []
    for option, node in options.items():
        parameter = parameters.get(option)
        if parameter is None or _CONFIG in parameter.opts:
            listed = ", ".join(sorted({*parameters} - {"config"}))
            problem = f"{path} has the option {option!r}{meant(option, parameters)}, which interp {name} does not have"
            raise ValueError(f"{problem}; expected one of {listed}")
        spelled = [*parameter.opts, *parameter.secondary_opts]
        if not any(part.partition("=")[0] in spelled for part in words):
            flags += _flags(parameter, node, f"--config {path}, line {node.start_mark.line + 1}: {option}")
    return [name, *flags, *words]


def _read(path: Path, name: str) -> dict[str, yaml.Node]:
    """The values of a file, not yet converted, by the name of the option as its flag has it."""
    if not path.is_file():
        problem = f"{str(path)!r} {'is no file' if path.exists() else 'does not exist'}"
        raise FileNotFoundError(
            f"--config {problem}; expected a YAML file of options, such as {OPTIONS} beside a result"
        )
    try:
        text = path.read_text(encoding="utf-8")
        aliases = [event for event in yaml.parse(text) if isinstance(event, yaml.AliasEvent)]
        root = yaml.compose(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config {path} is not YAML ({error}); write one per line, such as 'seed: 1'") from None
    if aliases:
        line = aliases[0].start_mark.line + 1
        raise ValueError(f"--config {path}, line {line}: found the alias *{aliases[0].anchor}; write out what it names")
    if not isinstance(root, yaml.MappingNode) or not all(isinstance(key, yaml.ScalarNode) for key, _ in root.value):
        raise ValueError(f"--config {path} has no options; write one per line, such as 'seed: 1'")
    options = _by_key([(key.value.replace("_", "-"), value) for key, value in root.value], f"--config {path}")
    command = options.pop("command", None)
    if command is not None and command.value != name:
        raise ValueError(f"--config {path} is for interp {command.value}; run that, or remove the line 'command'")
    return options


def _by_key(pairs: Sequence[tuple[str, yaml.Node]], where: str) -> dict[str, yaml.Node]:
    """The pairs by key. Raises ValueError for a key that is there twice, of which YAML would take the last."""
    nodes: dict[str, yaml.Node] = {}
    for key, value in pairs:
        if key in nodes:
            lines = f"lines {nodes[key].start_mark.line + 1} and {value.start_mark.line + 1}"
            raise ValueError(f"{where} has {key!r} twice, in {lines}; keep one of them")
        nodes[key] = value
    return nodes


def _flags(parameter: Any, node: yaml.Node, where: str) -> list[str]:
    """An option in the form it has on the command line, where its value is converted as that of the flag."""
    flag = parameter.opts[0]
    if parameter.is_flag:
        named = parameter.opts if _is_on(node, where) else parameter.secondary_opts
        return list(named[:1])
    if isinstance(node, yaml.MappingNode):
        return [f"{flag}={json.dumps(_json(node, where), ensure_ascii=False)}"]
    if isinstance(node, yaml.ScalarNode):
        return [f"{flag}={_text(node, where)}"]
    items = [_text(item, where) for item in node.value]
    if parameter.multiple:
        words = []
        for item in items:
            words.extend([flag, item])
        return words
    for item in items:
        if "," in item:
            raise ValueError(
                f"{where} has {item!r}, but a comma separates the values of this option; write one per item"
            )
    return [f"{flag}={','.join(items)}"]


def _is_on(node: yaml.Node, where: str) -> bool:
    text = node.value.lower() if isinstance(node, yaml.ScalarNode) else "a list or mapping"
    if text not in _SWITCH:
        raise ValueError(f"{where} is a switch; expected true or false, found {text!r}")
    return _SWITCH[text]


def _text(node: yaml.Node, where: str) -> str:
    """The text of a value. Raises ValueError for an empty one, and for a list or mapping."""
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{where} has a list or mapping inside a list; expected single values")
    if not node.value and node.style is None:
        raise ValueError(f"{where} has no value; give one, or remove the line")
    return str(node.value)


def _json(node: yaml.Node, where: str) -> Any:
    """A value inside a mapping: text is a number, true, false or null if JSON has it so and it is not in quotes."""
    if isinstance(node, yaml.MappingNode):
        pairs = _by_key([(_text(key, where), value) for key, value in node.value], where)
        return {key: _json(value, where) for key, value in pairs.items()}
    if isinstance(node, yaml.SequenceNode):
        return [_json(item, where) for item in node.value]
    text = _text(node, where)
    if node.style is None:
        with suppress(ValueError):
            return json.loads(text, parse_constant=str)
    return text

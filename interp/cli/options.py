"""Options that commands share, and what is read from them."""

import glob
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from interp.paths import HUB_CORPORA, bundled_models, cached


def complete_model(incomplete: str) -> list[str]:
    """Bundled models, those in the hub's cache, and directories."""
    directories = [path for path in _paths(incomplete) if path.endswith("/")]
    return [name for name in (*bundled_models(), *cached("models"), *directories) if name.startswith(incomplete)]


def complete_corpus(incomplete: str) -> list[str]:
    """The bundled text, named corpora, and files."""
    return [name for name in ("bundled", *HUB_CORPORA, *_paths(incomplete)) if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Files, and directories with a slash, that begin like this; as a shell does, hidden ones only when asked for."""
    found = [path + "/" * Path(path).is_dir() for path in sorted(glob.glob(f"{glob.escape(incomplete)}*"))]
    return [path for path in found if not path.startswith(".") or incomplete.startswith(".")]


ModelOption = Annotated[
    str,
    typer.Option(help="Hub name, local directory or bundled model.", show_default=False, autocompletion=complete_model),
]
CorpusOption = Annotated[
    str,
    typer.Option(
        help="File (.txt, .jsonl, .json, .csv, .tsv, .parquet, .gz of these), a named corpus, or 'bundled'.",
        show_default=False, autocompletion=complete_corpus,
    ),
]  # fmt: skip
OutOption = Annotated[Path, typer.Option(help="Directory to write to.", show_default=False)]
ColumnOption = Annotated[str | None, typer.Option(help="Field or column that holds the text.")]
SeparatorOption = Annotated[str, typer.Option(help=r"Put after each text; '\n' for lines of one running text.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
LimitOption = Annotated[int | None, typer.Option(help="Read only the first N texts.", metavar="N", min=1, max=2**62)]
UnigramOption = Annotated[
    str | None, typer.Option(help="File of token counts. Default: shipped, else those of the text.")
]
MAX_SEED = 2**63 - 1


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def parse_scales(text: str) -> list[float]:
    """`0,0.5,1`, or `0:1:0.1` with both ends included."""
    parts = text.split(":")
    try:
        numbers = [float(item) for item in (parts if len(parts) == 3 else _list(text))]
    except ValueError:
        raise ValueError(f"--scales {text!r} is not a list of numbers; write 0,0.5,1 or 0:1:0.1") from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"--scales {text!r} has a number that is not finite")
    if len(parts) != 3:
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"--scales {text!r} names a number twice")
        return numbers
    start, stop, step = numbers
    if step <= 0 or stop < start or (stop - start) / step > 1_000:
        raise ValueError(
            f"--scales {text!r}: expected start:stop:step with start ≤ stop, a step above 0 and at most 1,000 steps"
        )
    n = round((stop - start) / step)
    if abs(start + n * step - stop) > 1e-9 * max(1.0, abs(stop)):
        raise ValueError(f"--scales {text!r}: {stop:g} is not a whole number of steps of {step:g} away from {start:g}")
    return [round(start + i * step, 12) for i in range(n + 1)]


def items(text: str, option: str, known: Sequence[str] | None = None) -> list[str]:
    """Names separated by commas, each once and, where they are given, of the known ones."""
    found = _list(text)
    for item in found:
        if known is not None and item not in known:
            raise ValueError(f"{option} {text!r}: unknown {item!r}; expected of {', '.join(known)}")
    if len(set(found)) < len(found):
        raise ValueError(f"{option} {text!r} names one twice")
    return found


def parse_layers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not all(item.isdecimal() for item in _list(text)):
        raise ValueError(f"--layers {text!r} is not a list of numbers; write 0,5")
    return [int(item) for item in _list(text)]


def unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def check_counts(unigram: str | None) -> None:
    """Raise ValueError for what is no file of counts."""
    if unigram is not None and not is_counts(unigram):
        raise ValueError(f"--unigram {unigram!r} is no file of counts (.safetensors, .json); make one: interp unigrams")


def is_counts(unigram: str) -> bool:
    path = Path(unigram)
    if path.suffix not in (".safetensors", ".json"):
        return False
    if not path.is_file():
        raise FileNotFoundError(f"unigram counts {unigram!r} do not exist; expected a file of counts or a corpus")
    return True

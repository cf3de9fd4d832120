"""Reads GGUF files, whose quantised weights transformers turns into float32. Needs the extra interp[gguf]."""

import copy
import os
from collections import Counter
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import transformers

__all__ = ["Header", "config_of", "header", "read_with"]

_WHOLE = ("F64", "F32", "F16", "BF16")
_NAME = "model.gguf"


class Header(NamedTuple):
    """What a GGUF file says of itself: the number of weights; the types of its quantised matrices, those of most
    weights first, or None if there are none; and whether it has a tokenizer."""

    n_numbers: int
    quantised_from: str | None
    has_tokenizer: bool


def header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a GGUF file. Raises ValueError if the file is damaged or ends early."""
    return _header(*_version(path))


def config_of(path: str | os.PathLike[str]) -> Any:
    """Read the transformers config of the model in a GGUF file. Raises the errors of transformers for an unknown
    model."""
    header(path)
    return copy.deepcopy(_config(*_version(path)))


def read_with(cls: Any, path: str | os.PathLike[str], **options: Any) -> Any:
    """Return what the `from_pretrained` of a class of transformers reads from a GGUF file. Other files of its
    directory, such as another tokenizer, are not read."""
    with TemporaryDirectory(prefix="gguf-") as directory, redirect_stderr(StringIO()):  # without its progress bar
        (Path(directory) / _NAME).symlink_to(os.path.abspath(path))
        return cls.from_pretrained(directory, gguf_file=_NAME, trust_remote_code=False, **options)


def _version(path: str | os.PathLike[str]) -> tuple[str, int, int]:
    """A file, and what changes when it is written again."""
    status = os.stat(path)
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


@cache
def _header(path: str, *_: int) -> Header:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception as error:
        problem = f"{path} cannot be read as a GGUF file ({type(error).__name__}: {error})"
        raise ValueError(f"{problem}; is it complete? Download or convert it again") from error
    sizes: Counter[str] = Counter()
    for tensor in reader.tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    types = ", ".join(name for name, _ in sizes.most_common() if name not in _WHOLE)
    return Header(sizes.total(), types or None, "tokenizer.ggml.model" in reader.fields)


@cache
def _config(path: str, *_: int) -> Any:
    return read_with(transformers.AutoConfig, path)

"""The work that a run has done so far, in a file from which it resumes after it was killed.

Everything that can be resumed has one format and one identity: sums of observers, states of sentences, generated tokens
and tables.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.models.identity import config_hash, weight_hash
from interp.models.running import active_hooks
from interp.models.sites import Model
from interp.passes import distributed
from interp.results.result import DECIDING, versions
from interp.support.checks import check_same
from interp.support.disk import checksum, replacing
from interp.support.paths import local_path

__all__ = ["SAME", "Checkpoint", "Tables", "identity", "is_finished", "kept", "kept_each"]

Tables: TypeAlias = dict[str, pd.DataFrame]

_ALL = "all"
SAME = 1e-5  # tolerance for numbers in an identity, which differ slightly between machines; see `observers.fingerprint`


def identity(model: Model, **described: Any) -> dict[str, Any]:
    """Return what a run and a checkpoint must have in common for the run to resume from it, as JSON: weights,
    configuration, the versions of packages that affect numbers, and everything else in `described`.

    Raises ValueError while hooks are active on the model, because an identity cannot describe them.
    """
    if active_hooks(model):
        reason = "a checkpoint cannot record which hooks were active on the model"
        raise ValueError(f"{reason}; run without checkpoint or directory, or reset the hooks")
    description = {"weights": weight_hash(model), "config": config_hash(model), "versions": versions(*DECIDING)}
    return description | described


@dataclass(frozen=True)
class Checkpoint:
    """A safetensors file with the work that a run has done so far, and the identity of the run."""

    path: Path
    identity: Mapping[str, Any]

    @classmethod
    def within(
        cls, directory: str | os.PathLike[str] | None, name: str, identity: Mapping[str, Any]
    ) -> "Checkpoint | None":
        """Return the checkpoint of this name in a directory, or None without a directory."""
        return None if directory is None else cls(local_path(directory) / f"{name}.safetensors", identity)

    def save(self, tensors: Mapping[str, Tensor], done: int | None = None) -> None:
        """Write tensors, completely or not at all, after `done` pieces of work; None means all of them."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        described = dict(self.identity)
        checksums = {name: _checksum(value) for name, value in tensors.items()}
        meta = {"identity": json.dumps(described, sort_keys=True), "done": _ALL if done is None else str(done)}
        meta["checksums"] = json.dumps(checksums)
        meta["checksum"] = checksum("\0".join(meta.values()).encode())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as temporary:
            save_file(tensors, temporary, meta)

    def load(self, names: Iterable[str] | None = None) -> tuple[dict[str, Tensor], int | None]:
        """Return the tensors with these names (None for all tensors), and how many pieces of work are done (None if all
        are). If there is no file, there are no tensors and 0 is done.

        Raises ValueError for a checkpoint of another run, naming the difference, and for a damaged one.
        """
        if not self.path.exists():
            return {}, 0
        try:
            with safe_open(self.path, "pt") as file:
                meta = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}
            described = [meta["identity"], meta["done"], meta["checksums"]]
            checksums = json.loads(meta["checksums"])
            damaged = [name for name, value in tensors.items() if _checksum(value) != checksums[name]]
            if damaged or checksum("\0".join(described).encode()) != meta["checksum"]:
                raise ValueError(f"the checksum does not match: {', '.join(damaged) or 'identity'}")
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            problem = f"{self.path} is damaged or is not a checkpoint of interp ({error})"
            raise ValueError(f"{problem}; delete it to start again") from None
        problem = f"checkpoint {self.path} belongs to another run (delete it to start again, or choose another place)"
        check_same(problem, json.loads(meta["identity"]), dict(self.identity), rel_tol=SAME)
        return tensors, None if meta["done"] == _ALL else int(meta["done"])


def is_finished(path: Path) -> bool:
    """Whether there is a checkpoint of work that was completed."""
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("done") == _ALL
    except (SafetensorError, OSError):
        return False


def kept(checkpoint: Checkpoint | None, make: Callable[[], Tables]) -> Tables:
    """Return the tables of a finished checkpoint, or new ones, which are saved there for the next run. None saves
    nothing."""
    if checkpoint is None:
        return make()
    tensors, done = checkpoint.load()
    if done is None:
        return {name: pd.read_parquet(io.BytesIO(value.numpy().tobytes())) for name, value in tensors.items()}
    tables = make()
    packed = {}
    for name, table in tables.items():
        packed[name] = torch.frombuffer(bytearray(table.to_parquet(index=False)), dtype=torch.uint8)
    checkpoint.save(packed)
    return tables


def kept_each(work: Sequence[tuple[Checkpoint | None, Callable[[], Tables]]]) -> list[Tables]:
    """Apply `kept` to each piece of work, divided among processes (`interp.passes.distributed`) if all of them are
    saved."""
    here = distributed.part()
    paths = [checkpoint.path for checkpoint, _ in work if checkpoint is not None]
    if here.of > 1 and len(paths) == len(work):
        for number, piece in enumerate(work):
            if number in here:
                kept(*piece)
        distributed.meet(list(filterfalse(is_finished, paths)))
    return [kept(*piece) for piece in work]


def _checksum(value: Tensor) -> str:
    return checksum(value.flatten().view(torch.uint8).numpy().tobytes())

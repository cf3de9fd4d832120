"""What is read of a text once, before a model is explored, and kept in the user's cache.

One pass over the first texts of a corpus gives E[h] and the fit of A (`interp.encoding.fit`), the inputs of the
unembedding themselves, from which the effect of steering any token follows without another pass, and the outlier
dimensions of every state.
"""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.encoding.regression import Fit, fit
from interp.corpora import batches, load, token_classes
from interp.corpora.batching import predicted_batches
from interp.corpora.sources import Corpus
from interp.instruments.logits import LogitsObserver
from interp.instruments.profile import DimensionProfile, find_outliers
from interp.instruments.regression import Regression
from interp.models.sites import Model, hook_name
from interp.passes.checkpoint import Checkpoint, identity
from interp.passes.execution import Passes, Reading, execute, side_by_side

__all__ = ["HeadInputs", "Prepared", "cache", "first_texts", "prepared"]

_CHARACTERS = 16_000  # about 4,000 tokens
_LOGITS_AT_ONCE = 2**21


@dataclass(frozen=True, eq=False)
class Prepared:
    """What was read of a text.

    `outliers` is the table of `interp.instruments.profile.find_outliers`. `fit` is that of `interp.encoding.fit`.
    `inputs`, `[pos, d_model]`, are the inputs h of the unembedding at the positions of the fit, and `log_Z`, `[pos]`,
    the logarithm of the sum of exponentials of their logits. Of a model that has no fit, the three are missing, and
    `why_no_fit` says why.
    """

    outliers: pd.DataFrame
    fit: Fit | None = None
    inputs: Float[Tensor, "pos d_model"] | None = None
    log_Z: Float[Tensor, " pos"] | None = None
    why_no_fit: str = ""


class HeadInputs(LogitsObserver):
    """The inputs of the unembedding at every position that is read, and the log partition function of their logits.

    After `observe` there are `inputs` and `log_Z`.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model, [hook_name(model, "head_input")], at_once=_LOGITS_AT_ONCE)
        self.add_states(model.cfg)
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def read(
        self, logits: Float[Tensor, "pos d_vocab"], targets: Int[Tensor, " pos"], h: Float[Tensor, "pos d_model"]
    ) -> None:
        self._waiting.append((h.cpu(), logits.double().logsumexp(1).cpu()))

    def commit(self) -> None:
        self._rows += self._waiting
        self._waiting = []
        super().commit()

    def discard(self) -> None:
        super().discard()
        self._waiting = []

    @property
    def inputs(self) -> Float[Tensor, "pos d_model"]:
        return torch.cat([h for h, _ in self._rows])

    @property
    def log_Z(self) -> Float[Tensor, " pos"]:
        return torch.cat([log_Z for _, log_Z in self._rows])


def first_texts(corpus: str) -> Corpus:
    """The first texts of a corpus, of about 16,000 characters."""
    sizes = accumulate(map(len, load(corpus)))
    return load(corpus, limit=1 + sum(1 for _ in _below(sizes, _CHARACTERS)))


def _below(increasing: Iterator[int], limit: int) -> Iterator[int]:
    for number in increasing:
        if number >= limit:
            return
        yield number


def prepared(model: Model, text: Corpus, *, directory: Path | None = None, progress: bool = True) -> Prepared:
    """What the panels need of a text: from the file of this model and text in `directory` if there is one, else from
    one pass (two for an encoder), after which it is kept there. Remove the directory to start again.

    Args:
        directory: the default is that of `cache`.

    Raises ValueError for a model without a tokenizer.
    """
    plain = batches(model, text)
    identifiers = identity(model, text=plain.settings)
    place = (cache() if directory is None else directory) / f"{identifiers['weights']}-{plain.settings['fingerprint']}"
    checkpoint = Checkpoint(place.with_suffix(".safetensors"), identifiers)
    try:
        tensors, done = checkpoint.load()
        if done is None:
            return _unpacked(model, text, tensors)
    except ValueError:  # of another version, or damaged
        pass
    content = _read(model, text, progress)
    if content.fit is not None:
        checkpoint.save(_packed(content))
    return content


def cache() -> Path:
    """The directory in the user's cache (`XDG_CACHE_HOME`) in which what was prepared is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "interp" / "explore"


def _read(model: Model, text: Corpus, progress: bool) -> Prepared:
    try:
        passes = side_by_side(_outliers(model, text), fit.passes(model, text), _head_inputs(model, text))
        outliers, token_fit, inputs = execute(model, passes, progress=progress)
        return Prepared(outliers, token_fit, inputs.inputs, inputs.log_Z)
    except ValueError as error:
        outliers = execute(model, _outliers(model, text), progress=progress)
        return Prepared(outliers, why_no_fit=str(error))


def _outliers(model: Model, text: Corpus) -> Passes[pd.DataFrame]:
    profile = DimensionProfile(model, token_classes(model, None))
    yield [Reading("dimensions", batches(model, text), [profile])]
    return find_outliers(profile.table)


def _head_inputs(model: Model, text: Corpus) -> Passes[HeadInputs]:
    observer = HeadInputs(model)
    yield [Reading("inputs of the unembedding", predicted_batches(model, text), [observer])]
    return observer


def _packed(content: Prepared) -> dict[str, Tensor]:
    """Arrays as tensors, tables as the bytes of Parquet files, and everything else as those of JSON."""
    values = {field.name: getattr(content.fit, field.name) for field in fields(Fit) if field.name != "batches"}
    fitted = asdict(values.pop("fitted"))
    values.update(slope=fitted.pop("slope"), fitted=fitted)
    values.update(outliers=content.outliers, inputs=content.inputs, log_Z=content.log_Z)
    return {name: _tensor(value) for name, value in values.items()}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    packed = value.to_parquet(index=False) if isinstance(value, pd.DataFrame) else json.dumps(value).encode()
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _unpacked(model: Model, text: Corpus, tensors: dict[str, Tensor]) -> Prepared:
    def table(name: str) -> pd.DataFrame:
        return pd.read_parquet(io.BytesIO(tensors[name].numpy().tobytes()))

    def value(name: str) -> Any:
        return json.loads(tensors[name].numpy().tobytes())

    arrays = {name: tensors[name].numpy() for name in ("alpha", "used", "components", "mean_input")}
    token_fit = Fit(
        **arrays,
        fitted=Regression(slope=tensors["slope"].numpy(), **value("fitted")),
        n_tokens=value("n_tokens"),
        batches=predicted_batches(model, text),
        weight_hash=value("weight_hash"),
        regression=table("regression"),
        dims=table("dims"),
        theory=table("theory"),
        intervals=value("intervals"),
    )
    return Prepared(table("outliers"), token_fit, tensors["inputs"], tensors["log_Z"])

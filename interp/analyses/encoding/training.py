"""How the encoding of word frequency develops during training."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Integer
from scipy import stats

from interp import models
from interp.corpora import batches, load
from interp.corpora.batching import MASK_RATE
from interp.corpora.counts import unigrams_of
from interp.corpora.unigrams import Unigrams
from interp.instruments.divergences import kl
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.regression import raw_head, regressions
from interp.models.sites import Model, is_encoder
from interp.passes.reading import observe
from interp.support.checks import whole_number
from interp.support.paths import local_path

__all__ = ["COLUMNS", "checkpoints", "dynamics", "halfway"]
__dir__ = __all__.copy

COLUMNS = ["step", "adj_r2", "spearman", "kl_unigram_model", "loss"]


def checkpoints(source: str | Path, steps: Sequence[int] | None = None) -> Iterator[tuple[int, Model]]:
    """The models of a training run, one at a time: `(step, model)`.

    Args:
        source: a directory that `tools/train.py` wrote, with `checkpoints/step-N` in it; or a hub name with checkpoints
            ("pythia-70m").
        steps: the steps to load. Default: all steps of a directory. A hub name needs them.

    Raises ValueError for a hub name without steps, and FileNotFoundError for a directory without such checkpoints.
    """
    root = local_path(source)
    steps_asked = [whole_number(step, "a step", least=0) for step in steps or []]
    if not root.is_dir():
        if not steps_asked:
            raise ValueError(f"{source} is not a directory; for a hub name, give the steps of its checkpoints")
        return ((step, models.load(str(source), checkpoint=step)) for step in steps_asked)
    paths = {int(path.name.removeprefix("step-")): path for path in root.glob("checkpoints/step-[0-9]*")}
    if not paths or not set(steps_asked) <= set(paths):
        saved = ", ".join(map(str, sorted(paths)))
        requested = ", ".join(map(str, sorted(steps_asked)))
        raise FileNotFoundError(
            f"{root} has checkpoints/step-N of these steps: {saved or 'none'}; expected {requested or 'at least one'}"
        )
    return ((step, _of_directory(root, paths[step])) for step in sorted(steps_asked or paths))


def _of_directory(root: Path, checkpoint: Path) -> Model:
    """A checkpoint with the tokenizer and the settings of its run."""
    with tempfile.TemporaryDirectory() as directory:
        for path in (*root.glob("*token*.json"), *root.glob("training.json"), *checkpoint.iterdir()):
            shutil.copy(path, directory)
        return models.load(directory)


def dynamics(
    checkpoints: Iterable[tuple[int, Model]],
    text: Any,
    *,
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """How the encoding of word frequency develops during training: the table `dynamics` of an `EncodingStudy`, with one
    row per (step, model).

    `adj_r2` is that of −log α on the output embeddings, and `spearman` that of b_LN W_U with log u; it is NaN without
    b_LN, or while it is zero. The loss of an encoder is that of masked tokens. Each checkpoint takes one forward pass.

    Args:
        text: anything `interp.corpora.load` takes.
        unigram: token counts with the checkpoints' tokenizer.
        settings: settings of `interp.corpora.batches`, such as `bos` and `context`.

    Raises:
        ValueError: there is no checkpoint, one is folded, or the counts belong to another vocabulary or tokenizer.

    Examples:
        >>> from interp.corpora import count_unigrams
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> steps = [(0, models.untrained(model)), (100, model)]
        >>> table = dynamics(steps, text, unigram=count_unigrams(model, text), progress=False)
        >>> table["spearman"].isna().tolist()  # b_LN is zero before training
        [True, False]
    """
    corpus = load(text)
    rows = []
    for step, model in checkpoints:
        head = raw_head(model)
        options: dict[str, Any] = {"mask_rate": MASK_RATE} if is_encoder(model) else {}
        options.update(settings or {})
        prepared = batches(model, corpus, **options)
        u = unigrams_of(model, prepared, unigram).distribution
        predictions = MeanPredictions(model, [Variant()])
        observe(model, prepared, predictions, progress=progress)
        q = predictions.distributions[0]
        real = head.real.cpu().numpy()
        effect = head.effect("ln").double().cpu().numpy() if "ln" in head.biases else np.zeros(len(u))
        seen = real & (u > 0)
        adj_r2 = regressions(head.embeddings, [q], use=real)[0].adj_r2
        spearman = stats.spearmanr(effect[seen], u[seen]).statistic if np.ptp(effect[seen]) > 0 else np.nan
        rows.append((step, adj_r2, spearman, kl(u, q), float(predictions.nll[0])))
    if not rows:
        raise ValueError("there is no checkpoint; expected an iterable of (step, model)")
    return pd.DataFrame(rows, columns=COLUMNS)


def halfway(dynamics: pd.DataFrame) -> pd.DataFrame:
    """Find how early each measure of a training run is learnt.

    A measure v is halfway at the first checkpoint t from which on |v_t − v_T| ≤ ½ |v_0 − v_T| holds, where v_0 is its
    value at the first checkpoint and v_T that at the last. A correlation that is undefined at first, because b_LN is
    zero, counts as 0 there.

    Args:
        dynamics: the table of `dynamics`, or that of a study.

    Returns a table (measure, first, last, step, loss_share): v_0, v_T, the step t, and by what share of its whole
    change the loss has changed until then. It describes one run, and has no interval.

    Raises ValueError for fewer than three checkpoints.

    Examples:
        >>> run = {"step": [0, 10, 20, 30], "adj_r2": [1.0, 0.9, 0.8, 0.8], "spearman": [np.nan, 0.5, 0.6, 0.6]}
        >>> run |= {"kl_unigram_model": [2.0, 1.9, 1.0, 0.0], "loss": [9.0, 8.0, 5.0, 4.0]}
        >>> table = halfway(pd.DataFrame(run))
        >>> table[["measure", "step", "loss_share"]].values.tolist()
        [['adj_r2', 10, 0.2], ['spearman', 10, 0.2], ['kl_unigram_model', 20, 0.8], ['loss', 20, 0.8]]
    """
    table = dynamics.sort_values("step", ignore_index=True)
    if len(table) < 3:
        raise ValueError(f"found {len(table)} checkpoints; how early a measure is learnt needs at least 3")
    loss_share = (table["loss"] - table["loss"].iloc[0]) / (table["loss"].iloc[-1] - table["loss"].iloc[0])
    rows = []
    for measure in COLUMNS[1:]:
        values = table[measure].fillna(0.0).to_numpy()
        first, last = values[[0, -1]]
        far = np.abs(values - last) > np.abs(first - last) / 2
        halfway_at = len(far) - int(np.argmax(far[::-1])) if far.any() else 0
        rows.append((measure, first, last, table["step"][halfway_at], loss_share[halfway_at]))
    return pd.DataFrame(rows, columns=["measure", "first", "last", "step", "loss_share"])
